"""The `loadproof` command. Exit codes: 0 equivalent, 1 not, 2 usage or invalid input."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from loadproof.harness.atomic_file import write_atomically
from loadproof.harness.errors import InvalidInput, LoadproofError

from .cache_commands import attach, daemon
from .doctor import examine
from .html import render_html
from .intact import load_intact
from .json_option import Json
from .load import Run
from .markdown import LIMIT_BYTES, render_markdown
from .matrix_command import matrix
from .power_command import power
from .run_commands import compare, merge, verify
from .summary import case_summary
from .text import flatten, one_line
from .view import CaseView, cases_in_order
from .write import write_reports

LATEST = Path(".loadproof/latest")

app = typer.Typer(
    help="Is an engine restarted from a weight-cache daemon byte for byte the engine that read the disk?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def render(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or its evidence.jsonl.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write one report alone, to this file.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The Markdown report alone: printed, or written with -o.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=LIMIT_BYTES, help="Bytes of the Markdown: 60000 for a comment.")
    ] = LIMIT_BYTES,
) -> None:
    """Make a run's reports again from its evidence: report.html, validation.md and junit.xml."""
    found = load_intact(run)
    if output is None and not markdown:
        write_reports(found)
        typer.echo(f"Wrote the reports in {found.folder}", err=True)
        return
    text = render_markdown(found, limit) if markdown else render_html(found)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(output, text)
        typer.echo(f"Wrote {output}", err=True)


def show(
    case: Annotated[str, typer.Argument(help="Id of a case, or a part that only one id contains.")],
    run: Annotated[Path, typer.Option(help="Folder of a run, or its evidence.jsonl.")] = LATEST,
    as_json: Json = False,
) -> None:
    """Print how one case ended, and why."""
    found = _find(load_intact(run), case)
    _print(_case_json(found) if as_json else case_summary(found))
    raise typer.Exit(0 if found.holds else 1)


def doctor(as_json: Json = False) -> None:
    """Print what this machine offers; exit status 1 where not even the CPU default can run."""
    facts = examine()
    _print(facts if as_json else "\n".join(f"{name:<28} {value}" for name, value in flatten(facts)))
    raise typer.Exit(0 if facts["ok"] else 1)


for _command in (render, show, compare, verify, merge, matrix, power, doctor, daemon, attach):
    app.command()(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: an error that loadproof raises on purpose is one line, not a traceback."""
    try:
        app(arguments)
    except LoadproofError as error:
        typer.echo(f"loadproof: {one_line(str(error))}", err=True)
        sys.exit(2)


def _find(run: Run, wanted: str) -> CaseView:
    cases = cases_in_order(run)
    exact = [case for case in cases if case.id == wanted]
    found = exact or [case for case in cases if wanted in case.id]
    if len(found) == 1:
        return found[0]
    choice = found or cases
    listed = ", ".join(case.id for case in choice[:5]) + (", …" if len(choice) > 5 else "")
    count = f"{len(found)} cases"
    remedy = f"Choose one of: {listed}." if listed else "The run has no cases."
    where = f"case {wanted!r} of run {run.record.run_id}"
    raise InvalidInput(where, expected="one case", found=count, remedy=remedy)


def _case_json(case: CaseView) -> dict[str, Any]:
    return (case.record or case.entry).model_dump(mode="json")


def _print(result: str | dict[str, Any]) -> None:
    typer.echo(result if isinstance(result, str) else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
