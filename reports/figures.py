"""Figures as plain shapes, which a template draws as SVG: where tensors lie, and when phases ended."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from loadproof.harness.record import CaseRecord, RouteRecord, TensorRecord
from loadproof.harness.routes import ROUTES

from .pointers import letters_of
from .text import scalar, size

LANE = 46
LEFT = 150
WIDTH = 860
SHOWN_TENSORS = 8
OWN = "own"
SHOWN_LETTERS = 6
"""Letters with a colour of their own; later ones share the last."""
_ELEMENT_BYTES = {"float8_e4m3fn": 1, "uint8": 1, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with a CSS class and a text of its own."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    x: float
    y: float
    text: str
    kind: str = ""


@dataclass(slots=True)
class Figure:
    """A drawing, and what it says in words."""

    title: str
    description: str
    height: float = 0
    boxes: list[Box] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    keys: list[tuple[str, str]] = field(default_factory=list)
    """CSS class and meaning."""


def pointer_figure(case: CaseRecord) -> Figure | None:
    """Processes as lanes; in each, one box an allocation and in it the tensors, by offset.

    Equal letter and colour: the same physical memory. None where the daemon served nothing.
    """
    if not case.daemon.tensors:
        return None
    letters = letters_of(case)
    names = [t.name for t in case.daemon.tensors][:SHOWN_TENSORS]
    figure = Figure(
        title="Where each process held the tensors",
        description="Processes are lanes, allocations boxes, tensors the numbered parts inside, in order of "
        "offset, not to scale. Equal letter and colour: the same physical memory. Grey: a process's own.",
    )
    lanes = [("daemon", case.daemon.pid, case.daemon.tensors)]
    for route in ROUTES:
        found = case.routes.get(route.name)
        lanes.append((route.name, found.pid if found else None, found.tensors if found else []))
    for at, (name, pid, tensors) in enumerate(lanes):
        _lane(figure, at * (LANE + 12) + 4, name, pid, _by_allocation(tensors, letters), names)
    figure.height = len(lanes) * (LANE + 12)
    figure.keys = [
        (f"m{min(n, SHOWN_LETTERS - 1)}", f"{letter}: {identity}")
        for n, (identity, letter) in enumerate(letters.items())
    ]
    figure.keys.append((OWN, "memory of one process alone, its allocations drawn as one"))
    return figure


@dataclass(frozen=True, slots=True)
class _Allocation:
    letter: str
    kind: str
    tensors: list[TensorRecord]


def _by_allocation(tensors: Iterable[TensorRecord], letters: dict[str, str]) -> list[_Allocation]:
    """The daemon's allocations by letter, and a process's own memory taken together."""
    grouped: dict[str, list[TensorRecord]] = {}
    for tensor in tensors:
        grouped.setdefault(letters.get(tensor.allocation, OWN), []).append(tensor)
    kinds = {letter: f"m{min(n, SHOWN_LETTERS - 1)}" for n, letter in enumerate(letters.values())}
    return [_Allocation(letter, kinds.get(letter, OWN), held) for letter, held in grouped.items()]


def _lane(
    figure: Figure, y: float, name: str, pid: int | None, allocations: list[_Allocation], names: list[str]
) -> None:
    figure.labels += [Label(0, y + 20, name, "lane"), Label(0, y + 36, f"pid {scalar(pid)}", "small")]
    if not allocations:
        figure.labels.append(Label(LEFT, y + 28, "nothing recorded", "small"))
        return
    parts = sum(min(len(a.tensors), SHOWN_TENSORS) for a in allocations)
    gap = 10
    unit = min(130.0, (WIDTH - LEFT - gap * (len(allocations) - 1) - 26 * len(allocations)) / max(parts, 1))
    x = float(LEFT)
    for allocation in allocations:
        shown = allocation.tensors[:SHOWN_TENSORS]
        width = 26 + unit * len(shown)
        figure.boxes.append(Box(round(x, 1), y, round(width, 1), LANE, f"allocation {allocation.kind}"))
        figure.labels.append(
            Label(
                round(x + 13, 1),
                y + 28,
                allocation.letter,
                "letter" if allocation.letter != OWN else "letter-own",
            )
        )
        for n, tensor in enumerate(shown):
            left = x + 24 + n * unit
            number = names.index(tensor.name) + 1 if tensor.name in names else 0
            figure.boxes.append(Box(round(left, 1), y + 6, round(unit - 4, 1), LANE - 12, "view"))
            title = f"{number or '?'} {tensor.name.rpartition('.')[2]}"
            figure.labels.append(Label(round(left + 5, 1), y + 20, _fit(title, unit), "name"))
            if allocation.letter != OWN:
                place = _fit(f"+ {tensor.offset:,}", unit)
                figure.labels.append(Label(round(left + 5, 1), y + 34, place, "small"))
        x += width + gap


def _fit(text: str, width: float) -> str:
    room = int((width - 10) / 6.3)
    return text if len(text) <= room else text[: max(0, room - 1)] + "…" if room > 1 else ""


def tensor_bytes(tensor: TensorRecord) -> str:
    """`6,144 B`, or empty for a dtype that is not known here."""
    each = _ELEMENT_BYTES.get(tensor.dtype)
    return size(math.prod(tensor.shape) * each) if each else ""


def timeline(routes: dict[str, dict[str, float]], title: str) -> Figure | None:
    """Bars of `route -> phase -> milliseconds from its start`, on one scale; None where nothing was timed."""
    phases = list(dict.fromkeys(phase for times in routes.values() for phase in times))
    longest = max((max(times.values(), default=0.0) for times in routes.values()), default=0.0)
    if not longest:
        return None
    figure = Figure(
        title=title,
        description="; ".join(
            f"{name}: " + (", ".join(f"{p} at {ms:.1f} ms" for p, ms in times.items()) or "not timed")
            for name, times in routes.items()
        ),
        height=len(routes) * 30,
        keys=[(f"p{n % 8}", phase) for n, phase in enumerate(phases)],
    )
    room = WIDTH - LEFT - 90
    for at, (name, times) in enumerate(routes.items()):
        y, start = at * 30 + 4, 0.0
        figure.labels.append(Label(0, y + 15, name, "lane"))
        for phase, end in sorted(times.items(), key=lambda item: item[1]):
            x, width = LEFT + start / longest * room, (end - start) / longest * room
            if width > 0:
                figure.boxes.append(
                    Box(
                        round(x, 1),
                        y,
                        round(width, 1),
                        20,
                        f"p{phases.index(phase) % 8}",
                        f"{phase} {end:.1f} ms",
                    )
                )
            start = end
        figure.labels.append(
            Label(round(LEFT + start / longest * room + 6, 1), y + 15, f"{start:.0f} ms", "small")
        )
    return figure


def median_times(cases: Iterable[CaseRecord]) -> dict[str, dict[str, float]]:
    """Each route's median time to each phase, over the cases in which the route reached it."""
    found: dict[str, dict[str, list[float]]] = {route.name: {} for route in ROUTES}
    for case in cases:
        for name, route in case.routes.items():
            for phase, ms in route.timings_ms.items():
                found.setdefault(name, {}).setdefault(phase, []).append(ms)
    return {
        name: {phase: statistics.median(values) for phase, values in phases.items()}
        for name, phases in found.items()
    }


def case_timeline(routes: dict[str, RouteRecord | None]) -> Figure | None:
    """One case's own timeline."""
    return timeline(
        {name: dict(r.timings_ms) if r else {} for name, r in routes.items()}, "Time of each route"
    )
