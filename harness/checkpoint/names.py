"""Module paths: which projections are fused, and which leading parts only wrap a model."""

import re
from dataclasses import dataclass

from ..spec import LayerSpec

GROUPS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Fused name to its projections, in the order in which they are concatenated."""
FUSED_AS = {member: fused for fused, members in GROUPS.items() for member in members}
WRAPPERS = frozenset({"model", "language_model"})
"""Leading parts that differ between a model's modules and its checkpoint, and between versions: a layer is
`model.layers.0`, `language_model.model.layers.0` or `model.language_model.layers.0`."""


@dataclass(frozen=True, slots=True)
class Group:
    """The modules of a checkpoint that make one layer."""

    name: str
    """Of the layer: the fused name, or the module's own."""
    modules: tuple[str, ...]
    """As the checkpoint stores them, in the order of concatenation."""

    @classmethod
    def of(cls, layer: LayerSpec) -> "Group":
        """The modules that a layer asks for."""
        return cls(layer.name, tuple(projection.name for projection in layer.projections))

    @property
    def members(self) -> tuple[str, ...]:
        """Names under which a config may list parts of the layer, also of one that is stored fused."""
        return members_of(self.name) or self.modules


def fused_name(module: str) -> str:
    """The layer that the module is part of; the module itself where it is not fused."""
    parent, dot, leaf = module.rpartition(".")
    return f"{parent}{dot}{FUSED_AS.get(leaf, leaf)}"


def members_of(name: str) -> tuple[str, ...]:
    """The projections that a fused name joins, in order; () for any other name."""
    parent, dot, leaf = name.rpartition(".")
    return tuple(f"{parent}{dot}{member}" for member in GROUPS.get(leaf, ()))


def unwrapped(path: str) -> str:
    """The path without its leading wrappers; the path itself where it has nothing else."""
    parts = path.split(".")
    for i, part in enumerate(parts):
        if part not in WRAPPERS:
            return ".".join(parts[i:])
    return path


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts `layers.2` before `layers.10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]
