"""Kernel witness: which kernels this process launches, as CUPTI's callback API reports them.

CUPTI calls back at the entry of each launch in the driver API, whichever library launches. It is
loaded through ctypes: no package for it is needed, and nothing is traced or buffered.
"""

import ctypes
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..errors import LaunchError, LoadproofError
from .libcupti import (
    API_ENTER,
    DRIVER_API,
    GRAPH_LAUNCHES,
    KERNEL_LAUNCHES,
    MULTIPLE_SUBSCRIBERS,
    CallbackData,
    CallbackFunction,
    load_cupti,
)


class KernelWitness:
    """Watches the launches of this process from `__enter__` to `__exit__`.

    A process has one CUPTI subscriber: no second witness, and no profiler, at the same time.
    """

    graph_launches: int
    """CUDA graphs launched: the kernels in a graph are not seen one by one."""
    failures: list[BaseException]
    """What went wrong in callbacks, so that launches may be missing from `kernels`."""

    def __init__(self) -> None:
        self.graph_launches = 0
        self.failures = []
        self._symbols: dict[bytes, None] = {}
        self._subscriber = ctypes.c_void_p()
        # Kept as long as CUPTI may call it.
        self._callback = CallbackFunction(self._called)
        self._cupti: ctypes.CDLL | None = None

    @property
    def kernels(self) -> list[str]:
        """Demangled names of the kernels launched so far, in order of first use; mangled where that fails."""
        return [demangled(symbol) for symbol in self._symbols]

    def __enter__(self) -> "KernelWitness":
        """Start watching; needs no CUDA context yet.

        Raises:
            LaunchError: there is no libcupti of a known layout, or this process has a subscriber already.
        """
        cupti = load_cupti()
        status = cupti.cuptiSubscribe(ctypes.byref(self._subscriber), self._callback, None)
        if status == MULTIPLE_SUBSCRIBERS:
            raise LaunchError(
                "kernel witness",
                expected="to be the only CUPTI subscriber of this process",
                found="another: a witness, torch.profiler, or a tool such as Nsight or cuda-gdb",
                remedy="Run without that tool, and use one witness at a time.",
            )
        _require_success(cupti, "cuptiSubscribe", status)
        self._cupti = cupti
        try:
            for callback in (*KERNEL_LAUNCHES, *GRAPH_LAUNCHES):
                status = cupti.cuptiEnableCallback(1, self._subscriber, DRIVER_API, callback)
                _require_success(cupti, "cuptiEnableCallback", status)
        except LoadproofError:
            self._unsubscribe()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching; raises LaunchError if a callback failed, unless the block itself raises.

        An interrupt that came while a callback ran is raised here, as it is.
        """
        self._unsubscribe()
        for failure in self.failures:
            if not isinstance(failure, Exception):
                raise failure
        if self.failures and kind is None:
            raise LaunchError(
                "kernel witness",
                expected="every launch to be noted",
                found=f"{len(self.failures)} that were not; the first: {self.failures[0]!r}",
                remedy="Report it: a launch without a readable name is a defect of the witness.",
            ) from self.failures[0]

    def _unsubscribe(self) -> None:
        cupti, self._cupti = self._cupti, None
        if cupti is not None:
            _require_success(cupti, "cuptiUnsubscribe", cupti.cuptiUnsubscribe(self._subscriber))

    def _called(self, _: object, domain: int, callback: int, data: Any) -> None:
        # Called from C, on whichever thread launches: nothing may leave it. And twice for each of the tens of
        # thousands of launches of a model, so that it is one function.
        try:
            call: CallbackData = data.contents
            if domain != DRIVER_API or call.callback_site != API_ENTER:
                return
            if callback in GRAPH_LAUNCHES:
                self.graph_launches += 1
            elif callback in KERNEL_LAUNCHES:
                if call.symbol_name is None:
                    raise ValueError(f"{KERNEL_LAUNCHES[callback]} without a symbol name")
                self._symbols.setdefault(call.symbol_name)
        except BaseException as error:
            self.failures.append(error)


def demangled(symbol: bytes) -> str:
    """A C++ symbol as it is written in the source; as it is, where it is none or libstdc++ lacks."""
    demangle, free = _demangler()
    status = ctypes.c_int(-1)
    name = demangle(symbol, None, None, ctypes.byref(status)) if demangle else None
    if not name:
        return symbol.decode("utf-8", "backslashreplace")
    try:
        return ctypes.string_at(name).decode("utf-8", "backslashreplace")
    finally:
        free(name)


def _demangler() -> tuple[Callable[..., int | None] | None, Callable[[int], None]]:
    free = ctypes.CDLL(None).free
    free.argtypes, free.restype = (ctypes.c_void_p,), None
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return None, free
    demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    demangle.restype = ctypes.c_void_p
    return demangle, free


def _require_success(cupti: ctypes.CDLL, function: str, status: int) -> None:
    if status:
        words = ctypes.c_char_p()
        cupti.cuptiGetResultString(status, ctypes.byref(words))
        raise LaunchError(
            "kernel witness",
            expected=f"{function} to succeed",
            found=f"status {status}: {(words.value or b'no words for it').decode()}",
            remedy="See that a GPU and its driver are there (nvidia-smi), of the CUDA release of libcupti.",
        )
