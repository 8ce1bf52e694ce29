"""The CUDA driver API as far as the arenas use it: typed errors, and the context that torch uses.

Importing this module imports and initialises nothing of CUDA.
"""

import functools
import uuid
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import ArenaError, InvalidInput

_ISOLATION = (
    "Give daemon and engine the same GPU and user; in containers, also one IPC and PID namespace "
    "(docker run --ipc=host --pid=host). Some vGPU and WSL hosts share no GPU memory at all."
)
_REMEDIES = {
    "CUDA_ERROR_OUT_OF_MEMORY": "Free GPU memory, that of other processes too, or hold fewer layers.",
    "CUDA_ERROR_NOT_PERMITTED": _ISOLATION,
    "CUDA_ERROR_NOT_SUPPORTED": _ISOLATION,
    "CUDA_ERROR_OPERATING_SYSTEM": _ISOLATION,
    "CUDA_ERROR_ILLEGAL_ADDRESS": "Start a new process: a store into read-only memory ended this one's CUDA.",
}
_OTHERWISE = "Restart the daemon; if that does not help, look at nvidia-smi and at the kernel's log."


def bindings() -> Any:
    """The module `cuda.bindings.driver`; raises InvalidInput where it is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise InvalidInput(
            "cuda.bindings",
            expected="NVIDIA's Python bindings, which the CUDA transports need",
            found=str(error),
            remedy="pip install 'loadproof[cuda]', or pass a memfd transport.",
        ) from error
    return driver


def check(result: tuple[Any, ...], what: str) -> Any:
    """What a driver call returned beside its status: one value, or a tuple of another number of them.

    Args:
        result: as `cuda.bindings` returns it, the status first.
        what: the call, with the bytes that it needs, for the message.

    Raises:
        ArenaError: names CUDA's error and what to do.
    """
    status, *values = result
    if status != bindings().CUresult.CUDA_SUCCESS:
        raise _refused(status, what)
    return values[0] if len(values) == 1 else tuple(values)


def _refused(status: Any, what: str) -> ArenaError:
    _, text = bindings().cuGetErrorString(status)
    found = f"{status.name} ({text.decode() if text else 'no description'})"
    if status.name == "CUDA_ERROR_OUT_OF_MEMORY":
        found += f", with {_free_memory()}"
    return ArenaError(
        "GPU memory",
        expected=f"{what} to succeed",
        found=found,
        remedy=_REMEDIES.get(status.name, _OTHERWISE),
    )


def _free_memory() -> str:
    status, free, total = bindings().cuMemGetInfo()
    if status != bindings().CUresult.CUDA_SUCCESS:
        return "an unknown number of bytes free"
    return f"{int(free)} of {int(total)} bytes free"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU as both torch and the driver know it."""

    ordinal: int
    uuid: str
    """As nvidia-smi writes it: `GPU-…`."""
    context: Any
    """The primary context, which is torch's as well."""

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cuda", self.ordinal)

    def make_current(self) -> None:
        """Let this thread's driver calls go to the device; raises ArenaError."""
        check(bindings().cuCtxSetCurrent(self.context), "cuCtxSetCurrent")

    def synchronise(self) -> None:
        """Wait for all that was started on the device; raises ArenaError, also for what failed earlier."""
        self.make_current()
        check(bindings().cuCtxSynchronize(), "cuCtxSynchronize")


def current_device() -> Device:
    """The device that torch uses in this thread, made current for the driver too.

    Raises:
        InvalidInput: torch sees no GPU, or the bindings are not installed.
        ArenaError: the driver refuses.
    """
    if not torch.cuda.is_available():
        raise InvalidInput(
            "CUDA",
            expected="a GPU that torch can use",
            found=f"none (torch {torch.__version__})",
            remedy="Pass a memfd transport, or run where torch.cuda.is_available().",
        )
    device = _device(torch.cuda.current_device())
    device.make_current()
    return device


@functools.cache
def _device(ordinal: int) -> Device:
    # The primary context is retained for the life of the process, as torch does.
    driver = bindings()
    check(driver.cuInit(0), "cuInit")
    handle = check(driver.cuDeviceGet(ordinal), f"cuDeviceGet({ordinal})")
    found = check(driver.cuDeviceGetUuid(handle), f"cuDeviceGetUuid({ordinal})")
    context = check(driver.cuDevicePrimaryCtxRetain(handle), f"cuDevicePrimaryCtxRetain({ordinal})")
    return Device(ordinal=ordinal, uuid=f"GPU-{uuid.UUID(bytes=bytes(found.bytes))}", context=context)


def address_range(address: int) -> tuple[int, int]:
    """Start and bytes of the allocation or mapping around a device address; raises ArenaError."""
    base, nbytes = check(bindings().cuMemGetAddressRange(address), f"cuMemGetAddressRange({address:#x})")
    return int(base), int(nbytes)
