"""Where a tensor differs, as a small picture in a data URI."""

import base64
import functools
import io
import itertools
from dataclasses import dataclass
from typing import Any

from PIL import Image

_STOPS = (
    (0, (233, 236, 241)),
    (1, (246, 201, 69)),
    (96, (217, 95, 14)),
    (192, (120, 20, 70)),
    (255, (38, 5, 60)),
)
"""Dark to light in one hue order, told apart without colour vision; level 0, no difference, is near white."""

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
    levels = [bytes.fromhex(line) for line in grid["levels"]]
    high, wide = grid["block"]
    down = len(levels)
    (across,) = {len(row) for row in levels}
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


def _png(levels: list[bytes]) -> str:
    image = Image.frombytes("P", (len(levels[0]), len(levels)), b"".join(levels))
    image.putpalette(_palette())
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


@functools.cache
def _palette() -> bytes:
    """Red, green and blue of each level, between the stops in equal steps."""
    colours = bytearray(_STOPS[0][1])
    for (start, low), (end, high) in itertools.pairwise(_STOPS):
        for step in range(1, end - start + 1):
            colours += bytes(int((b - a) / (end - start) * step + a) for a, b in zip(low, high, strict=True))
    return bytes(colours)


def _range(first: int, length: int, end: int) -> str:
    last = min(first + length, end) - 1
    return str(first) if last == first else f"{first}–{last}"
