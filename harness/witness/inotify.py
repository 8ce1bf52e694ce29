"""File witness: which weight files another process opens, as inotify reports them.

inotify sees a reader that maps a file as well as one that reads it, since both open it first;
/proc/<pid>/io does not see mapped reads.
"""

import ctypes
import os
import struct
from pathlib import Path
from types import TracebackType

from ..errors import LoadproofError

IN_OPEN = 0x20
_IN_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class FileWitness:
    """Watches files of one folder from creation until the context is left."""

    def __init__(self, folder: Path, files: list[str], *, by_inode: bool = False) -> None:
        """Start watching.

        Args:
            folder: the route's directory.
            files: names of the weight files in it.
            by_inode: watch the files that the names lead to, for symbolic links; otherwise the folder.
        """
        self._files = set(files)
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise self._refused("inotify_init1")
        targets = {folder / name: name for name in files} if by_inode else {folder: ""}
        self._watches: dict[int, set[str]] = {}
        try:
            for path, name in targets.items():
                # Links to one file share a watch.
                self._watches.setdefault(self._watch(path), set()).add(name)
        except LoadproofError:
            os.close(self._fd)
            raise

    def opened(self) -> list[str]:
        """Sorted names of the watched files that were opened since the start."""
        seen: set[str] = set()
        while data := self._read():
            offset = 0
            while offset < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size
                name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
                offset += length
                if mask & _IN_Q_OVERFLOW:
                    raise self._refused("an inotify queue that does not overflow")
                # A watched file that goes is reported too, and nobody has opened it.
                if mask & IN_OPEN:
                    seen |= {name} if name else self._watches[watch]
        return sorted(seen & self._files)

    def __enter__(self) -> "FileWitness":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def _watch(self, path: Path) -> int:
        watch = int(_libc.inotify_add_watch(self._fd, os.fsencode(path), IN_OPEN))
        if watch < 0:
            raise self._refused(f"inotify_add_watch on {path}")
        return watch

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, 65536)
        except BlockingIOError:
            return b""

    @staticmethod
    def _refused(what: str) -> LoadproofError:
        return LoadproofError(
            "file witness",
            expected=what,
            found=os.strerror(ctypes.get_errno()),
            remedy="Raise fs.inotify.max_user_instances and max_user_watches.",
        )
