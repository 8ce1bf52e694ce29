"""capability: a layer runs where scheme and backend are supported, and is declined by name elsewhere."""

from typing import Any

from ..observation import CaseObservation, RouteObservation
from ..outcome import Outcome
from ..record import ErrorRecord
from ..spec import Refusal
from .verdict import Tally


def capability(seen: CaseObservation, tally: Tally) -> str:
    """Every route ended as the case claims; REFUSED where it claims a refusal, and the refusal is one."""
    refusal = seen.case.refusal
    declining = [r for r in seen.in_order() if refusal and (refusal.every_route or r.route.shares)]
    for route in seen.in_order():
        if route not in declining:
            _require_run(seen, route, tally)
    if refusal is None:
        return f"Backend {seen.case.kernel} declares support for pre-processed weights."
    for route in declining:
        _require_refusal(refusal, route, tally)
    if refusal.every_route:
        _require_words(refusal, "the daemon", seen.daemon.error, tally)
        found = {"arena bytes": seen.daemon.arena_bytes, "files opened": seen.daemon.files_opened}
        _require_nothing(found, "The daemon", tally)
    names = [route.route.name for route in declining]
    # Not a fault, but the verdict that the case expects; a failure noted above takes precedence.
    tally.fail(Outcome.REFUSED, f"{refusal.error} on {', '.join(names)}; nothing was loaded.", routes=names)
    return ""


def _require_run(seen: CaseObservation, route: RouteObservation, tally: Tally) -> None:
    ended = route.outcome is Outcome.PASS
    reason = f": {route.error.message}" if route.error else ""
    tally.require(ended, route.outcome, f"Route {route.route.name} ended as {route.outcome}{reason}")
    if route.route.shares and ended:
        detail = f"Backend {seen.case.kernel!r} ran pre-processed weights without declaring support."
        tally.require(seen.kernel.accepts_preprocessed, Outcome.REFUSED, detail)


def _require_refusal(refusal: Refusal, route: RouteObservation, tally: Tally) -> None:
    """The route was declined by the right error, in words that name what was declined, before any load."""
    name, error = route.route.name, route.error
    if route.outcome is not Outcome.REFUSED or error is None:
        verdict = Outcome.WRONG_ROUTE if route.outcome is Outcome.PASS else route.outcome
        detail = f"Route {name} ended as {route.outcome}, though it must be refused."
        tally.fail(verdict, detail, expected=refusal.error, found=error and error.type)
        return
    _require_words(refusal, f"route {name}", error, tally)
    found = {
        "files opened": route.files_opened,
        "attachments": route.attachments,
        "bytes mapped": route.reported.get("mapped_bytes", 0),
        "results": sorted(route.results),
    }
    _require_nothing(found, f"Route {name}", tally)


def _require_words(refusal: Refusal, who: str, error: ErrorRecord | None, tally: Tally) -> None:
    named = error is not None and all(text in error.message for text in refusal.names)
    tally.require(
        error is not None and error.type == refusal.error and named,
        Outcome.INCOMPLETE,
        f"The refusal of {who} does not say what it declines.",
        expected=[refusal.error, *refusal.names],
        found=error and f"{error.type}: {error.message}",
    )


def _require_nothing(loaded: dict[str, Any], who: str, tally: Tally) -> None:
    something = {what: found for what, found in loaded.items() if found}
    tally.require(
        not something, Outcome.WRONG_ROUTE, f"{who} loaded something before it refused.", **something
    )
