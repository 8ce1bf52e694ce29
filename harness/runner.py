"""The processes of one case: daemon and engines, one after the other, watched until they end."""

import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .atomic_file import unwritable
from .cache.arena import PROBE_BYTES
from .cache.client import CacheClient
from .channel import Closed
from .checkpoint.files import weight_files
from .checkpoint.route_dir import RouteDir, make_route_dir
from .child import Child
from .daemon import DaemonJob
from .engine import EngineJob
from .errors import LoadproofError, ProcessCrashed, RemoteError
from .model_spec import Asked, ModelCaseSpec
from .observation import RouteObservation
from .outcome import Outcome
from .record import DaemonRecord, ErrorRecord
from .routes import ROUTES, Route
from .spec import CaseSpec
from .subjects.protocol import Subject
from .testimony import check_observed, daemon_record, take_results
from .witness.inotify import FileWitness

PHASE_SECONDS = 60.0
"""For each phase of an engine or daemon; a process that stays silent for longer is killed and named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRequest:
    """One case, on one checkpoint, in one run."""

    case: CaseSpec | ModelCaseSpec
    checkpoint: Path
    content: str
    """Digest of the checkpoint, taken once per run."""
    origin: str
    """Where the checkpoint comes from, for people."""
    run_id: str
    node_id: str
    defect: str | None = None
    phase_seconds: float = PHASE_SECONDS
    progress: Callable[[RouteObservation], None] = lambda seen: None
    """Told of each route as it ends."""


class Runner:
    """The processes of one case, one after the other."""

    def __init__(self, request: ProofRequest, subject: Subject, scratch: Path) -> None:
        self._request = request
        self._subject = subject
        self._scratch = scratch
        self._daemon = DaemonRecord()
        self._daemon_process: Child | None = None
        self._handed_out = 0
        self.seen = {route.name: RouteObservation(route=route) for route in ROUTES}
        """What is known of each route, filled in while `run` goes on."""
        self.seen[ROUTES[-1].name].daemon_killed = request.case.daemon_killed
        self._socket = scratch / "d" / "s"

    def run(self, asked: Asked) -> DaemonRecord:
        """All four routes; a daemon that does not start is the outcome of the routes that need it."""
        self._asked = asked
        for route in (route for route in ROUTES if not route.daemon_present):
            self._observe(self.seen[route.name])
            # A later route must find no weights but its decoy beside its own folder.
            shutil.rmtree(self._scratch / route.name, ignore_errors=True)
        self._attach([self.seen[route.name] for route in ROUTES if route.daemon_present])
        return self._daemon

    def _attach(self, attaching: list[RouteObservation]) -> None:
        try:
            with self._daemon_running():
                for each in attaching:
                    self._observe(each)
        except LoadproofError as error:
            self._daemon = self._daemon.model_copy(update={"error": ErrorRecord.of(error)})
            for each in attaching:
                # What the daemon refuses, an engine must refuse by itself, and not for want of a daemon.
                if error.outcome is Outcome.REFUSED:
                    self._observe(each)
                else:
                    self._fail(each, error)

    @contextmanager
    def _daemon_running(self) -> Iterator[None]:
        case, stderr = self._request.case, self._scratch / "daemon.stderr"
        job = DaemonJob(
            checkpoint=self._request.checkpoint,
            layers=self._asked.layers,
            plain=self._asked.plain,
            socket=self._socket,
            transport=case.transport,
            kernel=case.daemon_kernel or case.kernel,
            device=case.device,
            expected_content=self._request.content,
            defect=self._request.defect,
        )
        weights = list(weight_files(job.checkpoint).names)
        with FileWitness(job.checkpoint, weights, by_inode=True) as witness:
            child = self._daemon_process = self._subject.start_daemon(job, stderr)
            try:
                self._daemon = self._ready(child, case.transport)
                yield
            finally:
                self._daemon = self._daemon.model_copy(
                    update={
                        "exit": child.end(),
                        "stderr_tail": child.stderr_tail(),
                        "pid": child.pid,
                        "files_opened": witness.opened(),
                    }
                )

    def _ready(self, child: Child, transport: str) -> DaemonRecord:
        message = self._await(child, "started")
        try:
            return daemon_record(child.pid, transport, message)
        except ValueError as error:
            raise _garbled(child, "started", error) from error

    def _await(self, child: Child, phase: str) -> dict[str, Any]:
        try:
            message = child.channel.receive(self._request.phase_seconds)
            if "error" not in message:
                return message
            described, outcome = ErrorRecord(**message["error"]), Outcome(message["outcome"])
        except TimeoutError:
            raise child.abort(phase, self._request.phase_seconds) from None
        except Closed:
            raise _crashed(child, phase) from None
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise _garbled(child, phase, error) from error
        raise RemoteError(described.type, described.message, outcome)

    def _observe(self, seen: RouteObservation) -> None:
        started = time.monotonic()
        try:
            self._live(seen)
        except LoadproofError as error:
            self._fail(seen, error)
        except OSError as error:
            self._fail(seen, unwritable(self._scratch, error))
        seen.timings_ms["total"] = round((time.monotonic() - started) * 1e3, 3)
        self._request.progress(seen)

    def _live(self, seen: RouteObservation) -> None:
        route = seen.route
        files = make_route_dir(self._request.checkpoint, self._scratch / route.name, decoy=route.decoy)
        seen.decoy = files.decoy
        by_inode = files.linked == "symbolic" and not route.decoy
        with FileWitness(files.path, list(files.weight_files), by_inode=by_inode) as witness:
            job = self._job(route, files)
            child = self._subject.start_engine(job, self._scratch / f"{route.name}.stderr")
            try:
                self._follow(child, seen)
            finally:
                child.end()
                seen.pid, seen.exit, seen.stderr_tail = child.pid, child.exit, child.stderr_tail()
            seen.files_opened = witness.opened()
        if seen.outcome is Outcome.PASS:
            try:
                seen.results = take_results(job.results)
            except ValueError as error:
                self._fail(seen, _garbled(child, "finished", error))
        if route.daemon_present:
            self._ask_daemon(seen)

    def _job(self, route: Route, files: RouteDir) -> EngineJob:
        case = self._request.case
        return EngineJob(
            loader=route.loader,
            checkpoint=files.path,
            links_into=files.links_into,
            layers=self._asked.layers,
            plain=self._asked.plain,
            new_tokens=self._asked.new_tokens,
            kernel=case.kernel,
            device=case.device,
            transport=case.transport,
            socket=self._socket,
            expected_content=self._request.content,
            fallback_allowed=route.fallback_allowed or case.fallback_allowed,
            inputs=self._scratch / "inputs.safetensors",
            results=self._scratch / f"{route.name}.results.safetensors",
            defect=self._request.defect,
        )

    def _follow(self, child: Child, seen: RouteObservation) -> None:
        """Take the engine's messages until it is done, gone or silent for too long."""
        phase = "forked"
        try:
            while phase != "finished":
                message = child.channel.receive(self._request.phase_seconds)
                phase, observed = str(message["phase"]), message["observed"]
                check_observed(observed, message["ms"])
                seen.timings_ms[phase] = message["ms"]
                if phase == "failed":
                    seen.error, seen.outcome = ErrorRecord(**observed["error"]), Outcome(observed["outcome"])
                    child.wait()
                    return
                seen.reported |= observed
                if phase == "loaded" and observed["route_taken"] == "attach":
                    seen.nonce = self._write_probe()
                    if seen.daemon_killed:
                        self._kill_daemon(seen)
                    child.channel.send({"go": True})
            if child.wait() != 0:
                raise _crashed(child, phase)
            seen.outcome = Outcome.PASS
        except TimeoutError:
            self._fail(seen, child.abort(phase, self._request.phase_seconds))
        except Closed:
            self._fail(seen, _crashed(child, phase))
        except LoadproofError as error:
            self._fail(seen, error)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            self._fail(seen, _garbled(child, phase, error))

    @staticmethod
    def _fail(seen: RouteObservation, error: LoadproofError) -> None:
        seen.outcome = error.outcome
        seen.error = ErrorRecord.of(error)

    def _write_probe(self) -> str:
        nonce = secrets.token_bytes(PROBE_BYTES)
        client = CacheClient(self._socket)
        try:
            client.probe(nonce)
        finally:
            client.close()
        return nonce.hex()

    def _kill_daemon(self, seen: RouteObservation) -> None:
        """What it sees is asked before, since afterwards there is nobody to ask."""
        self._ask_daemon(seen)
        assert self._daemon_process is not None
        self._daemon_process.kill()

    def _ask_daemon(self, seen: RouteObservation) -> None:
        """What the daemon sees now: its bytes, and how often it handed them out."""
        try:
            # It hashes all that it holds before it answers.
            client = CacheClient(self._socket, timeout=self._request.phase_seconds)
        except LoadproofError:
            return
        try:
            seen.daemon_digests = client.digests()
            handed_out = client.attachments()
            seen.attachments, self._handed_out = handed_out - self._handed_out, handed_out
        finally:
            client.close()


def _garbled(child: Child, phase: str, error: Exception) -> ProcessCrashed:
    return ProcessCrashed(
        f"process {child.pid}",
        expected=f"a message of the engine protocol after {phase!r}",
        found=f"{type(error).__name__}: {error}",
        remedy="Check that subject and harness are of one version.",
    )


def _crashed(child: Child, phase: str) -> ProcessCrashed:
    status = child.wait()
    return ProcessCrashed(
        f"process {child.pid}",
        expected=f"the phase after {phase!r}",
        found=f"its end with exit status {status}{' (a signal)' if (status or 0) < 0 else ''}",
        remedy="Its stderr, with the stack of a crash, is in the evidence.",
    )
