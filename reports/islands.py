"""Data inside the page, for its script: details of the cases that are not in full, and what to filter by.

Details are compressed in chunks, so that opening one case inflates a few dozen of them and not all. Base64
and escaped JSON hold nothing that could end a script element.
"""

import base64
import gzip
import json
from collections.abc import Sequence

from markupsafe import Markup

from .facts import facts_of
from .text import clean
from .view import CaseView

CHUNK = 64
"""Cases compressed together."""
FACETS = ("scheme", "projection", "kernel", "transport", "subject", "model")
"""Fields of a case that the search box knows by name."""


def json_island(value: object) -> Markup:
    """JSON for a script element: `<` cannot open a tag there."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def detail_chunk(cases: Sequence[CaseView], labels: list[str]) -> Markup:
    """The details of these cases, compressed."""
    details = [_detail(case, labels) for case in cases]
    text = clean(json.dumps(details, ensure_ascii=False, separators=(",", ":")))
    # No time stamp: the same evidence gives the same bytes.
    return Markup(base64.b64encode(gzip.compress(text.encode(), 1, mtime=0)).decode())


def facets(cases: Sequence[CaseView]) -> dict[str, dict[str, object]]:
    """By field: its distinct values, and for each case the place of its own."""
    found: dict[str, dict[str, object]] = {}
    for field in FACETS:
        column = [str(case.record.case.get(field, "")) if case.record else "" for case in cases]
        values = sorted(set(column))
        if values != [""]:
            places = {value: at for at, value in enumerate(values)}
            found[field] = {"values": [clean(v) for v in values], "cases": [places[v] for v in column]}
    return found


def _detail(case: CaseView, labels: list[str]) -> list[object]:
    """`[command, lines, rows]`; empty where a case left no evidence."""
    facts = facts_of(case, labels)
    return [case.rerun, facts.lines, facts.rows] if facts else []
