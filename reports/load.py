"""A run folder, read and checked: the only input of every report."""

import gc
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from loadproof.harness.errors import InvalidInput
from loadproof.harness.plan import PLAN_FILE, Plan, control_file, counts_of, summarise, verdict_of
from loadproof.harness.record import (
    SCHEMA_VERSION,
    CaseRecord,
    ControlRecord,
    RunRecord,
    TwinRecord,
    Verdict,
)

_Model = TypeVar("_Model", RunRecord, CaseRecord, Plan, ControlRecord, TwinRecord)

UNENDED = "The run did not end in order: it was killed, or its disk was full. What it had written is here."


@dataclass(frozen=True)
class Run:
    """A run as its folder holds it; `cases` follow the order of `record.cases`."""

    record: RunRecord
    cases: tuple[CaseRecord, ...]
    folder: Path
    """Where it was read; never part of a report."""

    @cached_property
    def sha256(self) -> str:
        """The head of the digest chain, or of all records where the run was never sealed."""
        if self.record.chain:
            return self.record.chain.head
        records = [part.model_dump(mode="json") for part in (self.record, *self.cases)]
        text = json.dumps(records, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def load_run(path: Path) -> Run:
    """Read `run.json` and the evidence beside it; raises InvalidInput unless they fit together.

    A run that was killed has left its plan instead of `run.json`: it is INCOMPLETE. `path` is the run's
    folder, or its `evidence.jsonl`.
    """
    with _uncollected():
        return _load_run(path)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the cyclic collector: records form no cycles, and it would go through them all, many times."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _load_run(path: Path) -> Run:
    folder = path.parent if path.suffix == ".jsonl" else path
    plan = folder / PLAN_FILE
    if plan.is_file() and not (folder / "run.json").exists():
        by_id = _evidence(path, (unended := parse(Plan, read_text(plan), PLAN_FILE)).run_id)
        record = summarise(unended, by_id, [UNENDED], controls=_controls(folder, unended))
    else:
        record = parse(RunRecord, read_text(folder / "run.json"), "run.json")
        by_id = _evidence(path, record.run_id)
    _require_consistent(record, by_id)
    cases = tuple(by_id[entry.id] for entry in record.cases if entry.id in by_id)
    return Run(record=record, cases=cases, folder=folder)


def _controls(folder: Path, plan: Plan) -> dict[str, ControlRecord]:
    files = {name: control_file(name) for name in plan.controls}
    return {
        name: parse(ControlRecord, read_text(folder / file), file)
        for name, file in files.items()
        if (folder / file).exists()
    }


def _evidence(path: Path, run_id: str) -> dict[str, CaseRecord]:
    by_id: dict[str, CaseRecord] = {}
    for where, text in _evidence_texts(path):
        case = parse_case(text, where)
        if case.run_id != run_id:
            raise unusable(where, f"evidence of run {run_id!r}", f"evidence of run {case.run_id!r}")
        if case.id in by_id:
            raise unusable(where, "one record a case", f"a second record of {case.id!r}")
        by_id[case.id] = case
    return by_id


def _evidence_texts(path: Path) -> list[tuple[str, str]]:
    """Every case record's text with the name to blame: the single files, or else `evidence.jsonl`."""
    if path.suffix == ".jsonl":
        return line_texts(path)
    files = sorted((path / "evidence").glob("*.json"))
    if files:
        return [(f"evidence/{file.name}", read_text(file)) for file in files]
    lines = path / "evidence.jsonl"
    return line_texts(lines) if lines.is_file() else []


def line_texts(path: Path) -> list[tuple[str, str]]:
    """The text of each record in an `evidence.jsonl`, with the name to blame."""
    lines = read_text(path).split("\n")
    return [(f"{path.name} line {n}", line) for n, line in enumerate(lines, 1) if line.strip()]


def read_text(path: Path) -> str:
    """A file of the run; raises InvalidInput."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"
        raise unusable(path, "a readable UTF-8 file", reason) from error


def parse(model: type[_Model], text: str, where: str) -> _Model:
    """A record of this schema version; raises InvalidInput that blames `where`."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        refused = error
    # It is read again, slower, only to say what is wrong.
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise unusable(where, "JSON", "nesting too deep") from error
    except ValueError as error:
        raise unusable(where, "JSON", str(error)) from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version != SCHEMA_VERSION:
        remedy = f"Use {'a newer' if version > SCHEMA_VERSION else 'an older'} loadproof."
        raise InvalidInput(where, expected=f"schema_version {SCHEMA_VERSION}", found=version, remedy=remedy)
    try:
        model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the record"
        raise unusable(where, f"a {model.__name__}", f"{field}: {first['msg']}") from error
    # Python's reader takes what others refuse, as lone surrogates.
    raise unusable(where, "JSON that every reader reads alike", refused.errors()[0]["msg"])


def parse_case(text: str, where: str) -> CaseRecord:
    """As `parse`, a case's evidence; raises InvalidInput too where the case has no `id` or `expected`."""
    case = parse(CaseRecord, text, where)
    try:
        _ = case.id, case.expected
    except (KeyError, ValueError) as error:
        raise unusable(where, "a case with `id` and `expected`", repr(error)) from error
    return case


def _require_consistent(record: RunRecord, by_id: dict[str, CaseRecord]) -> None:
    """`run.json` and the evidence tell the same story."""
    entries = {entry.id: entry for entry in record.cases}
    if len(entries) != len(record.cases):
        raise unusable("run.json", "each case once", "a case listed twice")
    if unlisted := sorted(set(by_id) - set(entries)):
        raise unusable("run.json", "every case with evidence", f"no entry for {unlisted[0]!r}")
    for entry in record.cases:
        case = by_id.get(entry.id)
        if case is None and entry.file is not None:
            raise unusable(entry.file, f"the evidence of {entry.id!r}", "no such evidence")
        if case and (case.verdict, case.expected) != (entry.verdict, entry.expected):
            said = f"{entry.verdict} in run.json and {case.verdict} in the evidence"
            raise unusable(f"case {entry.id!r}", "one verdict", said)
    if record.counts != (counted := counts_of(record.cases)):
        raise unusable("run.json: counts", f"those of its cases, {counted}", str(record.counts))
    if record.verdict is not Verdict.EQUIVALENT:
        return
    shown = [case for case in by_id.values() if case.holds]
    if not entries or len(shown) != len(entries):
        found = f"evidence that {len(shown)} of {len(entries)} hold"
        raise unusable("run.json", "EQUIVALENT only where every case holds", found)
    if verdict_of(counted, record.messages) is not Verdict.EQUIVALENT:
        found = "; ".join(record.messages) or "refusals alone"
        raise unusable(
            "run.json", "EQUIVALENT only where something was verified and nothing went wrong", found
        )


def unusable(where: object, expected: str, found: str) -> InvalidInput:
    """The error of a run's file that is not what it must be."""
    return InvalidInput(where, expected=expected, found=found, remedy="Give the folder of one whole run.")
