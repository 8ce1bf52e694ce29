"""`torch._scaled_mm`: cuBLASLt on a GPU, ATen's own on a CPU. It loads from disk, and never attaches.

Its results depend on the library's choice of algorithm, and nobody has shown that it may be handed
weights which another process laid out; so it does not declare support for them.
"""

import hashlib

import numpy as np
import torch

from ..errors import KernelContractError
from .accumulation import Doubles, float32_error, promoted_error
from .contract import check_operands
from .protocol import Launches


class TorchScaledMm(Launches):
    """Sums in float32 on a CPU and on tensor cores on a GPU, of unspecified order."""

    name = "torch-scaled-mm"
    accepts_preprocessed = False

    @staticmethod
    def sum_error(a: Doubles, b: Doubles) -> Doubles:
        """See `Kernel.sum_error`; of a torch for CUDA, the larger of a CPU's and a GPU's.

        cuBLASLt is asked for no fast accumulation; that it promotes as often as CUTLASS is not documented,
        but measured (cases/gpu/test_accumulation.py).
        """
        on_cpu = float32_error(a, b)
        return on_cpu if torch.version.cuda is None else np.maximum(on_cpu, promoted_error(a, b))

    def build_id(self) -> str:
        """Hash of the torch build."""
        return hashlib.sha256(f"{torch.__version__} {torch.version.git_version}".encode()).hexdigest()[:16]

    def scaled_mm(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        """See `Kernel.scaled_mm`.

        Raises:
            KernelContractError: this torch has no such combination of scales and output dtype on this GPU;
                it is never computed in another dtype instead.
        """
        check_operands(a, b, scale_a, scale_b, bias, out_dtype)
        self._note("torch-scaled-mm")
        if a.device.type == "cpu":
            # Before torch 2.13 a CPU has no scales for each row and column, so they follow in float32.
            one = torch.ones((), device=a.device)
            out = torch._scaled_mm(a, b, one, one, out_dtype=torch.float32) * scale_a * scale_b
            return (out if bias is None else out + bias).to(out_dtype)
        return _on_gpu(a, b, scale_a, scale_b, bias, out_dtype)


def _on_gpu(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    if scale_a.dim() or scale_b.dim():
        # Both per tensor, or one for each row and one for each column; nothing in between.
        scale_a = scale_a.expand(a.shape[0], 1).contiguous()
        scale_b = scale_b.expand(1, b.shape[1]).contiguous()
    try:
        return torch._scaled_mm(a, b, scale_a, scale_b, bias=bias, out_dtype=out_dtype, use_fast_accum=False)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except (ValueError, RuntimeError) as error:
        raise KernelContractError(
            f"torch._scaled_mm of torch {torch.__version__}",
            expected=f"scales {tuple(scale_a.shape)} and {tuple(scale_b.shape)} to {out_dtype}",
            found=error,
            remedy="Ask for bfloat16 with scales for each row, or choose another kernel.",
        ) from error
