"""The manifest: which tensor lies where in the arena, and what tensors alone do not carry."""

import functools
import math
from collections import Counter
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from ..errors import BadManifest
from ..formats import Layout
from ..tensor_bytes import dtype_of
from .arena import OFFSET_ALIGNMENT, PROBE_BYTES
from .columns import Check, flags, from_columns, size, sizes, texts, to_columns, tuples_of_sizes


class Entry(NamedTuple):
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
    fingerprint: str
    """Of the bytes in memory order."""

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.tensor}"


ENTRY_CHECKS: dict[str, Check] = {
    "layer": texts,
    "tensor": texts,
    "dtype": texts,
    "shape": tuples_of_sizes,
    "stride": tuples_of_sizes,
    "offset": sizes,
    "nbytes": sizes,
    "sha256": texts,
    "fingerprint": texts,
}
LAYOUT_CHECKS: dict[str, Check] = {
    "logical_width": sizes,
    "padded_width": sizes,
    "logical_k": sizes,
    "padded_k": sizes,
    "transposed": flags,
}
"""What a column of each field must hold, in the order of the fields of Entry and of Layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that an engine needs to restore the layers from the arena."""

    arena_bytes: int
    probe_offset: int
    entries: tuple[Entry, ...]
    layouts: dict[str, Layout]
    """By layer name; a module whose tensors are served as they are has none."""

    def to_json(self) -> dict[str, Any]:
        """In columns, so that a manifest of many tensors is read in few steps."""
        return {
            "arena_bytes": self.arena_bytes,
            "probe_offset": self.probe_offset,
            "entries": to_columns(ENTRY_CHECKS, self.entries),
            "layers": list(self.layouts),
            "layouts": to_columns(LAYOUT_CHECKS, self.layouts.values()),
        }

    @classmethod
    def from_json(cls, data: Any) -> "Manifest":
        """Read and check what came over the wire; raises BadManifest before anything is mapped."""
        try:
            rows = from_columns(data["layouts"], LAYOUT_CHECKS)
            # A model has many layers of few kinds.
            layouts = {row: Layout(*row) for row in set(rows)}
            manifest = cls(
                arena_bytes=size(data["arena_bytes"]),
                probe_offset=size(data["probe_offset"]),
                entries=tuple(map(Entry._make, from_columns(data["entries"], ENTRY_CHECKS))),
                layouts=dict(zip(texts(data["layers"]), map(layouts.__getitem__, rows), strict=True)),
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
        # A model has many tensors of few kinds.
        for entry in {(e.dtype, e.shape, e.stride, e.nbytes): e for e in self.entries}.values():
            _check_kind(entry)
        end = 0
        for entry in sorted(self.entries, key=attrgetter("offset")):
            if entry.offset % OFFSET_ALIGNMENT:
                raise bad_manifest(entry.name, f"an offset in multiples of {OFFSET_ALIGNMENT}", entry.offset)
            if entry.offset < end or entry.offset + entry.nbytes > self.probe_offset:
                raise bad_manifest(
                    entry.name,
                    f"bytes within [{end}, {self.probe_offset})",
                    f"[{entry.offset}, {entry.offset + entry.nbytes})",
                )
            end = entry.offset + entry.nbytes
        if self.probe_offset % OFFSET_ALIGNMENT:
            raise bad_manifest(
                "probe page", f"an offset in multiples of {OFFSET_ALIGNMENT}", self.probe_offset
            )
        if self.probe_offset + PROBE_BYTES > self.arena_bytes:
            raise bad_manifest(
                "probe page", f"{PROBE_BYTES} bytes before the end {self.arena_bytes}", self.probe_offset
            )
        if not self.layouts.keys() <= {entry.layer for entry in self.entries}:
            raise bad_manifest("layouts", "of layers with tensors only", sorted(self.layouts))


def bad_manifest(where: str, expected: object, found: object) -> BadManifest:
    """The error of a manifest that contradicts itself, the arena, or what is asked of it."""
    return BadManifest(
        where, expected=expected, found=found, remedy="Restart the daemon; do not attach to this one."
    )


def _check_kind(entry: Entry) -> None:
    """What does not depend on where it lies."""
    try:
        itemsize = _itemsize(entry.dtype)
    except KeyError:
        raise bad_manifest(entry.name, "a torch dtype", entry.dtype) from None
    elements = math.prod(entry.shape)
    if elements * itemsize != entry.nbytes or len(entry.shape) != len(entry.stride):
        raise bad_manifest(entry.name, f"{elements * itemsize} bytes for {entry.shape}", entry.nbytes)
    if elements and not _is_dense(entry):
        raise bad_manifest(entry.name, "strides that cover its bytes once", entry.stride)


@functools.cache
def _itemsize(dtype: str) -> int:
    return dtype_of(dtype).itemsize


def _is_dense(entry: Entry) -> bool:
    """Whether the strides visit every element once, in some order of the dimensions."""
    step = 1
    for stride, count in sorted(zip(entry.stride, entry.shape, strict=True)):
        if count > 1 and stride != step:
            return False
        step *= count
    return True
