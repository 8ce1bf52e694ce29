"""Planted in how an engine ends, and in what it says of itself."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from .. import engine
from ..layers import FusedFp8Linear
from ..outcome import Outcome
from ..scratch import save_tensors
from .registry import defect, replace


@defect("outputs_exact", Outcome.TIMEOUT)
def hang(process: str, loader: str) -> None:
    """The attached engine never comes back from its run."""
    if process == "engine" and loader == "cache":
        replace(engine, "run_layer", lambda layer, inputs: time.sleep(600))


@defect("outputs_exact", Outcome.CRASHED)
def abort(process: str, loader: str) -> None:
    """The attached engine aborts in its kernel."""
    if process == "engine" and loader == "cache":
        replace(engine, "run_layer", lambda layer, inputs: os.abort())


@defect("outputs_exact", Outcome.CRASHED)
def escaped_exception(process: str, loader: str) -> None:
    """The attached engine raises what nobody expected."""

    def fail(layer: FusedFp8Linear, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        raise ZeroDivisionError("planted")

    if process == "engine" and loader == "cache":
        replace(engine, "run_layer", fail)


@defect("capability", Outcome.CRASHED)
def death_after_the_end(process: str, loader: str) -> None:
    """The attached engine dies of a signal after it has reported its results."""
    if process == "engine" and loader == "cache":
        original = engine.Reporter.phase

        def phase(self: engine.Reporter, name: str, **observed: Any) -> None:
            original(self, name, **observed)
            if name == "finished":
                os.kill(os.getpid(), signal.SIGKILL)

        replace(engine.Reporter, "phase", phase)


@defect("contents_preserved", Outcome.INCOMPLETE)
def empty_tensor_list(process: str, loader: str) -> None:
    """Every engine reports that it holds no tensors at all."""
    if process == "engine":
        original = engine.describe
        replace(engine, "describe", lambda *arguments: original(*arguments) | {"tensors": []})
        replace(engine, "digests", lambda processed: {})


@defect("outputs_exact", Outcome.CRASHED)
def garbled_message(process: str, loader: str) -> None:
    """The attached engine sends what is no message at all."""
    if process == "engine" and loader == "cache":
        replace(engine.Reporter, "phase", lambda self, name, **observed: self._channel._socket.send(b"[1]\n"))


@defect("outputs_exact", Outcome.CRASHED)
def truncated_results(process: str, loader: str) -> None:
    """The attached engine's result file is cut short."""
    original = save_tensors

    def save(tensors: dict[str, torch.Tensor], path: Path) -> None:
        original(tensors, path)
        os.truncate(path, 100)

    if process == "engine" and loader == "cache":
        replace(engine, "save_tensors", save)


@defect("outputs_exact", Outcome.CRASHED)
def results_of_another_engine(process: str, loader: str) -> None:
    """The cache loader's engines hand in a link to the ordinary one's results."""
    original = save_tensors

    def save(tensors: dict[str, torch.Tensor], path: Path) -> None:
        original(tensors, path)
        kept = path.with_name("kept")
        if loader == "disk":
            os.link(path, kept)
        else:
            path.unlink()
            path.symlink_to(kept)

    if process == "engine":
        replace(engine, "save_tensors", save)
