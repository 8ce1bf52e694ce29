"""Negative controls in a run's evidence: one that is not caught, or is lost, is never passed over."""

from collections.abc import Mapping

from loadproof.cases.selfcheck.test_report_samples import case_record, run_of
from loadproof.harness.controls import control_record
from loadproof.harness.defects import DEFECTS
from loadproof.harness.matrix import CONTROLS
from loadproof.harness.outcome import Outcome
from loadproof.harness.plan import Plan, summarise
from loadproof.harness.record import CheckRecord, ControlRecord, RunRecord, Verdict
from loadproof.reports.html import render_html


def said(name: str, verdict: Outcome) -> ControlRecord:
    check = CheckRecord(name=DEFECTS[name].caught_by, verdict=verdict, detail="So.", evidence={"bytes": 1})
    return control_record(name, case_record("control", checks=[check]))


def run_with(controls: Mapping[str, ControlRecord]) -> RunRecord:
    plan = Plan(run_id="r", started="now", cases={"a": Outcome.PASS}, controls=list(CONTROLS))
    return summarise(plan, {"a": case_record("a", run_id="r")}, [], controls=controls)


def test_a_run_whose_controls_were_all_caught_is_equivalent() -> None:
    record = run_with({name: said(name, DEFECTS[name].verdict) for name in CONTROLS})
    assert record.verdict is Verdict.EQUIVALENT
    assert [control.name for control in record.controls] == list(CONTROLS)
    assert all(control.plants.endswith(".") for control in record.controls)


def test_a_control_that_was_not_caught_takes_the_runs_verdict_away() -> None:
    caught = {name: said(name, DEFECTS[name].verdict) for name in CONTROLS}
    record = run_with(caught | {CONTROLS[1]: said(CONTROLS[1], Outcome.PASS)})
    assert record.verdict is Verdict.INCOMPLETE
    assert CONTROLS[1] in record.messages[0]


def test_a_control_that_left_nothing_takes_the_runs_verdict_away() -> None:
    record = run_with({name: said(name, DEFECTS[name].verdict) for name in CONTROLS[1:]})
    assert record.verdict is Verdict.INCOMPLETE
    assert f"{CONTROLS[0]} was planned and left nothing" in record.messages[0]


def test_the_report_shows_what_was_planted_and_what_caught_it() -> None:
    controls = [said(CONTROLS[0], DEFECTS[CONTROLS[0]].verdict), said(CONTROLS[1], Outcome.PASS)]
    page = render_html(run_of(case_record("a"), controls=controls))
    assert "Negative controls" in page
    # In its row, and in the Markdown.
    assert page.count("NOT CAUGHT") == 2
    assert controls[0].plants in page
