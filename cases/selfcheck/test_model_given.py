"""`--loadproof-model DIR`: the given model's cases and no others, or one line that says why not."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from loadproof.fixtures import given, options
from loadproof.harness.model_spec import ModelCaseSpec, ModelSpec, SyntheticModel
from loadproof.harness.models import ARCHITECTURES
from loadproof.harness.models.synthetic import write_model
from loadproof.harness.proof import Prover
from loadproof.harness.record import CaseRecord
from loadproof.harness.spec import Scheme

from .proofs import not_passed, prove_checkpoint

WEIGHTS = "model.safetensors"
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
    # No process of the run may import what lies there: it may be a stranger's folder.
    for name in ("json.py", "safetensors.py", "torch.py"):
        (start / name).write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    command = [str(Path(sys.executable).with_name("pytest")), "--pyargs", "loadproof.cases.models", "-q"]
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
    (case,) = (start / ".loadproof" / "latest" / "evidence").iterdir()
    repeat = json.loads(case.read_text())["node_id"]
    asked = [command[0], "--pyargs", repeat, "-q", "--collect-only", *command[4:]]
    again = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 test collected" in again.stdout, again.stdout + again.stderr
    assert not (tmp_path / "imported").exists()
    assert not (model / ".loadproof").exists()
    assert not (tmp_path / ".loadproof").exists()


def test_what_cannot_be_proved_is_one_line_before_any_test(model: Path) -> None:
    config = model / "config.json"
    config.write_text(config.read_text().replace('"qwen2"', '"mamba"'))
    done = run(model, "cases/models")
    assert done.returncode == USAGE_ERROR
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line.startswith("ERROR: loadproof: --loadproof-model: RefusedModel: ")
    assert f"expected model_type {', '.join(sorted(ARCHITECTURES))}, found 'mamba'" in line
    assert not (model.parent / "run").exists()


def test_a_stranger_s_names_reach_the_terminal_as_one_line_without_control(model: Path) -> None:
    tensors = load_file(model / WEIGHTS)
    save_file(tensors | {"\x1b]0;title\x07\n" + "x" * 100_000: torch.ones(1)}, model / WEIGHTS)
    done = run(model, "cases/models")
    assert done.returncode == USAGE_ERROR
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line.startswith("ERROR: loadproof: --loadproof-model: RefusedModel: ")
    assert len(line) < 3000
    assert line.isprintable()


FOLDERS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "nowhere": (lambda tmp: tmp / "nowhere", "No such file or directory"),
    "file": (lambda tmp: write(tmp / "file"), "a file"),
    "loop": (lambda tmp: link(tmp / "loop", tmp / "loop"), "(Symlink loop|Too many levels)"),
    "long": (lambda tmp: tmp / ("x" * 300), "File name too long"),
    "not-utf-8": (lambda tmp: made(tmp / os.fsdecode(b"mod\xffel")), "a name that is not UTF-8"),
}


def write(file: Path) -> Path:
    file.write_text("")
    return file


def link(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return path


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", FOLDERS)
def test_folder_that_is_none_is_a_usage_error(tmp_path: Path, name: str) -> None:
    make, found = FOLDERS[name]
    with pytest.raises(
        pytest.UsageError, match=f": expected the folder of a checkpoint, found {found}"
    ) as said:
        options.read_options(config(tmp_path, model=str(make(tmp_path))))
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("option", ["model", "shard", "kernel", "out"])
def test_option_whose_variable_was_never_set_is_a_usage_error(tmp_path: Path, option: str) -> None:
    with pytest.raises(
        pytest.UsageError, match=f"--loadproof-{option}: expected a value, found an empty word"
    ):
        options.read_options(config(tmp_path, **{option: ""}))


def test_usage_error_of_an_option_ends_pytest(tmp_path: Path) -> None:
    done = run(tmp_path / "nowhere", "cases/models", "--collect-only")
    assert done.returncode == USAGE_ERROR
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert "expected the folder of a checkpoint, found No such file or directory" in line


def config(start: Path, **given: str) -> pytest.Config:
    """As much of pytest's as options are read from: what the command line gave, beside the defaults."""
    stand_in = SimpleNamespace(
        getoption=lambda name: given.get(name.removeprefix("loadproof_")),
        getini=lambda name: "cpu" if name == "loadproof_device" else options._OPTIONS[name[10:]][0],
        invocation_params=SimpleNamespace(dir=start),
    )
    return stand_in  # type: ignore[return-value]


def test_look_that_takes_too_long_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "LOOKING_SECONDS", 0.01)
    with pytest.raises(pytest.UsageError, match="expected to be looked at within 0 s"):
        given.require_provable(model)


@pytest.mark.parametrize("what", ["no-weights", "a-link-to-nothing", "a-link-outside"])
def test_files_that_the_index_does_not_name_change_nothing(
    prover: Prover, model: Path, tmp_path: Path, what: str
) -> None:
    names = load_file(model / WEIGHTS)
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, WEIGHTS)}
    (model / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    stray = model / "consolidated.safetensors"
    match what:
        case "no-weights":
            stray.write_text("version https://git-lfs.github.com/spec/v1")
        case "a-link-to-nothing":
            stray.symlink_to(tmp_path / "gone.safetensors")
        case "a-link-outside":
            stray.symlink_to(write(tmp_path / "elsewhere.safetensors"))
    spec = ModelSpec(
        name="given", scheme=Scheme.FP8, source=SyntheticModel(architecture="qwen2", seed=3, intermediate=40)
    )
    record = prove_checkpoint(prover, ModelCaseSpec(model=spec, transport="memfd"), model)
    assert not_passed(record) == {}
    assert given.phase_seconds(model) == given.LEAST_PHASE_SECONDS
