"""Kernel backends by name. Naming one loads no library and no compiler; those come with its first use."""

from ..errors import InvalidInput, RefusedKernel
from .cutlass import CutlassKernel
from .protocol import Kernel
from .reference import ReferenceKernel
from .torch_scaled_mm import TorchScaledMm
from .triton import TritonKernel
from .vllm import VllmCutlassKernel

KERNELS: dict[str, type[Kernel]] = {
    kernel.name: kernel
    for kernel in (CutlassKernel, ReferenceKernel, TorchScaledMm, TritonKernel, VllmCutlassKernel)
}


def kernel_type(name: str) -> type[Kernel]:
    """The named backend; raises InvalidInput for an unknown name."""
    if name not in KERNELS:
        raise InvalidInput(
            f"kernel {name!r}",
            expected=f"one of {', '.join(sorted(KERNELS))}",
            found=name,
            remedy="Pass a backend that exists on this host.",
        )
    return KERNELS[name]


def require_preprocessed(kernel: Kernel, layers: str) -> None:
    """Raise RefusedKernel, naming `layers`, unless the backend declares support for a daemon's weights."""
    if not kernel.accepts_preprocessed:
        raise RefusedKernel(
            f"layer {layers}",
            expected="a kernel backend that declares support for pre-processed weights",
            found=f"backend {kernel.name!r}",
            remedy="Use a backend that does (reference on a CPU) with a weight cache, or load from disk.",
        )


def make_kernel(name: str) -> Kernel:
    """A fresh instance of the named backend; raises InvalidInput for an unknown name."""
    return kernel_type(name)()


__all__ = ["KERNELS", "Kernel", "kernel_type", "make_kernel", "require_preprocessed"]
