"""Defects of test harnesses that others have had, by kind."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from loadproof.cases.selfcheck.test_report_samples import case_record, failing_record, run_of
from loadproof.harness.outcome import Outcome
from loadproof.harness.record import CaseRecord, ErrorRecord
from loadproof.reports.html import render_html
from loadproof.reports.junit import render_junit
from loadproof.reports.markdown import render_markdown

ROOT = Path(__file__).resolve().parents[2]
FREE_MEMORY = {
    "mem_get_info",
    "memory_reserved",
    "memory_allocated",
    "max_memory_allocated",
    "nvmlDeviceGetMemoryInfo",
    "virtual_memory",
    "MemAvailable",
    "MemFree",
}


def names_in(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Constant(value=str(name)):
                found.add(name)
    return found


class TestFreeMemoryOfTheWholeDevice:
    """vllm-project/vllm I56830, P45534, P33358, P57362, P54162: a neighbour's memory decided a test."""

    @pytest.mark.parametrize("folder", ["harness", "fixtures"])
    def test_nothing_is_asserted_of_free_memory(self, folder: str) -> None:
        files = sorted((ROOT / folder).rglob("*.py"))
        assert files
        wrong = {str(f.relative_to(ROOT)): sorted(names_in(f) & FREE_MEMORY) for f in files}
        # The size of the whole memory, which describes a GPU.
        assert wrong.pop("harness/device.py", ["nvmlDeviceGetMemoryInfo"]) == ["nvmlDeviceGetMemoryInfo"]
        # What an engine notes for people; the checks never see it.
        noted = wrong.pop("harness/memory_in_use.py", ["mem_get_info", "memory_allocated"])
        assert noted == ["mem_get_info", "memory_allocated"]
        assert not any("memory" in names_in(f) for f in (ROOT / "harness" / "checks").glob("*.py"))
        assert {name: found for name, found in wrong.items() if found} == {}


WITNESS = """
import importlib, sys, torch
touched = []
def note(name):
    def call(*arguments, **named):
        touched.append(name)
        raise RuntimeError(name)
    return call
for name in ("_lazy_init", "is_available", "device_count", "init", "current_device"):
    setattr(torch.cuda, name, note(name))
from pathlib import Path
names = []
base = Path(sys.argv[1])
for folder in ("harness", "fixtures", "reports", "cases"):
    for file in sorted((base / folder).rglob("*.py")):
        parts = file.relative_to(base).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        names.append("loadproof." + ".".join(parts))
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A backend's own requirement, which only that backend imports.
        if error.name != "triton":
            raise
import loadproof.harness.forkserver as forkserver
forkserver.entry_points()
print(len(names), touched)
"""


class TestForkAfterCudaStarted:
    """vllm-project/vllm P50638, I47446, I3557: collection started CUDA, and every fork was broken."""

    def test_importing_every_module_and_preloading_touches_no_device(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", WITNESS, str(ROOT)], capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        count, _, touched = done.stdout.strip().partition(" ")
        assert int(count) > 90
        assert touched == "[]"


MEGABYTE = 1 << 20


def talkative(case_id: str) -> CaseRecord:
    """A failing case whose every text is 5 MB long."""
    record, text = failing_record(case_id), "x" * (5 * MEGABYTE)
    routes = {
        name: route.model_copy(
            update={
                "outcome": Outcome.CRASHED,
                "error": ErrorRecord(type="ProcessCrashed", message=text),
                "stderr_tail": text,
            }
        )
        for name, route in record.routes.items()
    }
    checks = [
        check.model_copy(update={"detail": text, "evidence": {"dump": text, "values": [0.5] * 100_000}})
        for check in record.checks
    ]
    return record.model_copy(update={"routes": routes, "checks": checks})


class TestReportTooLargeToRead:
    """pytest-dev/pytest-html I552, P598, red-hat-storage/ocs-ci I5567, zykzml7788/pytest-tmreport I4."""

    def test_every_case_of_a_large_run_is_in_a_page_of_bounded_size(self) -> None:
        names = [f"case-{i:03}" for i in range(300)]
        run = run_of(talkative(names[0]), *(case_record(name) for name in names[1:]))
        page, summary, junit = render_html(run), render_markdown(run), render_junit(run)
        assert len(page.encode()) < 3 * MEGABYTE
        assert len(summary.encode()) <= 60_000
        assert len(junit.encode()) < 3 * MEGABYTE
        assert [name for name in names if name not in page] == []
        assert [name for name in names if name not in junit] == []
