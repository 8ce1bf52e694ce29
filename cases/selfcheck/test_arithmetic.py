"""Formats and the reference kernel against derivations that share no code with them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loadproof.harness.checkpoint.layers import checked_projections
from loadproof.harness.checkpoint.writer import synthetic_tensors
from loadproof.harness.checks.compare import compare
from loadproof.harness.checks.derivation import DECODED, encode_e4m3, processed_bytes
from loadproof.harness.errors import BadScale, KernelContractError
from loadproof.harness.formats import FORMATS
from loadproof.harness.formats.e4m3 import E4M3, quantize_per_token, quantize_static, saturating_e4m3
from loadproof.harness.kernels.reference import ReferenceKernel, rounded_once
from loadproof.harness.matrix import layer_spec
from loadproof.harness.outcome import Outcome
from loadproof.harness.spec import ProjectionKind, Scheme
from loadproof.harness.tensor_bytes import memory_bytes

EDGES = [0.0, -0.0, 447.0, 448.0, 464.0, 465.0, 480.0, 1e4, -1e4, float("inf"), -float("inf"), float("nan")]
QKV = ProjectionKind.QKV


def test_table_of_codes_is_torch_s() -> None:
    values = torch.arange(256, dtype=torch.uint8).view(E4M3).to(torch.float64).numpy()
    np.testing.assert_array_equal(values, DECODED)


def test_clamp_keeps_nan_and_saturates_the_rest() -> None:
    codes = saturating_e4m3(torch.tensor(EDGES)).view(torch.uint8).tolist()
    assert codes == [0, 0x80, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7E, 0xFE, 0x7F]


def test_cast_does_not_rely_on_a_saturating_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.Tensor.to

    def as_torch_2_11(self: torch.Tensor, *arguments: object, **named: object) -> torch.Tensor:
        if E4M3 in arguments:
            self = torch.where(self.abs() > 464, torch.full_like(self, torch.nan), self)
        return original(self, *arguments, **named)

    with_saturation = saturating_e4m3(torch.tensor(EDGES)).view(torch.uint8)
    monkeypatch.setattr(torch.Tensor, "to", as_torch_2_11)
    assert torch.tensor([1e4]).to(E4M3).view(torch.uint8).item() == 0x7F
    assert saturating_e4m3(torch.tensor(EDGES)).view(torch.uint8).equal(with_saturation)


@given(st.lists(st.floats(width=32), min_size=1, max_size=64))
@settings(max_examples=300, deadline=None)
def test_cast_equals_the_table(values: list[float]) -> None:
    ours = saturating_e4m3(torch.tensor(values, dtype=torch.float32)).view(torch.uint8).numpy()
    table = encode_e4m3(np.array(values, dtype=np.float32))
    np.testing.assert_array_equal(np.where(ours == 0xFF, 0x7F, ours), table)


@pytest.mark.parametrize("scheme", list(Scheme), ids=lambda s: s.value.lower())
@pytest.mark.parametrize("equal", [False, True], ids=["unequal", "equal"])
@pytest.mark.parametrize(
    "widths", [(32, 16, 16), (31, 17, 5), (17, 1, 1)], ids=["aligned", "padded", "narrow"]
)
def test_processing_equals_the_derivation(scheme: Scheme, equal: bool, widths: tuple[int, ...]) -> None:
    layer = layer_spec(QKV, scheme, widths, 40)
    projections = checked_projections(layer, synthetic_tensors(layer, 5, equal), "synthetic")  # type: ignore[arg-type]
    processed = FORMATS[scheme].process(layer, projections)
    expected = processed_bytes(layer, projections)
    assert processed.tensors.keys() == expected.keys()
    for name, want in expected.items():
        np.testing.assert_array_equal(memory_bytes(processed.tensors[name]).numpy(), want)


def test_equal_scales_leave_the_weight_s_bytes() -> None:
    layer = layer_spec(QKV, Scheme.FP8, (16, 16, 16), 32)
    tensors = synthetic_tensors(layer, 5, True)
    projections = checked_projections(layer, tensors, "synthetic")  # type: ignore[arg-type]
    processed = FORMATS[Scheme.FP8].process(layer, projections)
    stored = torch.cat([p.weight.view(torch.uint8) for p in projections])
    assert processed.tensors["weight"].t().contiguous().view(torch.uint8).equal(stored)


def test_scale_that_float16_cannot_hold_is_refused() -> None:
    layer = layer_spec(QKV, Scheme.FP8, (16, 16, 16), 32)
    tensors = synthetic_tensors(layer, 5, False)
    name = f"{layer.projections[1].name}.weight_scale"
    tensors[name] = torch.full_like(tensors[name], 1e-9)
    projections = checked_projections(layer, tensors, "synthetic")  # type: ignore[arg-type]
    with pytest.raises(BadScale, match=r"k_proj\.weight_scale.*float16"):
        FORMATS[Scheme.FP8].process(layer, projections)


def test_static_quantisation_clamps_and_keeps_nan() -> None:
    x = torch.tensor([[10.0, -10.0, torch.nan, torch.inf]])
    assert quantize_static(x, torch.tensor(0.01)).view(torch.uint8).tolist() == [[0x7E, 0xFE, 0x7F, 0x7E]]


def test_zero_row_takes_the_floor_and_nan_does_not_spread() -> None:
    codes, scale = quantize_per_token(torch.tensor([[0.0, 0.0], [torch.nan, 2.0]]))
    assert scale.flatten().tolist() == [np.float32(1 / (448 * 512)), np.float32(2 / 448)]
    assert codes.view(torch.uint8).tolist() == [[0, 0], [0x7F, 0x7E]]


def operands(m: int = 3, k: int = 32, n: int = 16) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    a = saturating_e4m3(torch.randn(m, k, generator=generator) * 50)
    b = saturating_e4m3(torch.randn(n, k, generator=generator) * 50).t()
    return {"a": a, "b": b, "scale_a": torch.tensor(0.5), "scale_b": torch.ones(n), "bias": None}


def test_reference_kernel_equals_integer_arithmetic() -> None:
    given_ = operands(m=5, k=64, n=32)
    a, b = given_["a"], given_["b"]
    assert a is not None
    assert b is not None
    out = ReferenceKernel().scaled_mm(**given_, out_dtype=torch.bfloat16)  # type: ignore[arg-type]
    left, right = (t.to(torch.float64).mul(512).to(torch.int64) for t in (a, b))
    exact = (left @ right).to(torch.float64) * 2.0**-18 * 0.5
    assert compare(rounded_once(exact, torch.bfloat16), out)[0] is Outcome.PASS


def test_reference_kernel_gives_row_zero_the_same_bytes_at_every_m() -> None:
    given_ = operands(m=128, k=64, n=32)
    whole = ReferenceKernel().scaled_mm(**given_, out_dtype=torch.bfloat16)  # type: ignore[arg-type]
    a = given_["a"]
    assert a is not None
    one = ReferenceKernel().scaled_mm(**(given_ | {"a": a[:1]}), out_dtype=torch.bfloat16)  # type: ignore[arg-type]
    assert compare(whole[:1], one)[0] is Outcome.PASS


def test_rounding_happens_once() -> None:
    # 1 + 2^-8 is a tie in bfloat16 and would go to even, 1.0; a little more must go up, and float32 drops it.
    exact = torch.tensor([1 + 2.0**-8 + 2.0**-40], dtype=torch.float64)
    assert exact.to(torch.float32).to(torch.bfloat16).item() == 1.0
    assert rounded_once(exact, torch.bfloat16).item() == 1 + 2.0**-7


@pytest.mark.parametrize(
    ("operand", "broken"),
    [
        ("b", lambda t: t.contiguous()),
        ("a", lambda t: t.to(torch.float32)),
        ("a", lambda t: t[:, :24]),
        ("b", lambda t: t[:, :8]),
        ("scale_a", lambda t: torch.ones(1, 3)),
        ("scale_b", lambda t: torch.ones(16, 1)),
        ("scale_b", lambda t: t.to(torch.float16)),
    ],
    ids=["row-major-b", "wrong-dtype", "k-24", "n-8", "scale-a-rank", "scale-b-rank", "scale-dtype"],
)
def test_kernel_refuses_what_cutlass_would_not_take(operand: str, broken: object) -> None:
    given_ = operands()
    given_[operand] = broken(given_[operand])  # type: ignore[operator]
    with pytest.raises(KernelContractError):
        ReferenceKernel().scaled_mm(**given_, out_dtype=torch.bfloat16)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("left", "right", "verdict"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), "BYTES"),
        (torch.tensor([torch.nan]), torch.tensor([torch.nan]), "PASS"),
        (torch.tensor(1.0), torch.tensor(1.0), "PASS"),
        (torch.zeros(2), torch.zeros(2, 1), "SHAPE"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float16), "DTYPE"),
        (torch.zeros(2, 3).t(), torch.zeros(3, 2), "PASS"),
    ],
    ids=["signed-zero", "same-nan", "zero-dim", "shape", "dtype", "strided"],
)
def test_comparison_is_of_bytes(left: torch.Tensor, right: torch.Tensor, verdict: str) -> None:
    assert compare(left, right)[0].value == verdict


def test_comparison_names_the_first_difference() -> None:
    left = torch.zeros(2, 3, dtype=torch.bfloat16)
    right = left.clone()
    right[1, 2] = 1.0
    verdict, found = compare(left, right)
    assert verdict is Outcome.BYTES
    assert (found["first_index"], found["reference_hex"], found["candidate_hex"]) == ([1, 2], "0000", "803f")
