"""Runs in processes of their own that are made to end badly, and what they must not leave behind."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from loadproof.harness.matrix import cases

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ("run.json", "evidence.jsonl", "report.html", "validation.md", "junit.xml")
_IDS = [case.id for case in cases("synthetic-layers", transport="memfd", kernel=None)]
FIRST, SECOND = _IDS[:2]


def _only(ids: list[str]) -> tuple[str, ...]:
    return "-k", " or ".join(ids), "--loadproof-transport", "memfd"


REAL = ("cases/layers", *_only([FIRST, SECOND]))
"""Two cases with all their processes."""
LIGHT_CASES = 8

_LIGHT = """
import pytest
from loadproof.cases.selfcheck.test_report_samples import case_record
from loadproof.fixtures.state import RUN

@pytest.fixture(scope="session")
def four_way(case, pytestconfig):
    run = pytestconfig.stash[RUN]
    if run.read(case.id) is None:
        run.add(case_record(case.id, run_id=run.run_id))

@pytest.mark.loadproof_cases("synthetic-layers")
class TestLight:
    def test_one(self, four_way): pass
    def test_two(self, four_way): pass
    def test_three(self, four_way): pass
"""


@dataclass(frozen=True)
class BadRun:
    """One started run: its output folder, its TMPDIR, and the mark that its processes carry."""

    process: subprocess.Popen[str]
    out: Path
    tmp: Path
    mark: str

    def end(self, seconds: float = 60) -> tuple[int, str]:
        """Exit code and all output; a run that does not end is the failure."""
        text, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, text

    def record(self) -> dict[str, Any]:
        return dict(json.loads((self.out / "run.json").read_text()))

    def verdicts(self) -> dict[str, str]:
        return {entry["id"]: entry["verdict"] for entry in self.record()["cases"]}

    def require_reports(self) -> None:
        assert {file.name for file in self.out.iterdir()} >= set(REPORTS)
        assert not list(self.out.rglob("*.tmp"))
        assert not (self.out / "planned.json").exists()

    def require_nothing_left(self, seconds: float = 5.0, *, folders: bool = True) -> None:
        """No process with our mark, and (where one could still clean up) no scratch folder."""
        deadline = time.monotonic() + seconds
        while (left := marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, left
        assert not folders or not list(self.tmp.glob("loadproof-*"))


def light(folder: Path) -> tuple[str, ...]:
    """Arguments of a run over canned evidence, without torch: for what happens around the proofs."""
    file = folder / "test_light.py"
    file.write_text(_LIGHT)
    return str(file), "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), *_only(_IDS[:LIGHT_CASES])


def start(folder: Path, *arguments: str, plant: str = "", before: tuple[str, ...] = ()) -> BadRun:
    """Start a run; `plant` is the text of a plugin that misbehaves, `before` a command to run it under."""
    tmp, mark = folder / "t", secrets.token_hex(8)
    tmp.mkdir(exist_ok=True)
    (folder / "planted.py").write_text(plant)
    paths = os.pathsep.join([str(folder), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    # A test's own worker must not make the run that it starts believe to be one.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    env = own | {"TMPDIR": str(tmp), "LOADPROOF_TEST_MARK": mark, "PYTHONPATH": paths}
    out = folder / "run"
    command = [*before, sys.executable, "-m", "pytest", *arguments, "-p", "planted", "-p", "no:cacheprovider"]
    if not entry_points(group="pytest11", name="loadproof"):
        # Not installed: the tree's own conftest does this, but not every run here starts below it.
        command += ["-p", "loadproof.fixtures.plugin", "-p", "loadproof.reports.hook"]
    # Hypothesis imports all of itself at the end of an interrupted worker: seconds on a busy machine.
    command += ["-p", "no:hypothesispytest"]
    process = subprocess.Popen(
        [*command, "--loadproof-device", "cpu", "--loadproof-out", str(out)],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A job in the background of a script ignores Ctrl-C, and would hand that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    return BadRun(process=process, out=out, tmp=tmp, mark=mark)


def marked(mark: str) -> dict[int, str]:
    """Living processes that carry the mark: pid to command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            ours = (
                entry.name.isdigit()
                and f"LOADPROOF_TEST_MARK={mark}".encode() in (entry / "environ").read_bytes()
            )
            if ours and "\nState:\tZ" not in (entry / "status").read_text():
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


def render(run: BadRun) -> tuple[int, str]:
    """`loadproof render` on what a run left: exit code, and the report or the error."""
    command = [sys.executable, "-m", "loadproof.reports.cli", "render", str(run.out)]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    report = run.out / "report.html"
    return done.returncode, report.read_text() if report.exists() else done.stderr
