"""Byte comparison: an equivalence on shape, dtype and bytes, which finds the one byte that differs."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loadproof.harness.checks.compare import compare
from loadproof.harness.outcome import Outcome
from loadproof.harness.tensor_bytes import dtype_name, dtype_of, memory_bytes, sha256

from .strategies import DTYPES, examples, seeds, tensors

NUMERIC = tuple(dtype for dtype in DTYPES if dtype is not torch.bool)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2)


def plain_bytes(tensor: torch.Tensor) -> bytes:
    """The elements' bytes in row-major order, element by element."""
    size = tensor.element_size()
    # Numpy knows no float8, and an element is addressed where it lies.
    base = tensor.storage_offset() * size
    raw = bytes(tensor.untyped_storage())
    places = (sum(i * s for i, s in zip(index, tensor.stride(), strict=True)) for index in indices(tensor))
    return b"".join(raw[base + place * size : base + (place + 1) * size] for place in places)


def indices(tensor: torch.Tensor) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(n) for n in tensor.shape)))


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """Transposed, sliced, strided and expanded views, so that memory order is not element order."""
    tensor = draw(tensors())
    if draw(st.booleans()) and tensor.dim():
        dim = draw(st.integers(0, tensor.dim() - 1))
        start, step = draw(st.integers(0, tensor.shape[dim])), draw(st.integers(1, 3))
        tensor = tensor.movedim(dim, 0)[start::step].movedim(0, dim)
    if draw(st.booleans()):
        tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(draw(st.integers(1, 3)), *tensor.shape)
    return tensor


@given(views(), views())
@examples(150)
def test_equality_is_that_of_shape_dtype_and_bytes(left: torch.Tensor, right: torch.Tensor) -> None:
    same = (left.shape, left.dtype, plain_bytes(left)) == (right.shape, right.dtype, plain_bytes(right))
    assert (compare(left, right)[0] is Outcome.PASS) == same
    assert compare(left, right)[0] is compare(right, left)[0], "not symmetric"


@given(views())
@examples(150)
def test_a_tensor_equals_itself_and_its_packed_copy(tensor: torch.Tensor) -> None:
    for other in (tensor, tensor.clone(memory_format=torch.contiguous_format)):
        assert compare(tensor, other) == (Outcome.PASS, {"bytes": tensor.numel() * tensor.element_size()})


@given(tensors(), seeds)
@examples(100)
def test_equality_is_transitive_through_other_layouts(tensor: torch.Tensor, seed: int) -> None:
    dims = np.random.default_rng(seed).permutation(tensor.dim()).tolist()
    inverse = [dims.index(i) for i in range(len(dims))]
    scattered = tensor.permute(dims).contiguous().permute(inverse)
    copy = scattered.clone(memory_format=torch.contiguous_format)
    assert compare(tensor, scattered)[0] is compare(scattered, copy)[0] is compare(tensor, copy)[0]
    assert compare(tensor, copy)[0] is Outcome.PASS


@given(tensors(NUMERIC).filter(lambda t: t.numel() > 0), st.data())
@examples(200)
def test_one_flipped_bit_is_found_where_it_is(tensor: torch.Tensor, data: st.DataObject) -> None:
    size = tensor.element_size()
    at = data.draw(st.integers(0, tensor.numel() * size - 1))
    flipped = tensor.clone()
    flipped.view(-1).view(torch.uint8)[at] ^= 1 << data.draw(st.integers(0, 7))
    if data.draw(st.booleans()) and tensor.dim() == 2:
        flipped = flipped.t().contiguous().t()
    verdict, found = compare(tensor, flipped)
    assert verdict is Outcome.BYTES
    assert found["differing_elements"] == 1
    assert tuple(found["first_index"]) == indices(tensor)[at // size]
    element = slice(at // size * size, (at // size + 1) * size)
    assert found["reference_hex"] == plain_bytes(tensor)[element].hex()
    assert found["candidate_hex"] == plain_bytes(flipped)[element].hex()


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)], ids=str)
def test_zeros_of_either_sign_differ(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    zeros = torch.zeros(shape, dtype=dtype)
    assert compare(zeros, torch.zeros(shape).neg().to(dtype))[0] is Outcome.BYTES


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_nan_equals_only_the_same_payload(dtype: torch.dtype) -> None:
    nan = torch.full((2,), torch.nan).to(dtype)
    other = nan.clone()
    other.view(torch.uint8)[0] ^= 1
    assert other.float().isnan().all()
    assert compare(nan, nan.clone())[0] is Outcome.PASS
    assert compare(nan, other)[0] is Outcome.BYTES


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)], ids=str)
def test_zero_size_compares_nothing_and_says_so(shape: tuple[int, ...]) -> None:
    assert compare(torch.zeros(shape), torch.zeros(shape)) == (Outcome.PASS, {"bytes": 0})
    assert compare(torch.zeros(0), torch.zeros(3, 0))[0] is Outcome.SHAPE
    assert compare(torch.zeros(shape), torch.zeros(shape, dtype=torch.float16))[0] is Outcome.DTYPE


# --- bytes in memory order --------------------------------------------------------------------


@given(tensors(), seeds)
@examples(150)
def test_memory_bytes_are_the_storage_of_a_dense_tensor(tensor: torch.Tensor, seed: int) -> None:
    dims = np.random.default_rng(seed).permutation(tensor.dim()).tolist()
    assert bytes(memory_bytes(tensor.permute(dims)).tolist()) == bytes(tensor.untyped_storage())


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_stride_of_none_or_one_element_means_nothing(dtype: torch.dtype) -> None:
    for size in (0, 1):
        odd = torch.zeros(4, dtype=dtype).as_strided((size,), (2,))
        wanted = {"bytes": size * dtype.itemsize}
        assert memory_bytes(odd).shape == (size * dtype.itemsize,)
        assert compare(odd, torch.zeros(size, dtype=dtype)) == (Outcome.PASS, wanted)


@given(tensors(), tensors())
@examples(100)
def test_digests_are_equal_just_where_the_bytes_are(left: torch.Tensor, right: torch.Tensor) -> None:
    same = bytes(left.untyped_storage()) == bytes(right.untyped_storage())
    assert (sha256(left) == sha256(right)) == same


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_dtype_names_read_back(dtype: torch.dtype) -> None:
    assert dtype_of(dtype_name(dtype)) is dtype


@given(st.text(max_size=12))
@examples(100)
def test_name_of_no_dtype_is_a_key_error(name: str) -> None:
    if isinstance(getattr(torch, name, None), torch.dtype):
        return
    with pytest.raises(KeyError):
        dtype_of(name)
