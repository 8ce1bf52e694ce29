"""What an arena is: one allocation per daemon and device, tensors at offsets, and a probe page."""

from typing import Protocol

import torch

OFFSET_ALIGNMENT = 512
"""Every tensor starts at a multiple of this many bytes."""

PROBE_BYTES = 16
"""Length of the nonce on the probe page; the page lies outside all digests."""


class Arena(Protocol):
    """The daemon's side."""

    fd: int
    nbytes: int
    probe_offset: int
    allocation: str

    def write(self, offset: int, data: torch.Tensor) -> None: ...

    def freeze(self) -> None: ...

    def read(self, offset: int, nbytes: int) -> torch.Tensor: ...

    def write_probe(self, nonce: bytes) -> None: ...

    def close(self) -> None: ...


class Attachment(Protocol):
    """The engine's side."""

    nbytes: int
    allocation: str

    def read(self, offset: int, nbytes: int) -> torch.Tensor: ...

    def read_probe(self) -> bytes: ...

    def close(self) -> None: ...
