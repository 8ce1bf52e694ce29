"""What was observed of a case: the input of every check. No verdicts here."""

from dataclasses import dataclass, field
from typing import Any

import torch

from .checkpoint.layers import ProjectionTensors
from .kernels import Kernel
from .model_spec import ModelCaseSpec
from .models.contents import ModelContents
from .models.prompts import Prompts
from .outcome import Outcome
from .record import DaemonRecord, ErrorRecord
from .routes import ROUTES, Route
from .spec import CaseSpec, LayerSpec


class Missing(Exception):
    """A route did not get far enough to show what a check asks for."""

    def __init__(self, route: str, outcome: Outcome, what: str) -> None:
        self.outcome = outcome
        super().__init__(f"route {route} ended as {outcome} without {what}")


@dataclass(kw_only=True)
class RouteObservation:
    """One engine life, filled in as its messages arrive."""

    route: Route
    outcome: Outcome = Outcome.INCOMPLETE
    """PASS once the engine finished; otherwise how it ended."""
    pid: int | None = None
    exit: int | None = None
    error: ErrorRecord | None = None
    stderr_tail: str = ""
    reported: dict[str, Any] = field(default_factory=dict)
    """What the engine said of itself: route_taken, layouts, tensors, kernels, tensors_after, ..."""
    timings_ms: dict[str, float] = field(default_factory=dict)
    files_opened: list[str] = field(default_factory=list)
    """By inotify, not by the engine's word."""
    decoy: bool = False
    nonce: str | None = None
    """What the daemon was told to write after the engine had attached."""
    daemon_digests: dict[str, str] | None = None
    """The arena looked at again by the daemon: after the engine's exit, or before the daemon was killed."""
    daemon_killed: bool = False
    """Whether the daemon is killed under this engine, once that has attached."""
    attachments: int | None = None
    """How often the daemon handed out its memory meanwhile, by its own word."""
    results: dict[str, torch.Tensor] = field(default_factory=dict)
    """The engine's safetensors file: see `engine.run_layer`, `engine.stored` and `models.generate`."""

    def said(self, name: str) -> Any:
        """What the engine reported under `name`; raises Missing."""
        if name not in self.reported:
            raise Missing(self.route.name, self._ending(), repr(name))
        return self.reported[name]

    def result(self, name: str) -> torch.Tensor:
        """A tensor of the engine's result file; raises Missing."""
        if name not in self.results:
            raise Missing(self.route.name, self._ending(), f"tensor {name!r}")
        return self.results[name]

    def _ending(self) -> Outcome:
        return Outcome.INCOMPLETE if self.outcome is Outcome.PASS else self.outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelObservation:
    """A model's checkpoint as the harness itself read it, and its prompts."""

    contents: ModelContents
    prompts: Prompts
    points: tuple[str, ...]
    """Modules after which hidden states are digested."""
    derived: dict[str, str]
    """Full tensor name to sha256 of the bytes that must be served, by the independent derivation."""
    embedding: torch.Tensor
    """[vocabulary, hidden], as the checkpoint stores it: shows which tokens an engine was fed."""
    new_tokens: int


@dataclass(kw_only=True)
class CaseObservation:
    """All four routes of one case, and what they are held against."""

    case: CaseSpec | ModelCaseSpec
    kernel: type[Kernel]
    """The engines' backend, for what it declares of itself."""
    routes: dict[str, RouteObservation]
    daemon: DaemonRecord = field(default_factory=DaemonRecord)
    projections: list[ProjectionTensors] = field(default_factory=list)
    """Of a layer case: the checkpoint as the harness itself read it."""
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    """Of a layer case: `x.<m>`, [m, logical_k]."""
    model: ModelObservation | None = None
    """Of a model case: what its checkpoint holds and what it is asked."""
    error: ErrorRecord | None = None
    """What made the whole case void: before the routes, or a checkpoint that changed under them."""
    outcome: Outcome = Outcome.PASS
    """That error's outcome."""

    @property
    def layer_case(self) -> CaseSpec:
        """The case of a single layer, which this must be."""
        assert isinstance(self.case, CaseSpec)
        return self.case

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """All that are processed."""
        return self.model.contents.layers if self.model else (self.layer_case.layer,)

    def in_order(self) -> list[RouteObservation]:
        """The four routes; raises Missing when one was never run."""
        for route in ROUTES:
            if route.name not in self.routes:
                raise Missing(route.name, Outcome.INCOMPLETE, "any observation")
        return [self.routes[route.name] for route in ROUTES]
