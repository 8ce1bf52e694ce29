"""The forkserver: torch imported once, then one fork for each engine and daemon.

A request names the device and the kernel of the process. What every process of that kernel would compute
alike is computed here before the fork; what needs CUDA is done after it, while the child waits for its job.

Not multiprocessing's: that one pickles what it starts, imports the caller's main module (pytest) again
in every child, and hides a preload that failed. Children die with this server, and it with its parent.
"""

import ctypes
import faulthandler
import functools
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from .channel import Channel, Closed
from .errors import LoadproofError

PR_SET_PDEATHSIG = 1
CUDA_NOT_INITIALISED = 3


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies, even if that has already happened."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def entry_points() -> dict[str, Callable[[Channel, dict[str, Any]], None]]:
    """What can be started, by name; importing them is the preload."""
    from . import daemon, engine

    return {"engine": engine.main, "daemon": daemon.main}


def cuda_touched() -> bool:
    """Whether CUDA has been initialised in this process: what it forks could then not use it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != CUDA_NOT_INITIALISED


@functools.cache
def prepare(device: str, kernel: str, transformers: bool) -> None:
    """Before the fork: import and hash what the child would, so that the results come with it."""
    from .kernels import make_kernel

    if device == "cuda":
        importlib.import_module("cuda.bindings.driver")
    if transformers:
        importlib.import_module(f"{__package__}.models.work").preload()
    # A child that needs what is missing says so itself, to whom it concerns.
    with suppress(LoadproofError):
        make_kernel(kernel).build_id()


def threads() -> int:
    """Of this process."""
    return len(os.listdir("/proc/self/task"))


def start_device(device: str, transformers: bool) -> None:
    """After the fork: the context of CUDA, which takes 0.1 s and more, and what a model launches."""
    import torch

    if device == "cuda":
        # As above: an engine that finds no GPU, or no model of transformers, has its own words for it.
        with suppress(Exception):
            torch.zeros(1, device=device)
            if transformers:
                importlib.import_module(f"{__package__}.models.work").warm_up(device)


def run_child(device: str, transformers: bool, channel: Channel) -> int:
    """Take the job, plant its defect if it has one, run it; returns the exit status."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        start_device(device, transformers)
        given = channel.receive()
        kind, job = given["life"], given["job"]
        if job["defect"]:
            from . import defects

            defects.plant(job["defect"], kind, job.get("loader", ""))
        entry_points()[kind](channel, job)
    except Closed:
        return 3
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _fork(needs: dict[str, Any], channel_fd: int, stderr_fd: int, server: socket.socket) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        die_with_parent(parent)
        server.close()
        os.dup2(stderr_fd, 1)
        os.dup2(stderr_fd, 2)
        os.close(stderr_fd)
        channel = Channel(socket.socket(fileno=channel_fd))
        status = run_child(needs["device"], needs["transformers"], channel)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _reap(main: Channel, children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        main.send({"exited": pid, "status": os.waitstatus_to_exitcode(status)})


def serve(server: socket.socket) -> None:
    """Fork on request until the parent closes its end; then take every child along."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, _ignore)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    children: set[int] = set()
    main = Channel(server)
    main.send({"ready": os.getpid(), "threads": threads(), "modules": _preloaded()})
    try:
        while True:
            readable, _, _ = select.select([server.fileno(), wake_read], [], [])
            if wake_read in readable:
                os.read(wake_read, 4096)
                _reap(main, children)
            if server.fileno() in readable:
                request, fds, _, _ = socket.recv_fds(server, 256, 2)
                if not request:
                    return
                needs = json.loads(request)
                # What fails here fails in the child too, which has words for it.
                with suppress(Exception):
                    prepare(**needs)
                pid = _fork(needs, fds[0], fds[1], server)
                children.add(pid)
                for fd in fds:
                    os.close(fd)
                main.send({"pid": pid, "threads": threads(), "cuda": cuda_touched()})
    except (Closed, ConnectionResetError):
        pass  # Reset: the parent went without having read all that it was told.
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def _ignore(signum: int, frame: FrameType | None) -> None:
    """SIGCHLD must be handled for the wakeup descriptor to fire."""


def _preloaded() -> list[str]:
    return [
        name for name in ("torch", f"{__package__}.engine", f"{__package__}.daemon") if name in sys.modules
    ]


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    entry_points()
    serve(socket.socket(fileno=int(sys.argv[1])))
