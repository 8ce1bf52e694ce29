"""mmap through libc: unlike Python's mmap, it can change protection and expose a read-only address."""

import ctypes
import mmap
import os

import torch

from ...errors import ArenaError

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_MAP_FAILED = ctypes.c_void_p(-1).value


class Mapping:
    """A shared mapping of a whole file descriptor."""

    def __init__(self, fd: int, nbytes: int, *, writable: bool) -> None:
        """Map `nbytes` of `fd`; raises ArenaError when the kernel refuses."""
        self.nbytes = nbytes
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _libc.mmap(None, nbytes, protection, mmap.MAP_SHARED, fd, 0)
        if address is None or address == _MAP_FAILED:
            raise ArenaError(
                f"arena of {nbytes} bytes",
                expected="the kernel to map it",
                found=os.strerror(ctypes.get_errno()),
                remedy="Check the memory and address-space limits of this process.",
            )
        self.address: int = address

    def make_read_only(self, nbytes: int) -> None:
        """Withdraw write permission from the first `nbytes`, a multiple of the page size."""
        if nbytes and _libc.mprotect(self.address, nbytes, mmap.PROT_READ) != 0:
            raise ArenaError(
                f"arena of {self.nbytes} bytes",
                expected="mprotect to make it read-only",
                found=os.strerror(ctypes.get_errno()),
                remedy="Report this host: the arena cannot be protected here.",
            )

    def tensor(self, offset: int, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes] over the mapped memory itself; valid until `close`."""
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        # Not torch.frombuffer on an mmap object: that warns when the memory is read-only.
        buffer = (ctypes.c_ubyte * nbytes).from_address(self.address + offset)
        return torch.frombuffer(buffer, dtype=torch.uint8)

    def close(self) -> None:
        """Unmap. Tensors over this mapping must not be touched afterwards."""
        if self.address:
            _libc.munmap(self.address, self.nbytes)
            self.address = 0
