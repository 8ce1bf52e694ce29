"""The three verdicts of each route, never merged: outputs, sharing, contents.

They are worked out from what the routes recorded, and set beside what the checks said: a route passes only
where both do.
"""

from dataclasses import dataclass

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import CaseRecord, CheckRecord, RouteRecord, manifest_digest
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
    checks = {check.name: check for check in case.checks}
    ended = {route.outcome for route in case.routes.values()}
    served = {t.name: (t.allocation, t.offset) for t in case.daemon.tensors}
    manifest = manifest_digest({t.name: t.sha256 for t in case.daemon.tensors})
    reference = case.routes.get(REFERENCE_ROUTE.name)
    verdicts = {}
    for route in ROUTES:
        found = case.routes.get(route.name)
        if found is None:
            verdicts[route.name] = _NOTHING
            continue
        outcome = found.outcome
        if outcome is Outcome.PASS and found.route_taken != route.must_observe:
            outcome = Outcome.WRONG_ROUTE
        shown = (
            _outputs(found, reference),
            _shared(route, found, served, case.daemon.allocation),
            _contents(route, found, manifest),
        )
        parts = (
            _agreed(own, checks.get(check), route, ended)
            for own, check in zip(shown, PARTS.values(), strict=True)
        )
        verdicts[route.name] = RouteVerdicts(outcome, *parts)
    return verdicts


def _outputs(found: RouteRecord, reference: RouteRecord | None) -> Outcome:
    if reference is None or not found.outputs or len(found.outputs) != len(reference.outputs):
        return Outcome.INCOMPLETE
    # Nearly always so, and cheaper than comparing records.
    if found is reference or [o.sha256 for o in found.outputs] == [o.sha256 for o in reference.outputs]:
        return _kinds(found, reference)
    return Outcome.BYTES if (kinds := _kinds(found, reference)) is Outcome.PASS else kinds


def _kinds(found: RouteRecord, reference: RouteRecord) -> Outcome:
    pairs = list(zip(found.outputs, reference.outputs, strict=True))
    if any(ours.shape != theirs.shape for ours, theirs in pairs):
        return Outcome.SHAPE
    return Outcome.DTYPE if any(ours.dtype != theirs.dtype for ours, theirs in pairs) else Outcome.PASS


def _shared(
    route: Route, found: RouteRecord, served: dict[str, tuple[str, int]], allocation: str
) -> Outcome:
    if not found.tensors:
        return Outcome.INCOMPLETE
    if not route.shares:
        apart = all(t.allocation != allocation for t in found.tensors)
        return Outcome.PASS if apart else Outcome.NOT_SHARED
    held = {t.name: (t.allocation, t.offset) for t in found.tensors}
    return Outcome.PASS if held == served and found.witness.probe else Outcome.NOT_SHARED


def _contents(route: Route, found: RouteRecord, manifest: str) -> Outcome:
    # Evidence from before these digests were kept has the check's word alone.
    if not found.weights:
        return Outcome.PASS if found.tensors else Outcome.INCOMPLETE
    due = {"held", "after", "daemon"} if route.shares else {"held", "after"}
    if not due <= found.weights.keys():
        return Outcome.INCOMPLETE
    wanted = manifest if route.shares else found.weights["held"]
    return Outcome.PASS if all(seen == wanted for seen in found.weights.values()) else Outcome.MUTATED


def _agreed(own: Outcome, check: CheckRecord | None, route: Route, ended: set[Outcome]) -> Outcome:
    """What the record shows of this route, or the check's word where that says otherwise of it."""
    if check is None:
        return Outcome.INCOMPLETE
    if own is not Outcome.PASS or check.verdict is Outcome.PASS:
        return own
    named = check.evidence.get("route")
    if named == route.name:
        return check.verdict
    # Of another route, or because another one did not run; otherwise it may well be meant for this one.
    elsewhere = named is not None or check.verdict in ended
    return own if elsewhere else Outcome.INCOMPLETE
