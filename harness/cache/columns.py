"""A table as JSON columns, so that one of many rows is read in few steps; strict about their values."""

import reprlib
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

Check = Callable[[Any], list[Any]]
"""Returns a column as JSON gave it; raises ValueError where a value is not of its kind."""


def to_columns(checks: Mapping[str, Check], rows: Iterable[Any]) -> dict[str, list[Any]]:
    """The attributes of `rows` that have a check, column by column, as JSON will have them."""
    rows = list(rows)
    columns = {name: [getattr(row, name) for row in rows] for name in checks}
    return {n: [list(v) if type(v) is tuple else v for v in column] for n, column in columns.items()}


def from_columns(columns: Any, checks: Mapping[str, Check]) -> list[tuple[Any, ...]]:
    """The rows, with values in the order of `checks`; raises ValueError where it is not as it should be."""
    wrong = columns.keys() ^ checks.keys()
    if wrong:
        raise ValueError(f"missing or unknown: {reprlib.repr(sorted(wrong))}")
    return list(zip(*(check(columns[name]) for name, check in checks.items()), strict=True))


def size(value: Any) -> int:
    """One number of bytes or elements."""
    return sizes([value])[0]


def sizes(column: Any) -> list[int]:
    """See `Check`: integers from 0 up, of 48 bits."""
    if _types(column) - {int} or (column and not (min(column) >= 0 and max(column) < 2**48)):
        raise ValueError(f"not sizes: {reprlib.repr(column)}")
    return list(column)


def texts(column: Any) -> list[str]:
    """See `Check`."""
    if _types(column) - {str}:
        raise ValueError(f"not texts: {reprlib.repr(column)}")
    return list(column)


def tuples_of_sizes(column: Any) -> list[tuple[int, ...]]:
    """See `Check`: lists in JSON."""
    if _types(column) - {list}:
        raise ValueError(f"not lists of sizes: {reprlib.repr(column)}")
    sizes(list(chain.from_iterable(column)))
    return list(map(tuple, column))


def flags(column: Any) -> list[bool]:
    """See `Check`."""
    if _types(column) - {bool}:
        raise ValueError(f"neither true nor false: {reprlib.repr(column)}")
    return list(column)


def _types(column: Any) -> set[type]:
    if type(column) is not list:
        raise ValueError(f"not a list: {reprlib.repr(column)}")
    return set(map(type, column))
