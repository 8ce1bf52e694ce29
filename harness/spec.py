"""What is asked: schemes, projections, layers and cases. Frozen values; imports no torch."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .outcome import Outcome

ALIGNMENT = 16
"""CUTLASS FP8 kernels take K and N in multiples of this many elements."""


def padded_to_alignment(size: int) -> int:
    """The smallest multiple of ALIGNMENT that holds `size` elements."""
    return math.ceil(size / ALIGNMENT) * ALIGNMENT


class Scheme(StrEnum):
    """A ModelOpt `quant_algo` that loadproof processes, spelled as ModelOpt writes it."""

    FP8 = "FP8"
    """Static per-tensor weight scale and static per-tensor input scale."""
    FP8_PER_CHANNEL_PER_TOKEN = "FP8_PER_CHANNEL_PER_TOKEN"
    """Static per-output-channel weight scale, dynamic per-token activation scale."""


class ProjectionKind(StrEnum):
    """How projections of one input are fused into one GEMM."""

    PLAIN = "plain"
    QKV = "qkv"
    GATE_UP = "gate-up"
    ROW = "row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One projection as the checkpoint stores it: `<name>.weight` is [logical_width, K]."""

    name: str
    """Module path in the checkpoint, e.g. `model.layers.0.self_attn.q_proj`."""
    logical_width: int
    """Output features in the checkpoint, before padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """A fused FP8 linear layer: the projections that share one input and one GEMM."""

    name: str
    """Module path of the fused layer, e.g. `model.layers.0.self_attn.qkv_proj`."""
    scheme: Scheme
    projections: tuple[Projection, ...]
    """In the order in which they are concatenated along N."""
    logical_k: int
    """Input features in the checkpoint, before padding."""
    bias: bool = False
    out_dtype: str = "bfloat16"
    """torch name of the output dtype: bfloat16 or float16."""

    @property
    def logical_widths(self) -> tuple[int, ...]:
        """Output features of each projection."""
        return tuple(p.logical_width for p in self.projections)

    @property
    def logical_width(self) -> int:
        """Output features of the fused layer; what a caller sees."""
        return sum(self.logical_widths)

    @property
    def padded_width(self) -> int:
        """Columns of the processed weight; a multiple of ALIGNMENT."""
        return padded_to_alignment(self.logical_width)

    @property
    def padded_k(self) -> int:
        """Rows of the processed weight; a multiple of ALIGNMENT."""
        return padded_to_alignment(self.logical_k)

    def to_json(self) -> dict[str, Any]:
        """Builtins only, for job files and keys; `from_json` reads it back."""
        return {
            "name": self.name,
            "scheme": self.scheme.value,
            "projections": [[p.name, p.logical_width] for p in self.projections],
            "logical_k": self.logical_k,
            "bias": self.bias,
            "out_dtype": self.out_dtype,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "LayerSpec":
        """The inverse of `to_json`."""
        return cls(
            name=data["name"],
            scheme=Scheme(data["scheme"]),
            projections=tuple(Projection(name=n, logical_width=w) for n, w in data["projections"]),
            logical_k=data["logical_k"],
            bias=data["bias"],
            out_dtype=data["out_dtype"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSource:
    """Weights drawn from a seed and written by our own checkpoint writer."""

    seed: int
    equal_scales: bool = False
    """One weight scale for all projections or channels: requantisation must then be a no-op."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealSource:
    """A layer of a real ModelOpt export of SmolLM2-135M-Instruct."""

    trimmed: bool = False
    """True when rows and columns were cut off, since all real sizes are multiples of 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSource:
    """A synthetic checkpoint whose config names another quant_algo than the layer is asked in."""

    seed: int
    quant_algo: str | None
    """As the config spells it, for the layer."""
    mixed: bool = False
    """Whether the config says MIXED_PRECISION and names `quant_algo` for the layer alone."""


Source = SyntheticSource | RealSource | ForeignSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """How a case must be declined: by this error, in these words, before anything is loaded."""

    error: str
    """Class name of the typed error."""
    names: tuple[str, ...]
    """What its message must say, the layer among it."""
    every_route: bool
    """True where no route may load the layer; False where only attaching is declined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What every case says: where it runs, by what, and how it must end."""

    transport: str
    kernel: str = "reference"
    device: str = "cpu"
    """Where engines and daemon hold the weights and multiply: `cpu` or `cuda`."""
    daemon_kernel: str = ""
    """The daemon's backend, where it is another than the engines'."""
    subject: str = "builtin"
    refusal: Refusal | None = None
    fallback_allowed: bool = False
    """Whether the ipc routes may fall back too: a refusal must not hide behind it."""
    daemon_killed: bool = False
    """Whether the daemon is killed (SIGKILL) under the last engine, once that has attached."""

    @property
    def expected(self) -> Outcome:
        """How the case must end."""
        return Outcome.REFUSED if self.refusal else Outcome.PASS

    @property
    def id(self) -> str:
        """Lower-case ASCII joined by `-`; names no GPU, so that history compares across hosts."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """The `case` object of the evidence (builtins only)."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSpec(Claim):
    """One claim: this layer, on this kernel, over this transport, ends as expected."""

    layer: LayerSpec
    projection: ProjectionKind
    source: Source
    m_values: tuple[int, ...] = (0, 1, 2, 16, 17, 128)
    """Numbers of tokens; each is one forward pass."""

    @property
    def id(self) -> str:
        """Lower-case ASCII joined by `-`; names no GPU, so that history compares across hosts."""
        layer = self.layer
        parts = [
            *_origin(self.source, layer),
            self.projection.value,
            f"n{layer.logical_width}",
            f"k{layer.logical_k}",
            *_scales(self.source, layer, self.projection),
            "bias" if layer.bias else "",
            "fp16" if layer.out_dtype == "float16" else "bf16",
            self.kernel,
            f"daemon-{self.daemon_kernel}" if self.daemon_kernel else "",
            self.transport,
            "fallback-allowed" if self.fallback_allowed else "",
            "daemon-killed" if self.daemon_killed else "",
        ]
        return "-".join(part.lower().replace("_", "-") for part in parts if part)

    def describe(self) -> dict[str, Any]:
        """The `case` object of the evidence (builtins only)."""
        scheme, source = _described(self.source, self.layer)
        return {
            "id": self.id,
            "subject": self.subject,
            "scheme": scheme,
            "projection": self.projection.value,
            "layer": self.layer.name,
            "source": source,
            "logical_widths": list(self.layer.logical_widths),
            "padded_width": self.layer.padded_width,
            "k": self.layer.logical_k,
            "padded_k": self.layer.padded_k,
            "m_values": list(self.m_values),
            "out_dtype": self.layer.out_dtype,
            "bias": self.layer.bias,
            "kernel": self.kernel,
            "daemon_kernel": self.daemon_kernel or self.kernel,
            "device": self.device,
            "transport": self.transport,
            "fallback_allowed": self.fallback_allowed,
            "daemon_killed": self.daemon_killed,
            "expected": self.expected.value,
        }


def _origin(source: Source, layer: LayerSpec) -> list[str]:
    match source:
        case RealSource():
            return ["smollm2", layer.scheme.value]
        case SyntheticSource():
            return ["synthetic", layer.scheme.value]
        case ForeignSource(quant_algo=algo, mixed=mixed):
            # Ids are lower-case, so the spelling needs a word of its own.
            spelling = "lower-case" if algo and algo.islower() else ""
            return ["foreign", "mixed" if mixed else "", algo or "null", spelling]


def _scales(source: Source, layer: LayerSpec, kind: ProjectionKind) -> list[str]:
    if not isinstance(source, SyntheticSource):
        return []
    if kind in (ProjectionKind.QKV, ProjectionKind.GATE_UP) and len(layer.projections) == 1:
        return ["fused-on-disk"]
    # A single per-tensor scale is neither equal nor unequal to another.
    comparable = layer.scheme is not Scheme.FP8 or len(layer.projections) > 1
    return ["equal" if source.equal_scales else "unequal"] if comparable else []


def _described(source: Source, layer: LayerSpec) -> tuple[str, str]:
    """The scheme that the checkpoint names, and where the checkpoint comes from."""
    match source:
        case RealSource(trimmed=trimmed):
            cut = ", trimmed" if trimmed else ""
            return layer.scheme.value, f"SmolLM2-135M-Instruct, ModelOpt export{cut}"
        case SyntheticSource(seed=seed, equal_scales=equal):
            return layer.scheme.value, f"synthetic, seed {seed}, {'equal' if equal else 'unequal'} scales"
        case ForeignSource(seed=seed, quant_algo=algo, mixed=mixed):
            named = f"MIXED_PRECISION with {algo}" if mixed else algo or "null"
            return named, f"synthetic, seed {seed}, config names {named}"
