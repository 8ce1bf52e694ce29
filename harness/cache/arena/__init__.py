"""Transports by name: how a daemon's memory reaches an engine."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import InvalidInput
from .cuda_ipc import CudaIpcArena, CudaIpcAttachment
from .cuda_vmm import CudaVmmArena, CudaVmmAttachment
from .memfd import MemfdArena, MemfdAttachment
from .protocol import OFFSET_ALIGNMENT, PROBE_BYTES, Arena, Attachment


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """How memory is shared, and whether an engine can write to it."""

    sealed: bool
    """Whether a store by an engine is refused, by the kernel or by the GPU."""
    create: Callable[[int], Arena]
    """From the bytes of all tensors."""
    attach: Callable[[int, int, int], Attachment]
    """From the descriptor, the arena's bytes and the probe page's offset."""


TRANSPORTS = {
    "memfd": Transport(
        sealed=True,
        create=functools.partial(MemfdArena, sealed=True),
        attach=functools.partial(MemfdAttachment, sealed=True),
    ),
    "memfd-writable": Transport(
        sealed=False,
        create=functools.partial(MemfdArena, sealed=False),
        attach=functools.partial(MemfdAttachment, sealed=False),
    ),
    "cuda-vmm": Transport(sealed=True, create=CudaVmmArena, attach=CudaVmmAttachment),
    "cuda-ipc": Transport(sealed=False, create=CudaIpcArena, attach=CudaIpcAttachment),
}


def transport_of(name: str) -> Transport:
    """The transport of this name; raises InvalidInput for an unknown one."""
    if name not in TRANSPORTS:
        raise InvalidInput(
            f"transport {name!r}",
            expected=f"one of {', '.join(sorted(TRANSPORTS))}",
            found=name,
            remedy="Pass a transport that exists on this host.",
        )
    return TRANSPORTS[name]


def create_arena(transport: str, data_bytes: int) -> Arena:
    """Reserve an arena; raises InvalidInput (unknown transport, no GPU) or ArenaError."""
    return transport_of(transport).create(data_bytes)


def map_arena(transport: str, fd: int, nbytes: int, probe_offset: int) -> Attachment:
    """Map a daemon's arena and take over `fd`; raises InvalidInput or ArenaError."""
    return transport_of(transport).attach(fd, nbytes, probe_offset)


__all__ = [
    "OFFSET_ALIGNMENT",
    "PROBE_BYTES",
    "TRANSPORTS",
    "Arena",
    "Attachment",
    "Transport",
    "create_arena",
    "map_arena",
    "transport_of",
]
