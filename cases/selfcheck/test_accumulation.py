"""The bounds of the tensor cores' sums, held against an emulation of what was measured on them."""

import numpy as np
import pytest

from loadproof.harness.kernels import accumulation
from loadproof.harness.kernels.accumulation import Doubles

MMA = accumulation.PRODUCTS_PER_MMA


def cut(values: Doubles, largest: Doubles, bits: int) -> Doubles:
    """Drop what lies below `bits` fractional bits of the largest, towards zero."""
    _, exponent = np.frexp(largest)
    unit = np.ldexp(1.0, exponent - 1 - bits)
    return np.trunc(values / unit) * unit


def emulated(
    a: Doubles, b: Doubles, bits: int = accumulation.FRACTION_BITS, promote: int = 1 << 30
) -> Doubles:
    """The sums, float64 [M, N], of A [M, K] and B [N, K], as the tensor cores make them."""
    sums, running = np.zeros((len(a), len(b))), np.zeros((len(a), len(b)))
    for start in range(0, a.shape[1], MMA):
        if start % promote == 0:
            sums, running = sums + running, np.zeros_like(running)
        products = a[:, None, start : start + MMA] * b[None, :, start : start + MMA]
        addends = np.concatenate([products, running[:, :, None]], axis=2)
        total = cut(addends, np.abs(addends).max(axis=2, keepdims=True), bits).sum(axis=2)
        running = cut(total, np.abs(total), bits)
    return sums + running


def spread(rows: int, k: int, seed: int) -> Doubles:
    """Of E4M3's magnitudes, 2^-9 to 448, both signs, all exponents alike."""
    generator = np.random.default_rng(seed)
    drawn = np.ldexp(generator.integers(8, 16, (rows, k)) / 8, generator.integers(-6, 9, (rows, k)))
    return drawn * generator.choice([-1.0, 1.0], (rows, k))


def operands(kind: str, k: int) -> tuple[Doubles, Doubles]:
    a, b = spread(5, k, k), spread(7, k, k + 1)
    if kind == "positive":
        return np.abs(a), np.abs(b)
    if kind == "ones":
        return np.ones_like(a), np.ones_like(b)
    if kind == "one-large":
        a, b = a / 512, b / 512
        a[:, k // 2], b[:, k // 2] = 448.0, 448.0
    return a, b


@pytest.mark.parametrize("kind", ["spread", "positive", "ones", "one-large"])
@pytest.mark.parametrize("k", [16, 32, 48, 128, 576, 1536, 16400])
def test_bound_holds_what_the_tensor_cores_lose(kind: str, k: int) -> None:
    a, b = operands(kind, k)
    exact = a @ b.T
    for bound, promote in ((accumulation.fast_error, 1 << 30), (accumulation.promoted_error, 128)):
        off = np.abs(emulated(a, b, promote=promote) - exact)
        assert (off <= bound(a, b)).all(), (off / bound(a, b)).max()


def test_bound_is_close_enough_to_see_one_bit_less() -> None:
    # One product of 1, and 31 of nearly 2^-12: with a bit less, each is dropped as a whole.
    a, b = np.full((1, MMA), 1.875 * 2.0**-7), np.full((1, MMA), 2.0**-6)
    a[0, 0] = b[0, 0] = 1.0
    bound = accumulation.fast_error(a, b)
    off = [np.abs(emulated(a, b, accumulation.FRACTION_BITS - less) - a @ b.T) for less in (0, 1)]
    assert off[0] <= bound < off[1]


@pytest.mark.parametrize(("k", "share"), [(64, 0.05), (576, 0.15), (1536, 0.25)])
def test_bound_is_a_small_part_of_an_output(k: int, share: float) -> None:
    """So that a wrong scale is seen: of normal operands, in the median output."""
    generator = np.random.default_rng(k)
    a, b = generator.normal(0, 8, (16, k)), generator.normal(0, 8, (64, k))
    assert np.median(accumulation.fast_error(a, b) / np.abs(a @ b.T)) < share
    assert np.median(accumulation.promoted_error(a, b) / np.abs(a @ b.T)) < share


def test_sum_of_ones_ends_where_a_one_no_longer_counts() -> None:
    ones = np.ones((1, 20_000))
    assert emulated(ones, ones) == 2.0 ** (accumulation.FRACTION_BITS + 1)
    assert emulated(ones, ones, promote=128) == 20_000


def test_exact_sums_are_off_by_nothing_and_float32_by_a_rounding_a_term() -> None:
    ones = np.ones((2, 100))
    assert not accumulation.no_error(ones, ones).any()
    assert (accumulation.float32_error(ones, ones) == 100 * 103 * 2.0**-24).all()
