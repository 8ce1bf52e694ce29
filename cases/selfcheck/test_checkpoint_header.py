"""The header parser refuses whatever safetensors refuses."""

import json
import os
import struct
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from loadproof.harness.checkpoint.header import Header, read_header
from loadproof.harness.errors import MalformedCheckpoint

VALID = save(
    {"a": torch.arange(4, dtype=torch.float32), "b": torch.arange(6, dtype=torch.uint8).reshape(2, 3)},
    metadata={"format": "pt"},
)


def framed(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A file of this header and data, which may lie about the header's length."""
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def tensor(**changes: object) -> dict[str, object]:
    """The entry of four float32, changed."""
    return {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}


def described(header: object, data: int = 16) -> bytes:
    """A file of this header and so many zero bytes."""
    return framed(json.dumps(header).encode(), bytes(data))


def ours(file: Path) -> Header:
    """Our parser on a file."""
    fd = os.open(file, os.O_RDONLY)
    try:
        return read_header(fd, file)
    finally:
        os.close(fd)


def accepted_by_safetensors(file: Path) -> bool:
    """Whether safe_open takes the file."""
    try:
        with safe_open(file, "pt"):
            return True
    except SafetensorError:
        return False


LIES = {
    "empty file": b"",
    "seven bytes": b"1234567",
    "header length 0": framed(b"", bytes(16)),
    "header longer than the file": framed(b"{}", b"", 3),
    "header length 2**64-1": framed(b"{}", b"", 2**64 - 1),
    "header length 2**63": framed(b"{}", b"", 2**63),
    "not UTF-8": framed(b'{"\xff": 1}'),
    "not JSON": framed(b"{]"),
    "an array": framed(b"[]"),
    "a number": framed(b"1"),
    "NUL behind the header": framed(json.dumps({"a": tensor()}).encode() + b"\0", bytes(16)),
    "lone surrogate": framed(b'{"\\ud800":' + json.dumps(tensor()).encode() + b"}", bytes(16)),
    "duplicate field": framed(
        b'{"a":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}}', bytes(16)
    ),
    "nesting bomb": framed(b'{"a":' + b"[" * 200_000),
    "closed nesting bomb": framed(b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"),
    "5000-digit size": framed(
        b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,16]}}', bytes(16)
    ),
    "NaN size": framed(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,16]}}', bytes(16)),
    "minus zero": framed(b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[-0,16]}}', bytes(16)),
    "unknown dtype": described({"a": tensor(dtype="F33")}),
    "dtype is a number": described({"a": tensor(dtype=32)}),
    "entry is a list": described({"a": [1]}),
    "shape missing": described({"a": {"dtype": "F32", "data_offsets": [0, 16]}}),
    "negative size": described({"a": tensor(shape=[-4])}),
    "bool size": described({"a": tensor(shape=[True, 4])}),
    "float size": described({"a": tensor(shape=[4.0])}),
    "overflowing shape": described({"a": tensor(shape=[2**40, 2**40, 0], data_offsets=[0, 0])}, 0),
    "size 2**64": described({"a": tensor(shape=[2**64])}),
    "shape beyond the bytes": described({"a": tensor(shape=[5])}),
    "shape short of the bytes": described({"a": tensor(shape=[3])}),
    "half a byte": described({"a": tensor(dtype="F4", shape=[1], data_offsets=[0, 0])}, 0),
    "offsets reversed": described({"a": tensor(data_offsets=[16, 0])}),
    "three offsets": described({"a": tensor(data_offsets=[0, 16, 16])}),
    "not from 0": described({"a": tensor(data_offsets=[4, 20])}, 20),
    "beyond the file": described({"a": tensor()}, 15),
    "trailing bytes": described({"a": tensor()}, 17),
    "overlap": described({"a": tensor(), "b": tensor(data_offsets=[8, 24])}, 24),
    "same bytes twice": described({"a": tensor(), "b": tensor()}),
    "gap": described({"a": tensor(), "b": tensor(data_offsets=[20, 36])}, 36),
    "metadata of numbers": described({"__metadata__": {"x": 1}, "a": tensor()}),
}


@pytest.mark.parametrize("content", LIES.values(), ids=[name.replace(" ", "-") for name in LIES])
def test_both_parsers_refuse_the_lie(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "lie.safetensors"
    file.write_bytes(content)
    assert not accepted_by_safetensors(file)
    with pytest.raises(MalformedCheckpoint, match=r"lie\.safetensors"):
        ours(file)


STRICTER = {
    "duplicate tensor": framed(
        b'{"a":%s,"a":%s}' % (json.dumps(tensor()).encode(), json.dumps(tensor()).encode()), bytes(16)
    ),
    "leading space": framed(b" " + json.dumps({"a": tensor()}).encode(), bytes(16)),
    "unknown field": described({"a": tensor(stride=[1])}),
    "size 2**63": described({"a": tensor(shape=[0, 2**63], data_offsets=[0, 0])}, 0),
}


@pytest.mark.parametrize("content", STRICTER.values(), ids=[name.replace(" ", "-") for name in STRICTER])
def test_what_safetensors_lets_pass_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "lie.safetensors"
    file.write_bytes(content)
    with pytest.raises(MalformedCheckpoint):
        ours(file)


@pytest.mark.parametrize(
    "lie", ["negative size", "unknown dtype", "overlap", "gap", "shape beyond the bytes"]
)
def test_the_message_names_the_tensor(lie: str, tmp_path: Path) -> None:
    file = tmp_path / "lie.safetensors"
    file.write_bytes(LIES[lie])
    with pytest.raises(MalformedCheckpoint, match=r"lie\.safetensors: (a|b): "):
        ours(file)


def test_a_valid_header_is_read_as_written(tmp_path: Path) -> None:
    file = tmp_path / "valid.safetensors"
    file.write_bytes(VALID)
    header = ours(file)
    a, b = header.entries["a"], header.entries["b"]
    assert (a.dtype, a.shape, b.dtype, b.shape) == ("F32", (4,), "U8", (2, 3))
    assert VALID[a.start : a.stop] == struct.pack("<4f", 0, 1, 2, 3)
    assert VALID[b.start : b.stop] == bytes(range(6))
    assert header.metadata == {"format": "pt"}


def test_truncation_at_every_offset_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cut.safetensors"
    for end in range(len(VALID)):
        file.write_bytes(VALID[:end])
        with pytest.raises(MalformedCheckpoint):
            ours(file)


MUTATION = st.tuples(st.integers(0, len(VALID) - 1), st.binary(max_size=3), st.integers(0, 3))


@settings(max_examples=300, deadline=None)
@given(mutations=st.lists(MUTATION, min_size=1, max_size=3))
def test_a_mutation_that_safetensors_refuses_is_refused(mutations: list[tuple[int, bytes, int]]) -> None:
    content = VALID
    for place, inserted, removed in mutations:
        content = content[:place] + inserted + content[place + removed :]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mutated.safetensors"
        file.write_bytes(content)
        try:
            ours(file)
        except MalformedCheckpoint:
            return
        assert accepted_by_safetensors(file)
