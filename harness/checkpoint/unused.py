"""The tensors that no layer uses, so that none is dropped in silence."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..spec import LayerSpec
from .kv_scales import kv_scale_names
from .layers import tensor_names
from .reader import CheckpointReader


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedTensors:
    """Tensors outside all layers, by what they are; each sorted."""

    unread: tuple[str, ...]
    """Scales, and whatever else lies in a layer's modules, that nothing here reads."""
    kv_scales: tuple[str, ...]
    """Scales of the key and value caches."""
    unquantised: tuple[str, ...]
    """The rest: embeddings, norms, excluded modules."""


def unused_tensors(reader: CheckpointReader, layers: Sequence[LayerSpec]) -> UnusedTensors:
    """List what the checkpoint holds beyond these layers."""
    used = {name for layer in layers for name in tensor_names(layer)}
    modules = {projection.name for layer in layers for projection in layer.projections}
    caches = kv_scale_names(reader)
    rest = [name for name in reader.names if name not in used and name not in caches]
    unread = tuple(name for name in rest if _is_unread(name, modules))
    return UnusedTensors(
        unread=unread,
        kv_scales=tuple(caches),
        unquantised=tuple(sorted(set(rest) - set(unread))),
    )


def _is_unread(name: str, modules: set[str]) -> bool:
    module, _, leaf = name.rpartition(".")
    return module in modules or "scale" in leaf or "amax" in leaf
