"""`loadproof matrix`: the jobs of a continuous integration, as JSON."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from loadproof.harness.errors import InvalidInput

from .jobs import LABELS, jobs
from .pipelines import PIPELINES


class System(StrEnum):
    """Whose words the jobs are in."""

    GITHUB = "github"
    GITLAB = "gitlab"
    BUILDKITE = "buildkite"


def matrix(
    system: Annotated[System, typer.Option("--format", help="Whose words to use.")],
    max_jobs: Annotated[
        int | None, typer.Option(min=1, help="At most so many; default: what it allows.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help=f"Kinds of machines: {', '.join(LABELS)}.")] = None,
    minutes: Annotated[int, typer.Option(min=1, help="Time that a job should take, set-up included.")] = 10,
) -> None:
    """Print the case matrix as jobs: as few a label as fit the time, each a shard for `loadproof merge`."""
    pipeline = PIPELINES[system]
    if max_jobs is not None and max_jobs > pipeline.limit:
        raise InvalidInput(
            "--max-jobs",
            expected=f"at most {pipeline.limit}, which is what {system} allows",
            found=max_jobs,
            remedy="Give each job more --minutes instead.",
        )
    planned = jobs(label or ["cpu"], minutes=minutes, max_jobs=max_jobs or pipeline.limit)
    typer.echo(json.dumps(pipeline.render(planned), indent=2))
