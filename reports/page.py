"""All that the page shows of a run, gathered once: what is in full, what is cut, and the words for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .facts import labels_for
from .figures import Figure, median_times, timeline
from .finding import Finding, finding_of
from .islands import CHUNK, detail_chunk, facets, json_island
from .load import Run
from .markdown import markdown_of
from .results import Result, results
from .rows import rows_html
from .view import CaseView, cases_in_order, is_model

FULL_FAILING = 50
"""Cases that do not hold and are shown in full; the bound on heat maps too, of which each has one at most."""
FULL_HOLDING = 6
"""Cases that hold and are shown in full: one of each scheme, kernel and transport, whole models first."""
SHOWN_GROUPS = 20
SLOWEST = 10
DETAIL_BYTES = 6_000_000
"""For the compressed details: with some 250 B a row, 10,000 cases stay below 10 MB."""


@dataclass(frozen=True, slots=True)
class Failing:
    """A case that does not hold, with what is wrong."""

    case: CaseView
    finding: Finding


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that fail for one reason."""

    finding: Finding
    cases: list[CaseView]


@dataclass(frozen=True, slots=True)
class Page:
    """The parts of the report."""

    rows: Markup
    failing: list[Failing]
    """At most FULL_FAILING."""
    failing_left_out: int
    groups: list[Group]
    groups_left_out: int
    results: list[Result]
    markdown: str
    examples: list[CaseView]
    slowest: list[CaseView]
    labels: list[str]
    chunks: list[Markup]
    without_detail: int
    """Cases whose details are neither in full nor compressed."""
    facets: Markup
    times: Figure | None


def page_of(run: Run) -> Page:
    """Gather everything, within the bounds above."""
    cases = cases_in_order(run)
    found = results(cases)
    failing = [Failing(case, finding_of(case)) for case in cases if not case.holds]
    examples = _examples(cases)
    in_full = {case.id for case in examples} | {each.case.id for each in failing[:FULL_FAILING]}
    groups = _groups(failing)
    labels = labels_for(run.cases)
    rows, chunks = _rows_and_chunks(cases, in_full, labels)
    return Page(
        rows=rows,
        failing=failing[:FULL_FAILING],
        failing_left_out=max(0, len(failing) - FULL_FAILING),
        groups=groups[:SHOWN_GROUPS],
        groups_left_out=max(0, len(groups) - SHOWN_GROUPS),
        results=found,
        markdown=markdown_of(run, cases, found),
        examples=examples,
        slowest=_slowest(cases),
        labels=labels,
        chunks=chunks,
        without_detail=sum(case.id not in in_full for case in cases[len(chunks) * CHUNK :]),
        facets=json_island(facets(cases)),
        times=timeline(median_times(run.cases), "Median time of each route"),
    )


def _rows_and_chunks(
    cases: Sequence[CaseView], in_full: set[str], labels: list[str]
) -> tuple[Markup, list[Markup]]:
    """All rows, and as many chunks of details, in order, as DETAIL_BYTES hold.

    Side by side, since it is memory that takes the time: each case is gone through once.
    """
    rows, chunks, room = [], [], DETAIL_BYTES
    for start in range(0, len(cases), CHUNK):
        part = cases[start : start + CHUNK]
        rows.append(rows_html(part, in_full))
        if room > 0:
            chunk = detail_chunk(part, labels)
            room -= len(chunk)
            if room >= 0:
                chunks.append(chunk)
    return Markup("\n").join(rows), chunks


def _examples(cases: Sequence[CaseView]) -> list[CaseView]:
    """The first case that holds of each kind; whole models lead, since they have text to read."""
    found: dict[tuple[str, ...], CaseView] = {}
    for case in cases:
        if case.record and case.holds:
            about = case.record.case
            of = "model" if is_model(case) else "layer"
            kind = (of, str(case.verdict), *(str(about.get(f)) for f in ("kernel", "transport", "scheme")))
            found.setdefault(kind, case)
    return sorted(found.values(), key=lambda case: not is_model(case))[:FULL_HOLDING]


def _groups(failing: Sequence[Failing]) -> list[Group]:
    grouped: dict[tuple[str, str, str, str], Group] = {}
    for each in failing:
        grouped.setdefault(each.finding.reason, Group(each.finding, [])).cases.append(each.case)
    return sorted(grouped.values(), key=lambda group: -len(group.cases))


def _slowest(cases: Sequence[CaseView]) -> list[CaseView]:
    timed = [case for case in cases if case.record]
    return sorted(timed, key=lambda case: -(case.record.duration_ms if case.record else 0))[:SLOWEST]
