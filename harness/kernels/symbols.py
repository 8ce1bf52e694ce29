"""Which backend a kernel belongs to that the driver launched, by words in its symbol."""

from collections.abc import Iterable, Sequence

WORDS = {
    "vllm-cutlass": ("vllm", "cutlass"),
    "cutlass": ("cutlass", "device_kernel", "GemmUniversal"),
    "torch-scaled-mm": ("nvjet", "_qq"),
    "triton": ("loadproof_triton",),
}
"""Backend to what its symbols hold, in the order of asking: vLLM's hold CUTLASS's too. nvjet is cuBLASLt, and
`_qq` says that both its operands are FP8: a model's other products are cuBLASLt's as well, and some of those
are built with CUTLASS, under symbols of their own."""


PRODUCTS = ("gemm", "gemv", "cutlass", "nvjet", "triton", "scaled")
"""Words in the names of kernels that multiply matrices."""


def products(kernels: Sequence[str]) -> list[str]:
    """Of launched kernels the matrix products, for the evidence; the others, which are many, are counted."""
    kept = [kernel for kernel in kernels if any(word in kernel.lower() for word in PRODUCTS)]
    others = len(kernels) - len(kept)
    return [*kept, f"and {others} other kernels"] if others else kept


def backends_of(symbols: Iterable[str]) -> set[str]:
    """The backends whose FP8 matrix products are among launched kernels; other kernels belong to none."""
    found = (_backend(symbol) for symbol in symbols)
    return {backend for backend in found if backend is not None}


def _backend(symbol: str) -> str | None:
    return next((name for name, words in WORDS.items() if all(word in symbol for word in words)), None)
