"""Memory witness: which allocation a tensor lies in, asked of the kernel or the driver."""

import torch

from . import cuda_memory, maps


def memory_identity(tensor: torch.Tensor) -> tuple[str, int]:
    """Allocation and byte offset of a tensor's first element; see `maps` and `cuda_memory`."""
    return cuda_memory.memory_identity(tensor) if tensor.is_cuda else maps.memory_identity(tensor)
