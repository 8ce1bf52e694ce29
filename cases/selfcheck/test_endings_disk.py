"""Runs without room: a full disk under the output folder, files and memory that may not grow."""

import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from loadproof.cases.selfcheck.endings import LIGHT_CASES, light, start
from loadproof.cases.selfcheck.test_defects import prove
from loadproof.harness import scratch
from loadproof.harness.errors import OutputUnwritable
from loadproof.harness.outcome import Outcome
from loadproof.harness.proof import Prover
from loadproof.harness.scratch import make_scratch, save_tensors

FILL = """
import os
from pathlib import Path
def pytest_configure():
    from loadproof.fixtures import run
    from loadproof.reports import write
    for module in (run, write):
        module.write_atomically = filling(module.write_atomically)
def filling(plain):
    def write_atomically(path, text):
        if FILE in (path.name, path.parent.name):
            try:
                with (Path(OUT) / "filler").open("ab", buffering=0) as filler:
                    while True:
                        filler.write(bytes(4096))
            except OSError:
                pass
        plain(path, text)
    return write_atomically
"""
FULL_AT = [
    pytest.param("evidence", "0", id="evidence"),
    pytest.param("evidence", "2", id="evidence-of-workers"),
    pytest.param("evidence.jsonl", "0", id="evidence.jsonl"),
    pytest.param("run.json", "0", id="run.json"),
    pytest.param("report.html", "0", id="report"),
]
"""What there is no room left for, and the number of xdist workers."""


def may_mount() -> bool:
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("file", "workers"), FULL_AT)
def test_full_disk_ends_in_one_clear_error_and_no_torn_file(tmp_path: Path, file: str, workers: str) -> None:
    if not may_mount():
        pytest.skip("mounting a small tmpfs takes root or CAP_SYS_ADMIN")
    out, kept = tmp_path / "run", tmp_path / "kept"
    out.mkdir()
    # The mount goes with its namespace: what was written is copied out of it.
    script = f'mount -t tmpfs -o size=2m none {out}; "$@"; code=$?; cp -a {out} {kept}; exit $code'
    before = ("unshare", "-m", "sh", "-c", script, "sh")
    run = start(
        tmp_path,
        *light(tmp_path),
        "-n",
        workers,
        plant=f"FILE, OUT = {file!r}, {str(out)!r}\n{FILL}",
        before=before,
    )
    code, text = run.end()
    assert code == 1, text
    assert "INCOMPLETE" in text
    assert "OutputUnwritable" in text
    assert "No space left on device" in text
    assert f"OutputUnwritable: {out}/{file}" in text
    assert "INTERNALERROR" not in text
    # Every outcome is on stdout, with or without its evidence.
    assert text.count("VERIFIED") >= LIGHT_CASES
    for found in kept.rglob("*"):
        assert not found.name.endswith(".tmp")
        if found.suffix == ".json":
            assert found.read_text().rstrip().endswith("}")
    if (kept / "run.json").exists():
        assert '"verdict": "INCOMPLETE"' in (kept / "run.json").read_text()
    else:
        assert (kept / "planned.json").exists()
        assert "loadproof render" in text
    run.require_nothing_left()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_plan_that_cannot_be_written_stops_the_run_before_its_first_case(
    tmp_path: Path, workers: str
) -> None:
    (tmp_path / "run").write_text("in the way")
    run = start(tmp_path, *light(tmp_path), "-n", workers)
    code, text = run.end()
    assert code in (1, 2), text
    assert "OutputUnwritable" in text
    assert "Traceback" not in text
    assert "VERIFIED" not in text


def test_files_and_memory_that_may_not_grow_are_named_by_who_needed_them(tmp_path: Path) -> None:
    with Prover() as prover:
        pid = prover._forkserver._server.process.pid
        # Room for messages and stacks, for no tensor file and no arena.
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (512, 512))
        record = prove(prover, tmp_path, None)
    assert record.verdict is Outcome.INFRA
    errors = {name: route.error for name, route in record.routes.items()}
    assert all(errors.values())
    assert {name: error.type for name, error in errors.items() if error} == {
        "ordinary": "OutputUnwritable",
        "fallback": "OutputUnwritable",
        "ipc": "ArenaError",
        "ipc-repeat": "ArenaError",
    }
    ordinary, ipc = errors["ordinary"], errors["ipc"]
    assert ordinary
    assert "ordinary.results.safetensors" in ordinary.message
    assert ipc
    assert "File too large" in ipc.message
    assert {route.outcome for route in record.routes.values()} == {Outcome.INFRA}


def test_scratch_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(OutputUnwritable, match="missing"):
        make_scratch()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with pytest.raises(OutputUnwritable, match=r"inputs\.safetensors"):
            save_tensors({"x": torch.zeros(4096)}, tmp_path / "inputs.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_interrupted_removal_is_finished_at_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(folder: Path, ignore_errors: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = scratch.make_scratch()
    (folder / "inputs").write_text("x")
    with monkeypatch.context() as planted:
        planted.setattr(shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            scratch.remove_scratch(folder)
    scratch._remove_left()
    assert not folder.exists()
