"""The built-in subject: loadproof's own loaders, cache and kernels."""

from pathlib import Path

from ..child import Child
from ..daemon import DaemonJob
from ..engine import EngineJob
from ..launch import Forkserver, Needs
from ..model_spec import ModelCaseSpec
from ..spec import CaseSpec


class BuiltinSubject:
    """Forks engines and daemons from one pre-warmed forkserver."""

    name = "builtin"

    def __init__(self, forkserver: Forkserver) -> None:
        self._forkserver = forkserver

    def prepare(self, case: CaseSpec | ModelCaseSpec) -> None:
        """Import and build what the case's first engine needs."""
        self._forkserver.prepare(Needs(case.device, case.kernel, isinstance(case, ModelCaseSpec)))

    def start_daemon(self, job: DaemonJob, stderr: Path) -> Child:
        """Start a daemon life and hand it its job."""
        # It builds no model itself; but the engine that is started ahead of its turn does.
        needs = Needs(job.device, job.kernel, transformers=bool(job.plain))
        return self._forkserver.start("daemon", job.to_json(), needs, stderr)

    def start_engine(self, job: EngineJob, stderr: Path) -> Child:
        """Start an engine life and hand it its job."""
        needs = Needs(job.device, job.kernel, transformers=bool(job.new_tokens))
        return self._forkserver.start("engine", job.to_json(), needs, stderr)
