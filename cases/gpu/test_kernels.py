"""Every backend on a real GPU: right within its bound, and run by the library that it is named after.

With `-s`, one JSON line for each measured error of a sum, as a share of what the backend declares.
"""

import importlib.util
import json
import math
from collections.abc import Callable

import pytest
import torch

from loadproof.harness.errors import KernelContractError, LaunchError, LoadproofError
from loadproof.harness.formats.e4m3 import E4M3
from loadproof.harness.kernels import Kernel, make_kernel
from loadproof.harness.kernels.reference import ReferenceKernel, rounded_once
from loadproof.harness.witness.cupti import KernelWitness

# The CUTLASS library may have to be compiled first.
pytestmark = pytest.mark.timeout(900)

DEVICE = "cuda"
WORDS = {
    "cutlass": "cutlass",
    "vllm-cutlass": "cutlass",
    "torch-scaled-mm": "nvjet",
    "triton": "loadproof_triton_scaled_mm",
}
"""What must be in the name of a kernel that the driver launched."""

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
N_K = ((48, 80), (576, 1536), (1536, 576))
SUMMED_K = (32, 128, 576, 1536, 8192)
SUMMED_N = 4096
DOWN = 2.0**-12
"""Keeps the sums of `spread` in float16's range."""


def missing(name: str) -> str:
    """Why a backend cannot run here; empty if it can."""
    try:
        if name in ("cutlass", "vllm-cutlass"):
            make_kernel(name).build_id()
    except LoadproofError as error:
        return str(error)
    return "no triton" if name == "triton" and importlib.util.find_spec("triton") is None else ""


@pytest.fixture(scope="module", params=sorted(WORDS))
def kernel(request: pytest.FixtureRequest) -> Kernel:
    if reason := missing(request.param):
        pytest.skip(reason)
    return make_kernel(request.param)


def generator(seed: int) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def spread(rows: int, k: int, seed: int) -> torch.Tensor:
    """E4M3 [rows, k], all finite codes alike: magnitudes from 2^-9 to 448."""
    codes = torch.randint(0, 254, (rows, k), generator=generator(seed), device=DEVICE, dtype=torch.int16)
    # 0x7f and 0xff are NaN: skip over the first, and stop before the second.
    return torch.where(codes >= 0x7F, codes + 1, codes).to(torch.uint8).view(E4M3)


def scales(size: tuple[int, ...], seed: int) -> torch.Tensor:
    """float32 in [0.5, 1.5): no powers of two, so that a scale in the wrong place is seen."""
    return torch.rand(size, generator=generator(seed), device=DEVICE) + 0.5


def exact(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums and the sums of the magnitudes in float64, which holds every partial sum of E4M3 products."""
    return a.double() @ b.double(), a.double().abs() @ b.double().abs()


def run(
    kernel: Kernel, m: int, n: int, k: int, scaling: str, dtype: torch.dtype, biased: bool
) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    rows, columns = ((m, 1), (n,)) if scaling == "per-channel" else ((), ())
    given: dict[str, torch.Tensor | None] = {
        "a": spread(m, k, m + k),
        "b": spread(n, k, n + k).t(),
        "scale_a": scales(rows, 1) * DOWN,
        "scale_b": scales(columns, 2),
        "bias": (scales((n,), 3) * 8).to(dtype) if biased else None,
    }
    try:
        return kernel.scaled_mm(**given, out_dtype=dtype), given  # type: ignore[arg-type]
    except KernelContractError as error:
        if kernel.name == "torch-scaled-mm" and (scaling, dtype) == ("per-channel", torch.float16):
            pytest.skip(f"typed refusal: {error}")
        raise


@pytest.mark.parametrize("m", [0, 1, 16, 17, 128])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("scaling", ["per-tensor", "per-channel"])
def test_output_is_within_the_bound(kernel: Kernel, scaling: str, dtype: str, m: int) -> None:
    out_dtype = DTYPES[dtype]
    for n, k in N_K:
        for biased in (False, True):
            out, given = run(kernel, m, n, k, scaling, out_dtype, biased)
            assert (out.shape, out.dtype, out.is_contiguous()) == ((m, n), out_dtype, True)
            assert_within(kernel, out, given, f"N={n} K={k} bias {biased}")


def assert_within(
    kernel: Kernel, out: torch.Tensor, given: dict[str, torch.Tensor | None], case: str
) -> None:
    a, b, scale_a, scale_b, bias = (None if t is None else t.cpu() for t in given.values())
    assert a is not None and b is not None and scale_a is not None and scale_b is not None  # noqa: PT018
    total, _ = exact(a, b)
    both = scale_a.double() * scale_b.double()
    want = total * both + (0.0 if bias is None else bias.double())
    reference = ReferenceKernel().scaled_mm(a, b.t().contiguous().t(), scale_a, scale_b, bias, out.dtype)
    assert torch.equal(rounded_once(want, out.dtype), reference)
    info = torch.finfo(out.dtype)
    off = torch.from_numpy(kernel.sum_error(a.double().numpy(), b.t().double().numpy())) * both
    rounding = ((want.abs() + off) * info.eps / 2).clamp(min=info.smallest_normal * info.eps / 2)
    excess = (out.cpu().double() - want).abs() - (rounding + off) * (1 + 2.0**-16)
    # A NaN is in no bound.
    assert bool((excess <= 0).all()), f"{kernel.name} {case}: {excess.max().item()} beyond the bound"


def hard_operands(kind: str, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 [1, k] and [k, SUMMED_N]."""
    a, b = spread(1, k, k).float(), spread(SUMMED_N, k, k + 1).float()
    if kind == "positive":
        a, b = a.abs(), b.abs()
    if kind == "one-large":
        a, b = a.abs() / 512, b.abs() / 512
        a[:, 0], b[:, 0] = 448.0, 448.0
    return a.to(E4M3), b.to(E4M3).t()


@pytest.mark.parametrize("k", SUMMED_K)
@pytest.mark.parametrize("kind", ["spread", "positive", "one-large"])
def test_error_of_a_sum_is_below_what_is_declared(kernel: Kernel, kind: str, k: int) -> None:
    """The output's own rounding is out of the way: minus the nearest float16 as bias leaves a small rest."""
    a, b = hard_operands(kind, k)
    total, magnitude = exact(a, b)
    down = 2.0 ** (9 - math.ceil(math.log2(magnitude.max().item())))
    bias = -(total * down).to(torch.float16)[0]
    one, scale = (torch.tensor(value, device=DEVICE) for value in (1.0, down))
    declared = kernel.sum_error(a.cpu().double().numpy(), b.t().cpu().double().numpy())
    for m in (1, 17, 128, 256):
        rest = kernel.scaled_mm(a.expand(m, k).contiguous(), b, scale, one, bias, torch.float16).double()
        # The rest is held to float16's 11 bits.
        off = ((rest - (total * down + bias.double())).abs() - rest.abs() * 2.0**-11).cpu().numpy() / down
        share = (off / declared).max()
        print(json.dumps({"kernel": kernel.name, "kind": kind, "m": m, "k": k, "share": round(share, 4)}))
        assert share <= 1, f"{kernel.name} {kind} M={m} K={k}"


@pytest.mark.parametrize("scaling", ["per-tensor", "per-channel"])
def test_the_driver_launched_the_kernel_of_the_backend(kernel: Kernel, scaling: str) -> None:
    with KernelWitness() as witness:
        run(kernel, 17, 576, 1536, scaling, torch.bfloat16, biased=True)
    print(json.dumps({"kernel": kernel.name, "scaling": scaling, "launched": witness.kernels}))
    assert any(WORDS[kernel.name] in name for name in witness.kernels), witness.kernels
    if WORDS[kernel.name] != "cutlass":
        assert not any("cutlass" in name for name in witness.kernels), witness.kernels


def test_no_rows_launch_no_product(kernel: Kernel) -> None:
    with KernelWitness() as witness:
        run(kernel, 0, 576, 1536, "per-tensor", torch.bfloat16, biased=False)
    assert not any(WORDS[kernel.name] in name for name in witness.kernels), witness.kernels


@pytest.mark.parametrize("m", [1, 17, 128])
def test_weights_at_another_address_give_the_same_bytes(kernel: Kernel, m: int) -> None:
    if not kernel.accepts_preprocessed:
        pytest.skip(f"{kernel.name} promises nothing about weights of another process")
    first, given = run(kernel, m, 576, 1536, "per-channel", torch.bfloat16, biased=True)
    kept = []
    for _ in range(5):
        copied = {name: None if t is None else t.clone() for name, t in given.items()}
        kept.append(copied)
        again = kernel.scaled_mm(**copied, out_dtype=torch.bfloat16)  # type: ignore[arg-type]
        assert torch.equal(first.view(torch.uint8), again.view(torch.uint8))


def watched(work: Callable[[], object]) -> KernelWitness:
    with KernelWitness() as witness:
        work()
    return witness


def test_witness_sees_what_runs_while_it_watches_and_no_more() -> None:
    values = torch.ones(1000, device=DEVICE)
    seen = watched(lambda: values.sort())
    assert any("sort" in name.lower() for name in seen.kernels), seen.kernels
    values.sort()
    after = watched(lambda: values.cos())
    assert any("cos" in name for name in after.kernels), after.kernels
    assert not any("sort" in name.lower() for name in after.kernels), after.kernels
    assert watched(lambda: None).kernels == []


def test_second_witness_is_refused_by_cupti_itself() -> None:
    values = torch.ones(1000, device=DEVICE)
    with KernelWitness() as witness:
        with pytest.raises(LaunchError, match="the only CUPTI subscriber"), KernelWitness():
            pass
        values.cos()
    assert any("cos" in name for name in witness.kernels), witness.kernels


def test_graph_is_counted_and_its_kernels_are_not_named() -> None:
    values = torch.ones(1000, device=DEVICE)
    values.cos()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values.cos()
    replayed = watched(graph.replay)
    assert replayed.graph_launches == 1
    assert not any("cos" in name for name in replayed.kernels), replayed.kernels
