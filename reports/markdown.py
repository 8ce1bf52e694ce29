"""The report as Markdown for a pull request: same verdicts, at most 60 kB."""

import re

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import RunRecord
from loadproof.harness.routes import REFERENCE_ROUTE

from . import wording
from .load import Run
from .text import clean, duration, flatten, one_line, short_hash
from .view import CaseView, cases_in_order, device, evidence_sha256, values_of

LIMIT_BYTES = 60_000
_REST_BYTES = 16_000
"""For all that is not a row of the table."""
_PART_BYTES = 3_000
_CELL_CHARACTERS = 200
_HEADER = "| Case | Ordinary | Fallback | IPC | IPC repeat | Output sha256 | Shared |\n" + "|---" * 7 + "|"
_ACTIVE = re.compile(r"[\\`*_{}\[\]<>&|~#!@$()]")


def render_markdown(run: Run, limit: int = LIMIT_BYTES) -> str:
    """The whole run as Markdown, at most `limit` bytes (60 kB or more); a cut is stated."""
    parts = [
        f"## loadproof: {wording.headline(run.record)}",
        _summary(run),
        *_messages(run.record),
        _table(cases_in_order(run), limit - _REST_BYTES),
        f"Environment: {_environment(run.record)}",
        _commands(run),
        f"Evidence sha256: `{evidence_sha256(run)}`",
        *([f"Evidence head (`loadproof verify`): `{run.record.chain.head}`"] if run.record.chain else []),
        _bullets("Claims", wording.claims(run.record)),
        _bullets("Non-claims", wording.NON_CLAIMS),
    ]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that stays text: every character with a meaning in Markdown or HTML becomes an entity."""
    line = one_line(text)
    if len(line) > _CELL_CHARACTERS:
        line = f"{line[:_CELL_CHARACTERS]}… (cut)"
    return _ACTIVE.sub(lambda found: f"&#{ord(found.group())};", line)


def _summary(run: Run) -> str:
    record, counts = run.record, run.record.counts
    facts = [
        f"**VERIFIED {counts.verified}/{counts.to_verify}**",
        f"failed {counts.failed}",
        f"incomplete {counts.incomplete}",
        f"refused as expected {counts.refused_as_expected}",
        f"device {escape(device(run))}",
        f"transports {escape(values_of(run, 'transport'))}",
        f"kernels {escape(values_of(run, 'kernel'))}",
        f"run {escape(record.run_id)}",
        f"started {escape(record.started)}",
        f"took {duration(record.duration_s)}",
    ]
    return " · ".join(facts)


def _messages(record: RunRecord) -> list[str]:
    lines = [f"- {escape(message)}" for message in record.messages]
    return [_within(lines, _PART_BYTES, "- {} more messages in report.html")] if lines else []


def _table(cases: list[CaseView], limit: int) -> str:
    rows = _within([_row(case) for case in cases], limit, "\n{} more cases in report.html")
    return f"{_HEADER}\n{rows}" if rows else "No case was planned."


def _row(case: CaseView) -> str:
    outcomes = [_outcome(outcome) for outcome in case.outcomes.values()]
    shared = case.check("pointers_shared")
    cells = [
        escape(case.id) + ("" if case.holds else f" **{case.verdict.value}**"),
        *outcomes,
        _outputs(case),
        _outcome(shared) if shared else "not checked",
    ]
    return "| " + " | ".join(cells) + " |"


def _outcome(outcome: Outcome) -> str:
    return f"{wording.symbol(outcome)} {outcome.value}"


def _outputs(case: CaseView) -> str:
    differing = sorted(
        {
            name
            for row in case.output_rows()
            for name, output in row.items()
            if output and (reference := row[REFERENCE_ROUTE.name]) and output.sha256 != reference.sha256
        }
    )
    digest = case.output_digest()
    shown = f"`{short_hash(digest)}`" if digest else "none"
    return f"{shown}, differs: {', '.join(differing)}" if differing else shown


def _environment(record: RunRecord) -> str:
    groups = ("host", "gpu", "python", "torch", "packages", "git")
    found = {name: record.environment[name] for name in groups if name in record.environment}
    facts = [f"{escape(name)} {escape(value)}" for name, value in flatten(found)]
    return _within(facts, _PART_BYTES, "{} more facts in report.html", joint="; ") or "not recorded"


def _commands(run: Run) -> str:
    failing = [case.rerun for case in cases_in_order(run) if case.rerun and not case.holds]
    commands = [one_line(command) for command in (*run.record.commands.values(), *failing)]
    text = _within(commands, _PART_BYTES, "# {} more commands in report.html") or "# no command was recorded"
    longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"<details><summary>Commands</summary>\n\n{fence}sh\n{clean(text)}\n{fence}\n\n</details>"


def _bullets(title: str, lines: tuple[str, ...]) -> str:
    return f"**{title}**\n\n" + "\n".join(f"- {line}" for line in lines)


def _within(lines: list[str], limit: int, notice: str, joint: str = "\n") -> str:
    """As many lines as fit, and a last one, `notice`, that says how many do not."""
    used, kept = 0, 0
    for line in lines:
        used += len((line + joint).encode())
        if used > limit:
            break
        kept += 1
    cut = len(lines) - kept
    return joint.join([*lines[:kept], *([notice.format(cut)] if cut else [])])
