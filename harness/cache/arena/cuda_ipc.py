"""`cuda-ipc`: device memory behind a legacy IPC handle, as inference engines share weights.

An engine's mapping is writable; there, digests carry the proof. The 64 bytes of the handle travel as a small
sealed memfd, so that on the wire every transport is one descriptor.
"""

import fcntl
import os
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

TRANSPORT = "cuda-ipc"
HANDLE_BYTES = 64
GRANULE = 2 << 20
"""Smaller allocations share a block of this size, and a handle shares the block with all that is in it."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL

_exported_here: set[bytes] = set()


class CudaIpcArena:
    """The daemon's side: one allocation, data first, the probe page last."""

    def __init__(self, data_bytes: int) -> None:
        """Reserve room for `data_bytes` of tensors.

        Raises:
            InvalidInput: no GPU, or no bindings.
            ArenaError: no memory, or this host does not share it.
        """
        self._device = current_device()
        self.probe_offset, self.nbytes = laid_out(data_bytes, GRANULE)
        with ExitStack() as acquired:
            self._memory = _allocated(self._device, self.nbytes, acquired)
            handle = check(bindings().cuIpcGetMemHandle(self._memory.address), "cuIpcGetMemHandle")
            self.fd = handle_file(bytes(handle.reserved))
            acquired.callback(os.close, self.fd)
            _exported_here.add(bytes(handle.reserved))
            acquired.callback(_exported_here.discard, bytes(handle.reserved))
            self._memory.poke(self.probe_offset, bytes(PROBE_BYTES) + os.urandom(IDENTITY_BYTES))
            self.allocation = allocation_id(TRANSPORT, self._memory, self.probe_offset)
            self._acquired = acquired.pop_all()

    def write(self, offset: int, data: torch.Tensor) -> None:
        """Copy uint8 [n] to `offset`; only before `freeze`."""
        self._memory.tensor(offset, data.numel()).copy_(data)

    def freeze(self) -> None:
        """Everything written is there for engines; this memory cannot be protected. Raises ArenaError."""
        self._device.synchronise()

    def read(self, offset: int, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes] over the arena's memory itself."""
        return self._memory.tensor(offset, nbytes)

    def write_probe(self, nonce: bytes) -> None:
        """Put PROBE_BYTES on the probe page, where attached engines see them at once; raises ArenaError."""
        self._memory.poke(self.probe_offset, nonce)

    def close(self) -> None:
        """Free and close; the memory lives on while an engine maps it."""
        self._acquired.close()


class CudaIpcAttachment(CudaAttachment):
    """The engine's side: the daemon's allocation, mapped writable."""

    def __init__(self, fd: int, nbytes: int, probe_offset: int) -> None:
        """Take over `fd`. Raises ArenaError: no handle, this process's own, or not the manifest's size."""
        try:
            handle = _handle_in(fd)
        finally:
            os.close(fd)
        require_layout(nbytes, probe_offset, GRANULE)
        device = current_device()
        with ExitStack() as acquired:
            memory = _opened(device, handle, nbytes, acquired)
            kept = acquired.pop_all()
        super().__init__(TRANSPORT, memory, probe_offset, kept)


def handle_file(handle: bytes) -> int:
    """A sealed memfd that holds the handle and nothing else."""
    fd = os.memfd_create("loadproof-ipc-handle", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.pwrite(fd, handle, 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _handle_in(fd: int) -> bytes:
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    size = os.fstat(fd).st_size
    if seals & SEALS != SEALS or size != HANDLE_BYTES:
        raise ArenaError(
            "arena descriptor",
            expected=f"a memfd of {HANDLE_BYTES} bytes with seals {SEALS:#x}",
            found=f"{size} bytes with seals {seals:#x}",
            remedy="Restart the daemon; do not attach to this one.",
        )
    handle = os.pread(fd, HANDLE_BYTES, 0)
    if handle in _exported_here:
        raise ArenaError(
            "IPC handle",
            expected="the handle of another process",
            found="one that this process exported, which CUDA does not open again here",
            remedy="Attach from another process than the daemon's, or use cuda-vmm.",
        )
    return handle


def _allocated(device: Device, nbytes: int, acquired: ExitStack) -> DeviceMemory:
    allocated = bindings().cuMemAlloc(nbytes)
    address = int(check(allocated, f"cuMemAlloc of {nbytes} bytes on {device.uuid}"))
    acquired.callback(_let_go, device, bindings().cuMemFree, address, "cuMemFree")
    return DeviceMemory(device=device, address=address, nbytes=nbytes)


def _opened(device: Device, handle: bytes, nbytes: int, acquired: ExitStack) -> DeviceMemory:
    driver = bindings()
    described = driver.CUipcMemHandle()
    described.reserved = handle
    flags = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    opened = driver.cuIpcOpenMemHandle(described, int(flags))
    address = int(check(opened, f"cuIpcOpenMemHandle of {nbytes} bytes"))
    acquired.callback(_let_go, device, driver.cuIpcCloseMemHandle, address, "cuIpcCloseMemHandle")
    return DeviceMemory(device=device, address=address, nbytes=nbytes)


def _let_go(device: Device, release: Any, address: int, what: str) -> None:
    try:
        device.synchronise()
    finally:
        check(release(address), what)
