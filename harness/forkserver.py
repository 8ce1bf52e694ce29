"""The forkserver: torch imported once, then one fork for each engine and daemon.

Not multiprocessing's: that one pickles what it starts, imports the caller's main module (pytest) again
in every child, and hides a preload that failed. Children die with this server, and it with its parent.
"""

import ctypes
import faulthandler
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from .channel import Channel, Closed

PR_SET_PDEATHSIG = 1
MODEL_ENGINE = "model-engine"
"""An engine that also has transformers, imported once, when the first such engine is asked for."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies, even if that has already happened."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def entry_points() -> dict[str, Callable[[Channel, dict[str, Any]], None]]:
    """What can be started, by name; importing them is the preload."""
    from . import daemon, engine

    return {"engine": engine.main, "daemon": daemon.main}


def preload(kind: str) -> str:
    """Import what a kind of process will need, before it is forked; returns the entry point's name."""
    if kind == MODEL_ENGINE:
        from .models import work

        assert work
        return "engine"
    return kind


def run_child(kind: str, channel: Channel) -> int:
    """Take the job, plant its defect if it has one, run it; returns the exit status."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        job = channel.receive()
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


def _fork(kind: str, channel_fd: int, stderr_fd: int, server: socket.socket) -> int:
    parent, kind = os.getpid(), preload(kind)
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
        status = run_child(kind, Channel(socket.socket(fileno=channel_fd)))
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
    main.send({"ready": os.getpid(), "threads": len(os.listdir("/proc/self/task")), "modules": _preloaded()})
    try:
        while True:
            readable, _, _ = select.select([server.fileno(), wake_read], [], [])
            if wake_read in readable:
                os.read(wake_read, 4096)
                _reap(main, children)
            if server.fileno() in readable:
                kind, fds, _, _ = socket.recv_fds(server, 64, 2)
                if not kind:
                    return
                pid = _fork(kind.decode(), fds[0], fds[1], server)
                children.add(pid)
                for fd in fds:
                    os.close(fd)
                main.send({"pid": pid, "threads": len(os.listdir("/proc/self/task"))})
    except Closed:
        pass
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
