"""A proof's own files: private, short-lived, and gone also after an interruption."""

import atexit
import secrets
import shutil
import tempfile
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from .atomic_file import unwritable
from .errors import OutputUnwritable

_left: set[Path] = set()


def make_scratch() -> Path:
    """A new folder below TMPDIR, for this user alone; raises OutputUnwritable."""
    # Noted before it is made: an interruption may come at any moment, also while it is removed.
    folder = Path(tempfile.gettempdir(), f"loadproof-{secrets.token_hex(4)}")
    _left.add(folder)
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise unwritable(folder, error) from error
    return folder


def remove_scratch(folder: Path) -> None:
    """Remove what `make_scratch` made; the rest of an interrupted removal goes at the process's end."""
    shutil.rmtree(folder, ignore_errors=True)
    _left.discard(folder)


@atexit.register
def _remove_left() -> None:
    for folder in _left:
        shutil.rmtree(folder, ignore_errors=True)


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file; raises OutputUnwritable where there is no room for it."""
    try:
        save_file(tensors, path)
    except (OSError, SafetensorError) as error:
        raise OutputUnwritable(
            path,
            expected="room for the tensors",
            found=str(error),
            remedy="Free the disk, or set TMPDIR to a folder with more room.",
        ) from error
