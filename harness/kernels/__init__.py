"""Kernel backends by name."""

from ..errors import InvalidInput
from .protocol import Kernel
from .reference import ReferenceKernel

KERNELS: dict[str, type[Kernel]] = {"reference": ReferenceKernel}


def make_kernel(name: str) -> Kernel:
    """A fresh instance of the named backend; raises InvalidInput for an unknown name."""
    if name not in KERNELS:
        raise InvalidInput(
            f"kernel {name!r}",
            expected=f"one of {', '.join(sorted(KERNELS))}",
            found=name,
            remedy="Pass a backend that exists on this host.",
        )
    return KERNELS[name]()


__all__ = ["KERNELS", "Kernel", "make_kernel"]
