"""JSON as the checkpoint's other readers understand it, which is stricter than Python's default."""

import json
from typing import Any

LONGEST_INTEGER = 20
"""Characters of 2**64 - 1 and of -2**63; Python itself refuses more than 4300, with an untyped ValueError."""


def parse(data: bytes, *, strict_numbers: bool = True) -> object:
    """Parse a whole UTF-8 document.

    Args:
        data: the document; no byte order mark.
        strict_numbers: refuse NaN, Infinity, -0 and integers of more than 20 digits.

    Raises:
        ValueError: whatever is wrong, nesting too deep and duplicate keys included.
    """
    numbers: dict[str, Any] = {"parse_int": _integer, "parse_constant": _refuse} if strict_numbers else {}
    try:
        document: object = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, **numbers)
    except RecursionError:
        raise ValueError("nesting too deep") from None
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for key, value in pairs:
        # A lone surrogate is legal in a Python str only; encoding it raises UnicodeEncodeError, a ValueError.
        key.encode()
        if isinstance(value, str):
            value.encode()
        if key in unique:
            raise ValueError(f"duplicate key {key!r}")
        unique[key] = value
    return unique


def _integer(text: str) -> int:
    if len(text) > LONGEST_INTEGER:
        raise ValueError(f"an integer of {len(text)} digits")
    if text == "-0":
        # An integer only to Python; JSON parsers elsewhere take it for a float.
        raise ValueError("-0 as an integer")
    return int(text)


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
