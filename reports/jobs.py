"""The case matrix as jobs of a continuous integration: how many, on what, within which time and memory."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadproof.harness.errors import InvalidInput
from loadproof.harness.matrix import cases


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A kind of machine, and what its jobs run."""

    name: str
    device: str
    """`cpu` or `cuda`."""
    kernel: str | None
    """Only the cases of this kernel; None for all of the device."""
    runs_on: tuple[str, ...]
    """What GitHub's runners of this kind are labelled; elsewhere the label's name is tag or queue."""
    command: str
    """Runs the tests; options are appended."""
    seconds: Mapping[str, float]
    """For each group that `command` runs: what one case adds to a run, all workers taken together."""
    setup_seconds: float
    """Before the first case: packages, checkpoints, kernels."""
    figures: str
    """Where the seconds come from."""
    memory_gib: int
    """What a job may need of the machine's memory."""
    gpu_memory_gib: int

    @property
    def cases(self) -> dict[str, int]:
        """How many cases each group has here."""
        return {group: len(cases(group, device=self.device, kernel=self.kernel)) for group in self.seconds}

    @property
    def total_seconds(self) -> float:
        """All cases, without the set-up."""
        return sum(count * self.seconds[group] for group, count in self.cases.items())


_LAYERS = ("synthetic-layers", "corner-layers", "lost-daemons", "refused-schemes", "refused-kernels")
_ON_GPU = (
    "PYTHONPATH=src python3 -m pytest cases/layers cases/capability -n 8 -k 'not smollm2' "
    "--loadproof-require cuda"
)

LABELS = {
    label.name: label
    for label in (
        Label(
            name="cpu",
            device="cpu",
            kernel=None,
            runs_on=("ubuntu-24.04",),
            command="./validate --loadproof-device cpu",
            seconds=dict.fromkeys((*_LAYERS, "real-layers"), 0.25)
            | {"real-models": 30.0, "synthetic-models": 1.5},
            setup_seconds=240,
            figures="2 cores: 190 layers in 46 s, SmolLM2 in 30 s, a small model in 1.5 s; set-up: a guess",
            memory_gib=4,
            gpu_memory_gib=0,
        ),
        Label(
            name="h200",
            device="cuda",
            kernel=None,
            runs_on=("self-hosted", "linux", "gpu", "h200"),
            command=_ON_GPU,
            seconds=dict.fromkeys(_LAYERS, 1.0),
            setup_seconds=60,
            figures="360 layers and refusals in 401 s on one H200; the kernel is built in 46 s",
            memory_gib=32,
            gpu_memory_gib=16,
        ),
        Label(
            name="l4",
            device="cuda",
            # The own kernel is built for sm_90a alone.
            kernel="vllm-cutlass",
            runs_on=("self-hosted", "linux", "gpu", "l4"),
            command=f"{_ON_GPU} --loadproof-kernel vllm-cutlass",
            seconds=dict.fromkeys(_LAYERS, 2.0),
            setup_seconds=60,
            figures="not run yet: twice the H200's seconds",
            memory_gib=32,
            gpu_memory_gib=16,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One shard of one label's cases."""

    label: Label
    index: int
    """From 1."""
    count: int
    timeout_minutes: int

    @property
    def shard(self) -> str:
        return f"{self.index}/{self.count}"

    @property
    def name(self) -> str:
        """Names the job's artifact too, in characters that every system allows."""
        return f"loadproof-{self.label.name}-{self.index}-of-{self.count}"

    @property
    def command(self) -> str:
        return f"{self.label.command} --loadproof-shard {self.shard} --loadproof-out {self.name}"

    @property
    def room(self) -> str:
        """Fails at once, with the figures, where the machine has too little memory free."""
        return f"tools/require_memory.sh {self.label.memory_gib} {self.label.gpu_memory_gib}"


def jobs(labels: Sequence[str], *, minutes: int, max_jobs: int) -> list[Job]:
    """As few shards a label as fit the time; a job may take twice the time before it is ended.

    Args:
        labels: names in LABELS.
        minutes: time that a job should take, set-up included.
        max_jobs: of all labels together.

    Raises:
        InvalidInput: a label that is not there or is named twice, or a time that cannot be kept.
    """
    planned = [job for name in _known(labels) for job in _shards(LABELS[name], minutes)]
    if len(planned) > max_jobs:
        raise InvalidInput(
            "--max-jobs",
            expected=f"at least {len(planned)}, for jobs of {minutes} minutes",
            found=max_jobs,
            remedy="Allow more jobs, or give each more --minutes.",
        )
    return planned


def _known(labels: Sequence[str]) -> Sequence[str]:
    for name in labels:
        if name not in LABELS or labels.count(name) > 1:
            raise InvalidInput(
                "--label",
                expected=f"each of {', '.join(LABELS)} at most once",
                found=name,
                remedy="Name one.",
            )
    return labels


def _shards(label: Label, minutes: int) -> list[Job]:
    # The dearest case may come on top: cases are shared out by number.
    before = label.setup_seconds + max(label.seconds.values())
    left = minutes * 60 - before
    if left <= 0:
        raise InvalidInput(
            f"--minutes for {label.name}",
            expected=f"at least {math.floor(before / 60) + 1}: set-up and one case take {before:g} s",
            found=minutes,
            remedy="Give each job more minutes.",
        )
    count = math.ceil(label.total_seconds / left)
    return [
        Job(label=label, index=index, count=count, timeout_minutes=2 * minutes)
        for index in range(1, count + 1)
    ]
