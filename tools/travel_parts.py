"""Bytes in parts that travel apart: each says what all of them are, so that none is taken for another."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from loadproof.harness.errors import InvalidInput

FORMAT: Literal[1] = 1
MANIFEST = "manifest.json"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(_Strict):
    """What a part must hold."""

    size: int
    """In bytes."""
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> "Part":
        return cls(size=len(content), sha256=hashlib.sha256(content).hexdigest())


class Manifest(_Strict):
    """The same in every part of a packing."""

    format: Literal[1] = FORMAT
    parts: tuple[Part, ...]
    exports: dict[str, str]
    """Folder to the content digest of the export in it."""


def write_parts(folder: Path, payload: bytes, part_bytes: int, exports: dict[str, str]) -> Manifest:
    """Write the payload as `folder`/part-1 and so on: as few as `part_bytes` allows, and alike in size.

    Each is a folder with `payload-<number>` and the manifest. Raises OSError.
    """
    count = -(-len(payload) // part_bytes)
    size = -(-len(payload) // count)
    pieces = [payload[start : start + size] for start in range(0, len(payload), size)]
    manifest = Manifest(parts=tuple(Part.of(piece) for piece in pieces), exports=exports)
    for number, piece in enumerate(pieces, start=1):
        part = folder / f"part-{number}"
        part.mkdir()
        (part / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n")
        (part / f"payload-{number}").write_bytes(piece)
    return manifest


def places_of(folders: Sequence[Path]) -> list[Path]:
    """Where parts may lie: `folders`, and the folders part-* in them."""
    return [place for folder in folders for place in (folder, *sorted(folder.glob("part-*")))]


def read_manifest(places: Sequence[Path]) -> Manifest:
    """The one manifest of all parts in `places`.

    Raises:
        InvalidInput: there is none, it cannot be read or is of another format, or there are several.
    """
    files = [file for place in places if (file := place / MANIFEST).is_file()]
    if not files:
        remedy = "Name the folder that holds the parts."
        raise _unusable(_all(places), f"parts, each with a {MANIFEST}", "none", remedy)
    manifests = [_parsed(file) for file in files]
    for file, manifest in zip(files, manifests, strict=True):
        if manifest != manifests[0]:
            remedy = "Name the parts of one packing only."
            raise _unusable(file, f"the same as in {files[0]}", "another packing's manifest", remedy)
    return manifests[0]


def read_payload(places: Sequence[Path], manifest: Manifest) -> bytes:
    """The payload, put together and checked.

    Raises:
        InvalidInput: a part is missing, unreadable or damaged.
    """
    return b"".join(_piece(places, number, part) for number, part in enumerate(manifest.parts, start=1))


def _parsed(file: Path) -> Manifest:
    try:
        return Manifest.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        remedy = "Copy the part again; pack and rebuild with one version of this tool."
        raise _unusable(file, f"a manifest of format {FORMAT}", error, remedy) from error


def _piece(places: Sequence[Path], number: int, part: Part) -> bytes:
    name = f"payload-{number}"
    file = next((file for place in places if (file := place / name).is_file()), None)
    if file is None:
        remedy = f"Copy part-{number} too, and name the folder that it lies in."
        raise _unusable(_all(places), name, "no such file", remedy)
    try:
        found = Part.of(content := file.read_bytes())
    except OSError as error:
        raise _unusable(file, "a file to read", error, f"Copy part-{number} again.") from error
    if found != part:
        raise _unusable(file, part, found, f"Copy part-{number} again: it was damaged on its way.")
    return content


def _all(places: Sequence[Path]) -> str:
    return ", ".join(str(place) for place in places)


def _unusable(where: object, expected: object, found: object, remedy: str) -> InvalidInput:
    return InvalidInput(where, expected=expected, found=found, remedy=remedy)
