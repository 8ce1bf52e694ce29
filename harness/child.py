"""A started process: watching it, ending it, and what it wrote."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from .atomic_file import unwritable
from .channel import Channel
from .errors import ProcessTimeout

GRACE_SECONDS = 0.5
EXIT_SECONDS = 5.0
STDERR_TAIL_BYTES = 16 * 1024


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
        """Close its channel, then SIGTERM, then SIGKILL; returns the exit status. No harm once it is gone."""
        self.channel.close()
        # A daemon ends by that alone; a signal on its heels would tear the ending and change the status.
        self.wait(GRACE_SECONDS)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if self.wait(0) is None:
                self._signal(signum)
                self.wait(2.0)
        return self.exit

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self.wait()

    def abort(self, phase: str, seconds: float) -> ProcessTimeout:
        """Have a hung process write its stacks, kill it, and return the error that says so."""
        self._signal(signal.SIGUSR1)
        time.sleep(0.2)
        self.kill()
        return ProcessTimeout(
            f"process {self.pid}",
            expected=f"the phase after {phase!r} within {seconds:g} s",
            found="no message",
            remedy="The stacks of all its threads are at the end of its stderr.",
        )

    def move_stderr(self, to: Path) -> None:
        """Rename the file that the process writes to; raises OutputUnwritable."""
        try:
            self._stderr = self._stderr.rename(to)
        except OSError as error:
            raise unwritable(to, error) from error

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
