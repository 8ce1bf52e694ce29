"""How far a sum on Hopper's FP8 tensor cores may be off: the constants and the two ways of summing.

An MMA takes 32 products and the sum so far, aligns all 33 addends to the largest of them and drops what lies
below the bits that it keeps. `ADDEND_ERROR` is what one addend may lose so, relative to the largest; none
is larger than the sum of all magnitudes. Both bounds are of the worst operands; drawn ones stay far below.
"""

PRODUCTS_PER_MMA = 32
ADDENDS_PER_MMA = PRODUCTS_PER_MMA + 1
MMAS_PER_PROMOTION = 4
K_PER_PROMOTION = PRODUCTS_PER_MMA * MMAS_PER_PROMOTION
ADDEND_ERROR = 2.0**-13
"""About 14 bits are kept. To be confirmed with tools/check_cutlass.py and cases/gpu/test_kernels.py."""

FLOAT32_ROUNDING = 2.0**-24
EPILOGUE_ROUNDINGS = 3
"""Two scales and a bias, in float32."""


def promoted_sum_error(k: int) -> float:
    """Relative to the sum of the magnitudes, where 128 products at a time are added to a float32 sum.

    Each tensor core sum starts from zero, so its error is relative to its own magnitudes, and K does not add
    up but for one float32 rounding a promotion.
    """
    tensor_core = MMAS_PER_PROMOTION * ADDENDS_PER_MMA * ADDEND_ERROR
    return tensor_core + (_parts(k, K_PER_PROMOTION) + EPILOGUE_ROUNDINGS) * FLOAT32_ROUNDING


def fast_sum_error(k: int) -> float:
    """Relative to the sum of the magnitudes, where the tensor core keeps the running sum over all of K."""
    tensor_core = _parts(k, PRODUCTS_PER_MMA) * ADDENDS_PER_MMA * ADDEND_ERROR
    return tensor_core + EPILOGUE_ROUNDINGS * FLOAT32_ROUNDING


def _parts(k: int, size: int) -> int:
    return -(-k // size)
