"""Starting, watching and ending processes. Nothing started here outlives the harness."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .atomic_file import unwritable
from .channel import Channel, Closed
from .errors import LaunchError, ProcessTimeout

START_SECONDS = 120.0
"""For importing torch once, on a cold disk."""
GRACE_SECONDS = 0.5
EXIT_SECONDS = 5.0
STDERR_TAIL_BYTES = 16 * 1024


class Forkserver:
    """A process that has imported torch, and forks engines and daemons; a fresh one where it was killed."""

    def __init__(self) -> None:
        """Start it and check that the preload really happened; raises LaunchError."""
        self._server = _Server()

    def spawn(self, kind: str, stderr: Path) -> "Child":
        """Start a process life: `engine`, `model-engine` or `daemon`. Its output goes to the file `stderr`.

        Raises:
            LaunchError: the server died meanwhile, or did not answer.
            OutputUnwritable: `stderr` cannot be made.
        """
        if self._server.process.poll() is not None:
            self._server.close()
            self._server = _Server()
        return self._server.spawn(kind, stderr)

    def close(self) -> None:
        """End the server, and with it every process it forked."""
        self._server.close()


class _Server:
    """One life of the forkserver, and the exits of what it forked."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", f"{__package__}.forkserver", str(theirs.fileno()), str(os.getpid())]
        # numpy's BLAS starts its threads on import, and threads do not survive a fork.
        single = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        # transformers asks for GPUs on import: by NVML, since CUDA must be untouched before a fork. And it
        # looks for files in the folder that it is given, nowhere else.
        untouched = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "HF_HUB_OFFLINE": "1"}
        # A session of its own: Ctrl-C reaches pytest alone, which then ends its processes in order.
        self.process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | single | untouched,
        )
        theirs.close()
        self._socket, self._main = ours, Channel(ours)
        self._exits: dict[int, int] = {}
        try:
            self._check(self._receive(START_SECONDS))
        except BaseException:
            # Nothing is forked yet, and an importing server does not look at its socket.
            self.process.kill()
            self.close()
            raise

    def spawn(self, kind: str, stderr: Path) -> "Child":
        try:
            log = stderr.open("wb")
        except OSError as error:
            raise unwritable(stderr, error) from error
        ours, theirs = socket.socketpair()
        with theirs, log:
            try:
                socket.send_fds(self._socket, [kind.encode()], [theirs.fileno(), log.fileno()])
            except OSError as error:
                raise self._silent(error) from error
            # The first model's engine has the server import transformers.
            while "pid" not in (reply := self._receive(START_SECONDS)):
                self._exits[reply["exited"]] = reply["status"]
        if reply["threads"] != 1:
            raise self._threaded(reply["threads"])
        # Messages are in order: an exit noted under this pid is an earlier process's.
        self._exits.pop(reply["pid"], None)
        return Child(reply["pid"], Channel(ours), stderr, self._wait)

    def close(self) -> None:
        self._main.close()
        try:
            self.process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _wait(self, pid: int, timeout: float) -> int | None:
        deadline = time.monotonic() + timeout
        while pid not in self._exits:
            try:
                message = self._main.receive(max(deadline - time.monotonic(), 0))
            except TimeoutError:
                return None
            except Closed:
                self._exits[pid] = -signal.SIGKILL
                break
            self._exits[message["exited"]] = message["status"]
        return self._exits[pid]

    def _receive(self, timeout: float) -> dict[str, Any]:
        try:
            return self._main.receive(timeout)
        except (Closed, TimeoutError) as error:
            raise self._silent(error) from error

    def _silent(self, error: Exception) -> LaunchError:
        # A late answer would be taken for the next request's; the next spawn starts a fresh server.
        self.process.kill()
        self.process.wait()
        return LaunchError(
            "forkserver",
            expected="an answer",
            found=f"{type(error).__name__}, exit status {self.process.poll()}",
            remedy="Run `python -c 'import torch'` to see whether torch imports here; see who killed it.",
        )

    @staticmethod
    def _threaded(found: object) -> LaunchError:
        return LaunchError(
            "forkserver",
            expected="torch, engine and daemon imported, and one thread",
            found=found,
            remedy="Look for what starts threads at interpreter start (sitecustomize, .pth files).",
        )

    def _check(self, ready: dict[str, Any]) -> None:
        if "torch" not in ready["modules"] or len(ready["modules"]) != 3 or ready["threads"] != 1:
            raise self._threaded(f"{ready['modules']} and {ready['threads']} threads")


class Child:
    """One started process: its pid, its channel and the file that takes its stderr."""

    def __init__(
        self, pid: int, channel: Channel, stderr: Path, wait: Callable[[int, float], int | None]
    ) -> None:
        self.pid = pid
        self.channel = channel
        self.exit: int | None = None
        self._stderr = stderr
        self._wait = wait

    def wait(self, timeout: float = EXIT_SECONDS) -> int | None:
        """The exit status (negative: the signal), or None when it still runs after `timeout` seconds."""
        if self.exit is None:
            self.exit = self._wait(self.pid, timeout)
        return self.exit

    def end(self) -> int | None:
        """Close its channel, then SIGTERM, then SIGKILL; returns the exit status. Harmless when it is gone."""
        self.channel.close()
        # A daemon ends by that alone; a signal on its heels would tear the ending and change the status.
        self.wait(GRACE_SECONDS)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if self.wait(0) is None:
                self._signal(signum)
                self.wait(2.0)
        return self.exit

    def abort(self, phase: str, seconds: float) -> ProcessTimeout:
        """Have a hung process write its stacks, kill it, and return the error that says so."""
        self._signal(signal.SIGUSR1)
        time.sleep(0.2)
        self._signal(signal.SIGKILL)
        self.wait()
        return ProcessTimeout(
            f"process {self.pid}",
            expected=f"the phase after {phase!r} within {seconds:g} s",
            found="no message",
            remedy="The stacks of all its threads are at the end of its stderr.",
        )

    def stderr_tail(self) -> str:
        """The end of what the process wrote."""
        with self._stderr.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - STDERR_TAIL_BYTES))
            return log.read().decode("utf-8", "backslashreplace")

    def _signal(self, signum: int) -> None:
        try:
            os.kill(self.pid, signum)
        except ProcessLookupError:
            pass
