"""`loadproof verify`: an untouched run is intact, and whatever was touched is named."""

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from loadproof.harness.chain import sealed
from loadproof.harness.record import RunRecord, ShardRecord, Verdict

from .sealed_runs import complaints, edit, head_of, run_command, write_files, write_run
from .test_report_samples import case_record, failing_record

IDS = ("a-memfd", "b-memfd", "c-memfd")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", [case_record(case_id) for case_id in IDS])


def test_untouched_run_is_intact_as_folder_and_as_lines(run: Path) -> None:
    for path in (run, run / "evidence.jsonl"):
        ended = run_command("verify", path, "--head", head_of(run))
        assert (ended.status, ended.stderr) == (0, "")
        assert "INTACT  EQUIVALENT" in ended.stdout
        assert head_of(run) in ended.stdout
        assert "The head is the published one" in ended.stdout
    assert "self-reported, not attested" in run_command("verify", run).stdout


def test_digest_is_of_content_and_not_of_layout(run: Path) -> None:
    for file in [run / "run.json", *(run / "evidence").iterdir()]:
        file.write_text(json.dumps(json.loads(file.read_text()), sort_keys=True))
    assert run_command("verify", run).status == 0


def test_lines_alone_beside_run_json_are_enough(run: Path) -> None:
    shutil.rmtree(run / "evidence")
    assert run_command("verify", run).status == 0


def test_run_that_is_not_equivalent_is_intact_with_status_1(tmp_path: Path) -> None:
    failing = write_run(tmp_path / "failing", [failing_record("a-memfd")])
    lost = write_run(tmp_path / "lost", [case_record("a-memfd")], missing=("b-memfd",))
    for folder, verdict in ((failing, "NOT EQUIVALENT"), (lost, "INCOMPLETE")):
        ended = run_command("verify", folder)
        assert (ended.status, ended.stderr) == (1, "")
        assert f"INTACT  {verdict}" in ended.stdout


def set_in(*path: str | int, to: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("file", "change", "blamed"),
    [
        pytest.param(
            "evidence/b-memfd.json",
            set_in("routes", "ipc", "outputs", 0, "sha256", to="0" * 64),
            "evidence/b-memfd.json",
            id="byte-of-a-digest",
        ),
        pytest.param(
            "evidence/b-memfd.json", set_in("duration_ms", to=212.5), "evidence/b-memfd.json", id="duration"
        ),
        pytest.param(
            "evidence/b-memfd.json", set_in("run_id", to="another"), "evidence/b-memfd.json", id="mixed-runs"
        ),
        pytest.param(
            "evidence/b-memfd.json", set_in("schema_version", to=0), "evidence/b-memfd.json", id="older"
        ),
        pytest.param(
            "evidence/b-memfd.json", set_in("schema_version", to=2), "evidence/b-memfd.json", id="newer"
        ),
        pytest.param("evidence/b-memfd.json", set_in("case", to={}), "evidence/b-memfd.json", id="no-case"),
        pytest.param("run.json", set_in("duration_s", to=1.0), "run.json: duration_s", id="fact"),
        pytest.param(
            "run.json",
            set_in("environment", "gpu", to={"name": "H200"}),
            "run.json: environment",
            id="environment",
        ),
        pytest.param("run.json", set_in("counts", "planned", to=4), "run.json: counts", id="counts"),
        pytest.param(
            "run.json",
            set_in("cases", 1, "verdict", to="BYTES"),
            "run.json: cases[1].verdict of b-memfd",
            id="entry-verdict",
        ),
        pytest.param(
            "run.json",
            set_in("cases", 1, "sha256", to="0" * 64),
            "run.json: cases[1].sha256 of b-memfd",
            id="entry-digest",
        ),
        pytest.param(
            "run.json",
            lambda data: data["cases"][1].pop("sha256"),
            "run.json: cases[1].sha256 of b-memfd",
            id="entry-without-digest",
        ),
        pytest.param(
            "run.json", set_in("chain", "cases", to="0" * 64), "run.json: chain.cases", id="chain-cases"
        ),
        pytest.param(
            "run.json",
            set_in("chain", "facts", "verdict", to="0" * 64),
            "run.json: chain.facts.verdict",
            id="chain-fact",
        ),
        pytest.param(
            "run.json", set_in("chain", "head", to="0" * 64), "run.json: chain.head", id="chain-head"
        ),
    ],
)
def test_one_change_is_the_one_thing_named(
    run: Path, file: str, change: Callable[[Any], None], blamed: str
) -> None:
    edit(run / file, change)
    found = complaints(run)
    assert len(found) == 1, found
    assert found[0].startswith(f"{blamed}: expected")


def test_evidence_of_another_run_is_told_from_changed_evidence(run: Path) -> None:
    edit(run / "evidence" / "b-memfd.json", set_in("run_id", to="another"))
    (complaint,) = complaints(run)
    assert complaint.endswith("expected evidence of run 20260105-101500-ab12, found evidence of run another")


def test_older_and_newer_schema_versions_are_told_apart(run: Path) -> None:
    for version in (0, 2):
        edit(run / "run.json", set_in("schema_version", to=version))
        (complaint,) = complaints(run)
        assert f"run.json: expected schema_version 1, found {version}" in complaint
        assert ("a newer" if version else "an older") + " loadproof" in complaint


def test_changed_lines_disagree_with_the_files(run: Path) -> None:
    lines = (run / "evidence.jsonl").read_text().splitlines()
    changed = json.loads(lines[1]) | {"duration_ms": 1.0}
    (run / "evidence.jsonl").write_text("\n".join([lines[0], json.dumps(changed), lines[2]]) + "\n")
    (complaint,) = complaints(run)
    assert complaint.startswith("evidence.jsonl line 2: expected sha256")
    (run / "evidence.jsonl").write_text(lines[0] + "\n" + lines[2] + "\n")
    (complaint,) = complaints(run)
    assert complaint == "evidence.jsonl: expected the evidence of b-memfd, found none"


def test_swapped_missing_and_extra_files_are_named(run: Path) -> None:
    evidence = run / "evidence"
    texts = {case_id: (evidence / f"{case_id}.json").read_text() for case_id in IDS}
    (evidence / "a-memfd.json").write_text(texts["b-memfd"])
    (evidence / "b-memfd.json").write_text(texts["a-memfd"])
    assert complaints(run) == [
        "evidence/a-memfd.json: expected the case that the file is named for, found evidence of b-memfd",
        "evidence/b-memfd.json: expected the case that the file is named for, found evidence of a-memfd",
    ]
    for case_id, text in texts.items():
        (evidence / f"{case_id}.json").write_text(text)
    (evidence / "c-memfd.json").unlink()
    (evidence / "d-memfd.json").write_text(texts["c-memfd"].replace("c-memfd", "d-memfd"))
    (evidence / "notes.txt").write_text("hello")
    assert complaints(run) == [
        "evidence/notes.txt: expected evidence of cases alone, found another file",
        "evidence/d-memfd.json: expected a case that run.json lists with evidence, found evidence of d-memfd",
        "evidence/c-memfd.json: expected the evidence of c-memfd, found none",
    ]


@pytest.mark.parametrize(
    "change", [lambda cases: cases.reverse(), lambda cases: cases.pop()], ids=["moved", "taken-out"]
)
def test_entries_that_were_moved_or_taken_out_are_seen(run: Path, change: Callable[[Any], None]) -> None:
    edit(run / "run.json", lambda data: change(data["cases"]))
    assert complaints(run)[0].startswith("run.json: cases: expected the entries that were chained")


def test_duplicate_keys_are_refused_since_readers_differ_on_them(run: Path) -> None:
    file = run / "evidence" / "a-memfd.json"
    file.write_text(
        file.read_text().replace('"verdict": "PASS"', '"verdict": "BYTES",\n "verdict": "PASS"', 1)
    )
    (complaint,) = complaints(run)
    assert "duplicate key 'verdict'" in complaint


def test_rewritten_run_is_intact_and_only_the_published_head_tells(run: Path, tmp_path: Path) -> None:
    published = head_of(run)
    cases = [case_record(case_id, duration_ms=1.0) for case_id in IDS]
    record = RunRecord.model_validate_json((run / "run.json").read_text())
    forged = write_files(tmp_path / "forged", sealed(record, cases), cases)
    assert run_command("verify", forged).status == 0
    (complaint,) = complaints(forged, "--head", published)
    assert complaint.startswith(f"head of the chain: expected the published {published}")


def test_sealed_contradiction_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [failing_record("a-memfd")], verdict=Verdict.EQUIVALENT)
    (complaint,) = complaints(run)
    assert "EQUIVALENT only where every case holds" in complaint


def test_run_that_was_killed_is_incomplete_and_has_no_head(run: Path) -> None:
    expected = dict.fromkeys((*IDS, "d-memfd"), "PASS")
    plan = {"run_id": case_record().run_id, "started": "2026-01-05T10:15:00Z", "cases": expected}
    (run / "planned.json").write_text(json.dumps(plan))
    (run / "run.json").unlink()
    ended = run_command("verify", run, "--json")
    assert ended.status == 1
    told = json.loads(ended.stdout)
    assert (told["intact"], told["verdict"], told["head"], told["cases"]) == (True, "INCOMPLETE", None, 3)
    assert "did not end in order" in told["note"]
    assert complaints(run, "--head", "0" * 64)[0].endswith("found no chain")


def test_lines_without_run_json_show_little_and_say_so(run: Path) -> None:
    (run / "run.json").unlink()
    ended = run_command("verify", run / "evidence.jsonl")
    assert ended.status == 1
    assert "cannot be said" in ended.stdout
    lines = (run / "evidence.jsonl").read_text()
    (run / "evidence.jsonl").write_text(
        lines + lines.splitlines()[0].replace("a-memfd", "z").replace("ab12", "ffff")
    )
    (complaint,) = complaints(run / "evidence.jsonl")
    assert "evidence of one run" in complaint


@pytest.mark.parametrize(
    "command",
    [("render",), ("render", "--markdown"), ("render", "-o", "page.html"), ("show", "a-memfd", "--run")],
    ids=["reports", "markdown", "page", "case"],
)
def test_a_changed_run_is_not_told_of(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """What is changed agrees with all counts and verdicts, so that only the chain can tell."""
    monkeypatch.chdir(tmp_path)
    for file in (run / "evidence" / "a-memfd.json", run / "evidence.jsonl"):
        file.write_text(file.read_text().replace('"builtin"', '"another"'))
    ended = run_command(*command, run)
    assert (ended.status, ended.stdout) == (2, "")
    assert "See `loadproof verify" in ended.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert not (run / "report.html").exists()


def test_twins_are_those_of_the_run(tmp_path: Path) -> None:
    twins = b'{"a": "twin"}\n'
    run = write_run(tmp_path / "run", [case_record("a")], twins_sha256=sha256(twins).hexdigest())
    assert run_command("verify", run).status == 0
    (run / "twin.jsonl").write_bytes(twins)
    assert run_command("verify", run).status == 0
    (run / "twin.jsonl").write_bytes(twins.replace(b"twin", b"liar"))
    (complaint,) = complaints(run)
    assert complaint.startswith("twin.jsonl: expected sha256 ")


def test_run_without_any_evidence_is_one_error(run: Path) -> None:
    for path in (run / "evidence").iterdir():
        path.unlink()
    (run / "evidence").rmdir()
    (run / "evidence.jsonl").unlink()
    (complaint,) = complaints(run)
    assert "expected evidence/ or evidence.jsonl beside run.json, found neither" in complaint


def test_run_without_a_chain_is_refused(run: Path) -> None:
    edit(run / "run.json", set_in("chain", to=None))
    (complaint,) = complaints(run)
    assert "expected a digest chain, found none" in complaint


def test_verdict_is_told_with_its_limits(tmp_path: Path) -> None:
    """An intact shard of a CPU run is not the whole, and says nothing of a GPU."""
    shard = ShardRecord(index=1, count=4, plan="0" * 64)
    part = write_run(tmp_path / "part", [case_record("a-memfd")], shard=shard)
    told = run_command("verify", part).stdout
    assert "INTACT  EQUIVALENT · CPU DEFAULT ONLY · SHARD 1/4 ONLY" in told
    whole = write_run(tmp_path / "whole", [case_record("a-memfd")], scope="gpu")
    assert "INTACT  EQUIVALENT  run" in run_command("verify", whole).stdout
