"""What a subject offers: the system under validation, seen from outside its processes."""

from pathlib import Path
from typing import Protocol

from ..child import Child
from ..daemon import DaemonJob
from ..engine import EngineJob
from ..model_spec import ModelCaseSpec
from ..spec import CaseSpec


class Subject(Protocol):
    """Starts the two kinds of process lives; both speak the channel protocol of `daemon` and `engine`."""

    name: str

    def prepare(self, case: CaseSpec | ModelCaseSpec) -> None:
        """Do once what all cases like this one need, before its time is taken; raises LoadproofError."""

    def start_daemon(self, job: DaemonJob, stderr: Path) -> Child: ...

    def start_engine(self, job: EngineJob, stderr: Path) -> Child: ...
