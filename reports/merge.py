"""`loadproof merge`: the shards of one plan become the run that the whole plan would have been."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from loadproof.harness.atomic_file import write_atomically
from loadproof.harness.chain import digest, sealed
from loadproof.harness.errors import InvalidInput
from loadproof.harness.matrix import CONTROLS
from loadproof.harness.outcome import Outcome
from loadproof.harness.plan import TWIN_FILE, Plan, evidence_file, holds_a_run, summarise
from loadproof.harness.record import (
    CaseRecord,
    ControlRecord,
    MergedRecord,
    RunRecord,
    ShardRecord,
    TwinRecord,
    Verdict,
)
from loadproof.harness.shards import plan_digest, reunited

from .intact import require_intact
from .load import Run, line_texts, load_run, parse
from .merge_environment import merged_environment
from .write import write_reports

_FILE_NAME = re.compile(r"[^./\0][^/\0]*")
_OF_ONE_SHARD = re.compile(r" --loadproof-(?:shard|out)(?:=| )\S+")


def merge(folders: list[Path], out: Path) -> RunRecord:
    """Join the shards in `folders` to one run in `out`, with its reports.

    Raises:
        InvalidInput: a shard was changed, is missing, is there twice, or is of another plan, commit or
            environment; or `out` holds a run.
        OutputUnwritable: `out` cannot be written.
    """
    if holds_a_run(out):
        raise _refused(out, "a folder without a run", "another run", "Name a new folder.")
    shards = [_shard(folder) for folder in folders]
    shards.sort(key=lambda run: _part(run).index)
    _require_one_plan(shards)
    joined, cases = _joined(shards)
    _require_file_names(cases)
    twins = _twins(folders, joined.run_id)
    if twins:
        joined = joined.model_copy(update={"twins_sha256": sha256(twins.encode()).hexdigest()})
    record = sealed(joined, cases)
    for case in cases:
        write_atomically(out / evidence_file(case.id), case.model_dump_json(indent=1) + "\n")
    write_atomically(out / "evidence.jsonl", "".join(f"{case.model_dump_json()}\n" for case in cases))
    write_atomically(out / "run.json", record.model_dump_json(indent=1) + "\n")
    if twins:
        write_atomically(out / TWIN_FILE, twins)
    write_reports(load_run(out))
    return record


def _shard(folder: Path) -> Run:
    require_intact(folder)
    run = load_run(folder)
    if run.record.shard is None:
        remedy = (
            "Run each part with --loadproof-shard i/n; `loadproof compare` holds whole runs side by side."
        )
        raise _refused(folder, "a shard", "a run of its whole plan", remedy)
    return run


def _require_one_plan(shards: list[Run]) -> None:
    """The shards are all of one plan, each once."""
    for field in ("scope", "plan", "count"):
        values: dict[Any, Path] = {}
        for run in shards:
            value = run.record.scope if field == "scope" else getattr(_part(run), field)
            values.setdefault(value, run.folder)
        if len(values) > 1:
            told = ", ".join(f"{value} in {folder}" for value, folder in values.items())
            remedy = "Merge shards of one selection of cases, on one kind of device."
            raise _refused("shards", f"one {field}", told, remedy)
    by_index: dict[int, Path] = {}
    for run in shards:
        index = _part(run).index
        if index in by_index:
            found = f"it in {by_index[index]} and in {run.folder}"
            raise _refused(f"shard {_name(run)}", "it once", found, "Give each shard once.")
        by_index[index] = run.folder
    count = _part(shards[0]).count
    if missing := [f"{index}/{count}" for index in range(1, count + 1) if index not in by_index]:
        found = f"no {', '.join(missing)}"
        raise _refused("shards", f"all {count}", found, "Give all of them; run the missing ones again.")


def _joined(shards: list[Run]) -> tuple[RunRecord, list[CaseRecord]]:
    order = reunited([[entry.id for entry in run.record.cases] for run in shards])
    expected = {entry.id: entry.expected for run in shards for entry in run.record.cases}
    _require_cover(shards, order, expected)
    merged = [
        MergedRecord(
            index=_part(run).index,
            run_id=run.record.run_id,
            head=run.record.chain.head if run.record.chain else None,
        )
        for run in shards
    ]
    started = min(run.record.started for run in shards)
    heads = digest([part.model_dump() for part in merged])
    run_id = f"{datetime.fromisoformat(started):%Y%m%d-%H%M%S}-{heads[:6]}"
    by_id = {case.id: case.model_copy(update={"run_id": run_id}) for run in shards for case in run.cases}
    plan = Plan(
        run_id=run_id,
        started=started,
        cases={case_id: expected[case_id] for case_id in order},
        scope=shards[0].record.scope,
    )
    record = summarise(
        plan,
        by_id,
        [f"Shard {_name(run)}: {message}" for run in shards for message in run.record.messages],
        duration_s=max(run.record.duration_s for run in shards),
        refuted=any(run.record.verdict is Verdict.NOT_EQUIVALENT for run in shards),
        environment=merged_environment({_name(run): run.record.environment for run in shards}),
        commands=_commands(shards),
    )
    cases = [by_id[case_id] for case_id in order if case_id in by_id]
    # A control that was not caught, or left nothing, is among its shard's messages already.
    controls = sorted((c for run in shards for c in run.record.controls), key=_in_order_of_controls)
    return record.model_copy(update={"merged": merged, "controls": controls}), cases


def _in_order_of_controls(control: ControlRecord) -> int:
    return CONTROLS.index(control.name) if control.name in CONTROLS else len(CONTROLS)


def _twins(folders: list[Path], run_id: str) -> str:
    """`twin.jsonl` of the whole, ordered by id as a run's own is; empty where no shard had twins."""
    files = [folder / TWIN_FILE for folder in folders if (folder / TWIN_FILE).is_file()]
    twins = [parse(TwinRecord, text, str(file)) for file in files for _, text in line_texts(file)]
    whole = [twin.model_copy(update={"run_id": run_id}) for twin in sorted(twins, key=lambda twin: twin.id)]
    return "".join(f"{twin.model_dump_json()}\n" for twin in whole)


def _require_cover(shards: list[Run], order: list[str], expected: Mapping[str, Outcome]) -> None:
    """The shards' cases, put together, are the plan: no case twice, none missing, in the plan's order."""
    plan = _part(shards[0]).plan
    case_id, times = Counter(order).most_common(1)[0] if order else ("", 0)
    if times > 1:
        raise _refused("shards", "each case once", f"{case_id} twice", "Run the shards of one selection.")
    found = plan_digest(shards[0].record.scope, {case_id: expected[case_id] for case_id in order})
    if found != plan:
        told = f"{len(order)} cases with digest {found}"
        raise _refused("shards", f"the cases of plan {plan}", told, "Run the shards of one selection.")


def _require_file_names(cases: Iterable[CaseRecord]) -> None:
    """Evidence is written under its case's id, which is another's word and must not lead out of here."""
    for case in cases:
        if not _FILE_NAME.fullmatch(case.id):
            expected = "cases whose ids are file names"
            raise _refused("shards", expected, repr(case.id), "Merge shards that loadproof wrote.")


def _commands(shards: Iterable[Run]) -> dict[str, str]:
    """The command that repeats the whole, where the shards' differ in their part and folder alone."""
    whole = {_OF_ONE_SHARD.sub("", command) for run in shards for command in run.record.commands.values()}
    if len(whole) == 1:
        return {"run": whole.pop()}
    return {f"shard {_name(run)}": command for run in shards for command in run.record.commands.values()}


def _part(run: Run) -> ShardRecord:
    assert run.record.shard is not None
    return run.record.shard


def _name(run: Run) -> str:
    return f"{_part(run).index}/{_part(run).count}"


def _refused(where: object, expected: str, found: str, remedy: str) -> InvalidInput:
    return InvalidInput(where, expected=expected, found=found, remedy=remedy)
