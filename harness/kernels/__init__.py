"""Kernel backends by name. Naming one loads no library and no compiler; those come with its first use."""

from ..errors import InvalidInput
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


def make_kernel(name: str) -> Kernel:
    """A fresh instance of the named backend; raises InvalidInput for an unknown name."""
    return kernel_type(name)()


__all__ = ["KERNELS", "Kernel", "kernel_type", "make_kernel"]
