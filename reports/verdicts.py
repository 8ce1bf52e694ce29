"""The three verdicts of each route, never merged: outputs, sharing, contents.

They are worked out from what the routes recorded, and set beside what the checks said: a route passes only
where both do.
"""

from operator import attrgetter
from typing import Any, NamedTuple

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import CaseRecord, CheckRecord, RouteRecord
from loadproof.harness.routes import REFERENCE_ROUTE, ROUTES, Route

PARTS = {"outputs": "outputs_exact", "shared": "pointers_shared", "contents": "contents_preserved"}
"""Each verdict, and the check behind it."""


class RouteVerdicts(NamedTuple):
    """How one route ended, and what its run showed."""

    outcome: Outcome
    """PASS where the engine ended in order and the weights came by the due way."""
    outputs: Outcome
    """Equal to the reference's in every byte."""
    shared: Outcome
    """In the daemon's memory where they must be, and only there."""
    contents: Outcome
    """The weights' bytes unchanged, as engine and daemon saw them."""

    @property
    def parts(self) -> dict[str, Outcome]:
        """The three, by name."""
        return {"outputs": self.outputs, "shared": self.shared, "contents": self.contents}

    @property
    def word(self) -> Outcome:
        """The one word for the route: how it ended, or else how its outputs compare."""
        return self.outcome if self.outcome is not Outcome.PASS else self.outputs


_NOTHING = RouteVerdicts(Outcome.INCOMPLETE, Outcome.INCOMPLETE, Outcome.INCOMPLETE, Outcome.INCOMPLETE)


def route_verdicts(case: CaseRecord | None) -> dict[str, RouteVerdicts]:
    """By route, in the routes' order; INCOMPLETE where nothing was recorded."""
    if case is None:
        return dict.fromkeys((route.name for route in ROUTES), _NOTHING)
    checks = {check.name: check for check in case.checks}
    outputs = _agreed(_outputs(case), checks.get(PARTS["outputs"]))
    shared = _agreed(_shared(case), checks.get(PARTS["shared"]))
    contents = _agreed(_contents(case), checks.get(PARTS["contents"]))
    return {
        route.name: RouteVerdicts(
            _outcome(route, case.routes[route.name]),
            outputs[route.name],
            shared[route.name],
            contents[route.name],
        )
        if route.name in case.routes
        else _NOTHING
        for route in ROUTES
    }


_ByRoute = dict[str, Outcome]


def _outcome(route: Route, found: RouteRecord) -> Outcome:
    if found.outcome is Outcome.PASS and found.route_taken != route.must_observe:
        return Outcome.WRONG_ROUTE
    return found.outcome


# Thousands of cases go through here: these are read in C.
_OUTPUT = attrgetter("sha256", "dtype", "shape")
_PLACE = attrgetter("name", "allocation", "offset")
_ALLOCATION = attrgetter("allocation")


def _outputs(case: CaseRecord) -> _ByRoute:
    reference = case.routes.get(REFERENCE_ROUTE.name)
    wanted = list(map(_OUTPUT, reference.outputs)) if reference else []
    return {
        name: _compared(wanted if route is reference else list(map(_OUTPUT, route.outputs)), wanted)
        for name, route in case.routes.items()
    }


def _compared(found: list[Any], wanted: list[Any]) -> Outcome:
    if not wanted or len(found) != len(wanted):
        return Outcome.INCOMPLETE
    if found == wanted:
        return Outcome.PASS
    pairs = list(zip(found, wanted, strict=True))
    if any(ours[2] != theirs[2] for ours, theirs in pairs):
        return Outcome.SHAPE
    return Outcome.DTYPE if any(ours[1] != theirs[1] for ours, theirs in pairs) else Outcome.BYTES


def _shared(case: CaseRecord) -> _ByRoute:
    served = list(map(_PLACE, case.daemon.tensors))
    verdicts = {}
    for name, found in case.routes.items():
        if not found.tensors:
            verdicts[name] = Outcome.INCOMPLETE
        elif name in _SHARING:
            held = list(map(_PLACE, found.tensors))
            same = held == served or sorted(held) == sorted(served)
            verdicts[name] = _decided(same and found.witness.probe, Outcome.NOT_SHARED)
        else:
            apart = case.daemon.allocation not in map(_ALLOCATION, found.tensors)
            verdicts[name] = _decided(apart, Outcome.NOT_SHARED)
    return verdicts


def _contents(case: CaseRecord) -> _ByRoute:
    verdicts = {}
    for name, found in case.routes.items():
        seen, shares = found.weights, name in _SHARING
        if not seen:
            # Evidence from before these digests were kept has the check's word alone.
            verdicts[name] = Outcome.PASS if found.tensors else Outcome.INCOMPLETE
        elif not (_MOMENTS_SHARED if shares else _MOMENTS) <= seen.keys():
            verdicts[name] = Outcome.INCOMPLETE
        else:
            wanted = case.daemon.manifest if shares else seen["held"]
            verdicts[name] = _decided({wanted}.issuperset(seen.values()), Outcome.MUTATED)
    return verdicts


_SHARING = frozenset(route.name for route in ROUTES if route.shares)
_MOMENTS = frozenset({"held", "after"})
_MOMENTS_SHARED = _MOMENTS | {"daemon"}


def _decided(holds: bool, otherwise: Outcome) -> Outcome:
    return Outcome.PASS if holds else otherwise


def _agreed(own: _ByRoute, check: CheckRecord | None) -> _ByRoute:
    """What the record shows of each route, or the check's word of a route where that says otherwise."""
    if check is None:
        return dict.fromkeys(own, Outcome.INCOMPLETE)
    if check.verdict is Outcome.PASS:
        return own
    named = check.evidence.get("route")
    if named in own:
        return own | ({named: check.verdict} if own[named] is Outcome.PASS else {})
    # It names no route: either the record shows which, or another route's end is what it tells of.
    explained = any(verdict is not Outcome.PASS for verdict in own.values())
    return own if explained else dict.fromkeys(own, Outcome.INCOMPLETE)
