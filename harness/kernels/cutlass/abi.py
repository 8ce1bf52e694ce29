"""The library's C interface; mirrors api.h."""

import ctypes
from pathlib import Path

from ...errors import KernelBuildError

BFLOAT16, FLOAT16 = 0, 1
ARCHITECTURE_REFUSED = 8
FIRST_FOREIGN_STATUS = 100
"""Statuses below are the library's own refusals; from here on they are CUTLASS's and the CUDA runtime's."""


class Problem(ctypes.Structure):
    """`LoadproofScaledMm`: addresses on the device, strides in elements."""

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("d", ctypes.c_void_p),
        ("scale_a", ctypes.c_void_p),
        ("scale_b", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("lda", ctypes.c_int64),
        ("ldb", ctypes.c_int64),
        ("ldd", ctypes.c_int64),
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("scale_a_is_vector", ctypes.c_int32),
        ("scale_b_is_vector", ctypes.c_int32),
        ("out_type", ctypes.c_int32),
    )


SIGNATURES = {
    "loadproof_cutlass_workspace": (
        ctypes.c_int32,
        (ctypes.POINTER(Problem), ctypes.POINTER(ctypes.c_size_t)),
    ),
    "loadproof_cutlass_scaled_mm": (
        ctypes.c_int32,
        (ctypes.POINTER(Problem), ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
    ),
    "loadproof_cutlass_message": (ctypes.c_char_p, (ctypes.c_int32,)),
    "loadproof_cutlass_choose": (ctypes.c_int32, (ctypes.c_int64,)),
    "loadproof_cutlass_name": (ctypes.c_char_p, (ctypes.c_int32,)),
}
"""Result and arguments of each function."""


def load(path: Path) -> ctypes.CDLL:
    """The library at `path`, its functions typed; needs no GPU.

    Raises:
        KernelBuildError: it cannot be loaded, or lacks a function.
    """
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise KernelBuildError(
            path,
            expected="a library with the functions of api.h",
            found=error,
            remedy="Remove the folder, so that it is built again; see that nvcc and the linker are whole.",
        ) from error
    return library
