"""What the backends of a GPU have in common, as far as a CPU can try it, and how cuBLASLt is called."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loadproof.harness.errors import InvalidInput, KernelBuildError, KernelContractError
from loadproof.harness.formats.e4m3 import E4M3
from loadproof.harness.kernels import KERNELS, accumulation, make_kernel, torch_scaled_mm, triton
from loadproof.harness.kernels.contract import check_gpu_call

from .kernel_operands import operands

ON_A_GPU = ("cutlass", "triton", "vllm-cutlass")


@pytest.mark.parametrize("name", ON_A_GPU)
@pytest.mark.parametrize("m", [0, 3])
def test_backends_of_a_gpu_refuse_a_cpu_by_their_name(name: str, m: int) -> None:
    with pytest.raises(InvalidInput, match=f"kernel '{name}'.*'reference', which runs on a CPU"):
        make_kernel(name).scaled_mm(**operands(m, True, True, False), out_dtype=torch.float16)


@pytest.mark.parametrize("name", ON_A_GPU)
def test_backends_of_a_gpu_refuse_another_output_and_check_the_contract(name: str) -> None:
    with pytest.raises(KernelContractError, match="bfloat16 or float16"):
        make_kernel(name).scaled_mm(**operands(3, True, True, False), out_dtype=torch.float32)
    unpacked = operands(3, True, True, False) | {"b": torch.ones(32, 48).to(E4M3)}
    with pytest.raises(KernelContractError, match="column-major"):
        make_kernel(name).scaled_mm(**unpacked, out_dtype=torch.float16)


def test_operands_on_two_devices_are_refused() -> None:
    class OnGpu:
        device = torch.device("cuda", 0)

    with pytest.raises(KernelContractError, match="all on cuda:0"):
        check_gpu_call("cutlass", torch.float16, OnGpu(), None, torch.ones(1))  # type: ignore[arg-type]


def test_only_cutlass_and_the_reference_take_preprocessed_weights() -> None:
    assert {name for name, kernel in KERNELS.items() if kernel.accepts_preprocessed} == {
        "cutlass",
        "reference",
        "vllm-cutlass",
    }


def test_naming_backends_imports_and_loads_nothing(tmp_path: Path) -> None:
    for package in ("triton", "vllm"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"raise SystemExit('{package} was imported')")
    code = f"""if True:
        import ctypes, sys, torch
        sys.path.insert(0, {str(tmp_path)!r})
        def loaded(*_): raise SystemExit("a library was loaded")
        torch.ops.load_library = loaded
        from loadproof.harness.kernels import KERNELS, make_kernel
        for name in KERNELS:
            make_kernel(name)
        make_kernel("triton").build_id()
        print("named", *sorted(KERNELS))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "named cutlass reference torch-scaled-mm triton vllm-cutlass\n", done.stderr


def test_without_triton_its_kernel_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "loadproof.harness.kernels.triton_gemm", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(KernelBuildError, match="the package triton"):
        triton._gemm()


@pytest.mark.parametrize(
    ("rows", "columns", "shapes"),
    [
        (False, False, ((), ())),
        (True, True, ((3, 1), (1, 48))),
        (False, True, ((3, 1), (1, 48))),
        (True, False, ((3, 1), (1, 48))),
    ],
    ids=["tensors", "rows-columns", "columns", "rows"],
)
def test_cublaslt_gets_scales_of_one_kind(
    monkeypatch: pytest.MonkeyPatch, rows: bool, columns: bool, shapes: Any
) -> None:
    got: list[Any] = []

    def scaled_mm(a: Any, b: Any, scale_a: torch.Tensor, scale_b: torch.Tensor, **rest: Any) -> torch.Tensor:
        assert rest["bias"] is given["bias"]
        assert (rest["out_dtype"], rest["use_fast_accum"]) == (torch.float16, False)
        assert scale_a.is_contiguous()
        assert scale_b.is_contiguous()
        assert torch.equal(scale_a.expand(3, 1), given["scale_a"].expand(3, 1))
        assert torch.equal(scale_b.expand(1, 48), given["scale_b"].expand(1, 48))
        got.append((tuple(scale_a.shape), tuple(scale_b.shape)))
        return torch.empty(0)

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    given = operands(3, rows, columns, bias=True)
    torch_scaled_mm._on_gpu(**given, out_dtype=torch.float16)
    assert got == [shapes]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("Only bf16 high precision output types"), KernelContractError),
        (RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED"), KernelContractError),
        (torch.OutOfMemoryError("no memory"), torch.OutOfMemoryError),
        (torch.AcceleratorError("misaligned address"), torch.AcceleratorError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_cublaslt_lacks_is_refused_and_what_breaks_is_not(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception]
) -> None:
    def scaled_mm(*_: Any, **__: Any) -> torch.Tensor:
        raise error

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    with pytest.raises(raised, match=str(error)):
        torch_scaled_mm._on_gpu(**operands(3, True, True, False), out_dtype=torch.float16)


@pytest.mark.parametrize("cuda", [None, "13.0"])
def test_bound_of_torch_is_a_gpus_where_it_may_run_on_one(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    ones = np.ones((1, 128))
    bounds = {None: accumulation.float32_error, "13.0": accumulation.promoted_error}
    assert make_kernel("torch-scaled-mm").sum_error(ones, ones) == bounds[cuda](ones, ones)
