"""Defects of FP8 arithmetic and layout that others have had, by kind; what a CPU can show of them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from loadproof.harness.checkpoint.layers import checked_projections
from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.checks.compare import compare
from loadproof.harness.errors import KernelContractError, WrongTensor
from loadproof.harness.formats import FORMATS, ProcessedLayer
from loadproof.harness.formats.e4m3 import E4M3, saturating_e4m3
from loadproof.harness.kernels.reference import ReferenceKernel
from loadproof.harness.layers import FusedFp8Linear
from loadproof.harness.loaders import load_from_disk
from loadproof.harness.outcome import Outcome
from loadproof.harness.spec import LayerSpec, Projection, Scheme
from loadproof.harness.tensor_bytes import memory_bytes

from .daemons import LAYER, detach, load, serves, write

ORIGIN = Path("synthetic")
PER_CHANNEL = Scheme.FP8_PER_CHANNEL_PER_TOKEN


def layer_of(scheme: Scheme, *widths: int, k: int = 33, bias: bool = False) -> LayerSpec:
    parts = tuple(Projection(name=f"l.p{i}", logical_width=width) for i, width in enumerate(widths))
    return LayerSpec(name="l.fused", scheme=scheme, projections=parts, logical_k=k, bias=bias)


def processed(layer: LayerSpec, tensors: dict[str, torch.Tensor]) -> ProcessedLayer:
    return FORMATS[layer.scheme].process(layer, checked_projections(layer, tensors, ORIGIN))


def run(layer: ProcessedLayer, x: torch.Tensor) -> torch.Tensor:
    linear = FusedFp8Linear(layer, ReferenceKernel())
    return linear.multiply(*linear.quantize(x))


def integers(rows: int, columns: int) -> torch.Tensor:
    """Small integers, which E4M3 holds exactly, as bfloat16."""
    return (torch.arange(rows * columns).reshape(rows, columns) % 9 - 4).to(torch.bfloat16)


def assert_same(one: torch.Tensor, other: torch.Tensor) -> None:
    verdict, found = compare(one, other)
    assert verdict is Outcome.PASS, found


class TestRankOfAChannelScale:
    """vllm-project/vllm P42651 (review), P41868: padding at load time changed the scale's rank."""

    @pytest.mark.parametrize("n", [1, 17, 32])
    def test_a_row_and_a_column_of_scales_give_the_same_exact_output(self, n: int) -> None:
        layer = layer_of(PER_CHANNEL, n)
        weight = integers(n, 33)
        scale = torch.tensor([2.0 ** (i % 3) for i in range(n)])
        outputs = []
        for shape in ((n,), (n, 1)):
            tensors = {"l.p0.weight": weight.to(E4M3), "l.p0.weight_scale": scale.reshape(shape)}
            layer_ = processed(layer, tensors)
            assert tuple(layer_.tensors["weight_scale"].shape) == (layer.padded_width,)
            # 448 as each row's peak makes the token scale 1, so that every number here is exact.
            x = integers(3, 33)
            x[:, 0] = 448
            outputs.append(run(layer_, x))
            exact = (x.double() @ weight.double().t()) * scale.double()
            assert_same(outputs[-1], exact.to(torch.bfloat16))
        assert_same(*outputs)

    def test_padded_rows_never_reach_the_output(self) -> None:
        layer = layer_of(PER_CHANNEL, 17)
        one = processed(layer, synthetic_tensors(layer, 1, False))
        garbage = one.tensors["weight_scale"].clone()
        garbage[17:] = torch.nan
        other = ProcessedLayer(spec=layer, layout=one.layout, tensors=one.tensors | {"weight_scale": garbage})
        x = integers(3, 33)
        assert_same(run(one, x), run(other, x))

    @pytest.mark.parametrize("shape", [(), (1,)], ids=str)
    def test_scale_of_one_tensor_is_not_padded(self, shape: tuple[int, ...]) -> None:
        layer = layer_of(Scheme.FP8, 17)
        tensors = synthetic_tensors(layer, 1, False)
        tensors["l.p0.weight_scale"] = tensors["l.p0.weight_scale"].reshape(shape)
        assert processed(layer, tensors).tensors["weight_scale"].shape == ()

    def test_one_channel_is_not_one_tensor(self) -> None:
        layer = layer_of(PER_CHANNEL, 1)
        tensors = synthetic_tensors(layer, 1, False)
        assert processed(layer, tensors).tensors["weight_scale"].shape == (16,)
        tensors["l.p0.weight_scale"] = torch.tensor(0.5)
        with pytest.raises(WrongTensor, match=r"p0\.weight_scale"):
            processed(layer, tensors)


class TestOneScaleForAFusedProjection:
    """vllm-project/vllm I5915, P4332: fused on disk has one scale, split has one for each part."""

    SCALES = (0.5, 0.25, 1.0)

    def split(self, scales: tuple[float, ...], widths: tuple[int, ...] = (5, 3, 7)) -> ProcessedLayer:
        layer = layer_of(Scheme.FP8, *widths)
        tensors = synthetic_tensors(layer, 1, False)
        for i, scale in enumerate(scales):
            tensors[f"l.p{i}.weight_scale"] = torch.tensor(scale)
        return processed(layer, tensors)

    def stored(self, widths: tuple[int, ...] = (5, 3, 7)) -> list[torch.Tensor]:
        layer = layer_of(Scheme.FP8, *widths)
        tensors = synthetic_tensors(layer, 1, False)
        return [tensors[f"{p.name}.weight"] for p in layer.projections]

    def rows(self, layer: ProcessedLayer) -> torch.Tensor:
        return layer.tensors["weight"].t()[: layer.layout.logical_width, : layer.layout.logical_k]

    def test_parts_are_requantised_to_the_largest_scale(self) -> None:
        layer = self.split(self.SCALES)
        assert layer.tensors["weight_scale"].item() == 1.0
        # Powers of two: dequantising is exact, and one rounding to E4M3 remains.
        wanted = [saturating_e4m3(w.float() * s) for w, s in zip(self.stored(), self.SCALES, strict=True)]
        found = self.rows(layer).contiguous().view(torch.uint8)
        assert found.equal(torch.cat([w.view(torch.uint8) for w in wanted]))

    @pytest.mark.parametrize("scale", [0.25, 1.0, 0.004])
    def test_equal_scales_change_no_byte(self, scale: float) -> None:
        layer = self.split((scale,) * 3)
        found = self.rows(layer).contiguous().view(torch.uint8)
        assert found.equal(torch.cat([w.view(torch.uint8) for w in self.stored()]))

    @pytest.mark.parametrize("empty", [0, 1, 2])
    def test_part_without_rows_is_no_obstacle(self, empty: int) -> None:
        widths = tuple(0 if i == empty else width for i, width in enumerate((5, 3, 7)))
        layer = self.split(self.SCALES, widths)
        assert self.rows(layer).shape[0] == sum(widths)
        assert layer.tensors["weight_scale"].item() == 1.0

    def test_fused_on_disk_is_left_as_it_is(self) -> None:
        layer = layer_of(Scheme.FP8, 15)
        tensors = synthetic_tensors(layer, 1, False)
        fused = processed(layer, tensors)
        assert fused.tensors["weight_scale"].equal(tensors["l.p0.weight_scale"])
        found = self.rows(fused).contiguous().view(torch.uint8)
        assert found.equal(tensors["l.p0.weight"].view(torch.uint8))


class TestActivationBeyondTheScale:
    """vllm-project/vllm P4570: what lies beyond the static scale became NaN."""

    VALUES = (447.0, 448.0, 464.0, 465.0, 480.0, 1e4, -1e4, np.inf, -np.inf, np.nan)
    CODES = (0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7E, 0xFE)

    @pytest.mark.parametrize("scale", [1.0, 2.0**-7])
    def test_clamped_on_both_paths_and_nan_is_kept(self, tmp_path: Path, scale: float) -> None:
        tensors = synthetic_tensors(LAYER, 3, False)
        for projection in LAYER.projections:
            tensors[f"{projection.name}.input_scale"] = torch.tensor(scale)
        checkpoint, socket = tmp_path / "checkpoint", tmp_path / "run" / "s"
        write_checkpoint(checkpoint, tensors, Scheme.FP8)
        x = torch.zeros(1, LAYER.logical_k)
        x[0, : len(self.VALUES)] = torch.tensor(self.VALUES) * scale
        with serves(checkpoint, socket):
            attached = load(checkpoint, socket)
            layers = (load_from_disk(checkpoint, [LAYER]).layers[0], attached.layers[0])
            codes = [FusedFp8Linear(each, ReferenceKernel()).quantize(x)[0] for each in layers]
            assert_same(*codes)
            detach(attached)
        found = codes[0].view(torch.uint8)[0].tolist()
        assert tuple(found[: len(self.CODES)]) == self.CODES
        assert found[len(self.CODES)] & 0x7F == 0x7F


def operands(m: int, k: int = 32, n: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    return integers(m, k).to(E4M3), integers(n, k).to(E4M3).t()


def multiply(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    return ReferenceKernel().scaled_mm(a, b, scale_a, scale_b, None, torch.bfloat16)


class TestRankPicksAnotherMode:
    """vllm-project/vllm P12696, P30257: the scale's rank or direction chose another kernel."""

    @pytest.mark.parametrize("m", [1, 2, 16, 17])
    def test_legal_spellings_give_the_same_bytes(self, m: int) -> None:
        a, b = operands(m)
        one, row = torch.tensor(0.5), torch.full((48,), 0.25)
        wanted = multiply(a, b, one, torch.tensor(0.25))
        assert_same(multiply(a, b, torch.full((m, 1), 0.5), row), wanted)
        assert_same(multiply(a, b, one, row), wanted)

    @pytest.mark.parametrize("m", [2, 16, 17])
    @pytest.mark.parametrize("shape", [(1, 1), (1,), "row"], ids=str)
    def test_other_spellings_are_refused(self, m: int, shape: tuple[int, ...] | str) -> None:
        a, b = operands(m)
        scale = torch.ones((1, m) if shape == "row" else shape)  # type: ignore[arg-type]
        with pytest.raises(KernelContractError, match="scale_a"):
            multiply(a, b, scale, torch.ones(48))

    def test_one_token_is_row_zero_of_a_larger_batch(self) -> None:
        a, b = operands(17)
        scale_a = torch.tensor([[2.0 ** (i % 4)] for i in range(17)])
        whole = multiply(a, b, scale_a, torch.ones(48))
        assert_same(multiply(a[:1], b, scale_a[:1], torch.ones(48)), whole[:1])


class TestRewritingCodesTwice:
    """vllm-project/vllm P31713, P42247, sgl-project/sglang P35111: a step that must run once ran twice."""

    def test_minus_zero_and_scale_pass_every_path_untouched(self, tmp_path: Path) -> None:
        tensors = synthetic_tensors(LAYER, 3, True)
        for projection in LAYER.projections:
            tensors[f"{projection.name}.weight"].view(torch.uint8)[:] = 0x80
            tensors[f"{projection.name}.weight_scale"] = torch.tensor(0.5)
        checkpoint, socket = tmp_path / "checkpoint", tmp_path / "run" / "s"
        write_checkpoint(checkpoint, tensors, Scheme.FP8)
        with serves(checkpoint, socket):
            lives = [load(checkpoint, socket), load(checkpoint, socket)]
            for layer in (load_from_disk(checkpoint, [LAYER]).layers[0], *(each.layers[0] for each in lives)):
                stored = layer.tensors["weight"].t().view(torch.uint8)
                assert (stored[: LAYER.logical_width, : LAYER.logical_k] == 0x80).all()
                assert layer.tensors["weight_scale"].item() == 0.5
            for each in lives:
                detach(each)

    @pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2], ids=str)
    def test_another_float8_is_refused_and_not_reinterpreted(self, dtype: torch.dtype) -> None:
        layer = layer_of(Scheme.FP8, 4)
        tensors = synthetic_tensors(layer, 1, False)
        tensors["l.p0.weight"] = tensors["l.p0.weight"].view(torch.uint8).view(dtype)
        with pytest.raises(WrongTensor, match="float8_e4m3fn"):
            processed(layer, tensors)


def inside(tensor: torch.Tensor, margin: int) -> torch.Tensor:
    """The same numbers as a view inside a larger storage, with a leading stride of its own."""
    larger = torch.zeros(tensor.shape[0], tensor.shape[1] + margin, dtype=torch.uint8).view(E4M3)
    larger[:, : tensor.shape[1]] = tensor
    return larger[:, : tensor.shape[1]]


VIEWS: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "a": lambda a, b: (inside(a, 16), b),
    "b": lambda a, b: (a, inside(b.t(), 16).t()),
    "both": lambda a, b: (inside(a, 32), inside(b.t(), 16).t()),
}


class TestLeadingStridesOfViews:
    """vllm-project/vllm I55534, P56248, P56480: a kernel took a view for packed memory."""

    @pytest.mark.parametrize("m", [3, 4, 8, 128])
    @pytest.mark.parametrize("which", VIEWS)
    def test_view_is_refused_and_its_packed_copy_is_right(self, which: str, m: int) -> None:
        a, b = operands(m, 64, 64)
        view_a, view_b = VIEWS[which](a, b)
        ones = (torch.tensor(1.0), torch.tensor(1.0))
        with pytest.raises(KernelContractError, match="strides"):
            multiply(view_a, view_b, *ones)
        assert_same(multiply(view_a.contiguous(), view_b.t().contiguous().t(), *ones), multiply(a, b, *ones))

    def test_attached_weight_is_packed(self, tmp_path: Path) -> None:
        checkpoint, socket = write(tmp_path / "checkpoint"), tmp_path / "run" / "s"
        with serves(checkpoint, socket):
            attached = load(checkpoint, socket)
            weight = attached.layers[0].tensors["weight"]
            assert weight.stride() == (1, LAYER.padded_k)
            assert weight.t().is_contiguous()
            detach(attached)


class TestWidthThatIsNoMultipleOf16:
    """vllm-project/vllm I7550: an odd width with bias went to the kernel as it was."""

    def test_kernel_is_never_given_it(self) -> None:
        a, b = operands(2, 32, 17)
        with pytest.raises(KernelContractError, match="N in multiples of 16"):
            multiply(a, b, torch.tensor(1.0), torch.tensor(1.0))
        a, b = operands(2, 33, 16)
        with pytest.raises(KernelContractError, match="K in multiples of 16"):
            multiply(a, b, torch.tensor(1.0), torch.tensor(1.0))

    @pytest.mark.parametrize("scheme", list(Scheme))
    @pytest.mark.parametrize("width", [17, 13])
    def test_output_is_cut_back_with_its_bias(self, scheme: Scheme, width: int) -> None:
        layer = layer_of(scheme, width, bias=True)
        tensors = synthetic_tensors(layer, 1, False)
        layer_ = processed(layer, tensors)
        assert not layer_.tensors["bias"][width:].any()
        out = run(layer_, torch.zeros(3, 33, dtype=torch.bfloat16))
        assert (tuple(out.shape), out.is_contiguous()) == ((3, width), True)
        # Of a zero input the bias alone is left.
        assert_same(out, tensors["l.p0.bias"].expand(3, width).contiguous())


class TestBitsThatDependOnTheBatch:
    """vllm-project/vllm P37718, P40408: a row's bits depended on how many came with it."""

    @pytest.mark.parametrize("scheme", list(Scheme))
    def test_a_tokens_output_is_the_same_in_every_batch(self, scheme: Scheme) -> None:
        layer = layer_of(scheme, 31, 17)
        layer_ = processed(layer, synthetic_tensors(layer, 1, False))
        x = torch.randn(256, 33, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
        whole = run(layer_, x)
        for m in (1, 16, 64, 128):
            assert memory_bytes(run(layer_, x[:m])).equal(memory_bytes(whole[:m]))
