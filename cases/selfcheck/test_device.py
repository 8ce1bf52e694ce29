"""GPUs as NVML lists them, and CUDA_VISIBLE_DEVICES as CUDA reads it, without either."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadproof.harness import device
from loadproof.harness.device import Gpu, describe_gpu, list_gpus, visible_devices
from loadproof.harness.errors import InvalidInput

GIB = 2**30
SHARED: dict[str, Any] = {"compute_capability": (9, 0), "driver": "580.159.03", "cuda": "13.0"}


def gpu(uuid: str, name: str = "NVIDIA H200", gib: int = 139, **more: Any) -> Gpu:
    return Gpu(uuid=uuid, name=name, memory_bytes=gib * GIB, **SHARED, **more)


FIRST, SECOND, THIRD = gpu("GPU-1a2b-00"), gpu("GPU-1a2c-00"), gpu("GPU-3f00-00")
LEFT, RIGHT = gpu("MIG-77aa-00", gib=16), gpu("MIG-77bb-00", gib=16)
SPLIT = gpu("GPU-5500-00", mig=True, slices=(LEFT, RIGHT))
OTHER = gpu("GPU-9900-00", name="NVIDIA L4", gib=24)
ALIKE = [FIRST, SECOND, THIRD]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ALIKE),
        ("", []),
        ("  ", []),
        ("-1", []),
        ("1", [SECOND]),
        (" 1 ", [SECOND]),
        ("2,0", [THIRD, FIRST]),
        ("2, 0", [THIRD, FIRST]),
        ("0,2,-1,1", [FIRST, THIRD]),
        ("GPU-1a2c-00", [SECOND]),
        ("GPU-1a2c", [SECOND]),
        ("GPU-3", [THIRD]),
        ("GPU-3,0", [THIRD, FIRST]),
    ],
)
def test_devices_are_those_that_cuda_shows(text: str | None, expected: list[Gpu]) -> None:
    assert visible_devices(text, ALIKE) == expected


@pytest.mark.parametrize(
    ("text", "entry", "found"),
    [
        ("0,0", "'0'", "GPU-1a2b-00 again"),
        ("0,GPU-1a2b", "'GPU-1a2b'", "GPU-1a2b-00 again"),
        ("3", "'3'", "an index below 3"),
        ("0,7,1", "'7'", "an index below 3"),
        ("0,,1", "''", "an index, GPU-<uuid> or MIG-<uuid>"),
        ("0,", "''", "an index, GPU-<uuid> or MIG-<uuid>"),
        ("-2", "'-2'", "an index, GPU-<uuid> or MIG-<uuid>"),
        ("1.0", "'1.0'", "an index, GPU-<uuid> or MIG-<uuid>"),
        ("cuda:0", "'cuda:0'", "an index, GPU-<uuid> or MIG-<uuid>"),
        ("٣", "'٣'", "an index, GPU-<uuid> or MIG-<uuid>"),
        ("1a2b", "'1a2b'", "an index, GPU-<uuid> or MIG-<uuid>"),
        ("GPU-", "'GPU-'", "an index, GPU-<uuid> or MIG-<uuid>"),
        ("GPU-1a2", "'GPU-1a2'", "2 such devices"),
        ("GPU-dead", "'GPU-dead'", "0 such devices"),
        ("MIG-77aa-00", "'MIG-77aa-00'", "0 such devices"),
    ],
)
def test_entry_that_cuda_would_stop_at_is_named(text: str, entry: str, found: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        visible_devices(text, ALIKE)
    assert refused.value.where == f"entry {entry} of CUDA_VISIBLE_DEVICES"
    assert found in str(refused.value)


def test_no_gpu_shows_none_and_an_index_is_an_error() -> None:
    assert visible_devices(None, []) == []
    with pytest.raises(InvalidInput, match="entry '0'"):
        visible_devices("0", [])


@pytest.mark.parametrize("text", ["MIG-77aa-00", " MIG-77a "])
def test_a_slice_is_itself_and_has_its_own_memory(text: str) -> None:
    (device,) = visible_devices(text, [SPLIT])
    assert device == LEFT
    assert device.memory_bytes == 16 * GIB


@pytest.mark.parametrize("text", [None, "1", "GPU-5500-00"])
def test_a_split_gpu_is_not_a_device(text: str | None) -> None:
    with pytest.raises(InvalidInput, match="MIG-77aa-00, MIG-77bb-00"):
        visible_devices(text, [FIRST, SPLIT])


@pytest.mark.parametrize("text", ["MIG-77aa,MIG-77bb", "0,MIG-77bb"])
def test_a_slice_is_seen_alone(text: str) -> None:
    with pytest.raises(InvalidInput, match="a MIG slice alone"):
        visible_devices(text, [FIRST, SPLIT])


@pytest.mark.parametrize("text", [None, "0", "1"])
def test_an_index_among_unlike_gpus_wants_the_order_of_the_bus(text: str | None) -> None:
    with pytest.raises(InvalidInput, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        visible_devices(text, [FIRST, OTHER])
    everything = visible_devices(text, [FIRST, OTHER], "PCI_BUS_ID")
    assert everything == ([FIRST, OTHER] if text is None else [[FIRST, OTHER][int(text)]])
    assert visible_devices("GPU-9900", [FIRST, OTHER]) == [OTHER]


class NvmlError(Exception):
    pass


class LibraryNotFound(NvmlError):
    pass


class DriverNotLoaded(NvmlError):
    pass


class NotSupported(NvmlError):
    pass


class NotFound(NvmlError):
    pass


def fake_nvml(gpus: list[Gpu], failure: Exception | None = None) -> SimpleNamespace:
    """NVML with these GPUs; a handle is the Gpu itself, and a slice's index has gaps."""

    def start() -> None:
        if failure:
            raise failure

    def mig_mode(handle: Gpu) -> tuple[int, int]:
        if handle.name == OTHER.name:
            raise NotSupported
        return int(handle.mig), int(handle.mig)

    def slice_at(handle: Gpu, index: int) -> Gpu:
        if index % 2 == 0:
            raise NotFound
        return handle.slices[index // 2]

    return SimpleNamespace(
        NVMLError=NvmlError,
        NVMLError_LibraryNotFound=LibraryNotFound,
        NVMLError_DriverNotLoaded=DriverNotLoaded,
        NVMLError_NotSupported=NotSupported,
        NVMLError_NotFound=NotFound,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlInit=start,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=lambda index: gpus[index],
        nvmlDeviceGetName=lambda handle: handle.name,
        nvmlDeviceGetUUID=lambda handle: handle.uuid,
        nvmlDeviceGetCudaComputeCapability=lambda handle: handle.compute_capability,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=handle.memory_bytes),
        nvmlSystemGetDriverVersion=lambda: "580.159.03",
        nvmlSystemGetCudaDriverVersion_v2=lambda: 13000,
        nvmlDeviceGetMigMode=mig_mode,
        nvmlDeviceGetMaxMigDeviceCount=lambda handle: 2 * len(handle.slices),
        nvmlDeviceGetMigDeviceHandleByIndex=slice_at,
    )


def test_gpus_and_slices_are_listed_as_nvml_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([FIRST, SPLIT, OTHER]))
    assert list_gpus() == [FIRST, SPLIT, OTHER]


@pytest.mark.parametrize("failure", [LibraryNotFound(), DriverNotLoaded()], ids=["library", "driver"])
def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([FIRST], failure))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert list_gpus() == []
    assert describe_gpu() is None


def test_a_driver_that_fails_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "pynvml", fake_nvml([FIRST], NvmlError("Driver/library version mismatch"))
    )
    with pytest.raises(InvalidInput, match="version mismatch"):
        list_gpus()


def test_evidence_describes_the_first_visible_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([FIRST, OTHER]))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert describe_gpu() == {
        "name": "NVIDIA L4",
        "uuid": "GPU-9900-00",
        "architecture": "sm_90",
        "driver": "580.159.03",
        "cuda": "13.0",
    }
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert describe_gpu() is None


def test_importing_asks_nothing_of_nvml() -> None:
    assert "pynvml" not in vars(device)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (None, [FIRST, SECOND, THIRD, FIRST]),
        ("2,0", [THIRD, FIRST, THIRD, FIRST]),
        ("GPU-1a2c", [SECOND, SECOND, SECOND, SECOND]),
    ],
)
def test_workers_take_the_callers_devices_in_turn(
    monkeypatch: pytest.MonkeyPatch, given: str | None, taken: list[Gpu]
) -> None:
    monkeypatch.setattr(device, "list_gpus", lambda: ALIKE)
    for worker, expected in enumerate(taken):
        # Set first, so that what the test itself sets goes with it.
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given or "")
        if given is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        device.take_device(worker)
        assert device.visible_here() == [expected]
        assert os.environ["CUDA_VISIBLE_DEVICES"] == expected.uuid


CONFTEST = """
import sys
from loadproof.fixtures import options
from loadproof.harness import device

device.list_gpus = lambda: [device.Gpu(f"GPU-{n}", "NVIDIA H200", (9, 0), "580", "13.0", 1) for n in range(3)]
options.version = lambda name: "2.13.0+cu130"
"""
TEST = """
import os
import pytest
import sys

@pytest.mark.parametrize("number", range(8))
def test_device(worker_id, number):
    assert "torch" not in sys.modules
    assert os.environ["CUDA_VISIBLE_DEVICES"] == {"gw0": "GPU-2", "gw1": "GPU-0"}[worker_id]
"""


@pytest.mark.parametrize("count", ["2", "auto"])
def test_worker_takes_its_device_before_torch_is_imported(tmp_path: Path, count: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_worker.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-n", count, "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--loadproof-device", "cuda"],
        cwd=tmp_path,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "2,0"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "created: 2/2 workers" in done.stdout
    assert "8 passed" in done.stdout, done.stdout + done.stderr
