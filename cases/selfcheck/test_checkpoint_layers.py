"""Tensors of a layer are checked before anything is computed from them."""

import math
from pathlib import Path

import pytest
import torch

from loadproof.harness.checkpoint.layers import checked_projections, tensor_names
from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.errors import BadScale, CheckpointError, MissingTensor, WrongTensor
from loadproof.harness.loaders import read_layers
from loadproof.harness.spec import LayerSpec, Projection, Scheme

ORIGIN = Path("/some/checkpoint")
ATTENTION = "model.layers.0.self_attn"


def qkv(scheme: Scheme, bias: bool = False) -> LayerSpec:
    """A small fused layer of unequal widths."""
    widths = {"q_proj": 8, "k_proj": 4, "v_proj": 4}
    return LayerSpec(
        name=f"{ATTENTION}.qkv_proj",
        scheme=scheme,
        projections=tuple(Projection(name=f"{ATTENTION}.{n}", logical_width=w) for n, w in widths.items()),
        logical_k=6,
        bias=bias,
    )


PER_TENSOR, PER_CHANNEL = qkv(Scheme.FP8), qkv(Scheme.FP8_PER_CHANNEL_PER_TOKEN)
BAD_VALUES = {"NaN": math.nan, "inf": math.inf, "zero": 0.0, "negative": -0.01, "denormal": 1e-40}


@pytest.mark.parametrize("suffix", ["weight_scale", "input_scale"])
@pytest.mark.parametrize(("kind", "value"), BAD_VALUES.items(), ids=BAD_VALUES)
def test_a_bad_per_tensor_scale_is_named(suffix: str, kind: str, value: float) -> None:
    tensors = synthetic_tensors(PER_TENSOR, 0, False)
    tensors[f"{ATTENTION}.k_proj.{suffix}"] = torch.tensor(value)
    with pytest.raises(BadScale, match=rf"k_proj\.{suffix}.*{kind} at index \[\]"):
        checked_projections(PER_TENSOR, tensors, ORIGIN)


@pytest.mark.parametrize(("kind", "value"), BAD_VALUES.items(), ids=BAD_VALUES)
def test_a_bad_channel_scale_is_named_with_its_index(kind: str, value: float) -> None:
    tensors = synthetic_tensors(PER_CHANNEL, 0, False)
    tensors[f"{ATTENTION}.v_proj.weight_scale"][3] = value
    with pytest.raises(BadScale, match=rf"v_proj\.weight_scale.*{kind} at index \[3\]"):
        checked_projections(PER_CHANNEL, tensors, ORIGIN)


WRONG = {
    "e5m2-weight": ("weight", torch.zeros(8, 6).to(torch.float8_e5m2)),
    "fnuz-weight": ("weight", torch.zeros(8, 6).to(torch.float8_e4m3fnuz)),
    "bf16-weight": ("weight", torch.zeros(8, 6, dtype=torch.bfloat16)),
    "transposed-weight": ("weight", torch.zeros(6, 8).to(torch.float8_e4m3fn)),
    "nan-weight": ("weight", torch.full((8, 6), 0xFF, dtype=torch.uint8).view(torch.float8_e4m3fn)),
    "bf16-scale": ("weight_scale", torch.tensor(0.01, dtype=torch.bfloat16)),
    "channel-scale": ("weight_scale", torch.full((8,), 0.01)),
    "two-dim-scale": ("weight_scale", torch.full((1, 1), 0.01)),
    "float64-input-scale": ("input_scale", torch.tensor(0.01, dtype=torch.float64)),
    "long-input-scale": ("input_scale", torch.full((2,), 0.01)),
    "short-bias": ("bias", torch.zeros(7, dtype=torch.bfloat16)),
    "float64-bias": ("bias", torch.zeros(8, dtype=torch.float64)),
}


@pytest.mark.parametrize(("suffix", "replacement"), WRONG.values(), ids=WRONG)
def test_a_wrong_tensor_is_refused(suffix: str, replacement: torch.Tensor) -> None:
    layer = qkv(Scheme.FP8, bias=True)
    tensors = synthetic_tensors(layer, 0, False)
    tensors[f"{ATTENTION}.q_proj.{suffix}"] = replacement
    with pytest.raises(WrongTensor, match=rf"q_proj\.{suffix}"):
        checked_projections(layer, tensors, ORIGIN)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (8, 2), (1, 8)], ids=str)
def test_a_channel_scale_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    tensors = synthetic_tensors(PER_CHANNEL, 0, False)
    tensors[f"{ATTENTION}.q_proj.weight_scale"] = torch.full(shape, 0.01)
    with pytest.raises(WrongTensor, match="q_proj"):
        checked_projections(PER_CHANNEL, tensors, ORIGIN)


@pytest.mark.parametrize("suffix", ["weight", "weight_scale", "input_scale"])
@pytest.mark.parametrize("projection", ["q_proj", "k_proj", "v_proj"])
def test_a_missing_tensor_is_named(projection: str, suffix: str) -> None:
    tensors = synthetic_tensors(PER_TENSOR, 0, False)
    del tensors[f"{ATTENTION}.{projection}.{suffix}"]
    with pytest.raises(MissingTensor, match=rf"/some/checkpoint: .*{projection}\.{suffix}:"):
        checked_projections(PER_TENSOR, tensors, ORIGIN)


def plain(scheme: Scheme, width: int) -> LayerSpec:
    """One projection."""
    name = f"{ATTENTION}.o_proj"
    projections = (Projection(name=name, logical_width=width),)
    return LayerSpec(name=name, scheme=scheme, projections=projections, logical_k=6)


SHAPES = [
    # One channel is not one tensor: its scale stays a row of one, and a scalar is refused.
    (Scheme.FP8, 17, (), ()),
    (Scheme.FP8, 17, (1,), ()),
    (Scheme.FP8, 17, (1, 1), None),
    (Scheme.FP8, 17, (17,), None),
    (Scheme.FP8, 1, (), ()),
    (Scheme.FP8, 1, (1,), ()),
    (Scheme.FP8, 1, (1, 1), None),
    (Scheme.FP8_PER_CHANNEL_PER_TOKEN, 17, (17,), (17,)),
    (Scheme.FP8_PER_CHANNEL_PER_TOKEN, 17, (17, 1), (17,)),
    (Scheme.FP8_PER_CHANNEL_PER_TOKEN, 17, (1, 17), None),
    (Scheme.FP8_PER_CHANNEL_PER_TOKEN, 17, (1,), None),
    (Scheme.FP8_PER_CHANNEL_PER_TOKEN, 17, (), None),
    (Scheme.FP8_PER_CHANNEL_PER_TOKEN, 1, (1,), (1,)),
    (Scheme.FP8_PER_CHANNEL_PER_TOKEN, 1, (1, 1), (1,)),
    (Scheme.FP8_PER_CHANNEL_PER_TOKEN, 1, (), None),
]


@pytest.mark.parametrize(("scheme", "width", "stored", "normalised"), SHAPES)
def test_scale_shapes_are_normalised_or_refused(
    scheme: Scheme, width: int, stored: tuple[int, ...], normalised: tuple[int, ...] | None
) -> None:
    layer = plain(scheme, width)
    tensors = synthetic_tensors(layer, 0, False)
    values = torch.arange(1.0, 1.0 + math.prod(stored))
    tensors[f"{layer.name}.weight_scale"] = values.reshape(stored)
    if normalised is None:
        with pytest.raises(WrongTensor, match=r"o_proj\.weight_scale"):
            checked_projections(layer, tensors, ORIGIN)
    else:
        (checked,) = checked_projections(layer, tensors, ORIGIN)
        assert checked.weight_scale.shape == normalised
        assert checked.weight_scale.reshape(-1).tolist() == values.tolist()


SPELLINGS = {
    "per-tensor": (PER_TENSOR, ("weight_scale", "input_scale"), (1,)),
    "per-channel": (PER_CHANNEL, ("weight_scale",), (-1, 1)),
}


@pytest.mark.parametrize(("layer", "suffixes", "shape"), SPELLINGS.values(), ids=SPELLINGS)
def test_both_spellings_of_scales_give_the_same_bytes(
    layer: LayerSpec, suffixes: tuple[str, ...], shape: tuple[int, ...], tmp_path: Path
) -> None:
    tensors = synthetic_tensors(layer, 5, False)
    scales = [f"{p.name}.{suffix}" for p in layer.projections for suffix in suffixes]
    respelled = {**tensors, **{name: tensors[name].reshape(shape) for name in scales}}
    loaded = []
    for folder, stored in {"one": tensors, "other": respelled}.items():
        write_checkpoint(tmp_path / folder, stored, layer.scheme)
        loaded.append(read_layers(tmp_path / folder, [layer]).layers[0].tensors)
    assert loaded[0].keys() == loaded[1].keys()
    for name, tensor in loaded[0].items():
        assert tensor.shape == loaded[1][name].shape
        ours, theirs = (t[name].contiguous().reshape(-1).view(torch.uint8) for t in loaded)
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("suffix", ["weight_scale", "input_scale"])
@pytest.mark.parametrize("projection", ["q_proj", "k_proj", "v_proj"])
def test_a_scale_missing_on_disk_is_named_and_never_dynamic(
    projection: str, suffix: str, tmp_path: Path
) -> None:
    tensors = synthetic_tensors(PER_TENSOR, 0, False)
    del tensors[f"{ATTENTION}.{projection}.{suffix}"]
    write_checkpoint(tmp_path, tensors, Scheme.FP8)
    with pytest.raises(MissingTensor, match=rf"{projection}\.{suffix}:"):
        read_layers(tmp_path, [PER_TENSOR])


@pytest.mark.parametrize("scheme", list(Scheme), ids=str)
@pytest.mark.parametrize("nan_weights", [True, False], ids=["nan-bytes", "zero-bytes"])
def test_an_exported_layer_of_zeros_is_refused(nan_weights: bool, scheme: Scheme, tmp_path: Path) -> None:
    # ModelOpt divides by the largest magnitude: scale 0.0, and 0 / 0 for each weight.
    layer = plain(scheme, 4)
    tensors = synthetic_tensors(layer, 0, False)
    byte = 0x7F if nan_weights else 0
    zeros = torch.full((4, 6), byte, dtype=torch.uint8).view(torch.float8_e4m3fn)
    tensors[f"{layer.name}.weight"] = zeros
    tensors[f"{layer.name}.weight_scale"].zero_()
    write_checkpoint(tmp_path, tensors, scheme)
    with pytest.raises(CheckpointError) as caught:
        read_layers(tmp_path, [layer])
    error, tensor = (WrongTensor, "weight") if nan_weights else (BadScale, "weight_scale")
    assert type(caught.value) is error
    assert caught.value.where == f"{tmp_path}: {layer.name}.{tensor}"


def test_an_unquantised_weight_that_is_not_excluded_is_not_loaded(tmp_path: Path) -> None:
    layer = plain(Scheme.FP8, 4)
    write_checkpoint(tmp_path, {f"{layer.name}.weight": torch.ones(4, 6, dtype=torch.bfloat16)}, Scheme.FP8)
    with pytest.raises(MissingTensor, match=r"o_proj\.weight_scale"):
        read_layers(tmp_path, [layer])


def test_synthetic_tensors_are_the_layers_and_usable() -> None:
    for layer in (qkv(Scheme.FP8, bias=True), PER_CHANNEL):
        tensors = synthetic_tensors(layer, 7, False)
        assert sorted(tensors) == sorted(tensor_names(layer))
        assert len(checked_projections(layer, tensors, ORIGIN)) == 3


def test_synthetic_tensors_follow_the_seed() -> None:
    one, same, other = (synthetic_tensors(PER_CHANNEL, seed, False) for seed in (1, 1, 2))
    name = f"{ATTENTION}.q_proj.weight"
    bytes_of = [t[name].view(torch.uint8) for t in (one, same, other)]
    assert torch.equal(bytes_of[0], bytes_of[1])
    assert not torch.equal(bytes_of[0], bytes_of[2])


def test_the_largest_synthetic_input_scale_is_not_the_first() -> None:
    checked = checked_projections(PER_TENSOR, synthetic_tensors(PER_TENSOR, 0, False), ORIGIN)
    scales = [float(p.input_scale) for p in checked if p.input_scale is not None]
    assert len(set(scales)) == 3
    assert max(scales) != scales[0]


@pytest.mark.parametrize(("equal", "distinct"), [(True, 1), (False, 3)], ids=["equal", "unequal"])
def test_synthetic_weight_scales_are_equal_on_request(equal: bool, distinct: int) -> None:
    checked = checked_projections(PER_TENSOR, synthetic_tensors(PER_TENSOR, 0, equal), ORIGIN)
    assert len({float(p.weight_scale) for p in checked}) == distinct
