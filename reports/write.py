"""Writing reports beside the evidence: whole, or not at all."""

from loadproof.harness.atomic_file import write_atomically

from .html import render_html
from .junit import render_junit
from .load import Run
from .markdown import render_markdown


def write_reports(run: Run) -> None:
    """Render a run to the three reports, in its folder."""
    write_atomically(run.folder / "report.html", render_html(run))
    write_atomically(run.folder / "validation.md", render_markdown(run))
    write_atomically(run.folder / "junit.xml", render_junit(run))
