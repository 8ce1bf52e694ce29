"""Planted defects: named patches, each with the check that must catch it.

A harness that has never been seen to fail proves nothing. Each defect is planted in the process where
it would really happen, by replacing one function there; nothing else of the run is told.
"""

from . import cache, endings, models, outputs, processing, refusals
from .registry import DEFECTS, MODEL_DEFECTS, Defect


def plant(name: str, process: str, loader: str = "disk") -> None:
    """Plant a defect in this process; raises KeyError for an unknown name."""
    (DEFECTS | MODEL_DEFECTS)[name].plant(process, loader)


__all__ = [
    "DEFECTS",
    "MODEL_DEFECTS",
    "Defect",
    "cache",
    "endings",
    "models",
    "outputs",
    "plant",
    "processing",
    "refusals",
]
