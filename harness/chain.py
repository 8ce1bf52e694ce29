"""The digest chain: binds `run.json` to the evidence, so that a later change has a name.

Every digest is the sha256 of a value's canonical JSON (RFC 8785), over what the files hold and not over how
they are laid out. Each entry of `cases` carries the digest of its evidence; the entries are chained in their
order, each other field of `run.json` has a digest of its own, and the head covers them all.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import rfc8785

from .record import CaseRecord, ChainRecord, RunRecord

CHAINED = ("cases", "chain")
"""Fields of `run.json` that have no digest in `chain.facts`: the entries are chained instead."""


def digest(value: Any) -> str:
    """sha256 of the value's canonical JSON, in hex.

    Raises:
        ValueError: NaN, infinity or a lone surrogate; JSON files of ours hold none.
    """
    try:
        text = rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        text = rfc8785.dumps(_with_long_integers_as_text(value))
    return hashlib.sha256(text).hexdigest()


def case_digest(record: CaseRecord) -> str:
    """The digest of one case's evidence, as its file will hold it."""
    return digest(as_json(record))


def cases_link(entries: Iterable[Mapping[str, Any]]) -> str:
    """The end of the chain over the entries of `cases`; empty where there is none."""
    link = ""
    for entry in entries:
        link = digest([link, entry])
    return link


def facts_digests(run: Mapping[str, Any]) -> dict[str, str]:
    """A digest for each field of `run.json` that is not chained."""
    return {name: digest(value) for name, value in run.items() if name not in CHAINED}


def head_digest(cases: str, facts: Mapping[str, str]) -> str:
    """The head of the chain: one digest for the whole run."""
    return digest({"cases": cases, "facts": dict(facts)})


def sealed(run: RunRecord, cases: Iterable[CaseRecord]) -> RunRecord:
    """The run with the digests of its evidence and with its chain."""
    digests = {case.id: case_digest(case) for case in cases}
    entries = [entry.model_copy(update={"sha256": digests.get(entry.id)}) for entry in run.cases]
    run = run.model_copy(update={"cases": entries})
    written = as_json(run)
    link, facts = cases_link(written["cases"]), facts_digests(written)
    chain = ChainRecord(facts=facts, cases=link, head=head_digest(link, facts))
    return run.model_copy(update={"chain": chain})


def as_json(record: CaseRecord | RunRecord) -> Any:
    """What reading the record's file gives; `model_dump` differs from it where JSON has no number."""
    return json.loads(record.model_dump_json())


def _with_long_integers_as_text(value: Any) -> Any:
    """RFC 8785 knows doubles only, and would give two neighbouring integers beyond 2^53 one text."""
    match value:
        case dict():
            return {name: _with_long_integers_as_text(inner) for name, inner in value.items()}
        case list():
            return [_with_long_integers_as_text(inner) for inner in value]
        case int() if abs(value) >= 2**53:
            return str(value)
        case _:
            return value
