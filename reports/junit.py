"""The report as JUnit XML (xunit2) for continuous integration: one test case a check."""

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import RunRecord

from . import wording
from .load import Run
from .text import clean, flatten, one_line
from .view import CaseView, cases_in_order, device

SUITE = "loadproof"
_LONGEST = 4000
"""Characters of a message; the evidence holds it whole."""
_NOT_XML = re.compile("[\ufffe\uffff]")
"""What `clean` leaves and XML 1.0 forbids."""


def render_junit(run: Run) -> str:
    """The whole run as XML; a case that does not hold has at least one failure or error."""
    suites = Element("testsuites")
    suite = SubElement(suites, "testsuite", name=SUITE)
    _properties(suite, run)
    for case in cases_in_order(run):
        _case(suite, case)
    _outside_cases(suite, run.record)
    for name, found in (
        ("tests", "testcase"),
        ("failures", "testcase/failure"),
        ("errors", "testcase/error"),
    ):
        suite.set(name, str(len(suite.findall(found))))
    suite.set("skipped", "0")
    suite.set("time", f"{run.record.duration_s:.3f}")
    suite.set("timestamp", _attribute(run.record.started))
    ElementTree.indent(suites)
    text = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _properties(suite: Element, run: Run) -> None:
    facts = {
        "verdict": wording.headline(run.record),
        "device": device(run),
        "run": run.record.run_id,
        "evidence_sha256": run.sha256,
    }
    properties = SubElement(suite, "properties")
    for name, value in facts.items():
        SubElement(properties, "property", name=name, value=_attribute(value))


def _case(suite: Element, case: CaseView) -> None:
    if case.record is None:
        _ended(_testcase(suite, case.id, "evidence"), "error", case.verdict, case.reason)
        return
    failing = False
    for check in case.record.checks:
        element = _testcase(suite, case.id, check.name)
        if not case.holds and check.verdict is not Outcome.PASS:
            failing = True
            _ended(element, "failure", check.verdict, check.detail, _details(case, check.evidence))
    if case.holds and case.record.checks:
        return
    if not failing:
        # No check tells how the case ended: it was refused, it broke off, or it passed against expectation.
        element = _testcase(suite, case.id, "verdict")
        if not case.holds:
            _ended(element, "failure", case.verdict, case.reason, _details(case))


def _outside_cases(suite: Element, record: RunRecord) -> None:
    """A run that is INCOMPLETE by its messages, or for want of cases, must not look green."""
    messages = record.messages or ([] if record.cases else ["No case was planned."])
    if messages:
        _ended(_testcase(suite, SUITE, "run"), "error", Outcome.INCOMPLETE, "; ".join(messages))


def _testcase(suite: Element, classname: str, name: str) -> Element:
    return SubElement(suite, "testcase", classname=_attribute(classname), name=_attribute(name))


def _ended(element: Element, tag: str, outcome: Outcome, message: str, details: str = "") -> None:
    found = SubElement(element, tag, type=outcome.value, message=_attribute(_cut(message)))
    found.text = _inert(details) or None


def _details(case: CaseView, evidence: object = None) -> str:
    routes = [f"{name}: {outcome.value}" for name, outcome in case.outcomes.items()]
    facts = [f"{name}: {value}" for name, value in flatten(evidence)]
    return "\n".join([*routes, *facts, *([f"rerun: {case.rerun}"] if case.rerun else [])])


def _cut(message: str) -> str:
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST]}… [{len(message)} characters]"


def _attribute(text: str) -> str:
    return _inert(one_line(text))


def _inert(text: str) -> str:
    """Text without the characters that XML cannot hold; ElementTree escapes the rest."""
    return _NOT_XML.sub("\ufffd", clean(text))
