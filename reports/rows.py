"""The rows of the table of all cases.

Written as strings, not by the template: there are thousands, and jinja2 would take most of the report's time.
"""

from collections.abc import Sequence

from markupsafe import Markup, escape

from loadproof.harness.outcome import Outcome

from . import wording
from .text import clean, short_hash
from .verdicts import RouteVerdicts
from .view import CaseView

ALL_PASS = "✓ ✓ ✓"
"""Outputs, sharing and contents: each PASS."""
_PASSING = f"<td>{ALL_PASS}"


def row_html(case: CaseView, in_full: bool) -> str:
    """One `<tr>`: id, four routes, digest of the outputs, verdict, seconds.

    End tags and quotes that HTML lets go are left out. The anchor is here unless the case is shown `in_full`.
    """
    anchor, (verdict, tone) = case.anchor, _verdict(case)
    opening = "<tr" if in_full else f"<tr id={anchor}"
    kind = f" class={tone}" if tone else ""
    cells = "".join(_cell(found, case.expected) for found in case.verdicts.values())
    seconds = f"{case.record.duration_ms / 1e3:.2f}" if case.record else ""
    return (
        f"{opening}{kind}><th scope=row><a href=#{anchor}>{escape(clean(case.id))}</a>{cells}"
        f"<td>{short_hash(case.output_digest)}<td{kind}>{verdict}<td>{seconds}"
    )


def rows_html(cases: Sequence[CaseView], in_full: set[str]) -> Markup:
    """All rows; every text in them is escaped."""
    return Markup("\n".join(row_html(case, case.id in in_full) for case in cases))


def _cell(found: RouteVerdicts, expected: Outcome) -> str:
    if found.outcome is not Outcome.PASS:
        return _td(_words(found.outcome), wording.tone(found.outcome, expected))
    if found.outputs is found.shared is found.contents is Outcome.PASS:
        return _PASSING
    worst = next(verdict for verdict in found.parts.values() if verdict is not Outcome.PASS)
    lines = "\n".join(f"{name} {_words(verdict)}" for name, verdict in found.parts.items())
    return _td(lines, wording.tone(worst, expected))


def _td(text: str, tone: str) -> str:
    return f"<td class={tone}>{text}"


def _verdict(case: CaseView) -> tuple[str, str]:
    """Words and tone; no tone for what is usual."""
    if case.holds:
        return _words(case.verdict), "" if case.verdict is Outcome.PASS else "neutral"
    if case.verdict is Outcome.PASS:
        return f"✗ PASS, not {case.expected.value}", "bad"
    return _words(case.verdict), wording.tone(case.verdict, case.expected)


def _words(outcome: Outcome) -> str:
    return f"{wording.symbol(outcome)} {outcome.value}"
