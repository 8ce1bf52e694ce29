"""Defects of weight caches and loaders that others have had, by kind."""

import json
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from loadproof.harness import loaders
from loadproof.harness.cache import client as client_module
from loadproof.harness.cache import socket_path, wire
from loadproof.harness.cache.client import CacheClient
from loadproof.harness.cache.key import make_key
from loadproof.harness.cache.manifest import Manifest
from loadproof.harness.cache.server import CacheServer
from loadproof.harness.cache.socket_path import listening
from loadproof.harness.cache.wire import MAX_REQUEST_BYTES, receive_message
from loadproof.harness.checkpoint.digest import content_digest
from loadproof.harness.errors import BadManifest, KeyMismatch, LoadproofError, UnsafeSocket
from loadproof.harness.kernels.reference import ReferenceKernel
from loadproof.harness.layers import FusedFp8Linear
from loadproof.harness.loaders import Loaded, load_from_disk
from loadproof.harness.tensor_bytes import dtype_of, memory_bytes, sha256

from .daemons import LAYER, arena_mappings, detach, digests, load, serves, write


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write(tmp_path / "checkpoint")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return folder / "s"


def held(loaded: Loaded) -> dict[str, str]:
    return {f"{LAYER.name}.{name}": sha256(t) for name, t in loaded.layers[0].tensors.items()}


def forward(loaded: Loaded, m: int = 3) -> torch.Tensor:
    x = torch.linspace(-2, 2, m * LAYER.logical_k).reshape(m, LAYER.logical_k).to(dtype_of(LAYER.out_dtype))
    layer = FusedFp8Linear(loaded.layers[0], ReferenceKernel())
    return layer.multiply(*layer.quantize(x))


class TestOneExportForTwoClients:
    """vllm-project/vllm P56472: what one client releases was the other's too."""

    def test_release_by_one_engine_leaves_the_others_memory(self, checkpoint: Path, path: Path) -> None:
        with serves(checkpoint, path) as ready:
            kept, copied = load(checkpoint, path), load(checkpoint, path)
            before, output = held(kept), forward(kept)
            copies = [t.clone() for t in copied.layers[0].tensors.values()]
            detach(copied)
            assert copies
            assert held(kept) == before
            assert ready.allocation == kept.attached.arena.allocation  # type: ignore[union-attr]
        # The daemon is gone now; its memory is used again for other values.
        with serves(write(checkpoint.with_name("other"), seed=4), path):
            assert held(kept) == before
            assert memory_bytes(forward(kept)).equal(memory_bytes(output))
        detach(kept)

    def test_each_engine_gets_a_descriptor_of_its_own(
        self, checkpoint: Path, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        received: list[int] = []
        original = client_module.map_arena

        def noted(transport: str, fd: int, nbytes: int, probe_offset: int) -> object:
            received.append(fd)
            return original(transport, fd, nbytes, probe_offset)

        monkeypatch.setattr(client_module, "map_arena", noted)
        with serves(checkpoint, path):
            both = [load(checkpoint, path), load(checkpoint, path)]
            assert len(received) == 2
            one, other = (each.layers[0].tensors["weight"].data_ptr() for each in both)
            assert one != other
            for each in both:
                detach(each)


class TestKeyIsAName:
    """osaurus-ai/osaurus P1989: a re-baked model under the same path hit the old entry."""

    def test_rebaked_checkpoint_is_not_served_under_its_old_key(self, checkpoint: Path, path: Path) -> None:
        file = checkpoint / "model.safetensors"
        header = file.read_bytes()[: 8 + struct.unpack("<Q", file.read_bytes()[:8])[0]]
        old = load_from_disk(checkpoint, [LAYER])
        with serves(checkpoint, path):
            write(checkpoint, seed=4)
            assert file.read_bytes().startswith(header), "the headers must not tell them apart"
            with pytest.raises(KeyMismatch, match=r"1 differing fields \(content: "):
                load(checkpoint, path, fallback_allowed=True)
        with serves(checkpoint, path):
            new = load(checkpoint, path)
            assert held(new)[f"{LAYER.name}.weight"] != held(old)[f"{LAYER.name}.weight"]
            assert held(new) == held(load_from_disk(checkpoint, [LAYER]))
            detach(new)

    @pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json"])
    def test_changed_config_is_another_key(self, checkpoint: Path, path: Path, name: str) -> None:
        with serves(checkpoint, path):
            file = checkpoint / name
            file.write_text(file.read_text() + "\n")
            with pytest.raises(KeyMismatch, match="_sha256: "):
                load(checkpoint, path)


class TestAttachedEngineWrites:
    """vllm-project/vllm P57320, sgl-project/sglang-omni P1088, P1124: shared memory was written to."""

    @pytest.mark.parametrize("transport", ["memfd", "memfd-writable"])
    def test_no_byte_changes_on_attach_forward_and_detach(
        self, checkpoint: Path, path: Path, transport: str
    ) -> None:
        with serves(checkpoint, path, transport) as ready:
            wanted = {entry.name: entry.fingerprint for entry in ready.manifest.entries}
            assert digests(path) == wanted
            loaded = load(checkpoint, path, transport=transport)
            assert digests(path) == wanted
            forward(loaded)
            assert digests(path) == wanted
            detach(loaded)
            assert digests(path) == wanted

    def test_in_place_step_after_the_attachment_is_seen_by_the_daemon(
        self, checkpoint: Path, path: Path
    ) -> None:
        with serves(checkpoint, path, "memfd-writable") as ready:
            wanted = {entry.name: entry.fingerprint for entry in ready.manifest.entries}
            loaded = load(checkpoint, path, transport="memfd-writable")
            loaded.layers[0].tensors["weight_scale"].mul_(2)
            changed = {name for name, digest in digests(path).items() if digest != wanted[name]}
            assert changed == {f"{LAYER.name}.weight_scale"}
            detach(loaded)


class TestAttributesDoNotTravel:
    """sgl-project/sglang P27139 (review): a layout flag set after load was lost on attaching."""

    def test_layout_is_that_of_a_disk_load(self, checkpoint: Path, path: Path) -> None:
        with serves(checkpoint, path):
            attached, disk = load(checkpoint, path), load_from_disk(checkpoint, [LAYER])
            assert attached.layers[0].layout == disk.layers[0].layout
            shapes = [
                {n: (t.shape, t.stride(), t.dtype) for n, t in each.layers[0].tensors.items()}
                for each in (attached, disk)
            ]
            assert shapes[0] == shapes[1]
            assert memory_bytes(forward(attached)).equal(memory_bytes(forward(disk)))
            detach(attached)

    @pytest.mark.parametrize("flag", ["logical_width", "padded_width", "logical_k", "padded_k", "transposed"])
    def test_manifest_without_a_flag_is_bad(self, checkpoint: Path, path: Path, flag: str) -> None:
        with serves(checkpoint, path) as ready:
            manifest = json.loads(json.dumps(ready.manifest.to_json()))
        del manifest["layouts"][flag]
        with pytest.raises(BadManifest, match=flag):
            Manifest.from_json(manifest)


# --- seven failures ---------------------------------------------------------------------------


@contextmanager
def answering(path: Path, answer: Callable[[socket.socket, dict[str, Any]], None]) -> Iterator[None]:
    """A daemon that reads one request a connection and then does as `answer` does."""

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(LoadproofError, OSError):
                deadline = time.monotonic() + 5
                request, _ = receive_message(connection, limit=MAX_REQUEST_BYTES, deadline=deadline)
                answer(connection, request)

    with listening(path) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def reply(request: dict[str, Any], **fields: object) -> bytes:
    return frame(json.dumps({"nonce": request["nonce"], "epoch": "e", **fields}).encode())


@contextmanager
def nothing(path: Path) -> Iterator[None]:
    yield


@contextmanager
def stale(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    path.chmod(0o600)
    yield


@contextmanager
def planted_file(path: Path) -> Iterator[None]:
    path.write_bytes(b"")
    path.chmod(0o600)
    yield


MARKER_PICKLE = b"cos\nsystem\n(S'touch %s'\ntR."
FAILURES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "no-socket": (nothing, "DaemonUnavailable", "no such file"),
    "nobody-listens": (stale, "DaemonUnavailable", "nobody listening"),
    "no-socket-but-a-file": (planted_file, "UnsafeSocket", "a socket with mode 0600"),
    "other-key": (
        lambda path: answering(
            path,
            lambda c, r: c.sendall(reply(r, status="key_mismatch", fields={"content": ["a", "b"]})),
        ),
        "KeyMismatch",
        "content: daemon 'a', engine 'b'",
    ),
    "drops-mid-transfer": (
        lambda path: answering(path, lambda c, r: c.sendall(reply(r, status="ok")[:-5])),
        "TruncatedMessage",
        "expected a whole message",
    ),
    "answers-an-error": (
        lambda path: answering(path, lambda c, r: c.sendall(reply(r, status="busy", message="later"))),
        "BadFrame",
        "'busy': later",
    ),
    "not-decodable": (
        lambda path: answering(path, lambda c, r: c.sendall(frame(b"\x80\x04\x95"))),
        "BadFrame",
        "UnicodeDecodeError",
    ),
}


class TestSixFailuresOneQuietFallback:
    """sgl-project/sglang P27139 (comment): every failure became the same silent disk load."""

    @pytest.mark.parametrize("failure", FAILURES)
    def test_strict_engine_is_told_its_own_reason(self, checkpoint: Path, path: Path, failure: str) -> None:
        arrange, error, words = FAILURES[failure]
        with arrange(path), pytest.raises(LoadproofError) as caught:
            load(checkpoint, path)
        assert caught.value.type_name == error
        assert words in str(caught.value)

    @pytest.mark.parametrize("failure", FAILURES)
    def test_only_the_absence_of_a_daemon_falls_back_and_says_so(
        self, checkpoint: Path, path: Path, failure: str
    ) -> None:
        arrange, error, words = FAILURES[failure]
        with arrange(path):
            if error == "DaemonUnavailable":
                assert load(checkpoint, path, fallback_allowed=True).route_taken == "fallback"
            else:
                with pytest.raises(LoadproofError) as caught:
                    load(checkpoint, path, fallback_allowed=True)
                assert (caught.value.type_name, words in str(caught.value)) == (error, True)

    def test_no_two_failures_give_the_same_reason(self) -> None:
        assert len({(error, words) for _, error, words in FAILURES.values()}) == len(FAILURES) == 7


# --- who may have which socket ----------------------------------------------------------------


@contextmanager
def daemon_process(checkpoint: Path, path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-m",
        "loadproof.reports.cli",
        "daemon",
        str(checkpoint),
        "--socket",
        str(path),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 60)[0]
    assert process.stdout.readline().startswith("ready: ")


class TestSecondDaemonTakesTheSocket:
    """sgl-project/sglang P27139 (review): the second daemon removed the live one's socket."""

    def test_three_starts(self, checkpoint: Path, path: Path) -> None:
        with daemon_process(checkpoint, path) as first:
            await_ready(first)
            served = digests(path)
            with daemon_process(checkpoint, path) as second:
                _, said = second.communicate(timeout=60)
                assert second.returncode != 0
                assert f"process {first.pid}" in said
            assert digests(path) == served
            first.send_signal(signal.SIGKILL)
            first.wait(20)
            assert path.is_socket()
            with daemon_process(checkpoint, path) as third:
                await_ready(third)
                client = CacheClient(path)
                assert client.daemon_pid == third.pid
                assert client.digests() == served
                client.close()


class TestSocketOfAnotherJob:
    """sgl-project/sglang P36042, P36101: a socket named by rank led to another job's daemon."""

    def test_cross_connected_engine_is_told_what_differs_and_gets_no_memory(
        self, tmp_path: Path, path: Path
    ) -> None:
        ours, theirs = write(tmp_path / "ours"), write(tmp_path / "theirs", seed=4)
        other = path.with_name("t")
        with serves(ours, path), serves(theirs, other):
            mapped = arena_mappings()
            with pytest.raises(KeyMismatch, match="content: daemon"):
                load(ours, other, fallback_allowed=True)
            with pytest.raises(KeyMismatch, match="content: daemon"):
                load(theirs, path, fallback_allowed=True)
            assert arena_mappings() == mapped
            right = load(ours, path)
            assert held(right) == held(load_from_disk(ours, [LAYER]))
            detach(right)

    def test_reply_to_a_foreign_key_carries_no_descriptor(self, checkpoint: Path, path: Path) -> None:
        with serves(checkpoint, path):
            client = CacheClient(path)
            request = {"command": "attach", "key": {"content": "another"}}
            answer, fds = client._exchange(request, time.monotonic() + 5)
            client.close()
        assert (answer["status"], fds) == ("key_mismatch", [])

    def test_key_names_the_device(self, checkpoint: Path) -> None:
        key = make_key(checkpoint, content_digest(checkpoint), [LAYER], ReferenceKernel())
        assert {"gpu_uuid", "gpu_architecture", "driver", "cuda"} <= key.keys()


class TestWhatAStrangerPlanted:
    """vllm-project/vllm P49879 (review), Mibayy/token-savior I98: pickle from a path anybody may plant."""

    def test_pickle_is_never_executed(self, checkpoint: Path, path: Path, tmp_path: Path) -> None:
        marker = tmp_path / "marker"
        payload = MARKER_PICKLE % os.fsencode(marker)
        with answering(path, lambda c, r: c.sendall(frame(payload))), pytest.raises(LoadproofError):
            load(checkpoint, path, fallback_allowed=True)
        assert not marker.exists()

    def test_socket_is_private_from_its_first_moment(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        modes: list[int] = []

        class Watched(socket.socket):
            def bind(self, address: Any) -> None:
                super().bind(address)
                modes.append(stat.S_IMODE(os.lstat(path.with_name(".loadproof.new")).st_mode))

        monkeypatch.setattr(socket_path.socket, "socket", Watched)
        before = os.umask(0)
        try:
            with listening(path):
                modes.append(stat.S_IMODE(path.lstat().st_mode))
                modes.append(stat.S_IMODE(path.parent.lstat().st_mode))
        finally:
            os.umask(before)
        assert modes == [0o600, 0o600, 0o700]

    def test_new_folder_is_private_whatever_the_umask(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            with listening(tmp_path / "a" / "s"):
                assert stat.S_IMODE((tmp_path / "a").lstat().st_mode) == 0o700
        finally:
            os.umask(before)

    @pytest.mark.parametrize("whose", ["folder", "socket"])
    def test_another_owners_place_is_refused_before_reading(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
    ) -> None:
        with listening(path):
            original = Path.lstat
            foreign = path if whose == "socket" else path.parent

            def lstat(self: Path) -> os.stat_result:
                status = list(original(self))
                status[stat.ST_UID] += self == foreign
                return os.stat_result(status)

            monkeypatch.setattr(Path, "lstat", lstat)
            with pytest.raises(UnsafeSocket, match="expected owner"):
                CacheClient(path)
            monkeypatch.undo()

    def test_peer_of_another_user_is_refused(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Other:
            def __getattr__(self, name: str) -> Any:
                return (lambda: os.geteuid() + 1) if name == "geteuid" else getattr(os, name)

        with listening(path):
            monkeypatch.setattr(wire, "os", Other())
            with pytest.raises(UnsafeSocket, match="user"):
                CacheClient(path)


# --- what is held, and until when -------------------------------------------------------------


class TestMemoryIsNeverGivenBack:
    """vllm-project/vllm I51258, P51259, P54921 (review): references that nobody could count down."""

    def test_three_engines_and_a_daemon_leave_nothing_mapped_and_open(
        self, checkpoint: Path, path: Path
    ) -> None:
        mapped, fds = arena_mappings(), arena_descriptors()
        with serves(checkpoint, path):
            for _ in range(3):
                detach(load(checkpoint, path))
            assert arena_mappings() == mapped + own_mappings()
        assert (arena_mappings(), arena_descriptors()) == (mapped, fds)

    def test_build_that_fails_after_the_fetch_holds_nothing(
        self, checkpoint: Path, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        servers: list[CacheServer] = []
        original = CacheServer.__init__

        def noted(self: CacheServer, *arguments: Any) -> None:
            servers.append(self)
            original(self, *arguments)

        def fail(*arguments: object) -> object:
            raise RuntimeError("planted")

        monkeypatch.setattr(CacheServer, "__init__", noted)
        monkeypatch.setattr(loaders, "restore", fail)
        with serves(checkpoint, path):
            mapped = arena_mappings()
            with pytest.raises(RuntimeError, match="planted") as _kept:
                load(checkpoint, path)
            # While the error is still at hand, and with it every frame: nothing is left to a collector.
            assert arena_mappings() == mapped
            deadline = time.monotonic() + 5
            while servers[0]._open and time.monotonic() < deadline:
                time.sleep(0.005)
            assert not servers[0]._open


def own_mappings() -> int:
    """Of a daemon in this process: its protected data and its probe page."""
    return 2


def arena_descriptors() -> int:
    links = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    return sum("loadproof-arena" in link for link in links)
