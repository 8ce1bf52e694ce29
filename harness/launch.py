"""Starting processes from a forkserver. Nothing started here outlives the harness."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .atomic_file import unwritable
from .channel import Channel, Closed
from .child import Child
from .errors import LaunchError, OutputUnwritable
from .scratch import make_scratch, remove_scratch

START_SECONDS = 120.0
"""For importing torch once, on a cold disk."""
PREPARE_SECONDS = 900.0
"""For the first process of a kernel, since its library may have to be built."""
ANSWER_SECONDS = 5.0
"""For every later one."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a process is prepared for before it has a job."""

    device: str
    """`cpu` or `cuda`."""
    kernel: str
    transformers: bool = False
    """Whether it builds a model."""


class Forkserver:
    """A process that has imported torch, and forks engines and daemons; a fresh one where it was killed.

    On a GPU the next process starts CUDA while the present one works. Until it has its job it is nobody: it
    knows no checkpoint and no socket.
    """

    def __init__(self) -> None:
        """Start it and check that the preload really happened; raises LaunchError."""
        self._server = _Server()
        self._scratch = make_scratch()
        self._spare: _Spare | None = None
        self._transformers_harms = False

    def prepare(self, needs: Needs) -> None:
        """Start the next process now: what is imported and built once is not in the time of its job.

        Raises:
            LaunchError: as `start`.
        """
        needs = self._possible(needs)
        if self._spare is None or not self._spare.serves(needs):
            self._end_spare()
            self._start_ahead(needs)

    def start(self, life: str, job: dict[str, Any], needs: Needs, stderr: Path) -> Child:
        """Start a process life, `engine` or `daemon`, and hand it its job; its output goes to `stderr`.

        Raises:
            LaunchError: the server died meanwhile, or did not answer.
            OutputUnwritable: `stderr` cannot be made.
        """
        needs = self._possible(needs)
        child = self._taken(needs, stderr) or self._spawned(needs, stderr)
        # One that is gone already is found dead by whoever waits for its first word.
        with suppress(Closed):
            child.channel.send({"life": life, "job": job})
        if needs.device == "cuda":
            self._start_ahead(self._possible(needs))
        return child

    def close(self) -> None:
        """End the server, and with it every process it forked."""
        self._server.close()
        remove_scratch(self._scratch)

    def _start_ahead(self, needs: Needs) -> None:
        child = self._spawned(needs, self._scratch / "spare.stderr")
        # As it was started: that transformers harms may have been found out just now.
        self._spare = _Spare(self._possible(needs), self._server.prepared, child)

    def _end_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.child.end()

    def _taken(self, needs: Needs, stderr: Path) -> Child | None:
        """The spare process, if it will do."""
        spare = self._spare
        if spare is None or not spare.serves(needs):
            self._end_spare()
            return None
        try:
            spare.child.move_stderr(stderr)
        except OutputUnwritable:
            # Another filesystem, or no place at all: a process started for this file finds out which.
            self._end_spare()
            return None
        self._spare = None
        return spare.child

    def _spawned(self, needs: Needs, stderr: Path) -> Child:
        if self._server.process.poll() is not None:
            self._replace_server()
        try:
            return self._server.spawn(needs, stderr)
        except LaunchError:
            if not needs.transformers or needs in self._server.prepared:
                raise
        # Some package that transformers imports where it finds it starts a thread or asks for GPUs. An import
        # cannot be undone, but a server replaced; each engine imports for itself then.
        self._transformers_harms = True
        self._replace_server()
        return self._server.spawn(self._possible(needs), stderr)

    def _possible(self, needs: Needs) -> Needs:
        return replace(needs, transformers=needs.transformers and not self._transformers_harms)

    def _replace_server(self) -> None:
        self._server.close()
        self._server = _Server()


@dataclass(frozen=True, slots=True)
class _Spare:
    """A process that waits for its job."""

    needs: Needs
    """What it was started for; of the kernels, it has all that its server knew."""
    prepared: frozenset[Needs]
    """All that its server had been prepared for when it was forked."""
    child: Child

    def serves(self, needs: Needs) -> bool:
        """Whether it started the same device in the same way, knows the kernel, and lives."""
        alike = replace(needs, kernel=self.needs.kernel) == self.needs
        return alike and needs in self.prepared and self.child.wait(0) is None


class _Server:
    """One life of the forkserver, and the exits of what it forked."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        # -P: no module is taken from the folder where pytest was started, which may be a model's.
        module = [sys.executable, "-P", "-m", f"{__package__}.forkserver"]
        command = [*module, str(theirs.fileno()), str(os.getpid())]
        # numpy's BLAS starts its threads on import, and threads do not survive a fork.
        settings = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        # transformers asks for GPUs on import: by NVML, since CUDA must be untouched before a fork. And it
        # looks for files in the folder that it is given, nowhere else.
        settings |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "HF_HUB_OFFLINE": "1"}
        # A context with one hardware queue takes half the time, and the driver makes one after the other.
        queues = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} | os.environ
        # A session of its own: Ctrl-C reaches pytest alone, which then ends its processes in order.
        self.process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=queues | settings,
        )
        theirs.close()
        self._socket, self._main = ours, Channel(ours)
        self._exits: dict[int, int] = {}
        self.prepared: frozenset[Needs] = frozenset()
        try:
            self._check(self._receive(START_SECONDS))
        except BaseException:
            # Nothing is forked yet, and an importing server does not look at its socket.
            self.process.kill()
            self.close()
            raise

    def spawn(self, needs: Needs, stderr: Path) -> Child:
        try:
            log = stderr.open("wb")
        except OSError as error:
            raise unwritable(stderr, error) from error
        ours, theirs = socket.socketpair()
        with theirs, log:
            try:
                request = json.dumps(asdict(needs)).encode()
                socket.send_fds(self._socket, [request], [theirs.fileno(), log.fileno()])
            except OSError as error:
                raise self._silent(error) from error
            seconds = ANSWER_SECONDS if needs in self.prepared else PREPARE_SECONDS
            while "pid" not in (reply := self._receive(seconds)):
                self._exits[reply["exited"]] = reply["status"]
        if reply["threads"] != 1 or reply["cuda"]:
            raise self._unusable(f"{reply['threads']} threads, CUDA initialised: {reply['cuda']}")
        self.prepared |= {needs}
        # Messages are in order: an exit noted under this pid is an earlier process's.
        self._exits.pop(reply["pid"], None)
        return Child(reply["pid"], Channel(ours), stderr, self._wait)

    def close(self) -> None:
        self._main.close()
        try:
            self.process.wait(ANSWER_SECONDS)
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
    def _unusable(found: str) -> LaunchError:
        return LaunchError(
            "forkserver",
            expected="torch, engine and daemon imported, one thread, and CUDA untouched",
            found=found,
            remedy="Look for what starts threads or asks for GPUs on import (sitecustomize, .pth files, "
            "packages that transformers imports where they are installed).",
        )

    def _check(self, ready: dict[str, Any]) -> None:
        if "torch" not in ready["modules"] or len(ready["modules"]) != 3 or ready["threads"] != 1:
            raise self._unusable(f"{ready['modules']} and {ready['threads']} threads")
