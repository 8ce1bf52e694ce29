"""The CUTLASS backend: sm_90a, fast accumulation, scales and bias in the epilogue.

In float32, per element: `scale_a * (scale_b * sum) + bias`, the last product and the bias in one fused step,
then one rounding to the output dtype: vLLM's order.
"""

import ctypes
import functools
import hashlib
from pathlib import Path

import torch

from ...errors import KernelContractError, KernelLaunchError
from ..accumulation import Doubles, fast_error
from ..contract import check_gpu_call, check_operands
from ..protocol import Launches
from . import abi
from .build import library

OUT_TYPES = {torch.bfloat16: abi.BFLOAT16, torch.float16: abi.FLOAT16}


class CutlassKernel(Launches):
    """CUTLASS 4.x on Hopper, built from the sources beside this file at first use."""

    name = "cutlass"
    accepts_preprocessed = True

    def __init__(self) -> None:
        super().__init__()
        self._loaded: dict[str, ctypes.CDLL] = {}

    @staticmethod
    def sum_error(a: Doubles, b: Doubles) -> Doubles:
        """See `Kernel.sum_error`: gemm.cuh asks for fast accumulation."""
        return fast_error(a, b)

    def build_id(self) -> str:
        """Prefix of the library's sha256; builds it if need be, which takes no GPU."""
        return hashlib.sha256(_library_file("sm_90a").read_bytes()).hexdigest()[:16]

    def scaled_mm(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        """See `Kernel.scaled_mm`; runs on the current stream of the operands' device.

        Raises:
            InvalidInput: the operands are not on a GPU.
            KernelBuildError: the library cannot be built, or the GPU is not one it is built for.
            KernelLaunchError: CUTLASS or CUDA refused.
        """
        check_operands(a, b, scale_a, scale_b, bias, out_dtype)
        check_gpu_call(self.name, out_dtype, a, b, scale_a, scale_b, bias)
        (m, k), n = a.shape, b.shape[1]
        d = torch.empty((m, n), dtype=out_dtype, device=a.device)
        if m == 0:
            return d
        problem = abi.Problem(
            a=a.data_ptr(),
            b=b.data_ptr(),
            d=d.data_ptr(),
            scale_a=scale_a.data_ptr(),
            scale_b=scale_b.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            lda=k,
            ldb=k,
            ldd=n,
            m=m,
            n=n,
            k=k,
            scale_a_is_vector=scale_a.dim() != 0,
            scale_b_is_vector=scale_b.dim() != 0,
            out_type=OUT_TYPES[out_dtype],
        )
        with torch.cuda.device(a.device):
            self._launch(problem, a.device)
        return d

    def _launch(self, problem: abi.Problem, device: torch.device) -> None:
        code = self._library(device)
        needed = ctypes.c_size_t()
        _require_success(code, code.loadproof_cutlass_workspace(problem, needed))
        workspace = torch.empty(needed.value, dtype=torch.uint8, device=device)
        stream = torch.cuda.current_stream(device).cuda_stream
        status = code.loadproof_cutlass_scaled_mm(problem, workspace.data_ptr(), needed.value, stream)
        _require_success(code, status)
        name = code.loadproof_cutlass_name(code.loadproof_cutlass_choose(problem.m)).decode()
        self._note(name)

    def _library(self, device: torch.device) -> ctypes.CDLL:
        major, minor = torch.cuda.get_device_capability(device)
        # The `a` variant: wgmma and its kind belong to one compute capability each.
        architecture = f"sm_{major}{minor}a"
        if architecture not in self._loaded:
            self._loaded[architecture] = abi.load(_library_file(architecture))
        return self._loaded[architecture]


@functools.cache
def _library_file(architecture: str) -> Path:
    """See `library`. Asked once in a process and those that it forks: reading all headers takes 0.1 s."""
    return library(architecture)


def _require_success(code: ctypes.CDLL, status: int) -> None:
    if status == 0:
        return
    words = code.loadproof_cutlass_message(status).decode()
    if status < abi.FIRST_FOREIGN_STATUS and status != abi.ARCHITECTURE_REFUSED:
        raise KernelContractError(
            "scaled_mm in the CUTLASS library",
            expected="operands that it takes",
            found=words,
            remedy="Pass what FusedFp8Linear prepares: padded, packed, aligned.",
        )
    raise KernelLaunchError(
        "scaled_mm in the CUTLASS library",
        expected="a launch",
        found=f"status {status}: {words}",
        remedy="See that the GPU is free and healthy (nvidia-smi); earlier errors of this process count too.",
    )
