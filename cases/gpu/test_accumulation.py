"""What harness/kernels/accumulation.py says of the tensor cores, measured on each backend.

One product is 1; beside it stand smaller ones, and a bias of -1 leaves what they came to. With `-s`, one line
for each backend and number of rows.
"""

import pytest
import torch

from loadproof.harness.errors import LoadproofError
from loadproof.harness.formats.e4m3 import E4M3
from loadproof.harness.kernels import Kernel, make_kernel
from loadproof.harness.kernels.accumulation import FRACTION_BITS, K_PER_PROMOTION, PRODUCTS_PER_MMA

pytestmark = pytest.mark.timeout(900)

PROMOTING = {"cutlass": False, "vllm-cutlass": False, "torch-scaled-mm": True, "triton": True}
"""Whether a backend moves the running sum to float32 every K_PER_PROMOTION products."""
N = 16
MOST_BITS = 17
"""Smaller than 2^-18 no product of two E4M3 numbers is."""

WHERE = {
    "the same MMA": (0, range(1, 2)),
    "the other half of the MMA": (0, range(16, 17)),
    "all of the MMA": (0, range(1, PRODUCTS_PER_MMA)),
    "the MMA after": (0, range(PRODUCTS_PER_MMA, PRODUCTS_PER_MMA + 1)),
    "the MMA before": (PRODUCTS_PER_MMA, range(1)),
}
"""Where the large product stands, and where the small ones."""
PROMOTED = "after a promotion", (0, range(K_PER_PROMOTION, K_PER_PROMOTION + 1))


@pytest.fixture(params=sorted(PROMOTING))
def kernel(request: pytest.FixtureRequest) -> Kernel:
    kernel = make_kernel(request.param)
    try:
        # Asked for a product: what is missing shows at the first.
        left_over(kernel, 1, 0, range(1, 2), 1.0, 1.0)
    except LoadproofError as error:
        pytest.skip(str(error))
    return kernel


def left_over(kernel: Kernel, m: int, large: int, small: range, x: float, y: float) -> float:
    """The sum of 1 at `large` and x * y at each of `small`, less 1; the same in each of the M x N outputs."""
    k = 2 * K_PER_PROMOTION
    a, b = torch.zeros(m, k, device="cuda"), torch.zeros(N, k, device="cuda")
    a[:, small], b[:, small] = x, y
    a[:, large], b[:, large] = 1.0, 1.0
    one, bias = torch.ones((), device="cuda"), torch.full((N,), -1.0, device="cuda", dtype=torch.bfloat16)
    out = kernel.scaled_mm(a.to(E4M3), b.to(E4M3).t(), one, one, bias, torch.bfloat16)
    (value,) = out.unique().tolist()
    return float(value)


def bits_kept(kernel: Kernel, m: int, large: int, small: range, sign: float) -> int:
    """The most n for which products of 2^-n count beside 1; each size below it counts, and none above."""
    counted = [
        left_over(kernel, m, large, small, sign * 2.0**-8, 2.0 ** -(n - 8)) == sign * len(small) * 2.0**-n
        for n in range(9, MOST_BITS + 1)
    ]
    kept = 8 + counted.index(False) if False in counted else MOST_BITS
    assert not any(counted[kept - 8 :])
    return kept


@pytest.mark.parametrize("m", [1, 128, 256])
def test_bits_that_an_addend_keeps(kernel: Kernel, m: int) -> None:
    found = {
        (where, sign): bits_kept(kernel, m, large, small, sign)
        for where, (large, small) in WHERE.items()
        for sign in (1.0, -1.0)
    }
    print(f"\n{kernel.name} M={m}: {found}")
    assert set(found.values()) == {FRACTION_BITS}


@pytest.mark.parametrize("m", [1, 128, 256])
def test_running_sum_is_promoted_or_not(kernel: Kernel, m: int) -> None:
    kept = bits_kept(kernel, m, *PROMOTED[1], 1.0)
    print(f"\n{kernel.name} M={m} {PROMOTED[0]}: {kept}")
    assert kept == (MOST_BITS if PROMOTING[kernel.name] else FRACTION_BITS)


def test_sum_of_ones(kernel: Kernel) -> None:
    k = 28672
    ones, one = torch.ones(1, k, device="cuda").to(E4M3), torch.ones((), device="cuda")
    weights = torch.ones(N, k, device="cuda").to(E4M3).t()
    out = kernel.scaled_mm(ones, weights, one, one, None, torch.bfloat16)
    assert out.unique().tolist() == [float(k) if PROMOTING[kernel.name] else 2.0 ** (FRACTION_BITS + 1)]
