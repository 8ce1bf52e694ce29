"""Small operands of `Kernel.scaled_mm` on a CPU."""

from typing import Any

import torch

from loadproof.harness.formats.e4m3 import E4M3


def operands(m: int, rows: bool, columns: bool, bias: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(m)
    return {
        "a": torch.randn(m, 32, generator=generator).to(E4M3),
        "b": torch.randn(48, 32, generator=generator).to(E4M3).t(),
        "scale_a": torch.rand((m, 1) if rows else (), generator=generator),
        "scale_b": torch.rand((48,) if columns else (), generator=generator),
        "bias": torch.randn(48, generator=generator).to(torch.float16) if bias else None,
    }
