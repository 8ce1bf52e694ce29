"""Memory witness on a GPU: which allocation an address belongs to, asked of the driver."""

import os

import torch

from ..cache.arena.cuda_driver import address_range, current_device
from ..cache.arena.cuda_memory import ATTACHED


def memory_identity(tensor: torch.Tensor) -> tuple[str, int]:
    """Allocation and byte offset of a CUDA tensor's first element.

    Returns:
        The arena's `allocation` and the offset in it, where the driver says that the memory around the
        tensor is what this process has mapped of a daemon; it is the same in every process. Otherwise
        `private:<pid>:<start of the memory>`, which torch's allocator may share between tensors.

    Raises:
        ArenaError: the driver does not know the address.
    """
    address = tensor.data_ptr()
    if not address:
        return f"private:{os.getpid()}:0x0", 0
    current_device()
    base, _ = address_range(address)
    for attachment in ATTACHED:
        offset = attachment.locate(address, base)
        if offset is not None:
            return attachment.allocation, offset
    return f"private:{os.getpid()}:{base:#x}", address - base
