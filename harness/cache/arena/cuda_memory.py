"""What both CUDA arenas share: the layout, access to device memory, and the engine's side.

The arena's identity is 16 random bytes behind the probe. An engine reads them through its own mapping, so
that the identity belongs to the memory and not to a descriptor or to what the daemon says.
"""

import ctypes
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from ...errors import ArenaError
from .cuda_driver import Device, address_range, bindings, check
from .protocol import PROBE_BYTES

IDENTITY_BYTES = 16
"""The arena's identity, right behind the nonce on the probe page."""


def laid_out(data_bytes: int, granule: int) -> tuple[int, int]:
    """Offset of the probe page and bytes in all: data in whole granules, then one for the probe page."""
    probe_offset = -(-max(data_bytes, 1) // granule) * granule
    return probe_offset, probe_offset + granule


def require_layout(nbytes: int, probe_offset: int, granule: int) -> None:
    """Raise ArenaError unless the sizes could be those of `laid_out`."""
    if probe_offset <= 0 or probe_offset % granule or nbytes != probe_offset + granule:
        raise ArenaError(
            "arena of the manifest",
            expected=f"data in whole granules of {granule} bytes, and one more for the probe page",
            found=f"{nbytes} bytes, with the probe page at {probe_offset}",
            remedy="Restart the daemon on this GPU; do not attach to this one.",
        )


class _Interface:
    """What torch takes device memory from without a copy."""

    def __init__(self, address: int, nbytes: int) -> None:
        # Declared writable although it may not be: torch refuses an interface that says read-only. The
        # hardware refuses the store all the same.
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def tensor_over(address: int, nbytes: int, device: torch.device) -> torch.Tensor:
    """uint8 [nbytes] over the device memory itself; raises ArenaError should torch have copied it."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    tensor = torch.as_tensor(_Interface(address, nbytes), device=device)
    if tensor.data_ptr() != address:
        raise ArenaError(
            f"device memory at {address:#x}",
            expected="torch to wrap it",
            found=f"a copy at {tensor.data_ptr():#x}",
            remedy="Let the process use the device that holds the arena (CUDA_VISIBLE_DEVICES).",
        )
    return tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """A range of device addresses; valid until its owner unmaps or frees it."""

    device: Device
    address: int
    nbytes: int

    def tensor(self, offset: int, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes] over the memory itself."""
        return tensor_over(self.address + offset, nbytes, self.device.torch_device)

    def peek(self, offset: int, nbytes: int) -> bytes:
        """A few bytes, as they are now; raises ArenaError."""
        self.device.make_current()
        host = ctypes.create_string_buffer(nbytes)
        copied = bindings().cuMemcpyDtoH(ctypes.addressof(host), self.address + offset, nbytes)
        check(copied, f"cuMemcpyDtoH of {nbytes} bytes")
        return host.raw

    def poke(self, offset: int, data: bytes) -> None:
        """Store a few bytes; raises ArenaError. They are there for every process on return."""
        self.device.make_current()
        host = ctypes.create_string_buffer(data, len(data))
        copied = bindings().cuMemcpyHtoD(self.address + offset, ctypes.addressof(host), len(data))
        check(copied, f"cuMemcpyHtoD of {len(data)} bytes")
        self.device.synchronise()


def allocation_id(transport: str, memory: DeviceMemory, probe_offset: int) -> str:
    """Identity of the memory, read out of it; equal in every process that maps it."""
    identity = memory.peek(probe_offset + PROBE_BYTES, IDENTITY_BYTES)
    return f"{transport}:{memory.device.uuid}:{identity.hex()}"


class CudaAttachment:
    """The engine's side of either transport, over memory that a subclass maps."""

    def __init__(self, transport: str, memory: DeviceMemory, probe_offset: int, mapped: ExitStack) -> None:
        """Take over `mapped`, which lets go of `memory`; raises ArenaError."""
        with mapped:
            require_whole(memory)
            self.allocation = allocation_id(transport, memory, probe_offset)
            self.nbytes = memory.nbytes
            self.probe_offset = probe_offset
            self._memory = memory
            self._whole = memory.tensor(0, memory.nbytes)
            self._mapped = mapped.pop_all()
        ATTACHED.append(self)

    def read(self, offset: int, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes] over the daemon's memory itself."""
        return self._whole.narrow(0, offset, nbytes)

    def read_probe(self) -> bytes:
        """What the probe page holds now, through this mapping."""
        return self._memory.peek(self.probe_offset, PROBE_BYTES)

    def locate(self, address: int, base: int) -> int | None:
        """The offset of a device address in this arena, or None where it is elsewhere.

        Args:
            address: of the byte in question.
            base: where the driver says that the memory around `address` starts.
        """
        start = self._memory.address
        return address - start if base == start and address < start + self.nbytes else None

    def close(self) -> None:
        """Unmap, once the device has finished. Tensors over this memory must not be touched afterwards."""
        if self in ATTACHED:
            ATTACHED.remove(self)
        self._mapped.close()


ATTACHED: list[CudaAttachment] = []
"""Arenas that this process maps, for the memory witness."""


def require_whole(memory: DeviceMemory) -> None:
    """Raise ArenaError unless the driver knows the memory as one range of at least its size."""
    base, nbytes = address_range(memory.address)
    if base != memory.address or nbytes < memory.nbytes:
        raise ArenaError(
            "mapped arena",
            expected=f"{memory.nbytes} bytes at {memory.address:#x}, as the manifest says",
            found=f"{nbytes} bytes at {base:#x}",
            remedy="Restart the daemon; do not attach to this one.",
        )
