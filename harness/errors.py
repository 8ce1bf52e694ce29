"""The exception tree: one class per remedy.

Every message names where, what was expected, what was found, and what to do; the base class
takes these four as separate arguments so that none can be left out.
"""

from .outcome import Outcome


class LoadproofError(Exception):
    """Base of all errors that loadproof raises on purpose."""

    outcome: Outcome = Outcome.INFRA
    """The outcome of a route that ends in this error."""

    def __init__(self, where: object, *, expected: object, found: object, remedy: str) -> None:
        self.where = str(where)
        self.expected = str(expected)
        self.found = str(found)
        self.remedy = remedy
        super().__init__(f"{self.where}: expected {self.expected}, found {self.found}. {remedy}")

    @property
    def type_name(self) -> str:
        """The class that evidence names."""
        return type(self).__name__


class InvalidInput(LoadproofError):
    """An option, a path or a job description cannot be used."""


class OutputUnwritable(LoadproofError):
    """The output folder cannot be written."""


# --- checkpoint -------------------------------------------------------------------------------


class CheckpointError(LoadproofError):
    """The checkpoint on disk cannot be used."""


class MalformedCheckpoint(CheckpointError):
    """A file is truncated, or its header contradicts itself or the file."""


class MissingTensor(CheckpointError):
    """A tensor that the scheme needs is not in the checkpoint."""


class WrongTensor(CheckpointError):
    """A tensor has another shape or dtype than the scheme prescribes."""


class BadScale(CheckpointError):
    """A scale is NaN, infinite, zero, negative, or cannot be used by the arithmetic."""


class CheckpointChanged(CheckpointError):
    """The content differs from what was digested earlier in the same run."""


class ConfigError(CheckpointError):
    """The quantisation configs are missing, unreadable or contradict each other."""


# --- refusals ---------------------------------------------------------------------------------


class Refused(LoadproofError):
    """Declined by name: never loaded as something else, never hidden by fallback."""

    outcome: Outcome = Outcome.REFUSED


class RefusedScheme(Refused):
    """The checkpoint's quant_algo is not one that loadproof processes."""


class RefusedModel(Refused):
    """The model's architecture, or a part of it, is not one that loadproof can run."""


class RefusedKernel(Refused):
    """The kernel backend does not declare support for pre-processed weights."""


class KernelContractError(LoadproofError):
    """Operands break the kernel's contract (layout, alignment, scale shape)."""

    outcome: Outcome = Outcome.LAYOUT


# --- kernel library ---------------------------------------------------------------------------


class BrokenFusion(LoadproofError):
    """A model called the projections of a fused layer otherwise than fusing them needs."""


class KernelBuildError(LoadproofError):
    """The kernel's library cannot be built or loaded here."""


class KernelLaunchError(LoadproofError):
    """The kernel's library, or CUDA below it, refused a launch."""


# --- weight cache -----------------------------------------------------------------------------


class DaemonUnavailable(LoadproofError):
    """No daemon: no socket, or nobody listens. The only error that permits fallback."""


class CacheError(LoadproofError):
    """The daemon is there, but attaching failed; fallback never hides this."""


class UnsafeSocket(CacheError):
    """Socket or directory could belong to, or be written by, somebody else."""


class SocketPathTooLong(CacheError):
    """The path does not fit into sockaddr_un."""


class DaemonRunning(CacheError):
    """A live daemon already serves this socket."""


class DaemonUnresponsive(CacheError):
    """The peer missed the deadline for a whole message."""

    outcome: Outcome = Outcome.TIMEOUT


class BadFrame(CacheError):
    """A message breaks the wire protocol."""


class TruncatedMessage(CacheError):
    """The peer closed the connection inside a message."""


class BadManifest(CacheError):
    """The manifest contradicts itself or the arena."""


class KeyMismatch(CacheError):
    """Daemon and engine would not produce the same bytes; lists the differing fields."""

    outcome: Outcome = Outcome.REFUSED


class StaleEpoch(CacheError):
    """The reply belongs to another request or to an earlier daemon."""


class ContentMismatch(CacheError):
    """Attached bytes differ from the manifest's digest."""

    outcome: Outcome = Outcome.MUTATED


class ArenaError(CacheError):
    """Memory for the arena could not be reserved, sealed or mapped."""


# --- processes --------------------------------------------------------------------------------


class LaunchError(LoadproofError):
    """The forkserver or a witness did not start, or did not do what it must."""


class ProcessTimeout(LoadproofError):
    """A process missed its deadline; names the phase it was in."""

    outcome: Outcome = Outcome.TIMEOUT


class ProcessCrashed(LoadproofError):
    """A process died of a signal or ended without its result."""

    outcome: Outcome = Outcome.CRASHED


class RemoteError(LoadproofError):
    """A typed error that another process reported; keeps that error's name, words and outcome."""

    def __init__(self, type_name: str, message: str, outcome: Outcome) -> None:
        Exception.__init__(self, message)
        self._type_name = type_name
        self.outcome = outcome

    @property
    def type_name(self) -> str:
        return self._type_name
