"""vLLM's operator as a backend: its library, and the call, as far as a CPU can try them."""

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from loadproof.harness.errors import InvalidInput, KernelBuildError, KernelLaunchError
from loadproof.harness.kernels import make_kernel, vllm
from loadproof.harness.kernels.reference import ReferenceKernel
from loadproof.harness.vllm_library import LIBRARY_VARIABLE, SCHEMA, find_library, recorded_hash

from .kernel_operands import operands

CONTENT = b"\x7fELF..." + SCHEMA + b"! out, Tensor a) -> ()"
HASH = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(CONTENT).digest()).rstrip(b"=").decode()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-packages with a vLLM that must not be imported; returns the folder of the package."""
    package = tmp_path / "site" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('vllm was imported')")
    (package / "_C_stable_libtorch.abi3.so").write_bytes(CONTENT)
    monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)
    monkeypatch.syspath_prepend(package.parent)
    return package


def write_record(package: Path, recorded: str, name: str = "_C_stable_libtorch.abi3.so") -> None:
    folder = package.parent / "vllm-0.33.0.dist-info"
    folder.mkdir()
    (folder / "RECORD").write_text(
        f'"vllm/a, b.py",sha256=x,1\nother/{name},sha256=other,2\nvllm/{name},{recorded},3\n'
    )


def test_hash_is_the_one_that_the_wheel_recorded(installed: Path) -> None:
    write_record(installed, HASH)
    assert recorded_hash(find_library()) == ("vllm-0.33.0", HASH)


@pytest.mark.parametrize("name", ["", "_C.abi3.so"], ids=["no-record", "not-in-the-record"])
def test_file_that_no_wheel_records_has_no_hash(installed: Path, name: str) -> None:
    if name:
        write_record(installed, HASH, name)
    assert recorded_hash(find_library()) == (None, None)


def test_record_may_have_no_hash_of_the_file(installed: Path) -> None:
    write_record(installed, HASH)
    (installed.parent / "vllm-0.33.0.dist-info" / "RECORD").write_text("vllm/_C_stable_libtorch.abi3.so\n")
    assert recorded_hash(find_library()) == ("vllm-0.33.0", None)


def test_build_id_follows_the_content(installed: Path) -> None:
    before = vllm.VllmCutlassKernel().build_id()
    assert before == hashlib.sha256(CONTENT).hexdigest()[:16]
    (installed / "_C_stable_libtorch.abi3.so").write_bytes(CONTENT + b"rebuilt")
    assert vllm.VllmCutlassKernel().build_id() != before


def test_library_that_registers_the_operator_is_taken(installed: Path) -> None:
    (installed / "_C_stable_libtorch.abi3.so").write_bytes(b"permute_cols(Tensor A)")
    (installed / "_C.abi3.so").write_bytes(CONTENT)
    assert find_library() == installed / "_C.abi3.so"


def test_named_library_goes_before_the_installed_one(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "carried.so"
    named.write_bytes(CONTENT)
    monkeypatch.setenv(LIBRARY_VARIABLE, str(named))
    assert find_library() == named


@pytest.mark.parametrize(
    "content", [None, b"", b"\x7fELF of something else"], ids=["missing", "empty", "other"]
)
def test_named_library_that_will_not_do_is_not_replaced(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    named = tmp_path / "carried.so"
    if content is not None:
        named.write_bytes(content)
    monkeypatch.setenv(LIBRARY_VARIABLE, str(named))
    with pytest.raises(InvalidInput, match=str(named)):
        find_library()


def test_without_vllm_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"found no vLLM installed.*LOADPROOF_VLLM_LIBRARY"):
        make_kernel("vllm-cutlass").build_id()


def test_library_that_torch_cannot_load_is_named(installed: Path) -> None:
    with pytest.raises(KernelBuildError, match=r"_C_stable_libtorch\.abi3\.so"):
        vllm.load(find_library())


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """vLLM's operator with vLLM's schema, computed by the reference on a CPU; the calls that it got."""
    calls: list[tuple[Any, ...]] = []

    def called(out: torch.Tensor, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any) -> None:
        calls.append((tuple(scale_a.shape), tuple(scale_b.shape)))
        if out.shape[0] == 13:
            raise RuntimeError("thirteen rows")
        given = (scale_a.view(()) if scale_a.dim() == 1 else scale_a, scale_b.flatten())
        if scale_b.dim() == 1:
            given = (given[0], scale_b.view(()))
        out.copy_(ReferenceKernel().scaled_mm(a, b, *given, bias, out.dtype))

    if torch._C._jit_get_schemas_for_operator(vllm.OPERATOR):
        pytest.skip("this process has loaded vLLM's own operator")
    library = torch.library.Library("_C", "FRAGMENT")
    scales = "Tensor a_scales, Tensor b_scales"
    library.define(f"cutlass_scaled_mm(Tensor! out, Tensor a, Tensor b, {scales}, Tensor? bias) -> ()")
    library.impl("cutlass_scaled_mm", called, "CPU")
    monkeypatch.setattr(vllm, "check_gpu_call", lambda *_: None)
    monkeypatch.setattr(vllm.VllmCutlassKernel, "library", Path("vllm.so"))
    monkeypatch.setattr(vllm, "load", lambda library: None)
    yield calls
    library._destroy()


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "shapes"),
    [
        (False, False, lambda m: ((1,), (1,))),
        (True, True, lambda m: ((m, 1), (1, 48))),
        (False, True, lambda m: ((1,), (1, 48))),
        (True, False, lambda m: ((m, 1), (1,))),
    ],
    ids=["tensors", "rows-columns", "columns", "rows"],
)
def test_operator_gets_its_arguments_and_scales_as_vllm_shapes_them(
    operator: list[Any], m: int, bias: bool, rows: bool, columns: bool, shapes: Any
) -> None:
    given = operands(m, rows, columns, bias)
    kernel = make_kernel("vllm-cutlass")
    out = kernel.scaled_mm(**given, out_dtype=torch.float16)
    want = ReferenceKernel().scaled_mm(**given, out_dtype=torch.float16)
    assert torch.equal(out.view(torch.uint8), want.view(torch.uint8))
    assert operator == [shapes(m)]
    assert kernel.launched == ["_C::cutlass_scaled_mm"]


def test_no_rows_call_nothing(operator: list[Any]) -> None:
    kernel = make_kernel("vllm-cutlass")
    assert kernel.scaled_mm(**operands(0, True, True, True), out_dtype=torch.float16).shape == (0, 48)
    assert (operator, kernel.launched) == ([], [])


@pytest.mark.usefixtures("operator")
def test_refusal_of_the_operator_is_typed() -> None:
    kernel = make_kernel("vllm-cutlass")
    with pytest.raises(KernelLaunchError, match="thirteen rows"):
        kernel.scaled_mm(**operands(13, True, True, False), out_dtype=torch.float16)
    assert kernel.launched == []
