"""`memfd` and `memfd-writable`: the arena of a host without a GPU.

`memfd` is sealed: it cannot shrink, grow, or be mapped writable again. The daemon's earlier mapping
stays, protected but for the probe page. `memfd-writable` is its unsealed twin, as writable as a
legacy CUDA IPC mapping: there, digests carry the proof.
"""

import errno
import fcntl
import mmap
import os

import torch

from ...errors import ArenaError
from .mapping import Mapping
from .protocol import PROBE_BYTES

F_SEAL_FUTURE_WRITE = 0x10
"""Linux 5.1; not in Python's fcntl before 3.13."""

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | F_SEAL_FUTURE_WRITE


def allocation_id(fd: int) -> str:
    """Identity of the memory behind `fd`, equal in every process that holds it."""
    status = os.fstat(fd)
    return f"memfd:{os.major(status.st_dev)}:{os.minor(status.st_dev)}:{status.st_ino}"


def _reserve(fd: int, nbytes: int) -> None:
    # fallocate, not ftruncate: where memory is short this says ENOSPC, and that would be a later SIGBUS.
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        raise ArenaError(
            f"arena of {nbytes} bytes",
            expected="shared memory to be available",
            found=os.strerror(error.errno or errno.ENOSPC),
            remedy="Free memory, or raise the limit of this container, and start the daemon again.",
        ) from error


class MemfdArena:
    """The daemon's side: one memfd, data first, the probe page last."""

    def __init__(self, data_bytes: int, *, sealed: bool) -> None:
        """Reserve room for `data_bytes` of tensors; raises ArenaError (no memory, no memfd)."""
        self.sealed = sealed
        page = mmap.PAGESIZE
        self.probe_offset = -(-max(data_bytes, 1) // page) * page
        self.nbytes = self.probe_offset + page
        self.fd = os.memfd_create("loadproof-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            _reserve(self.fd, self.nbytes)
            self._mapping = Mapping(self.fd, self.nbytes, writable=True)
        except BaseException:
            os.close(self.fd)
            raise
        self.allocation = allocation_id(self.fd)

    def write(self, offset: int, data: torch.Tensor) -> None:
        """Copy uint8 [n] to `offset`; only before `freeze`."""
        self._mapping.tensor(offset, data.numel()).copy_(data)

    def freeze(self) -> None:
        """No write is possible from here on, but for the probe page (and engines on the unsealed twin)."""
        self._mapping.make_read_only(self.probe_offset)
        if self.sealed:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)

    def read(self, offset: int, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes] over the arena's memory itself."""
        return self._mapping.tensor(offset, nbytes)

    def write_probe(self, nonce: bytes) -> None:
        """Put PROBE_BYTES on the probe page, where attached engines see them at once."""
        self._mapping.tensor(self.probe_offset, PROBE_BYTES).copy_(
            torch.frombuffer(bytearray(nonce), dtype=torch.uint8)
        )

    def close(self) -> None:
        """Unmap and close; the memory lives on while an engine maps it."""
        self._mapping.close()
        os.close(self.fd)


class MemfdAttachment:
    """The engine's side: the daemon's memfd, mapped read-only where it is sealed."""

    def __init__(self, fd: int, nbytes: int, probe_offset: int, *, sealed: bool) -> None:
        """Take over `fd`. Raises ArenaError: another size or other seals than the manifest promises."""
        self.probe_offset = probe_offset
        try:
            self._check(fd, nbytes, sealed)
            self.allocation = allocation_id(fd)
            self._mapping = Mapping(fd, nbytes, writable=not sealed)
        finally:
            os.close(fd)
        self.nbytes = nbytes

    @staticmethod
    def _check(fd: int, nbytes: int, sealed: bool) -> None:
        size = os.fstat(fd).st_size
        if size != nbytes:
            raise ArenaError(
                "arena descriptor",
                expected=f"{nbytes} bytes, as the manifest says",
                found=f"{size} bytes",
                remedy="Restart the daemon; do not attach to this one.",
            )
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError:
            seals = -1
        if seals == -1 or (sealed and seals & SEALS != SEALS):
            raise ArenaError(
                "arena descriptor",
                expected=f"a memfd{f' with seals {SEALS:#x}' if sealed else ''}",
                found="not a memfd" if seals == -1 else f"seals {seals:#x}",
                remedy="Restart the daemon; do not attach to this one.",
            )

    def read(self, offset: int, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes] over the daemon's memory itself."""
        return self._mapping.tensor(offset, nbytes)

    def read_probe(self) -> bytes:
        """What the probe page holds now, through this mapping."""
        return bytes(self._mapping.tensor(self.probe_offset, PROBE_BYTES).tolist())

    def close(self) -> None:
        """Unmap."""
        self._mapping.close()
