"""The table of planted defects, and the ways in which they are planted."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import loaders
from ..cache import views
from ..formats import FORMATS, ProcessedLayer
from ..outcome import Outcome
from ..witness.memory import memory_identity

Edit = Callable[[ProcessedLayer], ProcessedLayer]
Plant = Callable[[str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One planted defect."""

    name: str
    caught_by: str
    """The check that must not pass."""
    verdict: Outcome
    """The word that this check must say."""
    sealed: bool
    """Whether it takes memory that engines cannot write to."""
    plant: Plant
    """Called with the kind of process (`daemon`, `engine`) and, in engines, the loader."""


DEFECTS: dict[str, Defect] = {}
"""Of single layers, and of what layers and models have in common."""
MODEL_DEFECTS: dict[str, Defect] = {}
"""Of whole models."""


def defect(
    caught_by: str, verdict: Outcome, table: dict[str, Defect] = DEFECTS, *, sealed: bool = False
) -> Callable[[Plant], Plant]:
    """Enter a function into a table, under its own name."""

    def register(function: Plant) -> Plant:
        name = function.__name__.replace("_", "-")
        table[name] = Defect(name=name, caught_by=caught_by, verdict=verdict, sealed=sealed, plant=function)
        return function

    return register


def edit_attached(edit: Edit) -> None:
    """Change every layer that this process restores from the daemon's memory."""
    original = views.restore
    replace(loaders, "restore", lambda *arguments: edit(original(*arguments)))


def edit_processed(edit: Edit) -> None:
    """Change every layer that this process processes after loading it from disk."""
    for form in FORMATS.values():
        original = form.process
        replace(form, "process", lambda *arguments, original=original: edit(original(*arguments)))


def replace(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def is_attached(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in a daemon's memory."""
    return not memory_identity(tensor)[0].startswith("private:")


def with_tensors(layer: ProcessedLayer, **tensors: torch.Tensor) -> ProcessedLayer:
    return dataclasses.replace(layer, tensors=layer.tensors | tensors)
