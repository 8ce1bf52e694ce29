"""The three verdicts of each route, never merged: outputs, sharing, contents.

They are worked out from what the routes recorded, and set beside what the checks said: a route passes only
where both do.
"""

from dataclasses import dataclass
from typing import Any

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import CaseRecord, RouteRecord
from loadproof.harness.routes import REFERENCE_ROUTE, ROUTES, Route

PARTS = {"outputs": "outputs_exact", "shared": "pointers_shared", "contents": "contents_preserved"}
"""Each verdict, and the check behind it."""


@dataclass(frozen=True, slots=True)
class RouteVerdicts:
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
    outputs = _agreed(_outputs(case), PARTS["outputs"], case)
    shared = _agreed(_shared(case), PARTS["shared"], case)
    contents = _agreed(_contents(case), PARTS["contents"], case)
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


def _outputs(case: CaseRecord) -> _ByRoute:
    reference = case.routes.get(REFERENCE_ROUTE.name)
    wanted = [vars(output) for output in reference.outputs] if reference else []
    return {name: _compared([vars(o) for o in route.outputs], wanted) for name, route in case.routes.items()}


def _compared(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> Outcome:
    if not wanted or len(found) != len(wanted):
        return Outcome.INCOMPLETE
    if found == wanted:
        return Outcome.PASS
    pairs = list(zip(found, wanted, strict=True))
    for field, verdict in (("shape", Outcome.SHAPE), ("dtype", Outcome.DTYPE)):
        if any(ours[field] != theirs[field] for ours, theirs in pairs):
            return verdict
    return Outcome.BYTES


def _shared(case: CaseRecord) -> _ByRoute:
    served = {t.name: (t.allocation, t.offset) for t in case.daemon.tensors}
    verdicts = {}
    for route in ROUTES:
        found = case.routes.get(route.name)
        if found is None:
            continue
        if route.shares:
            held = {t.name: (t.allocation, t.offset) for t in found.tensors}
            due = held == served and found.witness.probe
        else:
            due = all(t.allocation != case.daemon.allocation for t in found.tensors)
        verdicts[route.name] = _decided(due, Outcome.NOT_SHARED) if found.tensors else Outcome.INCOMPLETE
    return verdicts


def _contents(case: CaseRecord) -> _ByRoute:
    manifest = case.daemon.manifest
    verdicts = {}
    for route in ROUTES:
        found = case.routes.get(route.name)
        if found is None:
            continue
        due = _MOMENTS_SHARED if route.shares else _MOMENTS
        if not found.weights:
            # Evidence from before these digests were kept has the check's word alone.
            verdicts[route.name] = Outcome.PASS if found.tensors else Outcome.INCOMPLETE
        elif not due <= found.weights.keys():
            verdicts[route.name] = Outcome.INCOMPLETE
        else:
            wanted = manifest if route.shares else found.weights["held"]
            unchanged = all(seen == wanted for seen in found.weights.values())
            verdicts[route.name] = _decided(unchanged, Outcome.MUTATED)
    return verdicts


_MOMENTS = frozenset({"held", "after"})
_MOMENTS_SHARED = _MOMENTS | {"daemon"}


def _decided(holds: bool, otherwise: Outcome) -> Outcome:
    return Outcome.PASS if holds else otherwise


def _agreed(own: _ByRoute, name: str, case: CaseRecord) -> _ByRoute:
    """What the record shows of each route, or the check's word of a route where that says otherwise."""
    check = next((check for check in case.checks if check.name == name), None)
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
