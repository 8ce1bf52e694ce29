"""How far a sum on Hopper's FP8 tensor cores may be off the exact one, for the operands at hand.

An MMA takes 32 products and the sum so far, aligns all 33 addends to the largest of them, and drops what lies
below 13 fractional bits of that one: 2^-13 of it still counts, 2^-14 does not, wherever it stands among the
32 and whatever its sign. cases/gpu/test_accumulation.py measures just that, on each backend.

A kernel with fast accumulation leaves the running sum there over all of K (a sum of ones ends at 2^14); one
without moves it to a float32 sum every 128 products. The functions take float64 operands, A as [M, K] and B
as [N, K], and return the largest possible error of each sum, float64 [M, N], in the operands' units.
"""

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

FRACTION_BITS = 13
PRODUCTS_PER_MMA = 32
CUTS_PER_MMA = PRODUCTS_PER_MMA + 2
"""Where bits may be dropped: the products, the sum so far, and the sum that is kept."""
K_PER_PROMOTION = 128
FLOAT32_ROUNDING = 2.0**-24
EPILOGUE_ROUNDINGS = 3
"""Two scales and a bias, in float32."""


def no_error(a: Doubles, b: Doubles) -> Doubles:
    """Of a kernel whose sums are exact."""
    return np.zeros((len(a), len(b)))


def float32_error(a: Doubles, b: Doubles) -> Doubles:
    """Of a sum in float32 in any order: one rounding a term."""
    return _float32(a, b, a.shape[1])


def promoted_error(a: Doubles, b: Doubles) -> Doubles:
    """Of sums that start anew every 128 products, and are added up in float32."""
    parts = range(0, a.shape[1], K_PER_PROMOTION)
    each = [_tensor_core(a[:, i : i + K_PER_PROMOTION], b[:, i : i + K_PER_PROMOTION]) for i in parts]
    return sum(each, _float32(a, b, len(parts)))


def fast_error(a: Doubles, b: Doubles) -> Doubles:
    """Of a running sum that stays in the tensor core over all of K."""
    return _tensor_core(a, b) + _float32(a, b, 0)


def _tensor_core(a: Doubles, b: Doubles) -> Doubles:
    total, lost = np.zeros((len(a), len(b))), np.zeros((len(a), len(b)))
    for start in range(0, a.shape[1], PRODUCTS_PER_MMA):
        left, right = a[:, start : start + PRODUCTS_PER_MMA], b[:, start : start + PRODUCTS_PER_MMA]
        largest = np.maximum(np.abs(total), np.abs(left).max(axis=1)[:, None] * np.abs(right).max(axis=1))
        total += left @ right.T
        # The kernel's own sum is off by what is lost already, so its largest addend may be larger by as much.
        lost += (np.maximum(largest, np.abs(total)) + lost) * (CUTS_PER_MMA * 2.0**-FRACTION_BITS)
    return lost


def _float32(a: Doubles, b: Doubles, roundings: int) -> Doubles:
    magnitude: Doubles = np.abs(a) @ np.abs(b).T
    return magnitude * ((roundings + EPILOGUE_ROUNDINGS) * FLOAT32_ROUNDING)
