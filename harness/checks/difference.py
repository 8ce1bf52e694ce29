"""What evidence keeps of two tensors that differ: bounded, whatever their size."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..tensor_bytes import dtype_name, memory_bytes

EXAMPLES = 8
"""Differing elements listed one by one, from the first on."""
GRID_SIDE = 64
"""Blocks a side at most, of the grid that shows where elements differ."""
WORST_BLOCKS = 10

Indices = NDArray[np.int64]
_UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def describe(reference: torch.Tensor, candidate: torch.Tensor, differing: Indices) -> dict[str, Any]:
    """Builtins only, and about the differing elements only.

    Args:
        reference, candidate: equal in shape and dtype.
        differing: flat indices, ascending and not empty.
    """
    left, right = reference.contiguous().flatten(), candidate.contiguous().flatten()
    distances = _distances(left, right, differing)
    pair = left[differing].double(), right[differing].double()
    first = _element(left, right, reference.shape, int(differing[0]))
    return {
        "dtype": dtype_name(reference.dtype),
        "shape": list(reference.shape),
        "elements": reference.numel(),
        "differing_elements": len(differing),
        "equal_values": int((pair[0] == pair[1]).sum()),
        "nan": [int(side.isnan().sum()) for side in pair],
        "inf": [int(side.isinf().sum()) for side in pair],
        **{"first_index" if name == "index" else name: value for name, value in first.items()},
        "examples": [_element(left, right, reference.shape, int(i)) for i in differing[:EXAMPLES]],
        "worst": _element(left, right, reference.shape, int(differing[int(distances.argmax())])),
        "grid": _grid(reference.shape, differing),
    }


def _element(left: torch.Tensor, right: torch.Tensor, shape: torch.Size, at: int) -> dict[str, Any]:
    """One element: its coordinate, and bytes (as memory has them), value and distance of both sides."""
    pair = left[at : at + 1], right[at : at + 1]
    distance = int(_distances(left, right, np.array([at]))[0])
    return {
        "index": [int(i) for i in np.unravel_index(at, tuple(shape))],
        "reference_hex": bytes(memory_bytes(pair[0]).tolist()).hex(),
        "candidate_hex": bytes(memory_bytes(pair[1]).tolist()).hex(),
        "reference_value": str(pair[0].item()),
        "candidate_value": str(pair[1].item()),
        "code_distance": distance if distance >= 0 else None,
    }


def _distances(left: torch.Tensor, right: torch.Tensor, at: Indices) -> Indices:
    """How many codes of the dtype lie between both sides (1: neighbours; 0: ±0); -1 where one is NaN."""
    if left.element_size() not in _UNSIGNED:
        return np.full(len(at), -1, dtype=np.int64)
    pair = left[at], right[at]
    apart = np.abs(_ordered(pair[0]) - _ordered(pair[1]))
    unordered = (pair[0].double().isnan() | pair[1].double().isnan()).numpy()
    result: Indices = np.where(unordered, -1, apart)
    return result


def _ordered(values: torch.Tensor) -> Indices:
    """Codes as integers in the order of the values that they stand for."""
    size = values.element_size()
    codes = memory_bytes(values).numpy().view(_UNSIGNED[size]).astype(np.int64)
    if not values.is_floating_point():
        return codes
    sign = 1 << (8 * size - 1)
    return np.where(codes & sign, -(codes & ~sign), codes)


def _grid(shape: torch.Size, differing: Indices) -> dict[str, Any]:
    """Where elements differ, in at most GRID_SIDE x GRID_SIDE blocks of the tensor seen as a matrix.

    `levels`: a string a row of blocks, two hex digits a block: 00 where none differs, ff where all do,
    and never 00 where one does. `worst`: [first row, first column, differing, elements] of blocks.
    """
    columns = shape[-1] if shape else 1
    rows = math.prod(shape) // columns
    high, wide = -(-rows // GRID_SIDE), -(-columns // GRID_SIDE)
    down, across = -(-rows // high), -(-columns // wide)
    row, column = np.divmod(differing, columns)
    counts = np.bincount(row // high * across + column // wide, minlength=down * across).reshape(down, across)
    heights = np.minimum(high, rows - np.arange(down) * high)
    widths = np.minimum(wide, columns - np.arange(across) * wide)
    sizes = np.outer(heights, widths)
    levels = np.ceil(counts / sizes * 255).astype(np.uint8)
    order = np.argsort(-(counts / sizes), axis=None, kind="stable")[:WORST_BLOCKS]
    places = [(int(at) // across, int(at) % across) for at in order if counts.flat[at]]
    return {
        "rows": rows,
        "columns": columns,
        "block": [high, wide],
        "levels": [bytes(line.tolist()).hex() for line in levels],
        "worst": [[r * high, c * wide, int(counts[r, c]), int(sizes[r, c])] for r, c in places],
    }
