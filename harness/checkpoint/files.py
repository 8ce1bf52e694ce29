"""Which files are the checkpoint, and opening them without leaving its folder."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidInput
from . import strict_json
from .header import malformed, pread_exactly, shown

INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
MOST_CONFIG_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The weight files of a checkpoint."""

    names: tuple[str, ...]
    """Plain file names, sorted; those the index names, where there is one."""
    index: bytes | None
    """Content of the index file; None without one."""
    weight_map: dict[str, str] | None
    """Tensor name to file name, from the index; None without one."""
    ignored: tuple[str, ...] = ()
    """Further weight files in the folder, sorted, which the index does not name: never opened."""


def open_inside(folder: Path, name: str, links_into: Path | None = None) -> int:
    """Open a regular file of `folder` for reading; the caller closes the descriptor.

    Args:
        folder: the checkpoint.
        name: a plain file name.
        links_into: another folder into which symbolic links may lead.

    Raises:
        MalformedCheckpoint: missing, not a regular file, not readable, or outside the folders.
    """
    where = folder / name
    allowed = [root.resolve() for root in (folder, links_into) if root is not None]
    # Unlike Path.resolve, this does not raise on a cycle of links; open then does.
    real = Path(os.path.realpath(where))
    if real.parent not in allowed:
        raise malformed(where, f"a file inside {' or '.join(map(str, allowed))}", f"one at {real}")
    try:
        # O_NOFOLLOW: links were followed above, one that appears since is not. O_NONBLOCK: a fifo blocks.
        fd = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise malformed(where, "a readable file", error.strerror) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise malformed(where, "a regular file", "something else")
    return fd


def read_small(where: Path) -> bytes:
    """A config's content; links are followed, as they are in a hub's cache.

    Raises:
        FileNotFoundError: there is none.
        MalformedCheckpoint: not a regular file, not readable, or larger than MOST_CONFIG_BYTES.
    """
    try:
        fd = os.open(where, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise malformed(where, "a readable file", error.strerror) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_CONFIG_BYTES:
            raise malformed(where, f"a regular file of at most {MOST_CONFIG_BYTES} bytes", "another")
        return pread_exactly(fd, 0, status.st_size, where)
    finally:
        os.close(fd)


def weight_files(folder: Path, links_into: Path | None = None) -> WeightFiles:
    """List the weight files; `links_into` as for `open_inside`.

    Raises:
        InvalidInput: `folder` is not a folder that can be listed.
        MalformedCheckpoint: no weight file, or an index that is not usable.
    """
    try:
        listed = sorted(os.listdir(folder))
    except OSError as error:
        raise InvalidInput(
            folder,
            expected="the folder of a checkpoint",
            found=error.strerror,
            remedy="Name the folder that holds the *.safetensors files.",
        ) from error
    names = tuple(name for name in listed if name.endswith(SUFFIX))
    if INDEX in listed:
        return _indexed(folder, names, links_into)
    if not names:
        raise malformed(folder, "at least one *.safetensors file", "none")
    return WeightFiles(names, None, None)


def _indexed(folder: Path, listed: tuple[str, ...], links_into: Path | None) -> WeightFiles:
    where = folder / INDEX
    fd = open_inside(folder, INDEX, links_into)
    try:
        content = pread_exactly(fd, 0, os.fstat(fd).st_size, where)
    finally:
        os.close(fd)
    try:
        document = strict_json.parse(content, strict_numbers=False)
    except ValueError as error:
        raise malformed(where, "a JSON object", f"{error}") from error
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise malformed(where, "an object weight_map with at least one tensor", shown(weight_map))
    for tensor, name in weight_map.items():
        _require_plain(name, f"{where}: {tensor}")
    named = set(weight_map.values())
    ignored = tuple(name for name in listed if name not in named)
    return WeightFiles(tuple(sorted(named)), content, weight_map, ignored)


def _require_plain(name: object, where: str) -> None:
    if not isinstance(name, str) or not name.endswith(SUFFIX) or "/" in name or "\0" in name:
        raise malformed(where, f"a plain file name that ends in {SUFFIX}", shown(name))
