"""What is shown of every case: a few lines, and a table of the four routes, all of it text.

The same functions fill the page for cases shown in full and the compressed details of all the others.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import CaseRecord, OutputRecord, RouteRecord, TensorRecord
from loadproof.harness.routes import REFERENCE_ROUTE, ROUTES

from .pointers import letters_of
from .text import scalar, short_symbol, size

NOT_RECORDED = "nothing recorded"
SHOWN_OFFSETS = 8


def case_lines(case: CaseRecord) -> list[str]:
    """The values of `CASE_LABELS`."""
    daemon = case.daemon
    return [
        " · ".join(_described(case.case)),
        f"{case.checkpoint.get('origin', 'unknown')} · content {case.checkpoint.get('content', 'unknown')}",
        _checks(case),
        f"pid {scalar(daemon.pid)}, exit {scalar(daemon.exit)}, arena {size(daemon.arena_bytes)} at "
        f"{daemon.allocation or 'no address'}, {_served(case)} tensors served\n{_offsets(case)}",
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


def _offsets(case: CaseRecord) -> str:
    letters, served = letters_of(case), case.daemon.tensors[:SHOWN_OFFSETS]
    cut = len(case.daemon.tensors) - len(served)
    places = [f"{t.name.rpartition('.')[2]} {letters[t.allocation]} + {t.offset:,}" for t in served]
    return ", ".join([*places, *([f"{cut} more"] if cut else [])])


def _served(case: CaseRecord) -> int:
    """Of a model, evidence lists a part of the tensors, and all modules."""
    return sum(module.tensors for module in case.daemon.modules) or len(case.daemon.tensors)


def _checks(case: CaseRecord) -> str:
    passed = ", ".join([check.name for check in case.checks if check.verdict is Outcome.PASS])
    others = [f"{c.verdict.value} {c.name}: {c.detail}" for c in case.checks if c.verdict is not Outcome.PASS]
    return "\n".join([*others, f"PASS {passed}" if passed else "none passed"])


def route_rows(case: CaseRecord, labels: Iterable[str]) -> list[list[str]]:
    """One list a label, with the text of each route."""
    routes = [case.routes.get(route.name) for route in ROUTES]
    about = _About.of(case)
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
    outputs: list[str]
    """The reference's, by sha256."""
    served: list[tuple[str, str, int]]
    """Name, allocation and offset of what the daemon serves."""

    @classmethod
    def of(cls, case: CaseRecord) -> "_About":
        reference = case.routes.get(REFERENCE_ROUTE.name)
        outputs = [output.sha256 for output in reference.outputs] if reference else []
        return cls(letters_of(case), reference, outputs, _held(case.daemon.tensors))


def _held(tensors: list[TensorRecord]) -> list[tuple[str, str, int]]:
    return sorted([(t.name, t.allocation, t.offset) for t in tensors])


def _way(about: _About, route: RouteRecord) -> str:
    return (
        f"{route.route_taken}\npid {route.pid or 'none'}, exit {'none' if route.exit is None else route.exit}"
    )


def _files(about: _About, route: RouteRecord) -> str:
    opened = ", ".join(route.witness.files_opened) or "none"
    return f"{opened} (decoys)" if route.witness.decoy else opened


def _mapped(about: _About, route: RouteRecord) -> str:
    seen = route.witness
    if not seen.mapped_bytes:
        return "nothing"
    nonce = "read" if seen.probe else "not read"
    return f"{size(seen.mapped_bytes)} of daemon {scalar(seen.daemon_pid)}\nnonce {nonce}"


def _outputs(about: _About, route: RouteRecord) -> str:
    if route is about.reference:
        return (
            "\n".join([f"{_output(o)} {o.sha256[:12]}" for o in sorted(route.outputs, key=_order)]) or "none"
        )
    if route.outputs and [output.sha256 for output in route.outputs] == about.outputs:
        return f"✓ the same on all {len(route.outputs)}"
    wanted = {_output(o): o.sha256 for o in about.reference.outputs} if about.reference else {}
    return (
        "\n".join(
            [
                f"{'✓' if wanted.get(_output(o)) == o.sha256 else '✗'} {_output(o)} {o.sha256[:12]}"
                for o in sorted(route.outputs, key=_order)
            ]
        )
        or "none"
    )


def _order(output: OutputRecord) -> tuple[int, int, int]:
    return (output.prompt or 0, output.step or 0, output.m)


def _output(output: OutputRecord) -> str:
    return f"M {output.m}" if output.step is None else f"prompt {output.prompt} step {output.step}"


def _weights(about: _About, route: RouteRecord) -> str:
    found = set(route.weights.values())
    if len(found) == 1:
        return f"{', '.join(route.weights)}:\n{found.pop()[:12]}"
    return "\n".join([f"{moment} {digest[:12]}" for moment, digest in route.weights.items()]) or "none"


def _places(about: _About, route: RouteRecord) -> str:
    if not route.tensors:
        return "none"
    if all(tensor.allocation not in about.letters for tensor in route.tensors):
        return f"{len(route.tensors)} in own memory"
    if _held(route.tensors) == about.served:
        letters = ", ".join(about.letters.values())
        return f"✓ {len(route.tensors)} in {letters}, each at the daemon's offset"
    return "\n".join([_place(tensor, about.letters) for tensor in route.tensors])


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
    "Way seen, engine": _way,
    "Weight files opened": _files,
    "Mapped": _mapped,
    "Outputs, sha256": _outputs,
    "All weights, sha256": _weights,
    "Places": _places,
    "Kernels": _kernels,
    MEMORY: _memory,
    "Time to": _times,
}
