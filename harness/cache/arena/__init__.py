"""Transports by name: how a daemon's memory reaches an engine."""

from ...errors import InvalidInput
from .memfd import MemfdArena, MemfdAttachment
from .protocol import OFFSET_ALIGNMENT, PROBE_BYTES, Arena, Attachment

TRANSPORTS = {"memfd": True, "memfd-writable": False}
"""Name of the transport, and whether its memory is sealed against writers."""


def is_sealed(transport: str) -> bool:
    """Whether the transport's memory is sealed; raises InvalidInput for an unknown name."""
    if transport not in TRANSPORTS:
        raise InvalidInput(
            f"transport {transport!r}",
            expected=f"one of {', '.join(sorted(TRANSPORTS))}",
            found=transport,
            remedy="Pass a transport that exists on this host.",
        )
    return TRANSPORTS[transport]


def create_arena(transport: str, data_bytes: int) -> Arena:
    """Reserve an arena; raises InvalidInput (unknown transport) or ArenaError."""
    return MemfdArena(data_bytes, sealed=is_sealed(transport))


def map_arena(transport: str, fd: int, nbytes: int, probe_offset: int) -> Attachment:
    """Map a daemon's arena and take over `fd`; raises InvalidInput or ArenaError."""
    return MemfdAttachment(fd, nbytes, probe_offset, sealed=is_sealed(transport))


__all__ = [
    "OFFSET_ALIGNMENT",
    "PROBE_BYTES",
    "TRANSPORTS",
    "Arena",
    "Attachment",
    "create_arena",
    "is_sealed",
    "map_arena",
]
