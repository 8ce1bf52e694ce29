"""Where each tensor lies in the arena, decided before any is read, and filling it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from ..fingerprint import fingerprint
from ..formats import Layout, TensorLayout
from ..tensor_bytes import dtype_name, give_back_freed_memory, memory_bytes, sha256
from .arena import OFFSET_ALIGNMENT, Arena
from .manifest import Entry, Manifest, bad_manifest


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
        raise bad_manifest(
            "arena", f"tensors {', '.join(placement.offsets)}", ", ".join(e.name for e in entries)
        )
    arena.freeze()
    return Manifest(
        arena_bytes=arena.nbytes, probe_offset=arena.probe_offset, entries=tuple(entries), layouts=layouts
    )


def _written(arena: Arena, placement: Placement, layer: str, name: str, tensor: torch.Tensor) -> Entry:
    full, found = f"{layer}.{name}", TensorLayout.of(tensor)
    if placement.layouts.get(full) != found:
        raise bad_manifest(full, f"{placement.layouts.get(full)}, as it was placed", found)
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
