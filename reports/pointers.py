"""The pointer table: where the daemon's tensors lie, and where each route held them."""

from collections.abc import Iterator
from dataclasses import dataclass
from string import ascii_uppercase

from loadproof.harness.record import CaseRecord, ModuleRecord, RouteRecord, TensorRecord
from loadproof.harness.routes import ROUTES, Route

ROW_LIMIT = 40


@dataclass(frozen=True, slots=True)
class Place:
    """Where a route held a tensor, and whether that is where it should."""

    text: str
    word: str
    as_due: bool


@dataclass(frozen=True, slots=True)
class PointerRow:
    """One tensor of the manifest and its place on each route (None: not recorded)."""

    tensor: TensorRecord
    place: str
    routes: dict[str, Place | None]


@dataclass(frozen=True, slots=True)
class PointerTable:
    """The same letter stands for the same physical memory."""

    allocations: dict[str, str]
    """Identity of the daemon's memory to its letter."""
    rows: list[PointerRow]
    left_out: int
    probes: dict[str, bool]
    """Attaching route to whether it read the daemon's nonce through its mapping."""


def pointer_table(case: CaseRecord) -> PointerTable:
    """Set each route's tensors against the daemon's manifest."""
    served = case.daemon.tensors
    letters = letters_of(case)
    return PointerTable(
        allocations=letters,
        rows=[_row(tensor, case, letters) for tensor in served[:ROW_LIMIT]],
        left_out=max(0, len(served) - ROW_LIMIT),
        probes={
            r.name: case.routes[r.name].witness.probe for r in ROUTES if r.shares and r.name in case.routes
        },
    )


def letters_of(case: CaseRecord) -> dict[str, str]:
    """Each allocation that the daemon serves from, with its letter."""
    found = dict.fromkeys([case.daemon.allocation, *[t.allocation for t in case.daemon.tensors]])
    found.pop("", None)
    return dict(zip(found, _letter_names(), strict=False))


def _letter_names() -> Iterator[str]:
    yield from ascii_uppercase
    number = 1
    while True:
        yield f"M{number}"
        number += 1


def _row(served: TensorRecord, case: CaseRecord, letters: dict[str, str]) -> PointerRow:
    places = {route.name: _place(served, route, case.routes.get(route.name), letters) for route in ROUTES}
    return PointerRow(served, f"{letters[served.allocation]} + {served.offset:,}", places)


def _place(
    served: TensorRecord, route: Route, record: RouteRecord | None, letters: dict[str, str]
) -> Place | None:
    held = next((t for t in record.tensors if t.name == served.name), None) if record else None
    if held is None:
        return None
    letter = letters.get(held.allocation)
    if letter is None:
        kind = held.allocation.partition(":")[0] or "unknown"
        return Place(kind, "own memory", as_due=not route.shares)
    same = (held.allocation, held.offset) == (served.allocation, served.offset)
    return Place(
        f"{letter} + {held.offset:,}",
        "same memory" if same else "other place",
        as_due=same and route.shares,
    )


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """The tensors of one module of a model, as the daemon serves them and as each route held them."""

    module: ModuleRecord
    routes: dict[str, Place | None]


def module_rows(case: CaseRecord) -> list[ModuleRow]:
    """Every module of a model; empty for a layer."""
    return [
        ModuleRow(served, {route.name: _module_place(served, route, case) for route in ROUTES})
        for served in case.daemon.modules
    ]


def _module_place(served: ModuleRecord, route: Route, case: CaseRecord) -> Place | None:
    record = case.routes.get(route.name)
    held = next((m for m in record.modules if m.name == served.name), None) if record else None
    if held is None:
        return None
    shares = held.allocations == served.allocations and held.offset == served.offset
    same = held.sha256 == served.sha256
    return Place(
        text="same bytes" if same else "other bytes",
        word="same memory" if shares else "own memory",
        as_due=same and shares is route.shares,
    )
