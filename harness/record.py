"""The evidence model: what a run leaves on disk, and its JSON schema.

`run.json` holds a RunRecord; `evidence/<case-id>.json` holds a CaseRecord; `evidence.jsonl` holds
all CaseRecords, one a line. Reports are rendered from these files and from nothing else. `twin.jsonl`
holds a run's TwinRecords, one a line.
"""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator, model_validator

from .errors import LoadproofError
from .outcome import Outcome

SCHEMA_VERSION: Final = 1

Scope = Literal["gpu", "cpu-default"]
"""What a run can speak of; the CPU default says nothing of CUDA IPC or CUTLASS."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Verdict(StrEnum):
    """The verdict of a whole run."""

    EQUIVALENT = "EQUIVALENT"
    NOT_EQUIVALENT = "NOT_EQUIVALENT"
    INCOMPLETE = "INCOMPLETE"

    @property
    def words(self) -> str:
        """As people read it: `NOT EQUIVALENT`."""
        return self.value.replace("_", " ")


class ErrorRecord(_Record):
    type: str
    """Class name of the typed error, or of the exception that escaped."""
    message: str

    @classmethod
    def of(cls, error: LoadproofError) -> "ErrorRecord":
        """A typed error as evidence holds it."""
        return cls(type=error.type_name, message=str(error))


class WitnessRecord(_Record):
    """Positive evidence of the way that the weights took."""

    files_opened: list[str] = []
    """Weight files opened under the route's directory, as inotify saw them."""
    decoy: bool = False
    """True when the weight files there were decoys: true headers, then a hole."""
    mapped_bytes: int = 0
    """Bytes of the daemon's arena mapped into the engine."""
    daemon_pid: int | None = None
    """The daemon's pid, from the socket's peer credentials."""
    checkpoint_bytes_read: int = 0
    """Weight bytes that the engine's reader read; information only."""
    attachments: int | None = None
    """How often the daemon handed out its memory on this route, by its own word; None without a daemon."""
    daemon_lost: bool = False
    """True when the engine found, after its run, that the daemon it had attached to was gone."""
    probe: bool = False
    """True when a nonce, written by the daemon after the attachment, was read through the mapping."""


class OutputRecord(_Record):
    m: int
    """Tokens in this forward pass."""
    prompt: int | None = None
    """Of a model: the prompt's number, from 0."""
    step: int | None = None
    """Of a model: 0 is the prefill, and each later step takes the token of the one before."""
    shape: list[int]
    dtype: str
    sha256: str


def manifest_digest(digests: Mapping[str, str]) -> str:
    """One sha256 for tensor names and their sha256, in whatever order they come."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


class DigestRecord(_Record):
    name: str
    sha256: str


class TensorRecord(_Record):
    """One processed tensor as the engine held it when it ran."""

    name: str
    shape: list[int]
    stride: list[int]
    dtype: str
    sha256: str
    fingerprint: str = ""
    """128 bits that tell whether the bytes changed: see `harness.fingerprint`."""
    allocation: str
    """Identity of the memory: `memfd:<major>:<minor>:<inode>`, or `private:<pid>:<address>`."""
    offset: int
    """Bytes from the start of the allocation."""


class ModuleRecord(_Record):
    """The tensors of a model's decoder layer, or of a module beside them, taken together."""

    name: str
    tensors: int
    nbytes: int
    sha256: str
    """Of the name, dtype, shape, strides and sha256 of each, in order."""
    allocations: list[str]
    """Each that they lie in, once."""
    offset: int | None
    """Smallest offset in the daemon's allocation; None where nothing lies there."""


class GenerationRecord(_Record):
    """What a model generated on one route, by prompt; its logits are the route's `outputs`."""

    ids: list[list[int]]
    text: list[str | None]
    """None without a tokenizer."""
    hidden: list[list[str]]
    """By prompt and point: 16 digits of a sha256 over the hidden states' digests of all steps."""
    gemms: dict[str, int]
    """How often each kind of fused layer was multiplied, in all decoder layers together."""
    description: str
    """sha256 of the module tree's description: parameters, ties, dtypes, buffers, flags, config."""
    flags: dict[str, str]
    """What was set so that sums have one order."""


class ModelRecord(_Record):
    """What all routes of a model case share."""

    architecture: str
    decoder_layers: int
    fused_layers: int
    plain_tensors: int
    weight_bytes: int
    """Of all tensors as the daemon serves them."""
    tokenizer: str
    """File, or that there is none."""
    prompts: list[str | None]
    """The text of the ids below; None without a tokenizer."""
    prompt_ids: list[list[int]]
    points: list[str]
    """Modules after which hidden states are digested, in order."""
    notes: list[str] = []
    """What is left out."""


class RouteRecord(_Record):
    outcome: Outcome
    route_taken: str
    """Observed: `disk`, `fallback`, `attach`, or `none`."""
    pid: int | None = None
    exit: int | None = None
    """Exit status; negative is the signal that ended the process."""
    error: ErrorRecord | None = None
    stderr_tail: str = ""
    witness: WitnessRecord = WitnessRecord()
    outputs: list[OutputRecord] = []
    processed: list[DigestRecord] = []
    kernels: list[str] = []
    """Names of the kernels that ran."""
    tensors: list[TensorRecord] = []
    """Of a model: those of the embedding and of the first decoder layer; `modules` has all."""
    modules: list[ModuleRecord] = []
    generation: GenerationRecord | None = None
    weights: dict[str, str] = {}
    """`manifest_digest` of all weights by moment: `held` at first, `after` the run, `daemon` afterwards."""
    memory_bytes: dict[str, int] = {}
    """Memory in use by moment: see `harness.memory_in_use`. Empty where it was not measured."""
    timings_ms: dict[str, float] = {}
    """Milliseconds from the start of the route to the end of each phase."""


class CheckRecord(_Record):
    name: str
    verdict: Outcome
    detail: str
    """One sentence for people."""
    evidence: dict[str, Any] = {}
    """The figures that justify the verdict (builtins only)."""

    @model_validator(mode="after")
    def _pass_needs_evidence(self) -> "CheckRecord":
        if self.verdict is Outcome.PASS and not self.evidence:
            raise ValueError(f"check {self.name!r} passes without evidence")
        return self


class TwinRecord(_Record):
    """One layer's in-process twin. It is no case: one process says nothing of IPC."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    case: dict[str, Any]
    """`CaseSpec.describe()`, of transport `alias`."""
    transport: Literal["alias"] = "alias"
    verdict: Outcome
    detail: str = ""
    """The check that does not hold, in a sentence; empty for PASS."""
    compared: dict[str, int] = {}
    """Check to what it compared: tensors for `layout_restored` and `pointers_shared`, else bytes."""
    kernels: list[str] = []
    """Names of the kernels that ran, by the backend's own word."""
    duration_ms: float

    @model_validator(mode="after")
    def _pass_needs_evidence(self) -> "TwinRecord":
        if self.verdict is Outcome.PASS and not (self.compared and all(self.compared.values())):
            raise ValueError(f"twin of {self.id!r} passes without evidence")
        return self

    @property
    def id(self) -> str:
        return str(self.case["id"])


class DaemonRecord(_Record):
    pid: int | None = None
    transport: str = ""
    allocation: str = ""
    arena_bytes: int = 0
    key: dict[str, str | None] = {}
    """The fingerprint that both sides must share."""
    tensors: list[TensorRecord] = []
    """The manifest: what the daemon serves. In evidence, of a model: as in RouteRecord."""
    manifest: str = ""
    """`manifest_digest` of all that it serves; empty where it served nothing."""
    modules: list[ModuleRecord] = []
    error: ErrorRecord | None = None
    """Why it did not start to serve."""
    files_opened: list[str] = []
    """Weight files opened while it lived, by whatever process: the route's own are watched elsewhere."""
    exit: int | None = None
    stderr_tail: str = ""


class LibraryRecord(_Record):
    """A compiled library that computes, in `environment["libraries"]`."""

    package: str
    version: str
    file: str
    """As RECORD names it."""
    bytes: int
    record_sha256: str | None
    """None where its package has no RECORD."""
    disk_sha256: str
    equal: bool


_LIBRARIES = TypeAdapter(list[LibraryRecord])


class CaseRecord(_Record):
    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: str
    case: dict[str, Any]
    """`CaseSpec.describe()`."""
    verdict: Outcome
    """PASS, or the first verdict that is not."""
    node_id: str
    """pytest node id prefix that reruns this case."""
    checkpoint: dict[str, str] = {}
    """`content` (digest) and `origin`."""
    routes: dict[str, RouteRecord]
    checks: list[CheckRecord]
    daemon: DaemonRecord = DaemonRecord()
    model: ModelRecord | None = None
    duration_ms: float

    @field_validator("case")
    @classmethod
    def _is_described(cls, case: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(case.get("id", ""), str):
            raise ValueError("id is no text")
        for name in ("logical_widths", "m_values"):
            if not isinstance(case.get(name, []), list):
                raise ValueError(f"{name} is no list")
        return case

    @property
    def id(self) -> str:
        return str(self.case["id"])

    @property
    def expected(self) -> Outcome:
        return Outcome(self.case["expected"])

    @property
    def cause(self) -> CheckRecord | None:
        """The check that tells most of a verdict other than PASS.

        Many checks fail of one cause. Those that say the case's own word are meant, and of these the last:
        whether a route could run stands behind what it computed.
        """
        telling = [check for check in self.checks if check.verdict is self.verdict is not Outcome.PASS]
        return telling[-1] if telling else None

    @property
    def holds(self) -> bool:
        """True when the case ended as it claims."""
        return self.verdict is self.expected


class ControlRecord(_Record):
    """A negative control: a defect planted on purpose, and whether the check meant for it said so."""

    name: str
    """The defect, as in `harness.defects`."""
    plants: str
    """What it does, in one sentence."""
    case_id: str
    check: str
    """The check that must catch it."""
    due: Outcome
    """What this check must say."""
    said: Outcome
    """What it said."""
    detail: str

    @property
    def caught(self) -> bool:
        """True when the check gave the verdict that it must."""
        return self.said is self.due


class Counts(_Record):
    planned: int
    verified: int
    failed: int
    incomplete: int
    refused_as_expected: int

    @property
    def to_verify(self) -> int:
        """Planned cases of which equivalence is claimed: all but those that were refused as they should."""
        return self.planned - self.refused_as_expected

    @property
    def sentence(self) -> str:
        """How many were verified, failed, incomplete and refused, as the terminal says it."""
        return (
            f"verified {self.verified}/{self.to_verify}, failed {self.failed}, "
            f"incomplete {self.incomplete}, refused as expected {self.refused_as_expected}"
        )


class CaseEntry(_Record):
    id: str
    verdict: Outcome
    expected: Outcome
    file: str | None
    """Path below the run's folder; None when there is no evidence."""
    sha256: str | None = None
    """Digest of the evidence's canonical JSON; None when there is no evidence."""


class ChainRecord(_Record):
    """What `loadproof verify` holds a run against; see `harness/chain.py`."""

    facts: dict[str, str]
    """For each field of `run.json` but `cases` and `chain`: the digest of its canonical JSON."""
    cases: str
    """End of the chain over the entries of `cases`, in their order."""
    head: str
    """Digest of `facts` and `cases`: one figure for the whole run."""


class ShardRecord(_Record):
    """Which part of a plan a run covers."""

    index: int
    """From 1."""
    count: int
    plan: str
    """Digest of the whole plan: the ordered cases of all shards."""


class MergedRecord(_Record):
    """A shard that a merged run is made of."""

    index: int
    run_id: str
    head: str | None
    """Head of the shard's own chain; None where it did not end in order."""


class RunRecord(_Record):
    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: str
    verdict: Verdict
    scope: Scope
    started: str
    """UTC, ISO 8601."""
    duration_s: float
    counts: Counts
    environment: dict[str, Any]
    """Grouped facts: `python`, `host`, `gpu`, `packages`, `libraries`, `git`, `options`, `env`."""
    commands: dict[str, str] = Field(default_factory=dict)
    """`run`: the command that repeats the whole run."""
    messages: list[str] = []
    """What went wrong outside any case: a killed worker, an interrupted run."""
    controls: list[ControlRecord] = []
    """The negative controls that ran with the cases."""
    shard: ShardRecord | None = None
    """None where the run covers its whole plan."""
    merged: list[MergedRecord] = []
    """The shards that the run was merged from."""
    twins_sha256: str | None = None
    """Of `twin.jsonl` beside it; None where the run had no twins."""
    cases: list[CaseEntry]
    chain: ChainRecord | None = None
    """None where the run did not end in order."""

    @field_validator("environment")
    @classmethod
    def _libraries_are_described(cls, environment: dict[str, Any]) -> dict[str, Any]:
        _LIBRARIES.validate_python(environment.get("libraries", []))
        return environment
