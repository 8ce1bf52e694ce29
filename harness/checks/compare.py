"""Comparing bytes, and saying where they differ."""

from typing import Any

import torch

from ..outcome import Outcome
from ..tensor_bytes import dtype_name, memory_bytes


def compare(reference: torch.Tensor, candidate: torch.Tensor) -> tuple[Outcome, dict[str, Any]]:
    """Shape, then dtype, then bytes.

    Returns:
        PASS with the number of bytes compared, or SHAPE, DTYPE or BYTES with the first difference:
        element coordinate, byte within the element, both bytes in hex and both values.
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
    return Outcome.BYTES, _difference(reference, candidate, differing, left, right)


def _difference(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    differing: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
) -> dict[str, Any]:
    size = reference.element_size()
    elements = torch.unique_consecutive(differing.div(size, rounding_mode="floor"))
    first = int(elements[0])
    span = slice(first * size, (first + 1) * size)
    return {
        "bytes": left.numel(),
        "differing_elements": elements.numel(),
        "elements": reference.numel(),
        "first_index": [int(i) for i in torch.unravel_index(torch.tensor(first), reference.shape)],
        "reference_hex": bytes(left[span].tolist()).hex(),
        "candidate_hex": bytes(right[span].tolist()).hex(),
        "reference_value": str(reference.flatten()[first].item()),
        "candidate_value": str(candidate.flatten()[first].item()),
    }
