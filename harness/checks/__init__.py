"""All checks, in the order in which the evidence lists them:

outputs_exact, processed_exact, activation_exact, gemm_bounded: what was computed (`arithmetic`).
pointers_shared, contents_preserved, layout_restored: where it lies (`memory`).
route_witnessed, kernel_witnessed: which way it went (`route`).
capability: whether it ran where it may, and was declined where it may not (`capability`).

A whole model has no activation_exact and no gemm_bounded, which single layers have as cases of their own,
and four checks in other words (`models`): outputs_exact looks at logits, token ids and hidden states.
"""

from collections.abc import Callable

from ..model_spec import ModelCaseSpec
from ..observation import CaseObservation, Missing
from ..outcome import Outcome
from ..record import CheckRecord
from .arithmetic import activation_exact, gemm_bounded, outputs_exact, processed_exact
from .capability import capability
from .memory import contents_preserved, layout_restored, pointers_shared
from .models import derivation_exact, generation_exact, model_kernel_witnessed, model_restored
from .route import kernel_witnessed, route_witnessed
from .verdict import Tally

Check = Callable[[CaseObservation, Tally], str]
"""Fills the tally, and returns the sentence that holds where nothing failed."""

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

MODEL_CHECKS: dict[str, Check] = {
    "outputs_exact": generation_exact,
    "processed_exact": derivation_exact,
    "pointers_shared": pointers_shared,
    "contents_preserved": contents_preserved,
    "layout_restored": model_restored,
    "route_witnessed": route_witnessed,
    "kernel_witnessed": model_kernel_witnessed,
    "capability": capability,
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
    checks = MODEL_CHECKS if isinstance(seen.case, ModelCaseSpec) else CHECKS
    return [_run(name, check, seen) for name, check in checks.items()]


def _run(name: str, check: Check, seen: CaseObservation) -> CheckRecord:
    tally = Tally(name)
    detail = ""
    if seen.error:
        tally.fail(seen.outcome, seen.error.message)
        return tally.record(detail)
    try:
        detail = check(seen, tally)
    except Missing as missing:
        tally.fail(missing.outcome, f"{missing}.")
    except MALFORMED as error:
        tally.fail(Outcome.INCOMPLETE, f"The observations are malformed: {type(error).__name__}: {error}.")
    return tally.record(detail)


def case_verdict(checks: list[CheckRecord]) -> Outcome:
    """PASS when every check passes, REFUSED when the others were refused, or the first other verdict."""
    verdicts = [check.verdict for check in checks if check.verdict is not Outcome.PASS]
    failed = [verdict for verdict in verdicts if verdict is not Outcome.REFUSED]
    return next(iter(failed or verdicts), Outcome.PASS if checks else Outcome.INCOMPLETE)
