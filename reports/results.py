"""The run by check: what an upstream validation table says, check, exact result and command."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadproof.harness.outcome import Outcome

from .view import CaseView, is_model

REFUSALS = "refused by name"
"""The row of the cases that must be declined."""


@dataclass(slots=True)
class Result:
    """One check over all cases that it is about."""

    name: str
    held: int = 0
    of: int = 0
    figures: dict[str, int] = field(default_factory=dict)
    """What was compared, summed over the cases that hold: bytes, outputs, facts, digests."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """Of the cases that do not hold."""
    first: CaseView | None = None
    """The first of these."""

    @property
    def text(self) -> str:
        """`158/158 PASS, 14,925,312 bytes compared`, or what came instead."""
        word = "REFUSED, as they must be" if self.name == REFUSALS else "PASS"
        parts = [f"{self.held}/{self.of} {word}"]
        parts += [f"{count:,} {what} compared" for what, count in self.figures.items()]
        parts += [f"{count} {verdict}" for verdict, count in self.verdicts.items()]
        return ", ".join(parts)

    def _failed(self, case: CaseView, verdict: Outcome) -> None:
        self.verdicts[verdict.value] += 1
        self.first = self.first or case


def results(cases: Sequence[CaseView]) -> list[Result]:
    """In the order of the checks; a case without evidence counts under every one.

    A check is due of every case of a kind, layer or whole model, if it was made on one: a layer without it is
    INCOMPLETE, and a check that layers alone have is not held against a model.
    """
    found: dict[str, Result] = {}
    refusals = Result(REFUSALS)
    due: dict[bool, set[str]] = {True: set(), False: set()}
    for case in cases:
        if case.expected is Outcome.REFUSED:
            refusals.of += 1
            if case.holds:
                refusals.held += 1
            else:
                refusals._failed(case, case.verdict)
        elif case.record:
            due[is_model(case)].update(check.name for check in case.record.checks)
            for check in case.record.checks:
                result = found.get(check.name) or found.setdefault(check.name, Result(check.name))
                if check.verdict is Outcome.PASS:
                    result.held += 1
                    for name, count in check.evidence.items():
                        if isinstance(count, int):
                            result.figures[name] = result.figures.get(name, 0) + count
                else:
                    result._failed(case, check.verdict)
    claimed = [case for case in cases if case.expected is not Outcome.REFUSED]
    for result in found.values():
        about = [case for case in claimed if case.record is None or result.name in due[is_model(case)]]
        result.of = len(about)
        missing = result.of - result.held - result.verdicts.total()
        if missing:
            result.verdicts[Outcome.INCOMPLETE.value] += missing
            result.first = result.first or next((case for case in about if not case.record), None)
    return [*found.values(), *([refusals] if refusals.of else [])]
