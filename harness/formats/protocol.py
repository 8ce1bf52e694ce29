"""What a quantisation format does, and what it leaves: the processed layer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from ..checkpoint.layers import ProjectionTensors
from ..spec import LayerSpec, Scheme


@dataclass(frozen=True, slots=True)
class Layout:
    """What the tensors alone do not say, and an attached engine must restore."""

    logical_width: int
    """Output features that a caller sees."""
    padded_width: int
    """Columns of the processed weight."""
    logical_k: int
    """Input features that a caller passes."""
    padded_k: int
    """Rows of the processed weight."""
    transposed: bool
    """True once the weight is [K, N] column-major: post-load processing has run."""

    @classmethod
    def of(cls, layer: LayerSpec) -> "Layout":
        """The layout that a correctly processed `layer` has."""
        return cls(
            logical_width=layer.logical_width,
            padded_width=layer.padded_width,
            logical_k=layer.logical_k,
            padded_k=layer.padded_k,
            transposed=True,
        )

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedLayer:
    """A layer after post-load processing: exactly what the daemon serves."""

    spec: LayerSpec
    layout: Layout
    tensors: dict[str, torch.Tensor]
    """`weight` E4M3 [padded_k, padded_width] column-major; `weight_scale` float32 () or
    [padded_width]; `input_scale` float32 () where static; `bias` [padded_width] in the output dtype."""

    @property
    def name(self) -> str:
        """Module path of the fused layer."""
        return self.spec.name

    def to(self, device: str) -> "ProcessedLayer":
        """The same layer on a device, strides and all; itself where it lies there already."""
        return replace(self, tensors={name: tensor.to(device) for name, tensor in self.tensors.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """What a tensor is, without its bytes: enough to reserve its place."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """In elements; covers the bytes once."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorLayout":
        """The layout that `tensor` has."""
        return cls(dtype=tensor.dtype, shape=tuple(tensor.shape), stride=tuple(tensor.stride()))

    @classmethod
    def packed(cls, dtype: torch.dtype, shape: tuple[int, ...]) -> "TensorLayout":
        """Row after row, as a checkpoint stores it."""
        strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
        return cls(dtype=dtype, shape=shape, stride=strides)

    @property
    def nbytes(self) -> int:
        """Bytes that the tensor takes."""
        return math.prod(self.shape) * self.dtype.itemsize


class Format(Protocol):
    """One file per scheme implements this."""

    scheme: Scheme

    def tensors_of(self, layer: LayerSpec) -> dict[str, TensorLayout]:
        """What `process` leaves of this layer, known before anything is read."""

    def process(self, layer: LayerSpec, projections: Sequence[ProjectionTensors]) -> ProcessedLayer:
        """Fuse, requantise, transpose and pad what the checkpoint holds.

        Raises:
            BadScale: a scale cannot be used by the arithmetic.
        """

    def quantize_activation(
        self, x: torch.Tensor, processed: ProcessedLayer
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[M, K] to E4M3 [M, K] and its float32 scale, () or [M, 1]."""
