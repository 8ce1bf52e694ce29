"""The CUTLASS backend without a GPU: refusals before the library is touched, and statuses as errors."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from loadproof.harness.errors import InvalidInput, KernelContractError, KernelLaunchError, LoadproofError
from loadproof.harness.formats.e4m3 import E4M3
from loadproof.harness.kernels import make_kernel
from loadproof.harness.kernels.cutlass import abi, kernel


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: object) -> Path:
        raise AssertionError("the library was asked for")

    monkeypatch.setattr(kernel, "library", touched)


def operands(m: int, k: int = 32, n: int = 16) -> dict[str, torch.Tensor | None]:
    return {
        "a": torch.ones(m, k).to(E4M3),
        "b": torch.ones(n, k).to(E4M3).t(),
        "scale_a": torch.tensor(0.5),
        "scale_b": torch.ones(n),
        "bias": None,
    }


def every_other(tensor: torch.Tensor) -> torch.Tensor:
    """The same shape with twice the last stride."""
    return tensor.repeat_interleave(2, dim=-1)[..., ::2]


def misaligned(tensor: torch.Tensor) -> torch.Tensor:
    storage = torch.zeros(tensor.numel() + 1, dtype=torch.uint8)
    return storage[1:].view(tensor.shape).view(E4M3)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("m", "broken"),
    [
        (3, {"a": lambda: torch.ones(3, 64).to(E4M3)[:, :32]}),
        (1, {"a": lambda: torch.ones(1, 64).to(E4M3)[:, ::2]}),
        (3, {"a": lambda: misaligned(torch.ones(3, 32))}),
        (3, {"scale_a": lambda: torch.ones(1, 3)}),
        (3, {"scale_a": lambda: torch.ones(3)}),
        (3, {"scale_b": lambda: torch.ones(1, 16)}),
        (3, {"scale_b": lambda: every_other(torch.ones(16))}),
        (3, {"bias": lambda: every_other(torch.ones(16, dtype=torch.bfloat16))}),
        (3, {"bias": lambda: torch.ones(16)}),
    ],
    ids=[
        "unpacked-a",
        "unpacked-single-row",
        "misaligned-a",
        "scale-a-turned",
        "scale-a-rank",
        "scale-b-turned",
        "unpacked-scale-b",
        "unpacked-bias",
        "bias-dtype",
    ],
)
def test_contract_is_checked_first(m: int, broken: dict[str, Callable[[], torch.Tensor]]) -> None:
    given = operands(m) | {name: make() for name, make in broken.items()}
    with pytest.raises(KernelContractError):
        make_kernel("cutlass").scaled_mm(**given, out_dtype=torch.bfloat16)  # type: ignore[arg-type]


@pytest.mark.parametrize("m", [0, 3])
@pytest.mark.usefixtures("untouched")
def test_cpu_operands_are_refused_by_name(m: int) -> None:
    with pytest.raises(InvalidInput, match="'reference', which runs on a CPU"):
        make_kernel("cutlass").scaled_mm(**operands(m), out_dtype=torch.bfloat16)  # type: ignore[arg-type]


@pytest.mark.usefixtures("untouched")
def test_other_output_dtype_is_refused() -> None:
    with pytest.raises(KernelContractError, match="bfloat16 or float16"):
        make_kernel("cutlass").scaled_mm(**operands(3), out_dtype=torch.float32)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (4, KernelContractError),
        (abi.ARCHITECTURE_REFUSED, KernelLaunchError),
        (107, KernelLaunchError),
        (1719, KernelLaunchError),
    ],
    ids=["stride", "architecture", "cutlass", "cuda"],
)
def test_status_becomes_the_error_of_its_kind(status: int, error: type[LoadproofError]) -> None:
    class Library:
        def loadproof_cutlass_message(self, status: int) -> bytes:
            return f"words for {status}".encode()

    with pytest.raises(error, match=f"words for {status}"):
        kernel._require_success(Library(), status)  # type: ignore[arg-type]
