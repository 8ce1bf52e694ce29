"""Quantisation formats by scheme. A scheme more is one file and one row here."""

from ..spec import Scheme
from .fp8_per_channel import PerChannelFp8
from .fp8_per_tensor import PerTensorFp8
from .protocol import Format, Layout, ProcessedLayer, TensorLayout

FORMATS: dict[Scheme, Format] = {f.scheme: f for f in (PerTensorFp8(), PerChannelFp8())}

__all__ = ["FORMATS", "Format", "Layout", "ProcessedLayer", "TensorLayout"]
