"""What is wrong with a case, for a reader who has a minute: which route, which tensor, how it differs."""

from dataclasses import dataclass
from typing import Any

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import CheckRecord

from .text import scalar
from .view import CaseView

# An engine that did not run, or took another way, explains what it computed; wrong weights, their product.
_NEAREST = {
    name: at
    for at, name in enumerate(
        (
            "capability",
            "route_witnessed",
            "kernel_witnessed",
            "layout_restored",
            "pointers_shared",
            "contents_preserved",
            "processed_exact",
            "activation_exact",
            "gemm_bounded",
            "outputs_exact",
        )
    )
}
_SHOWN = {"route", "tensor", "tensors", "m"}
_OF_A_MISMATCH = {
    *("bytes", "dtype", "shape", "kind", "elements", "differing_elements", "equal_values", "nan", "inf"),
    *("examples", "worst", "grid", "first_index", "first_divergence"),
    *("reference_hex", "candidate_hex", "reference_value", "candidate_value", "code_distance"),
}
_ELEMENT = ("reference_hex", "candidate_hex", "reference_value", "candidate_value", "code_distance")


@dataclass(frozen=True, slots=True)
class Element:
    """One differing element, as text."""

    index: str
    expected: str
    found: str
    apart: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How one tensor differs."""

    tensor: str
    sentences: list[str]
    elements: list[Element]
    grid: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Finding:
    """The failing check that is nearest to the cause, in the words of a reader."""

    check: str
    verdict: Outcome
    detail: str
    route: str
    """Empty where none could be told."""
    tensor: str
    figures: dict[str, Any]
    """What the evidence of the check holds beside a mismatch."""
    mismatch: Mismatch | None
    """Of this check, or else of the next one that has compared tensors."""
    also: list[CheckRecord]
    """The other checks that failed."""

    @property
    def reason(self) -> tuple[str, str, str, str]:
        """Equal for cases that fail for one cause, as far as can be seen."""
        return (self.verdict.value, self.check, self.route, self.tensor.rpartition(".")[2])


def finding_of(case: CaseView) -> Finding:
    """Of a case that does not hold."""
    failed = sorted(case.failed_checks, key=lambda check: _NEAREST.get(check.name, len(_NEAREST)))
    if not failed:
        return Finding("", case.verdict, case.reason, _failing_route(case), "", {}, None, [])
    cause, *also = failed
    hidden = _SHOWN | _OF_A_MISMATCH if "differing_elements" in cause.evidence else _SHOWN
    return Finding(
        check=cause.name,
        verdict=cause.verdict,
        detail=cause.detail,
        route=str(cause.evidence.get("route") or _failing_route(case)),
        tensor=_tensor(cause.evidence),
        figures={name: value for name, value in cause.evidence.items() if name not in hidden},
        mismatch=next((_mismatch(c) for c in failed if "differing_elements" in c.evidence), None),
        also=also,
    )


def _mismatch(check: CheckRecord) -> Mismatch:
    evidence = check.evidence
    route = f" on {evidence['route']}" if "route" in evidence else ""
    return Mismatch(
        tensor=f"{_tensor(evidence) or 'tensor'}{route}",
        sentences=_sentences(evidence),
        elements=_elements(evidence),
        grid=evidence.get("grid"),
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
    differing, of = int(evidence["differing_elements"]), int(evidence["elements"])
    kind = f"{evidence.get('dtype', '')} {scalar(evidence.get('shape', ''))}".strip()
    sentences = [f"{differing:,} of {of:,} elements ({differing / of:.2%}) of {kind or 'the tensor'}"]
    if first := evidence.get("first_divergence"):
        at = f"{first['layer']} at step {first['step']} of prompt {first['prompt']}"
        sentences.append(f"the first module whose result differs: {at}")
    if evidence.get("equal_values"):
        sentences.append(f"{evidence['equal_values']:,} of them are equal as values (+0 and −0)")
    distance = evidence.get("worst", {}).get("code_distance")
    if distance is not None:
        sentences.append(f"at most {distance:,} code{'' if distance == 1 else 's'} apart")
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
