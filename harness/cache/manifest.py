"""The manifest: which tensor lies where in the arena, and what tensors alone do not carry."""

import functools
import math
import reprlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import torch

from ..errors import BadManifest
from ..fingerprint import fingerprint
from ..formats import Layout, ProcessedLayer, TensorLayout
from ..model_spec import PlainTensor
from ..spec import LayerSpec
from ..tensor_bytes import dtype_name, dtype_of, give_back_freed_memory, memory_bytes, sha256
from .arena import OFFSET_ALIGNMENT, PROBE_BYTES, Arena, Attachment


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
            "entries": _columns(_ENTRY, self.entries),
            "layers": list(self.layouts),
            "layouts": _columns(_LAYOUT, self.layouts.values()),
        }

    @classmethod
    def from_json(cls, data: Any) -> "Manifest":
        """Read and check what came over the wire; raises BadManifest before anything is mapped."""
        try:
            rows = _rows(data["layouts"], _LAYOUT)
            # A model has many layers of few kinds.
            layouts = {row: Layout(*row) for row in set(rows)}
            manifest = cls(
                arena_bytes=_whole(data["arena_bytes"]),
                probe_offset=_whole(data["probe_offset"]),
                entries=tuple(map(Entry._make, _rows(data["entries"], _ENTRY))),
                layouts=dict(zip(_texts(data["layers"]), map(layouts.__getitem__, rows), strict=True)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _bad(
                "manifest", "the fields of this version", f"{type(error).__name__}: {error}"
            ) from error
        manifest.check()
        return manifest

    def check(self) -> None:
        """Raise BadManifest on an empty, ambiguous, overlapping, misaligned or out-of-bounds manifest."""
        if not self.entries:
            raise _bad("manifest", "at least one tensor", "none")
        for name, count in Counter(entry.name for entry in self.entries).items():
            if count > 1:
                raise _bad(name, "one tensor of this name", count)
        # A model has many tensors of few kinds.
        for entry in {(e.dtype, e.shape, e.stride, e.nbytes): e for e in self.entries}.values():
            _check_kind(entry)
        end = 0
        for entry in sorted(self.entries, key=attrgetter("offset")):
            if entry.offset % OFFSET_ALIGNMENT:
                raise _bad(entry.name, f"an offset in multiples of {OFFSET_ALIGNMENT}", entry.offset)
            if entry.offset < end or entry.offset + entry.nbytes > self.probe_offset:
                raise _bad(
                    entry.name,
                    f"bytes within [{end}, {self.probe_offset})",
                    f"[{entry.offset}, {entry.offset + entry.nbytes})",
                )
            end = entry.offset + entry.nbytes
        if self.probe_offset % OFFSET_ALIGNMENT:
            raise _bad("probe page", f"an offset in multiples of {OFFSET_ALIGNMENT}", self.probe_offset)
        if self.probe_offset + PROBE_BYTES > self.arena_bytes:
            raise _bad(
                "probe page", f"{PROBE_BYTES} bytes before the end {self.arena_bytes}", self.probe_offset
            )
        if not self.layouts.keys() <= {entry.layer for entry in self.entries}:
            raise _bad("layouts", "of layers with tensors only", sorted(self.layouts))


def _bad(where: str, expected: object, found: object) -> BadManifest:
    return BadManifest(
        where, expected=expected, found=found, remedy="Restart the daemon; do not attach to this one."
    )


def _columns(names: Iterable[str], rows: Iterable[Any]) -> dict[str, list[Any]]:
    rows = list(rows)
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    # Lists, as JSON will have them.
    return {n: [list(v) if type(v) is tuple else v for v in column] for n, column in columns.items()}


def _whole(value: Any) -> int:
    return _wholes([value])[0]


def _wholes(column: Any) -> list[int]:
    if _types(column) - {int} or (column and not (min(column) >= 0 and max(column) < 2**48)):
        raise ValueError(f"not sizes: {reprlib.repr(column)}")
    return list(column)


def _texts(column: Any) -> list[str]:
    if _types(column) - {str}:
        raise ValueError(f"not texts: {reprlib.repr(column)}")
    return list(column)


def _tuples(column: Any) -> list[tuple[int, ...]]:
    if _types(column) - {list}:
        raise ValueError(f"not lists of sizes: {reprlib.repr(column)}")
    _wholes(list(chain.from_iterable(column)))
    return list(map(tuple, column))


def _flags(column: Any) -> list[bool]:
    if _types(column) - {bool}:
        raise ValueError(f"neither true nor false: {reprlib.repr(column)}")
    return list(column)


def _types(column: Any) -> set[type]:
    if type(column) is not list:
        raise ValueError(f"not a list: {reprlib.repr(column)}")
    return set(map(type, column))


_ENTRY: dict[str, Callable[[Any], list[Any]]] = {
    "layer": _texts,
    "tensor": _texts,
    "dtype": _texts,
    "shape": _tuples,
    "stride": _tuples,
    "offset": _wholes,
    "nbytes": _wholes,
    "sha256": _texts,
    "fingerprint": _texts,
}
_LAYOUT: dict[str, Callable[[Any], list[Any]]] = {
    "logical_width": _wholes,
    "padded_width": _wholes,
    "logical_k": _wholes,
    "padded_k": _wholes,
    "transposed": _flags,
}
"""What a column of each field must hold, in the order of the fields."""


def _rows(columns: Any, checks: Mapping[str, Callable[[Any], list[Any]]]) -> list[tuple[Any, ...]]:
    wrong = columns.keys() ^ checks.keys()
    if wrong:
        raise ValueError(f"missing or unknown: {reprlib.repr(sorted(wrong))}")
    return list(zip(*(check(columns[name]) for name, check in checks.items()), strict=True))


def _check_kind(entry: Entry) -> None:
    """What does not depend on where it lies."""
    try:
        itemsize = _itemsize(entry.dtype)
    except KeyError:
        raise _bad(entry.name, "a torch dtype", entry.dtype) from None
    elements = math.prod(entry.shape)
    if elements * itemsize != entry.nbytes or len(entry.shape) != len(entry.stride):
        raise _bad(entry.name, f"{elements * itemsize} bytes for {entry.shape}", entry.nbytes)
    if elements and not _is_dense(entry):
        raise _bad(entry.name, "strides that cover its bytes once", entry.stride)


@functools.cache
def _itemsize(dtype: str) -> int:
    return dtype_of(dtype).itemsize


def _is_dense(entry: Entry) -> bool:
    """Whether the strides visit every element once, in some order of the dimensions."""
    step = 1
    for stride, size in sorted(zip(entry.stride, entry.shape, strict=True)):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where each tensor will lie, decided before any is read."""

    offsets: dict[str, int]
    """By full tensor name, `<layer>.<tensor>`."""
    layouts: dict[str, TensorLayout]
    data_bytes: int
    """What all of them span."""


def place(layers: Mapping[str, Mapping[str, TensorLayout]]) -> Placement:
    """One tensor after the other, by layer name and tensor name."""
    layouts = {f"{layer}.{name}": layout for layer, of in layers.items() for name, layout in of.items()}
    offsets, end = {}, 0
    for name, layout in layouts.items():
        offsets[name] = -(-end // OFFSET_ALIGNMENT) * OFFSET_ALIGNMENT
        end = offsets[name] + layout.nbytes
    return Placement(offsets=offsets, layouts=layouts, data_bytes=end)


class Served(Protocol):
    """What `fill` takes: a processed layer, or tensors that are served as they are."""

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> Layout | None: ...

    @property
    def tensors(self) -> dict[str, torch.Tensor]: ...


def fill(arena: Arena, placement: Placement, layers: Iterable[Served]) -> Manifest:
    """Copy the tensors to their places, freeze the arena, and describe it.

    Args:
        arena: of at least `placement.data_bytes`.
        placement: of these layers.
        layers: in any order; each is let go as soon as it is copied, so that memory holds the layers once.

    Raises:
        BadManifest: a tensor is not as it was placed, or one is missing.
    """
    entries: list[Entry] = []
    layouts: dict[str, Layout] = {}
    for layer in layers:
        if layer.layout is not None:
            layouts[layer.name] = layer.layout
        entries += [_written(arena, placement, layer.name, *item) for item in layer.tensors.items()]
        del layer
        give_back_freed_memory()
    entries.sort(key=lambda entry: placement.offsets[entry.name])
    if [entry.name for entry in entries] != list(placement.offsets):
        raise _bad("arena", f"tensors {', '.join(placement.offsets)}", ", ".join(e.name for e in entries))
    arena.freeze()
    return Manifest(
        arena_bytes=arena.nbytes, probe_offset=arena.probe_offset, entries=tuple(entries), layouts=layouts
    )


def _written(arena: Arena, placement: Placement, layer: str, name: str, tensor: torch.Tensor) -> Entry:
    full, found = f"{layer}.{name}", TensorLayout.of(tensor)
    if placement.layouts.get(full) != found:
        raise _bad(full, f"{placement.layouts.get(full)}, as it was placed", found)
    arena.write(placement.offsets[full], memory_bytes(tensor))
    return Entry(
        layer=layer,
        tensor=name,
        dtype=dtype_name(found.dtype),
        shape=found.shape,
        stride=found.stride,
        offset=placement.offsets[full],
        nbytes=found.nbytes,
        sha256=sha256(tensor),
        fingerprint=fingerprint(tensor),
    )


Views = dict[str, dict[str, torch.Tensor]]
"""By layer, and by the tensor's name in it."""


def views(manifest: Manifest, attachment: Attachment) -> Views:
    """Every tensor of the manifest, over the daemon's memory; nothing is copied."""
    whole = attachment.read(0, manifest.probe_offset)
    typed = {dtype: whole.view(dtype_of(dtype)) for dtype in {entry.dtype for entry in manifest.entries}}
    held: Views = defaultdict(dict)
    for entry in manifest.entries:
        start = entry.offset // _itemsize(entry.dtype)
        held[entry.layer][entry.tensor] = typed[entry.dtype].as_strided(entry.shape, entry.stride, start)
    return held


def restore(manifest: Manifest, held: Views, layer: LayerSpec) -> ProcessedLayer:
    """The processed layer of these views, with its layout.

    Raises:
        BadManifest: the daemon does not hold this layer.
    """
    layout = manifest.layouts.get(layer.name)
    if layout is None:
        processed = ", ".join(sorted(manifest.layouts))
        raise _bad(layer.name, f"a layer that the daemon holds ({processed})", "absent")
    return ProcessedLayer(spec=layer, layout=layout, tensors=held[layer.name])


def restore_plain(manifest: Manifest, held: Views, wanted: Sequence[PlainTensor]) -> dict[str, torch.Tensor]:
    """By name, the tensors that are served as they are, of these views.

    Raises:
        BadManifest: the daemon does not hold one, or holds it in another dtype or shape.
    """
    served = {
        f"{module}.{name}": tensor
        for module, tensors in held.items()
        if module not in manifest.layouts
        for name, tensor in tensors.items()
    }
    for plain in wanted:
        tensor = served.get(plain.name)
        found = None if tensor is None else (dtype_name(tensor.dtype), tuple(tensor.shape))
        if found != (plain.dtype, plain.shape):
            raise _bad(plain.name, f"{plain.dtype} {list(plain.shape)}", found or "absent")
    return {plain.name: served[plain.name] for plain in wanted}
