"""The Markdown report, the files of a run, and the command."""

import json
import re
from pathlib import Path

import pytest

from loadproof.cases.selfcheck.sealed_runs import write_run
from loadproof.cases.selfcheck.test_report_samples import case_record, failing_record, run_of, store
from loadproof.harness.outcome import Outcome
from loadproof.harness.record import CheckRecord, Counts, ErrorRecord, ModelRecord
from loadproof.reports import cli, wording
from loadproof.reports.hook import pytest_loadproof_run_written
from loadproof.reports.html import render_html
from loadproof.reports.markdown import LIMIT_BYTES, render_markdown
from loadproof.reports.view import cases_in_order
from loadproof.reports.wording import CLAIM, EXPECTED_REFUSALS, NON_CLAIMS

HOSTILE = "</details>```<img src=x onerror=alert(1)> | a | [x](javascript:1) @all\n# h"


def outside_code(markdown: str) -> str:
    return re.sub(r"^(`{3,})sh\n.*?^\1$", "", markdown, flags=re.DOTALL | re.MULTILINE)


def test_verdict_scope_and_non_claims_are_stated() -> None:
    markdown = render_markdown(run_of(case_record("a")))
    assert markdown.startswith("## loadproof: EQUIVALENT · CPU DEFAULT ONLY\n")
    assert "| Case | Ordinary | Fallback | IPC | IPC repeat | Output sha256 | Shared |" in markdown
    assert "./validate --loadproof-device cpu" in markdown
    assert all(line in markdown for line in NON_CLAIMS)


@pytest.mark.parametrize(
    ("verified", "refused", "claims"),
    [(2, 0, (CLAIM,)), (1, 1, (CLAIM, EXPECTED_REFUSALS)), (0, 2, (EXPECTED_REFUSALS,))],
)
def test_only_what_was_shown_is_claimed(verified: int, refused: int, claims: tuple[str, ...]) -> None:
    counts = Counts(planned=2, verified=verified, refused_as_expected=refused, failed=0, incomplete=0)
    run = run_of(case_record("a"), case_record("b"), counts=counts)
    assert wording.claims(run.record) == claims
    assert f"**VERIFIED {verified}/{verified}**" in render_markdown(run)
    assert f"refused as expected {refused}" in render_markdown(run)


def test_each_check_has_its_exact_result_and_command() -> None:
    lines = render_markdown(run_of(case_record("a"), failing_record("b"), missing=("c",))).splitlines()
    at = lines.index("| Check | Exact result | Command |")
    table = dict(line.strip("| ").split(" | ", 1) for line in lines[at + 2 : at + 7])
    assert table["outputs&#95;exact"].startswith(
        "1/3 PASS, 1,632 bytes compared, 1 BYTES, 1 INCOMPLETE | `python"
    )
    assert "[b]" in table["outputs&#95;exact"]
    assert table["pointers&#95;shared"].startswith("2/3 PASS, 3,264 bytes compared, 1 INCOMPLETE | ")


def test_a_check_is_due_of_its_kind_of_case() -> None:
    """A whole model has no `gemm_bounded`: that is no lack, while a layer without one is INCOMPLETE."""
    gemm = CheckRecord(
        name="gemm_bounded", verdict=Outcome.PASS, detail="Within bounds.", evidence={"outputs": 7}
    )
    layer, bare, model = (case_record(name) for name in ("layer", "bare", "model"))
    layer = layer.model_copy(update={"checks": [*layer.checks, gemm]})
    model = model.model_copy(update={"case": model.case | {"projection": "model"}})
    assert "| gemm&#95;bounded | 1/1 PASS, 7 outputs compared |" in render_markdown(run_of(layer, model))
    short = render_markdown(run_of(layer, bare, model))
    assert "| gemm&#95;bounded | 1/2 PASS, 7 outputs compared, 1 INCOMPLETE |" in short
    assert "| outputs&#95;exact | 3/3 PASS, " in short


@pytest.mark.parametrize(
    ("whole", "interpreter", "given"),
    [
        (".venv/bin/python -m pytest cases/layers -n 2", ".venv/bin/python", ""),
        ("python -m pytest --loadproof-model 'my model' -n 2", "python", " --loadproof-model 'my model'"),
        (".venv/bin/python -m pytest --loadproof-model=m", ".venv/bin/python", " --loadproof-model=m"),
        ("rm -rf /; x -m pytest", "python", ""),
        ("", "python", ""),
    ],
)
def test_a_case_is_repeated_as_the_run_was_started(whole: str, interpreter: str, given: str) -> None:
    (case,) = cases_in_order(run_of(case_record("a"), commands={"run": whole}))
    assert case.rerun == f'{interpreter} -m pytest "{case_record("a").node_id}"{given}'


def test_a_case_of_an_installed_package_is_repeated_by_its_module() -> None:
    node = "loadproof.cases.models.test_models::TestRealModels::test_x[a-b]"
    record = case_record("a").model_copy(update={"node_id": node})
    whole = "python -m pytest --pyargs loadproof.cases.models --loadproof-model=m -q"
    (case,) = cases_in_order(run_of(record, commands={"run": whole}))
    assert case.rerun == f'python -m pytest --pyargs "{node}" --loadproof-model=m'


def test_what_a_models_proof_leaves_out_is_said_once() -> None:
    model = ModelRecord(
        architecture="llama",
        decoder_layers=1,
        fused_layers=4,
        plain_tensors=3,
        weight_bytes=1,
        tokenizer="none: fixed token ids stand for the prompts",
        prompts=[None],
        prompt_ids=[[1]],
        points=["model.norm"],
        notes=["Scales of the cache are left out."],
    )
    cases = [case_record(name).model_copy(update={"model": model}) for name in "ab"]
    markdown = render_markdown(run_of(*cases, case_record("c")))
    assert "\n- Scales of the cache are left out. (model cases: 2)\n" in markdown
    assert "\n- Tokenizer: none: fixed token ids stand for the prompts. (model cases: 2)\n" in markdown
    assert "Tokenizer" not in render_markdown(run_of(case_record("c")))


def test_a_good_run_has_one_command() -> None:
    markdown = render_markdown(run_of(case_record("a")))
    assert (
        "| outputs&#95;exact | 1/1 PASS, 1,632 bytes compared | `./validate --loadproof-device cpu` |"
        in markdown
    )
    assert "<details><summary>1 cases" not in markdown
    assert "<details><summary>1 case</summary>" in markdown


def test_failures_come_first_and_losses_are_shown() -> None:
    markdown = render_markdown(run_of(case_record("good"), failing_record("broken"), missing=("lost",)))
    table = markdown.partition("| Case |")[2].splitlines()
    rows = [line for line in table if line.startswith("|")]
    assert [row.split()[1] for row in rows[1:]] == ["broken", "lost", "good"]
    assert "**BYTES**" in rows[1]
    assert "| ✓ PASS | ✓ PASS | ✗ BYTES | ✗ CRASHED |" in rows[1]
    assert "differs: ipc" in rows[1]
    assert rows[2].count("… INCOMPLETE") == 5


def test_hostile_text_is_inert() -> None:
    run = run_of(failing_record(HOSTILE), messages=[HOSTILE], environment={"host": {HOSTILE: HOSTILE}})
    markdown = render_markdown(run)
    prose = outside_code(markdown)
    assert "<img" not in prose
    assert "](" not in prose
    assert prose.count("</details>") == 2
    assert prose.count("<details>") + prose.count("<details open>") == 2
    rows = [line for line in prose.splitlines() if line.startswith("|")]
    # Check, result and command; then a case, its routes, its outputs and whether they are shared.
    assert {row.replace("\\|", "").count("|") for row in rows} == {4, 8}
    assert "\n# h" not in markdown


def test_a_long_run_is_cut_and_says_so() -> None:
    cases = [case_record(f"case-{n:04}-{'x' * 150}") for n in range(400)]
    environment = {"host": {f"fact-{n}": "<" * 150 for n in range(99)}}
    markdown = render_markdown(run_of(*cases, environment=environment, messages=["<" * 300] * 99))
    assert len(markdown.encode()) <= LIMIT_BYTES
    for what in ("cases", "facts", "messages"):
        assert re.search(rf"\d+ more {what} in report\.html", markdown)


@pytest.mark.parametrize("limit", [LIMIT_BYTES, 900_000])
def test_long_commands_and_names_do_not_break_the_limit(limit: int) -> None:
    """A selection may name every case, and each failing check repeats its command."""
    checks = [
        CheckRecord(name=f"{n}{'|' * 500}", verdict=Outcome.BYTES, detail="x" * 100_000) for n in range(200)
    ]
    failing = failing_record("b").model_copy(update={"checks": checks, "node_id": "n" * 100_000})
    run = run_of(failing, commands={"run": f"./validate -k '{'case or ' * 20_000}'"}, messages=["|" * 99_999])
    text = render_markdown(run, limit)
    assert len(text.encode()) <= limit
    assert "more checks in report.html" in text
    assert "too long for a table" in text
    assert "| b **BYTES** |" in text


def test_the_hook_leaves_the_three_reports_and_no_other_file(tmp_path: Path) -> None:
    run = run_of(case_record("a"))
    pytest_loadproof_run_written(store(run, tmp_path))
    assert (tmp_path / "report.html").read_text() == render_html(run)
    assert (tmp_path / "validation.md").read_text() == render_markdown(run)
    assert {p.name for p in tmp_path.iterdir()} == {
        "run.json",
        "evidence",
        "report.html",
        "validation.md",
        "junit.xml",
    }


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["loadproof", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_render_writes_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = store(run_of(failing_record("b")), tmp_path / "run")
    assert command(monkeypatch, "render", folder, "-o", tmp_path / "out.html") == 0
    assert "NOT EQUIVALENT" in (tmp_path / "out.html").read_text()
    assert not (folder / "report.html").exists()


def test_render_writes_markdown_where_it_is_told_and_prints_it_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = store(run_of(failing_record("b")), tmp_path / "run")
    assert command(monkeypatch, "render", folder, "--markdown", "-o", tmp_path / "out.md") == 0
    assert capsys.readouterr().out == ""
    assert command(monkeypatch, "render", folder, "--markdown") == 0
    assert capsys.readouterr().out == (tmp_path / "out.md").read_text()
    assert (tmp_path / "out.md").read_text().startswith("## loadproof: NOT EQUIVALENT")


def test_render_says_in_which_folder_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", [failing_record("b")])
    assert command(monkeypatch, "render", folder / "evidence.jsonl") == 0
    assert capsys.readouterr().err == f"Wrote the reports in {folder}\n"
    assert (folder / "report.html").exists()


def test_show_prints_one_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = store(run_of(case_record("good"), failing_record("broken")), tmp_path / "run")
    assert command(monkeypatch, "show", "good", "--run", folder) == 0
    assert capsys.readouterr().out.startswith("✓ PASS  good")
    assert command(monkeypatch, "show", "brok", "--run", folder, "--json") == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "BYTES"


def test_show_sends_nothing_to_the_terminal_but_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sly = "\x1b]0;title\x07\n::add-mask::PASS\u202e"
    good = case_record("sly")
    lost = good.routes["ipc"].model_copy(
        update={"route_taken": sly, "error": ErrorRecord(type=sly, message=sly)}
    )
    outputs = [output.model_copy(update={"sha256": sly}) for output in good.routes["ordinary"].outputs[:1]]
    ordinary = good.routes["ordinary"].model_copy(update={"outputs": outputs})
    checks = [check.model_copy(update={"name": sly, "detail": sly}) for check in good.checks]
    routes = good.routes | {"ipc": lost, "ordinary": ordinary}
    folder = store(run_of(good.model_copy(update={"routes": routes, "checks": checks})), tmp_path / "run")
    command(monkeypatch, "show", "sly", "--run", folder)
    told = capsys.readouterr().out
    assert "add-mask" in told
    assert not set(told) & set("\x1b\x07\u202e")
    assert "\n::" not in told


def test_an_unusable_input_is_one_line_and_status_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "render", tmp_path / "nowhere") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "run.json" in captured.err


def test_doctor_prints_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status = command(monkeypatch, "doctor", "--json")
    facts = json.loads(capsys.readouterr().out)
    assert status == (0 if facts["ok"] else 1)
    assert facts["device"] in ("cpu", "cuda")
