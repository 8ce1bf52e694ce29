"""`loadproof verify report.html`: the page beside its run, and alone by the evidence that it carries."""

import base64
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadproof.harness.chain import cases_link, digest, facts_digests, head_digest, sealed
from loadproof.harness.record import CaseRecord, RunRecord
from loadproof.reports import embedded
from loadproof.reports.embedded import EMBEDDED, PRIVATE, TOO_LARGE, UNSEALED
from loadproof.reports.html import render_html
from loadproof.reports.load import load_run
from loadproof.reports.verify_page import Page

from .sealed_runs import complaints, head_of, run_command, write_run
from .test_report_samples import case_record, failing_record, run_of

IDS = ("a-memfd", "b-memfd", "c-memfd")
Documents = list[dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", [case_record(case_id) for case_id in IDS])


def render(run: Path, page: Path) -> Path:
    page.write_text(render_html(load_run(run)))
    return page


@pytest.fixture
def alone(run: Path, tmp_path: Path) -> Path:
    """The run's page, in another folder than its evidence."""
    (tmp_path / "mail").mkdir()
    return render(run, tmp_path / "mail" / "report.html")


def island_of(page: Path) -> str:
    island = Page.read(page).evidence
    assert island is not None
    return island


def documents(page: Path) -> Documents:
    """`run.json` and the cases, as the page carries them."""
    return [json.loads(line) for line in lzma.decompress(base64.b64decode(island_of(page))).splitlines()]


def embed_anew(page: Path, changed: Documents) -> None:
    text = "".join(f"{json.dumps(document)}\n" for document in changed)
    packed = base64.b64encode(lzma.compress(text.encode())).decode()
    page.write_text(page.read_text().replace(island_of(page), packed))


def test_page_beside_its_evidence_is_verified(run: Path) -> None:
    assert run_command("verify", render(run, run / "report.html")).status == 0


def test_page_alone_is_verified_by_the_evidence_in_it(run: Path, alone: Path) -> None:
    shutil.rmtree(run)
    ended = run_command("verify", alone)
    assert (ended.status, ended.stderr) == (0, "")
    assert "INTACT  EQUIVALENT" in ended.stdout
    assert "3 cases" in ended.stdout
    assert "self-reported, not attested" in ended.stdout
    assert EMBEDDED in alone.read_text()


def test_page_of_a_run_that_is_not_equivalent_is_intact_with_status_1(tmp_path: Path) -> None:
    failing = failing_record("a-memfd")
    crashed = failing.routes["ipc-repeat"].model_copy(update={"stderr_tail": "Segmentation fault"})
    failing = failing.model_copy(update={"routes": failing.routes | {"ipc-repeat": crashed}})
    run = write_run(tmp_path / "run", [failing, case_record("b-memfd")], missing=("c-memfd",))
    ended = run_command("verify", render(run, tmp_path / "report.html"))
    assert (ended.status, ended.stderr) == (1, "")
    assert "INTACT  NOT EQUIVALENT" in ended.stdout


def test_page_alone_is_held_against_the_published_head(run: Path, alone: Path) -> None:
    ended = run_command("verify", alone, "--head", head_of(run))
    assert ended.status == 0
    assert "The head is the published one" in ended.stdout
    assert complaints(alone, "--head", "0" * 64)[0].startswith(
        "head of the chain: expected the published 000"
    )


@pytest.mark.parametrize("beside", [True, False], ids=["beside-its-run", "alone"])
def test_changed_page_is_named_with_its_line(run: Path, alone: Path, beside: bool) -> None:
    page = Path(shutil.copy(alone, run / "report.html")) if beside else alone
    text = page.read_text()
    line = text[: text.index("VERIFIED 3/3")].count("\n") + 1
    page.write_text(text.replace("VERIFIED 3/3", "VERIFIED 4/4", 1))
    (complaint,) = complaints(page)
    assert complaint.startswith(f"report.html line {line}: expected the page that this evidence gives")
    assert "3/3" in complaint.split("found")[0]
    assert "4/4" in complaint.split("found")[1]
    page.write_text(text.replace(f'"head":"{head_of(run)}"', f'"head":"{"0" * 64}"'))
    assert complaints(page) == [
        f"report.html: expected the page of head {head_of(run)}, found the page of head {'0' * 64}"
    ]
    page.write_text(text + "<p>more</p>")
    assert "more" in complaints(page)[0].split("found")[1]


def figure(documents: Documents) -> None:
    documents[2]["duration_ms"] += 1


def output(documents: Documents) -> None:
    documents[2]["routes"]["ipc"]["outputs"][0]["sha256"] = "0" * 64


def verdict(documents: Documents) -> None:
    documents[0]["verdict"] = "INCOMPLETE"


def case_left_out(documents: Documents) -> None:
    del documents[2]


def another_schema(documents: Documents) -> None:
    documents[0]["schema_version"] = 2


def no_chain(documents: Documents) -> None:
    documents[0]["chain"] = None


@pytest.mark.parametrize(
    ("change", "blamed"),
    [
        (figure, "evidence.jsonl line 2: expected sha256"),
        (output, "evidence.jsonl line 2: expected sha256"),
        (verdict, "run.json: verdict: expected sha256"),
        (case_left_out, "evidence.jsonl: expected the evidence of b-memfd, found none"),
        (another_schema, "run.json: expected schema_version 1, found 2"),
        (no_chain, "run.json: expected a digest chain, found none"),
    ],
)
def test_one_change_in_the_embedded_evidence_is_named(
    alone: Path, change: Callable[[Documents], None], blamed: str
) -> None:
    carried = documents(alone)
    change(carried)
    embed_anew(alone, carried)
    (complaint,) = complaints(alone)
    assert complaint.startswith(f"report.html, embedded {blamed}")


def test_changed_case_is_named_by_its_id(alone: Path) -> None:
    carried = documents(alone)
    figure(carried)
    embed_anew(alone, carried)
    assert complaints(alone)[0].endswith("of b-memfd")


def test_evidence_packed_by_another_is_not_the_page_that_it_gives(alone: Path) -> None:
    embed_anew(alone, documents(alone))
    (complaint,) = complaints(alone)
    assert "expected the page that this evidence gives" in complaint


def test_evidence_that_was_rewritten_and_sealed_anew_no_longer_fits_the_page(alone: Path) -> None:
    first, *others = documents(alone)
    cases = [CaseRecord.model_validate(each | {"duration_ms": 1.0}) for each in others]
    forged = sealed(RunRecord.model_validate(first), cases)
    embed_anew(alone, [json.loads(each.model_dump_json()) for each in (forged, *cases)])
    assert forged.chain is not None
    (complaint,) = complaints(alone)
    assert complaint.startswith(f"report.html: expected the page of head {forged.chain.head}")


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda island: island[:-8], id="cut-short"),
        pytest.param(lambda island: "!" + island[1:], id="not-base64"),
        pytest.param(lambda island: "AAAA" + island[4:], id="not-xz"),
        pytest.param(lambda island: island[:80] + island[84:88] + island[84:], id="corrupt"),
        pytest.param(lambda island: "", id="empty"),
    ],
)
def test_island_that_cannot_be_read_is_named(alone: Path, broken: Callable[[str], str]) -> None:
    island = island_of(alone)
    alone.write_text(alone.read_text().replace(island, broken(island)))
    (complaint,) = complaints(alone)
    assert complaint.startswith("report.html, embedded evidence: expected xz in base64")


def test_page_cannot_fill_the_memory_of_who_verifies_it(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(lzma.decompress(base64.b64decode(island_of(alone))))
    monkeypatch.setattr(embedded, "UNPACKED_BYTES", size - 1)
    (complaint,) = complaints(alone)
    assert f"found cut short, or more than {size - 1} bytes" in complaint
    monkeypatch.setattr(embedded, "UNPACKED_BYTES", size)
    assert run_command("verify", alone).status == 0
    monkeypatch.setattr(embedded, "UNPACKER_BYTES", 10_000)
    assert "Memory usage limit exceeded" in complaints(alone)[0]


def test_two_islands_are_refused(alone: Path) -> None:
    island = f'<script type="text/plain" id="embedded-evidence">{island_of(alone)}</script>'
    alone.write_text(alone.read_text().replace(island, island * 2))
    assert "expected one embedded-evidence, found 2 of them" in complaints(alone)[0]


def test_evidence_that_is_too_large_stays_outside_and_the_page_says_so(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound, value in {"CASES": 2, "PACKED_BYTES": 500, "UNPACKED_BYTES": 500}.items():
        with monkeypatch.context() as patch:
            patch.setattr(embedded, bound, value)
            page = render(run, tmp_path / "report.html")
            assert Page.read(page).evidence is None
            assert TOO_LARGE in page.read_text()
            assert "expected evidence in the page, run.json beside it, or --head" in complaints(page)[0]
            ended = run_command("verify", page, "--head", head_of(run))
            assert ended.status == 1
            assert "page's own word" in ended.stdout
            assert complaints(page, "--head", "0" * 64)[0].startswith("head of the chain")
            assert run_command("verify", render(run, run / "report.html")).status == 0


def test_evidence_that_names_a_home_folder_stays_outside(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [case_record("a-memfd", checkpoint={"origin": "/home/ada/model"})])
    page = render(run, tmp_path / "report.html")
    assert Page.read(page).evidence is None
    assert PRIVATE in page.read_text()


def test_run_that_was_never_sealed_has_nothing_to_embed(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_html(run_of(case_record())))
    assert Page.read(page).evidence is None
    assert UNSEALED in page.read_text()


def test_page_of_older_evidence_with_fewer_fields_is_verified(run: Path, tmp_path: Path) -> None:
    cases = [json.loads(line) for line in (run / "evidence.jsonl").read_text().splitlines()]
    for case in cases:
        del case["daemon"]
    record = json.loads((run / "run.json").read_text())
    for entry, case in zip(record["cases"], cases, strict=True):
        entry["sha256"] = digest(case)
    link, facts = cases_link(record["cases"]), facts_digests(record)
    record["chain"] = {"facts": facts, "cases": link, "head": head_digest(link, facts)}
    older = tmp_path / "older"
    older.mkdir()
    (older / "run.json").write_text(json.dumps(record))
    (older / "evidence.jsonl").write_text("".join(f"{json.dumps(case)}\n" for case in cases))
    assert run_command("verify", render(older, tmp_path / "report.html")).status == 0
