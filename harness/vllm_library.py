"""Where vLLM's compiled library lies, and its hashes: by its wheel's RECORD, and on disk.

Not in `kernels`, which imports torch: the pytest plugin tells of the library too, and must not.
"""

import csv
import functools
import hashlib
import importlib.util
import mmap
import os
from collections.abc import Collection
from pathlib import Path

from .errors import InvalidInput

LIBRARY_VARIABLE = "LOADPROOF_VLLM_LIBRARY"
LIBRARIES = ("_C_stable_libtorch.abi3.so", "_C.abi3.so")
"""Which of the two has the operator depends on vLLM's version."""

SCHEMA = b"cutlass_scaled_mm(Tensor"
"""The operator's declaration, as the library that registers it holds it."""


def find_library() -> Path:
    """The library named by LOADPROOF_VLLM_LIBRARY, else the installed vLLM's, which is not imported.

    Raises:
        InvalidInput: there is none, or it does not hold the operator.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        places = [Path(named)]
    else:
        found = importlib.util.find_spec("vllm")
        folders = (found.submodule_search_locations or []) if found else []
        places = [Path(folder) / name for folder in folders for name in LIBRARIES]
    for place in places:
        if place.is_file() and _holds(place, SCHEMA):
            return place.absolute()
    raise InvalidInput(
        "kernel 'vllm-cutlass'",
        expected="a library of vLLM that registers cutlass_scaled_mm",
        found=f"none at {', '.join(map(str, places))}" if places else "no vLLM installed",
        remedy=f"Install vLLM, or set {LIBRARY_VARIABLE} to the {LIBRARIES[0]} of one.",
    )


def recorded_hash(library: Path) -> tuple[str | None, str | None]:
    """The wheel that lies around a library, as `vllm-0.33.0`, and the hash its RECORD has of that file."""
    entry = f"{library.parent.name}/{library.name}"
    for record in sorted(library.parent.parent.glob(f"{library.parent.name}-*.dist-info/RECORD")):
        listed = hashes_in_record(record.read_text(encoding="utf-8"), (entry,))
        if entry in listed:
            return record.parent.name.removesuffix(".dist-info"), listed[entry]
    return None, None


def hashes_in_record(text: str, names: Collection[str]) -> dict[str, str | None]:
    """Those of the names that a wheel's RECORD lists, each with the hash it has, as `sha256=<base64>`."""
    rows = [row for row in csv.reader(text.splitlines()) if row and row[0] in names]
    return {name: (rest[0] or None) if rest else None for name, *rest in rows}


def file_sha256(file: Path) -> bytes:
    """Of the file on disk; raises OSError where it cannot be read."""
    found = file.stat()
    return _hashed(file, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@functools.cache
def _hashed(file: Path, *_state: int) -> bytes:
    """Once for each state of the file, in a process and those that it forks: 0.1 s for vLLM's library."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


def _holds(file: Path, words: bytes) -> bool:
    if file.stat().st_size == 0:
        return False
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(words) >= 0
