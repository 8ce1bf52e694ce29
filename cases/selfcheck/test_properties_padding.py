"""Padding: multiples of 16, filled with what cannot be heard, and the logical part as it was."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loadproof.harness.checkpoint.layers import ProjectionTensors
from loadproof.harness.formats import FORMATS, ProcessedLayer
from loadproof.harness.formats.e4m3 import quantize_per_token, quantize_static
from loadproof.harness.formats.padding import padded_activation
from loadproof.harness.kernels.reference import ReferenceKernel
from loadproof.harness.layers import FusedFp8Linear
from loadproof.harness.spec import LayerSpec, Scheme, padded_to_alignment

from .exact import decoded
from .strategies import examples, layers_with_tensors, seeds

Drawn = tuple[LayerSpec, list[ProjectionTensors]]
NUMBERS = np.array([decoded(code) for code in range(256)])


def processed_of(drawn: Drawn) -> ProcessedLayer:
    layer, projections = drawn
    return FORMATS[layer.scheme].process(layer, projections)


@given(st.integers(0, 10**6))
@examples(100)
def test_padded_size_is_the_next_multiple_of_16(size: int) -> None:
    padded = padded_to_alignment(size)
    assert padded % 16 == 0
    assert size <= padded < size + 16


@given(layers_with_tensors())
@examples(80)
def test_shapes_are_padded_and_the_weight_is_column_major(drawn: Drawn) -> None:
    layer, _ = drawn
    processed = processed_of(drawn)
    n, k = -(-layer.logical_width // 16) * 16, -(-layer.logical_k // 16) * 16
    weight = processed.tensors["weight"]
    assert (tuple(weight.shape), weight.stride()) == ((k, n), (1, k))
    assert tuple(processed.tensors["weight_scale"].shape) == (() if layer.scheme is Scheme.FP8 else (n,))
    assert ("bias" in processed.tensors) == layer.bias
    assert (processed.layout.padded_width, processed.layout.padded_k) == (n, k)
    assert (processed.layout.logical_width, processed.layout.logical_k) == (
        layer.logical_width,
        layer.logical_k,
    )


@given(layers_with_tensors())
@examples(80)
def test_padding_is_the_byte_zero_the_scale_one_and_no_bias(drawn: Drawn) -> None:
    layer, _ = drawn
    tensors = processed_of(drawn).tensors
    stored = tensors["weight"].t().view(torch.uint8)
    assert not stored[layer.logical_width :].any()
    assert not stored[:, layer.logical_k :].any()
    if layer.scheme is not Scheme.FP8:
        assert (tensors["weight_scale"][layer.logical_width :] == 1).all()
    if layer.bias:
        assert not tensors["bias"][layer.logical_width :].view(torch.uint8).any()


@given(layers_with_tensors(scheme=st.just(Scheme.FP8_PER_CHANNEL_PER_TOKEN)))
@examples(60)
def test_logical_part_is_the_checkpoints_bytes(drawn: Drawn) -> None:
    layer, projections = drawn
    tensors = processed_of(drawn).tensors
    stored = tensors["weight"].t().view(torch.uint8)[: layer.logical_width, : layer.logical_k]
    assert stored.equal(torch.cat([p.weight.view(torch.uint8) for p in projections]))
    scales = torch.cat([p.weight_scale for p in projections])
    assert tensors["weight_scale"][: layer.logical_width].equal(scales)


@given(layers_with_tensors(), st.sampled_from([1, 2, 5, 17]), seeds)
@examples(60)
def test_padded_layer_computes_what_the_unpadded_numbers_give(drawn: Drawn, m: int, seed: int) -> None:
    layer, _ = drawn
    processed = processed_of(drawn)
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(m, layer.logical_k)) * 4)
    x = x.to(getattr(torch, layer.out_dtype))
    linear = FusedFp8Linear(processed, ReferenceKernel())
    out = linear.multiply(*linear.quantize(x))
    assert (tuple(out.shape), out.is_contiguous()) == ((m, layer.logical_width), True)
    wanted = unpadded(layer, processed, x)
    allowed = np.maximum(np.abs(wanted), 2.0**-14) * torch.finfo(out.dtype).eps / 2
    largest = torch.finfo(out.dtype).max
    inside = np.abs(wanted) <= largest
    difference = np.abs(out.double().numpy() - wanted)
    assert (difference <= allowed * (1 + 2.0**-40))[inside].all()


@given(st.integers(0, 5), st.integers(0, 70), seeds)
@examples(60)
def test_activation_is_padded_with_the_byte_zero(m: int, k: int, seed: int) -> None:
    data = np.random.default_rng(seed).integers(0, 256, (m, k), dtype=np.uint8)
    codes = torch.from_numpy(data)
    padded = padded_activation(codes.view(torch.float8_e4m3fn), padded_to_alignment(k)).view(torch.uint8)
    assert padded[:, :k].equal(codes)
    assert not padded[:, k:].any()
    assert padded.shape == (m, padded_to_alignment(k))


@pytest.mark.parametrize("k", [15, 16])
def test_activation_is_packed_whether_it_is_padded_or_not(k: int) -> None:
    transposed = torch.arange(3 * k, dtype=torch.uint8).view(k, 3).t().view(torch.float8_e4m3fn)
    padded = padded_activation(transposed, 16)
    assert padded.stride() == (16, 1)
    assert padded.view(torch.uint8)[:, :k].equal(transposed.view(torch.uint8))


def unpadded(layer: LayerSpec, processed: ProcessedLayer, x: torch.Tensor) -> np.ndarray:
    """float64 [M, logical_width], from the logical codes alone, decoded by their fields."""
    tensors = processed.tensors
    if layer.scheme is Scheme.FP8:
        codes, scale = quantize_static(x, tensors["input_scale"]), tensors["input_scale"]
        scale_b = tensors["weight_scale"].double().numpy()
    else:
        codes, scale = quantize_per_token(x)
        scale_b = tensors["weight_scale"].double().numpy()[: layer.logical_width]
    weight = tensors["weight"].t().view(torch.uint8)[: layer.logical_width, : layer.logical_k].numpy()
    total = NUMBERS[codes.view(torch.uint8).numpy()] @ NUMBERS[weight].T
    total = total * (scale.double().numpy() * scale_b)
    bias = tensors["bias"].double().numpy()[: layer.logical_width] if layer.bias else 0.0
    return np.asarray(total + bias)
