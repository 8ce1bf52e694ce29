"""Round trips: what is written is what is read back, and what was tampered with is refused or equal."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loadproof.harness.cache.arena import PROBE_BYTES
from loadproof.harness.cache.arena.memfd import MemfdArena, MemfdAttachment
from loadproof.harness.cache.manifest import Manifest
from loadproof.harness.cache.placement import fill, place
from loadproof.harness.cache.views import restore, views
from loadproof.harness.daemon import DaemonJob
from loadproof.harness.engine import EngineJob
from loadproof.harness.errors import BadManifest
from loadproof.harness.formats import Layout, ProcessedLayer, TensorLayout
from loadproof.harness.model_spec import PlainTensor
from loadproof.harness.outcome import Outcome
from loadproof.harness.record import CaseRecord, RunRecord
from loadproof.harness.spec import LayerSpec

from .strategies import edited, examples, json_values, layers, names, paths_into, tensors

texts = st.text(max_size=12)
paths = st.lists(names.filter(lambda n: "/" not in n), min_size=1, max_size=3).map(lambda n: Path(*n))


def through_json(document: Any) -> Any:
    return json.loads(json.dumps(document))


# --- jobs -------------------------------------------------------------------------------------


@given(layers())
@examples(60)
def test_layer_reads_back(layer: LayerSpec) -> None:
    assert LayerSpec.from_json(through_json(layer.to_json())) == layer


plain_tensors = st.lists(
    st.builds(PlainTensor, name=texts, dtype=texts, shape=st.lists(st.integers(0, 2**40)).map(tuple)),
    max_size=3,
).map(tuple)
engine_jobs = st.builds(
    EngineJob,
    loader=st.sampled_from(["disk", "cache"]),
    checkpoint=paths,
    links_into=st.none() | paths,
    layers=st.lists(layers(), max_size=3).map(tuple),
    plain=plain_tensors,
    kernel=texts,
    transport=texts,
    socket=paths,
    expected_content=texts,
    fallback_allowed=st.booleans(),
    inputs=paths,
    results=paths,
    defect=st.none() | texts,
)
daemon_jobs = st.builds(
    DaemonJob,
    checkpoint=paths,
    layers=st.lists(layers(), max_size=3).map(tuple),
    plain=plain_tensors,
    socket=paths,
    transport=texts,
    kernel=texts,
    expected_content=st.none() | texts,
    defect=st.none() | texts,
)


@given(engine_jobs)
@examples(60)
def test_engine_job_reads_back(job: EngineJob) -> None:
    assert EngineJob.from_json(through_json(job.to_json())) == job


@given(daemon_jobs)
@examples(60)
def test_daemon_job_reads_back(job: DaemonJob) -> None:
    assert DaemonJob.from_json(through_json(job.to_json())) == job


# --- evidence ---------------------------------------------------------------------------------

finite = st.floats(allow_nan=False, allow_infinity=False)
evidence = st.dictionaries(texts, st.integers() | finite | texts | st.lists(st.integers()), min_size=1)
checks = st.fixed_dictionaries(
    {"name": texts, "verdict": st.sampled_from(Outcome), "detail": texts, "evidence": evidence}
)
held = st.fixed_dictionaries(
    {
        "name": texts,
        "shape": st.lists(st.integers(0, 2**40), max_size=3),
        "stride": st.lists(st.integers(0, 2**40), max_size=3),
        "dtype": texts,
        "sha256": texts,
        "allocation": texts,
        "offset": st.integers(0, 2**60),
    }
)
routes = st.fixed_dictionaries(
    {
        "outcome": st.sampled_from(Outcome),
        "route_taken": texts,
        "pid": st.none() | st.integers(1, 2**22),
        "exit": st.none() | st.integers(-64, 255),
        "error": st.none() | st.fixed_dictionaries({"type": texts, "message": texts}),
        "stderr_tail": texts,
        "kernels": st.lists(texts, max_size=2),
        "tensors": st.lists(held, max_size=2),
        "timings_ms": st.dictionaries(texts, finite, max_size=3),
    }
)
case_records = st.fixed_dictionaries(
    {
        "run_id": texts,
        "case": st.dictionaries(texts, texts | st.integers() | st.booleans(), max_size=3),
        "verdict": st.sampled_from(Outcome),
        "node_id": texts,
        "checkpoint": st.dictionaries(texts, texts, max_size=2),
        "routes": st.dictionaries(texts, routes, max_size=3),
        "checks": st.lists(checks, max_size=3),
        "daemon": st.fixed_dictionaries({"tensors": st.lists(held, max_size=2)}),
        "duration_ms": finite,
    }
).map(CaseRecord.model_validate)
run_records = st.fixed_dictionaries(
    {
        "run_id": texts,
        "verdict": st.sampled_from(["EQUIVALENT", "NOT_EQUIVALENT", "INCOMPLETE"]),
        "scope": st.sampled_from(["gpu", "cpu-default"]),
        "started": texts,
        "duration_s": finite,
        "counts": st.fixed_dictionaries(
            dict.fromkeys(
                ("planned", "verified", "failed", "incomplete", "refused_as_expected"), st.integers(0, 2**31)
            )
        ),
        "environment": st.dictionaries(texts, st.dictionaries(texts, texts, max_size=2), max_size=3),
        "commands": st.dictionaries(texts, texts, max_size=2),
        "messages": st.lists(texts, max_size=2),
        "cases": st.lists(
            st.fixed_dictionaries(
                {
                    "id": texts,
                    "verdict": st.sampled_from(Outcome),
                    "expected": st.sampled_from(Outcome),
                    "file": st.none() | texts,
                }
            ),
            max_size=3,
        ),
    }
).map(RunRecord.model_validate)


@given(case_records)
@examples(60)
def test_case_record_reads_back(record: CaseRecord) -> None:
    assert CaseRecord.model_validate_json(record.model_dump_json()) == record


@given(run_records)
@examples(60)
def test_run_record_reads_back(record: RunRecord) -> None:
    assert RunRecord.model_validate_json(record.model_dump_json()) == record


# --- the manifest -----------------------------------------------------------------------------

PLACEABLE = tuple(
    getattr(torch, n) for n in ("uint8", "float8_e4m3fn", "float16", "bfloat16", "float32", "int64")
)
tensor_sets = st.dictionaries(names, tensors(PLACEABLE), min_size=1, max_size=4)


def processed(layer: LayerSpec, held: dict[str, torch.Tensor]) -> ProcessedLayer:
    return ProcessedLayer(spec=layer, layout=Layout.of(layer), tensors=held)


def manifest_of(layer: LayerSpec, held: dict[str, torch.Tensor]) -> Manifest:
    placement = place({layer.name: {name: TensorLayout.of(tensor) for name, tensor in held.items()}})
    arena = MemfdArena(placement.data_bytes, sealed=True)
    try:
        return fill(arena, placement, [processed(layer, held)])
    finally:
        arena.close()


@given(layers(), tensor_sets)
@examples(60)
def test_manifest_reads_back(layer: LayerSpec, held: dict[str, torch.Tensor]) -> None:
    manifest = manifest_of(layer, held)
    assert Manifest.from_json(through_json(manifest.to_json())) == manifest


@given(layers(), tensor_sets)
@examples(60)
def test_tensors_are_placed_apart_aligned_and_below_the_probe_page(
    layer: LayerSpec, held: dict[str, torch.Tensor]
) -> None:
    manifest = manifest_of(layer, held)
    end = 0
    for entry in manifest.entries:
        assert entry.offset % 512 == 0
        assert entry.offset >= end
        end = entry.offset + entry.nbytes
    assert end <= manifest.probe_offset <= manifest.arena_bytes - PROBE_BYTES


LAYER = LayerSpec.from_json(
    {
        "name": "l",
        "scheme": "FP8",
        "projections": [["p", 17]],
        "logical_k": 33,
        "bias": True,
        "out_dtype": "bfloat16",
    }
)
HELD = {
    "weight": torch.arange(48 * 32, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(32, 48).t(),
    "weight_scale": torch.tensor(0.5),
    "bias": torch.ones(32, dtype=torch.bfloat16),
}
GOOD = manifest_of(LAYER, HELD).to_json()
FIELDS = paths_into(through_json(GOOD))
small = st.integers(-3, 64) | st.sampled_from([512, 1024, 4096, 2**31, 2**47, 2**48, 2**63, 2**64])
replacements = (
    json_values | small | st.sampled_from(["float32", "uint8", "quint8", "bits8", "complex64", "l"])
)


def accepted(document: Any) -> Manifest | None:
    try:
        return Manifest.from_json(document)
    except BadManifest:
        return None


@pytest.mark.parametrize("path", FIELDS, ids=lambda path: ".".join(map(str, path)))
@given(value=replacements)
@examples(40)
def test_changed_field_is_bad_or_read_as_it_stands(path: tuple[Any, ...], value: Any) -> None:
    document = through_json(GOOD)
    edited(document, path, lambda container, key: container.__setitem__(key, value))
    manifest = accepted(copy.deepcopy(document))
    if manifest is not None:
        assert same_json(through_json(manifest.to_json()), document)
        (layout,) = manifest.layouts.values()
        if layout is None:
            # The layer is then taken for a module that is served as it is, which `restore` refuses.
            return
        sizes = (layout.logical_width, layout.padded_width, layout.logical_k, layout.padded_k)
        assert {type(size) for size in sizes} == {int}
        assert type(layout.transposed) is bool


@pytest.mark.parametrize("path", FIELDS, ids=lambda path: ".".join(map(str, path)))
def test_missing_field_is_bad(path: tuple[Any, ...]) -> None:
    document = through_json(GOOD)
    edited(document, path, lambda container, key: container.pop(key))
    assert accepted(document) is None


@given(st.lists(st.tuples(st.sampled_from(FIELDS), small), min_size=1, max_size=4))
@examples(400)
def test_whatever_is_accepted_can_be_restored_within_the_arena(
    edits: list[tuple[tuple[Any, ...], int]],
) -> None:
    document = through_json(GOOD)
    for path, value in edits:
        try:
            edited(document, path, lambda container, key, value=value: container.__setitem__(key, value))
        except (AttributeError, TypeError, IndexError, KeyError):
            continue  # An earlier edit took the place away.
    manifest = accepted(document)
    if manifest is None or manifest.arena_bytes > 2**20:
        return
    arena = MemfdArena(manifest.arena_bytes, sealed=True)
    arena.freeze()
    attachment = MemfdAttachment(os.dup(arena.fd), arena.nbytes, manifest.probe_offset, sealed=True)
    try:
        attachment.read_probe()
        for tensor in restore(manifest, views(manifest, attachment), LAYER).tensors.values():
            tensor.clone()
    finally:
        attachment.close()
        arena.close()


def with_first_entry(document: Any, **fields: Any) -> Any:
    """`document` with fields of its first entry replaced."""
    for name, value in fields.items():
        document["entries"][name][0] = value
    return document


@pytest.mark.parametrize("stride", [[5, 0], [0, 5], [2, 3], [3, 2]], ids=str)
def test_strides_that_visit_an_element_twice_are_bad(stride: list[int]) -> None:
    held = {"weight": torch.arange(16, dtype=torch.uint8).reshape(4, 4)}
    document = through_json(manifest_of(LAYER, held).to_json())
    assert accepted(with_first_entry(document, stride=[1, 4])) is not None
    assert accepted(with_first_entry(document, stride=stride)) is None


def test_two_tensors_of_one_name_are_bad() -> None:
    assert accepted(with_first_entry(through_json(GOOD), tensor="bias")) is None


@pytest.mark.parametrize("room", range(17))
def test_probe_lies_in_the_arena_whole(room: int) -> None:
    document = through_json(GOOD) | {"arena_bytes": GOOD["probe_offset"] + room}
    assert (accepted(document) is not None) == (room == PROBE_BYTES)


@pytest.mark.parametrize("dtype", sorted(n for n in dir(torch) if isinstance(getattr(torch, n), torch.dtype)))
def test_every_accepted_dtype_can_be_restored(dtype: str) -> None:
    size = getattr(torch, dtype).itemsize
    document = with_first_entry(through_json(GOOD), dtype=dtype, shape=[48, 32 // size], stride=[1, 48])
    manifest = accepted(document)
    if manifest is None:
        return
    arena = MemfdArena(manifest.arena_bytes, sealed=False)
    attachment = MemfdAttachment(os.dup(arena.fd), arena.nbytes, manifest.probe_offset, sealed=False)
    try:
        assert restore(manifest, views(manifest, attachment), LAYER).tensors["weight"].element_size() == size
    finally:
        attachment.close()
        arena.close()


def same_json(left: Any, right: Any) -> bool:
    """Equality that tells True from 1 and 1 from 1.0."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
