"""Which layers a checkpoint has: the quantised weights in its files, held against what its configs say."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from ..errors import MissingTensor, WrongTensor
from ..spec import LayerSpec, Projection
from .config import QuantizationConfig
from .layers import wrong
from .names import Group, fused_name, members_of, natural
from .reader import CheckpointReader
from .schemes import SchemePlan

WEIGHT = ".weight"
SCALES = (".weight_scale", ".input_scale")
LM_HEAD = "lm_head"
PROJECTION = "_proj"
E4M3 = "F8_E4M3"


def discover_layers(
    reader: CheckpointReader, config: QuantizationConfig, out_dtype: str = "bfloat16"
) -> list[LayerSpec]:
    """Group the quantised weights into fused layers, `layers.2` before `layers.10`.

    Quantised is a weight in any float8 dtype, and any module with a weight or input scale. Files and configs
    must agree on it: an excluded module has none of these, while each `*_proj` and `lm_head` that is not
    excluded is quantised. Other matrices (embeddings, routers) older exports do not list as excluded, so they
    may be either.

    Args:
        reader: the open checkpoint.
        config: what its configs say.
        out_dtype: torch name of the layers' output dtype.

    Raises:
        RefusedScheme: by the quant_algo, or by that of any layer.
        ConfigError: a fused layer is excluded in part, or its members have different algorithms.
        MissingTensor: a scale has no weight beside it.
        WrongTensor: files and configs disagree, a quantised weight is not E4M3 [N, K], or a group is
            incomplete (an `up_proj` without any gate is plain), stored twice, or of unequal K.
    """
    plan = SchemePlan(config, reader.path)
    plan.require_supported()
    quantised, groups = _quantised(reader), defaultdict(list)
    for module in sorted(quantised.keys() | _linear(reader)):
        groups[fused_name(module)].append(module)
    layers = []
    for name in sorted(groups, key=natural):
        group = _group(name, groups[name])
        reason = plan.why_unquantised(group)
        if reason is None:
            _require_quantised(group, quantised, reader)
            layers.append(_layer(group, plan, reader, out_dtype))
        else:
            _require_unquantised(group, quantised, reader, reason)
    return layers


def require_layers(layers: Sequence[LayerSpec], checkpoint: Path) -> None:
    """Raise MissingTensor where a checkpoint has no layer to process."""
    if not layers:
        raise MissingTensor(
            checkpoint,
            expected="at least one FP8 layer",
            found="none",
            remedy="Name a checkpoint whose weights are quantised.",
        )


def _quantised(reader: CheckpointReader) -> dict[str, str]:
    """Module path to the tensor that shows that it is quantised."""
    found: dict[str, str] = {}
    for suffix in (WEIGHT, *SCALES):
        for name in reader.names:
            if name.endswith(suffix) and (suffix in SCALES or reader.entry(name).dtype.startswith("F8_")):
                found.setdefault(name.removesuffix(suffix), name)
    return found


def _linear(reader: CheckpointReader) -> set[str]:
    """Module paths that are linear layers by their name and shape, in whatever dtype."""
    modules = (name.removesuffix(WEIGHT) for name in reader.names if name.endswith(WEIGHT))
    leaves = {module: module.rpartition(".")[2] for module in modules}
    named = [module for module, leaf in leaves.items() if leaf == LM_HEAD or leaf.endswith(PROJECTION)]
    return {module for module in named if len(reader.entry(module + WEIGHT).shape) == 2}


def _group(name: str, modules: list[str]) -> Group:
    members = members_of(name)
    if set(modules) == set(members):
        return Group(name, members)
    if len(modules) == 1 and modules[0].endswith(".up_proj"):
        # An MLP without a gate.
        return Group(modules[0], tuple(modules))
    return Group(name, tuple(modules))


def _require_unquantised(
    group: Group, quantised: dict[str, str], reader: CheckpointReader, reason: str
) -> None:
    for module in group.modules:
        if module in quantised:
            tensor = quantised[module]
            found = f"{reader.entry(tensor).dtype}, a quantised module's"
            raise _disagreement(reader, tensor, f"an unquantised {module}, since it is {reason}", found)


def _require_quantised(group: Group, quantised: dict[str, str], reader: CheckpointReader) -> None:
    where = f"{reader.path}: {group.name}"
    if group.name in group.modules and len(group.modules) > 1:
        raise wrong(where, "the fused projection or its members", f"both, {', '.join(group.modules)}")
    missing = [module for module in group.members if module not in group.modules]
    if missing and group.name not in group.modules:
        raise wrong(where, f"quantised {', '.join(group.members)}", f"not {', '.join(missing)}")
    for module in group.modules:
        entry = reader.entry(module + WEIGHT)
        found = f"{entry.dtype} {list(entry.shape)}"
        if module not in quantised:
            expected = "a quantised weight, since the configs do not exclude it"
            raise _disagreement(reader, module + WEIGHT, expected, f"{found} without scales")
        if entry.dtype != E4M3 or len(entry.shape) != 2:
            raise wrong(f"{reader.path}: {module}{WEIGHT}", f"{E4M3} [N, K]", found)


def _disagreement(reader: CheckpointReader, tensor: str, expected: str, found: str) -> WrongTensor:
    return WrongTensor(
        f"{reader.path}: {tensor}",
        expected=expected,
        found=found,
        remedy="Correct the excluded modules in both config files, or export the checkpoint again.",
    )


def _layer(group: Group, plan: SchemePlan, reader: CheckpointReader, out_dtype: str) -> LayerSpec:
    shapes = {module: reader.entry(module + WEIGHT).shape for module in group.modules}
    if len({k for _, k in shapes.values()}) != 1:
        raise wrong(f"{reader.path}: {group.name}", "one K for all projections", shapes)
    return LayerSpec(
        name=group.name,
        scheme=plan.scheme(group),
        projections=tuple(Projection(name=m, logical_width=n) for m, (n, _) in shapes.items()),
        logical_k=shapes[group.modules[0]][1],
        bias=any(reader.holds(f"{module}.bias") for module in group.modules),
        out_dtype=out_dtype,
    )
