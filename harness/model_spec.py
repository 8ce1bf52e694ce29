"""What is asked of a whole model: its tensors, where it comes from, and its cases. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .spec import Claim, LayerSpec

PROMPTS = ("The capital of France is", "Water boils at a temperature of")
"""For every model; cut to the shorter one's tokens, since both run as one batch without padding."""
NEW_TOKENS = 16
"""After each prompt, by greedy choice, whatever tokens come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTensor:
    """A tensor that a model uses as the checkpoint stores it: an embedding, a norm, an excluded module's."""

    name: str
    """In checkpoint and model alike, e.g. `model.norm.weight`."""
    dtype: str
    """torch name."""
    shape: tuple[int, ...]

    @property
    def module(self) -> str:
        """Path of the module that it belongs to."""
        return self.name.rpartition(".")[0]

    def to_json(self) -> list[Any]:
        """Builtins only; `from_json` reads it back."""
        return [self.name, self.dtype, list(self.shape)]

    @classmethod
    def from_json(cls, data: list[Any]) -> "PlainTensor":
        """The inverse of `to_json`."""
        name, dtype, shape = data
        return cls(name=name, dtype=dtype, shape=tuple(shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What daemon and engines of one case hold, and what the engines do with it."""

    layers: tuple[LayerSpec, ...]
    plain: tuple[PlainTensor, ...] = ()
    new_tokens: int = 0
    """0: the one layer is run alone, and nothing is generated."""


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """SmolLM2-135M-Instruct as ModelOpt exports it."""


@dataclass(frozen=True, slots=True)
class GivenModel:
    """A checkpoint of the user's."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticModel:
    """Random weights in a small architecture, written by our own checkpoint writer."""

    architecture: str
    """A `model_type`: llama, qwen2 or qwen3."""
    seed: int
    tied: bool = False
    """Whether the output layer is the embedding."""
    hidden: int = 64
    intermediate: int = 1000
    """No multiple of 16: padded in N of gate_up and in K of down."""
    heads: int = 4
    kv_heads: int = 1
    """Fewer than heads: k and v are narrower than q."""
    layers: int = 2
    vocabulary: int = 128


ModelSource = ExportedModel | GivenModel | SyntheticModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A whole model, and what it is asked to generate."""

    name: str
    """For ids and people, e.g. `smollm2-135m`."""
    scheme: str
    """The quant_algo that the checkpoint names."""
    source: ModelSource
    prompts: tuple[str, ...] = PROMPTS
    """Texts; without a tokenizer, fixed token ids stand for them."""
    new_tokens: int = NEW_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCaseSpec(Claim):
    """One claim: this model, on this kernel, over this transport, generates the same on all routes."""

    model: ModelSpec

    @property
    def id(self) -> str:
        """See `Claim.id`."""
        parts = (self.model.name, self.model.scheme, "model", self.kernel, self.transport)
        return "-".join(parts).lower().replace("_", "-")

    def describe(self) -> dict[str, Any]:
        """See `Claim.describe`."""
        return {
            "id": self.id,
            "subject": self.subject,
            "scheme": self.model.scheme,
            "projection": "model",
            "model": self.model.name,
            "source": _described(self.model.source),
            "prompts": list(self.model.prompts),
            "new_tokens": self.model.new_tokens,
            "kernel": self.kernel,
            "daemon_kernel": self.daemon_kernel or self.kernel,
            "device": self.device,
            "transport": self.transport,
            "fallback_allowed": self.fallback_allowed,
            "expected": self.expected.value,
        }


def _described(source: ModelSource) -> str:
    match source:
        case ExportedModel():
            return "SmolLM2-135M-Instruct, ModelOpt export"
        case GivenModel(path=path):
            return f"the checkpoint {path.name}"
        case SyntheticModel() as tiny:
            head = "tied to the embedding" if tiny.tied else "of its own"
            return f"synthetic {tiny.architecture}, seed {tiny.seed}, output layer {head}"
