"""What the HTML report costs, beside pytest-html for the same run: `pytest cases/perf/test_report.py -s`.

CPU time, not wall time: both are single-threaded, and a busy machine must not decide. pytest-html costs
what a run takes with it less what it takes without. Its tests are empty, one for each check of a case.
Needs pytest-html (the extra `browser`), and is skipped by name without it.
"""

import importlib.util
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loadproof.cases.perf.report_runs import CHECKS, large_run
from loadproof.cases.selfcheck.test_report_samples import store
from loadproof.reports.html import render_html
from loadproof.reports.load import load_run

CASES = 1_000
GOAL = 10.0
"""pytest-html's CPU time over ours."""
SECONDS = 1.0
"""For rendering CASES cases; what reading their evidence takes is recorded beside it."""
ROUNDS = 4
MB = 1_000_000


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def same_run(folder: Path) -> Path:
    """A test file with the cases of `large_run`, and an empty test for each of their checks."""
    ids = [case.id for case in large_run(CASES).cases]
    tests = "".join(f"    def test_{check}(self, case): pass\n" for check in CHECKS)
    file = folder / "test_same.py"
    marker = f'@pytest.mark.parametrize("case", {ids!r}, scope="session")'
    file.write_text(f"import pytest\n{marker}\nclass TestSyntheticLayers:\n{tests}")
    return file


def pytest_seconds(file: Path, *options: str) -> float:
    """CPU seconds of a pytest process, its report among them."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    subprocess.run(
        [*command, "--rootdir", str(file.parent), *options, str(file)],
        cwd=file.parent,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("pytest_html") is None, reason="pytest-html is not installed")
def test_ten_times_faster_than_pytest_html(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    run = large_run(CASES)
    folder, file = store(run, tmp_path / "run"), same_run(tmp_path)
    page = tmp_path / "theirs.html"
    plugins = ("-p", "pytest_metadata.plugin", "-p", "pytest_html.plugin", "-p", "pytest_html.fixtures")
    sides: dict[str, Callable[[], float]] = {
        "render_s": lambda: cpu_seconds(lambda: render_html(run)),
        "read_s": lambda: cpu_seconds(lambda: load_run(folder)),
        "with_html_s": lambda: pytest_seconds(file, *plugins, f"--html={page}", "--self-contained-html"),
        "without_s": lambda: pytest_seconds(file),
    }
    samples = {name: [measure() for _ in range(ROUNDS)] for name, measure in sides.items()}
    # What else runs on the machine only ever adds.
    least = {name: min(values) for name, values in samples.items()}
    theirs = least["with_html_s"] - least["without_s"]
    figures = {
        "cases": CASES,
        **least,
        "pytest_html_s": theirs,
        "ratio": theirs / least["render_s"],
        "bytes": len(render_html(run).encode()),
        "pytest_html_bytes": page.stat().st_size,
        "samples": samples,
    }
    print(figures)
    for name, value in figures.items():
        record_property(name, value)
    assert figures["render_s"] <= SECONDS
    assert figures["ratio"] >= GOAL


@pytest.mark.timeout(600)
def test_size_and_time_grow_with_the_number_of_cases_and_stay_within_bounds(
    record_property: Callable[[str, object], None],
) -> None:
    sizes, seconds = {}, {}
    for count in (CASES, 10 * CASES):
        run = large_run(count, failing=count // 50)
        seconds[count] = min(cpu_seconds(lambda run=run: render_html(run)) for _ in range(2))  # type: ignore[misc]
        sizes[count] = len(render_html(run).encode())
    print(sizes, seconds)
    record_property("bytes", sizes)
    record_property("seconds", seconds)
    assert sizes[CASES] <= 2 * MB
    assert sizes[10 * CASES] <= 10 * MB
    assert seconds[10 * CASES] <= 15 * seconds[CASES]
