"""Reading a run folder: what fits together is read back, and what does not is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadproof.cases.selfcheck.sealed_runs import edit
from loadproof.cases.selfcheck.test_report_samples import case_record, failing_record, run_of, store
from loadproof.harness.errors import InvalidInput
from loadproof.harness.record import Verdict
from loadproof.reports.load import load_run
from loadproof.reports.write import write_reports


def test_a_run_folder_is_read_back(tmp_path: Path) -> None:
    run = run_of(case_record("a"), failing_record("b"), missing=("c",))
    read = load_run(store(run, tmp_path))
    assert (read.record, read.cases) == (run.record, run.cases)


def test_one_file_of_lines_is_as_good_as_many_files(tmp_path: Path) -> None:
    run = run_of(case_record("b"), case_record("a"))
    (tmp_path / "run.json").write_text(run.record.model_dump_json())
    lines = [case.model_dump_json() for case in reversed(run.cases)]
    (tmp_path / "evidence.jsonl").write_text("\n".join(lines) + "\n")
    assert load_run(tmp_path).cases == run.cases


@pytest.mark.parametrize(
    ("change", "blamed"),
    [
        pytest.param({"run_id": "another"}, "another", id="mixed-runs"),
        pytest.param({"schema_version": 99}, "schema_version", id="newer-schema"),
        pytest.param({"verdict": "BYTES"}, "one verdict", id="contradiction"),
        pytest.param({"surprise": 1}, "surprise", id="unknown-field"),
        pytest.param({"case": {"id": "a"}}, "expected", id="no-expectation"),
    ],
)
def test_evidence_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], blamed: str) -> None:
    file = store(run_of(case_record("a")), tmp_path) / "evidence" / "a.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InvalidInput, match=blamed):
        load_run(tmp_path)


def test_a_missing_a_broken_and_an_incomplete_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"run\.json"):
        load_run(tmp_path)
    folder = store(run_of(case_record("a")), tmp_path / "run")
    (folder / "evidence" / "a.json").write_text("{")
    with pytest.raises(InvalidInput, match="JSON"):
        load_run(folder)
    (folder / "evidence" / "a.json").unlink()
    with pytest.raises(InvalidInput, match="no such evidence"):
        load_run(folder)


def test_equivalent_needs_evidence(tmp_path: Path) -> None:
    run = run_of(missing=("a",), verdict=Verdict.EQUIVALENT)
    with pytest.raises(InvalidInput, match="EQUIVALENT"):
        load_run(store(run, tmp_path))


def test_reports_are_made_from_the_lines_alone_and_lie_beside_them(tmp_path: Path) -> None:
    run = run_of(case_record("b"), case_record("a"))
    (tmp_path / "run.json").write_text(run.record.model_dump_json())
    (tmp_path / "evidence.jsonl").write_text("".join(f"{case.model_dump_json()}\n" for case in run.cases))
    write_reports(load_run(tmp_path / "evidence.jsonl"))
    assert {file.name for file in tmp_path.iterdir()} >= {"report.html", "validation.md", "junit.xml"}


def test_counts_are_those_of_the_cases(tmp_path: Path) -> None:
    run = run_of(case_record("a"))
    run_json = store(run, tmp_path) / "run.json"
    told = run.record.counts.model_copy(update={"verified": 999})
    run_json.write_text(run.record.model_copy(update={"counts": told}).model_dump_json())
    with pytest.raises(InvalidInput, match="counts"):
        load_run(tmp_path)


def test_equivalent_contradicts_a_message(tmp_path: Path) -> None:
    run = run_of(case_record("a"), messages=["Worker gw0 was killed."])
    with pytest.raises(InvalidInput, match="gw0"):
        load_run(store(run, tmp_path))


@pytest.mark.parametrize("file", ["run.json", "evidence/a.json"])
@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000])
def test_deep_nesting_is_refused(tmp_path: Path, file: str, text: str) -> None:
    (store(run_of(case_record("a")), tmp_path) / file).write_text(text)
    with pytest.raises(InvalidInput, match="nesting"):
        load_run(tmp_path)


def test_what_only_python_reads_is_refused(tmp_path: Path) -> None:
    """A lone surrogate passes Python's reader, and no report could be written."""
    file = store(run_of(case_record("a")), tmp_path) / "evidence" / "a.json"
    file.write_text(file.read_text().replace('"node_id":"', '"node_id":"\\ud800', 1))
    assert "ud800" in file.read_text()
    with pytest.raises(InvalidInput, match="every reader"):
        load_run(tmp_path)


@pytest.mark.parametrize("libraries", ["x", 1, ["x"], [{"file": "lib.so"}]])
def test_libraries_are_described_or_refused(tmp_path: Path, libraries: Any) -> None:
    run_json = store(run_of(case_record("a")), tmp_path) / "run.json"
    edit(run_json, lambda data: data["environment"].update(libraries=libraries))
    with pytest.raises(InvalidInput, match=r"run\.json.*environment"):
        load_run(tmp_path)


@pytest.mark.parametrize("name", ["id", "logical_widths", "m_values"])
def test_a_case_is_described_or_refused(tmp_path: Path, name: str) -> None:
    edit(
        store(run_of(case_record("a")), tmp_path) / "evidence" / "a.json",
        lambda data: data["case"].update({name: None}),
    )
    with pytest.raises(InvalidInput, match=name):
        load_run(tmp_path)
