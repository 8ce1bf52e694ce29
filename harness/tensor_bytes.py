"""Tensors as bytes: what "bit-exact" means here.

Equality is shape, dtype, then bytes; so -0 differs from +0, and a NaN equals only the same NaN.
"""

import ctypes
import hashlib

import numpy as np
import torch
from numpy.typing import NDArray

_libc = ctypes.CDLL(None)


def bytes_in_place(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of `tensor` in the order in which memory holds them: uint8 [nbytes] on the same device.

    A column-major [K, N] weight comes out as its stored [N, K] rows; no copy where the tensor is dense.
    """
    stride = tuple(tensor.stride())
    order = sorted(range(tensor.dim()), key=lambda dim: -stride[dim])
    dense = tensor.detach().permute(order).contiguous()
    # Not reshape: it keeps the stride of a single element, whatever it is, and view then refuses.
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def memory_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """As `bytes_in_place`, on the CPU."""
    return bytes_in_place(tensor).cpu()


def sha256(tensor: torch.Tensor) -> str:
    """Hex sha256 of `memory_bytes(tensor)`."""
    return hashlib.sha256(memory_bytes(tensor).numpy().data).hexdigest()


def sha256_of(raw: NDArray[np.uint8]) -> str:
    """Hex sha256 of bytes in numpy's hands."""
    return hashlib.sha256(np.ascontiguousarray(raw).data).hexdigest()


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.float8_e4m3fn` as `float8_e4m3fn`."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The inverse of `dtype_name`; raises KeyError for what is not a dtype."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise KeyError(name)
    return dtype


def give_back_freed_memory() -> None:
    """Return to the system what freed tensors leave below others in the heap; glibc would keep it."""
    _libc.malloc_trim(0)
