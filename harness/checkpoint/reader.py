"""Reading a checkpoint into own memory, optionally hashing it in the same pass."""

import ctypes
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import torch

from ..errors import CheckpointChanged, MissingTensor, WrongTensor
from .digest import CHUNK, FileDigest, combined, index_digest
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
MOST_BUFFERS = os.sysconf("SC_IOV_MAX")
"""That one preadv may fill."""


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
            loaded[name], memory = _allocate(entry, self.path / home, name)
            self._fill(home, [memory], entry.start)
        return loaded

    def load_digested(self, names: Iterable[str]) -> tuple[dict[str, torch.Tensor], str]:
        """`load`, and the content digest of exactly the bytes that were loaded, in one pass.

        Returns:
            The tensors, and what `content_digest(path)` gives.

        Raises:
            CheckpointChanged: a file grew, or its header changed since it was opened.
            As `load`, otherwise.
        """
        loaded: dict[str, torch.Tensor] = {}
        wanted: dict[str, list[tuple[Entry, memoryview]]] = {home: [] for home in self._files.names}
        # Each once: the memory of a tensor that is replaced is not valid any more.
        for name in dict.fromkeys(names):
            entry, home = self.entry(name), self._home(name)
            loaded[name], memory = _allocate(entry, self.path / home, name)
            wanted[home].append((entry, memory))
        with ThreadPoolExecutor(1) as hasher:
            digests = [self._stream(home, ranges, hasher) for home, ranges in wanted.items()]
        index = self._files.index
        return loaded, combined(digests if index is None else [*digests, index_digest(index)])

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

    def _fill(self, home: str, buffers: Sequence[memoryview], start: int) -> None:
        """Read on from offset `start` into one buffer after the other."""
        unread, offset = [buffer for buffer in buffers if buffer], start
        while unread:
            count = os.preadv(self._fds[home], unread[:MOST_BUFFERS], offset)
            if not count:
                wanted = sum(map(len, buffers))
                raise malformed(
                    self.path / home, f"{wanted} bytes at offset {start}", f"{offset - start}, then the end"
                )
            offset += count
            self.bytes_read += count
            unread = _behind(unread, count)

    def _stream(
        self, home: str, wanted: Sequence[tuple[Entry, memoryview]], hasher: ThreadPoolExecutor
    ) -> FileDigest:
        """Read the whole file, wanted ranges to their places; each batch is hashed while the next is read."""
        header, sha = self._headers[home], hashlib.sha256()
        head = memoryview(bytearray(header.header_bytes))
        self._fill(home, [head], 0)
        sha.update(head)
        if sha.hexdigest() != header.sha256 or os.fstat(self._fds[home]).st_size != header.size:
            raise _changed(header.file)

        def update(batch: list[memoryview]) -> None:
            for buffer in batch:
                sha.update(buffer)

        offset, hashed = header.header_bytes, Future[None]()
        hashed.set_result(None)
        for batch in _batches(_pieces(header, wanted)):
            self._fill(home, batch, offset)
            offset += sum(map(len, batch))
            hashed.result()
            hashed = hasher.submit(update, batch)
        hashed.result()
        return home, header.size, sha.hexdigest()


def _pieces(header: Header, wanted: Sequence[tuple[Entry, memoryview]]) -> Iterator[memoryview]:
    """Where the bytes behind the header go, in order, at most CHUNK each; unwanted ones into spare memory."""
    offset = header.header_bytes
    for entry, memory in sorted(wanted, key=lambda item: (item[0].start, item[0].stop)):
        yield from _unwanted(entry.start - offset)
        for start in range(0, len(memory), CHUNK):
            yield memory[start : start + CHUNK]
        offset = entry.stop
    yield from _unwanted(header.size - offset)


def _unwanted(count: int) -> Iterator[memoryview]:
    for start in range(0, count, CHUNK):
        yield memoryview(bytearray(min(CHUNK, count - start)))


def _batches(pieces: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Neighbours together up to CHUNK bytes, since small tensors are many."""
    batch: list[memoryview] = []
    size = 0
    for piece in pieces:
        if size + len(piece) > CHUNK:
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += len(piece)
    yield batch


def _behind(buffers: Sequence[memoryview], count: int) -> list[memoryview]:
    """What is left of the buffers behind their first `count` bytes."""
    for index, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[index + 1 :]]
        count -= len(buffer)
    return []


def _allocate(entry: Entry, file: Path, name: str) -> tuple[torch.Tensor, memoryview]:
    """An uninitialised tensor, and its bytes as writable memory that is valid while the tensor lives."""
    if entry.dtype not in DTYPES:
        raise WrongTensor(
            f"{file}: {name}",
            expected=f"a dtype of {', '.join(DTYPES)}",
            found=entry.dtype,
            remedy="Leave this tensor out, or export it in a dtype that torch can hold.",
        )
    tensor = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
    size = entry.stop - entry.start
    if not size:
        return tensor, memoryview(b"")
    return tensor, memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


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
