"""Runs that are stopped: at a failure, by Ctrl-C, by a CI job's cancellation."""

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loadproof.cases.selfcheck.endings import FIRST, LIGHT_CASES, REAL, SECOND, BadRun, light, start

# The second one comes while the run is already ending.
KILL = """
import os, signal
def stop(): os.killpg(0, signal.SIGINT)
def pytest_keyboard_interrupt(): stop()
"""
POINTS = {
    "collection": "def pytest_collection_modifyitems(): stop()",
    "setup": "def pytest_runtest_setup(): stop()",
    "between": "def pytest_runtest_logfinish(): stop()",
    "teardown": "def pytest_runtest_teardown(): stop()",
    "finish": "def pytest_sessionfinish(): stop()",
    "report": "def pytest_loadproof_run_written(run_dir): stop()",
    "destructor": (
        "class D:\n    def __del__(self): stop()\n"
        "import pytest\n@pytest.hookimpl(trylast=True)\ndef pytest_runtest_call(): D()"
    ),
    "no-line": (
        "import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_runtest_call():\n"
        "    code = 'x = 1\\nstop()\\n'\n"
        "    from types import CodeType\n    compiled = compile(code, 'no-line', 'exec')\n"
        "    exec(compiled.replace(co_linetable=bytes([0xF8 | 7, 0xF8 | 7])), globals())"
    ),
}


def require_interrupted(run: BadRun, code: int, text: str) -> None:
    assert code == 2, text
    assert "INTERNALERROR" not in text
    run.require_nothing_left()
    if (run.out / "evidence").exists() or (run.out / "planned.json").exists():
        run.require_reports()
        assert run.record()["verdict"] == "INCOMPLETE"
        assert run.record()["messages"][0] == "The run was interrupted (SIGINT)."
        assert "INCOMPLETE" in (run.out / "report.html").read_text()


@pytest.mark.parametrize("point", POINTS)
def test_ctrl_c_twice_ends_in_order(tmp_path: Path, point: str) -> None:
    run = start(tmp_path, *light(tmp_path), plant=KILL + POINTS[point])
    code, text = run.end()
    require_interrupted(run, code, text)
    # pytest ends an interrupted collection too, so that the plan is known.
    missing = list(run.verdicts().values()).count("INCOMPLETE")
    assert missing == 0 if point in ("finish", "report") else missing >= LIGHT_CASES - 1


def test_ctrl_c_anywhere_ends_in_order(tmp_path: Path) -> None:
    points = random.Random(7)
    delays = [0.3 + points.random() * 5.0 for _ in range(8)]

    def interrupt(delay: float) -> bool:
        folder = tmp_path / f"{delay:.2f}"
        folder.mkdir()
        run = start(folder, *REAL)
        time.sleep(delay)
        for _ in range(2):
            if run.process.poll() is None:
                os.killpg(run.process.pid, signal.SIGINT)
        code, text = run.end()
        run.require_nothing_left()
        if code == 0:
            # Too late for a signal: then everything was done.
            assert run.record()["verdict"] == "EQUIVALENT"
            run.require_reports()
        elif code == 2:
            require_interrupted(run, code, text)
        else:
            # Python, before pytest had begun.
            assert code in (-signal.SIGINT, 130), text
            assert not run.out.exists()
        return code == 2

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(interrupt, delays)) >= 4


@pytest.mark.parametrize("workers", ["0", "2"])
def test_cancelled_job_ends_within_eight_seconds(tmp_path: Path, workers: str) -> None:
    # In a proof, with a daemon and an engine alive.
    plant = """
import os, time
def pytest_runtest_setup(item):
    from loadproof.harness.runner import Runner
    def live(self, seen, live=Runner._live):
        if seen.route.daemon_present:
            print(f"PLANTED", file=open(os.environ["TMPDIR"] + "/there", "w"))
            time.sleep(0.5)
        live(self, seen)
    Runner._live = live
"""
    run = start(tmp_path, *REAL, "-n", workers, plant=plant)
    deadline = time.monotonic() + 60
    while not (run.tmp / "there").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    cancelled = time.monotonic()
    run.process.terminate()
    code, text = run.end(10)
    run.require_nothing_left(max(cancelled + 8 - time.monotonic(), 0))
    assert code == 2, text
    assert "The run was terminated (SIGTERM)" in text
    run.require_reports()
    assert run.record()["verdict"] == "INCOMPLETE"
    assert "The run was terminated (SIGTERM)." in run.record()["messages"]


def test_run_that_stops_at_a_failure_names_what_it_left_out(tmp_path: Path) -> None:
    plant = """
from dataclasses import replace
def pytest_runtest_setup(item):
    from loadproof.harness.proof import Prover
    if not hasattr(Prover, "plain"):
        Prover.plain = Prover.prove
        Prover.prove = lambda self, request: self.plain(replace(request, defect="copied-by-value"))
"""
    run = start(tmp_path, *REAL, "-x", plant=plant)
    code, text = run.end()
    assert code == 1, text
    assert run.verdicts() == {FIRST: "NOT_SHARED", SECOND: "INCOMPLETE"}
    assert run.record()["verdict"] == "NOT_EQUIVALENT"
    run.require_reports()
    run.require_nothing_left()


def test_a_process_and_a_folder_left_behind_are_seen(tmp_path: Path) -> None:
    plant = """
import os, subprocess
def pytest_configure():
    quiet = subprocess.DEVNULL
    subprocess.Popen(["sleep", "4"], stdout=quiet, stderr=quiet, start_new_session=True)
    os.mkdir(os.environ["TMPDIR"] + "/loadproof-left")
"""
    run = start(tmp_path, *light(tmp_path), plant=plant)
    assert run.end()[0] == 0
    with pytest.raises(AssertionError, match="sleep"):
        run.require_nothing_left(0.2)
    with pytest.raises(AssertionError, match="loadproof-left"):
        run.require_nothing_left(10)
