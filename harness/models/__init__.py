"""Whole models. An architecture more is one file and one row here; imports neither torch nor transformers."""

from .architecture import Architecture
from .llama import LLAMA
from .qwen2 import QWEN2
from .qwen3 import QWEN3

ARCHITECTURES = {each.model_type: each for each in (LLAMA, QWEN2, QWEN3)}
"""By `model_type`."""

__all__ = ["ARCHITECTURES", "Architecture"]
