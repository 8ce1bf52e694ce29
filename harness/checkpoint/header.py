"""Strict safetensors headers, read with pread and never mapped."""

import hashlib
import os
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import MalformedCheckpoint
from . import strict_json

LENGTH_BYTES = 8
LARGEST_HEADER = 100_000_000
"""The limit of safetensors itself."""
LARGEST_INTEGER = 2**63 - 1
METADATA = "__metadata__"
REMEDY = "Download or export the checkpoint again."
BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
}
"""safetensors dtype name to bits an element."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a weight file."""

    dtype: str
    """As safetensors spells it, e.g. `F8_E4M3`."""
    shape: tuple[int, ...]
    start: int
    """Absolute offset in the file of the first byte."""
    stop: int
    """Absolute offset behind the last byte."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a weight file says about itself, checked against its size."""

    file: Path
    header_bytes: int
    """Length field included; the offset of the first tensor byte."""
    entries: dict[str, Entry]
    metadata: dict[str, str]
    size: int
    """Of the whole file."""
    sha256: str
    """Hex, of the first `header_bytes` bytes: tells a header rewritten later."""


def malformed(where: object, expected: object, found: object) -> MalformedCheckpoint:
    """The error of a file that contradicts itself."""
    return MalformedCheckpoint(where, expected=expected, found=found, remedy=REMEDY)


def shown(value: object) -> str:
    """A short repr; the plain one overflows the stack on deep nesting."""
    return reprlib.repr(value)


def pread_exactly(fd: int, start: int, count: int, file: Path) -> bytes:
    """`count` bytes from offset `start`; raises MalformedCheckpoint where the file ends earlier."""
    parts: list[bytes] = []
    missing = count
    while missing:
        part = os.pread(fd, missing, start + count - missing)
        if not part:
            raise malformed(file, f"{count} bytes at offset {start}", f"{count - missing}, then the end")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def read_header(fd: int, file: Path) -> Header:
    """Read and check the header of an open file.

    Args:
        fd: open for reading; its offset is left alone.
        file: named in messages only.

    Raises:
        MalformedCheckpoint: for all that safetensors rejects, and for duplicate keys, unknown fields, white
            space before the `{`, metadata that is null, a tensor written as a list, a dtype written as an
            object, and sizes that overflow beside a size of 0; names the tensor where one is at fault.
    """
    size = os.fstat(fd).st_size
    if size < LENGTH_BYTES:
        raise malformed(file, "at least 8 bytes", f"{size} bytes")
    length_field = pread_exactly(fd, 0, LENGTH_BYTES, file)
    length = int.from_bytes(length_field, "little")
    if not 0 < length <= min(LARGEST_HEADER, size - LENGTH_BYTES):
        raise malformed(file, f"a header of 1 to {min(LARGEST_HEADER, size - LENGTH_BYTES)} bytes", length)
    text = pread_exactly(fd, LENGTH_BYTES, length, file)
    document = _document(text, file)
    metadata = _metadata(document.pop(METADATA, {}), file)
    first = LENGTH_BYTES + length
    entries = {name: _entry(name, value, first, file) for name, value in document.items()}
    _require_gapless(entries, first, size, file)
    digest = hashlib.sha256(length_field + text).hexdigest()
    return Header(file, first, entries, metadata, size, digest)


def _document(text: bytes, file: Path) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise malformed(file, "a header that begins with '{'", repr(text[:1]))
    try:
        document = strict_json.parse(text)
    except ValueError as error:
        raise malformed(file, "a JSON header", f"{error}") from error
    # What begins with '{' and parses is an object.
    assert isinstance(document, dict)
    return document


def _metadata(value: object, file: Path) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise malformed(f"{file}: {METADATA}", "an object of strings", shown(value))
    return value


def _entry(name: str, value: object, first: int, file: Path) -> Entry:
    where = f"{file}: {name}"
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise malformed(where, "an object of dtype, shape and data_offsets", shown(value))
    dtype = value["dtype"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise malformed(where, f"a dtype of {', '.join(BITS)}", shown(dtype))
    shape = _integers(value["shape"], where, "shape")
    offsets = _integers(value["data_offsets"], where, "data_offsets")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise malformed(where, "data_offsets [start, stop] with start <= stop", shown(list(offsets)))
    needed = _bits_of(shape, dtype, where)
    if needed != 8 * (offsets[1] - offsets[0]):
        raise malformed(
            where, f"{needed} bits for {dtype} {shown(list(shape))}", f"{offsets[1] - offsets[0]} bytes"
        )
    return Entry(dtype, shape, first + offsets[0], first + offsets[1])


def _integers(value: object, where: str, field: str) -> tuple[int, ...]:
    # bool is a subclass of int, hence type() and not isinstance().
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n <= LARGEST_INTEGER for n in value):
        raise malformed(where, f"{field}: a list of integers from 0 to 2**63 - 1", shown(value))
    return tuple(value)


def _bits_of(shape: tuple[int, ...], dtype: str, where: str) -> int:
    elements, bound = 1, 1
    for size in shape:
        elements *= size
        # Zero sizes do not excuse the others: strides of such a tensor overflow all the same.
        bound *= max(size, 1)
        if bound * BITS[dtype] > LARGEST_INTEGER:
            raise malformed(where, "a shape of fewer than 2**63 bits", shown(list(shape)))
    return elements * BITS[dtype]


def _require_gapless(entries: dict[str, Entry], first: int, size: int, file: Path) -> None:
    end = first
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != end:
            kind = "a gap" if entry.start > end else "an overlap"
            raise malformed(f"{file}: {name}", f"data from offset {end}", f"{kind}, from {entry.start}")
        end = entry.stop
        if end > size:
            raise malformed(f"{file}: {name}", f"data inside the {size} bytes of the file", f"up to {end}")
    if end != size:
        raise malformed(file, f"a file of {end} bytes", f"{size}, hence trailing bytes")
