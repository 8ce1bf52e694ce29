"""What a run set out to show, held against the evidence it has."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from .outcome import Outcome
from .record import (
    CaseEntry,
    CaseRecord,
    ControlRecord,
    Counts,
    RunRecord,
    Scope,
    ShardRecord,
    Verdict,
)

PLAN_FILE = "planned.json"
"""In a run's folder from the selection of its cases until the run has ended in order."""

TWIN_FILE = "twin.jsonl"
"""What came of the in-process twins, in a run's folder; they are no cases."""


class Plan(BaseModel):
    """The selected cases, written down before any of them runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: str
    started: str
    """UTC, ISO 8601."""
    cases: dict[str, Outcome]
    """Case id to expected outcome, in order."""
    scope: Scope = "cpu-default"
    controls: list[str] = []
    """The negative controls that run beside the cases."""
    shard: ShardRecord | None = None
    """The part of a larger plan that these cases are."""


def holds_a_run(folder: Path) -> bool:
    """Whether anything of a run is there: what is written beside it would be taken for its own."""
    return any((folder / name).exists() for name in ("evidence", "run.json", PLAN_FILE, TWIN_FILE))


def evidence_file(case_id: str) -> str:
    """A case's evidence, as a path below the run's folder."""
    return f"evidence/{case_id}.json"


def control_file(name: str) -> str:
    """What came of a negative control, as a path below the run's folder."""
    return f"controls/{name}.json"


def summarise(
    plan: Plan,
    records: Mapping[str, CaseRecord],
    messages: list[str],
    *,
    controls: Mapping[str, ControlRecord] | None = None,
    duration_s: float = 0.0,
    environment: dict[str, Any] | None = None,
    commands: dict[str, str] | None = None,
    refuted: bool = False,
) -> RunRecord:
    """The run's record.

    A planned case without evidence is INCOMPLETE, and so is a run with messages; a negative control that was
    not caught, or left nothing, is such a message. `refuted` says that a difference was shown outside any
    case: in a twin.
    """
    came = controls or {}
    messages = [*messages, *_of_controls(plan, came)]
    entries = [_entry(case_id, expected, records.get(case_id)) for case_id, expected in plan.cases.items()]
    counts = counts_of(entries)
    return RunRecord(
        run_id=plan.run_id,
        verdict=verdict_of(counts, messages, refuted=refuted),
        scope=plan.scope,
        started=plan.started,
        duration_s=duration_s,
        counts=counts,
        environment=environment or {},
        commands=commands or {},
        messages=messages,
        controls=[came[name] for name in plan.controls if name in came],
        shard=plan.shard,
        cases=entries,
    )


def _of_controls(plan: Plan, came: Mapping[str, ControlRecord]) -> list[str]:
    messages = []
    for name in plan.controls:
        control = came.get(name)
        if control is None:
            messages.append(f"INCOMPLETE: the negative control {name} was planned and left nothing.")
        elif not control.caught:
            messages.append(
                f"The defect {name} was planted and not caught: {control.check} said {control.said.value}, "
                f"and should say {control.due.value}. What passed in this run shows nothing until it is."
            )
    return messages


def _entry(case_id: str, expected: Outcome, record: CaseRecord | None) -> CaseEntry:
    return CaseEntry(
        id=case_id,
        verdict=record.verdict if record else Outcome.INCOMPLETE,
        expected=expected,
        file=evidence_file(case_id) if record else None,
    )


def counts_of(entries: list[CaseEntry]) -> Counts:
    """How the planned cases ended."""
    holding = [e for e in entries if e.verdict is e.expected]
    refused = sum(e.verdict is Outcome.REFUSED for e in holding)
    incomplete = sum(e.verdict is Outcome.INCOMPLETE for e in entries)
    return Counts(
        planned=len(entries),
        verified=len(holding) - refused,
        refused_as_expected=refused,
        incomplete=incomplete,
        failed=len(entries) - len(holding) - incomplete,
    )


def verdict_of(counts: Counts, messages: list[str], *, refuted: bool = False) -> Verdict:
    """The verdict of a run; `messages` and `refuted` as in `summarise`."""
    if counts.failed or refuted:
        return Verdict.NOT_EQUIVALENT
    # Refusals alone hold as they should, and show nothing equivalent.
    if counts.incomplete or messages or not counts.verified:
        return Verdict.INCOMPLETE
    return Verdict.EQUIVALENT
