"""Writing reports beside the evidence: whole, or not at all."""

from pathlib import Path

from loadproof.harness.atomic_file import write_atomically

from .html import render_html
from .junit import render_junit
from .load import load_run
from .markdown import render_markdown


def write_reports(path: Path) -> None:
    """Render a run, given as its folder or its `evidence.jsonl`, to the three reports."""
    run = load_run(path)
    write_atomically(run.folder / "report.html", render_html(run))
    write_atomically(run.folder / "validation.md", render_markdown(run))
    write_atomically(run.folder / "junit.xml", render_junit(run))
