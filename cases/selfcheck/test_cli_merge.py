"""`loadproof merge`: shards become the run that was not sharded, and nothing else is taken for them."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from loadproof.harness.chain import sealed
from loadproof.harness.errors import InvalidInput
from loadproof.harness.matrix import CONTROLS
from loadproof.harness.outcome import Outcome
from loadproof.harness.plan import PLAN_FILE, TWIN_FILE
from loadproof.harness.record import (
    CaseEntry,
    CaseRecord,
    ControlRecord,
    Counts,
    RunRecord,
    ShardRecord,
    TwinRecord,
    Verdict,
)
from loadproof.harness.shards import Shard, plan_digest, reunited
from loadproof.reports.html import render_html
from loadproof.reports.load import Run, load_run
from loadproof.reports.markdown import render_markdown
from loadproof.reports.merge_environment import merged_environment

from .sealed_runs import ENVIRONMENT, edit, run_command, write_run
from .test_report_samples import case_record, failing_record

ROOT = Path(__file__).resolve().parents[2]
IDS = tuple(f"case-{letter}" for letter in "abcdefg")
WHOLE = dict.fromkeys(IDS, Outcome.PASS)


def write_shard(
    folder: Path, index: int, count: int = 3, *, ids: tuple[str, ...] | None = None, **changes: Any
) -> Path:
    """One part of a plan of seven cases, as `--loadproof-shard` leaves it."""
    part = ids or tuple(Shard(index, count).part_of(IDS))
    shard = ShardRecord(index=index, count=count, plan=plan_digest("cpu-default", WHOLE))
    run_id = changes.pop("run_id", f"20260105-10150{index}-aa0{index}")
    cases = [case_record(case_id, run_id=run_id) for case_id in part]
    command = f"python -m pytest cases/layers --loadproof-shard {index}/{count} --loadproof-out run-{index}"
    return write_run(folder, cases, **{"shard": shard, "commands": {"run": command}} | changes)


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return [write_shard(tmp_path / f"shard-{index}", index) for index in (1, 2, 3)]


def refusal(out: Path, *folders: Path) -> str:
    """Why these are not merged; nothing is written then."""
    ended = run_command("merge", *folders, "-o", out)
    assert ended.status == 2, ended
    assert not out.exists()
    return ended.stderr


def test_every_shard_count_covers_exactly_and_is_reunited_in_order() -> None:
    for size in range(9):
        for count in range(1, 7):
            parts = [Shard(index, count).part_of(range(size)) for index in range(1, count + 1)]
            assert reunited(parts) == list(range(size))


@pytest.mark.parametrize("text", ["", "0/4", "5/4", "1", "1/0", "a/b", "1/4 ", "-1/4", "1/99999"])
def test_shard_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="1 <= i <= n"):
        Shard.parse(text)


def test_shards_become_one_sealed_run_in_the_plans_order(shards: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "whole"
    ended = run_command("merge", shards[2], shards[0], shards[1], "-o", out, "--json")
    assert ended.status == 0, ended
    assert json.loads(ended.stdout)["counts"]["verified"] == 7
    record = load_run(out).record
    assert tuple(entry.id for entry in record.cases) == IDS
    assert record.shard is None
    assert [part.index for part in record.merged] == [1, 2, 3]
    assert record.commands == {"run": "python -m pytest cases/layers"}
    assert run_command("verify", out).status == 0
    heads = [load_run(shard).record.chain for shard in shards]
    assert [part.head for part in record.merged] == [chain.head for chain in heads if chain]
    names = {"run.json", "evidence", "evidence.jsonl", "report.html", "validation.md", "junit.xml"}
    assert {file.name for file in out.iterdir()} == names


def test_merging_again_gives_the_same_bytes(shards: list[Path], tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert run_command("merge", *shards, "-o", tmp_path / name).status == 0
    assert (tmp_path / "one" / "report.html").read_bytes() == (tmp_path / "two" / "report.html").read_bytes()
    assert (tmp_path / "one" / "run.json").read_bytes() == (tmp_path / "two" / "run.json").read_bytes()


@pytest.mark.parametrize("left", ["evidence", "run.json", PLAN_FILE, TWIN_FILE])
def test_folder_with_anything_of_another_run_is_refused(
    shards: list[Path], tmp_path: Path, left: str
) -> None:
    out = tmp_path / "whole"
    out.mkdir()
    (out / left).write_text("")
    ended = run_command("merge", *shards, "-o", out)
    assert (ended.status, "expected a folder without a run" in ended.stderr) == (2, True)
    assert [file.name for file in out.iterdir()] == [left]


def test_controls_and_twins_of_all_shards_are_kept_and_a_failed_twin_refutes_the_whole(
    shards: list[Path], tmp_path: Path
) -> None:
    def control(name: str) -> ControlRecord:
        caught = {"check": "outputs_exact", "due": Outcome.BYTES, "said": Outcome.BYTES, "detail": "d"}
        return ControlRecord(name=name, plants="p", case_id="c", **caught)

    def twin(case_id: str) -> TwinRecord:
        compared = {"outputs_exact": 1}
        return TwinRecord(
            run_id="r", case={"id": case_id}, verdict=Outcome.PASS, compared=compared, duration_ms=1
        )

    for index, name in ((1, CONTROLS[1]), (3, CONTROLS[0])):
        again = write_shard(tmp_path / f"with-{index}", index, controls=[control(name)])
        (again / "twin.jsonl").write_text(twin(f"twin-{4 - index}").model_dump_json() + "\n")
    folders = [tmp_path / "with-1", shards[1], tmp_path / "with-3"]
    assert run_command("merge", *folders, "-o", tmp_path / "whole").status == 0
    assert [control.name for control in load_run(tmp_path / "whole").record.controls] == list(CONTROLS[:2])
    lines = [json.loads(line) for line in (tmp_path / "whole" / "twin.jsonl").read_text().splitlines()]
    whole = load_run(tmp_path / "whole").record
    assert whole.twins_sha256 == sha256((tmp_path / "whole" / "twin.jsonl").read_bytes()).hexdigest()
    run_id = whole.run_id
    assert [(line["case"]["id"], line["run_id"]) for line in lines] == [
        ("twin-1", run_id),
        ("twin-3", run_id),
    ]

    failed = write_shard(
        tmp_path / "refuted", 2, verdict=Verdict.NOT_EQUIVALENT, messages=["twin twin-2: other bytes"]
    )
    assert run_command("merge", folders[0], failed, folders[2], "-o", tmp_path / "refuted-whole").status == 1
    record = load_run(tmp_path / "refuted-whole").record
    assert (record.verdict, record.messages) == ("NOT_EQUIVALENT", ["Shard 2/3: twin twin-2: other bytes"])


def test_missing_shards_are_listed(shards: list[Path], tmp_path: Path) -> None:
    assert "expected all 3, found no 1/3, 3/3." in refusal(tmp_path / "out", shards[1])


def test_shard_given_twice_is_refused(shards: list[Path], tmp_path: Path) -> None:
    again = write_shard(tmp_path / "again", 2, run_id="20260106-000000-bbbb")
    told = refusal(tmp_path / "out", *shards, again)
    assert "shard 2/3: expected it once" in told
    assert "again" in told


def test_run_of_its_whole_plan_is_no_shard(shards: list[Path], tmp_path: Path) -> None:
    whole = write_run(tmp_path / "whole", [case_record("case-a")])
    assert "expected a shard, found a run of its whole plan" in refusal(tmp_path / "out", *shards, whole)


def test_changed_shard_is_refused_and_named(shards: list[Path], tmp_path: Path) -> None:
    edit(shards[1] / "evidence" / "case-b.json", lambda data: data.update(duration_ms=1.0))
    told = refusal(tmp_path / "out", *shards)
    assert f"{shards[1]}: evidence/case-b.json: expected sha256" in told


@pytest.mark.parametrize(
    ("changes", "blamed"),
    [
        pytest.param({"scope": "gpu"}, "expected one scope", id="scope"),
        pytest.param(
            {"shard": ShardRecord(index=2, count=3, plan="0" * 64)}, "expected one plan", id="other-plan"
        ),
        pytest.param(
            {"shard": ShardRecord(index=2, count=4, plan=plan_digest("cpu-default", WHOLE))},
            "expected one count",
            id="other-count",
        ),
        pytest.param({"ids": ("case-b",)}, "expected the cases of plan", id="case-dropped"),
        pytest.param({"ids": ("case-b", "case-a")}, "expected each case once", id="case-twice"),
        pytest.param({"ids": ("case-e", "case-b")}, "expected the cases of plan", id="other-order"),
        pytest.param(
            {"environment": ENVIRONMENT | {"git": {"commit": "ffff", "dirty": False}}},
            "environment.git.commit: expected one value in all shards, found 0123abcd in shard 1/3, ffff in",
            id="mixed-commit",
        ),
        pytest.param(
            {"environment": ENVIRONMENT | {"packages": {"torch": "2.11.0", "safetensors": "0.8.0"}}},
            "environment.packages.torch",
            id="mixed-packages",
        ),
        pytest.param(
            {"environment": ENVIRONMENT | {"gpu": {"name": "NVIDIA L4"}}}, "environment.gpu", id="mixed-gpu"
        ),
    ],
)
def test_shard_of_something_else_is_refused(tmp_path: Path, changes: dict[str, Any], blamed: str) -> None:
    folders = [
        write_shard(tmp_path / f"shard-{index}", index, **(changes if index == 2 else {}))
        for index in (1, 2, 3)
    ]
    assert blamed in refusal(tmp_path / "out", *folders)


def test_hosts_may_differ_and_are_all_named() -> None:
    def on(cpu: str, uuid: str) -> dict[str, Any]:
        return ENVIRONMENT | {"host": {"cpu": cpu}, "gpu": {"name": "NVIDIA H200", "uuid": uuid}}

    merged = merged_environment({"1/2": on("one", "GPU-1"), "2/2": on("two", "GPU-2")})
    assert merged["host"] == {"cpu": "one | two"}
    assert merged["gpu"] == {"name": "NVIDIA H200", "uuid": "GPU-1 | GPU-2"}
    assert merged["options"]["out"] is None


def test_folder_with_a_run_is_not_overwritten(shards: list[Path], tmp_path: Path) -> None:
    before = (shards[0] / "run.json").read_bytes()
    assert run_command("merge", *shards, "-o", shards[0]).status == 2
    assert (shards[0] / "run.json").read_bytes() == before


def test_shard_that_failed_or_was_killed_is_part_of_the_whole(shards: list[Path], tmp_path: Path) -> None:
    shard = ShardRecord(index=2, count=3, plan=plan_digest("cpu-default", WHOLE))
    failing = failing_record("case-b").model_copy(update={"run_id": "r2"})
    good = case_record("case-e", run_id="r2")
    failed = write_run(tmp_path / "failed", [failing, good], shard=shard)
    ended = run_command("merge", shards[0], failed, shards[2], "-o", tmp_path / "out")
    assert ended.status == 1
    assert "NOT EQUIVALENT" in ended.stdout
    plan = {"run_id": "20260105-101502-aa02", "started": "2026-01-05T10:15:00Z"}
    plan |= {"cases": dict.fromkeys(("case-b", "case-e"), "PASS"), "shard": shard.model_dump()}
    (shards[1] / "planned.json").write_text(json.dumps(plan))
    (shards[1] / "run.json").unlink()
    (shards[1] / "evidence" / "case-e.json").unlink()
    ended = run_command("merge", *shards, "-o", tmp_path / "killed")
    assert ended.status == 1
    record = load_run(tmp_path / "killed").record
    assert record.verdict == "INCOMPLETE"
    assert [entry.id for entry in record.cases if entry.file is None] == ["case-e"]
    assert record.messages[0].startswith("Shard 2/3: The run did not end in order")


# --- real runs --------------------------------------------------------------------------------

SCRATCH = re.compile(r"loadproof-[0-9a-f]{8}|/\S+/checkpoint")
SELECTED = "n1-k16 or foreign-null-qkv or n16-k1-"


def start(out: Path, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "pytest", "cases/layers", "cases/capability", "-k", SELECTED, *options]
    command += ["-p", "no:cacheprovider", "--loadproof-device", "cpu", "--loadproof-out", str(out)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def normalised(folder: Path) -> Run:
    """The run without its identity: run id, times, processes, places in memory and on disk."""
    run = load_run(folder)
    environment = run.record.environment
    environment["options"] = environment["options"] | {"out": None}
    record = run.record.model_copy(
        update={
            "run_id": "run",
            "started": "then",
            "duration_s": 0.0,
            "commands": {},
            "merged": [],
            "chain": None,
            "cases": [entry.model_copy(update={"sha256": None}) for entry in run.record.cases],
        }
    )
    return Run(record=record, cases=tuple(_normalised_case(case) for case in run.cases), folder=Path())


_VOLATILE: dict[str, Callable[[Any], Any]] = {
    "run_id": lambda _: "run",
    "pid": lambda _: 1,
    "daemon_pid": lambda pid: pid and 1,
    "timings_ms": lambda phases: dict.fromkeys(phases, 0.0),
    "memory_bytes": lambda moments: dict.fromkeys(moments, 0),
    "duration_ms": lambda _: 0.0,
    "allocation": lambda name: name.partition(":")[0],
}


def _normalised_case(case: CaseRecord) -> CaseRecord:
    return CaseRecord.model_validate(_without_identity(case.model_dump(mode="json")))


def _without_identity(value: Any) -> Any:
    if isinstance(value, str):
        return SCRATCH.sub("scratch", value)
    if isinstance(value, list):
        return [_without_identity(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {name: _VOLATILE.get(name, _without_identity)(inner) for name, inner in value.items()}


def test_option_that_names_no_shard_is_a_usage_error(tmp_path: Path) -> None:
    process = start(tmp_path / "run", "--loadproof-shard", "5/4")
    output = process.communicate(timeout=100)[0]
    assert process.returncode == 4
    assert "--loadproof-shard: shard: expected i/n with 1 <= i <= n, found '5/4'" in output


@pytest.mark.timeout(240)
def test_four_merged_shards_give_the_report_of_the_run_that_was_not_sharded(tmp_path: Path) -> None:
    started = [start(tmp_path / "whole", "-n", "0")]
    started += [start(tmp_path / f"s{i}", "-n", "0", "--loadproof-shard", f"{i}/4") for i in range(1, 5)]
    outputs = [process.communicate(timeout=200)[0] for process in started]
    assert "SHARD" not in outputs[0]
    assert "shard 2/4: says nothing of the other shards" in outputs[2]
    ended = run_command("merge", *(tmp_path / f"s{i}" for i in range(1, 5)), "-o", tmp_path / "merged")
    assert ended.status == 0, (ended, outputs)
    whole, merged = normalised(tmp_path / "whole"), normalised(tmp_path / "merged")
    assert len(whole.cases) == 6
    assert render_html(merged) == render_html(whole)
    assert render_markdown(merged) == render_markdown(whole)
    part = load_run(tmp_path / "s1")
    assert "SHARD 1/4 ONLY" in (tmp_path / "s1" / "validation.md").read_text()
    assert 0 < len(part.cases) < len(whole.cases)


@pytest.mark.parametrize("case_id", ["../../escaped", "/escaped", "..", "a\0b", ""])
def test_an_id_cannot_lead_out_of_the_folder(tmp_path: Path, case_id: str) -> None:
    """The shard's digests are right: whoever writes a shard writes its digests too."""
    case = case_record(case_id, run_id="20260105-101501-aa01")
    plan = plan_digest("cpu-default", {case_id: Outcome.PASS})
    entry = CaseEntry(id=case_id, verdict=Outcome.PASS, expected=Outcome.PASS, file="evidence/x.json")
    shard = ShardRecord(index=1, count=1, plan=plan)
    counts = Counts(planned=1, verified=1, failed=0, incomplete=0, refused_as_expected=0)
    record = RunRecord(
        run_id=case.run_id,
        verdict=Verdict.EQUIVALENT,
        scope="cpu-default",
        started="2026-01-05T10:15:00+00:00",
        duration_s=1.0,
        counts=counts,
        environment={},
        shard=shard,
        cases=[entry],
    )
    folder = tmp_path / "deep" / "shard"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(sealed(record, [case]).model_dump_json())
    (folder / "evidence.jsonl").write_text(case.model_dump_json() + "\n")
    assert "found" in refusal(tmp_path / "deep" / "whole", folder)
    assert sorted(file.name for file in tmp_path.rglob("*.json")) == ["run.json"]
