"""What is shown of every case: a few lines, and a table of the four routes, all of it text.

The same functions fill the page for cases shown in full and the compressed details of all the others.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter

from loadproof.harness.record import CaseRecord, RouteRecord, TensorRecord
from loadproof.harness.routes import REFERENCE_ROUTE, ROUTES

from .pointers import letters_of
from .text import scalar, short_hash, short_symbol, size

NOT_RECORDED = "nothing recorded"


def case_lines(case: CaseRecord) -> list[str]:
    """The values of `CASE_LABELS`."""
    about = case.case
    widths = " + ".join(str(width) for width in about.get("logical_widths", []))
    layer = [
        f"{about.get('scheme')} {about.get('projection')}",
        f"[{widths}] × {about.get('k')}",
        f"padded to {about.get('padded_width')} × {about.get('padded_k')}",
        f"{about.get('out_dtype')}{', bias' if about.get('bias') else ''}",
        f"kernel {about.get('kernel')}",
        f"transport {about.get('transport')}",
        f"M {', '.join(str(m) for m in about.get('m_values', []))}",
    ]
    daemon = case.daemon
    return [
        " · ".join(layer),
        f"{case.checkpoint.get('origin', 'unknown')} · content {case.checkpoint.get('content', 'unknown')}",
        "\n".join(f"{c.name} {c.verdict}: {_figures(c.evidence)}" for c in case.checks),
        f"pid {scalar(daemon.pid)}, exit {scalar(daemon.exit)}, arena {size(daemon.arena_bytes)} at "
        f"{daemon.allocation or 'no address'}, {len(daemon.tensors)} tensors served",
    ]


CASE_LABELS = ("Layer", "Checkpoint", "Checks", "Daemon")


def _figures(evidence: dict[str, object]) -> str:
    counts = [f"{value:,} {name}" for name, value in evidence.items() if isinstance(value, int)]
    return ", ".join(counts) or "see the evidence"


def route_rows(case: CaseRecord, labels: Iterable[str]) -> list[list[str]]:
    """One list a label, with the text of each route."""
    routes = [case.routes.get(route.name) for route in ROUTES]
    return [[NOT_RECORDED if r is None else ROUTE_FACTS[label](case, r) for r in routes] for label in labels]


def labels_for(cases: Iterable[CaseRecord]) -> list[str]:
    """The facts to show; memory only where some route measured it."""
    measured = any(route.memory_bytes for case in cases for route in case.routes.values())
    return [label for label in ROUTE_FACTS if measured or label != MEMORY]


def _engine(case: CaseRecord, route: RouteRecord) -> str:
    return f"pid {scalar(route.pid)}, exit {scalar(route.exit)}"


def _files(case: CaseRecord, route: RouteRecord) -> str:
    return (", ".join(route.witness.files_opened) or "none") + (" (decoys)" if route.witness.decoy else "")


def _mapped(case: CaseRecord, route: RouteRecord) -> str:
    seen = route.witness
    if not seen.mapped_bytes:
        return "nothing"
    nonce = "read" if seen.probe else "not read"
    return f"{size(seen.mapped_bytes)} of daemon {scalar(seen.daemon_pid)}\nnonce {nonce}"


def _outputs(case: CaseRecord, route: RouteRecord) -> str:
    reference = case.routes.get(REFERENCE_ROUTE.name)
    base = {o.m: o.sha256 for o in reference.outputs} if reference and reference is not route else {}
    lines = (
        f"{_mark(o.sha256, base.get(o.m))}M {o.m} {short_hash(o.sha256)}"
        for o in sorted(route.outputs, key=attrgetter("m"))
    )
    return "\n".join(lines) or "none"


def _mark(digest: str, base: str | None) -> str:
    return "" if base is None else "✓ " if digest == base else "✗ "


def _weights(case: CaseRecord, route: RouteRecord) -> str:
    return "\n".join(f"{moment} {short_hash(digest)}" for moment, digest in route.weights.items()) or "none"


def _places(case: CaseRecord, route: RouteRecord) -> str:
    letters = letters_of(case)
    return "\n".join(_place(tensor, letters) for tensor in route.tensors) or "none"


def _place(tensor: TensorRecord, letters: dict[str, str]) -> str:
    where = letters.get(tensor.allocation)
    name = tensor.name.rpartition(".")[2]
    return f"{name} {where} + {tensor.offset:,}" if where else f"{name} own memory"


def _kernels(case: CaseRecord, route: RouteRecord) -> str:
    return "\n".join(dict.fromkeys(short_symbol(kernel) for kernel in route.kernels)) or "none"


def _times(case: CaseRecord, route: RouteRecord) -> str:
    return "\n".join(f"{phase} {ms:.1f} ms" for phase, ms in route.timings_ms.items()) or "none"


def _memory(case: CaseRecord, route: RouteRecord) -> str:
    return "\n".join(f"{moment} {size(count)}" for moment, count in route.memory_bytes.items()) or "none"


MEMORY = "Memory in use"
ROUTE_FACTS: dict[str, Callable[[CaseRecord, RouteRecord], str]] = {
    "Way seen": lambda case, route: route.route_taken,
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
