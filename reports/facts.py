"""What is shown of every case: a few lines, and a table of the four routes, all of it text.

The same functions fill the page for cases in full and the compressed details of all the others. Where a
verdict says that a route is as it should be, a fact says so in a word and leaves figures to the reference.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import CaseRecord, OutputRecord, RouteRecord, TensorRecord
from loadproof.harness.routes import REFERENCE_ROUTE, ROUTES

from .pointers import letters_of
from .text import short_symbol, size
from .verdicts import RouteVerdicts
from .view import CaseView

CASE_LABELS = ("Case", "Checkpoint", "Checks", "Daemon")
NOT_RECORDED = "nothing recorded"
SHOWN_OFFSETS = 8


@dataclass(frozen=True, slots=True)
class Facts:
    """One case as text."""

    lines: list[str]
    """The values of `CASE_LABELS`."""
    rows: list[list[str]]
    """One list a label of `ROUTE_FACTS`, with the text of each route."""


@dataclass(frozen=True, slots=True)
class _About:
    """What the facts of each route of a case are set against."""

    case: CaseRecord
    letters: dict[str, str]
    reference: RouteRecord | None


def facts_of(case: CaseView, labels: Iterable[str]) -> Facts | None:
    """All facts; None where the case left no evidence."""
    record = case.record
    if record is None:
        return None
    about = _About(record, letters_of(record), record.routes.get(REFERENCE_ROUTE.name))
    routes = [(record.routes.get(route.name), case.verdicts[route.name]) for route in ROUTES]
    wanted = [ROUTE_FACTS[label] for label in labels]
    return Facts(
        lines=_lines(about),
        rows=[[fact(r, v, about) if r else NOT_RECORDED for r, v in routes] for fact in wanted],
    )


def labels_for(cases: Iterable[CaseRecord]) -> list[str]:
    """The facts to show; memory only where some route measured it."""
    measured = any(route.memory_bytes for case in cases for route in case.routes.values())
    return [label for label in ROUTE_FACTS if measured or label != MEMORY]


def _lines(about: _About) -> list[str]:
    case, daemon = about.case, about.case.daemon
    places = [_place(tensor, about.letters) for tensor in daemon.tensors[:SHOWN_OFFSETS]]
    if cut := len(daemon.tensors) - len(places):
        places.append(f"{cut} more")
    return [
        " · ".join(_described(case.case)),
        f"{case.checkpoint.get('origin', 'unknown')} · content {case.checkpoint.get('content', 'unknown')}",
        _checks(case),
        f"{_ended(daemon.pid, daemon.exit)}, arena {size(daemon.arena_bytes)} at "
        f"{daemon.allocation or 'no address'}, {_served(case)} tensors served\n{', '.join(places)}",
    ]


def _described(about: dict[str, Any]) -> list[str]:
    facts = [f"{about.get('scheme')} {about.get('projection')}"]
    if "logical_widths" in about:
        widths = " + ".join(str(width) for width in about["logical_widths"])
        facts.append(f"[{widths}] × {about.get('k')}")
        facts.append(f"padded to {about.get('padded_width')} × {about.get('padded_k')}")
        facts.append(f"{about.get('out_dtype')}{', bias' if about.get('bias') else ''}")
    facts += [f"kernel {about.get('kernel')}", f"transport {about.get('transport')}"]
    return facts + ([f"M {', '.join(map(str, about['m_values']))}"] if "m_values" in about else [])


def _served(case: CaseRecord) -> int:
    """Of a model, evidence lists a part of the tensors, and all modules."""
    return sum(module.tensors for module in case.daemon.modules) or len(case.daemon.tensors)


def _checks(case: CaseRecord) -> str:
    passed = ", ".join([check.name for check in case.checks if check.verdict is Outcome.PASS])
    others = [f"{c.verdict.value} {c.name}: {c.detail}" for c in case.checks if c.verdict is not Outcome.PASS]
    return "\n".join([*others, f"PASS {passed}" if passed else "none passed"])


def _ended(pid: int | None, status: int | None) -> str:
    return f"pid {'none' if pid is None else pid}, exit {'none' if status is None else status}"


def _way(route: RouteRecord, verdicts: RouteVerdicts, about: _About) -> str:
    return f"{route.route_taken}\n{_ended(route.pid, route.exit)}"


def _files(route: RouteRecord, verdicts: RouteVerdicts, about: _About) -> str:
    opened = ", ".join(route.witness.files_opened) or "none"
    return f"{opened} (decoys)" if route.witness.decoy else opened


def _mapped(route: RouteRecord, verdicts: RouteVerdicts, about: _About) -> str:
    seen = route.witness
    if not seen.mapped_bytes:
        return "nothing"
    nonce = "nonce read" if seen.probe else "nonce not read"
    return f"{size(seen.mapped_bytes)} of daemon {seen.daemon_pid}\n{nonce}"


def _outputs(route: RouteRecord, verdicts: RouteVerdicts, about: _About) -> str:
    if route is not about.reference and verdicts.outputs is Outcome.PASS:
        return f"✓ the same on all {len(route.outputs)}"
    wanted = {_output(o): o.sha256 for o in about.reference.outputs} if about.reference else {}
    lines = []
    for output in sorted(route.outputs, key=_ORDER):
        name = _output(output)
        mark = "" if route is about.reference else "✓ " if wanted.get(name) == output.sha256 else "✗ "
        lines.append(f"{mark}{name} {output.sha256[:12]}")
    return "\n".join(lines) or "none"


_ORDER = attrgetter("prompt", "step", "m")


def _output(output: OutputRecord) -> str:
    return f"M {output.m}" if output.step is None else f"prompt {output.prompt} step {output.step}"


def _weights(route: RouteRecord, verdicts: RouteVerdicts, about: _About) -> str:
    if verdicts.contents is Outcome.PASS and "held" in route.weights:
        return f"{', '.join(route.weights)}:\n{route.weights['held'][:12]}"
    return "\n".join([f"{moment} {digest[:12]}" for moment, digest in route.weights.items()]) or "none"


def _places(route: RouteRecord, verdicts: RouteVerdicts, about: _About) -> str:
    if verdicts.shared is not Outcome.PASS:
        return "\n".join([_place(tensor, about.letters) for tensor in route.tensors]) or "none"
    if route.witness.mapped_bytes:
        return f"✓ {len(route.tensors)} at the daemon's offsets"
    return f"{len(route.tensors)} in own memory"


def _place(tensor: TensorRecord, letters: dict[str, str]) -> str:
    where, name = letters.get(tensor.allocation), tensor.name.rpartition(".")[2]
    return f"{name} {where} + {tensor.offset:,}" if where else f"{name} own memory"


def _kernels(route: RouteRecord, verdicts: RouteVerdicts, about: _About) -> str:
    if about.reference and route is not about.reference and route.kernels == about.reference.kernels:
        return "the same"
    return "\n".join(dict.fromkeys(map(short_symbol, route.kernels))) or "none"


def _time(route: RouteRecord, verdicts: RouteVerdicts, about: _About) -> str:
    return f"{max(route.timings_ms.values()):.1f} ms" if route.timings_ms else "none"


def _memory(route: RouteRecord, verdicts: RouteVerdicts, about: _About) -> str:
    return "\n".join([f"{at} {size(count)}" for at, count in route.memory_bytes.items()]) or "none"


MEMORY = "Memory in use"
ROUTE_FACTS: dict[str, Callable[[RouteRecord, RouteVerdicts, _About], str]] = {
    "Way seen, engine": _way,
    "Weight files opened": _files,
    "Mapped": _mapped,
    "Outputs, sha256": _outputs,
    "All weights, digest": _weights,
    "Places": _places,
    "Kernels": _kernels,
    MEMORY: _memory,
    "Time": _time,
}
