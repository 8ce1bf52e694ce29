"""The manifest: which tensor lies where in the arena, and what tensors alone do not carry."""

import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from ..errors import BadManifest
from ..formats import Layout, ProcessedLayer, TensorLayout
from ..model_spec import PlainTensor
from ..spec import LayerSpec
from ..tensor_bytes import dtype_name, dtype_of, give_back_freed_memory, memory_bytes, sha256
from .arena import OFFSET_ALIGNMENT, PROBE_BYTES, Arena, Attachment


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
        end = 0
        for entry in sorted(self.entries, key=lambda e: e.offset):
            _check_entry(entry)
            if entry.offset < end or entry.offset + entry.nbytes > self.probe_offset:
                raise _bad(
                    entry.name,
                    f"bytes within [{end}, {self.probe_offset})",
                    f"[{entry.offset}, {entry.offset + entry.nbytes})",
                )
            end = entry.offset + entry.nbytes
        if self.probe_offset + PROBE_BYTES > self.arena_bytes:
            raise _bad(
                "probe page", f"{PROBE_BYTES} bytes before the end {self.arena_bytes}", self.probe_offset
            )
        if {e.layer for e in self.entries} != set(self.layouts):
            raise _bad("layouts", "one for each layer with tensors", sorted(self.layouts))


def _bad(where: str, expected: object, found: object) -> BadManifest:
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
        raise _bad(entry.name, "a torch dtype", entry.dtype) from None
    elements = 1
    for size in entry.shape:
        elements *= size
    if elements * itemsize != entry.nbytes or len(entry.shape) != len(entry.stride):
        raise _bad(entry.name, f"{elements * itemsize} bytes for {entry.shape}", entry.nbytes)
    if elements and not _is_dense(entry):
        raise _bad(entry.name, "strides that cover its bytes once", entry.stride)
    if entry.offset % OFFSET_ALIGNMENT:
        raise _bad(entry.name, f"an offset in multiples of {OFFSET_ALIGNMENT}", entry.offset)


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
    layouts: dict[str, Layout | None] = {}
    for layer in layers:
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
    )


def restore(manifest: Manifest, attachment: Attachment, layer: LayerSpec) -> ProcessedLayer:
    """The processed layer as views of the daemon's memory, with its layout; nothing is copied.

    Raises:
        BadManifest: the daemon does not hold this layer.
    """
    layout = manifest.layouts.get(layer.name)
    if layout is None:
        held = sorted(name for name, layout in manifest.layouts.items() if layout is not None)
        raise _bad(layer.name, f"a layer that the daemon holds ({', '.join(held)})", "absent")
    tensors = {e.tensor: _view(e, attachment) for e in manifest.entries if e.layer == layer.name}
    return ProcessedLayer(spec=layer, layout=layout, tensors=tensors)


def restore_plain(
    manifest: Manifest, attachment: Attachment, wanted: Sequence[PlainTensor]
) -> dict[str, torch.Tensor]:
    """By name, the tensors that are served as they are, as views of the daemon's memory.

    Raises:
        BadManifest: the daemon does not hold one, or holds it in another dtype or shape.
    """
    entries = {entry.name: entry for entry in manifest.entries if manifest.layouts[entry.layer] is None}
    for plain in wanted:
        entry = entries.get(plain.name)
        found = None if entry is None else (entry.dtype, entry.shape)
        if found != (plain.dtype, plain.shape):
            raise _bad(plain.name, f"{plain.dtype} {list(plain.shape)}", found or "absent")
    return {plain.name: _view(entries[plain.name], attachment) for plain in wanted}


def _view(entry: Entry, attachment: Attachment) -> torch.Tensor:
    typed = attachment.read(entry.offset, entry.nbytes).view(dtype_of(entry.dtype))
    return typed.as_strided(entry.shape, entry.stride)
