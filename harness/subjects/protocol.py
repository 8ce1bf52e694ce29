"""What a subject offers: the system under validation, seen from outside its processes."""

from pathlib import Path
from typing import Protocol

from ..daemon import DaemonJob
from ..engine import EngineJob
from ..launch import Child


class Subject(Protocol):
    """Starts the two kinds of process lives; both speak the channel protocol of `daemon` and `engine`."""

    name: str

    def start_daemon(self, job: DaemonJob, stderr: Path) -> Child: ...

    def start_engine(self, job: EngineJob, stderr: Path) -> Child: ...
