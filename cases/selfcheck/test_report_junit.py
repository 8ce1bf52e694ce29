"""The JUnit report: well-formed whatever the evidence holds, and green only where the run is."""

from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from loadproof.cases.selfcheck.test_report_samples import CHECKS, case_record, failing_record, run_of, store
from loadproof.harness.outcome import Outcome
from loadproof.harness.record import Verdict
from loadproof.reports.junit import render_junit
from loadproof.reports.load import Run, load_run
from loadproof.reports.write import write_reports

HOSTILE = "]]></failure><x a=\"'&\x00\x1b[31m\x08\x85\u202e\ud800\ufffe\uffff\r\n\tend"


def suite_of(run: Run) -> Element:
    """The one suite, parsed from the bytes that would be written."""
    suites = ElementTree.fromstring(render_junit(run).encode())
    assert suites.tag == "testsuites"
    (suite,) = suites
    return suite


def problems(suite: Element) -> list[tuple[str | None, str | None, str, str | None]]:
    """(classname, name, element, type) of all that is not green."""
    cases = suite.findall("testcase")
    return [(c.get("classname"), c.get("name"), found.tag, found.get("type")) for c in cases for found in c]


def test_each_check_is_a_test_of_its_case() -> None:
    suite = suite_of(run_of(case_record("a"), case_record("b")))
    found = [(c.get("classname"), c.get("name")) for c in suite.findall("testcase")]
    assert found == [(case, check) for case in "ab" for check in CHECKS]
    assert [suite.get(name) for name in ("name", "tests", "failures", "errors")] == [
        "loadproof",
        "10",
        "0",
        "0",
    ]
    verdict = suite.find("properties/property[@name='verdict']")
    assert verdict is not None
    assert verdict.get("value") == "EQUIVALENT · CPU DEFAULT ONLY"


def test_a_failed_check_is_a_failure_and_lost_evidence_an_error() -> None:
    suite = suite_of(run_of(failing_record("broken"), missing=("lost",)))
    assert problems(suite) == [
        ("broken", "outputs_exact", "failure", "BYTES"),
        ("lost", "evidence", "error", "INCOMPLETE"),
        ("loadproof", "run", "error", "INCOMPLETE"),
    ]
    assert (suite.get("failures"), suite.get("errors")) == ("1", "2")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "ipc differs from ordinary."
    assert "ipc-repeat: CRASHED" in str(failure.text)


def test_an_expected_refusal_is_green_and_an_unexpected_pass_is_not() -> None:
    expected = case_record("r").case | {"expected": "REFUSED"}
    refusal = case_record("r").checks[0].model_copy(update={"verdict": Outcome.REFUSED})
    refused = case_record("r", case=expected, verdict=Outcome.REFUSED, checks=[refusal])
    assert problems(suite_of(run_of(refused))) == []
    passed = run_of(case_record("r", case=expected), verdict=Verdict.NOT_EQUIVALENT)
    assert problems(suite_of(passed)) == [("r", "verdict", "failure", "PASS")]


def test_nothing_that_went_wrong_is_green() -> None:
    broke_off = case_record("b", verdict=Outcome.INFRA, checks=[])
    assert problems(suite_of(run_of(broke_off))) == [("b", "verdict", "failure", "INFRA")]
    stopped = run_of(case_record("a"), messages=["Interrupted."], verdict=Verdict.INCOMPLETE)
    assert problems(suite_of(stopped)) == [("loadproof", "run", "error", "INCOMPLETE")]
    assert problems(suite_of(run_of())) == [("loadproof", "run", "error", "INCOMPLETE")]


def test_hostile_text_is_inert() -> None:
    hostile = failing_record(HOSTILE)
    check = hostile.checks[0].model_copy(
        update={"detail": HOSTILE, "name": HOSTILE, "evidence": {HOSTILE: HOSTILE}}
    )
    hostile = hostile.model_copy(update={"checks": [check], "node_id": HOSTILE})
    plain = case_record(HOSTILE + "2")
    run = run_of(hostile, plain, missing=(HOSTILE + "3",), messages=[HOSTILE], started=HOSTILE)
    suite = suite_of(run)
    assert {element.tag for element in suite.iter()} == {
        "testsuite", "properties", "property", "testcase", "failure", "error"
    }  # fmt: skip
    text = render_junit(run)
    assert not set(text) & set("\x00\x08\x1b\x85\u202e\ud800\ufffe\uffff\r")
    first = suite.find("testcase")
    assert first is not None
    assert str(first.get("classname")).startswith("]]></failure><x a=\"'&\ufffd")


def test_a_run_folder_gets_it_beside_the_other_reports(tmp_path: Path) -> None:
    run = run_of(failing_record("broken"))
    write_reports(load_run(store(run, tmp_path)))
    assert (tmp_path / "junit.xml").read_text(encoding="utf-8") == render_junit(run)
