"""Planted in refusals: what must be declined is loaded, hidden, or declined too late."""

from typing import Any

from .. import engine, kernels, loaders
from ..cache.client import CacheClient
from ..errors import KeyMismatch, RefusedScheme
from ..kernels.torch_scaled_mm import TorchScaledMm
from ..outcome import Outcome
from .cache import touch_weights
from .registry import defect, replace


@defect("capability", Outcome.WRONG_ROUTE)
def refused_scheme_loaded(process: str, loader: str) -> None:
    """A scheme that is not processed is loaded as the one that was asked for, in every process."""
    replace(loaders, "_require_schemes", lambda checkpoint, layers: None)


@defect("capability", Outcome.WRONG_ROUTE)
def undeclared_backend_attaches(process: str, loader: str) -> None:
    """The cache loader does not ask the backend for its support of pre-processed weights."""
    replace(loaders, "require_preprocessed", lambda kernel, layers: None)


@defect("capability", Outcome.INFRA)
def key_mismatch_hidden_by_fallback(process: str, loader: str) -> None:
    """The cache loader takes a daemon of another build for an absent one, and falls back onto the decoy."""
    original = loaders.load_from_cache

    def load(checkpoint: Any, layers: Any, *arguments: Any, **named: Any) -> loaders.Loaded:
        try:
            return original(checkpoint, layers, *arguments, **named)
        except KeyMismatch:
            return loaders.load_from_disk(checkpoint, layers, route_taken="fallback")

    if process == "engine" and loader == "cache":
        replace(engine, "load_from_cache", load)


@defect("capability", Outcome.WRONG_ROUTE)
def refusal_after_reading(process: str, loader: str) -> None:
    """The scheme is refused only after the weight files have been read."""
    touch_weights(process, loader, lambda file: file.read_bytes())


@defect("capability", Outcome.INCOMPLETE)
def refusal_without_a_name(process: str, loader: str) -> None:
    """The scheme is refused in words that name neither layer nor scheme."""

    def refuse(checkpoint: Any, layers: Any) -> None:
        raise RefusedScheme("checkpoint", expected="another", found="this one", remedy="None.")

    replace(loaders, "_require_schemes", refuse)


@defect("capability", Outcome.INCOMPLETE)
def key_mismatch_without_fields(process: str, loader: str) -> None:
    """The daemon's refusal reaches the engine as another refusal, without the differing fields."""
    original = CacheClient.attach

    def attach(self: CacheClient, *arguments: Any) -> Any:
        try:
            return original(self, *arguments)
        except KeyMismatch as error:
            raise KeyMismatch(error.where, expected="a key", found="another", remedy="None.") from error

    if process == "engine":
        replace(CacheClient, "attach", attach)


@defect("capability", Outcome.WRONG_ROUTE)
def refusal_after_attaching(process: str, loader: str) -> None:
    """The backend is refused only once the daemon has handed out its memory."""
    original = CacheClient.attach

    def attach(self: CacheClient, *arguments: Any) -> Any:
        attached = original(self, *arguments)
        attached.arena.close()
        return kernels.require_preprocessed(TorchScaledMm(), "model.layers.0.self_attn.qkv_proj")

    replace(loaders, "require_preprocessed", lambda kernel, layers: None)
    if process == "engine":
        replace(CacheClient, "attach", attach)


@defect("capability", Outcome.WRONG_ROUTE)
def daemon_reads_before_it_refuses(process: str, loader: str) -> None:
    """The daemon refuses the scheme after it has read the weight files."""
    original = loaders._require_schemes

    def refuse(checkpoint: Any, layers: Any) -> None:
        for file in checkpoint.glob("*.safetensors"):
            file.read_bytes()
        original(checkpoint, layers)

    if process == "daemon":
        replace(loaders, "_require_schemes", refuse)


@defect("capability", Outcome.INCOMPLETE)
def daemon_refuses_without_a_name(process: str, loader: str) -> None:
    """The daemon refuses in words that name neither layer nor scheme; the engines do it right."""

    def refuse(checkpoint: Any, layers: Any) -> None:
        raise RefusedScheme("checkpoint", expected="another", found="this one", remedy="None.")

    if process == "daemon":
        replace(loaders, "_require_schemes", refuse)
