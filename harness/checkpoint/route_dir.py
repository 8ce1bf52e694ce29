"""A folder of links for each route, so that reads of weight files can be told apart."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import OutputUnwritable
from .files import SUFFIX, open_inside, weight_files
from .header import pread_exactly, read_header

LINKED = (SUFFIX, ".json", ".jinja", ".model", ".txt")
"""Weight files, configs, and what a tokenizer is made of."""
NO_HARD_LINKS = (errno.EXDEV, errno.EPERM, errno.EROFS, errno.EMLINK)


@dataclass(frozen=True, slots=True)
class RouteDir:
    """What was made."""

    path: Path
    weight_files: tuple[str, ...]
    """File names, sorted."""
    linked: Literal["hard", "symbolic"]
    decoy: bool
    """Weight files have true headers and sizes, but only zeros as data."""
    links_into: Path | None
    """The folder that symbolic links lead into, for `CheckpointReader`; None for hard links."""


def make_route_dir(source: Path, target: Path, decoy: bool) -> RouteDir:
    """Link a checkpoint's weights, configs and tokenizer into a folder; symbolically where it must be.

    Beside decoys, weight files that are no part of the checkpoint are left out.

    Args:
        source: the checkpoint.
        target: the folder; made where it is missing, and must be empty.
        decoy: make each weight file a sparse file of the true header and size instead.

    Raises:
        OutputUnwritable: `target` cannot be written or is not empty.
        InvalidInput: `source` is not a folder.
        MalformedCheckpoint: no weight file, or a header that cannot be used (decoy only).
    """
    named = weight_files(source).names
    source = source.resolve()
    # By their kind: weights in another format would be readable on a route that must not read any.
    files = sorted(file for file in source.iterdir() if file.is_file() and file.suffix in LINKED)
    weights = [file for file in files if file.suffix == SUFFIX]
    hidden = weights if decoy else []
    try:
        target.mkdir(parents=True, exist_ok=True)
        if next(target.iterdir(), None) is not None:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        linked = _link_all([file for file in files if file not in hidden], target)
        for file in hidden:
            if file.name in named:
                _write_decoy(file, target / file.name)
    except OSError as error:
        raise OutputUnwritable(
            target, expected="an empty folder to link into", found=error.strerror, remedy="Name another."
        ) from error
    names = tuple(file.name for file in weights)
    return RouteDir(target, names, linked, decoy, source if linked == "symbolic" else None)


def _link_all(files: list[Path], target: Path) -> Literal["hard", "symbolic"]:
    try:
        _link_each(os.link, files, target)
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        for file in files:
            (target / file.name).unlink(missing_ok=True)
        _link_each(os.symlink, files, target)
        return "symbolic"
    return "hard"


def _link_each(link: Callable[[Path, Path], None], files: list[Path], target: Path) -> None:
    for file in files:
        # link(2) does not follow a symbolic link by itself.
        link(file.resolve(), target / file.name)


def _write_decoy(file: Path, copy: Path) -> None:
    fd = open_inside(file.parent, file.name)
    try:
        header = read_header(fd, file)
        text = pread_exactly(fd, 0, header.header_bytes, file)
    finally:
        os.close(fd)
    with copy.open("xb") as out:
        out.write(text)
        out.truncate(header.size)
