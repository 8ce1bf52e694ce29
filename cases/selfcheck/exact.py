"""Floating-point rounding in exact rationals: what the arithmetic's results are held against."""

import math
from fractions import Fraction

FLOAT32 = (24, -149)
FLOAT16 = (11, -24)
BFLOAT16 = (8, -133)
E4M3 = (4, -9)
"""Bits of precision, and the exponent of the smallest denormal."""
E4M3_MAX = 448


def nearest(value: Fraction, form: tuple[int, int]) -> Fraction:
    """The nearest number of the format, ties to even, exponents unbounded above."""
    if value == 0:
        return value
    precision, smallest = form
    exponent = _floor_log2(abs(value))
    step = Fraction(2) ** max(exponent - precision + 1, smallest)
    return round(value / step) * step


def overflows(value: Fraction, form: tuple[int, int], exponents_end: int) -> bool:
    """Whether `nearest` is beyond the largest finite number, below 2^`exponents_end`."""
    return abs(nearest(value, form)) >= Fraction(2) ** exponents_end


def e4m3(value: Fraction) -> Fraction:
    """The nearest E4M3 number, saturating."""
    return nearest(max(min(value, Fraction(E4M3_MAX)), Fraction(-E4M3_MAX)), E4M3)


def half_step(value: Fraction) -> Fraction:
    """Half the distance of E4M3 numbers around `value`."""
    exponent = _floor_log2(abs(value)) if value else -9
    return Fraction(2) ** max(exponent - 3, -9) / 2


def decoded(code: int) -> float:
    """The number of an E4M3 code, from its fields; 0x7f and 0xff are NaN."""
    sign, exponent, mantissa = (-1.0 if code & 0x80 else 1.0), code >> 3 & 0xF, code & 7
    if code & 0x7F == 0x7F:
        return math.nan
    return sign * (math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10))


def _floor_log2(value: Fraction) -> int:
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= value else exponent - 1
