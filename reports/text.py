"""Turning recorded values into text that is short and inert."""

import json
import re
from functools import lru_cache

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, bidirectional overrides and lone surrogates."""
_ANSI = re.compile("\x1b\\[[0-9;?]*[ -/]*[@-~]")
# Begins with a plain slash, so that long texts are searched fast.
_HOME = re.compile(r"/(?:(?:home|Users)/[^/\s:\"']+|(?<![\w.]/)root(?=/))")

_TEMPLATE = re.compile(r"<.*", re.DOTALL)

_HEX_SHOWN = 12
_VALUE_LIMIT = 400


def clean(text: str) -> str:
    """Without terminal colours and control characters, and with home folders as `~`."""
    # Nearly all text is plain, and there is much of it.
    if not text.isprintable():
        text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
        text = _CONTROLS.sub("\ufffd", text)
    return _HOME.sub("~", text) if "/" in text else text


def names_a_home(text: str) -> bool:
    """Whether `clean` would shorten a path."""
    return _HOME.search(text) is not None


def one_line(text: str) -> str:
    """`clean`, with every run of white space as one space."""
    return " ".join(clean(text).split())


def short_hash(digest: str) -> str:
    """The first digits of a digest; enough to compare by eye."""
    return digest if len(digest) <= _HEX_SHOWN else f"{digest[:_HEX_SHOWN]}…"


@lru_cache(maxsize=1024)
def short_symbol(symbol: str) -> str:
    """A kernel's symbol without its template arguments: `cutlass::device_kernel<…>`.

    Of a mangled name, the leading namespaces and the function.
    """
    if symbol.startswith("_ZN"):
        return "::".join(_mangled_parts(symbol[3:])) + "<…>"
    plain = symbol.removeprefix("void ")
    return _TEMPLATE.sub("<…>", plain)


def _mangled_parts(rest: str) -> list[str]:
    parts = []
    while found := re.match(r"\d+", rest):
        length, start = int(found.group()), found.end()
        parts.append(rest[start : start + length])
        rest = rest[start + length :]
    return parts


def tail(text: str, limit: int = 8192) -> str:
    """The end of a long text, with the cut stated."""
    return text if len(text) <= limit else f"[{len(text) - limit} characters cut]\n{text[-limit:]}"


def size(count: int) -> str:
    """A number of bytes, exact, with separators."""
    return f"{count:,} B"


def duration(seconds: float) -> str:
    """`0.84 s`, `12.3 s`, `4 min 05 s`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def scalar(value: object) -> str:
    """One value as text; containers as compact JSON, cut where long."""
    if isinstance(value, bool) or value is None:
        text = {True: "yes", False: "no", None: "none"}[value]
    elif isinstance(value, str | int | float):
        text = str(value)
    else:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return text if len(text) <= _VALUE_LIMIT else f"{text[:_VALUE_LIMIT]}… [{len(text)} characters]"


def flatten(value: object, prefix: str = "") -> list[tuple[str, str]]:
    """Nested mappings as (`a.b`, text) pairs, in the order given."""
    if not isinstance(value, dict) or not value:
        return [(prefix, scalar(value))] if prefix else []
    pairs: list[tuple[str, str]] = []
    for key, inner in value.items():
        pairs += flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return pairs
