"""The CUDA arenas against a stand-in driver: layout, sharing, protection, and nothing left behind."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from loadproof.cases.selfcheck import stand_in_cuda
from loadproof.cases.selfcheck.stand_in_cuda import GRANULE, StandInDriver, Status
from loadproof.harness.cache.arena import (
    PROBE_BYTES,
    TRANSPORTS,
    Arena,
    create_arena,
    cuda_driver,
    cuda_ipc,
    cuda_memory,
    map_arena,
)
from loadproof.harness.cache.client import CacheClient
from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.daemon import DaemonJob, serving
from loadproof.harness.errors import ArenaError, InvalidInput
from loadproof.harness.fingerprint import fingerprint
from loadproof.harness.matrix import layer_spec
from loadproof.harness.spec import ProjectionKind, Scheme
from loadproof.harness.witness.cuda_memory import memory_identity

CUDA = ["cuda-vmm", "cuda-ipc"]
UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
DATA = torch.arange(100, dtype=torch.uint8)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInDriver]:
    yield stand_in_cuda.install(monkeypatch)
    cuda_driver._device.cache_clear()


@pytest.fixture(params=CUDA)
def transport(request: pytest.FixtureRequest, driver: StandInDriver) -> str:
    return str(request.param)


@pytest.fixture
def arena(transport: str) -> Iterator[Arena]:
    arena = create_arena(transport, 1000)
    arena.write(512, DATA)
    arena.freeze()
    yield arena
    arena.close()


def attach(transport: str, arena: Arena, **changed: int) -> Any:
    # As another process would: what this one exported is not known there.
    cuda_ipc._exported_here.clear()
    sizes = {"nbytes": arena.nbytes, "probe_offset": arena.probe_offset, **changed}
    return map_arena(transport, os.dup(arena.fd), **sizes)


def at(address: int) -> torch.Tensor:
    return cast(torch.Tensor, SimpleNamespace(data_ptr=lambda: address))


# --- one arena --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data_bytes", "granules"), [(0, 1), (1, 1), (GRANULE, 1), (GRANULE + 1, 2), (5 * GRANULE, 5)]
)
def test_data_and_probe_page_have_granules_of_their_own(
    transport: str, data_bytes: int, granules: int
) -> None:
    arena = create_arena(transport, data_bytes)
    assert (arena.probe_offset, arena.nbytes) == (granules * GRANULE, (granules + 1) * GRANULE)
    arena.close()


def test_attached_bytes_are_the_daemons_own(transport: str, arena: Arena) -> None:
    attached = attach(transport, arena)
    found = attached.read(512, 100)
    assert torch.equal(found, DATA)
    assert found.data_ptr() == attached.read(0, 1).data_ptr() + 512
    assert attached.nbytes == arena.nbytes
    attached.close()


def test_identity_is_read_out_of_the_memory(transport: str, arena: Arena) -> None:
    first, second = attach(transport, arena), attach(transport, arena)
    other = create_arena(transport, 1000)
    assert first.allocation == second.allocation == arena.allocation
    assert arena.allocation.startswith(f"{transport}:{UUID}:")
    assert other.allocation != arena.allocation
    for each in (first, second, other):
        each.close()


def test_probe_from_another_thread_is_seen_by_an_attached_engine(transport: str, arena: Arena) -> None:
    attached = attach(transport, arena)
    assert attached.read_probe() == bytes(PROBE_BYTES)
    nonce = os.urandom(PROBE_BYTES)
    serving_thread = threading.Thread(target=arena.write_probe, args=(nonce,))
    serving_thread.start()
    serving_thread.join()
    later = attach(transport, arena)
    assert (attached.read_probe(), later.read_probe()) == (nonce, nonce)
    assert later.allocation == attached.allocation
    later.close()
    attached.close()


def test_writable_mappings_of_frozen_memory(driver: StandInDriver, transport: str, arena: Arena) -> None:
    attached = attach(transport, arena)
    arena.write_probe(bytes(PROBE_BYTES))
    writable = [writable for _, _, writable in driver.mapped.values()]
    assert writable == [not TRANSPORTS[transport].sealed] * 2
    attached.close()


def test_daemon_and_engine_agree_through_the_protocol(
    tmp_path: Path, driver: StandInDriver, transport: str
) -> None:
    layer = layer_spec(ProjectionKind.QKV, Scheme.FP8, (43, 17, 9), 48)
    write_checkpoint(tmp_path / "c", synthetic_tensors(layer, 3, False), Scheme.FP8)
    job = DaemonJob(
        checkpoint=tmp_path / "c",
        layers=(layer,),
        socket=tmp_path / "s",
        transport=transport,
        kernel="reference",
    )
    with serving(job) as ready:
        cuda_ipc._exported_here.clear()
        client = CacheClient(job.socket)
        attached = client.attach(ready.key, transport)
        nonce = os.urandom(PROBE_BYTES)
        client.probe(nonce)
        assert attached.arena.read_probe() == nonce
        assert attached.arena.allocation == ready.allocation
        entries = attached.manifest.entries
        held = {e.name: fingerprint(attached.arena.read(e.offset, e.nbytes)) for e in entries}
        assert client.digests() == held == {e.name: e.fingerprint for e in entries}
        attached.arena.close()
        client.close()
    assert driver.held()[:-1] == ([], [], [], [], [])


# --- the witness ------------------------------------------------------------------------------


def test_witness_finds_attached_memory_and_nothing_else(
    driver: StandInDriver, transport: str, arena: Arena
) -> None:
    attached = attach(transport, arena)
    start = attached.read(0, 1).data_ptr()
    daemons = arena.read(0, 1).data_ptr()
    _, copy = driver.cuMemAlloc(GRANULE)
    assert memory_identity(at(start + 512)) == (arena.allocation, 512)
    assert memory_identity(at(daemons + 7)) == (f"private:{os.getpid()}:{daemons:#x}", 7)
    assert memory_identity(at(copy)) == (f"private:{os.getpid()}:{copy:#x}", 0)
    assert memory_identity(at(0)) == (f"private:{os.getpid()}:0x0", 0)
    attached.close()
    with pytest.raises(ArenaError, match="cuMemGetAddressRange"):
        memory_identity(at(start))
    driver.cuMemFree(copy)


# --- what fails -------------------------------------------------------------------------------


def failing_in_turn(driver: StandInDriver, make: Callable[[], Any], status: Status) -> Iterator[str]:
    """Let each driver call of `make` fail once; yields the call's name after checking how `make` ends."""
    cuda_driver._device.cache_clear()
    driver.calls.clear()
    make().close()
    opened = list(driver.calls)
    before = driver.held()
    for position, name in enumerate(opened):
        cuda_driver._device.cache_clear()
        driver.calls.clear()
        driver.failing = (position, status)
        with pytest.raises(ArenaError, match=status.name) as caught:
            make().close()
        driver.failing = None
        assert name in caught.value.expected
        assert driver.held() == before, name
        yield name


STATUSES = [Status.CUDA_ERROR_OUT_OF_MEMORY, Status.CUDA_ERROR_NOT_PERMITTED, Status.CUDA_ERROR_UNKNOWN]


@pytest.mark.parametrize("status", STATUSES, ids=lambda status: status.name)
def test_any_refused_call_of_the_daemon_is_typed_and_leaves_nothing(
    driver: StandInDriver, transport: str, status: Status
) -> None:
    failed = list(failing_in_turn(driver, lambda: create_arena(transport, 1000), status))
    assert ("cuMemCreate" if transport == "cuda-vmm" else "cuMemAlloc") in failed
    assert "cuMemcpyHtoD" in failed


@pytest.mark.parametrize("status", STATUSES, ids=lambda status: status.name)
def test_any_refused_call_of_an_engine_is_typed_and_leaves_nothing(
    driver: StandInDriver, transport: str, arena: Arena, status: Status
) -> None:
    failed = list(failing_in_turn(driver, lambda: attach(transport, arena), status))
    taken = "cuMemImportFromShareableHandle" if transport == "cuda-vmm" else "cuIpcOpenMemHandle"
    assert taken in failed
    assert cuda_memory.ATTACHED == []


def test_refused_probe_leaves_no_mapping(driver: StandInDriver) -> None:
    arena = create_arena("cuda-vmm", 1)
    arena.freeze()
    before = driver.held()
    driver.calls.clear()
    driver.failing = (3, Status.CUDA_ERROR_UNKNOWN)
    with pytest.raises(ArenaError, match="cuMemSetAccess"):
        arena.write_probe(bytes(PROBE_BYTES))
    assert driver.held() == before
    arena.close()


def refused(driver: StandInDriver, transport: str, call: str, status: Status) -> ArenaError:
    create_arena(transport, 1000).close()
    position = driver.calls.index(call)
    cuda_driver._device.cache_clear()
    driver.calls.clear()
    driver.failing = (position, status)
    with pytest.raises(ArenaError) as caught:
        create_arena(transport, 1000)
    return caught.value


def test_full_gpu_says_what_is_needed_and_free(driver: StandInDriver) -> None:
    error = refused(driver, "cuda-vmm", "cuMemCreate", Status.CUDA_ERROR_OUT_OF_MEMORY)
    assert f"cuMemCreate of {2 * GRANULE} bytes on {UUID}" in error.expected
    assert "1234 of 5678 bytes free" in error.found
    assert "Free GPU memory" in error.remedy


@pytest.mark.parametrize("status", [Status.CUDA_ERROR_NOT_PERMITTED, Status.CUDA_ERROR_NOT_SUPPORTED])
def test_isolated_container_is_told_what_to_change(driver: StandInDriver, status: Status) -> None:
    error = refused(driver, "cuda-ipc", "cuIpcGetMemHandle", status)
    assert "--ipc=host" in error.remedy


# --- what is forged ---------------------------------------------------------------------------


def plain_file(nbytes: int) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.pwrite(fd, bytes(nbytes), 0)
    return fd


FORGED: dict[str, tuple[str, Callable[[], int]]] = {
    "ipc-unsealed": ("cuda-ipc", lambda: plain_file(64)),
    "ipc-63-bytes": ("cuda-ipc", lambda: cuda_ipc.handle_file(bytes(63))),
    "ipc-65-bytes": ("cuda-ipc", lambda: cuda_ipc.handle_file(bytes(65))),
    "ipc-empty": ("cuda-ipc", lambda: cuda_ipc.handle_file(b"")),
    "ipc-no-file": ("cuda-ipc", lambda: os.pidfd_open(os.getpid())),
    "vmm-memfd": ("cuda-vmm", lambda: plain_file(2 * GRANULE)),
    "vmm-folder": ("cuda-vmm", lambda: os.open("/", os.O_RDONLY)),
}


@pytest.mark.parametrize("forged", FORGED)
def test_forged_descriptor_is_refused_before_any_driver_call(driver: StandInDriver, forged: str) -> None:
    transport, make = FORGED[forged]
    before = driver.held()
    with pytest.raises(ArenaError, match="arena descriptor"):
        map_arena(transport, make(), 2 * GRANULE, GRANULE)
    assert driver.calls == []
    assert driver.held() == before


@pytest.mark.parametrize(
    ("nbytes", "probe_offset"),
    [(2 * GRANULE, 512), (2 * GRANULE, 0), (GRANULE, GRANULE), (3 * GRANULE, GRANULE), (0, -GRANULE)],
)
def test_sizes_that_no_arena_has_are_refused(
    driver: StandInDriver, transport: str, arena: Arena, nbytes: int, probe_offset: int
) -> None:
    before = driver.held()
    with pytest.raises(ArenaError, match="arena of the manifest"):
        attach(transport, arena, nbytes=nbytes, probe_offset=probe_offset)
    assert driver.held() == before


def test_manifest_larger_than_the_memory_is_refused(
    driver: StandInDriver, transport: str, arena: Arena
) -> None:
    before = driver.held()
    with pytest.raises(ArenaError):
        attach(transport, arena, nbytes=3 * GRANULE, probe_offset=2 * GRANULE)
    assert driver.held() == before


def test_own_ipc_handle_is_refused_by_name(driver: StandInDriver) -> None:
    arena = create_arena("cuda-ipc", 1)
    with pytest.raises(ArenaError, match="this process exported"):
        map_arena("cuda-ipc", os.dup(arena.fd), arena.nbytes, arena.probe_offset)
    assert "cuIpcOpenMemHandle" not in driver.calls
    arena.close()


# --- without CUDA -----------------------------------------------------------------------------


def test_absent_bindings_say_what_to_install(
    driver: StandInDriver, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(InvalidInput, match=r"pip install 'loadproof\[cuda\]'"):
        create_arena(transport, 1)


@pytest.mark.parametrize("transport", CUDA)
def test_absent_gpu_is_named(monkeypatch: pytest.MonkeyPatch, transport: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidInput, match="a GPU that torch can use"):
        create_arena(transport, 1)


def test_importing_the_arenas_touches_no_cuda() -> None:
    code = (
        # A CUDA build of torch 2.13 imports the bindings itself.
        "import sys, torch; before = set(sys.modules);"
        "import loadproof.harness.cache.arena, loadproof.harness.witness.cuda_memory;"
        "new = sys.modules.keys() - before;"
        "print(any(name.split('.')[0] == 'cuda' for name in new), torch.cuda.is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_torch_takes_the_memory_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def as_tensor(wrapped: Any, device: torch.device) -> torch.Tensor:
        seen.append(wrapped.__cuda_array_interface__)
        return at(0x7000)

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    assert cuda_memory.tensor_over(0x7000, 96, torch.device("cpu")).data_ptr() == 0x7000
    assert seen[0]["data"] == (0x7000, False)
    assert (seen[0]["shape"], seen[0]["typestr"]) == ((96,), "|u1")
    with pytest.raises(ArenaError, match="a copy at 0x7000"):
        cuda_memory.tensor_over(0x8000, 96, torch.device("cpu"))
    assert cuda_memory.tensor_over(0, 0, torch.device("cpu")).shape == (0,)
