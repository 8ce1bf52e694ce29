"""What is wrong with a case, for a reader who has a minute: which route, which tensor, how it differs."""

from dataclasses import dataclass
from typing import Any

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import CheckRecord

from .text import scalar
from .view import CaseView

_SPECIAL = ("examples", "grid", "worst", "first_index", "equal_values", "nan", "inf", "bytes")
_ELEMENT = ("reference_hex", "candidate_hex", "reference_value", "candidate_value", "code_distance")


@dataclass(frozen=True, slots=True)
class Element:
    """One differing element, as text."""

    index: str
    expected: str
    found: str
    apart: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The check that tells most, in the words of a reader."""

    check: str
    verdict: Outcome
    detail: str
    route: str
    """Empty where the evidence names none."""
    tensor: str
    difference: list[str]
    """Sentences."""
    elements: list[Element]
    grid: dict[str, Any] | None
    figures: dict[str, Any]
    """What else the evidence holds."""

    @property
    def reason(self) -> tuple[str, str, str, str]:
        """Equal for cases that fail for one cause, as far as can be seen."""
        return (self.verdict.value, self.check, self.route, self.tensor.rpartition(".")[2])


def finding_of(case: CaseView) -> Finding:
    """Of a case that does not hold."""
    cause = case.record.cause if case.record else None
    if cause is None:
        return Finding("", case.verdict, case.reason, _failing_route(case), "", [], [], None, {})
    return _of_check(case, cause)


def _of_check(case: CaseView, cause: CheckRecord) -> Finding:
    evidence = cause.evidence
    shown = {*_SPECIAL, *_ELEMENT, "route", "tensor", "m"}
    if "differing_elements" in evidence:
        shown |= {"differing_elements", "elements", "dtype", "shape", "kind"}
    return Finding(
        check=cause.name,
        verdict=cause.verdict,
        detail=cause.detail,
        route=str(evidence.get("route") or _failing_route(case)),
        tensor=_tensor(evidence),
        difference=_sentences(evidence),
        elements=_elements(evidence),
        grid=evidence.get("grid"),
        figures={name: value for name, value in evidence.items() if name not in shown},
    )


def _failing_route(case: CaseView) -> str:
    """The first route that did not end well, where no check names one."""
    failing = (name for name, found in case.verdicts.items() if found.word is not Outcome.PASS)
    return next(failing, "")


def _tensor(evidence: dict[str, Any]) -> str:
    if "tensor" in evidence:
        return str(evidence["tensor"])
    if "tensors" in evidence:
        return ", ".join(str(name) for name in evidence["tensors"])
    return f"output at M = {evidence['m']}" if "m" in evidence else ""


def _sentences(evidence: dict[str, Any]) -> list[str]:
    if "differing_elements" not in evidence:
        return []
    differing, of = int(evidence["differing_elements"]), int(evidence["elements"])
    kind = f"{evidence.get('dtype', '')} {scalar(evidence.get('shape', ''))}".strip()
    sentences = [f"{differing:,} of {of:,} elements ({differing / of:.2%}) of {kind or 'the tensor'}"]
    if evidence.get("equal_values"):
        sentences.append(f"{evidence['equal_values']:,} of them are equal as values (+0 and −0)")
    distance = evidence.get("worst", {}).get("code_distance")
    if distance is not None:
        sentences.append(f"at most {distance:,} codes apart")
    for name, said in (("nan", "NaN"), ("inf", "infinite")):
        counts = evidence.get(name, [0, 0])
        if any(counts):
            sentences.append(f"{said} among them: {counts[0]:,} expected, {counts[1]:,} found")
    return sentences


def _elements(evidence: dict[str, Any]) -> list[Element]:
    if "first_index" not in evidence:
        return []
    first = {"index": evidence["first_index"], **{name: evidence.get(name) for name in _ELEMENT}}
    listed = [_element(found) for found in evidence.get("examples") or [first]]
    worst = evidence.get("worst")
    if worst and all(worst["index"] != found["index"] for found in evidence.get("examples", [])):
        listed.append(_element(worst, " (worst)"))
    return listed


def _element(found: dict[str, Any], note: str = "") -> Element:
    distance = found.get("code_distance")
    return Element(
        index=scalar(found["index"]) + note,
        expected=f"0x{found['reference_hex']} = {found['reference_value']}",
        found=f"0x{found['candidate_hex']} = {found['candidate_value']}",
        apart="NaN" if distance is None else f"{distance:,}",
    )
