"""Whole runs in processes of their own: workers, interruptions, what is left behind."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from loadproof.harness import launch
from loadproof.harness.errors import LaunchError
from loadproof.harness.launch import Forkserver

ROOT = Path(__file__).resolve().parents[2]
CASES = "(synthetic-fp8-qkv-n149-k57-unequal or synthetic-fp8-qkv-n160-k64-unequal) and not killed"
"""Four cases: aligned and padded, on both transports."""
PER_RUN = (
    "pid",
    "exit",
    "timings_ms",
    "memory_bytes",
    "allocation",
    "daemon_pid",
    "run_id",
    "duration_ms",
    "node_id",
)


def run_pytest(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "cases/layers", "-k", CASES, "-p", "no:cacheprovider"]
    command += ["--loadproof-device", "cpu", "--loadproof-out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def comparable(value: object) -> object:
    if isinstance(value, dict):
        return {k: comparable(v) for k, v in value.items() if k not in PER_RUN}
    return [comparable(v) for v in value] if isinstance(value, list) else value


def evidence(out: Path) -> dict[str, object]:
    lines = (out / "evidence.jsonl").read_text().splitlines()
    return {record["case"]["id"]: comparable(record) for record in map(json.loads, lines)}


def test_workers_give_the_same_evidence_and_one_run_a_case(tmp_path: Path) -> None:
    alone, together = run_pytest(tmp_path / "n0", "-n", "0"), run_pytest(tmp_path / "n2", "-n", "2")
    assert (alone.returncode, together.returncode) == (0, 0), alone.stdout + together.stdout
    assert len(evidence(tmp_path / "n0")) == 4
    assert evidence(tmp_path / "n0") == evidence(tmp_path / "n2")
    # A second four-way run of a case would leave other pids behind; the engine's own are in the evidence.
    assert together.stdout.count("VERIFIED") == 4
    assert "40 passed" in together.stdout


def test_run_leaves_every_file_and_says_cpu_default_only(tmp_path: Path) -> None:
    done = run_pytest(tmp_path / "run")
    assert done.returncode == 0, done.stdout
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["verdict"], run["scope"]) == ("EQUIVALENT", "cpu-default")
    assert run["counts"] == {
        "planned": 4,
        "verified": 4,
        "failed": 0,
        "incomplete": 0,
        "refused_as_expected": 0,
    }
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"run.json", "evidence", "evidence.jsonl", "report.html", "validation.md", "junit.xml"}
    for text in (
        done.stdout,
        (tmp_path / "run" / "report.html").read_text(),
        (tmp_path / "run" / "validation.md").read_text(),
    ):
        assert "CPU DEFAULT ONLY" in text


def test_run_whose_plan_is_taken_away_says_so_and_fails(tmp_path: Path) -> None:
    plant = tmp_path / "thief.py"
    plant.write_text(
        "def pytest_runtest_logreport(report):\n"
        "    import pathlib\n"
        f"    pathlib.Path({str(tmp_path / 'run' / 'planned.json')!r}).unlink(missing_ok=True)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "pytest", "cases/layers", "-k", CASES, "-p", "thief"]
    command += ["-p", "no:cacheprovider", "--loadproof-device", "cpu"]
    command += ["--loadproof-out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1, done.stdout
    assert "INCOMPLETE: 4 cases ran, but their plan is gone" in done.stdout


def test_run_of_refusals_alone_shows_no_equivalence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "cases/capability", "-k", "foreign-null"]
    command += ["-p", "no:cacheprovider", "--loadproof-device", "cpu"]
    command += ["--loadproof-out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "4 passed" in done.stdout
    assert "that shows no equivalence" in done.stdout
    assert json.loads((tmp_path / "run" / "run.json").read_text())["verdict"] == "INCOMPLETE"


def test_unwritable_output_folder_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run_pytest(tmp_path / "file" / "run")
    assert done.returncode != 0
    assert "OutputUnwritable" in done.stdout + done.stderr
    assert (tmp_path / "file").read_text() == "in the way"


def test_evidence_of_another_run_is_neither_used_nor_overwritten(tmp_path: Path) -> None:
    earlier = tmp_path / "run" / "evidence" / "case.json"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("earlier")
    done = run_pytest(tmp_path / "run")
    assert done.returncode == 4
    assert "another run's evidence" in done.stderr
    assert earlier.read_text() == "earlier"


def test_bad_option_is_a_usage_error(tmp_path: Path) -> None:
    done = run_pytest(tmp_path / "run", "--loadproof-transport", "pigeon")
    assert done.returncode == 4
    assert "pigeon" in done.stderr


def test_required_gpu_that_is_missing_is_a_usage_error(tmp_path: Path) -> None:
    done = run_pytest(tmp_path / "run", "--loadproof-require", "cuda")
    assert done.returncode == 4
    assert "cuda" in done.stderr


def test_killed_harness_leaves_no_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from loadproof.harness import launch;"
        "server = launch.Forkserver(); needs = launch.Needs('cpu', 'reference');"
        "child = server._spawned(needs, Path(sys.argv[1]));"
        "print(server._server.process.pid, child.pid, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "stderr")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 2
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_forkserver_without_its_preload_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch._Server, "_receive", lambda self, timeout: {"modules": [], "threads": 1})
    with pytest.raises(LaunchError, match="imported"):
        Forkserver()


@pytest.mark.parametrize("found", [{"threads": 2, "cuda": False}, {"threads": 1, "cuda": True}])
def test_forkserver_that_cannot_fork_well_any_more_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: dict[str, object]
) -> None:
    server = Forkserver()
    try:
        monkeypatch.setattr(launch._Server, "_receive", lambda self, timeout: {"pid": 1, **found})
        with pytest.raises(LaunchError, match="CUDA untouched"):
            server._spawned(launch.Needs("cpu", "reference"), tmp_path / "stderr")
    finally:
        server.close()


def test_proof_leaves_no_file_descriptor_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loadproof.cases.selfcheck.test_defects import prove
    from loadproof.harness.proof import Prover

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Prover() as prover:
        prove(prover, tmp_path / "warm", None)
        fds = len(os.listdir("/proc/self/fd"))
        for index in range(3):
            prove(prover, tmp_path / str(index), "abort" if index == 1 else None)
        assert len(os.listdir("/proc/self/fd")) == fds
        # The forkserver's own folder lives as long as it does.
        assert len(list(tmp_path.glob("loadproof-*"))) == 1
    assert not list(tmp_path.glob("loadproof-*"))


def test_devices_that_nobody_has_do_not_cost_a_cpu_run_its_reports(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "cases/layers",
        "-k",
        "corner and n64-k64",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, "--loadproof-device", "cpu", "--loadproof-out", str(tmp_path / "run")],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "GPU-of-nobody"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "report.html").exists()
