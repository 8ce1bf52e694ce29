"""No tensor is dropped in silence: what no layer uses is listed, by what it is."""

from pathlib import Path

import pytest
import torch

from loadproof.harness.checkpoint.config import read_quantization
from loadproof.harness.checkpoint.discovery import discover_layers
from loadproof.harness.checkpoint.reader import CheckpointReader
from loadproof.harness.checkpoint.unused import UnusedTensors, unused_tensors
from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.matrix import layer_spec
from loadproof.harness.spec import LayerSpec, ProjectionKind, Scheme

ATTENTION = "model.layers.0.self_attn"
PER_CHANNEL = Scheme.FP8_PER_CHANNEL_PER_TOKEN
QKV = layer_spec(ProjectionKind.QKV, Scheme.FP8, (8, 4, 4), 16)
OUT = layer_spec(ProjectionKind.PLAIN, Scheme.FP8, (8,), 16)
EXPORTS = Path(__file__).resolve().parents[2] / ".cache" / "smollm2"


def stored(*layers: LayerSpec) -> dict[str, torch.Tensor]:
    return {name: t for i, one in enumerate(layers) for name, t in synthetic_tensors(one, i, False).items()}


def test_every_tensor_is_used_or_listed_once(tmp_path: Path) -> None:
    unread = (
        "model.layers.0.mlp.experts.gate_up_proj_weight_scale",
        f"{ATTENTION}.o_proj.pre_quant_scale",
        f"{ATTENTION}.q_proj.output_scale",
        f"{ATTENTION}.v_proj.lora",
    )
    caches = (f"{ATTENTION}.k_proj.k_scale", f"{ATTENTION}.v_proj.v_scale")
    rest = ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight")
    layers = [OUT, QKV]
    tensors = {**stored(*layers), **{name: torch.ones(2) for name in (*unread, *caches, *rest)}}
    write_checkpoint(tmp_path, tensors, Scheme.FP8, ("lm_head",))
    with CheckpointReader(tmp_path) as reader:
        unused = unused_tensors(reader, layers)
    assert unused == UnusedTensors(unread=unread, kv_scales=caches, unquantised=rest)


def test_an_input_scale_that_the_scheme_does_not_read_is_listed(tmp_path: Path) -> None:
    out = layer_spec(ProjectionKind.PLAIN, PER_CHANNEL, (8,), 16)
    name = f"{out.name}.input_scale"
    write_checkpoint(tmp_path, {**stored(out), name: torch.tensor(0.5)}, PER_CHANNEL)
    with CheckpointReader(tmp_path) as reader:
        unused = unused_tensors(reader, [out])
    assert unused == UnusedTensors(unread=(name,), kv_scales=(), unquantised=())


# --- real exports -----------------------------------------------------------------------------

REAL_LEAVES = {
    "mlp.down_proj": (576,),
    "mlp.gate_up_proj": (1536, 1536),
    "self_attn.o_proj": (576,),
    "self_attn.qkv_proj": (576, 192, 192),
}


@pytest.mark.parametrize("scheme", list(Scheme), ids=str)
def test_every_layer_of_a_real_export_is_found(scheme: Scheme) -> None:
    folder = EXPORTS / scheme.value.lower().replace("_", "-")
    with CheckpointReader(folder) as reader:
        layers = discover_layers(reader, read_quantization(folder))
        unused = unused_tensors(reader, layers)
        # Two norms a layer, one at the end, and the embeddings; the head is tied to them.
        assert len(unused.unquantised) == 2 * 30 + 2
        assert (unused.unread, unused.kv_scales) == ((), ())
    assert {found.scheme for found in layers} == {scheme}
    names = [f"model.layers.{i}.{leaf}" for i in range(30) for leaf in REAL_LEAVES]
    assert [found.name for found in layers] == names
    assert [found.logical_widths for found in layers] == [*REAL_LEAVES.values()] * 30
