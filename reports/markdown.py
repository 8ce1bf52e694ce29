"""The report as Markdown for a pull request: same verdicts, at most 60 kB."""

import re
from collections import Counter
from collections.abc import Iterable

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import RunRecord
from loadproof.harness.routes import REFERENCE_ROUTE

from . import wording
from .load import Run
from .results import Result, results
from .text import clean, duration, flatten, one_line, short_hash
from .view import CaseView, cases_in_order, device, values_of

LIMIT_BYTES = 60_000
_FRAME_BYTES = 500
"""Of the table of cases: its header, and the line that tells of a cut."""
_RESULTS_BYTES = 12_000
_PART_BYTES = 3_000
_COMMAND_CHARACTERS = 600
"""Of a command in a table; one that is cut would not run, so it is left out whole."""
_CELL_CHARACTERS = 200
_HEADER = "| Case | Ordinary | Fallback | IPC | IPC repeat | Output sha256 | Shared |\n" + "|---" * 7 + "|"
_ACTIVE = re.compile(r"[\\`*_{}\[\]<>&|~#!@$()]")


def render_markdown(run: Run, limit: int = LIMIT_BYTES) -> str:
    """The whole run as Markdown, at most `limit` bytes (60 kB or more); a cut is stated."""
    cases = cases_in_order(run)
    return markdown_of(run, cases, results(cases), limit)


def markdown_of(run: Run, cases: list[CaseView], found: list[Result], limit: int = LIMIT_BYTES) -> str:
    """The same, of what has been worked out already."""
    before = [
        f"## loadproof: {wording.headline(run.record)}",
        _summary(run),
        *_messages(run.record),
        _results(run, found),
        _controls(run.record),
        _limits(cases),
    ]
    after = [
        f"Environment: {_environment(run.record)}",
        _commands(run),
        _evidence(run),
        _bullets("Claims", wording.claims(run.record)),
        _bullets("Non-claims", wording.NON_CLAIMS),
    ]
    rest = sum(len(f"{part}\n\n".encode()) for part in (*before, *after))
    parts = [*before, _table(cases, limit - rest - _FRAME_BYTES), *after]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """Text that stays text: every character with a meaning in Markdown or HTML becomes an entity."""
    line = one_line(text)
    if len(line) > _CELL_CHARACTERS:
        line = f"{line[:_CELL_CHARACTERS]}… (cut)"
    return _ACTIVE.sub(_entity, line)


def _entity(found: re.Match[str]) -> str:
    return f"&#{ord(found.group())};"


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
    notice = "- {} more messages in report.html"
    return [_within(lines, len(lines), _PART_BYTES, notice)] if lines else []


def _results(run: Run, found: list[Result]) -> str:
    """Check, exact result, command: that of the whole run, or of the first case that fails."""
    whole = run.record.commands.get("run", "")
    rows = [
        f"| {escape(each.name)} | {escape(each.text)} | {_code(each.first.rerun if each.first else whole)} |"
        for each in found
    ]
    header = "| Check | Exact result | Command |\n|---|---|---|"
    shown = _within(rows, len(rows), _RESULTS_BYTES, "\n{} more checks in report.html")
    return f"{header}\n{shown}" if rows else ""


def _controls(record: RunRecord) -> str:
    caught = sum(control.caught for control in record.controls)
    missed = [control.name for control in record.controls if not control.caught]
    told = f", NOT CAUGHT: {escape(', '.join(missed))}" if missed else ""
    return f"Planted defects caught: {caught}/{len(record.controls)}{told}" if record.controls else ""


def _limits(cases: list[CaseView]) -> str:
    """What of whole models is left out, and where no text stands behind the prompts."""
    said: Counter[str] = Counter()
    for case in cases:
        if case.record and (model := case.record.model):
            said.update(model.notes)
            said.update([f"Tokenizer: {model.tokenizer}."] if None in model.prompts else [])
    lines = [f"- {escape(note)} (model cases: {count})" for note, count in said.items()]
    return _within(lines, len(lines), _PART_BYTES, "- {} more limits in report.html")


def _code(command: str) -> str:
    """A command as code that no table cell or entity can break."""
    line = one_line(command).replace("|", "\\|")
    if len(line) > _COMMAND_CHARACTERS:
        return "too long for a table: see report.html"
    return f"`{line}`" if line and "`" not in line else escape(line) or "none"


def _table(cases: list[CaseView], limit: int) -> str:
    rows = _within(map(_row, cases), len(cases), limit, "\n{} more cases in report.html")
    if not rows:
        return "No case was planned."
    count = f"{len(cases)} case{'' if len(cases) == 1 else 's'}"
    opened = " open" if any(not case.holds for case in cases) else ""
    return f"<details{opened}><summary>{count}</summary>\n\n{_HEADER}\n{rows}\n\n</details>"


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
    reference = case.routes[REFERENCE_ROUTE.name]
    differing = [
        name
        for name, found in case.verdicts.items()
        if reference and case.routes[name] and found.outputs in (Outcome.BYTES, Outcome.SHAPE, Outcome.DTYPE)
    ]
    digest = case.output_digest
    shown = f"`{short_hash(digest)}`" if digest else "none"
    return f"{shown}, differs: {', '.join(differing)}" if differing else shown


def _environment(record: RunRecord) -> str:
    groups = ("host", "gpu", "python", "packages", "git")
    found = {name: record.environment[name] for name in groups if name in record.environment}
    facts = [f"{escape(name)} {escape(value)}" for name, value in flatten(found)]
    notice = "{} more facts in report.html"
    return _within(facts, len(facts), _PART_BYTES, notice, joint="; ") or "not recorded"


def _evidence(run: Run) -> str:
    if chain := run.record.chain:
        return f"Evidence sha256, to be held against `loadproof verify`: `{chain.head}`"
    return f"Evidence sha256, of a run that was not sealed: `{run.sha256}`"


def _commands(run: Run) -> str:
    failing = [case.rerun for case in cases_in_order(run) if case.rerun and not case.holds]
    commands = [one_line(command) for command in (*run.record.commands.values(), *failing)]
    notice = "# {} more commands in report.html"
    text = _within(commands, len(commands), _PART_BYTES, notice) or "# no command was recorded"
    longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"<details><summary>Commands</summary>\n\n{fence}sh\n{clean(text)}\n{fence}\n\n</details>"


def _bullets(title: str, lines: tuple[str, ...]) -> str:
    return f"**{title}**\n\n" + "\n".join(f"- {line}" for line in lines)


def _within(lines: Iterable[str], count: int, limit: int, notice: str, joint: str = "\n") -> str:
    """As many of the `count` lines as fit, and a last one, `notice`, that says how many do not."""
    kept: list[str] = []
    for line in lines:
        limit -= len((line + joint).encode())
        if limit < 0:
            break
        kept.append(line)
    cut = count - len(kept)
    return joint.join([*kept, *([notice.format(cut)] if cut else [])])
