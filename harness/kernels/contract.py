"""CUTLASS's contract for FP8 operands, enforced by every backend: a layout bug fails on a laptop too."""

import torch

from ..errors import InvalidInput, KernelContractError
from ..formats.e4m3 import E4M3
from ..spec import ALIGNMENT

POINTER_ALIGNMENT_BYTES = 16


def _require(holds: bool, operand: str, expected: str, found: object) -> None:
    if not holds:
        raise KernelContractError(
            f"scaled_mm operand {operand!r}",
            expected=expected,
            found=found,
            remedy="Pass what FusedFp8Linear prepares: padded, packed, weight column-major.",
        )


def check_operands(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> None:
    """Raise KernelContractError unless the operands are as `Kernel.scaled_mm` says."""
    _require(a.dtype == E4M3, "a", "float8_e4m3fn", a.dtype)
    _require(b.dtype == E4M3, "b", "float8_e4m3fn", b.dtype)
    _require(a.dim() == 2 and b.dim() == 2, "a, b", "two dimensions", (a.dim(), b.dim()))
    (m, k), (rows, n) = a.shape, b.shape
    _require(rows == k, "b", f"{k} rows, as a has columns", rows)
    _require(k % ALIGNMENT == 0, "a", f"K in multiples of {ALIGNMENT}", k)
    _require(n % ALIGNMENT == 0, "b", f"N in multiples of {ALIGNMENT}", n)
    # A single row has no stride between rows, but one between its elements.
    packed = a.stride(1) == 1 and (m == 1 or a.stride(0) == k)
    _require(packed or m == 0, "a", f"row-major strides {(k, 1)}", a.stride())
    _require(b.stride() == (1, k), "b", f"column-major strides {(1, k)}", b.stride())
    for name, tensor in (("a", a), ("b", b)):
        _require(
            tensor.data_ptr() % POINTER_ALIGNMENT_BYTES == 0,
            name,
            f"an address in multiples of {POINTER_ALIGNMENT_BYTES}",
            hex(tensor.data_ptr()),
        )
    _require(scale_a.shape in ((), (m, 1)), "scale_a", f"shape () or {(m, 1)}", tuple(scale_a.shape))
    _require(scale_b.shape in ((), (n,)), "scale_b", f"shape () or {(n,)}", tuple(scale_b.shape))
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        _require(scale.dtype == torch.float32, name, "float32", scale.dtype)
        _require(scale.is_contiguous(), name, "packed values", scale.stride())
    if bias is not None:
        _require(bias.shape == (n,), "bias", f"shape {(n,)}", tuple(bias.shape))
        _require(bias.dtype == out_dtype, "bias", str(out_dtype), bias.dtype)
        _require(bias.is_contiguous(), "bias", "packed values", bias.stride())


def check_gpu_call(
    kernel: str, out_dtype: torch.dtype, a: torch.Tensor, *others: torch.Tensor | None
) -> None:
    """What the backends that run on a GPU alone add to the contract.

    Raises:
        InvalidInput: `a` is not on a GPU.
        KernelContractError: another operand is elsewhere, or the output is neither bfloat16 nor float16.
    """
    if out_dtype not in (torch.bfloat16, torch.float16):
        raise KernelContractError(
            "scaled_mm output",
            expected="bfloat16 or float16",
            found=out_dtype,
            remedy="Ask for one of these, and convert afterwards.",
        )
    if a.device.type != "cuda":
        raise InvalidInput(
            f"kernel {kernel!r}",
            expected="operands on a CUDA device",
            found=str(a.device),
            remedy="Move them to a GPU, or choose the kernel 'reference', which runs on a CPU.",
        )
    for other in others:
        if other is not None and other.device != a.device:
            raise KernelContractError(
                "scaled_mm operands",
                expected=f"all on {a.device}, where a is",
                found=str(other.device),
                remedy="Move every operand to one GPU.",
            )
