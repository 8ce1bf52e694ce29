"""Fusing and padding, common to all formats."""

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from ..checkpoint.layers import ProjectionTensors
from ..spec import LayerSpec
from ..tensor_bytes import dtype_of
from .e4m3 import E4M3
from .protocol import TensorLayout


def weight_and_bias(layer: LayerSpec) -> dict[str, TensorLayout]:
    """Layouts of what `fused_weight` and `fused_bias` give."""
    k, n = layer.padded_k, layer.padded_width
    layouts = {"weight": TensorLayout(dtype=E4M3, shape=(k, n), stride=(1, k))}
    if layer.bias:
        layouts["bias"] = TensorLayout(dtype=dtype_of(layer.out_dtype), shape=(n,), stride=(1,))
    return layouts


def fused_weight(weights: Sequence[torch.Tensor], layer: LayerSpec) -> torch.Tensor:
    """E4M3 [width, logical_k] of each projection to a column-major view [padded_k, padded_width] of all.

    The stored rows are [padded_width, padded_k]; padding is the byte 0, which is +0.
    """
    codes = torch.cat([weight.view(torch.uint8) for weight in weights])
    rows, columns = layer.padded_width - codes.shape[0], layer.padded_k - codes.shape[1]
    return pad(codes, (0, columns, 0, rows)).contiguous().view(E4M3).t()


def padded_channel_scale(scale: torch.Tensor, layer: LayerSpec) -> torch.Tensor:
    """float32 [logical_width] to [padded_width]; padded channels get 1.0, so that 0 x scale stays 0."""
    return pad(scale, (0, layer.padded_width - scale.shape[0]), value=1.0)


def fused_bias(layer: LayerSpec, projections: Sequence[ProjectionTensors]) -> dict[str, torch.Tensor]:
    """`{"bias": [padded_width]}` in the output dtype, padded with zeros; empty without bias."""
    biases = [p.bias for p in projections if p.bias is not None]
    if not biases:
        return {}
    bias = torch.cat(biases).to(dtype_of(layer.out_dtype))
    return {"bias": pad(bias, (0, layer.padded_width - bias.shape[0]))}


def padded_activation(quantized: torch.Tensor, padded_k: int) -> torch.Tensor:
    """E4M3 [M, K] to [M, padded_k] with zero bytes, packed; as it is where nothing is padded."""
    if quantized.shape[1] == padded_k:
        return quantized.contiguous()
    return pad(quantized.view(torch.uint8), (0, padded_k - quantized.shape[1])).view(E4M3)
