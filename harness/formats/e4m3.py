"""Scale arithmetic on E4M3, named `modelopt-vllm-1`.

The order of operations is vLLM 0.33.0's on CUDA, so that our bytes can equal a real vLLM layer's.
Each step was compared byte for byte with vLLM's own operators on an H200
(docs/decisions/0002-arithmetic.md); what a step must not be written as is said beside it.
"""

import torch

PROCESSING = "modelopt-vllm-1"
"""Names this arithmetic; part of the cache key."""

E4M3 = torch.float8_e4m3fn
E4M3_MAX = torch.finfo(E4M3).max

MIN_TOKEN_SCALE = 1.0 / (E4M3_MAX * 512.0)
"""Floor of a dynamic per-token scale, so that an all-zero row does not divide by zero."""


def saturating_e4m3(values: torch.Tensor) -> torch.Tensor:
    """Cast float32 of any shape to E4M3: clamp to +-448, NaN stays NaN.

    The clamp is explicit because torch 2.11 casts out-of-range values to NaN while 2.13 saturates.
    """
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(E4M3)


def dequantize_fp16(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """E4M3 [N, K] times a float32 scalar, as float16 [N, K].

    The scale is rounded to float16 first. vLLM writes `weight.to(float16) * scale`, which rounds the
    0-d scale on CUDA but not on a CPU; this spelling gives CUDA's bytes on both.
    """
    return (weight.to(torch.float32) * scale.to(torch.float16).to(torch.float32)).to(torch.float16)


def quantize_static(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Any float to E4M3 by a float32 scalar: multiply by 1/scale in float32, clamp, cast."""
    return saturating_e4m3(values.to(torch.float32) * scale.reciprocal())


def quantize_per_token(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[M, K] floats to E4M3 [M, K] and float32 scales [M, 1]: rowmax / 448, then a true division.

    NaN does not enter the maximum, so it stays where it is. The divisor 448 is a tensor: CUDA turns a
    division by a Python number into a product with its reciprocal, which changes half of the scales.
    """
    wide = values.to(torch.float32)
    magnitude = wide.abs().nan_to_num(nan=0.0, posinf=torch.inf)
    row_max = magnitude.amax(dim=1, keepdim=True)
    scale = (row_max / torch.full_like(row_max, E4M3_MAX)).clamp(min=MIN_TOKEN_SCALE)
    return saturating_e4m3(wide / scale), scale
