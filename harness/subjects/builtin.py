"""The built-in subject: loadproof's own loaders, cache and kernels."""

from pathlib import Path

from ..daemon import DaemonJob
from ..engine import EngineJob
from ..forkserver import MODEL_ENGINE
from ..launch import Child, Forkserver


class BuiltinSubject:
    """Forks engines and daemons from one pre-warmed forkserver."""

    name = "builtin"

    def __init__(self, forkserver: Forkserver) -> None:
        self._forkserver = forkserver

    def start_daemon(self, job: DaemonJob, stderr: Path) -> Child:
        """Start a daemon life and hand it its job."""
        child = self._forkserver.spawn("daemon", stderr)
        child.channel.send(job.to_json())
        return child

    def start_engine(self, job: EngineJob, stderr: Path) -> Child:
        """Start an engine life and hand it its job."""
        child = self._forkserver.spawn(MODEL_ENGINE if job.new_tokens else "engine", stderr)
        child.channel.send(job.to_json())
        return child
