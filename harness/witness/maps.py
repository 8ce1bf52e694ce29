"""Memory witness: which allocation an address belongs to, asked of the kernel, not of our own records."""

import os
from pathlib import Path

import torch


def memory_identity(tensor: torch.Tensor) -> tuple[str, int]:
    """Allocation and byte offset of a CPU tensor's first element.

    Returns:
        `memfd:<major>:<minor>:<inode>` and the offset in the file, where a memfd is mapped there; it is
        the same in every process. Otherwise `private:<pid>:<storage address>`.
    """
    address = tensor.data_ptr()
    for line in _maps().split("\n"):
        span, _, offset, device, inode, *name = line.split(maxsplit=5)
        start, stop = (int(part, 16) for part in span.split("-"))
        if start <= address < stop:
            if name and name[0].startswith("/memfd:"):
                major, minor = (int(part, 16) for part in device.split(":"))
                return f"memfd:{major}:{minor}:{inode}", int(offset, 16) + address - start
            break
    storage = tensor.untyped_storage().data_ptr()
    return f"private:{os.getpid()}:{storage:#x}", address - storage


def _maps() -> str:
    # A mapped file may have any bytes in its name; none of them is a line's end.
    return Path("/proc/self/maps").read_bytes().decode("utf-8", "backslashreplace").rstrip("\n")
