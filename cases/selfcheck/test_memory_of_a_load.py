"""A daemon holds the checkpoint once, not once for each step on its way into the arena."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.daemon import DaemonJob
from loadproof.harness.loaders import LayerStream
from loadproof.harness.spec import LayerSpec, Projection, Scheme
from loadproof.harness.tensor_bytes import memory_bytes

MIB = 1 << 20
LAYERS, K = 16, 4096
WIDTHS = {"q_proj": 2048, "k_proj": 1024, "v_proj": 1024}
LAYER_BYTES = sum(WIDTHS.values()) * K
DAEMON = """
import json, sys, threading, time
from pathlib import Path
from loadproof.harness.daemon import DaemonJob, serving

def private():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) << 10

samples = [private()]

def watch():
    while True:
        samples.append(private())
        time.sleep(0.0005)

threading.Thread(target=watch, daemon=True).start()
with serving(DaemonJob.from_json(json.loads(sys.argv[1]))) as ready:
    # The arena is reserved whole, whether it is touched yet or not.
    print(ready.manifest.arena_bytes + max(samples) - samples[0])
"""


def qkv(number: int) -> LayerSpec:
    """A fused layer of LAYER_BYTES bytes of weights."""
    prefix = f"model.layers.{number}.self_attn"
    return LayerSpec(
        name=f"{prefix}.qkv_proj",
        scheme=Scheme.FP8_PER_CHANNEL_PER_TOKEN,
        projections=tuple(Projection(name=f"{prefix}.{n}", logical_width=w) for n, w in WIDTHS.items()),
        logical_k=K,
    )


def test_the_peak_is_the_checkpoint_and_a_few_layers(tmp_path: Path) -> None:
    # The arena, and beside it the layer in work: as read, fused, padded, hashed; and what libraries keep.
    layers = [qkv(number) for number in range(LAYERS)]
    tensors = {}
    for projection in (projection for layer in layers for projection in layer.projections):
        ones = torch.ones(projection.logical_width, K, dtype=torch.float8_e4m3fn)
        tensors[f"{projection.name}.weight"] = ones
        tensors[f"{projection.name}.weight_scale"] = torch.ones(projection.logical_width)
    write_checkpoint(tmp_path / "checkpoint", tensors, Scheme.FP8_PER_CHANNEL_PER_TOKEN)
    job = DaemonJob(
        checkpoint=tmp_path / "checkpoint",
        layers=tuple(layers),
        socket=tmp_path / "s",
        transport="memfd",
        kernel="reference",
    )
    command = [sys.executable, "-c", DAEMON, json.dumps(job.to_json())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= (LAYERS + 10) * LAYER_BYTES, f"{int(done.stdout) / MIB:.0f} MiB"


@pytest.mark.parametrize("scheme", list(Scheme), ids=str)
def test_a_layer_asked_for_twice_is_read_once_and_processed_twice(scheme: Scheme, tmp_path: Path) -> None:
    projection = Projection(name="o_proj", logical_width=32)
    layer = LayerSpec(name="o_proj", scheme=scheme, projections=(projection,), logical_k=16)
    write_checkpoint(tmp_path, synthetic_tensors(layer, 3, False), scheme)
    first, second = LayerStream(tmp_path, [layer, layer])
    assert first.tensors.keys() == second.tensors.keys()
    for name, tensor in first.tensors.items():
        assert torch.equal(memory_bytes(tensor), memory_bytes(second.tensors[name]))
