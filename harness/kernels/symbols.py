"""Which backend a kernel belongs to that the driver launched, by words in its symbol."""

from collections.abc import Iterable

WORDS = {
    "vllm-cutlass": ("vllm", "cutlass"),
    "cutlass": ("cutlass",),
    "torch-scaled-mm": ("nvjet",),
    "triton": ("loadproof_triton",),
}
"""Backend to what its symbols hold, in the order of asking: vLLM's hold CUTLASS's too. nvjet is cuBLASLt."""


def backends_of(symbols: Iterable[str]) -> set[str]:
    """The backends whose matrix products are among launched kernels; other kernels belong to none."""
    found = (_backend(symbol) for symbol in symbols)
    return {backend for backend in found if backend is not None}


def _backend(symbol: str) -> str | None:
    return next((name for name, words in WORDS.items() if all(word in symbol for word in words)), None)
