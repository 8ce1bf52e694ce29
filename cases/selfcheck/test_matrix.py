"""The matrix: which cases there are, that their ids are usable, and that nothing is left out."""

from collections.abc import Callable
from itertools import combinations, product

import pytest

from loadproof.harness.matrix import BACKENDS, SMOLLM2, SYNTHETIC, Sizes, cases, every_case, twins
from loadproof.harness.spec import ALIGNMENT, CaseSpec, ProjectionKind, RealSource, Scheme, SyntheticSource

ALL = every_case()
LAYER_GROUPS = ("synthetic-layers", "corner-layers", "real-layers")
DEVICES = sorted(BACKENDS)

FACTORS: dict[str, Callable[[CaseSpec], object]] = {
    "scheme": lambda case: case.layer.scheme,
    "kind": lambda case: case.projection,
    "padded N": lambda case: case.layer.logical_width != case.layer.padded_width,
    "padded K": lambda case: case.layer.logical_k != case.layer.padded_k,
    "equal scales": lambda case: isinstance(case.source, SyntheticSource) and case.source.equal_scales,
    "bias": lambda case: case.layer.bias,
    "output dtype": lambda case: case.layer.out_dtype,
    "transport": lambda case: case.transport,
    "kernel": lambda case: case.kernel,
}


def values(factor: str, device: str) -> tuple[object, ...]:
    return {
        "scheme": tuple(Scheme),
        "kind": tuple(ProjectionKind),
        "output dtype": ("bfloat16", "float16"),
        "transport": BACKENDS[device].transports,
        "kernel": BACKENDS[device].attaching,
    }.get(factor, (False, True))


def test_ids_are_unique_lower_case_ascii() -> None:
    ids = [case.id for case in ALL]
    assert len(ids) == len(set(ids))
    for case_id in ids:
        assert set(case_id) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert "--" not in case_id


@pytest.mark.parametrize(("device", "least"), [("cpu", 96), ("cuda", 256)])
def test_there_are_enough_layer_cases(device: str, least: int) -> None:
    assert sum(len(cases(group, device=device)) for group in LAYER_GROUPS) >= least
    assert len(ALL) == len(set(ALL))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "pair",
    list(combinations(FACTORS, 2)),
    ids=lambda pair: f"{pair[0]}-{pair[1]}".replace(" ", "-").lower(),
)
def test_every_pair_of_values_meets_in_a_synthetic_layer(pair: tuple[str, str], device: str) -> None:
    first, second = (FACTORS[name] for name in pair)
    met = {(first(case), second(case)) for case in cases("synthetic-layers", device=device)}
    assert met == set(product(*(values(name, device) for name in pair)))


@pytest.mark.parametrize("device", DEVICES)
def test_every_cell_of_the_matrix_is_there_on_every_transport_and_kernel(device: str) -> None:
    names = ("scheme", "kind", "padded N", "padded K", "equal scales", "transport", "kernel")
    layers = cases("synthetic-layers", device=device)
    cells = {tuple(FACTORS[name](case) for name in names) for case in layers}
    one_scale = {ProjectionKind.PLAIN, ProjectionKind.ROW}
    wanted = {
        cell
        for cell in product(*(values(name, device) for name in names))
        if cell[4] or cell[0] is not Scheme.FP8 or cell[1] not in one_scale
    }
    assert cells == wanted


@pytest.mark.parametrize("table", [SYNTHETIC, SMOLLM2], ids=["synthetic", "smollm2"])
def test_odd_sizes_need_padding_and_the_others_do_not(table: dict[ProjectionKind, Sizes]) -> None:
    assert set(table) == set(ProjectionKind)
    for sizes in table.values():
        assert sum(sizes.widths) % ALIGNMENT == sizes.k % ALIGNMENT == 0
        assert sum(sizes.odd_widths) % ALIGNMENT
        assert sizes.odd_k % ALIGNMENT


def test_real_layers_are_of_all_kinds_whole_and_trimmed() -> None:
    found = {(c.layer.scheme, c.projection, c.source) for c in cases("real-layers")}
    assert found == set(
        product(Scheme, ProjectionKind, (RealSource(trimmed=False), RealSource(trimmed=True)))
    )


def test_every_architecture_is_a_model_under_both_schemes_tied_and_not() -> None:
    from loadproof.harness.models import ARCHITECTURES

    models = [case.model for case in cases("synthetic-models")]
    found = {(model.source.architecture, model.scheme) for model in models}
    assert found == set(product(ARCHITECTURES, Scheme))
    assert {model.source.tied for model in models} == {True, False}
    assert all(model.source.kv_heads < model.source.heads for model in models)
    assert all(model.source.intermediate % ALIGNMENT for model in models)


@pytest.mark.parametrize("group", ["real-models", "synthetic-models"])
def test_models_run_on_every_kernel_and_transport_of_a_gpu_and_crosswise_on_a_cpu(group: str) -> None:
    for device, on in BACKENDS.items():
        models = cases(group, device=device)
        ways = set(product(on.attaching, on.transports, Scheme))
        found = {(case.kernel, case.transport, case.model.scheme) for case in models}
        assert (
            found == ways
            if device == "cuda"
            else {way[1:] for way in found} == set(zip(on.transports, Scheme, strict=True))
        )


def test_every_refusal_is_claimed_with_fallback_and_without() -> None:
    refused = [case for case in ALL if case.refusal]
    assert refused
    without = {case.id for case in refused if not case.fallback_allowed}
    assert {case.id for case in refused if case.fallback_allowed} == {
        f"{i}-fallback-allowed" for i in without
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("group", LAYER_GROUPS)
def test_every_layer_has_one_twin_that_is_no_case(group: str, device: str) -> None:
    def layers(selected: list[CaseSpec]) -> set[object]:
        return {(case.layer, case.source, case.kernel, case.device, case.m_values) for case in selected}

    of_cases, of_twins = cases(group, device=device), twins(group, device=device)
    assert layers(of_twins) == layers(of_cases)
    assert len(of_twins) == len(layers(of_cases)) > 0
    ids = {twin.id for twin in of_twins}
    assert len(ids) == len(of_twins)
    assert all(name.endswith("-alias") for name in ids)
    assert not ids & {case.id for case in ALL}
