"""Commands on whole runs."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadproof.harness.atomic_file import write_atomically
from loadproof.harness.record import Verdict

from .compare import Comparison
from .compare import compare as compare_runs
from .compare_render import print_comparison, render_html, render_markdown
from .intact import load_intact
from .json_option import Json
from .merge import merge as merge_runs
from .text import one_line
from .verify import Verification
from .verify import verify as verify_run
from .wording import headline

PIPED_WIDTH = 240


def verify(
    run: Annotated[Path, typer.Argument(help="Folder of a run, its evidence.jsonl, or its report.html.")],
    head: Annotated[
        str | None, typer.Option(help="The head that was published when the run ended; it must be this.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Hold a run against its digest chain: 0 intact, EQUIVALENT; 1 intact, not EQUIVALENT; 2 not intact."""
    found = verify_run(run, published=head)
    typer.echo(json.dumps(found.to_json(), indent=2) if as_json else _verification_text(found))
    for problem in found.problems:
        typer.echo(f"loadproof: {one_line(str(problem))}", err=True)
    if not found.intact:
        raise typer.Exit(2)
    raise typer.Exit(0 if found.verdict is Verdict.EQUIVALENT else 1)


def merge(
    shards: Annotated[list[Path], typer.Argument(help="Folders of all shards of one plan.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the whole run; a new one.")],
    as_json: Json = False,
) -> None:
    """Join runs made with --loadproof-shard to one run with its reports: 0 EQUIVALENT, 1 not, 2 refused."""
    record = merge_runs(shards, output)
    told = {"run": str(output), "verdict": record.verdict.value, "counts": record.counts.model_dump()}
    text = f"{headline(record)}\n{record.counts.sentence}\nreport: {output}/report.html"
    typer.echo(json.dumps(told, indent=2) if as_json else text)
    raise typer.Exit(0 if record.verdict is Verdict.EQUIVALENT else 1)


class Format(StrEnum):
    """How a comparison is told."""

    TEXT = "text"
    MARKDOWN = "markdown"
    HTML = "html"
    JSON = "json"


def compare(
    before: Annotated[Path, typer.Argument(help="Folder of the earlier run, or its evidence.jsonl.")],
    after: Annotated[Path, typer.Argument(help="Folder of the later run, or its evidence.jsonl.")],
    form: Annotated[Format, typer.Option("--format", help="How to tell it.")] = Format.TEXT,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Hold two runs side by side, environment first: 0 nothing is broken, 1 something is or none in both."""
    comparison = compare_runs(load_intact(before), load_intact(after))
    text = _comparison_text(comparison, Format.JSON if as_json else form)
    if output is not None:
        write_atomically(output, text)
        typer.echo(f"Wrote {output}", err=True)
    else:
        typer.echo(text, nl=False)
    raise typer.Exit(1 if comparison.broken or comparison.disjoint else 0)


def _comparison_text(comparison: Comparison, form: Format) -> str:
    match form:
        case Format.JSON:
            return json.dumps(comparison.to_json(), indent=2) + "\n"
        case Format.MARKDOWN:
            return render_markdown(comparison)
        case Format.HTML:
            return render_html(comparison)
    # Ids stay whole where a program reads them.
    console = Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)
    with console.capture() as captured:
        print_comparison(comparison, console)
    return captured.get()


def _verification_text(found: Verification) -> str:
    verdict = found.verdict.words + found.limits
    word = f"INTACT  {verdict}" if found.intact else f"NOT INTACT  problems: {len(found.problems)}"
    lines = [
        f"{word}  run {one_line(found.run_id)}, {found.cases} cases",
        f"head {found.head or 'none'}",
        found.note,
    ]
    return "\n".join(lines)
