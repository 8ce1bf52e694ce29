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
    """One weight scale for all projections: requantisation must then be a no-op."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealSource:
    """A layer of a real ModelOpt export of SmolLM2-135M-Instruct."""

    trimmed: bool = False
    """True when output rows were cut off, since all real widths are multiples of 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSpec:
    """One claim: this layer, on this kernel, over this transport, ends as expected."""

    layer: LayerSpec
    projection: ProjectionKind
    source: SyntheticSource | RealSource
    transport: str
    kernel: str = "reference"
    subject: str = "builtin"
    m_values: tuple[int, ...] = (1, 2, 16, 17, 128)
    """Numbers of tokens; each is one forward pass."""
    expected: Outcome = Outcome.PASS

    @property
    def id(self) -> str:
        """Lower-case ASCII joined by `-`; names no GPU, so that history compares across hosts."""
        layer = self.layer
        parts = [
            "smollm2" if isinstance(self.source, RealSource) else "synthetic",
            layer.scheme.value.lower().replace("_", "-"),
            self.projection.value,
            f"n{layer.logical_width}",
            f"k{layer.logical_k}",
            self.kernel,
            self.transport,
        ]
        return "-".join(parts)

    def describe(self) -> dict[str, Any]:
        """The `case` object of the evidence (builtins only)."""
        source = self.source
        return {
            "id": self.id,
            "subject": self.subject,
            "scheme": self.layer.scheme.value,
            "projection": self.projection.value,
            "layer": self.layer.name,
            "source": (
                f"SmolLM2-135M-Instruct, ModelOpt export{', trimmed' if source.trimmed else ''}"
                if isinstance(source, RealSource)
                else f"synthetic, seed {source.seed}"
            ),
            "logical_widths": list(self.layer.logical_widths),
            "padded_width": self.layer.padded_width,
            "k": self.layer.logical_k,
            "padded_k": self.layer.padded_k,
            "m_values": list(self.m_values),
            "out_dtype": self.layer.out_dtype,
            "bias": self.layer.bias,
            "kernel": self.kernel,
            "transport": self.transport,
            "expected": self.expected.value,
        }
