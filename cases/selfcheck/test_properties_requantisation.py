"""Fusing projections of unequal scales: the largest scale wins, and each projection keeps its numbers."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from loadproof.harness.checkpoint.layers import ProjectionTensors
from loadproof.harness.errors import BadScale
from loadproof.harness.formats import FORMATS, ProcessedLayer
from loadproof.harness.formats.e4m3 import E4M3, dequantize_fp16, quantize_static
from loadproof.harness.spec import LayerSpec, Projection, Scheme

from .exact import FLOAT16, FLOAT32, decoded, e4m3, half_step, nearest
from .strategies import (
    any_codes,
    examples,
    float16_scales,
    layers_with_tensors,
    legal_scales,
    projections_of,
    seeds,
)

FP8 = FORMATS[Scheme.FP8]
only_fp8 = layers_with_tensors(scheme=st.just(Scheme.FP8), widths=st.integers(1, 12))
Drawn = tuple[LayerSpec, list[ProjectionTensors]]


def rows(processed: ProcessedLayer) -> torch.Tensor:
    """The fused weight's codes without padding, uint8 [logical_width, logical_k]."""
    stored = processed.tensors["weight"].t().view(torch.uint8)
    return stored[: processed.layout.logical_width, : processed.layout.logical_k]


def fused_of(count: int, width: int, k: int) -> LayerSpec:
    parts = tuple(Projection(name=f"p{i}", logical_width=width) for i in range(count))
    return LayerSpec(name="fused", scheme=Scheme.FP8, projections=parts, logical_k=k)


def scaled(p: ProjectionTensors, scale: float) -> ProjectionTensors:
    return replace(p, weight_scale=torch.tensor(scale, dtype=torch.float32))


def projections_of_codes(layer: LayerSpec, weight: torch.Tensor, *scales: float) -> list[ProjectionTensors]:
    """One weight in every projection, each with a scale of its own."""
    return [
        ProjectionTensors(
            projection=part,
            weight=weight,
            weight_scale=torch.tensor(scale, dtype=torch.float32),
            input_scale=torch.tensor(1.0),
            bias=None,
        )
        for part, scale in zip(layer.projections, scales, strict=True)
    ]


ONE = (fused_of(2, 8, 32), projections_of_codes(fused_of(2, 8, 32), any_codes(0, 8, 32), 1.0, 1.0))


@given(only_fp8)
@examples(60)
def test_largest_scales_win(drawn: Drawn) -> None:
    layer, projections = drawn
    processed = FP8.process(layer, projections)
    assert processed.tensors["weight_scale"].item() == max(p.weight_scale.item() for p in projections)
    inputs = [p.input_scale.item() for p in projections if p.input_scale is not None]
    assert processed.tensors["input_scale"].item() == max(inputs)


@given(st.integers(0, 255).filter(lambda code: code & 0x7F != 0x7F), float16_scales, float16_scales)
@examples(250)
def test_requantised_code_is_what_exact_arithmetic_gives(code: int, scale: float, other: float) -> None:
    assume(scale != other)
    largest = max(scale, other)
    layer = fused_of(2, 1, 1)
    weight = torch.tensor([[code]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    projections = projections_of_codes(layer, weight, scale, other)
    found = rows(FP8.process(layer, projections))[0, 0].item()
    dequantised = nearest(Fraction(decoded(code)) * nearest(Fraction(scale), FLOAT16), FLOAT16)
    wanted = e4m3(nearest(dequantised * nearest(1 / Fraction(largest), FLOAT32), FLOAT32))
    assert Fraction(decoded(int(found))) == wanted
    assert found & 0x80 == code & 0x80, "the sign of zero is lost"


@given(only_fp8)
@examples(40)
def test_requantised_numbers_are_within_half_a_step(drawn: Drawn) -> None:
    layer, projections = drawn
    processed = FP8.process(layer, projections)
    largest = Fraction(processed.tensors["weight_scale"].item())
    found = rows(processed).split(layer.logical_widths)
    for projection, codes in zip(projections, found, strict=True):
        scale = Fraction(projection.weight_scale.item())
        before, after = projection.weight.view(torch.uint8).flatten(), codes.flatten()
        for old, new in {(int(a), int(b)) for a, b in zip(before, after, strict=True)}:
            exact, held = Fraction(decoded(old)) * scale, Fraction(decoded(new)) * largest
            # float16 rounds the scale and the product, by 2^-11 each; its denormals by 2^-25.
            lost = abs(exact) * Fraction(1, 2**10) + Fraction(1, 2**25)
            assert abs(held - exact) <= half_step((abs(exact) + lost) / largest) * largest + lost


@example(drawn=ONE, scale=1e-9)
@example(drawn=ONE, scale=1e6)
@given(drawn=layers_with_tensors(scheme=st.just(Scheme.FP8)), scale=legal_scales)
@examples(60)
def test_equal_scales_are_a_no_op_on_every_byte(drawn: Drawn, scale: float) -> None:
    layer, projections = drawn
    equal = [scaled(p, scale) for p in projections]
    stored = torch.cat([p.weight.view(torch.uint8) for p in projections])
    assert rows(FP8.process(layer, equal)).equal(stored)


@given(st.data())
@examples(60)
def test_order_of_the_projections_changes_no_projections_bytes(data: st.DataObject) -> None:
    layer, projections = data.draw(only_fp8)
    order = data.draw(st.permutations(range(len(projections))))
    shuffled = LayerSpec(
        name=layer.name,
        scheme=layer.scheme,
        projections=tuple(layer.projections[i] for i in order),
        logical_k=layer.logical_k,
        bias=layer.bias,
        out_dtype=layer.out_dtype,
    )
    one = rows(FP8.process(layer, projections)).split(layer.logical_widths)
    other = rows(FP8.process(shuffled, [projections[i] for i in order])).split(shuffled.logical_widths)
    for place, i in enumerate(order):
        assert other[place].equal(one[i])


@pytest.mark.parametrize("empty", [0, 1, 2])
@pytest.mark.parametrize("scheme", list(Scheme))
@given(data=st.data())
@examples(10)
def test_shard_without_rows_changes_no_row(scheme: Scheme, empty: int, data: st.DataObject) -> None:
    widths = [5, 3, 7]
    widths[empty] = 0
    parts = tuple(Projection(name=f"p{i}", logical_width=w) for i, w in enumerate(widths))
    layer = LayerSpec(name="fused", scheme=scheme, projections=parts, logical_k=9)
    projections = data.draw(projections_of(layer))
    if scheme is Scheme.FP8:
        # Its scale still counts; as the smallest it decides nothing.
        projections[empty] = scaled(projections[empty], min(p.weight_scale.item() for p in projections))
    without = LayerSpec(
        name="fused",
        scheme=scheme,
        projections=tuple(p for p in parts if p.logical_width),
        logical_k=9,
    )
    kept = [p for p in projections if p.projection.logical_width]
    assume(scheme is not Scheme.FP8 or kept[0].weight_scale != kept[1].weight_scale)
    whole, fewer = (FORMATS[scheme].process(*given_) for given_ in ((layer, projections), (without, kept)))
    assert rows(whole).equal(rows(fewer))
    assert whole.tensors["weight_scale"].equal(fewer.tensors["weight_scale"])


@given(seeds, st.floats(147.0, 65504.0, width=32), st.floats(147.0, 65504.0, width=32))
@examples(30)
def test_weights_that_overflow_float16_are_refused(seed: int, scale: float, other: float) -> None:
    assume(scale != other)
    layer = fused_of(2, 4, 4)
    weight = any_codes(seed, 4, 4)
    weight.view(torch.uint8)[0, 0] = 0x7E
    projections = projections_of_codes(layer, weight, scale, other)
    with pytest.raises(BadScale, match="float16"):
        FP8.process(layer, projections)


@given(seeds, st.floats(147.0, 65504.0, width=32), st.floats(147.0, 65504.0, width=32))
@examples(30)
def test_scales_that_overflow_with_no_weight_at_hand_are_taken(seed: int, scale: float, other: float) -> None:
    """448 times the scale is beyond float16; a weight of 1.0 is not."""
    assume(scale != other)
    layer = fused_of(2, 4, 4)
    codes = any_codes(seed, 4, 4).view(torch.uint8)
    weight = (codes & 0x80 | (codes & 0x7F).clamp(max=0x38)).view(E4M3)
    projections = projections_of_codes(layer, weight, scale, other)
    largest = torch.tensor(max(scale, other))
    due = [quantize_static(dequantize_fp16(p.weight, p.weight_scale), largest) for p in projections]
    processed = rows(FP8.process(layer, projections))
    assert processed.equal(torch.cat([each.view(torch.uint8) for each in due]))
