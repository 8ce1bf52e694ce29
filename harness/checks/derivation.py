"""The independent derivation: processed tensors and activations, computed from the checkpoint in numpy.

It shares no code with `formats/`: casts go through a table of all 256 E4M3 values, not through torch.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from ..checkpoint.layers import ProjectionTensors
from ..spec import LayerSpec, Scheme

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def _decode(code: int) -> float:
    sign, exponent, mantissa = -1.0 if code & 0x80 else 1.0, (code >> 3) & 0xF, code & 0x7
    if code & 0x7F == 0x7F:
        return float("nan")
    value: float = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return sign * value


DECODED = np.array([_decode(code) for code in range(256)], dtype=np.float64)
_POSITIVE = DECODED[:0x7F]
_MIDPOINTS = (_POSITIVE[1:] + _POSITIVE[:-1]) / 2


def encode_e4m3(values: Floats) -> Bytes:
    """Nearest E4M3 code, ties to the even code, saturating; NaN becomes 0x7f."""
    wide = np.abs(values.astype(np.float64))
    below = np.searchsorted(_MIDPOINTS, wide, side="left")
    above = np.searchsorted(_MIDPOINTS, wide, side="right")
    code = np.where((below != above) & (below % 2 == 1), above, below).astype(np.uint8)
    code = code | np.where(np.signbit(values), 0x80, 0).astype(np.uint8)
    return np.where(np.isnan(values), np.uint8(0x7F), code)


def nearest(values: Doubles, dtype: torch.dtype) -> Doubles:
    """float64 values to the nearest ones that bfloat16 or float16 has, ties to even, as float64."""
    info = torch.finfo(dtype)
    _, exponent = np.frexp(values)
    # The step between neighbours: eps at 1, and no finer than that of the smallest normal number.
    smallest = int(np.log2(info.smallest_normal)) + 1
    step = np.ldexp(info.eps / 2, np.maximum(exponent, smallest))
    rounded: Doubles = np.rint(values / step) * step
    return np.where(np.abs(rounded) > info.max, np.copysign(np.inf, values), rounded)


def processed_bytes(layer: LayerSpec, projections: list[ProjectionTensors]) -> dict[str, Bytes]:
    """Tensor name to the bytes that post-load processing must leave, in memory order."""
    rows = [_codes(p.weight) for p in projections]
    scales = [p.weight_scale.numpy().astype(np.float32) for p in projections]
    if layer.scheme is Scheme.FP8:
        rows, expected = _per_tensor(rows, scales, projections)
    else:
        expected = {"weight_scale": np.ones(layer.padded_width, dtype=np.float32)}
        expected["weight_scale"][: layer.logical_width] = np.concatenate(scales)
    weight = np.zeros((layer.padded_width, layer.padded_k), dtype=np.uint8)
    weight[: layer.logical_width, : layer.logical_k] = np.concatenate(rows)
    result = {name: np.atleast_1d(value).view(np.uint8) for name, value in expected.items()}
    return result | {"weight": weight.reshape(-1)} | _bias(layer, projections)


def activation_bytes(
    layer: LayerSpec, x: torch.Tensor, input_scale: np.float32 | None
) -> tuple[Bytes, Floats]:
    """E4M3 codes [M, padded_k] and scales, () or [M, 1], for activations [M, logical_k]."""
    wide = x.to(torch.float32).numpy()
    if input_scale is not None:
        scale = np.float32(input_scale)
        codes = encode_e4m3(wide * (np.float32(1) / scale))
    else:
        peak = np.nanmax(np.abs(wide), axis=1, keepdims=True, initial=0.0).astype(np.float32)
        scale = np.maximum(peak / np.float32(448), np.float32(1 / (448 * 512)))
        codes = encode_e4m3(wide / scale)
    padded = np.zeros((x.shape[0], layer.padded_k), dtype=np.uint8)
    padded[:, : layer.logical_k] = codes
    return padded, np.asarray(scale, dtype=np.float32)


def largest_input_scale(projections: list[ProjectionTensors]) -> np.float32 | None:
    """The static input scale of the fused layer; None for dynamic schemes."""
    scales = [p.input_scale.item() for p in projections if p.input_scale is not None]
    return np.float32(max(scales)) if scales else None


def _codes(weight: torch.Tensor) -> Bytes:
    codes: Bytes = weight.view(torch.uint8).numpy()
    return codes


def _per_tensor(
    rows: list[Bytes], scales: list[Floats], projections: list[ProjectionTensors]
) -> tuple[list[Bytes], dict[str, Floats]]:
    largest = np.float32(max(float(s) for s in scales))
    if any(float(s) != float(scales[0]) for s in scales):
        rows = [_requantized(r, s, largest) for r, s in zip(rows, scales, strict=True)]
    input_scale = largest_input_scale(projections)
    assert input_scale is not None
    return rows, {"weight_scale": np.asarray(largest), "input_scale": np.asarray(input_scale)}


def _requantized(codes: Bytes, scale: Floats, largest: np.float32) -> Bytes:
    # float64 holds the product of an E4M3 value and a float16 scale exactly, so float16 rounds once.
    half = (DECODED * np.float64(np.float16(scale))).astype(np.float16)
    # One answer a code, so that a whole model takes no longer than looking its codes up.
    table = encode_e4m3(half.astype(np.float32) * (np.float32(1) / largest))
    return table[codes]


def _bias(layer: LayerSpec, projections: list[ProjectionTensors]) -> dict[str, Bytes]:
    biases = [p.bias for p in projections if p.bias is not None]
    if not biases:
        return {}
    padded = torch.zeros(layer.padded_width, dtype=getattr(torch, layer.out_dtype))
    padded[: layer.logical_width] = torch.cat(biases).to(padded.dtype)
    raw: Bytes = padded.view(torch.uint8).numpy()
    return {"bias": raw}
