"""Content digests: which bytes a checkpoint holds, whatever its headers and times say."""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from blake3 import blake3

from ..atomic_file import write_atomically
from ..errors import OutputUnwritable
from .files import INDEX, open_inside, read_small, weight_files
from .header import malformed

CHUNK = 4 << 20
"""Bytes read at once; measured with `cases/perf/test_reading.py`."""
SETTLED_NS = 100_000_000
"""A file changed less than this ago may change again without new times: kernel ticks are coarse."""
FileDigest = tuple[str, int, str]
"""File name, size, hex BLAKE3 of its bytes."""


def file_hash() -> blake3:
    """Of a file's bytes: BLAKE3, since sha256 is slower than reading them from memory is."""
    return blake3()


def combined(files: Sequence[FileDigest]) -> str:
    """The content digest of files; independent of their order."""
    # JSON quotes names, so that no two lists of files share one text.
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()


def index_digest(content: bytes) -> FileDigest:
    """The part of the index file in the content digest."""
    return INDEX, len(content), blake3(content).hexdigest()


def content_digest(path: Path, links_into: Path | None = None) -> str:
    """Hex sha256 over name, size and BLAKE3 of every weight file, and of the index if there is one.

    Args:
        path: the checkpoint's folder.
        links_into: another folder into which symbolic links may lead.

    Raises:
        MalformedCheckpoint: a file is missing, unreadable, or shrinks meanwhile.
        InvalidInput: `path` is not a folder.
    """
    files = weight_files(path, links_into)
    digests = [_file_digest(path, name, links_into) for name in files.names]
    return combined(digests if files.index is None else [*digests, index_digest(files.index)])


def config_digests(path: Path) -> dict[str, str | None]:
    """Hex sha256 of both config files, None for an absent one; opens no weight file."""
    return {
        "config_sha256": _optional_digest(path / "config.json"),
        "hf_quant_config_sha256": _optional_digest(path / "hf_quant_config.json"),
    }


def sidecar_digest(path: Path, links_into: Path | None = None) -> str:
    """`content_digest` through a cache bound to each file's device, inode, size, mtime and ctime.

    The cache lies in `$XDG_CACHE_HOME/loadproof/content` (`~/.cache` by default). Any difference, and a
    cache that cannot be read or written, means hashing again. Raises as `content_digest` does.
    """
    sidecar = _sidecar(path)
    before = _identities(path, links_into)
    cached = _read_sidecar(sidecar)
    if cached is not None and cached["files"] == before:
        return str(cached["content"])
    digest = content_digest(path, links_into)
    if _settled(before) and _identities(path, links_into) == before:
        _write_sidecar(sidecar, {"files": before, "content": digest})
    return digest


def _file_digest(path: Path, name: str, links_into: Path | None) -> FileDigest:
    fd = open_inside(path, name, links_into)
    try:
        size, offset, running = os.fstat(fd).st_size, 0, file_hash()
        while chunk := os.pread(fd, CHUNK, offset):
            running.update(chunk)
            offset += len(chunk)
    finally:
        os.close(fd)
    if offset != size:
        raise malformed(path / name, f"{size} bytes", f"{offset}: it changed while it was read")
    return name, size, running.hexdigest()


def _optional_digest(file: Path) -> str | None:
    try:
        return hashlib.sha256(read_small(file)).hexdigest()
    except FileNotFoundError:
        return None


def _identities(path: Path, links_into: Path | None) -> list[list[Any]]:
    files = weight_files(path, links_into)
    names = files.names if files.index is None else (*files.names, INDEX)
    identities = []
    for name in names:
        fd = open_inside(path, name, links_into)
        try:
            s = os.fstat(fd)
        finally:
            os.close(fd)
        identities.append([name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns])
    return identities


def _settled(identities: list[list[Any]]) -> bool:
    return all(time.time_ns() - ctime_ns > SETTLED_NS for *_, ctime_ns in identities)


def _sidecar(path: Path) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    return Path(root) / "loadproof" / "content" / f"{name}.json"


def _read_sidecar(sidecar: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(sidecar.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not isinstance(data.get("content"), str) or "files" not in data:
        return None
    return data


def _write_sidecar(sidecar: Path, data: dict[str, Any]) -> None:
    # Where it fails only a shortcut is lost: the next call hashes again.
    with suppress(OutputUnwritable):
        write_atomically(sidecar, json.dumps(data))
