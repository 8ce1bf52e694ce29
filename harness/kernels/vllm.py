"""vLLM's own CUTLASS operator, `torch.ops._C.cutlass_scaled_mm`, of an installed vLLM or of its library.

vLLM itself is never imported: its library registers the operator when it is loaded. Its Hopper kernels use
fast accumulation throughout (vLLM's csrc/.../cutlass/c3x/scaled_mm_sm90_fp8_dispatch.cuh).
"""

import functools
from pathlib import Path

import torch

from ..errors import KernelBuildError, KernelLaunchError
from ..vllm_library import file_sha256, find_library
from .accumulation import Doubles, fast_error
from .contract import check_gpu_call, check_operands
from .protocol import Launches

OPERATOR = "_C::cutlass_scaled_mm"


class VllmCutlassKernel(Launches):
    """vLLM's CUTLASS kernels. Finds its library at first use, not when it is made."""

    name = "vllm-cutlass"
    accepts_preprocessed = True

    def __init__(self) -> None:
        super().__init__()
        self._loaded = False

    @staticmethod
    def sum_error(a: Doubles, b: Doubles) -> Doubles:
        """See `Kernel.sum_error`: its Hopper kernels use fast accumulation throughout."""
        return fast_error(a, b)

    @functools.cached_property
    def library(self) -> Path:
        """The file that registers the operator; raises InvalidInput where there is none."""
        return find_library()

    def build_id(self) -> str:
        """Prefix of the library's sha256; loads nothing."""
        return file_sha256(self.library).hex()[:16]

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
            InvalidInput: the operands are not on a GPU, or there is no library.
            KernelBuildError: the library cannot be loaded.
            KernelLaunchError: vLLM's operator refused.
        """
        check_operands(a, b, scale_a, scale_b, bias, out_dtype)
        check_gpu_call(self.name, out_dtype, a, b, scale_a, scale_b, bias)
        out = torch.empty((a.shape[0], b.shape[1]), dtype=out_dtype, device=a.device)
        if a.shape[0] == 0:
            return out
        self._load()
        # One value, or one for each row [M, 1] and each column [1, N].
        row_scales = scale_a.view(1) if scale_a.dim() == 0 else scale_a
        column_scales = scale_b.view(1, -1) if scale_b.dim() else scale_b.view(1)
        try:
            torch.ops._C.cutlass_scaled_mm(out, a, b, row_scales, column_scales, bias)
        except RuntimeError as error:
            raise KernelLaunchError(
                f"{OPERATOR} of {self.library}",
                expected="a launch",
                found=error,
                remedy="See that the GPU is free and healthy (nvidia-smi), and that vLLM is built for it.",
            ) from error
        self._note(OPERATOR)
        return out

    def _load(self) -> None:
        if not self._loaded:
            load(self.library)
            self._loaded = True


def load(library: Path) -> None:
    """Load a library into this process; raises KernelBuildError where it fails or lacks the operator."""
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        torch.ops._C.cutlass_scaled_mm  # noqa: B018 - looked up, not called
    except (OSError, RuntimeError, AttributeError) as error:
        raise KernelBuildError(
            library,
            expected=f"a library that torch {torch.__version__} loads, and the operator {OPERATOR} in it",
            found=error.__cause__ or error,
            remedy="Take the library of a vLLM for this torch with CUDA, and load no second vLLM beside it.",
        ) from error
