"""Comparing bytes, and saying where they differ."""

from typing import Any

import torch

from ..outcome import Outcome
from ..tensor_bytes import dtype_name, memory_bytes
from .difference import describe


def compare(reference: torch.Tensor, candidate: torch.Tensor) -> tuple[Outcome, dict[str, Any]]:
    """Shape, then dtype, then bytes.

    Returns:
        PASS with the number of bytes compared, or SHAPE, DTYPE or BYTES with what `difference.describe`
        says of the elements that differ.
    """
    if reference.shape != candidate.shape:
        return Outcome.SHAPE, {"reference": list(reference.shape), "candidate": list(candidate.shape)}
    if reference.dtype != candidate.dtype:
        found = {"reference": dtype_name(reference.dtype), "candidate": dtype_name(candidate.dtype)}
        return Outcome.DTYPE, found
    left, right = memory_bytes(reference.contiguous()), memory_bytes(candidate.contiguous())
    differing = (left != right).nonzero().flatten()
    if differing.numel() == 0:
        return Outcome.PASS, {"bytes": left.numel()}
    elements = torch.unique_consecutive(differing.div(reference.element_size(), rounding_mode="floor"))
    return Outcome.BYTES, {"bytes": left.numel(), **describe(reference, candidate, elements.numpy())}
