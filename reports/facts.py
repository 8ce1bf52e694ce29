"""What is shown of every case: a few lines, and a table of the four routes, all of it text.

The same functions fill the page for cases shown in full and the compressed details of all the others.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from loadproof.harness.record import CaseRecord, RouteRecord, TensorRecord
from loadproof.harness.routes import REFERENCE_ROUTE, ROUTES

from .pointers import letters_of
from .text import scalar, short_symbol, size

NOT_RECORDED = "nothing recorded"


def case_lines(case: CaseRecord) -> list[str]:
    """The values of `CASE_LABELS`."""
    daemon = case.daemon
    return [
        " · ".join(_described(case.case)),
        f"{case.checkpoint.get('origin', 'unknown')} · content {case.checkpoint.get('content', 'unknown')}",
        "\n".join(f"{c.name} {c.verdict.value}: {_figures(c.evidence)}" for c in case.checks),
        f"pid {scalar(daemon.pid)}, exit {scalar(daemon.exit)}, arena {size(daemon.arena_bytes)} at "
        f"{daemon.allocation or 'no address'}, {_served(case)} tensors served",
    ]


CASE_LABELS = ("Case", "Checkpoint", "Checks", "Daemon")


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


def _figures(evidence: dict[str, object]) -> str:
    counts = [f"{value:,} {name}" for name, value in evidence.items() if isinstance(value, int)]
    return ", ".join(counts) or "see the evidence"


def route_rows(case: CaseRecord, labels: Iterable[str]) -> list[list[str]]:
    """One list a label, with the text of each route."""
    routes = [case.routes.get(route.name) for route in ROUTES]
    reference = case.routes.get(REFERENCE_ROUTE.name)
    about = _About(letters_of(case), reference, _outputs_of(reference) if reference else {})
    return [[ROUTE_FACTS[label](about, r) if r else NOT_RECORDED for r in routes] for label in labels]


def labels_for(cases: Iterable[CaseRecord]) -> list[str]:
    """The facts to show; memory only where some route measured it."""
    measured = any(r.generation and r.generation.memory for case in cases for r in case.routes.values())
    return [label for label in ROUTE_FACTS if measured or label != MEMORY]


@dataclass(frozen=True, slots=True)
class _About:
    """What the facts of each route of a case are set against."""

    letters: dict[str, str]
    reference: RouteRecord | None
    wanted: dict[tuple[int, int, int], str]
    """The reference's outputs, as `_outputs_of` gives them."""


def _engine(about: _About, route: RouteRecord) -> str:
    return f"pid {scalar(route.pid)}, exit {scalar(route.exit)}"


def _files(about: _About, route: RouteRecord) -> str:
    return (", ".join(route.witness.files_opened) or "none") + (" (decoys)" if route.witness.decoy else "")


def _mapped(about: _About, route: RouteRecord) -> str:
    seen = route.witness
    if not seen.mapped_bytes:
        return "nothing"
    nonce = "read" if seen.probe else "not read"
    return f"{size(seen.mapped_bytes)} of daemon {scalar(seen.daemon_pid)}\nnonce {nonce}"


def _outputs_of(route: RouteRecord) -> dict[tuple[int, int, int], str]:
    """Prompt, step and M to sha256; a layer has neither prompt nor step."""
    return {(o.prompt or 0, -1 if o.step is None else o.step, o.m): o.sha256 for o in route.outputs}


def _outputs(about: _About, route: RouteRecord) -> str:
    found = _outputs_of(route)
    if found and found == about.wanted and route is not about.reference:
        return f"✓ the same on all {len(found)}"
    lines = []
    for key in sorted(found):
        prompt, step, m = key
        mark = "" if route is about.reference else "✓ " if about.wanted.get(key) == found[key] else "✗ "
        what = f"M {m}" if step < 0 else f"prompt {prompt} step {step}"
        lines.append(f"{mark}{what} {found[key][:12]}")
    return "\n".join(lines) or "none"


def _weights(about: _About, route: RouteRecord) -> str:
    found = set(route.weights.values())
    if len(found) == 1:
        return f"{', '.join(route.weights)}:\n{found.pop()[:12]}"
    return "\n".join([f"{moment} {digest[:12]}" for moment, digest in route.weights.items()]) or "none"


def _places(about: _About, route: RouteRecord) -> str:
    return "\n".join([_place(tensor, about.letters) for tensor in route.tensors]) or "none"


def _place(tensor: TensorRecord, letters: dict[str, str]) -> str:
    where, name = letters.get(tensor.allocation), tensor.name.rpartition(".")[2]
    return f"{name} {where} + {tensor.offset:,}" if where else f"{name} own memory"


def _kernels(about: _About, route: RouteRecord) -> str:
    return "\n".join(dict.fromkeys(short_symbol(kernel) for kernel in route.kernels)) or "none"


def _times(about: _About, route: RouteRecord) -> str:
    return "\n".join([f"{phase} {ms:.1f} ms" for phase, ms in route.timings_ms.items()]) or "none"


def _memory(about: _About, route: RouteRecord) -> str:
    moments = route.generation.memory if route.generation else {}
    lines = [
        f"{at}: {', '.join(f'{n} {size(count)}' for n, count in m.items())}" for at, m in moments.items()
    ]
    return "\n".join(lines) or "none"


MEMORY = "Memory in use"
ROUTE_FACTS: dict[str, Callable[[_About, RouteRecord], str]] = {
    "Way seen": lambda about, route: route.route_taken,
    "Weight files opened": _files,
    "Mapped": _mapped,
    "Outputs, sha256": _outputs,
    "All weights, sha256": _weights,
    "Places": _places,
    "Kernels": _kernels,
    "Engine": _engine,
    MEMORY: _memory,
    "Time to": _times,
}
