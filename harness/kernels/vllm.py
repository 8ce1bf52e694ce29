"""vLLM's own CUTLASS operator, `torch.ops._C.cutlass_scaled_mm`, of an installed vLLM or of its library.

vLLM itself is never imported: its library registers the operator when it is loaded. Its Hopper kernels use
fast accumulation throughout (vLLM's csrc/.../cutlass/c3x/scaled_mm_sm90_fp8_dispatch.cuh).
"""

import base64
import csv
import functools
import hashlib
import importlib.util
import mmap
import os
from pathlib import Path

import torch

from ..errors import InvalidInput, KernelBuildError, KernelLaunchError
from .accumulation import Doubles, fast_error
from .contract import check_gpu_call, check_operands
from .protocol import Launches

LIBRARY_VARIABLE = "LOADPROOF_VLLM_LIBRARY"
LIBRARIES = ("_C_stable_libtorch.abi3.so", "_C.abi3.so")
"""Which of the two has the operator depends on vLLM's version."""

SCHEMA = b"cutlass_scaled_mm(Tensor"
"""The operator's declaration, as the library that registers it holds it."""

OPERATOR = "_C::cutlass_scaled_mm"


class VllmCutlassKernel(Launches):
    """vLLM's CUTLASS kernels. Finds its library at first use, not when it is made."""

    name = "vllm-cutlass"
    accepts_preprocessed = True

    def __init__(self) -> None:
        super().__init__()
        self._loaded = False

    @staticmethod
    def sum_error(a: Doubles, b: Doubles) -> Doubles:
        """See `Kernel.sum_error`: its Hopper kernels use fast accumulation throughout."""
        return fast_error(a, b)

    @functools.cached_property
    def library(self) -> Path:
        """The file that registers the operator; raises InvalidInput where there is none."""
        return find_library()

    @functools.cached_property
    def provenance(self) -> dict[str, str | bool | None]:
        """`library`, its `sha256` (hexadecimal), and whether it is the wheel's file.

        `recorded` is the hash in the RECORD of the wheel that the file lies in, `actual` the file's, both as
        `sha256=<URL-safe base64>`; `equal` says whether they agree. `recorded`, `equal` and `wheel` are None
        where no RECORD lies beside the package, as with a file that was copied alone.
        """
        digest = _sha256(self.library)
        actual = "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        wheel, recorded = recorded_hash(self.library)
        return {
            "library": str(self.library),
            "sha256": digest.hex(),
            "wheel": wheel,
            "recorded": recorded,
            "actual": actual,
            "equal": None if recorded is None else recorded == actual,
        }

    def build_id(self) -> str:
        """Prefix of the library's sha256; loads nothing."""
        return str(self.provenance["sha256"])[:16]

    def scaled_mm(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        """See `Kernel.scaled_mm`; runs on the current stream of the operands' device.

        Raises:
            InvalidInput: the operands are not on a GPU, or there is no library.
            KernelBuildError: the library cannot be loaded.
            KernelLaunchError: vLLM's operator refused.
        """
        check_operands(a, b, scale_a, scale_b, bias, out_dtype)
        check_gpu_call(self.name, out_dtype, a, b, scale_a, scale_b, bias)
        out = torch.empty((a.shape[0], b.shape[1]), dtype=out_dtype, device=a.device)
        if a.shape[0] == 0:
            return out
        self._load()
        # One value, or one for each row [M, 1] and each column [1, N].
        row_scales = scale_a.view(1) if scale_a.dim() == 0 else scale_a
        column_scales = scale_b.view(1, -1) if scale_b.dim() else scale_b.view(1)
        try:
            torch.ops._C.cutlass_scaled_mm(out, a, b, row_scales, column_scales, bias)
        except RuntimeError as error:
            raise KernelLaunchError(
                f"{OPERATOR} of {self.library}",
                expected="a launch",
                found=error,
                remedy="See that the GPU is free and healthy (nvidia-smi), and that vLLM is built for it.",
            ) from error
        self._note(OPERATOR)
        return out

    def _load(self) -> None:
        if not self._loaded:
            load(self.library)
            self._loaded = True


def find_library() -> Path:
    """The library named by LOADPROOF_VLLM_LIBRARY, else the installed vLLM's, which is not imported.

    Raises:
        InvalidInput: there is none, or it does not hold the operator.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        places = [Path(named)]
    else:
        found = importlib.util.find_spec("vllm")
        folders = (found.submodule_search_locations or []) if found else []
        places = [Path(folder) / name for folder in folders for name in LIBRARIES]
    for place in places:
        if place.is_file() and _holds(place, SCHEMA):
            return place.absolute()
    raise InvalidInput(
        "kernel 'vllm-cutlass'",
        expected="a library of vLLM that registers cutlass_scaled_mm",
        found=f"none at {', '.join(map(str, places))}" if places else "no vLLM installed",
        remedy=f"Install vLLM, or set {LIBRARY_VARIABLE} to the {LIBRARIES[0]} of one.",
    )


def recorded_hash(library: Path) -> tuple[str | None, str | None]:
    """The wheel that lies around a library, as `vllm-0.33.0`, and the hash its RECORD has of that file."""
    entry = f"{library.parent.name}/{library.name}"
    for record in sorted(library.parent.parent.glob(f"{library.parent.name}-*.dist-info/RECORD")):
        with record.open(newline="", encoding="utf-8") as lines:
            for row in csv.reader(lines):
                if row and row[0] == entry:
                    return record.parent.name.removesuffix(".dist-info"), row[1] or None
    return None, None


def load(library: Path) -> None:
    """Load a library into this process; raises KernelBuildError where it fails or lacks the operator."""
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        torch.ops._C.cutlass_scaled_mm  # noqa: B018 - looked up, not called
    except (OSError, RuntimeError, AttributeError) as error:
        raise KernelBuildError(
            library,
            expected=f"a library that torch {torch.__version__} loads, and the operator {OPERATOR} in it",
            found=error.__cause__ or error,
            remedy="Take the library of a vLLM for this torch with CUDA, and load no second vLLM beside it.",
        ) from error


def _sha256(file: Path) -> bytes:
    found = file.stat()
    return _hashed(file, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@functools.cache
def _hashed(file: Path, *_state: int) -> bytes:
    """Once for each state of the file, in a process and those that it forks: 0.1 s for vLLM's library."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


def _holds(file: Path, words: bytes) -> bool:
    if file.stat().st_size == 0:
        return False
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(words) >= 0
