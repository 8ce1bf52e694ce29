"""Own CUTLASS FP8 kernel: sources with a C interface, their build and cache, and the backend."""

from .kernel import CutlassKernel

__all__ = ["CutlassKernel"]
