"""Odd things where the socket should be: each is a typed error, for engine and daemon alike."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loadproof.harness.cache.client import CacheClient
from loadproof.harness.cache.socket_path import listening
from loadproof.harness.errors import (
    DaemonRunning,
    DaemonUnavailable,
    DaemonUnresponsive,
    UnsafeSocket,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return folder / "s"


def cycle_of_links(path: Path) -> None:
    path.parent.rmdir()
    path.parent.symlink_to(path.parent)


def file_for_a_folder(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("")


def linked_folder(path: Path) -> None:
    real = path.parent.with_name("real")
    path.parent.rename(real)
    path.parent.symlink_to(real)


PLACES: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: path.mkdir(mode=0o700),
    "fifo": lambda path: os.mkfifo(path, 0o600),
    "cycle": cycle_of_links,
    "file-for-a-folder": file_for_a_folder,
    "linked-folder": linked_folder,
    "dangling-link": lambda path: path.symlink_to(path.with_name("nothing")),
    "folder-for-the-temporary": lambda path: path.with_name(".loadproof.new").mkdir(),
}


@pytest.mark.parametrize("place", PLACES)
def test_daemon_refuses_the_place(place: str, path: Path) -> None:
    PLACES[place](path)
    with pytest.raises(UnsafeSocket), listening(path):
        pass


@pytest.mark.parametrize("place", PLACES)
def test_engine_refuses_the_place_or_finds_no_daemon(place: str, path: Path) -> None:
    PLACES[place](path)
    with pytest.raises((UnsafeSocket, DaemonUnavailable)):
        CacheClient(path)


def test_live_socket_of_another_type_is_unsafe(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        path.chmod(0o600)
        with pytest.raises(UnsafeSocket, match="wrong type"):
            CacheClient(path)
        with pytest.raises(UnsafeSocket, match="wrong type"), listening(path):
            pass


SILENT = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(0)
print("ready", flush=True)
time.sleep(60)
"""


def fill_queue(path: Path) -> list[socket.socket]:
    """Connections that nobody accepts, until the kernel takes no more."""
    waiting: list[socket.socket] = []
    while True:
        waiting.append(socket.socket(socket.AF_UNIX))
        waiting[-1].setblocking(False)
        try:
            waiting[-1].connect(str(path))
        except BlockingIOError:
            return waiting


def test_daemon_that_accepts_nobody_is_unresponsive_and_keeps_its_place(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SILENT, str(path)], stdout=subprocess.PIPE, text=True)
    waiting: list[socket.socket] = []
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        path.chmod(0o600)
        process.send_signal(signal.SIGSTOP)
        waiting = fill_queue(path)
        began = time.monotonic()
        with pytest.raises(DaemonUnresponsive):
            CacheClient(path, timeout=0.5)
        assert time.monotonic() - began < 5
        with pytest.raises(DaemonRunning, match="does not accept"), listening(path):
            pass
    finally:
        for each in waiting:
            each.close()
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
