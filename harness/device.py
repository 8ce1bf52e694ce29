"""Which GPUs this process would see, without touching CUDA: NVML and CUDA_VISIBLE_DEVICES.

A process that has initialised CUDA cannot fork engines, so the harness asks NVML. Identity is the UUID: an
index says which of the *visible* devices is meant, and another process may see others.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .errors import InvalidInput

_DEVICES, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a MIG slice of one."""

    uuid: str
    """`GPU-<uuid>`, of a slice `MIG-<uuid>`."""
    name: str
    compute_capability: tuple[int, int]
    driver: str
    """Version of the driver, such as 580.159.03."""
    cuda: str
    """The newest CUDA release that the driver runs, such as 13.0."""
    memory_bytes: int
    """Of a slice: the slice's own."""
    mig: bool = False
    """Split by MIG: CUDA can use its slices only."""
    slices: tuple["Gpu", ...] = ()

    @property
    def architecture(self) -> str:
        """As nvcc names it: sm_90."""
        return "sm_{}{}".format(*self.compute_capability)


def list_gpus() -> list[Gpu]:
    """All GPUs of this host in NVML's order, that of the PCI bus; empty without a GPU or a driver.

    Raises:
        InvalidInput: there is a driver, but NVML fails.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return []
    except pynvml.NVMLError as error:
        raise _nvml_failed(error) from error
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [_whole(pynvml, handle) for handle in handles]
    except pynvml.NVMLError as error:
        raise _nvml_failed(error) from error
    finally:
        pynvml.nvmlShutdown()


def visible_devices(text: str | None, gpus: Sequence[Gpu], order: str | None = None) -> list[Gpu]:
    """The devices that CUDA would show for a value of CUDA_VISIBLE_DEVICES, in its order.

    Entries are indices into `gpus`, `GPU-<uuid>` or `MIG-<uuid>`, or a prefix of a UUID that only one device
    has. None: all; an empty text: none; `-1` ends the list. CUDA stops without a word at the first entry that
    it does not know; here that is an error, since the device would silently be another or none.

    Args:
        text: the variable's value; None where it is not set.
        gpus: in the order of the PCI bus, as `list_gpus` gives them.
        order: the value of CUDA_DEVICE_ORDER. Unless it is PCI_BUS_ID, CUDA counts the fastest GPU first,
            which is the same where all GPUs are alike.

    Raises:
        InvalidInput: an entry is unknown, ambiguous or there twice; an index may be another GPU to CUDA than
            to NVML; a GPU is split by MIG; a slice is not alone, since CUDA shows one slice at most.
    """
    if text is None:
        return [_by_index(str(index), gpus, order) for index in range(len(gpus))]
    found: list[Gpu] = []
    for raw in text.split(",") if text.strip() else []:
        entry = raw.strip()
        if entry == "-1":
            break
        device = _device(entry, gpus, order)
        if device in found:
            raise _refused(entry, "each device once", f"{device.uuid} again, in {text!r}")
        found.append(device)
    for device in found:
        if device.uuid.startswith("MIG-") and len(found) > 1:
            raise _refused(device.uuid, "a MIG slice alone", f"{len(found)} devices in {text!r}")
    return found


def take_device(worker: int) -> None:
    """Let this process see one device: the caller's `worker`-th, from the first again where there are fewer.

    Before CUDA starts, since it reads CUDA_VISIBLE_DEVICES once. By UUID, which is no other device to anyone.

    Raises:
        InvalidInput: as `list_gpus` and `visible_devices`.
    """
    visible = visible_here()
    os.environ[_DEVICES] = visible[worker % len(visible)].uuid


def visible_here() -> list[Gpu]:
    """The devices that this process would see; raises InvalidInput, as `list_gpus` and `visible_devices`."""
    return visible_devices(os.environ.get(_DEVICES), list_gpus(), os.environ.get(_ORDER))


def describe_gpu() -> dict[str, str] | None:
    """The first device that this process would see, for the evidence; None where it would see none.

    Returns:
        `name`, `uuid`, `architecture` (sm_90), `driver` and `cuda`, the newest release that the driver runs.

    Raises:
        InvalidInput: as `list_gpus` and `visible_devices`.
    """
    visible = visible_here()
    if not visible:
        return None
    gpu = visible[0]
    return {
        "name": gpu.name,
        "uuid": gpu.uuid,
        "architecture": gpu.architecture,
        "driver": gpu.driver,
        "cuda": gpu.cuda,
    }


def _device(entry: str, gpus: Sequence[Gpu], order: str | None) -> Gpu:
    if re.fullmatch(r"[0-9]+", entry):
        return _by_index(entry, gpus, order)
    if not re.fullmatch(r"(GPU|MIG)-.+", entry):
        raise _refused(entry, "an index, GPU-<uuid> or MIG-<uuid>", repr(entry))
    devices = [device for gpu in gpus for device in (gpu, *gpu.slices)]
    matching = [device for device in devices if device.uuid.startswith(entry)]
    if len(matching) != 1:
        found = f"{len(matching)} such devices among {', '.join(d.uuid for d in devices) or 'none'}"
        raise _refused(entry, "the UUID of one device of this host, or its beginning", found)
    return _not_split(entry, matching[0])


def _by_index(entry: str, gpus: Sequence[Gpu], order: str | None) -> Gpu:
    if int(entry) >= len(gpus):
        raise _refused(entry, f"an index below {len(gpus)}, the number of GPUs", entry)
    kinds = {(gpu.name, gpu.memory_bytes) for gpu in gpus}
    if len(kinds) > 1 and order != "PCI_BUS_ID":
        found = f"GPUs of {len(kinds)} kinds, which CUDA sorts by speed"
        raise _refused(entry, f"{_ORDER}=PCI_BUS_ID, or UUIDs", found)
    return _not_split(entry, gpus[int(entry)])


def _not_split(entry: str, device: Gpu) -> Gpu:
    if device.mig:
        slices = ", ".join(part.uuid for part in device.slices) or "no slice"
        raise _refused(entry, "a slice of the GPU, which MIG has split", f"the whole GPU; it has {slices}")
    return device


def _refused(entry: str, expected: str, found: str) -> InvalidInput:
    return InvalidInput(
        f"entry {entry!r} of {_DEVICES}",
        expected=expected,
        found=found,
        remedy=f"Set {_DEVICES} to indices or UUIDs that `nvidia-smi -L` lists.",
    )


def _nvml_failed(error: Exception) -> InvalidInput:
    return InvalidInput(
        "GPUs of this host",
        expected="NVML to answer, since there is a driver",
        found=error,
        remedy="See what nvidia-smi says; after an update of the driver the host wants a restart.",
    )


def _whole(nvml: ModuleType, handle: Any) -> Gpu:
    name = nvml.nvmlDeviceGetName(handle)
    version = nvml.nvmlSystemGetCudaDriverVersion_v2()
    shared = {
        "compute_capability": tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "cuda": f"{version // 1000}.{version % 1000 // 10}",
    }
    mig = _is_split(nvml, handle)
    slices = tuple(
        Gpu(
            uuid=nvml.nvmlDeviceGetUUID(part),
            name=nvml.nvmlDeviceGetName(part),
            memory_bytes=nvml.nvmlDeviceGetMemoryInfo(part).total,
            **shared,
        )
        for part in (_slices(nvml, handle) if mig else [])
    )
    return Gpu(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=name,
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        mig=mig,
        slices=slices,
        **shared,
    )


def _is_split(nvml: ModuleType, handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError_NotSupported:
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _slices(nvml: ModuleType, handle: Any) -> list[Any]:
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except nvml.NVMLError_NotFound:
            continue
    return found
