"""Tensors of a layer are checked before anything is computed from them."""

import math
from pathlib import Path

import pytest
import torch

from loadproof.harness.checkpoint.layers import checked_projections, discover_layers, tensor_names
from loadproof.harness.checkpoint.reader import CheckpointReader
from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.errors import BadScale, MissingTensor, WrongTensor
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


@pytest.mark.parametrize(
    ("layer", "stored", "normalised"),
    [(PER_TENSOR, (1,), ()), (PER_CHANNEL, (8, 1), (8,))],
    ids=["per-tensor", "per-channel"],
)
def test_scale_shapes_are_normalised(
    layer: LayerSpec, stored: tuple[int, ...], normalised: tuple[int, ...]
) -> None:
    tensors = synthetic_tensors(layer, 0, False)
    name = f"{ATTENTION}.q_proj.weight_scale"
    tensors[name] = tensors[name].reshape(stored)
    assert checked_projections(layer, tensors, ORIGIN)[0].weight_scale.shape == normalised


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


def test_discovery_finds_the_layer_that_was_written(tmp_path: Path) -> None:
    layer = qkv(Scheme.FP8, bias=True)
    write_checkpoint(tmp_path, synthetic_tensors(layer, 0, False), Scheme.FP8)
    with CheckpointReader(tmp_path) as reader:
        assert discover_layers(reader, Scheme.FP8) == [layer]


@pytest.mark.parametrize("dropped", ["q_proj", "k_proj", "v_proj"])
def test_discovery_refuses_a_partial_qkv(dropped: str, tmp_path: Path) -> None:
    tensors = synthetic_tensors(PER_TENSOR, 0, False)
    kept = {name: tensor for name, tensor in tensors.items() if dropped not in name}
    write_checkpoint(tmp_path, kept, Scheme.FP8)
    with CheckpointReader(tmp_path) as reader, pytest.raises(WrongTensor, match=dropped):
        discover_layers(reader, Scheme.FP8)


def test_discovery_refuses_another_float8(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"a.o_proj.weight": torch.zeros(4, 4).to(torch.float8_e5m2)}, Scheme.FP8)
    with CheckpointReader(tmp_path) as reader, pytest.raises(WrongTensor, match="F8_E5M2"):
        discover_layers(reader, Scheme.FP8)
