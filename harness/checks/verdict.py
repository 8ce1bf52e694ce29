"""Building verdicts: the first failure decides, and nothing passes on nothing."""

from typing import Any

from ..outcome import Outcome
from ..record import CheckRecord


class Tally:
    """Collects what one check compared; the first failure is its verdict."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failure: CheckRecord | None = None
        self._counts: dict[str, int] = {}

    @property
    def failed(self) -> bool:
        """Whether a failure has been recorded."""
        return self._failure is not None

    def count(self, what: str, amount: int = 1) -> None:
        """Note `amount` more of `what` compared."""
        self._counts[what] = self._counts.get(what, 0) + amount

    def fail(self, verdict: Outcome, detail: str, **evidence: Any) -> None:
        """Record a failure; only the first is kept, since one cause fails much."""
        if self._failure is None:
            self._failure = CheckRecord(name=self._name, verdict=verdict, detail=detail, evidence=evidence)

    def require(self, holds: bool, verdict: Outcome, detail: str, **evidence: Any) -> None:
        """Fail unless `holds`."""
        self.count("facts")
        if not holds:
            self.fail(verdict, detail, **evidence)

    def record(self, detail: str) -> CheckRecord:
        """PASS with the counts and `detail`, or the first failure; INCOMPLETE where nothing was counted."""
        if self._failure:
            return self._failure
        if not any(self._counts.values()):
            return CheckRecord(name=self._name, verdict=Outcome.INCOMPLETE, detail="Nothing was compared.")
        return CheckRecord(name=self._name, verdict=Outcome.PASS, detail=detail, evidence=dict(self._counts))
