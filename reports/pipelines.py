"""Jobs in the words of GitHub Actions, GitLab CI and Buildkite; JSON is YAML to all three."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .jobs import Job

_MERGE_MINUTES = 10
_CPU_QUEUE = "cpu"
"""Where Buildkite merges; its plan names it too."""
_IMAGE = "python:3.12"
"""Where GitLab runs what needs no GPU; a GPU's runner brings its own image."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One system: how many jobs it allows, and its words."""

    limit: int
    render: Callable[[list[Job]], dict[str, Any]]


def github(jobs: list[Job]) -> dict[str, Any]:
    """`matrix` for the shards, `merge` for the labels, as `.github/workflows/validate.yml` consumes them."""
    return {
        "matrix": {
            "include": [
                {
                    "label": job.label.name,
                    "shard": job.shard,
                    "name": job.name,
                    "runs_on": list(job.label.runs_on),
                    "command": job.command,
                    "room": job.room,
                    "timeout_minutes": job.timeout_minutes,
                }
                for job in jobs
            ]
        },
        "merge": {"label": _labels(jobs)},
    }


def gitlab(jobs: list[Job]) -> dict[str, Any]:
    """A child pipeline: a job a shard, then one a label that merges."""
    shards = {
        job.name: {
            "stage": "validate",
            **({"image": _IMAGE} if job.label.device == "cpu" else {"tags": [job.label.name]}),
            "timeout": f"{job.timeout_minutes} minutes",
            # For the Kubernetes executor; others take the check of the memory in `script` alone.
            "variables": {"KUBERNETES_MEMORY_REQUEST": f"{job.label.memory_gib}Gi"},
            "script": [job.room, job.command],
            "artifacts": {"when": "always", "paths": [f"{job.name}/"]},
        }
        for job in jobs
    }
    merges = {
        f"merge-{label}": {
            "stage": "merge",
            "image": _IMAGE,
            "when": "always",
            "timeout": f"{_MERGE_MINUTES} minutes",
            "script": [_merge(label)],
            "artifacts": {
                "when": "always",
                "paths": [f"merged-{label}/"],
                "reports": {"junit": f"merged-{label}/junit.xml"},
            },
        }
        for label in _labels(jobs)
    }
    return {"stages": ["validate", "merge"], **shards, **merges}


def buildkite(jobs: list[Job]) -> dict[str, Any]:
    """Steps to upload: a step a shard, then one a label that merges and annotates the build."""
    shards: list[dict[str, Any]] = [
        {
            "label": f"{job.label.name} {job.shard}",
            "key": job.name,
            "agents": {"queue": job.label.name},
            "timeout_in_minutes": job.timeout_minutes,
            "command": [job.room, job.command],
            "artifact_paths": [f"{job.name}/**/*"],
        }
        for job in jobs
    ]
    merges = [
        {
            "label": f"merge {label}",
            "key": f"merge-{label}",
            "depends_on": [job.name for job in jobs if job.label.name == label],
            "allow_dependency_failure": True,
            "timeout_in_minutes": _MERGE_MINUTES,
            "agents": {"queue": _CPU_QUEUE},
            "command": [
                f'buildkite-agent artifact download "loadproof-{label}-*/**/*" .',
                # The agent's shell stops at what fails, and a failure's report is the one that is wanted.
                f"status=0; {_merge(label)} || status=$$?; if [ -f merged-{label}/validation.md ]; then "
                f"buildkite-agent annotate --context {label} <merged-{label}/validation.md; fi; "
                "exit $$status",
            ],
            "artifact_paths": [f"merged-{label}/**/*"],
        }
        for label in _labels(jobs)
    ]
    return {"steps": shards + merges}


PIPELINES = {
    "github": Pipeline(256, github),
    "gitlab": Pipeline(200, gitlab),
    "buildkite": Pipeline(500, buildkite),
}
"""By the name of the system; the limits are of one matrix, one parallel:matrix and one upload."""


def _labels(jobs: list[Job]) -> list[str]:
    return list(dict.fromkeys(job.label.name for job in jobs))


def _merge(label: str) -> str:
    return f"tools/loadproof merge loadproof-{label}-*-of-* -o merged-{label}"
