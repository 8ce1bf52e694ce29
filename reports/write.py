"""Writing reports beside the evidence: whole, or not at all."""

import os
from pathlib import Path

from loadproof.harness.errors import OutputUnwritable

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


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` in one step, so that no reader sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        remedy = "Choose a folder that you may write to and that has room."
        raise OutputUnwritable(
            path, expected="a writable place", found=error.strerror, remedy=remedy
        ) from error
