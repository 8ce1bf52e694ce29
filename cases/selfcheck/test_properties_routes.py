"""Generated layers through real processes: four-way proofs, and tensors through an arena to an engine."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from loadproof.harness.cache.arena import create_arena
from loadproof.harness.cache.client import CacheClient
from loadproof.harness.cache.manifest import Manifest
from loadproof.harness.cache.placement import Placement, fill, place
from loadproof.harness.cache.server import CacheServer
from loadproof.harness.cache.socket_path import listening
from loadproof.harness.cache.views import restore, views
from loadproof.harness.checkpoint.layers import ProjectionTensors
from loadproof.harness.checkpoint.writer import write_checkpoint
from loadproof.harness.checks.compare import compare
from loadproof.harness.fingerprint import fingerprint
from loadproof.harness.formats import Layout, ProcessedLayer, TensorLayout
from loadproof.harness.outcome import Outcome
from loadproof.harness.proof import Prover
from loadproof.harness.spec import CaseSpec, LayerSpec, Projection, ProjectionKind, Scheme, SyntheticSource
from loadproof.harness.tensor_bytes import sha256
from loadproof.harness.witness.maps import memory_identity

from .proofs import not_passed, prove_checkpoint
from .strategies import any_codes, examples, layers_with_tensors, seeds, stored, tensors

TRANSPORTS = st.sampled_from(["memfd", "memfd-writable"])
m_values = st.lists(st.sampled_from([1, 2, 3, 16, 17]), min_size=1, max_size=3, unique=True).map(tuple)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="loadproof-") as path:
        yield Path(path)


@given(drawn=layers_with_tensors(), transport=TRANSPORTS, m=m_values)
@settings(examples(8), phases=[Phase.explicit, Phase.generate])  # shrinking would run a hundred proofs
def test_generated_layer_is_proved_four_ways(
    prover: Prover,
    folder: Path,
    drawn: tuple[LayerSpec, list[ProjectionTensors]],
    transport: str,
    m: tuple[int, ...],
) -> None:
    layer, projections = drawn
    checkpoint = Path(tempfile.mkdtemp(dir=folder))
    write_checkpoint(checkpoint, stored(projections), layer.scheme)
    case = CaseSpec(
        layer=layer,
        projection=ProjectionKind.PLAIN,
        source=SyntheticSource(seed=0),
        transport=transport,
        m_values=m,
    )
    record = prove_checkpoint(prover, case, checkpoint)
    assert not_passed(record) == {}
    assert record.verdict is Outcome.PASS


FLOATING = (torch.float8_e4m3fn, torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int64)
tensor_sets = st.lists(
    st.dictionaries(st.sampled_from("abcdef"), tensors(FLOATING), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)


def named(i: int) -> LayerSpec:
    return LayerSpec(
        name=f"layer{i}",
        scheme=Scheme.FP8,
        projections=(Projection(name=f"p{i}", logical_width=1),),
        logical_k=1,
    )


def processed_of(held: list[dict[str, torch.Tensor]], seed: int) -> list[ProcessedLayer]:
    """The tensors as layers, each permuted into some other memory order."""
    rng = np.random.default_rng(seed)

    def scattered(tensor: torch.Tensor) -> torch.Tensor:
        dims = rng.permutation(tensor.dim()).tolist()
        return tensor.permute(dims).contiguous().permute([dims.index(i) for i in range(len(dims))])

    return [
        ProcessedLayer(
            spec=named(i),
            layout=Layout.of(named(i)),
            tensors={name: scattered(tensor) for name, tensor in each.items()},
        )
        for i, each in enumerate(held)
    ]


@example(
    held=[{"a": torch.empty(0, 3), "b": torch.tensor(1.0)}, {"a": any_codes(0, 33, 17)}],
    seed=1,
    transport="memfd",
)
@given(held=tensor_sets, seed=seeds, transport=TRANSPORTS)
@examples(40)
def test_tensors_reach_an_engine_through_the_arena(
    folder: Path, held: list[dict[str, torch.Tensor]], seed: int, transport: str
) -> None:
    layers = processed_of(held, seed)
    placement = placed(layers)
    arena = create_arena(transport, placement.data_bytes)
    with listening(folder / "s") as listener:
        manifest = fill(arena, placement, layers)
        server = CacheServer(listener, arena, manifest, {"content": "c"}, transport)
        client = CacheClient(folder / "s")
        attached = client.attach({"content": "c"}, transport)
        try:
            assert attached.manifest == manifest
            assert client.digests() == {
                f"{layer.spec.name}.{name}": fingerprint(t)
                for layer in layers
                for name, t in layer.tensors.items()
            }
            for layer in layers:
                restored = restore(attached.manifest, views(attached.manifest, attached.arena), layer.spec)
                assert restored.layout == layer.layout
                assert_same(restored, layer, arena.allocation, manifest)
        finally:
            attached.arena.close()
            client.close()
            server.close()
            arena.close()


def placed(layers: list[ProcessedLayer]) -> Placement:
    return place({la.spec.name: {n: TensorLayout.of(t) for n, t in la.tensors.items()} for la in layers})


def assert_same(restored: ProcessedLayer, layer: ProcessedLayer, allocation: str, manifest: Manifest) -> None:
    assert restored.tensors.keys() == layer.tensors.keys()
    offsets = {entry.name: entry.offset for entry in manifest.entries}
    for name, tensor in layer.tensors.items():
        found = restored.tensors[name]
        assert compare(tensor, found)[0] is Outcome.PASS
        assert sha256(found) == sha256(tensor)
        if tensor.numel():
            assert found.stride() == tensor.stride()
            assert memory_identity(found) == (allocation, offsets[f"{layer.spec.name}.{name}"])
            assert found.data_ptr() % 512 == 0


def test_arena_maps_once_whatever_the_number_of_tensors(folder: Path) -> None:
    layers = processed_of([{f"t{i}": torch.full((i % 7 + 1,), i) for i in range(200)}], 0)
    placement = placed(layers)
    arena = create_arena("memfd", placement.data_bytes)
    with listening(folder / "s") as listener:
        server = CacheServer(listener, arena, fill(arena, placement, layers), {}, "memfd")
        client = CacheClient(folder / "s")
        client.digests()
        before = len(os.listdir("/proc/self/fd"))
        attached = client.attach({}, "memfd")
        assert len(os.listdir("/proc/self/fd")) == before
        restored = restore(attached.manifest, views(attached.manifest, attached.arena), layers[0].spec)
        assert {memory_identity(t)[0] for t in restored.tensors.values()} == {arena.allocation}
        attached.arena.close()
        client.close()
        server.close()
        arena.close()
