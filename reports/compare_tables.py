"""What is shown of a comparison, the same in the terminal, in Markdown and in HTML."""

from dataclasses import dataclass

from .compare import CaseChange, Comparison, Status
from .text import short_hash

OUTPUTS_SHOWN = 3
"""Outputs named of a case whose bytes changed; JSON holds them all."""
TONES = {
    Status.BROKEN: "bad",
    Status.STILL_FAILING: "bad",
    Status.FIXED: "ok",
    Status.REFUSED_TO_VERIFIED: "ok",
    Status.GONE: "warn",
}
"""CSS class of a status; the others are `neutral`."""


@dataclass(frozen=True, slots=True)
class Row:
    cells: tuple[str, ...]
    tone: str = "neutral"


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def verdict(comparison: Comparison) -> str:
    """Whether something is broken."""
    if comparison.broken:
        return "SOMETHING IS BROKEN"
    return "NOTHING WAS COMPARED" if comparison.disjoint else "NOTHING IS BROKEN"


def counts(comparison: Comparison) -> str:
    """How many cases went which way, and what became of the run where it lost its verdict."""
    told = [f"{count} {status}" for status, count in comparison.counts.items() if count] or ["no cases"]
    lost = [f"the run was {' and is '.join(comparison.verdicts)}"] if comparison.lost_verdict else []
    return ", ".join([*told, *lost])


def headline(comparison: Comparison) -> str:
    """Verdict and counts on one line."""
    return f"{verdict(comparison)}: {counts(comparison)}"


def bytes_compared(comparison: Comparison) -> str:
    """How many outputs and processed tensors were held against each other, and how many are not equal."""
    if not comparison.compared:
        return "No output and no processed tensor is in both runs."
    equal = f"; {comparison.differing:,} have other bytes" if comparison.differing else ", with equal bytes"
    return f"{comparison.compared:,} outputs and processed tensors are in both runs{equal}."


def warning(comparison: Comparison) -> str:
    """Why equal bytes are not to be expected; empty where they are."""
    facts = ", ".join(f"{fact.name} ({fact.before} → {fact.after})" for fact in comparison.incomparable)
    return f"Not comparable bit for bit, since these differ: {facts}." if facts else ""


def tables(comparison: Comparison) -> list[Table]:
    """The environment first, then the cases that changed, then outputs with other bytes; none is empty."""
    found = [
        Table(
            "Environment",
            ("Fact", "Before", "After"),
            tuple(Row((fact.name, fact.before, fact.after)) for fact in comparison.environment),
        ),
        Table(
            "Cases",
            ("What", "Case", "Before", "After", "Why"),
            tuple(_case_row(case) for case in comparison.cases if case.status is not Status.UNCHANGED),
        ),
        Table(
            "Other bytes",
            ("Case", "Outputs and processed tensors"),
            tuple(Row((case.id, _outputs(case))) for case in comparison.cases if case.outputs),
        ),
    ]
    return [table for table in found if table.rows]


def _case_row(case: CaseChange) -> Row:
    cells = (case.status, case.id, case.before or "–", case.after or "–", case.reason)
    return Row(cells, TONES.get(case.status, "neutral"))


def _outputs(case: CaseChange) -> str:
    shown = [
        f"{output.route} {output.name} {short_hash(output.before)} → {short_hash(output.after)}"
        for output in case.outputs[:OUTPUTS_SHOWN]
    ]
    more = len(case.outputs) - len(shown)
    return "; ".join([*shown, *([f"{more} more"] if more else [])])
