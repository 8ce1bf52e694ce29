"""`loadproof compare`: what became of each case between two runs. Pure functions of the evidence."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import OutputRecord, RouteRecord, Verdict

from .load import Run
from .text import flatten, scalar
from .view import CaseView, cases_in_order


class Status(StrEnum):
    """What became of a case; in the order in which it is told."""

    BROKEN = "broken"
    """Held and holds no longer, was verified and is now refused, or is new and does not hold."""
    STILL_FAILING = "still failing"
    FIXED = "fixed"
    REFUSED_TO_VERIFIED = "refused → verified"
    NEW = "new"
    GONE = "gone"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class OutputChange:
    """One output or processed tensor whose bytes differ between the runs."""

    route: str
    name: str
    """Which of the route's: `m=17`, of a model also its prompt and step, or `processed weight`."""
    before: str
    """sha256."""
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseChange:
    """One case in both runs, or in one of them."""

    id: str
    status: Status
    before: Outcome | None
    """None where the run did not plan the case."""
    after: Outcome | None
    reason: str
    """Why it is broken or fails; empty otherwise."""
    compared: int
    """Digests of outputs and processed tensors that both runs have."""
    outputs: tuple[OutputChange, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact of the environment that differs; `none` where a run does not state it."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs, held side by side."""

    before: str
    """Run id."""
    after: str
    environment: tuple[Fact, ...]
    incomparable: tuple[Fact, ...]
    """Facts because of which equal bytes are not to be expected; empty where they are."""
    cases: tuple[CaseChange, ...]
    verdicts: tuple[Verdict, Verdict]
    """Of the runs themselves, before and after."""

    def of(self, status: Status) -> list[CaseChange]:
        return [case for case in self.cases if case.status is status]

    @property
    def counts(self) -> dict[Status, int]:
        return {status: len(self.of(status)) for status in Status}

    @property
    def compared(self) -> int:
        """Digests that both runs have."""
        return sum(case.compared for case in self.cases)

    @property
    def differing(self) -> int:
        """Of those, the ones that are not equal."""
        return sum(len(case.outputs) for case in self.cases)

    @property
    def broken(self) -> bool:
        """A case is, or the run is EQUIVALENT no longer: a twin or a message, which are no case, tell why."""
        return bool(self.of(Status.BROKEN)) or self.lost_verdict

    @property
    def lost_verdict(self) -> bool:
        before, after = self.verdicts
        return before is Verdict.EQUIVALENT is not after

    @property
    def disjoint(self) -> bool:
        """No case is in both runs, so that nothing was compared."""
        return all(case.before is None or case.after is None for case in self.cases)

    def to_json(self) -> dict[str, Any]:
        return {"broken": self.broken, "counts": self.counts} | asdict(self)


def compare(before: Run, after: Run) -> Comparison:
    """Hold two runs side by side, case by case."""
    first = {case.id: case for case in cases_in_order(before)}
    second = {case.id: case for case in cases_in_order(after)}
    cases = [_change(first.get(case_id), second.get(case_id)) for case_id in first | second]
    order = list(Status)
    return Comparison(
        before=before.record.run_id,
        after=after.record.run_id,
        environment=tuple(_differing(_environment(before), _environment(after))),
        incomparable=tuple(_incomparable(_deciding(before), _deciding(after))),
        cases=tuple(sorted(cases, key=lambda case: order.index(case.status))),
        verdicts=(before.record.verdict, after.record.verdict),
    )


def _change(before: CaseView | None, after: CaseView | None) -> CaseChange:
    one = after or before
    assert one is not None
    status = _status(before, after)
    reason = after.reason if after and not after.holds else ""
    if status is Status.BROKEN and not reason:
        reason = "Verified before; now it is expected to be refused."
    compared = list(_compared(before, after)) if before and after else []
    return CaseChange(
        id=one.id,
        status=status,
        before=before.verdict if before else None,
        after=after.verdict if after else None,
        reason=reason,
        compared=len(compared),
        outputs=tuple(each for each in compared if each.before != each.after),
    )


def _status(before: CaseView | None, after: CaseView | None) -> Status:
    if after is None:
        return Status.GONE
    if before is None:
        return Status.NEW if after.holds else Status.BROKEN
    if not after.holds:
        return Status.BROKEN if before.holds else Status.STILL_FAILING
    if not before.holds:
        return Status.FIXED
    was_refused, is_refused = (case.verdict is Outcome.REFUSED for case in (before, after))
    if was_refused == is_refused:
        return Status.UNCHANGED
    return Status.BROKEN if is_refused else Status.REFUSED_TO_VERIFIED


def _compared(before: CaseView, after: CaseView) -> Iterator[OutputChange]:
    """What both runs have a digest of, equal or not."""
    for route, now in after.routes.items():
        then = _digests(before.routes[route])
        for name, digest in _digests(now).items():
            if was := then.get(name):
                yield OutputChange(route=route, name=name, before=was, after=digest)


def _digests(route: RouteRecord | None) -> dict[str, str]:
    if route is None:
        return {}
    outputs = {_name(output): output.sha256 for output in route.outputs}
    return outputs | {f"processed {each.name}": each.sha256 for each in route.processed}


def _name(output: OutputRecord) -> str:
    within = "" if output.prompt is None else f"prompt {output.prompt} step {output.step} "
    return f"{within}m={output.m}"


def _differing(before: dict[str, str], after: dict[str, str]) -> Iterator[Fact]:
    for name in before | after:
        was, now = before.get(name, "none"), after.get(name, "none")
        if was != now:
            yield Fact(name, was, now)


def _incomparable(before: dict[str, str], after: dict[str, str]) -> Iterator[Fact]:
    # A kernel that one of the runs has not is no other build of it: its cases are new, or gone.
    return (fact for fact in _differing(before, after) if fact.name in before.keys() & after.keys())


def _environment(run: Run) -> dict[str, str]:
    return dict(flatten(run.record.environment)) | _deciding(run)


def _deciding(run: Run) -> dict[str, str]:
    """What decides the bits of an FP8 product: device, driver, and the build of each kernel."""
    gpu: Any = run.record.environment.get("gpu")
    gpu = gpu if isinstance(gpu, dict) else {}
    facts = {"scope": run.record.scope} | {
        f"gpu.{name}": scalar(gpu.get(name)) for name in ("name", "driver")
    }
    builds: dict[str, set[str]] = {}
    for case in run.cases:
        key = case.daemon.key
        if kernel := key.get("kernel"):
            builds.setdefault(f"kernel.{kernel}", set()).add(str(key.get("kernel_build")))
    return facts | {name: ", ".join(sorted(found)) for name, found in sorted(builds.items())}
