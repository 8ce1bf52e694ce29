"""Discovery finds each quantised layer once, and names whatever files and configs disagree about."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from loadproof.harness.checkpoint.config import read_quantization
from loadproof.harness.checkpoint.discovery import discover_layers
from loadproof.harness.checkpoint.reader import CheckpointReader
from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.errors import ConfigError, MissingTensor, RefusedScheme, WrongTensor
from loadproof.harness.loaders import read_layers
from loadproof.harness.spec import LayerSpec, Projection, Scheme

ATTENTION = "model.layers.0.self_attn"
MLP = "model.layers.0.mlp"
K = 16
WIDTHS = {"q_proj": 8, "k_proj": 4, "v_proj": 4, "gate_proj": 6, "up_proj": 6}
BF16 = torch.ones(8, K, dtype=torch.bfloat16)

Tensors = dict[str, torch.Tensor]


def layer(
    parent: str, leaf: str, *members: str, scheme: Scheme = Scheme.FP8, bias: bool = False
) -> LayerSpec:
    """`leaf` below `parent`, of these projections; of itself where there are none."""
    names = members or (leaf,)
    projections = tuple(Projection(name=f"{parent}.{n}", logical_width=WIDTHS.get(n, 8)) for n in names)
    return LayerSpec(name=f"{parent}.{leaf}", scheme=scheme, projections=projections, logical_k=K, bias=bias)


QKV = layer(ATTENTION, "qkv_proj", "q_proj", "k_proj", "v_proj")
GATE_UP = layer(MLP, "gate_up_proj", "gate_proj", "up_proj")
UP = layer(MLP, "up_proj")
OUT = layer(ATTENTION, "o_proj")
HEAD = LayerSpec(
    name="lm_head", scheme=Scheme.FP8, projections=(Projection(name="lm_head", logical_width=8),), logical_k=K
)
PER_CHANNEL = Scheme.FP8_PER_CHANNEL_PER_TOKEN


def stored(*layers: LayerSpec) -> Tensors:
    return {name: t for i, one in enumerate(layers) for name, t in synthetic_tensors(one, i, False).items()}


def unquantised(*modules: str) -> Tensors:
    return {f"{module}.weight": BF16.clone() for module in modules}


def without(tensors: Tensors, *parts: str) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if not any(part in name for part in parts)}


def discovered(folder: Path, tensors: Mapping[str, torch.Tensor], *excluded: str) -> list[LayerSpec]:
    write_checkpoint(folder, tensors, Scheme.FP8, excluded)
    return discover(folder)


def discover(folder: Path) -> list[LayerSpec]:
    with CheckpointReader(folder) as reader:
        return discover_layers(reader, read_quantization(folder))


def mix(folder: Path, own: Mapping[str, str]) -> None:
    """Give each module of a written checkpoint its own algorithm."""
    for name, section in {
        "hf_quant_config.json": "quantization",
        "config.json": "quantization_config",
    }.items():
        document = json.loads((folder / name).read_text())
        layers = {module: {"quant_algo": algo} for module, algo in own.items()}
        document[section] |= {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
        (folder / name).write_text(json.dumps(document))


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_discovery_finds_the_layers_that_were_written(bias: bool, tmp_path: Path) -> None:
    fused = layer(ATTENTION, "qkv_proj", "q_proj", "k_proj", "v_proj", bias=bias)
    assert discovered(tmp_path, stored(OUT, fused, GATE_UP)) == [GATE_UP, OUT, fused]


def test_layers_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    layers = [layer(f"model.layers.{i}.self_attn", "o_proj") for i in (2, 10)]
    assert discovered(tmp_path, stored(*reversed(layers))) == layers


# --- fused on disk ----------------------------------------------------------------------------

ON_DISK = {
    "qkv": layer(ATTENTION, "qkv_proj"),
    "gate-up": layer(MLP, "gate_up_proj"),
    "qkv-per-channel": layer(ATTENTION, "qkv_proj", scheme=PER_CHANNEL),
}


@pytest.mark.parametrize("one", ON_DISK.values(), ids=ON_DISK)
def test_a_projection_fused_on_disk_is_one_projection(one: LayerSpec, tmp_path: Path) -> None:
    tensors = stored(one)
    write_checkpoint(tmp_path, tensors, one.scheme)
    assert discover(tmp_path) == [one]
    (processed,) = read_layers(tmp_path, [one]).layers
    # One scale: nothing is requantised, so the bytes are those of the file, transposed.
    weight = tensors[f"{one.name}.weight"].view(torch.uint8)
    assert torch.equal(processed.tensors["weight"].view(torch.uint8)[:K, : one.logical_width].T, weight)


PARTIAL = {
    "q": (without(stored(QKV), ".q_proj."), "q_proj"),
    "k": (without(stored(QKV), ".k_proj."), "k_proj"),
    "v": (without(stored(QKV), ".v_proj."), "v_proj"),
    "up": (without(stored(GATE_UP), ".up_proj."), "up_proj"),
    "fused-and-q": (stored(ON_DISK["qkv"], layer(ATTENTION, "q_proj")), "both"),
    "fused-and-all": (stored(ON_DISK["qkv"], QKV), "both"),
    "fused-and-bf16-q": ({**stored(ON_DISK["qkv"]), **unquantised(f"{ATTENTION}.q_proj")}, "both"),
    "bf16-fused-and-all": ({**stored(QKV), **unquantised(f"{ATTENTION}.qkv_proj")}, "both"),
}


@pytest.mark.parametrize(("tensors", "said"), PARTIAL.values(), ids=PARTIAL)
def test_a_partial_or_doubled_group_is_refused(tensors: Tensors, said: str, tmp_path: Path) -> None:
    with pytest.raises(WrongTensor, match=rf"(qkv|gate_up)_proj: .*{said}"):
        discovered(tmp_path, tensors)


def test_an_up_projection_without_a_gate_is_plain(tmp_path: Path) -> None:
    assert discovered(tmp_path, stored(UP)) == [UP]


def test_members_of_unequal_k_are_refused(tmp_path: Path) -> None:
    tensors = stored(QKV)
    tensors[f"{ATTENTION}.k_proj.weight"] = tensors[f"{ATTENTION}.k_proj.weight"][:, :8].contiguous()
    with pytest.raises(WrongTensor, match="one K"):
        discovered(tmp_path, tensors)


def test_another_float8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongTensor, match=r"fc1\.weight.*F8_E5M2"):
        discovered(tmp_path, {"a.fc1.weight": torch.zeros(4, 4).to(torch.float8_e5m2)})


# --- excluded modules -------------------------------------------------------------------------

EXCLUDED = {
    "head": (unquantised("lm_head"), ("lm_head",)),
    "member-stars": (unquantised(*(p.name for p in QKV.projections)), tuple(f"*.{p}_proj" for p in "qkv")),
    "fused-name": (unquantised(*(p.name for p in QKV.projections)), ("*.qkv_proj",)),
    "fused-on-disk": (unquantised(QKV.name), ("*.qkv_proj",)),
    "tower": (unquantised("visual.blocks.0.attn.q_proj"), ("model.visual.*",)),
    "odd-tower": (unquantised("visual.q_proj", "visual.qkv_proj"), ("visual*",)),
}


@pytest.mark.parametrize(("tensors", "excluded"), EXCLUDED.values(), ids=EXCLUDED)
def test_an_excluded_module_is_no_layer(tensors: Tensors, excluded: tuple[str, ...], tmp_path: Path) -> None:
    assert discovered(tmp_path, {**stored(OUT), **tensors}, *excluded) == [OUT]


@pytest.mark.parametrize(("tensors", "excluded"), EXCLUDED.values(), ids=EXCLUDED)
def test_the_same_module_not_excluded_is_named(
    tensors: Tensors, excluded: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(WrongTensor):
        discovered(tmp_path, {**stored(OUT), **tensors})


NOT_QUANTISED = {
    "plain": ({**unquantised(f"{ATTENTION}.o_proj")}, f"{ATTENTION}.o_proj"),
    "head": ({**unquantised("lm_head")}, "lm_head"),
    "member": ({**stored(QKV), **unquantised(f"{ATTENTION}.k_proj")}, f"{ATTENTION}.k_proj"),
}


@pytest.mark.parametrize(("tensors", "module"), NOT_QUANTISED.values(), ids=NOT_QUANTISED)
def test_a_projection_that_is_neither_quantised_nor_excluded_is_named(
    tensors: Tensors, module: str, tmp_path: Path
) -> None:
    # Its scales would show that it was meant to be quantised.
    kept = {n: t for n, t in tensors.items() if not n.startswith(f"{module}.") or n.endswith(".weight")}
    with pytest.raises(WrongTensor, match=r"BF16 \[8, 16\] without scales") as caught:
        discovered(tmp_path, kept)
    assert caught.value.where == f"{tmp_path}: {module}.weight"


@pytest.mark.parametrize("kept", ["weight", "weight_scale", "input_scale"])
@pytest.mark.parametrize("excluded", ["lm_head", "*lm_head", "lm_head*"])
def test_an_excluded_module_with_anything_quantised_is_named(
    excluded: str, kept: str, tmp_path: Path
) -> None:
    tensors = {**stored(OUT), **unquantised("lm_head")}
    tensors[f"lm_head.{kept}"] = stored(HEAD)[f"lm_head.{kept}"]
    with pytest.raises(WrongTensor, match=rf"lm_head\.{kept}: .*excluded by '{excluded[:1]}"):
        discovered(tmp_path, tensors, excluded)


def test_an_excluded_module_may_have_kv_scales(tmp_path: Path) -> None:
    tensors = {**stored(OUT), **unquantised(*(p.name for p in QKV.projections))}
    tensors[f"{ATTENTION}.k_proj.k_scale"] = torch.tensor(0.25)
    assert discovered(tmp_path, tensors, "*.qkv_proj") == [OUT]


def test_a_half_excluded_layer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"q_proj excluded, \S+k_proj, \S+v_proj not"):
        discovered(tmp_path, stored(QKV), "*.q_proj")


def test_a_scale_without_its_weight_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingTensor, match=r"o_proj\.weight:"):
        discovered(tmp_path, {f"{OUT.name}.weight_scale": torch.tensor(0.5)})


def test_a_scale_beside_an_unquantised_weight_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongTensor, match=r"fc1\.weight: expected F8_E4M3 .*BF16"):
        discovered(tmp_path, {**unquantised("a.fc1"), "a.fc1.weight_scale": torch.tensor(0.5)})


def test_embeddings_norms_and_routers_are_no_layers(tmp_path: Path) -> None:
    others = unquantised("model.embed_tokens", "model.layers.0.mlp.gate")
    norm = {"model.norm.weight": torch.ones(8), "visual.patch_proj.weight": torch.ones(2, 3, 4, 4)}
    assert discovered(tmp_path, {**stored(OUT), **others, **norm}) == [OUT]


def test_a_refused_scheme_is_refused_whatever_the_weights_look_like(tmp_path: Path) -> None:
    packed = {f"{OUT.name}.weight": torch.zeros(8, K // 2, dtype=torch.uint8)}
    write_checkpoint(tmp_path, packed, "NVFP4")
    with pytest.raises(RefusedScheme, match="quant_algo 'NVFP4'"):
        discover(tmp_path)


# --- mixed precision --------------------------------------------------------------------------


def test_each_layer_of_a_mixture_has_its_own_scheme(tmp_path: Path) -> None:
    out = layer(ATTENTION, "o_proj", scheme=PER_CHANNEL)
    write_checkpoint(tmp_path, {**stored(out, QKV), **unquantised(f"{MLP}.down_proj")}, Scheme.FP8)
    mix(tmp_path, {out.name: PER_CHANNEL.value, **{p.name: "fp8" for p in QKV.projections}})
    assert discover(tmp_path) == [out, QKV]
    assert [done.spec for done in read_layers(tmp_path, [out, QKV]).layers] == [out, QKV]


def test_a_quantised_layer_that_a_mixture_does_not_list_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, stored(OUT, GATE_UP), Scheme.FP8)
    mix(tmp_path, {OUT.name: "FP8"})
    with pytest.raises(WrongTensor, match=r"gate_proj\.weight: .*absent from the quantized_layers"):
        discover(tmp_path)


def test_a_listed_layer_that_is_not_quantised_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {**stored(OUT), **unquantised(f"{MLP}.down_proj")}, Scheme.FP8)
    mix(tmp_path, {OUT.name: "FP8", f"{MLP}.down_proj": "FP8"})
    with pytest.raises(WrongTensor, match=r"down_proj\.weight: .*BF16"):
        discover(tmp_path)


def test_a_mixture_with_a_refused_layer_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, stored(OUT), Scheme.FP8)
    mix(tmp_path, {OUT.name: "FP8", f"{MLP}.down_proj": "NVFP4"})
    with pytest.raises(RefusedScheme, match=r"down_proj has 'NVFP4'"):
        discover(tmp_path)
