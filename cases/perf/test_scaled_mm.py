"""Our CUTLASS kernel beside vLLM's operator: `pytest cases/perf/test_scaled_mm.py -s` on a Hopper GPU.

Kernel time by CUDA events around a graph of launches, so that neither side pays for Python. The launches go
through as many operands as it takes to leave nothing in the L2 cache.
"""

import itertools
from collections.abc import Callable

import pytest
import torch

from loadproof.cases.perf.ratios import abba, ratio
from loadproof.harness.errors import LoadproofError
from loadproof.harness.formats.e4m3 import E4M3
from loadproof.harness.kernels.cutlass import CutlassKernel
from loadproof.harness.kernels.protocol import Kernel
from loadproof.harness.kernels.vllm import VllmCutlassKernel

GOAL = 0.8
"""vLLM's median time over ours, with the whole interval above."""
ROWS = (1, 16, 128, 2048)
PROJECTIONS = {
    "smollm2": {"qkv": (960, 576), "o": (576, 576), "gate-up": (3072, 576), "down": (576, 1536)},
    "qwen2.5-7b": {"qkv": (4608, 3584), "o": (3584, 3584), "gate-up": (37888, 3584), "down": (3584, 18944)},
    "llama-70b": {"qkv": (10240, 8192), "o": (8192, 8192), "gate-up": (57344, 8192), "down": (8192, 28672)},
}
"""N and K of each fused projection."""
ROTATED_BYTES = 256 << 20
"""Operands that one round goes through; several times the L2 cache of any GPU so far."""
LAUNCHES = 24
ROUNDS = 8

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def kernels() -> tuple[Kernel, Kernel]:
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no GPU on this host")
    own, theirs = CutlassKernel(), VllmCutlassKernel()
    for kernel in (own, theirs):
        try:
            kernel.build_id()
        except LoadproofError as error:
            pytest.skip(str(error))
    return own, theirs


def operands(m: int, n: int, k: int) -> Operands:
    """Random codes below 1.0; row scales [M, 1] and column scales [N]."""

    def codes(rows: int) -> torch.Tensor:
        return torch.randint(0, 0x38, (rows, k), dtype=torch.uint8, device="cuda").view(E4M3)

    return codes(m), codes(n).t(), torch.ones(m, 1, device="cuda"), torch.ones(n, device="cuda")


def replayed(kernel: Kernel, rotated: list[Operands]) -> Callable[[], float]:
    """A measurement: microseconds a launch, over one replay of a graph that goes through all operands."""
    launches = max(LAUNCHES, len(rotated))

    def launch(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> None:
        kernel.scaled_mm(a, b, rows, columns, None, torch.bfloat16)

    launch(*rotated[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _, each in zip(range(launches), itertools.cycle(rotated), strict=False):
            launch(*each)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def measure() -> float:
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / launches

    measure()
    return measure


@pytest.mark.timeout(900)
@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize(
    ("model", "projection"), [(model, each) for model, of in PROJECTIONS.items() for each in of]
)
def test_kernel_time_beside_vllm(
    kernels: tuple[Kernel, Kernel],
    model: str,
    projection: str,
    m: int,
    record_property: Callable[[str, object], None],
) -> None:
    n, k = PROJECTIONS[model][projection]
    rotated = [operands(m, n, k) for _ in range(-(-ROTATED_BYTES // (n * k + m * k + 2 * m * n)))]
    own, theirs = (replayed(kernel, rotated) for kernel in kernels)
    own_us, theirs_us = abba(own, theirs, ROUNDS)
    found = ratio(theirs_us, own_us)
    print(
        f"\nscaled_mm {model} {projection} N={n} K={k} M={m}: ratio {found}, "
        f"{min(own_us):.1f} us beside {min(theirs_us):.1f} us"
    )
    record_property("ratio", [round(value, 3) for value in (found.median, found.low, found.high)])
    record_property("us", {"own": own_us, "vllm": theirs_us})
    assert found.low >= GOAL, f"ratio {found}"
