"""Writing a file whole, or not at all."""

import os
from pathlib import Path

from .errors import OutputUnwritable


def unwritable(path: Path, error: OSError) -> OutputUnwritable:
    """The error that says why `path` could not be written; names the file that the system named."""
    return OutputUnwritable(
        error.filename or path,
        expected="a writable place",
        found=error.strerror or str(error) or type(error).__name__,
        remedy="Free the disk, or choose a folder that you may write to.",
    )


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
        raise unwritable(path, OSError(error.errno, error.strerror)) from error
