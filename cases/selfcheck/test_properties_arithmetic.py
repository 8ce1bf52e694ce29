"""Scale arithmetic against exact rationals: every cast, every scale, every sign of zero."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from loadproof.harness.checks import derivation
from loadproof.harness.formats.e4m3 import (
    E4M3,
    MIN_TOKEN_SCALE,
    dequantize_fp16,
    quantize_per_token,
    quantize_static,
    saturating_e4m3,
)
from loadproof.harness.kernels.reference import rounded_once

from .exact import BFLOAT16, FLOAT16, FLOAT32, decoded, e4m3, nearest, overflows
from .strategies import any_float32, examples, legal_scales

FINITE_CODES = [code for code in range(256) if code & 0x7F != 0x7F]
finite_float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
rows = st.lists(any_float32, min_size=1, max_size=8)
finite_rows = st.lists(finite_float32, min_size=1, max_size=8)


def codes(quantised: torch.Tensor) -> list[int]:
    return [int(code) for code in quantised.view(torch.uint8).flatten()]


def float32(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def brute_force(value: float) -> int:
    """The code whose number is nearest, found by looking at all of them; of two, the even one."""
    sign = 0x80 if math.copysign(1, value) < 0 else 0
    wanted = Fraction(abs(value)) if math.isfinite(value) else Fraction(10**40)
    candidates = range(0x7F)
    return sign | min(candidates, key=lambda code: (abs(Fraction(decoded(code)) - wanted), code & 1))


def exact_number(value: Fraction, negative: bool) -> float:
    number = float(e4m3(value))
    return math.copysign(number, -1.0) if negative and number == 0 else number


def same(found: float, wanted: float) -> bool:
    return found == wanted and math.copysign(1, found) == math.copysign(1, wanted)


# --- the cast ---------------------------------------------------------------------------------


@example([464.0, -464.0, 449.0, 2.0**-10, -(2.0**-10), 3 * 2.0**-10, 1e-45, -1e-45, 1.0625, 1.1875])
@example([math.inf, -math.inf, 1e38, -0.0])
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=8))
@examples(100)
def test_cast_is_the_nearest_of_all_codes(values: list[float]) -> None:
    assert codes(saturating_e4m3(float32(values))) == [brute_force(v) for v in values]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=64))
@examples(100)
def test_cast_is_monotonic(values: list[float]) -> None:
    numbers = [decoded(code) for code in codes(saturating_e4m3(float32(sorted(values))))]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**-14, 1.0, 2.0**100])
def test_every_code_survives_its_own_scale(scale: float) -> None:
    numbers = float32([decoded(code) * scale for code in FINITE_CODES])
    assert codes(quantize_static(numbers, torch.tensor(scale))) == FINITE_CODES


# --- the static scale -------------------------------------------------------------------------


@example([447.0, 448.0, 464.0, 465.0, 480.0, 1e4, -1e4, -0.0], 1.0)
@example([1e-38, 3e-39, -1e-45], 2.0**-126)
@example([1.0, -0.0, 3e38], 3.4e38)
@given(finite_rows, legal_scales)
@examples(150)
def test_static_quantisation_is_a_product_with_the_rounded_inverse(values: list[float], scale: float) -> None:
    inverse = nearest(1 / Fraction(scale), FLOAT32)
    found = codes(quantize_static(float32(values), torch.tensor(scale, dtype=torch.float32)))
    for value, code in zip(values, found, strict=True):
        product = nearest(Fraction(value) * inverse, FLOAT32)
        assert same(decoded(code), exact_number(product, math.copysign(1, value) < 0)), (value, scale)


@given(st.lists(st.tuples(st.integers(0, 125), st.integers(-3, 3)), min_size=8, max_size=8), legal_scales)
@examples(150)
def test_static_quantisation_decides_ties_by_the_product(places: list[tuple[int, int]], scale: float) -> None:
    # Around a tie, a division instead of the product with the inverse gives another code.
    ties = float32([(decoded(code) + decoded(code + 1)) / 2 for code, _ in places]) * scale
    values = (ties.view(torch.int32) + torch.tensor([step for _, step in places])).view(torch.float32)
    assume(values.isfinite().all())
    inverse = nearest(1 / Fraction(scale), FLOAT32)
    found = codes(quantize_static(values, torch.tensor(scale, dtype=torch.float32)))
    for value, code in zip(values.tolist(), found, strict=True):
        product = nearest(Fraction(value) * inverse, FLOAT32)
        assert same(decoded(code), exact_number(product, math.copysign(1, value) < 0)), (value, scale)


@given(legal_scales)
@examples(100)
def test_static_quantisation_keeps_nan_clamps_infinity_and_keeps_the_sign_of_zero(scale: float) -> None:
    values = float32([math.nan, math.inf, -math.inf, 0.0, -0.0])
    nan, *rest = codes(quantize_static(values, torch.tensor(scale, dtype=torch.float32)))
    assert nan & 0x7F == 0x7F
    assert rest == [0x7E, 0xFE, 0x00, 0x80]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=32), legal_scales)
@examples(100)
def test_static_quantisation_is_monotonic(values: list[float], scale: float) -> None:
    found = quantize_static(float32(sorted(values)), torch.tensor(scale, dtype=torch.float32))
    numbers = [decoded(code) for code in codes(found)]
    assert numbers == sorted(numbers)


# --- the scale of a token ---------------------------------------------------------------------


@example([1e-45, -1e-45])
@example([0.0, -0.0])
@example([3.4e38, 1.0])
@given(finite_rows)
@examples(150)
def test_token_scale_is_the_rows_peak_by_448_with_a_floor(values: list[float]) -> None:
    found, scale = quantize_per_token(float32(values).unsqueeze(0))
    peak = max(abs(Fraction(v)) for v in values)
    floor = nearest(Fraction(1, 448 * 512), FLOAT32)
    wanted = max(nearest(peak / 448, FLOAT32), floor)
    assert (tuple(scale.shape), Fraction(scale.item())) == ((1, 1), wanted)
    for value, code in zip(values, codes(found), strict=True):
        quotient = nearest(Fraction(value) / wanted, FLOAT32)
        assert same(decoded(code), exact_number(quotient, math.copysign(1, value) < 0)), value


@given(st.lists(rows, min_size=1, max_size=5))
@examples(100)
def test_a_token_is_quantised_as_if_it_were_alone(tokens: list[list[float]]) -> None:
    width = max(len(row) for row in tokens)
    batch = float32([row + [0.0] * (width - len(row)) for row in tokens])
    found, scales = quantize_per_token(batch)
    for i in range(len(tokens)):
        alone, scale = quantize_per_token(batch[i : i + 1])
        assert codes(alone) == codes(found[i])
        assert scale.view(torch.uint8).tolist() == scales[i : i + 1].view(torch.uint8).tolist()


@given(finite_rows, st.integers(0, 8))
@examples(60)
def test_nan_stays_in_its_place_and_out_of_the_scale(values: list[float], place: int) -> None:
    place = min(place, len(values))
    with_nan = [*values[:place], math.nan, *values[place:]]
    found, scale = quantize_per_token(float32(with_nan).unsqueeze(0))
    without, wanted = quantize_per_token(float32(values).unsqueeze(0))
    assert scale.item() == wanted.item()
    kept = codes(found)
    assert kept.pop(place) & 0x7F == 0x7F
    assert kept == codes(without)


def test_floor_of_a_token_scale_is_what_vllm_writes() -> None:
    assert Fraction(1, 448 * 512) == Fraction(MIN_TOKEN_SCALE).limit_denominator(10**6)


# --- dequantising, and rounding an output -----------------------------------------------------


@given(st.sampled_from(FINITE_CODES), st.floats(2.0**-24, 65504.0, width=32))
@examples(200)
def test_dequantising_rounds_scale_and_product_to_float16(code: int, scale: float) -> None:
    weight = torch.tensor([[code]], dtype=torch.uint8).view(E4M3)
    found = dequantize_fp16(weight, torch.tensor(scale, dtype=torch.float32)).item()
    product = Fraction(decoded(code)) * nearest(Fraction(scale), FLOAT16)
    if overflows(product, FLOAT16, 16):
        assert math.isinf(found)
    else:
        assert Fraction(found) == nearest(product, FLOAT16)


@example(1 + 2.0**-8 + 2.0**-40, "bfloat16")
@example(65519.999, "float16")
@example(2.0**-25 * (1 + 2.0**-50), "float16")
@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["bfloat16", "float16"]))
@examples(300)
def test_output_is_rounded_once(exact: float, dtype: str) -> None:
    form, end = (BFLOAT16, 128) if dtype == "bfloat16" else (FLOAT16, 16)
    found = rounded_once(torch.tensor([exact], dtype=torch.float64), getattr(torch, dtype)).item()
    assert math.copysign(1, found) == math.copysign(1, exact)
    if overflows(Fraction(exact), form, end):
        assert math.isinf(found)
    else:
        assert Fraction(found) == nearest(Fraction(exact), form)


@given(st.integers(-(2**15), 2**15), st.integers(-40, 40))
@examples(200)
def test_ties_of_an_output_go_to_even(mantissa: int, exponent: int) -> None:
    exact = math.ldexp(2 * mantissa + 1, exponent - 8)
    assume(not overflows(Fraction(exact), BFLOAT16, 128))
    found = rounded_once(torch.tensor([exact], dtype=torch.float64), torch.bfloat16).item()
    assert Fraction(found) == nearest(Fraction(exact), BFLOAT16)


@given(finite_float32, st.sampled_from([torch.bfloat16, torch.float16]))
@examples(300)
def test_the_checks_own_rounding_is_to_the_nearest_number(value: float, dtype: torch.dtype) -> None:
    # torch rounds a float32 once, so here it is another's word.
    wanted = float32([value]).to(dtype).to(torch.float64).item()
    found = float(derivation.nearest(np.array([value]), dtype)[0])
    assert same(found, wanted)
