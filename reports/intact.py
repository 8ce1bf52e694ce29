"""A run that others build on: read, and held against its digest chain."""

from pathlib import Path

from loadproof.harness.errors import InvalidInput

from .load import Run, load_run
from .verify import verify


def require_intact(path: Path) -> None:
    """Raises InvalidInput where the run at `path` was changed since it was sealed, or ended but never was."""
    if problems := verify(path).problems:
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        raise InvalidInput(
            f"{path}: {first.where}",
            expected=first.expected,
            found=first.found + more,
            remedy=f"See `loadproof verify {path}`.",
        )


def load_intact(path: Path) -> Run:
    """The run at `path`; raises InvalidInput where it cannot be read, or was changed since it was sealed.

    A run without a chain is taken as it is: there is nothing to hold it against.
    """
    run = load_run(path)
    if run.record.chain is not None:
        require_intact(path)
    return run
