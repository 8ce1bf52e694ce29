"""A report as `loadproof verify` reads it: what it carries, and whether a run's evidence gives it."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadproof.harness.errors import InvalidInput

from .html import render_html
from .load import load_run, read_text
from .tampering import Problem

_DIGEST = re.compile(r'<script type="application/json" id="evidence-digest">(.*?)</script>', re.DOTALL)
_EVIDENCE = re.compile(r'<script type="text/plain" id="embedded-evidence">(.*?)</script>', re.DOTALL)
_EXCERPT = 40
"""Characters shown from where a page first differs."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page and its islands."""

    where: str
    """The name to blame."""
    text: str
    run_id: str
    head: str
    """Empty where the run was never sealed."""
    evidence: str | None
    """xz in base64; None where the page carries none."""

    @classmethod
    def read(cls, path: Path) -> "Page":
        """Raises InvalidInput for a page that is not a report of ours."""
        text = read_text(path)
        digests, evidence = _DIGEST.findall(text), _EVIDENCE.findall(text)
        try:
            (digest,) = [json.loads(one) for one in digests]
            run_id, head = str(digest["run_id"]), str(digest["head"])
        except (ValueError, KeyError, TypeError) as error:
            raise _not_ours(path, "one evidence-digest with run_id and head", len(digests)) from error
        if len(evidence) > 1:
            raise _not_ours(path, "one embedded-evidence", len(evidence))
        return cls(path.name, text, run_id, head, evidence[0] if evidence else None)

    def problems(self, folder: Path, head: str | None, *, readable: bool) -> Iterator[Problem]:
        """How the page differs from that of the run in `folder`, which has this head."""
        if self.head != head:
            yield Problem(self.where, f"the page of head {head}", f"the page of head {self.head}")
        elif readable and (due := render_html(load_run(folder))) != self.text:
            yield self._difference(due)

    def _difference(self, due: str) -> Problem:
        pairs = enumerate(zip(due, self.text, strict=False))
        at = next((n for n, (one, other) in pairs if one != other), min(len(due), len(self.text)))
        line = self.text.count("\n", 0, at) + 1
        expected, found = (repr(text[at : at + _EXCERPT]) for text in (due, self.text))
        return Problem(
            f"{self.where} line {line}",
            f"the page that this evidence gives, with {expected}",
            f"{found}: changed, or made by another loadproof (`loadproof render` makes it again)",
        )


def _not_ours(page: Path, expected: str, found: int) -> InvalidInput:
    return InvalidInput(
        page, expected=expected, found=f"{found} of them", remedy="Give a report that loadproof rendered."
    )
