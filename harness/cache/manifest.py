"""The manifest: which tensor lies where in the arena, and what tensors alone do not carry."""

import reprlib
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import BadManifest
from ..formats import Layout
from ..tensor_bytes import dtype_of
from .arena import OFFSET_ALIGNMENT, PROBE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor in the arena."""

    layer: str
    """Name of a processed layer, or path of a module whose tensors are served as they are."""
    tensor: str
    """`weight`, `weight_scale`, `input_scale` or `bias`."""
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """In elements; column-major weights have (1, K)."""
    offset: int
    """Bytes from the start of the arena; a multiple of OFFSET_ALIGNMENT."""
    nbytes: int
    sha256: str
    """Of the bytes in memory order."""

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.tensor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that an engine needs to restore the layers from the arena."""

    arena_bytes: int
    probe_offset: int
    entries: tuple[Entry, ...]
    layouts: dict[str, Layout | None]
    """By layer name; None for a module whose tensors are served as they are."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> "Manifest":
        """Read and check what came over the wire; raises BadManifest before anything is mapped."""
        try:
            manifest = cls(
                arena_bytes=_whole(data["arena_bytes"]),
                probe_offset=_whole(data["probe_offset"]),
                entries=tuple(_entry(item) for item in data["entries"]),
                layouts={name: _layout(value) for name, value in data["layouts"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise bad_manifest(
                "manifest", "the fields of this version", f"{type(error).__name__}: {error}"
            ) from error
        manifest.check()
        return manifest

    def check(self) -> None:
        """Raise BadManifest on an empty, ambiguous, overlapping, misaligned or out-of-bounds manifest."""
        if not self.entries:
            raise bad_manifest("manifest", "at least one tensor", "none")
        for name, count in Counter(entry.name for entry in self.entries).items():
            if count > 1:
                raise bad_manifest(name, "one tensor of this name", count)
        end = 0
        for entry in sorted(self.entries, key=lambda e: e.offset):
            _check_entry(entry)
            if entry.offset < end or entry.offset + entry.nbytes > self.probe_offset:
                raise bad_manifest(
                    entry.name,
                    f"bytes within [{end}, {self.probe_offset})",
                    f"[{entry.offset}, {entry.offset + entry.nbytes})",
                )
            end = entry.offset + entry.nbytes
        if self.probe_offset + PROBE_BYTES > self.arena_bytes:
            raise bad_manifest(
                "probe page", f"{PROBE_BYTES} bytes before the end {self.arena_bytes}", self.probe_offset
            )
        if {e.layer for e in self.entries} != set(self.layouts):
            raise bad_manifest("layouts", "one for each layer with tensors", sorted(self.layouts))


def bad_manifest(where: str, expected: object, found: object) -> BadManifest:
    """The error of a manifest that cannot be trusted."""
    return BadManifest(
        where, expected=expected, found=found, remedy="Restart the daemon; do not attach to this one."
    )


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**48:
        raise ValueError(f"not a size: {reprlib.repr(value)}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"not a text: {reprlib.repr(value)}")
    return value


def _wholes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"not a list of sizes: {reprlib.repr(value)}")
    return tuple(_whole(n) for n in value)


def _layout(data: dict[str, Any] | None) -> Layout | None:
    if data is None:
        return None
    layout = Layout(**data)
    if type(layout.transposed) is not bool:
        raise ValueError(f"not true or false: {reprlib.repr(layout.transposed)}")
    _wholes([layout.logical_width, layout.padded_width, layout.logical_k, layout.padded_k])
    return layout


def _entry(data: dict[str, Any]) -> Entry:
    return Entry(
        layer=_text(data["layer"]),
        tensor=_text(data["tensor"]),
        dtype=_text(data["dtype"]),
        shape=_wholes(data["shape"]),
        stride=_wholes(data["stride"]),
        offset=_whole(data["offset"]),
        nbytes=_whole(data["nbytes"]),
        sha256=_text(data["sha256"]),
    )


def _check_entry(entry: Entry) -> None:
    try:
        itemsize = dtype_of(entry.dtype).itemsize
    except KeyError:
        raise bad_manifest(entry.name, "a torch dtype", entry.dtype) from None
    elements = 1
    for size in entry.shape:
        elements *= size
    if elements * itemsize != entry.nbytes or len(entry.shape) != len(entry.stride):
        raise bad_manifest(entry.name, f"{elements * itemsize} bytes for {entry.shape}", entry.nbytes)
    if elements and not _is_dense(entry):
        raise bad_manifest(entry.name, "strides that cover its bytes once", entry.stride)
    if entry.offset % OFFSET_ALIGNMENT:
        raise bad_manifest(entry.name, f"an offset in multiples of {OFFSET_ALIGNMENT}", entry.offset)


def _is_dense(entry: Entry) -> bool:
    """Whether the strides visit every element once, in some order of the dimensions."""
    step = 1
    for stride, size in sorted(zip(entry.stride, entry.shape, strict=True)):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
