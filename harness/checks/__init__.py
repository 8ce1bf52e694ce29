"""All checks, in the order in which the evidence lists them:

outputs_exact, processed_exact, activation_exact, gemm_bounded: what was computed (`arithmetic`).
pointers_shared, contents_preserved, layout_restored: where it lies (`memory`).
route_witnessed, kernel_witnessed, capability: which way it went (`route`).
"""

from collections.abc import Callable

from ..observation import CaseObservation, Missing
from ..outcome import Outcome
from ..record import CheckRecord
from .arithmetic import activation_exact, gemm_bounded, outputs_exact, processed_exact
from .memory import contents_preserved, layout_restored, pointers_shared
from .route import capability, kernel_witnessed, route_witnessed

Check = Callable[[CaseObservation], CheckRecord]

CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        outputs_exact,
        processed_exact,
        activation_exact,
        gemm_bounded,
        pointers_shared,
        contents_preserved,
        layout_restored,
        route_witnessed,
        kernel_witnessed,
        capability,
    )
}

MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)
"""What checks, torch and numpy raise on what no right engine reports; the other checks still count."""


def run_checks(seen: CaseObservation) -> list[CheckRecord]:
    """All checks; where a route did not get far enough, its own outcome is the verdict."""
    return [_run(name, check, seen) for name, check in CHECKS.items()]


def _run(name: str, check: Check, seen: CaseObservation) -> CheckRecord:
    try:
        return check(seen)
    except Missing as missing:
        return CheckRecord(name=name, verdict=missing.outcome, detail=f"{missing}.")
    except MALFORMED as error:
        detail = f"The observations are malformed: {type(error).__name__}: {error}."
        return CheckRecord(name=name, verdict=Outcome.INCOMPLETE, detail=detail)


def case_verdict(checks: list[CheckRecord]) -> Outcome:
    """PASS when every check passes; otherwise the first verdict that does not."""
    failed = [c.verdict for c in checks if c.verdict is not Outcome.PASS]
    return failed[0] if failed else Outcome.PASS if checks else Outcome.INCOMPLETE
