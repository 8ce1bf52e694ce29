"""The evidence inside the page, compressed, so that `loadproof verify report.html` needs nothing else.

It is `run.json` and then each case's record, a line each and as the run's files spell them, as xz in base64.
No browser reads it.
"""

import base64
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from .load import Run
from .text import names_a_home

CASES = 500
"""In a page with its evidence, which takes as long to pack as the rest of the page to render."""
PACKED_BYTES = 600_000
"""Of evidence in a page, before base64: the page stays below 2 MB."""
UNPACKED_BYTES = 64_000_000
"""Of evidence in a page: what whoever verifies a page from elsewhere must have room for."""
UNPACKER_BYTES = 32_000_000
"""For xz's own memory; a stream of ours needs a hundredth of it."""

EMBEDDED = "The evidence is in this page: loadproof verify checks it from this file alone."
UNSEALED = "The run was never sealed, so there is nothing to verify this page by."
_ELSEWHERE = "loadproof verify needs the folder of the run, with this page in it."
TOO_LARGE = f"The evidence is too large for this page: {_ELSEWHERE}"
PRIVATE = f"The evidence names a home folder, so it is not in this page: {_ELSEWHERE}"

_PRESET = 0
"""A fifth of the time of xz's default, for a third more bytes."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """The evidence as the page carries it, and what the page says of it."""

    note: str
    island: Markup | None = None
    """None where the page carries none."""


def embed(run: Run) -> Embedded:
    """The run's evidence for the page, unless the page must do without."""
    if run.record.chain is None:
        return Embedded(UNSEALED)
    if len(run.cases) > CASES:
        return Embedded(TOO_LARGE)
    packer, packed, size = lzma.LZMACompressor(preset=_PRESET), bytearray(), 0
    for line in _lines(run):
        if names_a_home(line):
            return Embedded(PRIVATE)
        data = line.encode()
        size += len(data)
        packed += packer.compress(data)
        if len(packed) > PACKED_BYTES or size > UNPACKED_BYTES:
            return Embedded(TOO_LARGE)
    packed += packer.flush()
    if len(packed) > PACKED_BYTES:
        return Embedded(TOO_LARGE)
    return Embedded(EMBEDDED, Markup(base64.b64encode(packed).decode()))


def unpack(island: str, folder: Path) -> None:
    """Write `run.json` and `evidence.jsonl` as the island holds them.

    Raises:
        ValueError: not base64 of one whole xz stream, or of more than UNPACKED_BYTES.
    """
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=UNPACKER_BYTES)
    try:
        data = unpacker.decompress(base64.b64decode(island), UNPACKED_BYTES + 1)
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof or len(data) > UNPACKED_BYTES:
        raise ValueError(f"cut short, or more than {UNPACKED_BYTES} bytes")
    run, _, cases = data.partition(b"\n")
    (folder / "run.json").write_bytes(run)
    (folder / "evidence.jsonl").write_bytes(cases)


def _lines(run: Run) -> Iterator[str]:
    for record in (run.record, *run.cases):
        # Fields that the file did not spell are not part of its digest.
        yield f"{record.model_dump_json(exclude_unset=True)}\n"
