"""Content digests: which bytes a checkpoint holds, whatever its headers and times say."""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from blake3 import blake3

from ..atomic_file import write_atomically
from ..errors import OutputUnwritable
from ..user_cache import user_cache
from .files import INDEX, open_inside, read_small, weight_files
from .header import malformed

CHUNK = 1 << 20
"""Bytes read at once: few enough to be in the cache still when they are hashed."""
SEGMENT = 16 << 20
"""Bytes of a file that are read and hashed by one thread; a multiple of CHUNK."""
SETTLED_NS = 100_000_000
"""A file changed less than this ago may change again without new times: kernel ticks are coarse."""
FileDigest = tuple[str, int, str]
"""File name, size, and the hex digest that `of_segments` gives of its bytes."""


def of_segments(digests: Iterable[bytes]) -> str:
    """A file's digest from the BLAKE3 of each of its SEGMENTs, which threads make side by side."""
    return blake3(b"".join(digests)).hexdigest()


def combined(files: Sequence[FileDigest]) -> str:
    """The content digest of files; independent of their order."""
    # JSON quotes names, so that no two lists of files share one text.
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()


def index_digest(content: bytes) -> FileDigest:
    """The part of the index file in the content digest."""
    return INDEX, len(content), of_segments([blake3(content).digest()])


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
        size = os.fstat(fd).st_size
        digests = [_segment_digest(fd, start, path / name, size) for start in range(0, size, SEGMENT)]
        if os.fstat(fd).st_size != size:
            raise malformed(path / name, f"{size} bytes", "another size: it changed while it was read")
    finally:
        os.close(fd)
    return name, size, of_segments(digests)


def _segment_digest(fd: int, start: int, file: Path, size: int) -> bytes:
    running, offset = blake3(), start
    while offset < min(start + SEGMENT, size):
        chunk = os.pread(fd, min(CHUNK, start + SEGMENT - offset), offset)
        if not chunk:
            raise malformed(file, f"{size} bytes", f"{offset}: it changed while it was read")
        running.update(chunk)
        offset += len(chunk)
    return running.digest()


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
    return user_cache("content") / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()}.json"


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
