"""`loadproof compare`: what became of each case, and whether equal bytes could be expected at all."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import CaseRecord, DigestRecord, Verdict
from loadproof.reports.compare import Status, compare
from loadproof.reports.compare_render import render_html, render_markdown
from loadproof.reports.load import load_run

from .sealed_runs import ENVIRONMENT, run_command, write_run
from .test_report_samples import case_record, failing_record

GPU = {"name": "NVIDIA H200", "uuid": "GPU-1", "driver": "580.1"}


def refused_record(case_id: str) -> CaseRecord:
    good = case_record(case_id)
    return good.model_copy(update={"case": good.case | {"expected": "REFUSED"}, "verdict": Outcome.REFUSED})


def with_other_bytes(case_id: str) -> CaseRecord:
    good = case_record(case_id)
    ipc = good.routes["ipc"]
    first, second = ipc.outputs
    outputs = [first.model_copy(update={"sha256": "f" * 64}), second]
    return case_record(case_id, routes=good.routes | {"ipc": ipc.model_copy(update={"outputs": outputs})})


def on_gpu(**changes: str) -> dict[str, Any]:
    return {"scope": "gpu", "environment": ENVIRONMENT | {"gpu": GPU | changes}}


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs in which every status is met."""
    before = [
        case_record("a-same"),
        case_record("b-breaks"),
        failing_record("c-fixed"),
        refused_record("d-supported"),
        case_record("e-gone"),
        failing_record("f-fails"),
        case_record("g-lost"),
        case_record("h-now-refused"),
    ]
    after = [
        with_other_bytes("a-same"),
        failing_record("b-breaks"),
        case_record("c-fixed"),
        case_record("d-supported"),
        failing_record("f-fails"),
        refused_record("h-now-refused"),
        case_record("i-new"),
        failing_record("j-new-and-failing"),
    ]
    later = ENVIRONMENT | {"packages": {"torch": "2.11.0", "safetensors": "0.8.0"}}
    return (
        write_run(tmp_path / "before", before),
        write_run(tmp_path / "after", after, missing=("g-lost",), environment=later),
    )


STATUSES = {
    "a-same": "unchanged",
    "b-breaks": "broken",
    "c-fixed": "fixed",
    "d-supported": "refused → verified",
    "e-gone": "gone",
    "f-fails": "still failing",
    "g-lost": "broken",
    "h-now-refused": "broken",
    "i-new": "new",
    "j-new-and-failing": "broken",
}


def test_every_case_has_the_status_that_tells_what_became_of_it(two: tuple[Path, Path]) -> None:
    ended = run_command("compare", *two, "--json")
    assert ended.status == 1
    told = json.loads(ended.stdout)
    assert {case["id"]: case["status"] for case in told["cases"]} == STATUSES
    assert told["broken"] is True
    assert told["counts"] == {status: list(STATUSES.values()).count(status) for status in Status}
    reasons = {case["id"]: case["reason"] for case in told["cases"]}
    assert reasons["b-breaks"] == "outputs_exact: ipc differs from ordinary."
    assert reasons["g-lost"] == "Planned, but it left no evidence."
    assert reasons["h-now-refused"] == "Verified before; now it is expected to be refused."
    assert reasons["i-new"] == ""


def test_run_against_itself_is_unchanged_and_what_fails_still_fails(two: tuple[Path, Path]) -> None:
    ended = run_command("compare", two[0], two[0] / "evidence.jsonl")
    assert ended.status == 0
    assert ended.stdout.startswith("NOTHING IS BROKEN: 2 still failing, 6 unchanged\n")
    for title in ("Environment", "Other bytes", "Not comparable"):
        assert title not in ended.stdout


def test_changed_outputs_are_named_by_route_and_tokens(two: tuple[Path, Path]) -> None:
    told = json.loads(run_command("compare", *two, "--format", "json").stdout)
    (same,) = [case for case in told["cases"] if case["id"] == "a-same"]
    assert same["outputs"] == [{"route": "ipc", "name": "m=1", "before": f"{1:064x}", "after": "f" * 64}]
    assert (
        "ipc m=1 000000000000… → ffffffffffff…" in run_command("compare", *two, "--format", "markdown").stdout
    )


def test_processed_tensors_are_compared_and_what_was_compared_is_counted(tmp_path: Path) -> None:
    good = case_record("a")
    held = [DigestRecord(name=name, sha256=digest * 64) for name, digest in (("weight", "a"), ("bias", "b"))]
    ipc = good.routes["ipc"].model_copy(update={"processed": held})
    other = ipc.model_copy(update={"processed": [held[0], held[1].model_copy(update={"sha256": "c" * 64})]})
    runs = [
        write_run(tmp_path / name, [case_record("a", routes=good.routes | {"ipc": route})])
        for name, route in (("before", ipc), ("after", other))
    ]
    outputs = sum(len(route.outputs) for route in good.routes.values())
    told = json.loads(run_command("compare", *runs, "--json").stdout)
    (case,) = told["cases"]
    assert case["compared"] == outputs + 2
    (change,) = case["outputs"]
    assert (change["route"], change["name"]) == ("ipc", "processed bias")
    words = f"{outputs + 2} outputs and processed tensors are in both runs"
    assert f"{words}; 1 have other bytes." in run_command("compare", *runs).stdout
    for form in ("text", "markdown", "html"):
        assert (
            f"{words}, with equal bytes." in run_command("compare", runs[0], runs[0], "--format", form).stdout
        )


def test_ids_stay_whole_where_a_program_reads_them(tmp_path: Path) -> None:
    long = "synthetic-" + "-".join(["n160"] * 16)
    before = write_run(tmp_path / "before", [case_record("a")])
    after = write_run(tmp_path / "after", [case_record("a"), case_record(long)])
    assert long in run_command("compare", before, after).stdout


def test_steps_of_a_model_are_told_apart(tmp_path: Path) -> None:
    def model(*digests: str) -> CaseRecord:
        good = case_record("model")
        first = good.routes["ipc"].outputs[0]
        steps = [
            first.model_copy(update={"prompt": n // 2, "step": n % 2, "sha256": digest * 64})
            for n, digest in enumerate(digests)
        ]
        ipc = good.routes["ipc"].model_copy(update={"outputs": steps})
        return case_record("model", routes=good.routes | {"ipc": ipc})

    before = write_run(tmp_path / "before", [model("a", "b", "c", "d")])
    after = write_run(tmp_path / "after", [model("a", "b", "e", "d")])
    told = json.loads(run_command("compare", before, after, "--json").stdout)
    (change,) = told["cases"][0]["outputs"]
    assert (change["name"], change["before"], change["after"]) == ("prompt 1 step 0 m=1", "c" * 64, "e" * 64)


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_environment_comes_before_the_cases(two: tuple[Path, Path], form: str) -> None:
    text = run_command("compare", *two, "--format", form).stdout
    places = [
        text.index(word) for word in ("BROKEN", "Environment", "packages.torch", "b-breaks", "Other bytes")
    ]
    assert places == sorted(places)
    assert "safetensors" not in text  # equal in both


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        pytest.param({"name": "NVIDIA L4"}, "gpu.name", id="gpu"),
        pytest.param({"driver": "590.2"}, "gpu.driver", id="driver"),
    ],
)
def test_other_gpu_or_driver_is_not_comparable_bit_for_bit(
    tmp_path: Path, changes: dict[str, str], named: str
) -> None:
    before = write_run(tmp_path / "before", [case_record("a")], **on_gpu())
    after = write_run(tmp_path / "after", [case_record("a")], **on_gpu(**changes))
    comparison = compare(load_run(before), load_run(after))
    assert [fact.name for fact in comparison.incomparable] == [named]
    for form in ("text", "markdown", "html"):
        ended = run_command("compare", before, after, "--format", form)
        assert ended.status == 0
        assert "Not comparable bit for bit" in ended.stdout


def test_other_kernel_build_or_scope_is_not_comparable_and_another_card_of_the_model_is(
    tmp_path: Path,
) -> None:
    def built(build: str, kernel: str = "cutlass") -> list[CaseRecord]:
        good = case_record("a")
        key = {"kernel": kernel, "kernel_build": build}
        return [case_record("a", daemon=good.daemon.model_copy(update={"key": key}))]

    before = write_run(tmp_path / "before", built("aa"), **on_gpu())
    other_build = write_run(tmp_path / "build", built("bb"), **on_gpu())
    other_card = write_run(tmp_path / "card", built("aa"), **on_gpu(uuid="GPU-2"))
    other_kernel = write_run(tmp_path / "kernel", built("bb", "triton"), **on_gpu())
    cpu = write_run(tmp_path / "cpu", built("aa"))
    found = {
        after.name: [fact.name for fact in compare(load_run(before), load_run(after)).incomparable]
        for after in (other_build, other_card, other_kernel, cpu)
    }
    assert found == {
        "build": ["kernel.cutlass"],
        "card": [],
        "kernel": [],
        "cpu": ["scope", "gpu.name", "gpu.driver"],
    }


def test_output_goes_to_a_file_and_nothing_to_stdout(two: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "out" / "compare.html"
    ended = run_command("compare", *two, "--format", "html", "-o", file)
    assert (ended.status, ended.stdout) == (1, "")
    assert file.read_text() == render_html(compare(load_run(two[0]), load_run(two[1])))


def test_folder_without_a_run_is_invalid_input(two: tuple[Path, Path], tmp_path: Path) -> None:
    ended = run_command("compare", two[0], tmp_path / "nowhere")
    assert ended.status == 2
    assert "run.json" in ended.stderr


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""


def test_page_runs_and_fetches_nothing_and_hostile_names_are_inert(tmp_path: Path) -> None:
    hostile = "</title><script>alert(1)</script>|`x`"
    before = write_run(tmp_path / "before", [case_record("a")])
    after = write_run(tmp_path / "after", [case_record("a")], environment={"git": {"commit": hostile}})
    comparison = compare(load_run(before), load_run(after))
    page = _Page()
    page.feed(render_html(comparison))
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert page.policy.startswith("default-src 'none'")
    assert "<script>" not in render_markdown(comparison)
    assert "|`" not in render_markdown(comparison)


def test_markdown_stays_below_its_limit_and_states_the_cut(tmp_path: Path) -> None:
    cases = [case_record(f"case-with-a-rather-long-name-{n:04}") for n in range(1000)]
    before = write_run(tmp_path / "before", cases)
    after = write_run(tmp_path / "after", cases[:1])
    text = render_markdown(compare(load_run(before), load_run(after)))
    assert len(text.encode()) <= 60_000
    cut = re.search(r"(\d+) more rows: `loadproof compare --format html`", text)
    assert cut
    assert text.count("| gone |") + int(cut[1]) == 999


def test_a_run_that_was_changed_is_not_compared(two: tuple[Path, Path]) -> None:
    """Evidence that was edited to say the same on both sides must not come out as unchanged."""
    before, after = two
    shutil.rmtree(after / "evidence")
    lines = (after / "evidence.jsonl").read_text()
    (after / "evidence.jsonl").write_text(lines.replace('"pid":', '"pid":1', 1))
    ended = run_command("compare", before, after)
    assert (ended.status, ended.stdout) == (2, "")
    assert "evidence.jsonl line 1" in ended.stderr


def test_a_run_that_lost_its_verdict_is_broken_though_its_cases_hold(tmp_path: Path) -> None:
    """A twin that differs, or a planted defect that was missed, stands in no case."""
    before = write_run(tmp_path / "before", [case_record("a")])
    after = write_run(tmp_path / "after", [case_record("a")], verdict=Verdict.NOT_EQUIVALENT)
    ended = run_command("compare", before, after)
    assert ended.status == 1
    told = "SOMETHING IS BROKEN: 1 unchanged, the run was EQUIVALENT and is NOT_EQUIVALENT"
    assert told in " ".join(ended.stdout.split())
    assert run_command("compare", after, before).status == 0


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_runs_without_a_common_case_compare_nothing(tmp_path: Path, form: str) -> None:
    before = write_run(tmp_path / "before", [case_record("a")])
    after = write_run(tmp_path / "after", [case_record("b")])
    ended = run_command("compare", before, after, "--format", form)
    assert ended.status == 1
    assert "NOTHING WAS COMPARED" in ended.stdout
    assert "NOTHING IS BROKEN" not in ended.stdout
