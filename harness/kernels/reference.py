"""The CPU reference kernel: exact, so its bytes depend on nothing but the operands.

E4M3 values are integers times 2^-9 below 2^18, so a product is an integer below 2^36 and a sum of
2^17 of them stays below 2^53: float64 holds every partial sum exactly, in whatever order.
"""

import hashlib
from pathlib import Path

import torch

from ..errors import KernelContractError
from .accumulation import Doubles, no_error
from .contract import check_operands
from .protocol import Launches

MAX_EXACT_K = 2**17
WIDENED_BY = 2.0**-8
"""A power of two, so that taking it out of the other operand is exact."""
ROWS_AT_ONCE = 256
"""Of the weight: widened, so many fit into a processor's cache, and are not written to memory."""
NAN_SHIFTED = 0xFE
"""E4M3's NaN, 0x7f or 0xff, without its sign: no other code is as large."""


def rounded_once(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 of any shape to bfloat16 or float16, nearest-even, with one rounding.

    torch goes through float32, which would round twice; so the float32 step here truncates and keeps
    "there was more" in the last bit (round to odd), which the second step cannot mistake for a tie.
    """
    single = exact.to(torch.float32)
    wide = single.to(torch.float64)
    bits = single.view(torch.int32)
    bits = torch.where(wide.abs() > exact.abs(), bits - 1, bits)
    bits = torch.where(wide != exact, bits | 1, bits)
    odd = torch.where(torch.isfinite(single), bits.view(torch.float32), single)
    return odd.to(dtype)


def widened(weight: torch.Tensor) -> torch.Tensor:
    """E4M3 [N, K], packed, to float64 values times WIDENED_BY, exactly; takes a third of `to`'s time.

    An E4M3 code is a float16 with a narrower exponent: moved into its place, it is the value times 2^-8.
    NaN alone is no such code, so a weight that holds one goes the slow way.
    """
    unsigned = weight.view(torch.uint8) << 1
    if weight.numel() == 0 or int(unsigned.max()) == NAN_SHIFTED:
        return weight.to(torch.float64) * WIDENED_BY
    # Sign-extended, so that the sign lands in bits 15 and 14; bit 14 is the exponent's highest.
    halves = weight.view(torch.int8).to(torch.int16)
    halves <<= 7
    halves &= ~(1 << 14)
    # In two steps: each is vectorised, and the direct one is not.
    return halves.view(torch.float16).to(torch.float32).to(torch.float64)


class ReferenceKernel(Launches):
    """float64 accumulation, scales and bias in float64, one rounding to the output dtype."""

    name = "reference"
    accepts_preprocessed = True

    @staticmethod
    def sum_error(a: Doubles, b: Doubles) -> Doubles:
        """See `Kernel.sum_error`: float64 holds every partial sum."""
        return no_error(a, b)

    def build_id(self) -> str:
        """Hash of this source and of the torch build that executes it."""
        source = Path(__file__).read_bytes()
        return hashlib.sha256(source + torch.__version__.encode()).hexdigest()[:16]

    def scaled_mm(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        """See `Kernel.scaled_mm`; K above 2^17 is refused, since it would no longer be exact."""
        check_operands(a, b, scale_a, scale_b, bias, out_dtype)
        if a.shape[1] > MAX_EXACT_K:
            raise KernelContractError(
                "scaled_mm operand 'a'",
                expected=f"K of at most {MAX_EXACT_K}, so that float64 sums are exact",
                found=a.shape[1],
                remedy="Use a GPU kernel for this layer.",
            )
        self._note("reference_scaled_mm_float64")
        wide = a.to(torch.float64) / WIDENED_BY
        out = torch.cat([wide @ widened(rows).t() for rows in torch.split(b.t(), ROWS_AT_ONCE)], dim=1)
        out *= scale_a.to(torch.float64) * scale_b.to(torch.float64)
        if bias is not None:
            out += bias.to(torch.float64)
        return rounded_once(out, out_dtype)
