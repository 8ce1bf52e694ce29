"""Launched kernels are told apart by their symbols, and a GPU case wants its own backend's and no other's."""

from dataclasses import replace

import pytest

from loadproof.cases.selfcheck.test_properties_checks import GOOD, altered
from loadproof.harness.checks import run_checks
from loadproof.harness.kernels.symbols import backends_of, products
from loadproof.harness.outcome import Outcome

# As CUPTI gave them on an H200, cut.
OURS = "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEE"
VLLM = "void cutlass::device_kernel<vllm::cutlass_3x_gemm_sm90_fp8<cutlass::float_e4m3_t, cutlass::bfloat16_t"
CUBLASLT = "nvjet_sm90_qqtst_8x64_128x16_4x1_v_bz_algo2_bias_TNN"
TRITON = "loadproof_triton_scaled_mm"
BFLOAT16 = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
# cuBLAS's own, for bfloat16 on an older architecture.
OLD_CUTLASS = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>"
TORCH = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<float>"


@pytest.mark.parametrize(
    ("symbols", "backends"),
    [
        ([OURS, TORCH], {"cutlass"}),
        ([VLLM, TORCH], {"vllm-cutlass"}),
        ([CUBLASLT], {"torch-scaled-mm"}),
        ([TRITON], {"triton"}),
        ([TORCH], set()),
        ([OURS, VLLM], {"cutlass", "vllm-cutlass"}),
        ([BFLOAT16, OLD_CUTLASS], set()),
    ],
)
def test_symbols_name_their_backend(symbols: list[str], backends: set[str]) -> None:
    assert backends_of(symbols) == backends


@pytest.mark.parametrize(
    ("launched", "verdict"),
    [
        ([TORCH, OURS], Outcome.PASS),
        ([BFLOAT16, OURS], Outcome.PASS),
        ([BFLOAT16, OLD_CUTLASS], Outcome.WRONG_KERNEL),
        ([TORCH, VLLM], Outcome.WRONG_KERNEL),
        ([OURS, CUBLASLT], Outcome.WRONG_KERNEL),
        ([TORCH], Outcome.WRONG_KERNEL),
        ([], Outcome.WRONG_KERNEL),
    ],
)
def test_gpu_case_wants_its_backend_and_no_other(launched: list[str], verdict: Outcome) -> None:
    seen = GOOD
    for name, route in GOOD.routes.items():
        said = route.reported | {"kernels": [OURS] if name != "ipc" else launched}
        seen = replace(seen, routes=seen.routes | {name: altered(name, reported=said).routes[name]})
    seen = replace(seen, case=replace(GOOD.case, kernel="cutlass", device="cuda"))
    (found,) = [check.verdict for check in run_checks(seen) if check.name == "kernel_witnessed"]
    assert found is verdict


def test_evidence_names_matrix_products_and_counts_the_rest() -> None:
    launched = [
        "reference_scaled_mm_float64",
        "torch-scaled-mm",
        OURS,
        "void at::native::reciprocal",
        "memset",
    ]
    assert products(launched) == [*launched[:3], "and 2 other kernels"]
    assert products(launched[:1]) == launched[:1]
    assert products([]) == []
