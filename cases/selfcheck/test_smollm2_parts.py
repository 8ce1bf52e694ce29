"""What was packed for travel is rebuilt byte for byte, or one error says why not and nothing is left."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from loadproof.harness.checkpoint.header import Entry, read_header
from loadproof.harness.checkpoint.writer import write_checkpoint
from loadproof.harness.errors import InvalidInput, LoadproofError, MalformedCheckpoint
from loadproof.harness.spec import Scheme
from loadproof.harness.tensor_bytes import memory_bytes

gguf = pytest.importorskip("gguf", reason="gguf is not installed (extra: model)")

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = "model.safetensors"
HEADS = {"attn_q": 3, "attn_k": 1}
HEAD, HIDDEN = 8, 64
PART = 7000
"""Bytes; makes three parts of the made-up exports, or more."""
Q4_1, Q8_0 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
PROJECTIONS = {
    "model.layers.0.self_attn.q_proj": ("blk.0.attn_q", 3 * HEAD, HIDDEN),
    "model.layers.0.self_attn.k_proj": ("blk.0.attn_k", HEAD, HIDDEN),
    "model.layers.0.mlp.down_proj": ("blk.0.ffn_down", HIDDEN, 2 * HIDDEN),
}
EMBEDDINGS, NORM = "model.embed_tokens.weight", "model.norm.weight"
FOLLOWING = {EMBEDDINGS, *(f"{module}.weight" for module in PROJECTIONS)}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("smollm2_parts")


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A folder with `model.gguf` and, below `exports`, what the two schemes make of it."""
    generator = torch.Generator().manual_seed(0)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")

    def quantised(name: str, rows: int, k: int, kind: Any) -> torch.Tensor:
        """What the file then holds, dequantised by gguf itself: bfloat16 [rows, k]."""
        blocks = gguf.quants.quantize(torch.randn(rows, k, generator=generator).numpy(), kind)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=kind)
        return torch.from_numpy(gguf.quants.dequantize(blocks, kind)).to(torch.bfloat16)

    plain = {EMBEDDINGS: quantised("token_embd", 100, HIDDEN, Q8_0), NORM: torch.ones(HIDDEN)}
    weights = {}
    for module, (name, rows, k) in PROJECTIONS.items():
        weights[module] = weight = torch.empty(rows, k, dtype=torch.bfloat16)
        weight[stored_order(rows, HEADS.get(name.split(".")[-1], 0))] = quantised(name, rows, k, Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    for scheme, axis in ((Scheme.FP8, None), (Scheme.FP8_PER_CHANNEL_PER_TOKEN, 1)):
        tensors = dict(plain)
        for module, weight in weights.items():
            largest = weight.abs().float()
            scale = (largest.amax() if axis is None else largest.amax(axis)) / 448
            codes = (weight / (scale if axis is None else scale[:, None])).clamp(-448, 448)
            tensors[f"{module}.weight"] = codes.to(torch.float8_e4m3fn)
            tensors[f"{module}.weight_scale"] = scale
        folder = tmp_path / "exports" / scheme.value.lower()
        write_checkpoint(folder, tensors, scheme)
        config = json.loads((folder / "config.json").read_text())
        config |= {"num_attention_heads": 3, "num_key_value_heads": 1, "num_hidden_layers": 1}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer.json").write_text("{}")
    (tmp_path / "exports" / "stamp.json").write_text('{"torch": "any"}\n')
    return tmp_path


def stored_order(rows: int, heads: int) -> list[int]:
    """For each row of the GGUF file, the checkpoint's row: llama.cpp interleaves the halves of each head."""
    if not heads:
        return list(range(rows))
    size = rows // heads
    return [
        h * size + half * size // 2 + i for h in range(heads) for i in range(size // 2) for half in (0, 1)
    ]


@pytest.fixture
def parts(tool: ModuleType, made_up: Path) -> Path:
    """A folder with several parts of the made-up exports."""
    tool.pack(made_up / "exports", made_up / "model.gguf", made_up / "parts", PART)
    return made_up / "parts"


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def refused(tool: ModuleType, folders: list[Path], into: Path) -> LoadproofError:
    """The error that rebuilding ends in, having left nothing."""
    before = sorted(into.parent.iterdir())
    with pytest.raises(LoadproofError) as caught:
        tool.rebuild(folders, into)
    assert sorted(into.parent.iterdir()) == before
    return caught.value


def test_rebuilt_files_are_those_that_were_packed(tool: ModuleType, made_up: Path, parts: Path) -> None:
    payloads = list(parts.glob("part-*/payload-*"))
    assert len(payloads) >= 3
    assert max(payload.stat().st_size for payload in payloads) <= PART
    tool.rebuild([parts], made_up / "cache" / "smollm2")
    assert contents(made_up / "cache" / "smollm2") == contents(made_up / "exports")
    assert list((made_up / "cache").iterdir()) == [made_up / "cache" / "smollm2"]


def test_packing_twice_gives_the_same_parts(tool: ModuleType, made_up: Path, parts: Path) -> None:
    tool.pack(made_up / "exports", made_up / "model.gguf", made_up / "again", PART)
    assert contents(made_up / "again") == contents(parts)


def test_parts_may_lie_apart_and_in_any_order(tool: ModuleType, made_up: Path, parts: Path) -> None:
    apart = [part.rename(made_up / f"arrived-{part.name[-1]}") for part in sorted(parts.iterdir())]
    tool.rebuild(apart[::-1], made_up / "rebuilt")
    assert contents(made_up / "rebuilt") == contents(made_up / "exports")


@pytest.mark.parametrize("scheme", ["fp8", "fp8_per_channel_per_token"])
def test_quantised_weights_and_embeddings_follow_from_blocks(
    tool: ModuleType, made_up: Path, scheme: str
) -> None:
    blocks = tool.gguf_blocks(made_up / "model.gguf")
    assert following(tool, made_up / "exports" / scheme / WEIGHTS, blocks) == FOLLOWING


def following(tool: ModuleType, file: Path, blocks: dict[str, torch.Tensor]) -> set[str]:
    """The tensors of a weight file that need not travel."""
    config = json.loads((file.parent / "config.json").read_text())
    steps = tool.recipe(list(entries(file)), config, load_file(file), blocks)
    return {step.tensor for step in steps if step.blocks is not None}


def entries(file: Path) -> dict[str, Entry]:
    with file.open("rb") as opened:
        return read_header(opened.fileno(), file).entries


def test_a_weight_that_does_not_follow_travels_as_it_is(tool: ModuleType, made_up: Path) -> None:
    file = made_up / "exports" / "fp8" / WEIGHTS
    changed = bytearray(file.read_bytes())
    name = "model.layers.0.mlp.down_proj.weight"
    changed[entries(file)[name].start] ^= 1
    file.write_bytes(changed)
    assert following(tool, file, tool.gguf_blocks(made_up / "model.gguf")) == FOLLOWING - {name}
    tool.pack(made_up / "exports", made_up / "model.gguf", made_up / "parts", 1 << 20)
    tool.rebuild([made_up / "parts"], made_up / "rebuilt")
    assert contents(made_up / "rebuilt") == contents(made_up / "exports")


@pytest.mark.parametrize("kind", [Q4_1, Q8_0], ids=["q4_1", "q8_0"])
def test_dequantised_is_what_gguf_computes(tool: ModuleType, kind: Any) -> None:
    values = torch.randn(64, 96, generator=torch.Generator().manual_seed(1)).numpy() * 3
    blocks = gguf.quants.quantize(values, kind)
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    recipe = importlib.import_module("smollm2_recipe")
    ours = recipe.dequantised(torch.from_numpy(blocks).reshape(64, -1, block_bytes)).numpy()
    assert np.array_equal(ours.view(np.uint32), gguf.quants.dequantize(blocks, kind).view(np.uint32))


def test_a_quotient_above_the_largest_code_is_that_code(tool: ModuleType) -> None:
    # torch 2.11 casts such a value to NaN, 2.13 to the largest code.
    blocks = torch.from_numpy(gguf.quants.quantize(np.full((1, 32), -1000, np.float32), Q8_0)).reshape(
        1, 1, 34
    )
    codes = importlib.import_module("smollm2_recipe").rebuilt(blocks, 0, torch.tensor(1.0))
    assert memory_bytes(codes).tolist() == [0xFE] * 32


def test_a_damaged_part_is_named(tool: ModuleType, made_up: Path, parts: Path) -> None:
    damaged = parts / "part-2" / "payload-2"
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    error = refused(tool, [parts], made_up / "rebuilt")
    assert (type(error), error.where) == (InvalidInput, str(damaged))
    assert error.remedy.startswith("Copy part-2 again")


def test_a_missing_part_is_named(tool: ModuleType, made_up: Path, parts: Path) -> None:
    error = refused(tool, [parts / "part-1", parts / "part-3"], made_up / "rebuilt")
    assert (type(error), error.expected, error.found) == (InvalidInput, "payload-2", "no such file")
    assert error.remedy.startswith("Copy part-2 too")


def test_a_folder_without_parts_is_refused(tool: ModuleType, made_up: Path) -> None:
    error = refused(tool, [made_up / "exports"], made_up / "rebuilt")
    assert (type(error), error.found) == (InvalidInput, "none")


def test_parts_of_two_packings_are_told_apart(tool: ModuleType, made_up: Path, parts: Path) -> None:
    tool.pack(made_up / "exports", made_up / "model.gguf", made_up / "other", PART + 1000)
    error = refused(tool, [parts / "part-1", made_up / "other" / "part-2"], made_up / "rebuilt")
    assert (type(error), error.where) == (InvalidInput, str(made_up / "other" / "part-2" / "manifest.json"))


@pytest.mark.parametrize("change", [{"format": 2}, {"parts": "none"}], ids=["format", "field"])
def test_a_manifest_of_another_version_is_refused(
    tool: ModuleType, made_up: Path, parts: Path, change: dict[str, object]
) -> None:
    for file in parts.glob("part-*/manifest.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    error = refused(tool, [parts], made_up / "rebuilt")
    assert (type(error), error.expected) == (InvalidInput, "a manifest of format 1")
    assert next(iter(change)) in error.found


def test_a_host_that_computes_another_byte_is_found_out(
    tool: ModuleType, made_up: Path, parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tool.carried_out

    def one_bit_off(step: Any, blocks: Any, kept: Any) -> torch.Tensor:
        tensor = ours(step, blocks, kept).clone()
        if step.tensor == "model.layers.0.self_attn.q_proj.weight":
            memory_bytes(tensor)[5] ^= 1
        return tensor

    monkeypatch.setattr(tool, "carried_out", one_bit_off)
    error = refused(tool, [parts], made_up / "rebuilt")
    assert (type(error), error.where) == (MalformedCheckpoint, str(made_up / "rebuilt" / "fp8"))


def test_the_same_exports_are_left_as_they_are(tool: ModuleType, made_up: Path, parts: Path) -> None:
    tool.rebuild([parts], made_up / "rebuilt")
    written = (made_up / "rebuilt").stat()
    tool.rebuild([parts], made_up / "rebuilt")
    assert (made_up / "rebuilt").stat() == written


def test_other_exports_are_not_overwritten(tool: ModuleType, made_up: Path, parts: Path) -> None:
    tool.rebuild([parts], made_up / "rebuilt")
    (made_up / "rebuilt" / "fp8" / WEIGHTS).unlink()
    before = contents(made_up / "rebuilt")
    assert isinstance(refused(tool, [parts], made_up / "rebuilt"), InvalidInput)
    assert contents(made_up / "rebuilt") == before


def test_packing_nothing_is_refused(tool: ModuleType, made_up: Path) -> None:
    (made_up / "empty").mkdir()
    with pytest.raises(InvalidInput, match="exports to pack"):
        tool.pack(made_up / "empty", made_up / "model.gguf", made_up / "parts", PART)
    assert not (made_up / "parts").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rebuild", "/nowhere"], "smollm2_parts: /nowhere: expected parts"),
        (["pack", "anywhere", "--part-mib", "61"], "invalid choice: 61"),
    ],
    ids=["error", "limit"],
)
def test_the_command_ends_with_one_error(
    tool: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["smollm2_parts.py", *arguments])
    with pytest.raises(SystemExit) as caught:
        tool.main()
    assert caught.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_the_real_weights_and_embeddings_follow_from_blocks(tool: ModuleType) -> None:
    files = sorted(tool.EXPORTS.glob(f"*/{WEIGHTS}"))
    if not files:
        pytest.skip("no exports of SmolLM2: tools/setup.sh makes them")
    blocks = tool.gguf_blocks(tool.model_file())
    assert len(files) == 2
    for file in files:
        quantised = {name for name, entry in entries(file).items() if entry.dtype == "F8_E4M3"}
        assert len(quantised) == 210
        assert following(tool, file, blocks) == quantised | {EMBEDDINGS}
