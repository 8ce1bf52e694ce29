"""Memory witness: which allocation a tensor lies in, asked of the kernel or the driver."""

from collections.abc import Mapping

import torch

from . import cuda_memory, maps


def memory_identity(tensor: torch.Tensor) -> tuple[str, int]:
    """Allocation and byte offset of a tensor's first element; see `maps` and `cuda_memory`."""
    return cuda_memory.memory_identity(tensor) if tensor.is_cuda else maps.memory_identity(tensor)


def memory_identities(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[str, int]]:
    """As `memory_identity`, for many tensors at one look at this process's mappings."""
    mapped = maps.MemoryMap()
    return {
        name: cuda_memory.memory_identity(tensor) if tensor.is_cuda else mapped.identity(tensor)
        for name, tensor in tensors.items()
    }
