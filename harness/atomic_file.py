"""Writing a file whole, or not at all."""

import os
from pathlib import Path

from .errors import OutputUnwritable


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` in one step, on disk before it is seen; makes its folder.

    Raises:
        OutputUnwritable: no permission, no room, or something else in the way; the old file stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputUnwritable(
            path,
            expected="a writable place",
            found=error.strerror or type(error).__name__,
            remedy="Free the disk, or choose a folder that you may write to.",
        ) from error
