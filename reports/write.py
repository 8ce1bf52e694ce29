"""Writing reports beside the evidence: whole, or not at all."""

from pathlib import Path

from loadproof.harness.atomic_file import write_atomically

from .html import render_html
from .junit import render_junit
from .load import load_run
from .markdown import render_markdown


def write_reports(run_dir: Path) -> None:
    """Render the run in `run_dir` to its `report.html`, `validation.md` and `junit.xml`."""
    run = load_run(run_dir)
    write_atomically(run_dir / "report.html", render_html(run))
    write_atomically(run_dir / "validation.md", render_markdown(run))
    write_atomically(run_dir / "junit.xml", render_junit(run))
