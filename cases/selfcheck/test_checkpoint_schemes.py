"""The quant_algo alone decides, for the whole checkpoint or layer by layer, before a weight is opened."""

import json
from pathlib import Path

import pytest

from loadproof.harness.checkpoint.config import QuantizationConfig
from loadproof.harness.checkpoint.names import Group
from loadproof.harness.checkpoint.schemes import SchemePlan
from loadproof.harness.errors import ConfigError, DaemonUnavailable, RefusedScheme, WrongTensor
from loadproof.harness.kernels import make_kernel
from loadproof.harness.loaders import CacheRequest, load_from_cache, load_from_disk
from loadproof.harness.matrix import layer_spec
from loadproof.harness.spec import LayerSpec, ProjectionKind, Scheme

PATH = Path("/some/checkpoint")
PREFIX = "model.layers.0.self_attn"
QKV = Group(f"{PREFIX}.qkv_proj", tuple(f"{PREFIX}.{part}_proj" for part in "qkv"))
STORED_FUSED = Group(QKV.name, (QKV.name,))
PLAIN = Group(f"{PREFIX}.o_proj", (f"{PREFIX}.o_proj",))
PER_CHANNEL = "FP8_PER_CHANNEL_PER_TOKEN"


def plan(algo: str | None, excluded: tuple[str, ...] = (), **own: str | None) -> SchemePlan:
    """A plan for one algorithm, or for a mixture of those that `own` gives the projections of layer 0."""
    layers = {f"{PREFIX}.{name}": value for name, value in own.items()} or None
    return SchemePlan(QuantizationConfig(algo, excluded, None, layers), PATH)


def mixed(**own: str | None) -> SchemePlan:
    return plan("MIXED_PRECISION", **own)


@pytest.mark.parametrize("algo", ["FP8", "fp8", "Fp8", PER_CHANNEL, "fp8_per_channel_per_token"])
@pytest.mark.parametrize("group", [QKV, PLAIN], ids=["qkv", "plain"])
def test_supported_scheme_is_recognised_in_any_case(group: Group, algo: str) -> None:
    assert plan(algo).scheme(group) is Scheme(algo.upper())


REFUSED = {
    "FP8_PB_WO": "block-scaled FP8",
    "fp8_pb_wo": "block-scaled FP8",
    "NVFP4": "4-bit weights and activations",
    "nvfp4": "4-bit weights and activations",
    "W4A16_NVFP4": "4-bit weights",
    "MXFP8": "block-scaled FP8",
    "FP8 ": "not a scheme known here",
    "INT4_AWQ": "not a scheme known here",
    "": "not a scheme known here",
    None: "nothing is named",
}


@pytest.mark.parametrize(("algo", "meaning"), REFUSED.items(), ids=map(repr, REFUSED))
def test_any_other_scheme_is_refused_by_name(algo: str | None, meaning: str) -> None:
    with pytest.raises(RefusedScheme) as caught:
        plan(algo).scheme(PLAIN)
    assert caught.value.where == f"{PATH}: {PLAIN.name}"
    assert caught.value.found == f"quant_algo {'null' if algo is None else repr(algo)} ({meaning})"
    assert all(scheme.value in caught.value.expected for scheme in Scheme)


@pytest.mark.parametrize(("algo", "meaning"), REFUSED.items(), ids=map(repr, REFUSED))
@pytest.mark.parametrize("asked", [PLAIN, QKV], ids=["asked", "another-asked"])
def test_mixture_that_names_a_refused_scheme_is_refused(asked: Group, algo: str | None, meaning: str) -> None:
    with pytest.raises(RefusedScheme) as caught:
        mixed(q_proj="FP8", k_proj="FP8", v_proj="FP8", o_proj=algo).scheme(asked)
    assert caught.value.where == f"{PATH}: {asked.name}"
    shown = "null" if algo is None else repr(algo)
    assert caught.value.found == f"quant_algo MIXED_PRECISION, in which {PLAIN.name} has {shown} ({meaning})"


def test_of_several_refused_layers_the_one_asked_for_is_named() -> None:
    with pytest.raises(RefusedScheme, match=r"in which \S+o_proj has 'MXFP8'"):
        mixed(down_proj="NVFP4", o_proj="MXFP8").scheme(PLAIN)


@pytest.mark.parametrize("layers", [None, {}], ids=["absent", "empty"])
def test_mixture_of_nothing_is_refused(layers: dict[str, str | None] | None) -> None:
    config = QuantizationConfig("MIXED_PRECISION", (), None, layers)
    with pytest.raises(RefusedScheme, match="MIXED_PRECISION without quantized_layers"):
        SchemePlan(config, PATH).scheme(PLAIN)


@pytest.mark.parametrize("algo", ["MIXED_PRECISION", "mixed_precision"])
def test_each_layer_of_a_mixture_has_its_own_scheme(algo: str) -> None:
    decided = plan(algo, q_proj="fp8", k_proj="FP8", v_proj="FP8", o_proj=PER_CHANNEL)
    assert decided.scheme(QKV) is Scheme.FP8
    assert decided.scheme(STORED_FUSED) is Scheme.FP8
    assert decided.scheme(PLAIN) is Scheme.FP8_PER_CHANNEL_PER_TOKEN


def test_one_member_may_not_differ_from_the_fused_module() -> None:
    with pytest.raises(ConfigError, match="one quant_algo for all"):
        mixed(qkv_proj=PER_CHANNEL, k_proj="FP8").scheme(QKV)


def test_mixture_may_name_the_fused_module() -> None:
    assert mixed(qkv_proj=PER_CHANNEL).scheme(QKV) is Scheme.FP8_PER_CHANNEL_PER_TOKEN


@pytest.mark.parametrize("wrapper", ["model.language_model.", "language_model.model.", ""])
def test_wrappers_of_names_in_a_mixture_may_differ(wrapper: str) -> None:
    config = QuantizationConfig("MIXED_PRECISION", (), None, {f"{wrapper}layers.0.self_attn.o_proj": "FP8"})
    assert SchemePlan(config, PATH).scheme(PLAIN) is Scheme.FP8


@pytest.mark.parametrize("group", [QKV, STORED_FUSED], ids=["split", "stored-fused"])
@pytest.mark.parametrize(
    "own",
    [
        {"v_proj": PER_CHANNEL, "q_proj": "FP8", "k_proj": "FP8"},
        {"q_proj": "FP8", "v_proj": "FP8"},
        {"qkv_proj": PER_CHANNEL, "q_proj": "FP8", "k_proj": "FP8", "v_proj": "FP8"},
    ],
    ids=["two-schemes", "one-not-listed", "fused-name-differs"],
)
def test_members_of_a_fused_layer_must_agree(own: dict[str, str | None], group: Group) -> None:
    with pytest.raises(ConfigError) as caught:
        mixed(**own).scheme(group)
    assert caught.value.where == f"{PATH}: {QKV.name}"
    for name in ("qkv_proj", "q_proj", "k_proj", "v_proj"):
        assert f"{PREFIX}.{name} {own.get(name, 'not listed')}" in caught.value.found


def test_layer_that_a_mixture_does_not_list_is_not_quantised() -> None:
    with pytest.raises(ConfigError, match=r"o_proj.*absent from the quantized_layers"):
        mixed(q_proj="FP8", k_proj="FP8", v_proj="FP8").scheme(PLAIN)


def test_excluded_layer_is_not_quantised_and_the_entry_is_named() -> None:
    with pytest.raises(ConfigError, match=r"o_proj: .*excluded by '\*\.o_proj'"):
        plan("FP8", excluded=("*.o_proj",)).scheme(PLAIN)


def test_refusal_comes_before_exclusion() -> None:
    with pytest.raises(RefusedScheme):
        plan("NVFP4", excluded=("*.o_proj",)).scheme(PLAIN)


# --- the loaders ------------------------------------------------------------------------------

LAYERS = {
    kind: layer_spec(kind, Scheme.FP8, widths, 16)
    for kind, widths in {ProjectionKind.PLAIN: (8,), ProjectionKind.QKV: (8, 4, 4)}.items()
}


def described(folder: Path, algo: str | None, excluded: tuple[str, ...] = (), **own: str) -> Path:
    """A folder with configs only: whoever opens a weight file fails with another error."""
    layers = {f"{PREFIX}.{name}": {"quant_algo": value} for name, value in own.items()}
    section = {"quant_algo": algo, "exclude_modules": list(excluded), "quantized_layers": layers}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": section}))
    return folder


def load(route: str, folder: Path, layer: LayerSpec) -> None:
    if route == "disk":
        load_from_disk(folder, [layer])
        return
    allowed = route == "cache-with-fallback"
    request = CacheRequest(
        socket=folder / "s", transport="memfd", expected_content="", fallback_allowed=allowed
    )
    load_from_cache(folder, [layer], make_kernel("reference"), request)


@pytest.mark.parametrize("route", ["disk", "cache", "cache-with-fallback"])
@pytest.mark.parametrize("kind", LAYERS, ids=str)
@pytest.mark.parametrize("algo", ["fp8_pb_wo", "NVFP4", None], ids=str)
def test_loaders_refuse_before_a_weight_is_opened(
    algo: str | None, kind: ProjectionKind, route: str, tmp_path: Path
) -> None:
    layer = LAYERS[kind]
    with pytest.raises(RefusedScheme) as caught:
        load(route, described(tmp_path, algo), layer)
    assert caught.value.where == f"{tmp_path}: {layer.name}"
    assert ("null" if algo is None else algo) in caught.value.found


@pytest.mark.parametrize("route", ["disk", "cache", "cache-with-fallback"])
def test_loaders_refuse_a_mixture_by_layer(route: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedScheme, match=r"in which \S+down_proj has 'NVFP4'"):
        load(
            route,
            described(tmp_path, "MIXED_PRECISION", o_proj="FP8", down_proj="NVFP4"),
            LAYERS[ProjectionKind.PLAIN],
        )


@pytest.mark.parametrize("route", ["disk", "cache", "cache-with-fallback"])
def test_loaders_do_not_load_an_excluded_layer(route: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="excluded by"):
        load(route, described(tmp_path, "FP8", ("*.o_proj",)), LAYERS[ProjectionKind.PLAIN])


def test_loaders_decide_each_layer_of_a_mixture(tmp_path: Path) -> None:
    folder = described(tmp_path, "MIXED_PRECISION", o_proj=PER_CHANNEL, qkv_proj="FP8")
    with pytest.raises(DaemonUnavailable):
        load("cache", folder, LAYERS[ProjectionKind.QKV])
    with pytest.raises(
        WrongTensor, match=rf"o_proj: expected quant_algo FP8, found quant_algo {PER_CHANNEL}"
    ):
        load("cache", folder, LAYERS[ProjectionKind.PLAIN])
