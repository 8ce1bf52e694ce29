"""What the kernel witness needs of libcupti: the library, its layouts, and the numbers of its callbacks."""

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import LaunchError

# cupti_callbacks.h, CUDA 13.0 (CUPTI_API_VERSION 130001): CUpti_CallbackDomain, CUpti_ApiCallbackSite.
DRIVER_API = 1
API_ENTER = 0
# cupti_result.h: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED.
MULTIPLE_SUBSCRIBERS = 39

KERNEL_LAUNCHES = {
    307: "cuLaunchKernel",
    442: "cuLaunchKernel_ptsz",
    477: "cuLaunchCooperativeKernel",
    478: "cuLaunchCooperativeKernel_ptsz",
    652: "cuLaunchKernelEx",
    653: "cuLaunchKernelEx_ptsz",
}
"""cupti_driver_cbid.h, CUDA 13.0: CUPTI_DRIVER_TRACE_CBID_<name>; `symbolName` is the kernel's.

Left out, since nothing of today calls them: cuLaunch (115), cuLaunchGrid (116), cuLaunchGridAsync (117) and
cuLaunchCooperativeKernelMultiDevice (480)."""

GRAPH_LAUNCHES = {514: "cuGraphLaunch", 515: "cuGraphLaunch_ptsz"}
"""The same header: a graph's kernels are not launched one by one, so they have no names here."""

SONAMES = ("libcupti.so.13", "libcupti.so.12")
DEFAULT_TOOLKIT = "/usr/local/cuda"


class CallbackData(ctypes.Structure):
    """`CUpti_CallbackData` of cupti_callbacks.h, CUDA 13.0."""

    _fields_ = (
        ("callback_site", ctypes.c_int),
        ("function_name", ctypes.c_char_p),
        ("function_params", ctypes.c_void_p),
        ("function_return_value", ctypes.c_void_p),
        ("symbol_name", ctypes.c_char_p),
        ("context", ctypes.c_void_p),
        ("context_uid", ctypes.c_uint32),
        ("correlation_data", ctypes.POINTER(ctypes.c_uint64)),
        ("correlation_id", ctypes.c_uint32),
    )
    callback_site: int
    symbol_name: bytes | None


CallbackFunction = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(CallbackData)
)
"""`CUpti_CallbackFunc`: user data, domain, callback number, data."""

SIGNATURES = {
    "cuptiSubscribe": (ctypes.POINTER(ctypes.c_void_p), CallbackFunction, ctypes.c_void_p),
    "cuptiUnsubscribe": (ctypes.c_void_p,),
    "cuptiEnableCallback": (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32),
    "cuptiGetCallbackName": (ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(ctypes.c_char_p)),
    "cuptiGetResultString": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
}
"""Arguments of each function; all return a CUptiResult, 0 for success."""


def load_cupti() -> ctypes.CDLL:
    """libcupti, its functions typed; its numbers are checked against the tables above.

    Raises:
        LaunchError: it is nowhere, or numbers its callbacks in another way.
    """
    tried: list[str] = []
    for name, mode in candidates():
        tried.append(name)
        try:
            cupti = ctypes.CDLL(name, mode=mode)
        except OSError:
            continue
        for function, arguments in SIGNATURES.items():
            typed = getattr(cupti, function)
            typed.restype, typed.argtypes = ctypes.c_int, arguments
        _check_numbers(cupti, name)
        return cupti
    raise LaunchError(
        "kernel witness",
        expected="libcupti, which a torch for CUDA or the CUDA toolkit brings",
        found=f"none that loads at {', '.join(dict.fromkeys(tried))}",
        remedy="Install nvidia-cuda-cupti of torch's CUDA release, or set CUDA_HOME to a toolkit.",
    )


def candidates() -> Iterator[tuple[str, int]]:
    """Where libcupti may be, with how to open it: a second copy beside torch's own would see no launch."""
    for name in SONAMES:
        yield name, os.RTLD_NOLOAD | os.RTLD_NOW
    for folder in _package_folders():
        for file in sorted(folder.glob("libcupti.so*")):
            yield str(file), os.RTLD_NOW
    for name in SONAMES:
        yield name, os.RTLD_NOW
    for folder in _toolkit_folders():
        yield str(folder / "libcupti.so"), os.RTLD_NOW


def _package_folders() -> Iterator[Path]:
    # A namespace package: finding it imports nothing.
    found = importlib.util.find_spec("nvidia")
    for root in (found.submodule_search_locations or []) if found else []:
        yield from (Path(root) / "cu13" / "lib", Path(root) / "cuda_cupti" / "lib")


def _toolkit_folders() -> Iterator[Path]:
    named = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), DEFAULT_TOOLKIT)
    for root in dict.fromkeys(root for root in named if root):
        yield from (Path(root) / "extras" / "CUPTI" / "lib64", Path(root) / "lib64")


def _check_numbers(cupti: ctypes.CDLL, library: str) -> None:
    for number, name in (KERNEL_LAUNCHES | GRAPH_LAUNCHES).items():
        found = ctypes.c_char_p()
        cupti.cuptiGetCallbackName(DRIVER_API, number, ctypes.byref(found))
        if found.value != name.encode():
            raise LaunchError(
                library,
                expected=f"driver callback {number} to be {name}, as in CUDA 13.0",
                found=found.value.decode() if found.value else "no such callback",
                remedy="Use the libcupti of CUDA 12 or 13.",
            )
