"""What ModelOpt itself writes is read byte for byte, or refused by its name."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from loadproof.cases.selfcheck.reading import read_digested
from loadproof.cases.selfcheck.real_exports import CHOSEN, FAMILIES, LAYERS, SIZES, exported
from loadproof.harness.checkpoint.config import CONFIG, HF_QUANT_CONFIG, read_quantization
from loadproof.harness.checkpoint.discovery import discover_layers
from loadproof.harness.checkpoint.kv_scales import kv_scales
from loadproof.harness.checkpoint.layers import tensor_names
from loadproof.harness.checkpoint.reader import CheckpointReader
from loadproof.harness.errors import BadScale, RefusedScheme, WrongTensor
from loadproof.harness.loaders import load_from_disk
from loadproof.harness.spec import LayerSpec, Projection, Scheme
from loadproof.harness.tensor_bytes import memory_bytes
from loadproof.harness.witness.inotify import FileWitness

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None, reason="nvidia-modelopt is not installed (extra: model)"
)
WEIGHTS = "model.safetensors"
SCHEMES = {"fp8": Scheme.FP8, "per-channel": Scheme.FP8_PER_CHANNEL_PER_TOKEN}
LOADABLE = [f"{family}-{suffix}" for family in FAMILIES for suffix in SCHEMES]
WITH_KV_CACHE = [f"kv-{suffix}" for suffix in SCHEMES]
REFUSED = {
    "fp8-pb-wo": "fp8_pb_wo",  # in lower case, as ModelOpt writes it
    "nvfp4": "NVFP4",
    "w4a16-nvfp4": "W4A16_NVFP4",
    "w4a8-nvfp4-fp8": "W4A8_NVFP4_FP8",
    "mxfp8": "MXFP8",
}


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of a run; below it one checkpoint a recipe."""
    base = tmp_path_factory.getbasetemp()
    # A worker's base lies in that of the run; without workers the parent outlives the run.
    return exported(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


def scheme_in(name: str) -> Scheme:
    """The scheme that a recipe's name ends in."""
    return next(scheme for suffix, scheme in SCHEMES.items() if name.endswith(suffix))


def discovered(export: Path) -> list[LayerSpec]:
    """The quantised layers of an export."""
    with CheckpointReader(export) as reader:
        return discover_layers(reader, read_quantization(export))


def expected_layers(family: str) -> dict[str, tuple[dict[str, int], int, bool]]:
    """Layer name to the widths of its projections, K, and whether it has a bias; all in order."""
    hidden, wide, head = SIZES["hidden_size"], SIZES["intermediate_size"], FAMILIES[family][1]
    q, kv = SIZES["num_attention_heads"] * head, SIZES["num_key_value_heads"] * head
    layer = {
        "mlp.down_proj": ({"down_proj": hidden}, wide, False),
        "mlp.gate_up_proj": ({"gate_proj": wide, "up_proj": wide}, hidden, False),
        "self_attn.o_proj": ({"o_proj": hidden}, q, False),
        "self_attn.qkv_proj": ({"q_proj": q, "k_proj": kv, "v_proj": kv}, hidden, family == "qwen2"),
    }
    return {f"model.layers.{i}.{name}": value for i in range(LAYERS) for name, value in layer.items()}


@pytest.mark.parametrize("name", LOADABLE)
def test_every_quantised_layer_is_discovered(name: str, exports: Path) -> None:
    found = {
        layer.name: (
            {p.name.rpartition(".")[2]: p.logical_width for p in layer.projections},
            layer.logical_k,
            layer.bias,
        )
        for layer in discovered(exports / name)
    }
    # As text: dicts that differ in their order alone are equal.
    assert str(found) == str(expected_layers(name.split("-")[0]))


@pytest.mark.parametrize("name", LOADABLE + WITH_KV_CACHE)
def test_loaded_bytes_are_those_that_safetensors_loads(name: str, exports: Path) -> None:
    theirs = load_file(exports / name / WEIGHTS)
    with CheckpointReader(exports / name) as reader:
        assert set(reader.names) == set(theirs)
        for ours in (reader.load(reader.names), read_digested(reader, reader.names)[0]):
            for tensor, value in theirs.items():
                assert (ours[tensor].dtype, ours[tensor].shape) == (value.dtype, value.shape), tensor
                assert torch.equal(memory_bytes(ours[tensor]), memory_bytes(value)), tensor


@pytest.mark.parametrize("name", LOADABLE + WITH_KV_CACHE)
def test_every_layer_is_processed(name: str, exports: Path) -> None:
    layers = discovered(exports / name)
    stored = load_file(exports / name / WEIGHTS)
    processed = load_from_disk(exports / name, layers).layers
    assert [made.spec for made in processed] == layers
    for made in processed:
        real, origins = made.tensors["weight"], [p.name for p in made.spec.projections]
        whole = torch.cat([dequantized(stored, origin) for origin in origins])
        ours = real.to(torch.float32) * made.tensors["weight_scale"]
        ours = ours[: made.spec.logical_k, : made.spec.logical_width].T
        # Requantisation to the largest scale rounds to half a step: of three mantissa bits, or of a denormal.
        half_a_denormal = float(made.tensors["weight_scale"].max()) * 2**-10
        torch.testing.assert_close(ours, whole, rtol=2**-4, atol=half_a_denormal)
        if made.spec.bias:
            bias = torch.cat([stored[f"{origin}.bias"] for origin in origins])
            assert torch.equal(made.tensors["bias"][: len(bias)], bias)


def dequantized(stored: dict[str, torch.Tensor], module: str) -> torch.Tensor:
    """float32 [N, K]: codes times scale, as the file holds them."""
    scale = stored[f"{module}.weight_scale"]
    return stored[f"{module}.weight"].to(torch.float32) * (scale[:, None] if scale.ndim else scale)


@pytest.mark.parametrize("name", LOADABLE)
def test_either_config_says_the_same(name: str, exports: Path, tmp_path: Path) -> None:
    both = read_quantization(exports / name)
    assert {layer.scheme for layer in discovered(exports / name)} == {scheme_in(name)}
    assert (both.excluded, both.kv_cache_quant_algo) == (("lm_head", "model.embed_tokens"), None)
    for file in (CONFIG, HF_QUANT_CONFIG):
        (tmp_path / file).mkdir()
        shutil.copy(exports / name / file, tmp_path / file / file)
        assert read_quantization(tmp_path / file) == both


@pytest.mark.parametrize(("name", "algo"), REFUSED.items(), ids=REFUSED)
def test_another_scheme_is_refused_unread(name: str, algo: str, exports: Path) -> None:
    projection = Projection(name="model.layers.1.self_attn.o_proj", logical_width=64)
    layer = LayerSpec(name=projection.name, scheme=Scheme.FP8, projections=(projection,), logical_k=64)
    with FileWitness(exports / name, [WEIGHTS]) as witness:
        with pytest.raises(RefusedScheme) as caught:
            load_from_disk(exports / name, [layer])
        assert witness.opened() == []
    assert caught.value.found.startswith(f"quant_algo '{algo}'")
    assert str(exports / name) in str(caught.value)


@pytest.mark.parametrize("name", WITH_KV_CACHE)
def test_scales_of_the_kv_cache_stand_beside_the_weights(name: str, exports: Path) -> None:
    assert read_quantization(exports / name).kv_cache_quant_algo == "FP8"
    stored = load_file(exports / name / WEIGHTS)
    with CheckpointReader(exports / name) as reader:
        scales = kv_scales(reader)
    assert sorted(scales) == [f"model.layers.{i}.self_attn" for i in range(LAYERS)]
    tensors = {
        f"{module}.{kv}_proj.{kv}_scale": getattr(s, kv) for module, s in scales.items() for kv in "kv"
    }
    assert all(stored[tensor].item() == value > 0 for tensor, value in tensors.items())
    layers = discovered(exports / name)
    assert not set(tensors) & {tensor for layer in layers for tensor in tensor_names(layer)}


def test_an_all_zero_layer_is_refused(exports: Path) -> None:
    export = exports / "zeroed-fp8"
    stored = load_file(export / WEIGHTS)
    # ModelOpt divides by the scale 0.0 all the same, so every code is NaN.
    assert stored[f"{CHOSEN}.weight_scale"] == 0
    assert (stored[f"{CHOSEN}.weight"].view(torch.uint8) == 0xFF).all()
    for layer in discovered(export):
        if layer.name != CHOSEN:
            load_from_disk(export, [layer])
            continue
        with pytest.raises((BadScale, WrongTensor), match=f"{CHOSEN}.weight"):
            load_from_disk(export, [layer])


def test_all_zero_channels_are_loaded(exports: Path) -> None:
    # Per channel ModelOpt replaces the scale 0.0 by 1.0, which is arithmetic that holds.
    export = exports / "zeroed-per-channel"
    (layer,) = [x for x in discovered(export) if x.name == CHOSEN]
    (processed,) = load_from_disk(export, [layer]).layers
    assert not processed.tensors["weight"].view(torch.uint8).any()
    assert (processed.tensors["weight_scale"] == 1).all()


def test_a_mixed_export_gives_each_layer_its_own_scheme(exports: Path) -> None:
    layers = discovered(exports / "mixed")
    assert {layer.name for layer in layers} == set(expected_layers("llama"))
    schemes = {layer.name: layer.scheme for layer in layers}
    assert schemes.pop(CHOSEN) is Scheme.FP8_PER_CHANNEL_PER_TOKEN
    assert set(schemes.values()) == {Scheme.FP8}
    assert [made.spec for made in load_from_disk(exports / "mixed", layers).layers] == layers


def test_a_layer_left_out_is_named_and_not_discovered(exports: Path) -> None:
    export = exports / "left-out"
    assert read_quantization(export).excluded == ("lm_head", "model.embed_tokens", CHOSEN)
    names = [layer.name for layer in discovered(export)]
    assert names == [name for name in expected_layers("llama") if name != CHOSEN]
