"""Compare the CUTLASS kernel with exact sums on a Hopper GPU, and print what was found as JSON.

`check_cutlass.py [--time]`. Exit code 1: a result is outside the bound that the kernel declares, or not
reproducible, or a byte that must be exact is not. `--time` adds microseconds a call, and torch._scaled_mm's.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from loadproof.harness.formats.e4m3 import E4M3
from loadproof.harness.kernels.cutlass import CutlassKernel, abi
from loadproof.harness.kernels.reference import ReferenceKernel, rounded_once

ROWS = (0, 1, 2, 16, 17, 64, 128, 129, 512, 2048)
SMALL_N_K = ((16, 16), (48, 80), (80, 176), (176, 48))
N_K = (*SMALL_N_K, (576, 576), (576, 1536), (1536, 576), (8192, 1536), (1536, 8192))
DTYPES = (torch.bfloat16, torch.float16)
REPEATS = 20
LAYERS = {
    "smollm2": ((960, 576), (576, 576), (3072, 576), (576, 1536)),
    "qwen2.5-7b": ((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)),
    "llama-70b": ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
}
"""N and K of qkv, o, gate_up and down."""

Operands = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Found:
    """What all cases showed; `failures` names the cases that must not be."""

    cases: int = 0
    failures: list[str] = field(default_factory=list)

    def note(self, holds: bool, case: str) -> None:
        self.cases += 1
        if not holds:
            self.failures.append(case)


def gpu_generator(seed: int) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


def spread(m: int, n: int, k: int, seed: int) -> Operands:
    """All finite codes alike: magnitudes from 2^-9 to 448, so sums are hard."""
    generator = gpu_generator(seed)

    def codes(rows: int) -> torch.Tensor:
        drawn = torch.randint(0, 254, (rows, k), generator=generator, device="cuda", dtype=torch.int16)
        # 0x7f and 0xff are NaN: skip over the first, and stop before the second.
        return torch.where(drawn >= 0x7F, drawn + 1, drawn).to(torch.uint8).view(E4M3)

    return codes(m), codes(n).t()


def units(m: int, n: int, k: int, seed: int) -> Operands:
    """-1, 0 and 1: every partial sum is exact wherever it is kept."""
    generator = gpu_generator(seed)
    a = torch.randint(-1, 2, (m, k), generator=generator, device="cuda").float().to(E4M3)
    b = torch.randint(-1, 2, (n, k), generator=generator, device="cuda").float().to(E4M3)
    return a, b.t()


def powers(size: tuple[int, ...], seed: int) -> torch.Tensor:
    exponents = torch.randint(-3, 4, size, generator=gpu_generator(seed), device="cuda")
    return torch.exp2(exponents.float())


def variants(m: int, n: int) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, bool, torch.dtype]]:
    for row, column, biased, dtype in itertools.product((False, True), (False, True), (False, True), DTYPES):
        name = f"scale_a {'[M,1]' if row else '()'} scale_b {'[N]' if column else '()'} bias {biased} {dtype}"
        scale_a, scale_b = powers((m, 1) if row else (), 1), powers((n,) if column else (), 2)
        yield name, scale_a, scale_b, biased, dtype


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """float64 holds every partial sum of E4M3 products, in any order."""
    return a.double() @ b.double()


def check_shapes(kernel: CutlassKernel, found: Found) -> None:
    for m, (n, k) in itertools.product(ROWS, N_K):
        bias32 = powers((n,), 3) * 8
        for kind, (a, b) in (("units", units(m, n, k, m + n)), ("spread", spread(m, n, k, m + k))):
            total, magnitude = exact(a, b), exact(a.float().abs(), b.float().abs())
            for name, scale_a, scale_b, biased, dtype in variants(m, n):
                # Shrinks what would overflow float16.
                down = 1.0 if kind == "units" else 2.0**-12
                bias = bias32.to(dtype) if biased else None
                out = kernel.scaled_mm(a, b, scale_a * down, scale_b, bias, dtype)
                scales = scale_a.double() * down * scale_b.double()
                want = total * scales + (bias.double() if bias is not None else 0.0)
                case = f"{kind} M={m} N={n} K={k} {name}"
                found.note(out.shape == (m, n) and out.dtype == dtype, f"shape: {case}")
                if kind == "units":
                    found.note(same_bytes(out, rounded_once(want, dtype)), f"bytes: {case}")
                else:
                    allowed = magnitude * scales * kernel.sum_error(k)
                    found.note(within(out, want, allowed), f"bound: {case}")


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.view(torch.int16), right.view(torch.int16))


def within(out: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor) -> bool:
    info = torch.finfo(out.dtype)
    largest = want.abs() + allowed
    room = torch.clamp(largest * info.eps / 2, min=info.smallest_normal * info.eps / 2) + allowed
    close = (out.double() - want).abs() <= room * (1 + 2.0**-16)
    overflown = (largest >= info.max) & (out.double() == want.sign() * math.inf)
    return bool((close | overflown).all())


def measured_sum_error(kernel: CutlassKernel, m: int, k: int, kind: str) -> float:
    """Largest |sum - exact| / sum of magnitudes, with the output's own rounding out of the way.

    All rows of `a` are equal, so a bias of minus the nearest float16 leaves a small rest, held to 2^-11.
    """
    n = 4096
    a, b = spread(1, n, k, k)
    if kind == "positive":
        a, b = a.float().abs().to(E4M3), b.float().abs().to(E4M3)
    if kind == "one-large":
        a, b = (a.float().abs() / 512).to(E4M3), (b.float().abs() / 512).to(E4M3)
        a[:, 0], b[0, :] = torch.tensor(448.0).to(E4M3), torch.tensor(448.0).to(E4M3)
    total, magnitude = exact(a, b), exact(a.float().abs(), b.float().abs())
    down = 2.0 ** (9 - math.ceil(math.log2(magnitude.max().item())))
    bias = -(total * down).to(torch.float16)[0]
    rows = a.expand(m, k).contiguous()
    scale, one = torch.tensor(down, device="cuda"), torch.tensor(1.0, device="cuda")
    rest = kernel.scaled_mm(rows, b, scale, one, bias, torch.float16)
    error = (rest.double() - (total * down + bias.double())).abs() / (magnitude * down)
    return error.max().item()


def sum_errors(kernel: CutlassKernel, found: Found) -> list[dict[str, object]]:
    table: list[dict[str, object]] = []
    for kind, m, k in itertools.product(
        ("spread", "positive", "one-large"), (1, 128, 256), (32, 128, 1536, 8192, 28672)
    ):
        error, declared = measured_sum_error(kernel, m, k, kind), kernel.sum_error(k)
        found.note(error <= declared, f"sum_error: {kind} M={m} K={k}")
        log2s = {"log2": math.log2(error) if error else None, "declared_log2": math.log2(declared)}
        table.append({"kind": kind, "m": m, "k": k, **log2s})
    return table


def check_repeats(kernel: CutlassKernel, found: Found) -> None:
    one = torch.tensor(2.0**-12, device="cuda")
    for m, (n, k) in itertools.product((1, 16, 128, 2048), ((576, 1536), (8192, 1536), (1536, 8192))):
        a, b = spread(m, n, k, 5)
        first = kernel.scaled_mm(a, b, one, one, None, torch.bfloat16)
        again = [kernel.scaled_mm(a, b, one, one, None, torch.bfloat16) for _ in range(REPEATS)]
        found.note(all(same_bytes(first, out) for out in again), f"repeats: M={m} N={n} K={k}")


def check_odd_values(kernel: CutlassKernel, found: Found) -> None:
    """A NaN stays in its row; without a bias a negative zero keeps its sign; a CPU agrees on small shapes."""
    for m in (2, 17, 129):
        a, b = units(m, 48, 80, 7)
        a[1, 3] = torch.tensor(math.nan).to(E4M3)
        one = torch.tensor(1.0, device="cuda")
        out = kernel.scaled_mm(a, b, one, one, None, torch.bfloat16)
        rows = out.isnan().any(dim=1).nonzero().flatten().tolist()
        found.note(rows == [1] and bool(out[1].isnan().all()), f"nan: M={m}")
        a, b = spread(m, 48, 80, 8)
        tiny, small = torch.tensor(2.0**-126, device="cuda"), torch.tensor(2.0**-60, device="cuda")
        out = kernel.scaled_mm(a, b, tiny, small, None, torch.bfloat16)
        sign = (out == 0).all() and torch.equal(out.signbit(), exact(a, b).signbit())
        found.note(bool(sign), f"signed zero: M={m}")
        a, b = units(m, 48, 80, 9)
        on_cpu = ReferenceKernel().scaled_mm(
            a.cpu(), b.t().cpu().t(), one.cpu(), one.cpu(), None, torch.float16
        )
        out = kernel.scaled_mm(a, b, one, one, None, torch.float16)
        found.note(same_bytes(out.cpu(), on_cpu), f"reference: M={m}")


def check_strides(kernel: CutlassKernel, found: Found) -> None:
    """The C interface takes leading strides: operands and output lie in wider storage, left alone."""
    code, (n, k) = kernel._library(torch.device("cuda", 0)), (80, 48)
    one = torch.tensor(1.0, device="cuda")
    for m in (3, 17, 129):
        a, b = units(m, n, k, 11)
        wide_a, wide_b = (
            torch.zeros(m, 64, device="cuda").to(E4M3),
            torch.zeros(n, 96, device="cuda").to(E4M3),
        )
        wide_a[:, :k], wide_b[:, :k] = a, b.t()
        wide_d = torch.full((m, 96), 7.0, device="cuda", dtype=torch.bfloat16)
        problem = abi.Problem(
            a=wide_a.data_ptr(), b=wide_b.data_ptr(), d=wide_d.data_ptr(), scale_a=one.data_ptr(),
            scale_b=one.data_ptr(), bias=None, lda=64, ldb=96, ldd=96, m=m, n=n, k=k, out_type=abi.BFLOAT16,
        )  # fmt: skip
        stream = torch.cuda.current_stream().cuda_stream
        status = code.loadproof_cutlass_scaled_mm(problem, None, 0, stream)
        want = rounded_once(exact(a, b), torch.bfloat16)
        found.note(status == 0 and same_bytes(wide_d[:, :n].contiguous(), want), f"strides: M={m}")
        found.note(bool((wide_d[:, n:] == 7.0).all()), f"guard columns: M={m}")


def microseconds(call: Callable[[], object], launches: int = 20) -> float:
    """A call, in the median of 5 replays of a graph of `launches`; a small weight stays in the L2 cache."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            call()
    graph.replay()
    taken = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) * 1000 / launches)
    return statistics.median(taken)


def timings(kernel: CutlassKernel) -> list[dict[str, object]]:
    table: list[dict[str, object]] = []
    for (model, shapes), m in itertools.product(LAYERS.items(), (1, 16, 64, 128, 2048)):
        for n, k in shapes:
            a, b = units(m, n, k, 1)
            rows, columns = torch.ones(m, 1, device="cuda"), torch.ones(n, device="cuda")

            def own(a=a, b=b, rows=rows, columns=columns) -> torch.Tensor:  # noqa: ANN001
                return kernel.scaled_mm(a, b, rows, columns, None, torch.bfloat16)

            def cublas(a=a, b=b, rows=rows, columns=columns) -> torch.Tensor:  # noqa: ANN001
                return torch._scaled_mm(
                    a, b, rows, columns.view(1, -1), out_dtype=torch.bfloat16, use_fast_accum=True
                )

            own_us, cublas_us = microseconds(own), microseconds(cublas)
            shape = {"model": model, "m": m, "n": n, "k": k}
            table.append({**shape, "us": own_us, "torch_us": cublas_us, "ratio": cublas_us / own_us})
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time", action="store_true", help="also time the projections of three models")
    options = parser.parse_args()
    kernel, found = CutlassKernel(), Found()
    for check in (check_odd_values, check_strides, check_repeats, check_shapes):
        check(kernel, found)
    errors = sum_errors(kernel, found)
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "build_id": kernel.build_id(),
        "launched": kernel.launched,
        "cases": found.cases,
        "failed": len(found.failures),
        "failures": found.failures[:20],
        "sum_errors": errors,
    }
    if options.time:
        result["timings"] = timings(kernel)
    json.dump(result, sys.stdout, indent=1)
    print()
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
