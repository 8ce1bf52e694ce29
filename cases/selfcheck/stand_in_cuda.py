"""A stand-in for `cuda.bindings.driver`: GPU memory is shared CPU memory, at real addresses.

Mappings alias, access rights are the kernel's, every thread needs its context, and any call can be made to
fail. What is held at the end can be counted.
"""

import ctypes
import enum
import mmap
import os
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from loadproof.harness.cache.arena import cuda_driver, cuda_ipc, cuda_memory

GRANULE = 2 << 20
UUID = bytes(range(16))
CONTEXT = object()

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FIXED = 0x10
_NOTHING = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_RELEASES = ("cuMemUnmap", "cuMemAddressFree", "cuMemRelease", "cuMemFree", "cuIpcCloseMemHandle")


class Status(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_NOT_PERMITTED = 800
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_UNKNOWN = 999


OK = Status.CUDA_SUCCESS


class Access(enum.IntEnum):
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3


class _Located(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(location=SimpleNamespace())


class StandInDriver(ModuleType):
    """The driver functions that the arenas use; each returns the status first."""

    CUresult = Status
    CUmemAccess_flags = Access
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM=0)
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAllocationHandleType = SimpleNamespace(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR=1)
    CUipcMem_flags = SimpleNamespace(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS=1)
    CUipcMemHandle = SimpleNamespace
    CUmemAllocationProp = _Located
    CUmemAccessDesc = _Located

    def __init__(self) -> None:
        super().__init__("cuda.bindings.driver")
        self.calls: list[str] = []
        self.failing: tuple[int, Status] | None = None
        """The position in `calls` of the call that fails, and how."""
        self.memory: dict[int, int] = {}
        """memfd of each allocation by its number; it stays while a handle or a mapping does."""
        self.handles: list[int] = []
        self.reserved: dict[int, int] = {}
        self.mapped: dict[int, tuple[int, int, bool]] = {}
        """Address to bytes, allocation and writable."""
        self.opened: list[int] = []
        self._thread = threading.local()

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if not name.startswith("cu") or name in ("cuGetErrorString", "cuMemGetInfo"):
            return value

        def call(*arguments: Any) -> tuple[Any, ...]:
            position = len(self.calls)
            self.calls.append(name)
            if self.failing and self.failing[0] == position:
                if name in _RELEASES:
                    value(*arguments)
                return (self.failing[1], None, None)
            result: tuple[Any, ...] = value(*arguments)
            return result

        return call

    def held(self) -> tuple[object, ...]:
        """All that is not released; equal before and after where nothing leaks."""
        lists = (self.handles, self.reserved, self.mapped, self.opened, self.memory)
        return (*(sorted(each) for each in lists), len(os.listdir("/proc/self/fd")))

    # --- device and context -----------------------------------------------------------------------

    def cuGetErrorString(self, status: Status) -> tuple[Any, ...]:
        return OK, b"what the driver says"

    def cuMemGetInfo(self) -> tuple[Any, ...]:
        return OK, 1234, 5678

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (OK,)

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return OK, ordinal

    def cuDeviceGetUuid(self, device: int) -> tuple[Any, ...]:
        return OK, SimpleNamespace(bytes=UUID)

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        return OK, CONTEXT

    def cuCtxSetCurrent(self, context: object) -> tuple[Any, ...]:
        self._thread.context = context
        return (OK,)

    def cuCtxSynchronize(self) -> tuple[Any, ...]:
        return (self._context(),)

    def _context(self) -> Status:
        current = getattr(self._thread, "context", None)
        return OK if current is CONTEXT else Status.CUDA_ERROR_INVALID_CONTEXT

    # --- memory with a descriptor -----------------------------------------------------------------

    def cuMemGetAllocationGranularity(self, properties: Any, option: int) -> tuple[Any, ...]:
        assert vars(properties.location) == {"type": 1, "id": 0}
        assert (properties.type, properties.requestedHandleTypes) == (1, 1)
        return OK, GRANULE

    def cuMemCreate(self, nbytes: int, properties: Any, flags: int) -> tuple[Any, ...]:
        if nbytes % GRANULE:
            return Status.CUDA_ERROR_INVALID_VALUE, None
        return OK, self._hold(self._memory_of(nbytes))

    def cuMemExportToShareableHandle(self, handle: int, kind: int, flags: int) -> tuple[Any, ...]:
        return OK, os.eventfd(handle)

    def cuMemImportFromShareableHandle(self, fd: int, kind: int) -> tuple[Any, ...]:
        number = os.eventfd_read(fd)
        os.eventfd_write(fd, number)
        return OK, self._hold(number)

    def cuMemAddressReserve(self, nbytes: int, alignment: int, at: int, flags: int) -> tuple[Any, ...]:
        return OK, self._reserve(nbytes)

    def cuMemMap(self, address: int, nbytes: int, offset: int, handle: int, flags: int) -> tuple[Any, ...]:
        if self.reserved.get(address) != nbytes or nbytes > os.fstat(self.memory[handle]).st_size:
            return (Status.CUDA_ERROR_INVALID_VALUE,)
        self._map(address, nbytes, handle, protection=0)
        return (OK,)

    def cuMemSetAccess(self, address: int, nbytes: int, access: list[Any], count: int) -> tuple[Any, ...]:
        if self._context() or self.mapped.get(address, (0,))[0] != nbytes:
            return (Status.CUDA_ERROR_INVALID_VALUE,)
        writable = access[0].flags == Access.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map(address, nbytes, self.mapped[address][1], protection)
        return (OK,)

    def cuMemUnmap(self, address: int, nbytes: int) -> tuple[Any, ...]:
        del self.mapped[address]
        _libc.mmap(address, nbytes, 0, _NOTHING | _MAP_FIXED, -1, 0)
        self._forget()
        return (OK,)

    def cuMemAddressFree(self, address: int, nbytes: int) -> tuple[Any, ...]:
        assert address not in self.mapped
        assert self.reserved.pop(address) == nbytes
        _libc.munmap(address, nbytes)
        return (OK,)

    def cuMemRelease(self, handle: int) -> tuple[Any, ...]:
        self.handles.remove(handle)
        self._forget()
        return (OK,)

    # --- memory with a legacy handle --------------------------------------------------------------

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, ...]:
        return OK, self._whole(self._memory_of(nbytes))

    def cuIpcGetMemHandle(self, address: int) -> tuple[Any, ...]:
        number = self.mapped[address][1]
        return OK, SimpleNamespace(reserved=number.to_bytes(64, "little"))

    def cuIpcOpenMemHandle(self, handle: Any, flags: int) -> tuple[Any, ...]:
        address = self._whole(int.from_bytes(handle.reserved, "little"))
        self.opened.append(address)
        return OK, address

    def cuIpcCloseMemHandle(self, address: int) -> tuple[Any, ...]:
        self.opened.remove(address)
        return self._free(address)

    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        return self._free(address)

    # --- any address ------------------------------------------------------------------------------

    def cuMemGetAddressRange(self, address: int) -> tuple[Any, ...]:
        base = self._base(address)
        if base is None:
            return Status.CUDA_ERROR_INVALID_VALUE, None, None
        return OK, base, self.mapped[base][0]

    def cuMemcpyDtoH(self, host: int, address: int, nbytes: int) -> tuple[Any, ...]:
        return self._copy(host, address, nbytes)

    def cuMemcpyHtoD(self, address: int, host: int, nbytes: int) -> tuple[Any, ...]:
        base = self._base(address)
        if base is None or not self.mapped[base][2]:
            return (Status.CUDA_ERROR_ILLEGAL_ADDRESS,)
        return self._copy(address, host, nbytes)

    def _copy(self, to: int, source: int, nbytes: int) -> tuple[Any, ...]:
        if self._context() is OK:
            ctypes.memmove(to, source, nbytes)
        return (self._context(),)

    def _base(self, address: int) -> int | None:
        for base, (nbytes, _, _) in self.mapped.items():
            if base <= address < base + nbytes:
                return base
        return None

    # --- the memory itself ------------------------------------------------------------------------

    def _reserve(self, nbytes: int) -> int:
        address = int(_libc.mmap(None, nbytes, 0, _NOTHING, -1, 0))
        self.reserved[address] = nbytes
        return address

    def _free(self, address: int) -> tuple[Any, ...]:
        nbytes = self.mapped.pop(address)[0]
        self.reserved.pop(address)
        _libc.munmap(address, nbytes)
        self._forget()
        return (OK,)

    def _memory_of(self, nbytes: int) -> int:
        fd = os.memfd_create("stand-in")
        os.ftruncate(fd, nbytes)
        number = max(self.memory, default=100) + 1
        self.memory[number] = fd
        return number

    def _hold(self, number: int) -> int:
        self.handles.append(number)
        return number

    def _whole(self, number: int) -> int:
        nbytes = os.fstat(self.memory[number]).st_size
        address = self._reserve(nbytes)
        self._map(address, nbytes, number, mmap.PROT_READ | mmap.PROT_WRITE)
        return address

    def _map(self, address: int, nbytes: int, number: int, protection: int) -> None:
        flags = mmap.MAP_SHARED | _MAP_FIXED
        assert _libc.mmap(address, nbytes, protection, flags, self.memory[number], 0) == address
        self.mapped[address] = (nbytes, number, bool(protection & mmap.PROT_WRITE))

    def _forget(self) -> None:
        used = {*self.handles, *(number for _, number, _ in self.mapped.values())}
        for number in set(self.memory) - used:
            os.close(self.memory.pop(number))


def tensor_over(address: int, nbytes: int, device: torch.device) -> torch.Tensor:
    """uint8 [nbytes] over the stand-in's memory; a store into a read-only mapping ends the process."""
    return torch.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), dtype=torch.uint8)


def install(monkeypatch: Any) -> StandInDriver:
    """Let the arenas, and the witness, meet this driver until the test ends."""
    driver = StandInDriver()
    package = ModuleType("cuda.bindings")
    package.driver = driver  # type: ignore[attr-defined]
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.bindings", package)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cuda_memory, "tensor_over", tensor_over)
    monkeypatch.setattr(cuda_ipc, "_exported_here", set())
    cuda_driver._device.cache_clear()
    return driver
