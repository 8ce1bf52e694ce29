"""Small runs on disk, sealed as the plugin leaves them; holds no test of its own."""

import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from loadproof.harness.chain import sealed
from loadproof.harness.outcome import Outcome
from loadproof.harness.plan import Plan, evidence_file, summarise
from loadproof.harness.record import CaseRecord, RunRecord
from loadproof.reports.cli import main

ENVIRONMENT = {
    "python": {"version": "3.11.9"},
    "host": {"system": "Linux", "kernel": "6.8", "cpu": "x86_64", "cores": 2},
    "gpu": None,
    "packages": {"torch": "2.13.0+cpu", "safetensors": "0.8.0"},
    "git": {"commit": "0123abcd", "dirty": False},
    "options": {"device": "cpu", "kernel": None, "out": "run"},
    "env": {},
}


def write_run(
    folder: Path, cases: list[CaseRecord], *, missing: tuple[str, ...] = (), **changes: Any
) -> Path:
    """A sealed run of these cases, which then also planned `missing`; `changes` are fields of `run.json`."""
    expected = {case.id: case.expected for case in cases} | dict.fromkeys(missing, Outcome.PASS)
    run_id = cases[0].run_id if cases else "20260105-101500-ab12"
    plan = Plan(run_id=run_id, started="2026-01-05T10:15:00+00:00", cases=expected)
    by_id = {case.id: case for case in cases}
    record = summarise(
        plan, by_id, [], duration_s=3.21, environment=ENVIRONMENT, commands={"run": "./validate"}
    )
    return write_files(folder, sealed(record.model_copy(update=changes), cases), cases)


def write_files(folder: Path, record: RunRecord, cases: list[CaseRecord]) -> Path:
    """`run.json`, `evidence/` and `evidence.jsonl`."""
    (folder / "evidence").mkdir(parents=True)
    (folder / "run.json").write_text(record.model_dump_json(indent=1) + "\n")
    for case in cases:
        (folder / evidence_file(case.id)).write_text(case.model_dump_json(indent=1) + "\n")
    (folder / "evidence.jsonl").write_text("".join(f"{case.model_dump_json()}\n" for case in cases))
    return folder


def edit(file: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON file in place."""
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data, indent=1))


def head_of(run: Path) -> str:
    """The head of its chain."""
    return str(json.loads((run / "run.json").read_text())["chain"]["head"])


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str


def run_command(*arguments: object) -> Ended:
    """The command `loadproof`, in this process."""
    stdout, stderr = StringIO(), StringIO()
    status: object = 0
    with redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = end.code
    assert isinstance(status, int)
    return Ended(status, stdout.getvalue(), stderr.getvalue())


def complaints(run: Path, *options: object) -> list[str]:
    """What verify blames; that it says at least one thing, and exits with 2, is part of the question."""
    ended = run_command("verify", run, *options)
    assert ended.status == 2, ended
    assert ended.stderr
    return [line.removeprefix("loadproof: ") for line in ended.stderr.splitlines()]
