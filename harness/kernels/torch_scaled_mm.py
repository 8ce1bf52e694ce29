"""`torch._scaled_mm`: cuBLASLt on a GPU, ATen's own on a CPU. It loads from disk, and never attaches.

Its results depend on the library's choice of algorithm, and nobody has shown that it may be handed
weights which another process laid out; so it does not declare support for them.
"""

import hashlib

import torch

from .contract import check_operands


class TorchScaledMm:
    """Sums in float32, of unspecified order."""

    name = "torch-scaled-mm"
    accepts_preprocessed = False

    def __init__(self) -> None:
        self.launched: list[str] = []

    @staticmethod
    def sum_error(k: int) -> float:
        """See `Kernel.sum_error`: one float32 rounding a term in any order, and three for the scales."""
        return (k + 3) * 2.0**-24

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
        """See `Kernel.scaled_mm`."""
        check_operands(a, b, scale_a, scale_b, bias, out_dtype)
        if "torch-scaled-mm" not in self.launched:
            self.launched.append("torch-scaled-mm")
        if a.device.type == "cpu":
            # Before torch 2.13 a CPU has no scales for each row and column, so they follow in float32.
            one = torch.ones((), device=a.device)
            out = torch._scaled_mm(a, b, one, one, out_dtype=torch.float32) * scale_a * scale_b
            return (out if bias is None else out + bias).to(out_dtype)
        # Both scales per tensor, or one for each row and each column.
        columns = scale_b if scale_b.dim() == 0 else scale_b.view(1, -1)
        return torch._scaled_mm(a, b, scale_a, columns, bias=bias, out_dtype=out_dtype)
