"""The scales of the key and value caches, which a checkpoint may carry beside its layers."""

from collections import defaultdict
from dataclasses import dataclass

from ..errors import MissingTensor
from .layers import REMEDY, checked_scale, wrong
from .reader import CheckpointReader

SPELLINGS = {
    **{f".{part}_proj.{part}_scale": part for part in "kv"},
    **{f".{part}_proj.output_scale": part for part in "kv"},
    **{f".qkv_proj.{part}_scale": part for part in "kv"},
    **{f".{part}_scale": part for part in "kv"},
}
"""Ending of the tensor's name to the cache that it scales; before it stands the attention module. In turn
ModelOpt's export, its older ones, a projection fused on disk, and ModelOpt's Megatron export."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvScales:
    """What one attention module multiplies cached keys and values with; exact float32 values."""

    k: float
    v: float


def kv_scales(reader: CheckpointReader) -> dict[str, KvScales]:
    """Read the scales of every attention module that has them, by module path.

    A module without any is not in the result: what that means is for its user to say, never 1.0 in silence.

    Raises:
        MissingTensor: a module has one of the two.
        WrongTensor: not float32, not () or (1,), or one scale under two names.
        BadScale: NaN, infinite, zero, negative, or too small to be inverted.
    """
    modules: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, (module, part) in kv_scale_names(reader).items():
        other = modules[module].setdefault(part, name)
        if other != name:
            raise wrong(f"{reader.path}: {name}", f"one {part} scale for {module}", f"also {other}")
    return {module: _pair(module, names, reader) for module, names in modules.items()}


def kv_scale_names(reader: CheckpointReader) -> dict[str, tuple[str, str]]:
    """Tensor name to the attention module, and `k` or `v`."""
    found = {}
    for name in reader.names:
        suffix = next((suffix for suffix in SPELLINGS if name.endswith(suffix)), None)
        if suffix is not None:
            found[name] = (name.removesuffix(suffix), SPELLINGS[suffix])
    return found


def _pair(module: str, names: dict[str, str], reader: CheckpointReader) -> KvScales:
    for part in "kv":
        if part not in names:
            raise MissingTensor(
                f"{reader.path}: {module}",
                expected=f"a {part} scale beside {', '.join(names.values())}",
                found="none",
                remedy=REMEDY,
            )
    loaded = reader.load(names.values())
    k, v = (checked_scale(loaded[names[part]], f"{reader.path}: {names[part]}") for part in "kv")
    return KvScales(k=k.item(), v=v.item())
