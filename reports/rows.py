"""The rows of the table of all cases, as text: light, since there are thousands of them."""

from dataclasses import dataclass

from loadproof.harness.outcome import Outcome

from . import wording
from .text import short_hash
from .verdicts import RouteVerdicts
from .view import CaseView

ALL_PASS = "✓ ✓ ✓"
"""Outputs, sharing and contents: each PASS."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Text, and the CSS class of its tone; the usual one is left out."""

    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One case."""

    anchor: str
    in_full: bool
    """Whether the anchor belongs to the case's own section and not to this row."""
    id: str
    cells: list[Cell]
    outputs: str
    verdict: Cell
    seconds: str


def row_of(case: CaseView, in_full: bool) -> Row:
    """The row of one case."""
    return Row(
        anchor=case.anchor,
        in_full=in_full,
        id=case.id,
        cells=[_cell(found, case.expected) for found in case.verdicts.values()],
        outputs=short_hash(case.output_digest()),
        verdict=_verdict(case),
        seconds=f"{case.record.duration_ms / 1e3:.2f}" if case.record else "",
    )


def _cell(found: RouteVerdicts, expected: Outcome) -> Cell:
    if found.outcome is not Outcome.PASS:
        return Cell(_words(found.outcome), wording.tone(found.outcome, expected))
    parts = found.parts
    if all(verdict is Outcome.PASS for verdict in parts.values()):
        return Cell(ALL_PASS)
    worst = next(verdict for verdict in parts.values() if verdict is not Outcome.PASS)
    lines = (f"{_words(verdict)} {name}" for name, verdict in parts.items())
    return Cell("\n".join(lines), wording.tone(worst, expected))


def _verdict(case: CaseView) -> Cell:
    if case.holds:
        tone = "" if case.verdict is Outcome.PASS else "neutral"
        return Cell(_words(case.verdict), tone)
    if case.verdict is Outcome.PASS:
        return Cell(f"✗ PASS, not {case.expected}", "bad")
    return Cell(_words(case.verdict), wording.tone(case.verdict, case.expected))


def _words(outcome: Outcome) -> str:
    return f"{wording.symbol(outcome)} {outcome.value}"
