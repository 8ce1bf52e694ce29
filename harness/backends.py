"""What each device offers to cases: transports and kernels. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """What a device offers."""

    device: str
    transports: tuple[str, ...]
    """Memory that engines can only read, and memory that they could write to."""
    attaching: tuple[str, ...]
    """Kernels that take pre-processed weights."""
    refused: tuple[str, ...]
    """Kernels that load from disk only."""


BACKENDS = {
    backends.device: backends
    for backends in (
        Backends(
            device="cpu",
            transports=("memfd", "memfd-writable"),
            attaching=("reference",),
            refused=("torch-scaled-mm",),
        ),
        Backends(
            device="cuda",
            transports=("cuda-vmm", "cuda-ipc"),
            attaching=("cutlass", "vllm-cutlass"),
            refused=("torch-scaled-mm", "triton"),
        ),
    )
}
SEED = 20261130
"""Of all synthetic weights."""
