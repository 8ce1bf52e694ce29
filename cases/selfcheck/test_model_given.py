"""`--loadproof-model DIR`: the given model's cases and no others, or one line that says why not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadproof.harness.model_spec import SyntheticModel
from loadproof.harness.models.synthetic import write_model
from loadproof.harness.record import CaseRecord
from loadproof.harness.spec import Scheme

ROOT = Path(__file__).resolve().parents[2]
USAGE_ERROR = 4


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "My Model_1.5"
    write_model(path, SyntheticModel(architecture="qwen2", seed=3, intermediate=40), Scheme.FP8)
    return path


def run(model: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    out = f"--loadproof-out={model.parent / 'run'}"
    command = [sys.executable, "-m", "pytest", "--loadproof-device=cpu", f"--loadproof-model={model}", out]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_given_model_alone_is_proved_over_every_transport(model: Path, workers: str) -> None:
    done = run(model, "cases/layers", "cases/capability", "cases/models", "-n", workers)
    assert done.returncode == 0, done.stdout + done.stderr
    ids = [f"my-model-1-5-fp8-model-reference-{transport}" for transport in ("memfd", "memfd-writable")]
    run_json = json.loads((model.parent / "run" / "run.json").read_text())
    assert sorted(case["id"] for case in run_json["cases"]) == ids
    said = done.stdout + done.stderr
    for case_id in ids:
        assert f"{case_id}: ipc PASS" in said
        record = CaseRecord.model_validate_json((model.parent / f"run/evidence/{case_id}.json").read_text())
        assert record.model is not None
        assert record.model.tokenizer.startswith("none")
    assert "fixed token ids stand for the prompts" in done.stdout
    assert (model.parent / "run" / "report.html").exists()


def test_transport_option_narrows_the_given_models_cases(model: Path) -> None:
    done = run(model, "cases/models", "--collect-only", "-q", "--loadproof-transport=memfd-writable")
    listed = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(listed) == 8
    assert all(line.endswith("[my-model-1-5-fp8-model-reference-memfd-writable]") for line in listed)


def test_run_is_written_where_it_was_started_and_not_in_the_model(model: Path, tmp_path: Path) -> None:
    """A folder that stands alone among the arguments is one where pytest looks for its configuration."""
    start = tmp_path / "work"
    author = ["-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run(["git", "init", "-q", str(start)], check=True)
    subprocess.run(["git", "-C", str(start), *author, "commit", "-q", "--allow-empty", "-m", "m"], check=True)
    command = [sys.executable, "-m", "pytest", "--pyargs", "loadproof.cases.models", "-q"]
    command += [
        "--loadproof-device",
        "cpu",
        "--loadproof-transport",
        "memfd",
        "--loadproof-model",
        str(model),
    ]
    done = subprocess.run(command, cwd=start, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((start / ".loadproof" / "latest" / "run.json").read_text())
    head = subprocess.run(["git", "-C", str(start), "rev-parse", "HEAD"], capture_output=True, text=True)
    assert told["environment"]["git"]["commit"] == head.stdout.strip()
    assert not (model / ".loadproof").exists()
    assert not (tmp_path / ".loadproof").exists()


def test_what_cannot_be_proved_is_one_line_before_any_test(model: Path) -> None:
    config = model / "config.json"
    config.write_text(config.read_text().replace('"qwen2"', '"mamba"'))
    done = run(model, "cases/models")
    assert done.returncode == USAGE_ERROR
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line.startswith("ERROR: loadproof: --loadproof-model: RefusedModel: ")
    assert "expected model_type llama, qwen2, qwen3, found 'mamba'" in line
    assert not (model.parent / "run").exists()


def test_folder_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    done = run(tmp_path / "nowhere", "cases/models")
    assert done.returncode == USAGE_ERROR
    assert f"found none at {tmp_path / 'nowhere'}" in done.stderr
