"""What the reports show of a run: cases in reading order, and the facts in their tables."""

import hashlib
import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from loadproof.harness.outcome import Outcome
from loadproof.harness.record import CaseEntry, CaseRecord, CheckRecord, RouteRecord
from loadproof.harness.routes import REFERENCE_ROUTE, ROUTES

from .load import Run
from .verdicts import RouteVerdicts, route_verdicts

MODEL_OPTION = "--loadproof-model"


@dataclass(frozen=True)
class CaseView:
    """One planned case: its entry in `run.json`, and its evidence where there is any."""

    entry: CaseEntry
    record: CaseRecord | None
    whole: str = ""
    """The command of the whole run, empty where none is known."""

    @property
    def id(self) -> str:
        return self.entry.id

    @cached_property
    def anchor(self) -> str:
        """A fragment that is stable between runs and safe whatever the id holds."""
        return "case-" + hashlib.sha256(self.id.encode()).hexdigest()[:10]

    @property
    def expected(self) -> Outcome:
        return self.entry.expected

    @property
    def verdict(self) -> Outcome:
        """INCOMPLETE where nothing was recorded, whatever the entry says."""
        return self.record.verdict if self.record else Outcome.INCOMPLETE

    @cached_property
    def holds(self) -> bool:
        return self.record is not None and self.record.holds

    @cached_property
    def routes(self) -> dict[str, RouteRecord | None]:
        """The four routes in their order; None where one left nothing."""
        found = self.record.routes if self.record else {}
        return {route.name: found.get(route.name) for route in ROUTES}

    @cached_property
    def verdicts(self) -> dict[str, RouteVerdicts]:
        """How each route ended, and its three verdicts."""
        return route_verdicts(self.record)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """How each route ended, set against the reference: a route that ran well may differ."""
        return {name: found.word for name, found in self.verdicts.items()}

    @property
    def failed_checks(self) -> list[CheckRecord]:
        checks = self.record.checks if self.record else []
        return [c for c in checks if c.verdict not in (Outcome.PASS, self.expected)]

    @property
    def reason(self) -> str:
        """Why the case does not hold, in one sentence."""
        if self.record is None:
            return "Planned, but it left no evidence."
        if self.record.cause:
            return f"{self.record.cause.name}: {self.record.cause.detail}"
        for name, route in self.routes.items():
            if route and route.error:
                return f"{name}: {route.error.type}: {route.error.message}"
        return f"Ended as {self.verdict}; {self.expected} was expected."

    @property
    def rerun(self) -> str:
        """The command that repeats this case alone; empty where no node id is known."""
        return _pytest_command(self.record.node_id, self.whole) if self.record else ""

    def check(self, name: str) -> Outcome | None:
        """The verdict of the named check; None where it was not made."""
        if self.record is None:
            return Outcome.INCOMPLETE
        return next((c.verdict for c in self.record.checks if c.name == name), None)

    @cached_property
    def output_digest(self) -> str:
        """One digest of the reference's outputs: the sha256 itself, or that of the list of them."""
        reference = self.routes[REFERENCE_ROUTE.name]
        digests = [output.sha256 for output in reference.outputs] if reference else []
        return digests[0] if len(digests) == 1 else _digest(digests) if digests else ""


def cases_in_order(run: Run) -> list[CaseView]:
    """Every planned case; those that do not hold first, otherwise as the run lists them."""
    by_id = {case.id: case for case in run.cases}
    whole = run.record.commands.get("run", "")
    views = [CaseView(entry, by_id.get(entry.id), whole) for entry in run.record.cases]
    return sorted(views, key=lambda view: view.holds)


def is_model(case: CaseView) -> bool:
    """Whether the case is of a whole model; a layer's where nothing was recorded."""
    return case.record is not None and case.record.case.get("projection") == "model"


def values_of(run: Run, field: str) -> str:
    """The distinct values of a field of the cases, e.g. all transports."""
    found = sorted({str(case.case[field]) for case in run.cases if field in case.case})
    return ", ".join(found) or "none"


def device(run: Run) -> str:
    """The GPU's name where one was recorded, or `CPU`."""
    if run.record.scope == "cpu-default":
        return "CPU"
    gpu: Any = run.record.environment.get("gpu")
    name = gpu.get("name") if isinstance(gpu, dict) else None
    return str(name) if name else "GPU, name not recorded"


def _digest(digests: list[str]) -> str:
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _pytest_command(node_id: str, whole: str) -> str:
    """One case as the whole run's command would run it: its interpreter, and the model that it was given."""
    interpreter = re.match(r"[\w./+-]+(?= -m pytest)", whole)
    given = re.search(rf" ({re.escape(MODEL_OPTION)}[ =](?:'[^']*'|\S+))", whole)
    plain = re.fullmatch(r"[\w\-./:\[\] ,=+@%]+", node_id)
    quoted = f'"{node_id}"' if plain else shlex.quote(node_id)
    # By a module, where the run named packages.
    package = "" if node_id.partition("::")[0].endswith(".py") else "--pyargs "
    option = f" {given[1]}" if given else ""
    return f"{interpreter[0] if interpreter else 'python'} -m pytest {package}{quoted}{option}"
