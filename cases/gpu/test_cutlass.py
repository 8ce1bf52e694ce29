"""Our CUTLASS kernel on a Hopper GPU: exact where it must be, the same each time, and inside its operands."""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch

from loadproof.harness.errors import LoadproofError
from loadproof.harness.formats.e4m3 import E4M3
from loadproof.harness.kernels.cutlass import CutlassKernel, abi
from loadproof.harness.kernels.reference import ReferenceKernel, rounded_once

# It may have to be compiled first.
pytestmark = pytest.mark.timeout(900)

ROWS = (0, 1, 2, 16, 17, 64, 128, 129, 512, 2048)
N_K = (
    (16, 16),
    (48, 80),
    (80, 176),
    (176, 48),
    (576, 576),
    (576, 1536),
    (1536, 576),
    (8192, 1536),
    (1536, 8192),
)
REPEATS = 20


@pytest.fixture(scope="module")
def kernel() -> CutlassKernel:
    kernel = CutlassKernel()
    try:
        kernel.build_id()
    except LoadproofError as error:
        pytest.skip(str(error))
    return kernel


def generator(seed: int) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


def units(m: int, n: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """-1, 0 and 1: every partial sum is exact wherever it is kept."""
    drawn = [
        torch.randint(-1, 2, (rows, k), generator=generator(seed + rows), device="cuda") for rows in (m, n)
    ]
    return drawn[0].float().to(E4M3), drawn[1].float().to(E4M3).t()


def spread(m: int, n: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All finite codes alike, so that sums are hard."""

    def codes(rows: int) -> torch.Tensor:
        drawn = torch.randint(0, 254, (rows, k), generator=generator(seed), device="cuda", dtype=torch.int16)
        # 0x7f and 0xff are NaN: skip over the first, and stop before the second.
        return torch.where(drawn >= 0x7F, drawn + 1, drawn).to(torch.uint8).view(E4M3)

    return codes(m), codes(n).t()


def powers(size: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.exp2(torch.randint(-3, 4, size, generator=generator(seed), device="cuda").float())


def variants(m: int, n: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.dtype]]:
    """Scales of both shapes, with and without bias, in both output dtypes."""
    for row, column, biased, dtype in itertools.product(
        (False, True), (False, True), (False, True), (torch.bfloat16, torch.float16)
    ):
        bias = (powers((n,), 3) * 8).to(dtype) if biased else None
        yield powers((m, 1) if row else (), 1), powers((n,) if column else (), 2), bias, dtype


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """float64 holds every partial sum of E4M3 products, in any order."""
    return a.double() @ b.double()


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.view(torch.int16), right.view(torch.int16))


@pytest.mark.parametrize("m", ROWS)
def test_exact_sums_give_the_nearest_numbers(kernel: CutlassKernel, m: int) -> None:
    for n, k in N_K:
        a, b = units(m, n, k, k)
        total = exact(a, b)
        for scale_a, scale_b, bias, dtype in variants(m, n):
            out = kernel.scaled_mm(a, b, scale_a, scale_b, bias, dtype)
            want = total * (scale_a.double() * scale_b.double())
            want = want if bias is None else want + bias.double()
            assert (out.shape, out.dtype) == ((m, n), dtype)
            assert same_bytes(out, rounded_once(want, dtype)), f"{n=} {k=} {scale_a.shape=} {scale_b.shape=}"


def test_cpu_reference_gives_the_same_bytes(kernel: CutlassKernel) -> None:
    one = torch.ones(())
    for m in (2, 17, 129):
        a, b = units(m, 48, 80, 9)
        out = kernel.scaled_mm(a, b, one.cuda(), one.cuda(), None, torch.float16)
        on_cpu = ReferenceKernel().scaled_mm(a.cpu(), b.t().cpu().t(), one, one, None, torch.float16)
        assert same_bytes(out.cpu(), on_cpu)


@pytest.mark.parametrize("m", [1, 16, 128, 2048])
def test_repeated_launches_give_the_same_bytes(kernel: CutlassKernel, m: int) -> None:
    one = torch.tensor(2.0**-12, device="cuda")
    for n, k in ((576, 1536), (8192, 1536), (1536, 8192)):
        a, b = spread(m, n, k, 5)
        first = kernel.scaled_mm(a, b, one, one, None, torch.bfloat16)
        for _ in range(REPEATS):
            assert same_bytes(first, kernel.scaled_mm(a, b, one, one, None, torch.bfloat16))


@pytest.mark.parametrize("m", [2, 17, 129])
def test_nan_stays_in_its_row(kernel: CutlassKernel, m: int) -> None:
    a, b = units(m, 48, 80, 7)
    a[1, 3] = torch.tensor(math.nan).to(E4M3)
    one = torch.ones((), device="cuda")
    out = kernel.scaled_mm(a, b, one, one, None, torch.bfloat16)
    assert out.isnan().any(dim=1).nonzero().flatten().tolist() == [1]
    assert out[1].isnan().all()


@pytest.mark.parametrize("m", [2, 17, 129])
def test_zero_keeps_the_sign_of_what_it_was(kernel: CutlassKernel, m: int) -> None:
    a, b = units(m, 48, 80, 8)
    tiny, small = torch.tensor(2.0**-126, device="cuda"), torch.tensor(2.0**-60, device="cuda")
    out = kernel.scaled_mm(a, b, tiny, small, None, torch.bfloat16)
    assert (out == 0).all()
    assert torch.equal(out.signbit(), exact(a, b) < 0)


@pytest.mark.parametrize("m", [3, 17, 129])
def test_operands_and_output_may_lie_in_wider_storage(kernel: CutlassKernel, m: int) -> None:
    code, (n, k) = kernel._library(torch.device("cuda", 0)), (80, 48)
    one = torch.ones((), device="cuda")
    a, b = units(m, n, k, 11)
    wide_a, wide_b = (torch.zeros(rows, wide, device="cuda").to(E4M3) for rows, wide in ((m, 64), (n, 96)))
    wide_a[:, :k], wide_b[:, :k] = a, b.t()
    wide_d = torch.full((m, 96), 7.0, device="cuda", dtype=torch.bfloat16)
    problem = abi.Problem(
        a=wide_a.data_ptr(), b=wide_b.data_ptr(), d=wide_d.data_ptr(), scale_a=one.data_ptr(),
        scale_b=one.data_ptr(), bias=None, lda=64, ldb=96, ldd=96, m=m, n=n, k=k, out_type=abi.BFLOAT16,
    )  # fmt: skip
    stream = torch.cuda.current_stream().cuda_stream
    assert code.loadproof_cutlass_scaled_mm(problem, None, 0, stream) == 0
    assert same_bytes(wide_d[:, :n].contiguous(), rounded_once(exact(a, b), torch.bfloat16))
    assert (wide_d[:, n:] == 7.0).all()
