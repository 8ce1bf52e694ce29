"""Where a tensor differs, as a small picture in a data URI."""

import base64
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

# Dark to light in one hue order, told apart without colour vision; index 0, no difference, is near white.
_STOPS = np.array([[233, 236, 241], [246, 201, 69], [217, 95, 14], [120, 20, 70], [38, 5, 60]])
_PALETTE = np.stack(
    [np.interp(np.arange(256), [0, 1, 96, 192, 255], _STOPS[:, channel]) for channel in range(3)], axis=1
).astype(np.uint8)

SIDE = 288
"""Pixels of the longer side on the page."""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A picture, its size on the page in pixels, and the same as text."""

    uri: str
    width: int
    height: int
    rows: int
    columns: int
    block: str
    worst: list[tuple[str, str, str]]
    """The blocks with the largest share: rows, columns, `differing of elements`."""


def heat_map(grid: dict[str, Any]) -> HeatMap:
    """The picture of an evidence's `grid` (see `harness.checks.difference`)."""
    levels = np.array([list(bytes.fromhex(line)) for line in grid["levels"]], dtype=np.uint8)
    high, wide = grid["block"]
    down, across = levels.shape
    scale = max(1, SIDE // max(down, across))
    return HeatMap(
        uri=_png(levels),
        width=across * scale,
        height=down * max(scale, min(24, SIDE // (3 * down))),
        rows=grid["rows"],
        columns=grid["columns"],
        block=f"{high} × {wide}",
        worst=[
            (_range(r, high, grid["rows"]), _range(c, wide, grid["columns"]), f"{n:,} of {of:,}")
            for r, c, n, of in grid["worst"]
        ],
    )


def _png(levels: np.ndarray[Any, np.dtype[np.uint8]]) -> str:
    image = Image.fromarray(levels, mode="P")
    image.putpalette(_PALETTE.tobytes())
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _range(first: int, length: int, end: int) -> str:
    last = min(first + length, end) - 1
    return str(first) if last == first else f"{first}–{last}"
