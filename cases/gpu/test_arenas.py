"""The CUDA arenas on a GPU: one process holds the memory, others map it.

Needs nothing but a GPU that torch can use and cuda-bindings. Times are printed with `-s`.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from loadproof.cases.gpu import arena_processes
from loadproof.cases.gpu.arena_processes import differing, exchange
from loadproof.harness.cache.arena import PROBE_BYTES, Attachment, create_arena, cuda_driver, map_arena
from loadproof.harness.cache.wire import MAX_REPLY_BYTES, receive_message
from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.daemon import DaemonJob, serving
from loadproof.harness.errors import ArenaError, InvalidInput, TruncatedMessage
from loadproof.harness.matrix import layer_spec
from loadproof.harness.spec import ProjectionKind, Scheme
from loadproof.harness.witness.cuda_memory import memory_identity

CUDA = ["cuda-vmm", "cuda-ipc"]
MIB, GIB = 1 << 20, 1 << 30
PROCESS = [sys.executable, arena_processes.__file__]
HELD_BYTES = 100 * MIB + 17
LAYER = layer_spec(ProjectionKind.QKV, Scheme.FP8, (43, 17, 9), 48)
NOISE_BYTES = 32 * MIB
"""What torch and the driver may take beside an arena."""


@pytest.fixture(scope="module", autouse=True)
def _gpu() -> None:
    try:
        cuda_driver.current_device()
    except InvalidInput as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=CUDA)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@dataclass
class Daemon:
    """A process that holds an arena of `data_bytes`, and this test's connection to it."""

    transport: str
    data_bytes: int
    process: subprocess.Popen[str]
    connection: socket.socket
    ready: dict[str, Any]
    fd: int

    def ask(self, **request: Any) -> Any:
        reply, _ = exchange(self.connection, request)
        return next(iter(reply.values()))

    def attach(self) -> Attachment:
        fd = os.dup(self.fd)
        return map_arena(self.transport, fd, self.ready["nbytes"], self.ready["probe_offset"])

    def engine(self, what: str, *more: int, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        numbers = (self.fd, self.ready["nbytes"], self.ready["probe_offset"], *more)
        command = [*PROCESS, what, self.transport, *map(str, numbers)]
        return subprocess.run(command, pass_fds=[self.fd], capture_output=True, text=True, timeout=timeout)


@contextmanager
def started(transport: str, data_bytes: int) -> Iterator[Daemon]:
    ours, theirs = socket.socketpair()
    command = [*PROCESS, "daemon", transport, str(data_bytes), str(theirs.fileno())]
    with (
        ours,
        theirs,
        subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True) as process,
    ):
        theirs.close()
        try:
            ready, (fd,) = receive_message(ours, limit=MAX_REPLY_BYTES, deadline=time.monotonic() + 100)
            yield Daemon(transport, data_bytes, process, ours, ready, fd)
            os.close(fd)
        finally:
            process.kill()
            if process.stderr is not None:
                print(process.stderr.read())


@pytest.fixture(scope="module")
def held(transport: str) -> Iterator[Daemon]:
    """A daemon for all tests that leave it as it is."""
    with started(transport, HELD_BYTES) as daemon:
        yield daemon


@pytest.fixture
def attached(held: Daemon) -> Iterator[Attachment]:
    attached = held.attach()
    yield attached
    attached.close()


# --- shared memory ----------------------------------------------------------------------------


def test_bytes_are_the_daemons(held: Daemon, attached: Attachment) -> None:
    assert differing(attached, held.data_bytes) == 0


def test_attached_memory_is_the_daemons_by_the_driver(held: Daemon, attached: Attachment) -> None:
    start = attached.read(0, 1).data_ptr()
    view = attached.read(512, 64 * 32).view(torch.float8_e4m3fn).view(64, 32).t()
    assert view.data_ptr() == start + 512
    assert memory_identity(view) == (held.ready["allocation"], 512)
    assert attached.allocation == held.ready["allocation"]
    last = attached.read(held.data_bytes - 1, 1)
    assert memory_identity(last) == (held.ready["allocation"], held.data_bytes - 1)


def test_copy_is_private(attached: Attachment) -> None:
    copy = attached.read(0, 8 * MIB).clone()
    assert memory_identity(copy)[0].startswith(f"private:{os.getpid()}:")


@pytest.mark.usefixtures("_alone")
def test_attaching_takes_no_memory(transport: str) -> None:
    with started(transport, 2 * GIB) as daemon:
        before = torch.cuda.mem_get_info()[0]
        attached = daemon.attach()
        attached.read(0, 1).item()
        taken = before - torch.cuda.mem_get_info()[0]
        attached.close()
    assert taken < NOISE_BYTES


def test_probe_is_seen_at_once(held: Daemon, attached: Attachment) -> None:
    for _ in range(100):
        nonce = os.urandom(PROBE_BYTES)
        held.ask(probe=nonce.hex())
        assert attached.read_probe() == nonce
    assert differing(attached, held.data_bytes) == 0


def test_tensor_cores_read_the_mapping(held: Daemon, attached: Attachment) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("FP8 tensor cores: expected compute capability 8.9 or newer")
    stored = attached.read(0, 256 * 512).view(torch.float8_e4m3fn).view(256, 512)
    one = torch.ones((), device="cuda")
    shared, copied = (
        torch._scaled_mm(stored[:64].clone(), weight.t(), one, one, out_dtype=torch.bfloat16)
        for weight in (stored, stored.clone())
    )
    assert shared.isfinite().all()
    assert torch.equal(shared.view(torch.int16), copied.view(torch.int16))


# --- stores -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["kernel", "copy"])
def test_store_by_an_engine_is_refused_read_only(how: str) -> None:
    # The process of the store is not this one: a refused store ends its CUDA for good.
    with started("cuda-vmm", MIB) as daemon:
        engine = daemon.engine(how)
        assert engine.returncode != 0
        assert "CUDA error" in engine.stderr, engine.stderr
        assert daemon.ask(byte=0) == 0
        assert daemon.ask(differing=True) == 0


@pytest.mark.parametrize("how", ["kernel", "copy"])
def test_store_by_an_engine_is_seen_by_the_daemon_where_writable(how: str) -> None:
    with started("cuda-ipc", MIB) as daemon:
        engine = daemon.engine(how)
        assert engine.returncode == 0, engine.stderr
        assert daemon.ask(byte=0) == 0xFF
        assert daemon.ask(differing=True) == 1


def test_store_by_the_frozen_daemon_is_refused() -> None:
    with started("cuda-vmm", MIB) as daemon:
        attached = daemon.attach()
        with pytest.raises(TruncatedMessage):
            daemon.ask(store=0)
        assert daemon.process.wait(timeout=60) != 0
        assert daemon.process.stderr is not None
        assert "CUDA error" in daemon.process.stderr.read()
        assert differing(attached, MIB) == 0
        attached.close()


# --- endings ----------------------------------------------------------------------------------


def test_mapping_outlives_a_killed_daemon(transport: str) -> None:
    with started(transport, HELD_BYTES) as daemon:
        attached = daemon.attach()
        daemon.process.send_signal(signal.SIGKILL)
        assert daemon.process.wait(timeout=60) == -signal.SIGKILL
        assert differing(attached, HELD_BYTES) == 0
        filling = [torch.full((GIB,), 0xAA, dtype=torch.uint8, device="cuda") for _ in range(4)]
        torch.cuda.synchronize()
        assert differing(attached, HELD_BYTES) == 0
        attached.close()
    del filling
    torch.cuda.empty_cache()


def engines() -> int:
    """Processes of this host that run our script."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        # One that has just ended has no command line.
        with suppress(OSError):
            found += arena_processes.__file__.encode() in (process / "cmdline").read_bytes().split(b"\0")
    return found


@dataclass(frozen=True)
class Footprint:
    """What engines could leave behind, in this process, which is their daemon, and on the host."""

    descriptors: int
    threads: int
    processes: int
    """Engines: a host's other processes come and go."""
    sockets: int
    shared_memory: frozenset[str]
    gpu_bytes: int
    """In steps of 2 MiB, the least that the driver hands out."""

    @classmethod
    def taken(cls) -> "Footprint":
        free, total = torch.cuda.mem_get_info()
        return cls(
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=len(os.listdir("/proc/self/task")),
            processes=engines(),
            sockets=len(Path("/proc/net/unix").read_text().splitlines()),
            shared_memory=frozenset(os.listdir("/dev/shm")),
            gpu_bytes=(total - free) // (2 * MIB),
        )


@pytest.mark.usefixtures("_alone")
@pytest.mark.timeout(300)
def test_a_hundred_engines_leave_everything_as_it_was(tmp_path: Path, transport: str) -> None:
    """Of a daemon's engines, a third is killed, a third closes its mapping, a third just exits."""
    write_checkpoint(tmp_path / "checkpoint", synthetic_tensors(LAYER, 3, False), Scheme.FP8)
    socket, key_file = tmp_path / "d" / "s", tmp_path / "key.json"
    job = DaemonJob(
        checkpoint=tmp_path / "checkpoint",
        layers=(LAYER,),
        socket=socket,
        transport=transport,
        kernel="torch-scaled-mm",
        device="cuda",
    )

    def live(count: int) -> None:
        command = [*PROCESS, "lives", transport, str(socket), str(key_file), str(count)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert engines() >= 1
            _, errors = process.communicate(timeout=250)
        assert process.returncode == 0, errors

    with serving(job) as ready:
        key_file.write_text(json.dumps(ready.key))
        live(3)
        before = Footprint.taken()
        live(100)
        # The driver takes back a killed process's memory a moment later than the kernel its pid.
        deadline = time.monotonic() + 10
        while (after := Footprint.taken()) != before and time.monotonic() < deadline:
            time.sleep(0.1)
    assert after == before


@pytest.mark.usefixtures("_alone")
def test_closed_arena_gives_its_memory_back(transport: str) -> None:
    create_arena(transport, MIB).close()
    before = torch.cuda.mem_get_info()[0]
    arena = create_arena(transport, 2 * GIB)
    assert before - torch.cuda.mem_get_info()[0] >= 2 * GIB
    arena.freeze()
    arena.write_probe(bytes(PROBE_BYTES))
    arena.close()
    assert torch.cuda.mem_get_info()[0] >= before - 2 * MIB


def test_attaching_eight_gibibytes_is_quick(transport: str) -> None:
    attaching = []
    with started(transport, 8 * GIB) as daemon:
        for _ in range(11):
            began = time.perf_counter()
            attached = daemon.attach()
            attaching.append((time.perf_counter() - began) * 1e3)
            attached.close()
        began = time.perf_counter()
        daemon.ask(probe=bytes(PROBE_BYTES).hex())
        probed = (time.perf_counter() - began) * 1e3
    median = sorted(attaching)[5]
    print(f"\n{transport}: 8 GiB attached in {median:.2f} ms (median of 11), probed in {probed:.2f} ms")
    assert median < 100


# --- refusals ---------------------------------------------------------------------------------


def test_more_than_the_gpu_has_says_needed_and_free(transport: str) -> None:
    _, total = torch.cuda.mem_get_info()
    with pytest.raises(ArenaError, match="CUDA_ERROR_OUT_OF_MEMORY") as caught:
        create_arena(transport, 2 * total)
    assert f"of {total} bytes free" in caught.value.found


def test_own_ipc_handle_is_refused() -> None:
    arena = create_arena("cuda-ipc", MIB)
    with pytest.raises(ArenaError, match="this process exported"):
        map_arena("cuda-ipc", os.dup(arena.fd), arena.nbytes, arena.probe_offset)
    arena.close()


def test_arena_of_another_size_is_refused(held: Daemon) -> None:
    offset = held.ready["probe_offset"]
    granule = held.ready["nbytes"] - offset
    with pytest.raises(ArenaError):
        map_arena(held.transport, os.dup(held.fd), 2 * offset + granule, probe_offset=2 * offset)
    attached = held.attach()
    assert differing(attached, held.data_bytes) == 0
    attached.close()


# --- by hand ----------------------------------------------------------------------------------


def test_daemon_and_attach_by_hand(tmp_path: Path, transport: str) -> None:
    write_checkpoint(tmp_path / "checkpoint", synthetic_tensors(LAYER, 3, False), Scheme.FP8)
    (tmp_path / "run").mkdir(mode=0o700)
    given = [str(tmp_path / "checkpoint"), "--socket", str(tmp_path / "run" / "s"), "--transport", transport]
    command = [sys.executable, "-m", "loadproof.reports.cli"]
    with subprocess.Popen([*command, "daemon", *given, "--json"], stdout=subprocess.PIPE, text=True) as held:
        try:
            assert held.stdout is not None
            assert select.select([held.stdout], [], [], 100)[0], "not ready"
            assert json.loads(held.stdout.readline())["transport"] == transport
            done = subprocess.run([*command, "attach", *given], capture_output=True, text=True, timeout=100)
            assert done.returncode == 0, done.stderr
            assert "3 tensors verified" in done.stderr
            held.send_signal(signal.SIGTERM)
            assert held.wait(timeout=60) == 0
        finally:
            held.kill()
