"""Memory witness: which allocation an address belongs to, asked of the kernel, not of our own records."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch


def memory_identity(tensor: torch.Tensor) -> tuple[str, int]:
    """Allocation and byte offset of a CPU tensor's first element.

    Returns:
        `memfd:<major>:<minor>:<inode>` and the offset in the file, where a memfd is mapped there; it is
        the same in every process. Otherwise `private:<pid>:<storage address>`.
    """
    return MemoryMap().identity(tensor)


class MemoryMap:
    """This process's mappings of memfds, as they are when this is made; asking costs no further look."""

    def __init__(self) -> None:
        lines = (line.split(maxsplit=5) for line in _maps().split("\n") if "/memfd:" in line)
        self._memfds = [_Mapped.of(fields) for fields in lines if fields[-1].startswith("/memfd:")]

    def identity(self, tensor: torch.Tensor) -> tuple[str, int]:
        """See `memory_identity`."""
        address = tensor.data_ptr()
        for mapped in self._memfds:
            if mapped.start <= address < mapped.stop:
                return mapped.allocation, mapped.offset + address - mapped.start
        storage = tensor.untyped_storage().data_ptr()
        return f"private:{os.getpid()}:{storage:#x}", address - storage


@dataclass(frozen=True, slots=True)
class _Mapped:
    start: int
    stop: int
    allocation: str
    offset: int
    """In the file, of `start`."""

    @classmethod
    def of(cls, fields: list[str]) -> "_Mapped":
        span, _, offset, device, inode, _ = fields
        start, stop = (int(part, 16) for part in span.split("-"))
        major, minor = (int(part, 16) for part in device.split(":"))
        return cls(start, stop, f"memfd:{major}:{minor}:{inode}", int(offset, 16))


def _maps() -> str:
    # A mapped file may have any bytes in its name; none of them is a line's end.
    return Path("/proc/self/maps").read_bytes().decode("utf-8", "backslashreplace").rstrip("\n")
