"""What a kernel backend offers."""

from typing import Protocol

import torch

from .accumulation import Doubles


class Launches:
    """The names of the kernels that a backend says it ran, in order of first use."""

    def __init__(self) -> None:
        self.launched: list[str] = []

    def _note(self, kernel: str) -> None:
        if kernel not in self.launched:
            self.launched.append(kernel)


class Kernel(Protocol):
    """An FP8 scaled matrix multiplication."""

    name: str
    accepts_preprocessed: bool
    """Whether the backend declares support for weights that a daemon has already processed."""
    launched: list[str]
    """Names of the kernels that ran in this process, in order of first use."""

    @staticmethod
    def sum_error(a: Doubles, b: Doubles) -> Doubles:
        """How far each sum may be off the exact one: float64 [M, N], from A as [M, K] and B as [N, K]."""

    def build_id(self) -> str:
        """Identifies the code that runs; part of the cache key."""

    def scaled_mm(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        """(a @ b) * scale_a * scale_b + bias, as [M, N] in `out_dtype`.

        Args:
            a: E4M3 [M, K], row-major and packed.
            b: E4M3 [K, N], column-major and packed.
            scale_a: float32 () or [M, 1].
            scale_b: float32 () or [N].
            bias: [N] in `out_dtype`, or None.

        Raises:
            KernelContractError: an operand breaks the contract above, or CUTLASS's alignment.
        """
