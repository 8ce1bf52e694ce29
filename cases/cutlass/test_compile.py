"""The CUTLASS library, built for sm_90a by nvcc, as far as a host without a GPU can try it.

Minutes of compilation, so a folder of its own, which CI runs as a step of its own. The build goes to the
user's cache: a finished one is taken from there.
"""

import ctypes
from pathlib import Path

import pytest

from loadproof.harness.errors import KernelBuildError
from loadproof.harness.kernels.cutlass import abi, build
from loadproof.harness.kernels.cutlass.toolchain import find_toolchain


def missing_tools() -> str:
    try:
        find_toolchain()
    except KernelBuildError as error:
        return str(error)
    return ""


MISSING = missing_tools()
pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING), pytest.mark.timeout(900)]

ALIGNED = 4096
"""An address that the library may look at, and never behind."""


@pytest.fixture(scope="module")
def library() -> Path:
    return build.library()


@pytest.fixture(scope="module")
def code(library: Path) -> ctypes.CDLL:
    return abi.load(library)


def problem(**changed: int | None) -> abi.Problem:
    given: dict[str, int | None] = {
        "a": ALIGNED,
        "b": ALIGNED,
        "d": ALIGNED,
        "scale_a": ALIGNED,
        "scale_b": ALIGNED,
        "bias": None,
        "lda": 64,
        "ldb": 64,
        "ldd": 32,
        "m": 3,
        "n": 32,
        "k": 64,
        "out_type": abi.BFLOAT16,
    }
    return abi.Problem(**(given | changed))


def test_library_compiles_for_sm_90a(library: Path) -> None:
    # Per configuration and output dtype, the name under which the driver knows the kernel.
    kernels = set(library.read_bytes().split(b"\0"))
    kernels = {name for name in kernels if name.startswith(b"_ZN7cutlass13device_kernel")}
    assert len(kernels) == 6


def test_configuration_is_chosen_by_rows(code: ctypes.CDLL) -> None:
    chosen = [code.loadproof_cutlass_choose(m) for m in (1, 16, 17, 128, 129, 2**31 - 1)]
    assert chosen == [0, 0, 1, 1, 2, 2]
    names = [code.loadproof_cutlass_name(index) for index in range(4)]
    assert all(name.startswith(b"cutlass_sm90_e4m3_") for name in names[:3])
    assert len(set(names)) == 4
    assert names[3] is None


def test_no_rows_succeed_without_a_device(code: ctypes.CDLL) -> None:
    assert code.loadproof_cutlass_scaled_mm(problem(m=0, a=None, d=None), None, 0, None) == 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"a": None}, "null"),
        ({"scale_b": None}, "null"),
        ({"m": -1}, "negative"),
        ({"m": 2**32 + 1}, "2^31"),
        ({"k": 0}, "not positive"),
        ({"n": 24}, "multiple of 16"),
        ({"k": 72, "lda": 80, "ldb": 80}, "multiple of 16"),
        ({"lda": 48}, "stride"),
        ({"ldb": 72}, "stride"),
        ({"ldd": 36}, "stride"),
        ({"a": ALIGNED + 8}, "16 bytes"),
        ({"b": ALIGNED + 1}, "16 bytes"),
        ({"d": ALIGNED + 8}, "16 bytes"),
        ({"scale_a": ALIGNED + 2}, "aligned to its elements"),
        ({"bias": ALIGNED + 1}, "aligned to its elements"),
        ({"out_type": 2}, "output type"),
    ],
    ids=lambda value: (
        "-".join(f"{name}={of}" for name, of in value.items()) if isinstance(value, dict) else ""
    ),
)
def test_library_refuses_what_it_cannot_take(
    code: ctypes.CDLL, changed: dict[str, int | None], words: str
) -> None:
    status = code.loadproof_cutlass_scaled_mm(problem(**changed), None, 0, None)
    assert 0 < status < abi.FIRST_FOREIGN_STATUS
    assert words in code.loadproof_cutlass_message(status).decode()
    bytes_needed = ctypes.c_size_t(1)
    assert code.loadproof_cutlass_workspace(problem(**changed), bytes_needed) == status
    assert bytes_needed.value == 0


def test_status_of_the_runtime_is_put_into_words(code: ctypes.CDLL) -> None:
    assert code.loadproof_cutlass_message(1000 + 100) == b"no CUDA-capable device is detected"
    assert b"misaligned" in code.loadproof_cutlass_message(100 + 1).lower()
    assert b"compute capability 9.0" in code.loadproof_cutlass_message(abi.ARCHITECTURE_REFUSED)
    assert code.loadproof_cutlass_message(99) == b"unknown status"
