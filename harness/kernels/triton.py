"""A small FP8 kernel in Triton: an ordinary backend that loads from disk, and never attaches."""

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import torch

from ..errors import KernelBuildError
from .accumulation import K_PER_PROMOTION, Doubles, promoted_error
from .contract import check_gpu_call, check_operands
from .protocol import Launches

BLOCK_M, BLOCK_N = 64, 64
BLOCK_K = K_PER_PROMOTION
"""Each block's sum starts from zero on the tensor cores, and is added in float32 outside them."""


class TritonKernel(Launches):
    """Sums on tensor cores; scales and bias in float32, then one rounding to the output dtype."""

    name = "triton"
    accepts_preprocessed = False

    @staticmethod
    def sum_error(a: Doubles, b: Doubles) -> Doubles:
        """See `Kernel.sum_error`: the source adds block by block, and Triton 3.6 keeps it so for sm_90."""
        return promoted_error(a, b)

    def build_id(self) -> str:
        """Hash of the kernel's source and of the Triton that compiles it; "none" where there is no Triton."""
        source = Path(__file__).read_bytes() + Path(__file__).with_name("triton_gemm.py").read_bytes()
        try:
            compiler = version("triton")
        except PackageNotFoundError:
            compiler = "none"
        return hashlib.sha256(source + compiler.encode()).hexdigest()[:16]

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
            KernelBuildError: there is no Triton.
        """
        check_operands(a, b, scale_a, scale_b, bias, out_dtype)
        check_gpu_call(self.name, out_dtype, a, b, scale_a, scale_b, bias)
        (m, k), n = a.shape, b.shape[1]
        out = torch.empty((m, n), dtype=out_dtype, device=a.device)
        if m == 0:
            return out
        code = _gemm()
        grid = (-(-m // BLOCK_M), -(-n // BLOCK_N))
        with torch.cuda.device(a.device):
            code.compiled[grid](
                a.view(torch.uint8),
                b.t().view(torch.uint8),
                out,
                scale_a,
                scale_b,
                out if bias is None else bias,
                m,
                n,
                k,
                ROW_SCALES=scale_a.dim() != 0,
                COLUMN_SCALES=scale_b.dim() != 0,
                BIASED=bias is not None,
                BLOCK_M=BLOCK_M,
                BLOCK_N=BLOCK_N,
                BLOCK_K=BLOCK_K,
            )
        name = code.loadproof_triton_scaled_mm.__name__
        self._note(name)
        return out


def _gemm() -> ModuleType:
    try:
        from . import triton_gemm
    except ImportError as error:
        raise KernelBuildError(
            "kernel 'triton'",
            expected="the package triton, which torch for CUDA brings",
            found=error,
            remedy="Install a torch built for CUDA, or choose another kernel.",
        ) from error
    return triton_gemm
