"""Reading a checkpoint into own memory: tensor by tensor, or all of it in one pass that hashes it too."""

import ctypes
import hashlib
import mmap
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from blake3 import blake3

from ..errors import CheckpointChanged, MissingTensor, WrongTensor
from .digest import CHUNK, SEGMENT, FileDigest, combined, index_digest, of_segments
from .files import WeightFiles, open_inside, weight_files
from .header import Entry, Header, malformed, read_header

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}
"""safetensors dtype name to the torch dtype it is loaded as."""
_libc = ctypes.CDLL(None)
READERS = 2
"""Threads that read ahead of the hash."""
MADV_POPULATE_WRITE = 23
MOST_BUFFERS = os.sysconf("SC_IOV_MAX")
"""That one preadv may fill."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of a file that are read and hashed together."""

    memory: memoryview
    completes: tuple[str, torch.Tensor] | None = None
    """The tensor of which these are the last bytes."""


class CheckpointReader:
    """The open weight files of a checkpoint; a context manager.

    Files stay open: one that is replaced by rename meanwhile is read as it was when this was made.
    """

    def __init__(self, path: Path, *, links_into: Path | None = None) -> None:
        """Open every weight file and check its header.

        Args:
            path: the checkpoint's folder. Its index file decides where there is one.
            links_into: another folder into which symbolic links may lead.

        Raises:
            InvalidInput: `path` is not a folder.
            MalformedCheckpoint: an unusable index, file or header, or one tensor in two files.
            MissingTensor: the index names a tensor that its file does not hold.
        """
        self.path = path
        self.bytes_read = 0
        """Bytes read from weight files so far, headers included."""
        self.content = ""
        """Content digest of what `stream` has read, once it is through."""
        self._fds: dict[str, int] = {}
        self._headers: dict[str, Header] = {}
        with ExitStack() as on_error:
            on_error.callback(self.close)
            self._files = weight_files(path, links_into)
            for name in self._files.names:
                self._fds[name] = open_inside(path, name, links_into)
                self._headers[name] = read_header(self._fds[name], path / name)
                self.bytes_read += self._headers[name].header_bytes
            self._homes = _homes(self._files, self._headers, path)
            on_error.pop_all()
        self.names = tuple(sorted(self._homes))
        """Every tensor of the checkpoint, sorted."""
        self.ignored = (*self._files.ignored, *self._stale())
        """What the index does not name: weight files, then `file: tensor`. Not part of the checkpoint."""

    def __enter__(self) -> "CheckpointReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; twice is harmless."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def entry(self, name: str) -> Entry:
        """Dtype, shape and place of a tensor; raises MissingTensor."""
        return self._headers[self._home(name)].entries[name]

    def holds(self, name: str) -> bool:
        """Whether the checkpoint has the tensor."""
        return name in self._homes

    def load(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Read tensors into memory of their own.

        Raises:
            MissingTensor: one is not in the checkpoint.
            WrongTensor: of a dtype that torch does not have.
            MalformedCheckpoint: a file became shorter.
        """
        loaded = {}
        for name in names:
            entry, home = self.entry(name), self._home(name)
            _require_loadable(entry, self.path / home, name)
            loaded[name], memory = _allocate(entry)
            self.bytes_read += self._fill(home, [memory], entry.start)
        return loaded

    def stream(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Read and hash the whole checkpoint in one pass, and give the tensors on the way, in file order.

        A tensor is the caller's as soon as it is given: its bytes have been hashed by then. At the end,
        `content` is what `content_digest(path)` gives, of exactly the bytes that were read.

        Raises:
            CheckpointChanged: a file grew, or its header changed since it was opened.
            As `load`, otherwise.
        """
        wanted: dict[str, dict[str, Entry]] = {home: {} for home in self._files.names}
        for name in names:
            entry, home = self.entry(name), self._home(name)
            _require_loadable(entry, self.path / home, name)
            wanted[home][name] = entry
        digests: list[FileDigest] = []
        with ThreadPoolExecutor(READERS) as readers:
            for home, entries in wanted.items():
                yield from self._stream(home, entries, readers, digests)
        index = self._files.index
        self.content = combined(digests if index is None else [*digests, index_digest(index)])

    def _stale(self) -> list[str]:
        return [
            f"{home}: {name}"
            for home, header in self._headers.items()
            for name in header.entries
            if self._homes.get(name) != home
        ]

    def _home(self, name: str) -> str:
        if name not in self._homes:
            raise _missing(self.path, name)
        return self._homes[name]

    def _fill(self, home: str, buffers: Sequence[memoryview], start: int) -> int:
        """Read on from offset `start` into one buffer after the other; returns how many bytes."""
        unread, offset = [buffer for buffer in buffers if buffer], start
        for buffer in unread:
            _populate(buffer)
        while unread:
            count = os.preadv(self._fds[home], unread[:MOST_BUFFERS], offset)
            if not count:
                wanted = sum(map(len, buffers))
                raise malformed(
                    self.path / home, f"{wanted} bytes at offset {start}", f"{offset - start}, then the end"
                )
            offset += count
            unread = _behind(unread, count)
        return offset - start

    def _stream(
        self, home: str, wanted: dict[str, Entry], readers: ThreadPoolExecutor, digests: list[FileDigest]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Read the whole file, wanted ranges to their places; threads read and hash a segment each."""
        header = self._headers[home]
        head = memoryview(bytearray(header.header_bytes))
        if os.fstat(self._fds[home]).st_size != header.size:
            raise _changed(header.file)
        offset, ahead, segments = 0, deque[tuple[Future[bytes], list[_Piece]]](), list[bytes]()
        try:
            for segment in _segments(_pieces(header, head, wanted)):
                ahead.append((readers.submit(self._segment, home, segment, offset), segment))
                offset += sum(len(piece.memory) for piece in segment)
                if len(ahead) > READERS:
                    yield from self._finished(*ahead.popleft(), segments)
            while ahead:
                yield from self._finished(*ahead.popleft(), segments)
        finally:
            # What is being read into must not be given up before.
            wait([read for read, _ in ahead])
        if hashlib.sha256(head).hexdigest() != header.sha256:
            raise _changed(header.file)
        digests.append((home, header.size, of_segments(segments)))

    def _segment(self, home: str, segment: list[_Piece], offset: int) -> bytes:
        """Read and hash a segment, chunk by chunk; for a thread of its own."""
        running = blake3()
        for batch in _batches(segment):
            memory = [piece.memory for piece in batch]
            offset += self._fill(home, memory, offset)
            for each in memory:
                running.update(each)
        return running.digest()

    def _finished(
        self, read: Future[bytes], segment: list[_Piece], segments: list[bytes]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Wait for a segment; then give the tensors that end in it away, and let go of them."""
        segments.append(read.result())
        self.bytes_read += sum(len(piece.memory) for piece in segment)
        while segment:
            completes = segment.pop(0).completes
            if completes is not None:
                yield completes


def _pieces(header: Header, head: memoryview, wanted: dict[str, Entry]) -> Iterator[_Piece]:
    """Where a file's bytes go, in order; at most CHUNK each, and none across a segment's end."""
    yield from _cut(head, 0, None)
    offset = header.header_bytes
    for name, entry in sorted(wanted.items(), key=lambda item: (item[1].start, item[1].stop)):
        yield from _unwanted(offset, entry.start)
        tensor, memory = _allocate(entry)
        yield from _cut(memory, entry.start, (name, tensor))
        del tensor, memory
        offset = entry.stop
    yield from _unwanted(offset, header.size)


def _cut(memory: memoryview, offset: int, completes: tuple[str, torch.Tensor] | None) -> Iterator[_Piece]:
    done = 0
    while len(memory) - done > (room := CHUNK - (offset + done) % CHUNK):
        yield _Piece(memory[done : done + room])
        done += room
    yield _Piece(memory[done:], completes)


def _unwanted(offset: int, stop: int) -> Iterator[_Piece]:
    """Spare memory for bytes that nobody wants."""
    while offset < stop:
        size = min(CHUNK - offset % CHUNK, stop - offset)
        yield _Piece(memoryview(bytearray(size)))
        offset += size


def _segments(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Pieces by SEGMENT bytes; CHUNK divides SEGMENT, so none lies across."""
    return _grouped(pieces, SEGMENT)


def _batches(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Neighbours together up to CHUNK bytes, since small tensors are many."""
    return _grouped(pieces, CHUNK)


def _grouped(pieces: Iterable[_Piece], most: int) -> Iterator[list[_Piece]]:
    group: list[_Piece] = []
    size = 0
    for piece in pieces:
        if group and size + len(piece.memory) > most:
            yield group
            group, size = [], 0
        group.append(piece)
        size += len(piece.memory)
    if group:
        yield group


def _behind(buffers: Sequence[memoryview], count: int) -> list[memoryview]:
    """What is left of the buffers behind their first `count` bytes."""
    for index, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[index + 1 :]]
        count -= len(buffer)
    return []


def _require_loadable(entry: Entry, file: Path, name: str) -> None:
    if entry.dtype not in DTYPES:
        raise WrongTensor(
            f"{file}: {name}",
            expected=f"a dtype of {', '.join(DTYPES)}",
            found=entry.dtype,
            remedy="Leave this tensor out, or export it in a dtype that torch can hold.",
        )


def _allocate(entry: Entry) -> tuple[torch.Tensor, memoryview]:
    """An uninitialised tensor, and its bytes as writable memory that is valid while the tensor lives."""
    tensor = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
    size = entry.stop - entry.start
    if not size:
        return tensor, memoryview(b"")
    return tensor, memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def _populate(memory: memoryview) -> None:
    """Have the kernel map a range at once: page by page, on being filled, takes longer than the filling."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + len(memory) - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0:
        # Linux 5.14. Where it is refused nothing is lost: the pages then come one by one.
        _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), MADV_POPULATE_WRITE)


def _homes(files: WeightFiles, headers: dict[str, Header], path: Path) -> dict[str, str]:
    """Tensor name to the file that holds it."""
    if files.weight_map is not None:
        for tensor, home in files.weight_map.items():
            if tensor not in headers[home].entries:
                raise _missing(path / home, tensor)
        return files.weight_map
    homes: dict[str, str] = {}
    for home, header in headers.items():
        for tensor in header.entries:
            if tensor in homes:
                raise malformed(f"{path / home}: {tensor}", "each tensor once", f"also in {homes[tensor]}")
            homes[tensor] = home
    return homes


def _missing(where: Path, tensor: str) -> MissingTensor:
    return MissingTensor(
        f"{where}: {tensor}",
        expected="this tensor in the checkpoint",
        found="none",
        remedy="Export the checkpoint again, or ask for a layer that it has.",
    )


def _changed(file: Path) -> CheckpointChanged:
    return CheckpointChanged(
        file,
        expected="the header and the size that the file had when it was opened",
        found="others",
        remedy="Do not write to a checkpoint that is being loaded; run again.",
    )
