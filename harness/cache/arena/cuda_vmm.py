"""`cuda-vmm`: device memory behind a file descriptor, which engines map read-only.

The hardware refuses an engine's store. The daemon's own mapping is read-only as well from `freeze` on; for a
probe, it maps the memory once more, writable, and for those 16 bytes only: one mapping has one access
right, and a part of an allocation cannot be mapped on its own.
"""

import os
import stat
from contextlib import ExitStack
from typing import Any

import torch

from ...errors import ArenaError
from .cuda_driver import Device, bindings, check, current_device
from .cuda_memory import (
    IDENTITY_BYTES,
    CudaAttachment,
    DeviceMemory,
    allocation_id,
    laid_out,
    require_layout,
)
from .protocol import PROBE_BYTES

TRANSPORT = "cuda-vmm"


class CudaVmmArena:
    """The daemon's side: one allocation, data first, the probe page last."""

    def __init__(self, data_bytes: int) -> None:
        """Reserve room for `data_bytes` of tensors.

        Raises:
            InvalidInput: no GPU, or no bindings.
            ArenaError: no memory, or this host does not share it.
        """
        self._device = current_device()
        self.probe_offset, self.nbytes = laid_out(data_bytes, _granularity(self._device))
        with ExitStack() as acquired:
            self._handle = _allocated(self._device, self.nbytes, acquired)
            self.fd = _exported(self._handle, acquired)
            self._memory = _mapped(self._device, self._handle, self.nbytes, acquired, writable=True)
            self._memory.poke(self.probe_offset, bytes(PROBE_BYTES) + os.urandom(IDENTITY_BYTES))
            self.allocation = allocation_id(TRANSPORT, self._memory, self.probe_offset)
            self._acquired = acquired.pop_all()

    def write(self, offset: int, data: torch.Tensor) -> None:
        """Copy uint8 [n] to `offset`; only before `freeze`."""
        self._memory.tensor(offset, data.numel()).copy_(data)

    def freeze(self) -> None:
        """No store is possible from here on; raises ArenaError."""
        self._device.synchronise()
        _set_access(self._memory, writable=False)

    def read(self, offset: int, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes] over the arena's memory itself."""
        return self._memory.tensor(offset, nbytes)

    def write_probe(self, nonce: bytes) -> None:
        """Put PROBE_BYTES on the probe page, where attached engines see them at once; raises ArenaError."""
        with ExitStack() as acquired:
            self._device.make_current()
            memory = _mapped(self._device, self._handle, self.nbytes, acquired, writable=True)
            memory.poke(self.probe_offset, nonce)

    def close(self) -> None:
        """Unmap and close; the memory lives on while an engine maps it."""
        self._acquired.close()


class CudaVmmAttachment(CudaAttachment):
    """The engine's side: the daemon's allocation, mapped read-only."""

    def __init__(self, fd: int, nbytes: int, probe_offset: int) -> None:
        """Take over `fd`. Raises ArenaError: not memory of a GPU, or not of the manifest's size."""
        try:
            _require_driver_descriptor(fd)
            device = current_device()
            require_layout(nbytes, probe_offset, _granularity(device))
            with ExitStack() as acquired:
                handle = _imported(fd)
                with ExitStack() as imported:
                    # The mapping keeps the memory; the handle is needed for making it only.
                    imported.callback(_release, handle)
                    memory = _mapped(device, handle, nbytes, acquired, writable=False)
                kept = acquired.pop_all()
        finally:
            os.close(fd)
        super().__init__(TRANSPORT, memory, probe_offset, kept)


def _granularity(device: Device) -> int:
    """Bytes of the pieces that the device maps in (2 MiB on an H200); raises ArenaError."""
    driver = bindings()
    smallest = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    found = driver.cuMemGetAllocationGranularity(_properties(device), smallest)
    return int(check(found, "cuMemGetAllocationGranularity"))


def _mapped(device: Device, handle: Any, nbytes: int, acquired: ExitStack, *, writable: bool) -> DeviceMemory:
    """Map all of an allocation at an address of its own, until `acquired` is closed; raises ArenaError."""
    driver = bindings()
    reserved = driver.cuMemAddressReserve(nbytes, 0, 0, 0)
    address = int(check(reserved, f"cuMemAddressReserve of {nbytes} bytes"))
    acquired.callback(_free_addresses, address, nbytes)
    # An INVALID_VALUE here is an allocation that is smaller than the manifest says.
    check(driver.cuMemMap(address, nbytes, 0, handle, 0), f"cuMemMap of {nbytes} bytes")
    acquired.callback(_unmap, device, address, nbytes)
    memory = DeviceMemory(device=device, address=address, nbytes=nbytes)
    _set_access(memory, writable=writable)
    return memory


def _properties(device: Device) -> Any:
    driver = bindings()
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.requestedHandleTypes = _handle_type()
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device.ordinal
    return properties


def _handle_type() -> Any:
    return bindings().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _allocated(device: Device, nbytes: int, acquired: ExitStack) -> Any:
    created = bindings().cuMemCreate(nbytes, _properties(device), 0)
    handle = check(created, f"cuMemCreate of {nbytes} bytes on {device.uuid}")
    acquired.callback(_release, handle)
    return handle


def _exported(handle: Any, acquired: ExitStack) -> int:
    exported = bindings().cuMemExportToShareableHandle(handle, _handle_type(), 0)
    fd = int(check(exported, "cuMemExportToShareableHandle"))
    acquired.callback(os.close, fd)
    # Python's own descriptors are not inherited; the driver's would be.
    os.set_inheritable(fd, False)
    return fd


def _imported(fd: int) -> Any:
    imported = bindings().cuMemImportFromShareableHandle(fd, _handle_type())
    return check(imported, "cuMemImportFromShareableHandle")


def _set_access(memory: DeviceMemory, *, writable: bool) -> None:
    driver = bindings()
    flags = driver.CUmemAccess_flags
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = memory.device.ordinal
    access.flags = (
        flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writable else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
    )
    done = driver.cuMemSetAccess(memory.address, memory.nbytes, [access], 1)
    check(done, f"cuMemSetAccess ({'read and write' if writable else 'read-only'})")


def _unmap(device: Device, address: int, nbytes: int) -> None:
    try:
        device.synchronise()
    finally:
        check(bindings().cuMemUnmap(address, nbytes), "cuMemUnmap")


def _free_addresses(address: int, nbytes: int) -> None:
    check(bindings().cuMemAddressFree(address, nbytes), "cuMemAddressFree")


def _release(handle: Any) -> None:
    check(bindings().cuMemRelease(handle), "cuMemRelease")


def _require_driver_descriptor(fd: int) -> None:
    # The driver's is a device node or anonymous; what anybody can make with bytes of their own is neither.
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind not in (0, stat.S_IFCHR):
        raise ArenaError(
            "arena descriptor",
            expected="GPU memory, as the CUDA driver exports it",
            found=f"a file of another kind ({stat.filemode(kind)[0]})",
            remedy="Restart the daemon; do not attach to this one.",
        )
