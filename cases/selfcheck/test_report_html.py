"""The HTML report: true to the evidence, self-contained, and inert whatever the evidence holds."""

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from loadproof.cases.perf.report_runs import large_run
from loadproof.cases.selfcheck.test_report_samples import case_record, failing_record, run_of
from loadproof.harness.outcome import Outcome
from loadproof.harness.record import CaseRecord, CheckRecord, Verdict
from loadproof.reports.html import render_html
from loadproof.reports.load import Run
from loadproof.reports.wording import CPU_ONLY, NON_CLAIMS

HOSTILE = "</script><img src=x onerror=alert(1)>|{{ 7*7 }}\u202e"


class Page(HTMLParser):
    """Tags with their attributes, and the text of each kind of element."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.source = render_html(run)
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append((self.tags[-1][0] if self.tags else "", data))

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    def text(self, tag: str | None = None) -> str:
        found = "".join(data for name, data in self.texts if tag is None or name == tag)
        return " ".join(found.split())


def test_a_cpu_run_cannot_be_taken_for_a_gpu_run() -> None:
    page = Page(run_of(case_record()))
    assert CPU_ONLY in page.text("title")
    assert CPU_ONLY in page.source.split("</header>")[0].split("<header")[1]
    assert "VERIFIED 1/1" in page.text()


def test_a_gpu_run_does_not_say_cpu() -> None:
    page = Page(run_of(case_record(), scope="gpu", environment={"gpu": {"name": "NVIDIA H200"}}))
    assert CPU_ONLY not in page.source
    assert "NVIDIA H200" in page.source.split("</header>")[0]


def test_claims_are_made_only_where_the_run_is_equivalent() -> None:
    good, bad = Page(run_of(case_record())), Page(run_of(failing_record("b")))
    assert "outputs of the four load paths are byte-identical" in good.text()
    assert "byte-identical" not in bad.text()
    for page in (good, bad):
        assert all(line in page.text() for line in NON_CLAIMS)


def test_a_failing_case_is_first_and_open() -> None:
    page = Page(run_of(case_record("good"), failing_record("broken")))
    cases = [attrs for attrs in page.attributes("details") if attrs.get("class") == "case"]
    assert ["open" in attrs for attrs in cases] == [True, False]
    assert page.source.index(">broken<") < page.source.index(">good<")
    assert "NOT EQUIVALENT" in page.text("title")


def test_every_outcome_of_a_case_is_a_word_in_the_page() -> None:
    text = Page(run_of(failing_record("b"))).text()
    for word in ("PASS", "BYTES", "CRASHED", "ProcessCrashed", "Segmentation fault", "differs", "0x3f81"):
        assert word in text
    assert "~/x.py" in text
    assert "/home/ada" not in text


def test_a_case_without_evidence_is_shown_as_incomplete() -> None:
    page = Page(run_of(case_record("good"), missing=("lost-case",)))
    assert "INCOMPLETE" in page.text("title")
    assert "Planned, but it left no evidence" in page.text()
    assert "killed by signal 9" in page.text()
    assert page.source.index("lost-case") < page.source.index(">good<")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        pytest.param({"route_taken": "fallback"}, "WRONG_ROUTE", id="another-way"),
        pytest.param({"outputs": []}, "INCOMPLETE", id="no-output"),
    ],
)
def test_no_route_passes_on_its_own_word(change: dict[str, Any], word: str) -> None:
    good = case_record("a")
    routes = good.routes | {"ipc": good.routes["ipc"].model_copy(update=change)}
    assert word in Page(run_of(good.model_copy(update={"routes": routes}))).text()


def test_an_expected_refusal_holds_and_an_unexpected_pass_does_not() -> None:
    expected = case_record("r").case | {"expected": "REFUSED"}
    refused = Page(run_of(case_record("r", case=expected, verdict=Outcome.REFUSED)))
    assert "as expected" in refused.text()
    assert "data-failing" not in refused.source.split("<script")[0]
    passed = Page(run_of(case_record("r", case=expected), verdict=Verdict.NOT_EQUIVALENT))
    assert "PASS, not REFUSED" in passed.text()


def test_sharing_is_shown_by_allocation_offset_and_nonce() -> None:
    text = Page(run_of(case_record())).text()
    assert "same memory A + 3,072" in text
    assert "own memory private" in text
    assert "ipc read it through its mapping" in text


def test_hostile_text_is_inert() -> None:
    hostile = failing_record(HOSTILE)
    broken = hostile.routes["ipc-repeat"].model_copy(update={"stderr_tail": HOSTILE, "kernels": [HOSTILE]})
    hostile = hostile.model_copy(update={"routes": hostile.routes | {"ipc-repeat": broken}})
    run = run_of(hostile, missing=(HOSTILE + "2",), messages=[HOSTILE], environment={HOSTILE: {HOSTILE: 1}})
    page = Page(run)
    assert not page.attributes("img")
    assert [a for a in page.attributes("script") if "type" not in a] == [{}]
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert "<img src=x onerror=alert(1)>|{{ 7*7 }}" in page.text()
    assert "\u202e" not in page.source


def test_the_page_needs_nothing_else() -> None:
    page = Page(run_of(case_record("a"), failing_record("b")))
    for _, attrs in page.tags:
        assert "src" not in attrs
        assert "style" not in attrs
        assert str(attrs.get("href", "#")).startswith("#")
    assert not re.search(r"https?:|url\(|@import", page.source)


def test_only_our_script_and_style_may_run() -> None:
    page = Page(run_of(case_record()))
    policy = next(str(a["content"]) for a in page.attributes("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    for tag in ("script", "style"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", page.source, re.DOTALL)
        assert content
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_structure_is_accessible() -> None:
    page = Page(run_of(case_record("a"), failing_record("b"), missing=("c",)))
    assert page.attributes("html") == [{"lang": "en"}]
    for landmark in ("h1", "main", "header", "footer", "nav"):
        assert len(page.attributes(landmark)) == 1
    assert len(page.attributes("caption")) == len(page.attributes("table"))
    assert all("scope" in attrs for attrs in page.attributes("th"))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = {str(attrs["href"])[1:] for attrs in page.attributes("a")}
    assert targets <= set(ids)


def test_the_same_evidence_gives_the_same_bytes_and_no_more_than_needed() -> None:
    cases = [case_record(f"case-{n}") for n in range(32)]
    first, second = render_html(run_of(*cases)), render_html(run_of(*cases))
    assert first == second
    assert len(first.encode()) < 1_000_000


def details(page: Page) -> list[Any]:
    """What the page's compressed chunks hold, case by case."""
    chunks = re.findall(r'<script type="text/plain" class="details">(.*?)</script>', page.source)
    packed = [base64.b64decode(chunk) for chunk in chunks]
    # A time stamp would make two pages of one run differ.
    assert {part[4:8] for part in packed} <= {bytes(4)}
    return [detail for part in packed for detail in json.loads(gzip.decompress(part))]


def test_every_case_has_its_details_in_the_page() -> None:
    run = large_run(150)
    page = Page(run)
    found = details(page)
    assert len(found) == 150
    for case, (command, lines, rows) in zip(run.cases, found, strict=True):
        assert case.id in command
        assert str(case.checkpoint["content"]) in lines[1]
        assert case.routes["ordinary"].outputs[1].sha256[:12] in rows[3][0]
        assert [way.split("\n")[0] for way in rows[0]] == ["disk", "fallback", "attach", "attach"]


def test_details_that_do_not_fit_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadproof.reports.page.DETAIL_BYTES", 30_000)
    page = Page(large_run(200))
    kept = len(details(page))
    assert 0 < kept < 200
    told = re.search(r"(\d+) cases have their details in evidence/ alone", page.text("caption"))
    assert told
    assert int(told[1]) == 200 - kept


def test_islands_hold_hostile_text_as_data() -> None:
    good = case_record("a")
    hostile = good.model_copy(update={"case": good.case | {"scheme": HOSTILE, "source": HOSTILE}})
    page = Page(run_of(hostile))
    assert not page.attributes("img")
    island = re.search(r'<script type="application/json" id="facets">(.*?)</script>', page.source)
    assert island
    assert json.loads(island[1])["scheme"]["values"] == [HOSTILE.replace("\u202e", "\ufffd")]


def with_grid(record: CaseRecord) -> CaseRecord:
    grid = {"rows": 1, "columns": 2, "block": [1, 1], "levels": ["00ff"], "worst": [[0, 1, 1, 1]]}
    found = {"route": "ipc", "m": 17, "differing_elements": 1, "elements": 2, "grid": grid}
    found |= {"dtype": "bfloat16", "shape": [1, 2], "first_index": [0, 1], "equal_values": 0}
    found |= {"reference_hex": "803f", "candidate_hex": "813f", "reference_value": "1.0"}
    found |= {"candidate_value": "1.0078125", "code_distance": 1}
    check = record.checks[0].model_copy(update={"evidence": found})
    return record.model_copy(update={"checks": [check, *record.checks[1:]]})


def test_a_failing_case_says_route_tensor_difference_and_command() -> None:
    page = Page(run_of(with_grid(failing_record("broken"))))
    card = page.source[page.source.index('<div class="finding">') :]
    text = " ".join(re.sub(r"<[^>]+>", " ", card).split())
    for words in (
        "outputs_exact ✗ BYTES",
        "Route ipc",
        "Tensor output at M = 17",
        "1 of 2 elements (50.00%) of bfloat16 [1, 2]",
        "[0, 1] 0x803f = 1.0 0x813f = 1.0078125 1",
        "test_outputs_exact[broken]",
    ):
        assert words in text
    assert len(page.attributes("img")) == 1


def test_many_failures_are_grouped_and_capped_and_the_cut_is_told() -> None:
    page = Page(run_of(*(with_grid(failing_record(f"broken-{n:02}")) for n in range(60))))
    assert len(page.attributes("img")) == 50
    assert "on ipc: 60 cases" in page.text()
    assert "10 more cases failed" in page.text()
    assert "and 57 more" in page.text()


def test_the_finding_starts_at_the_check_nearest_to_the_cause() -> None:
    record = failing_record("broken")
    moved = CheckRecord(
        name="pointers_shared",
        verdict=Outcome.NOT_SHARED,
        detail="The weight is not where the manifest says.",
        evidence={"route": "ipc", "tensor": "model.layers.0.qkv_proj.weight"},
    )
    checks = [moved if check.name == moved.name else check for check in record.checks]
    text = Page(run_of(record.model_copy(update={"checks": checks}))).text()
    assert "✗ NOT_SHARED pointers_shared on ipc" in text
    assert "outputs_exact BYTES" in text


def test_a_whole_model_is_shown_in_full_before_layers() -> None:
    layers = [case_record(name) for name in ("a-layer", "b-layer")]
    model = case_record("z-model")
    model = model.model_copy(update={"case": model.case | {"projection": "model"}})
    page = render_html(run_of(*layers, model))
    shown = page[page.index('id="examples"') :]
    assert 0 <= shown.find("z-model") < shown.find("a-layer")
