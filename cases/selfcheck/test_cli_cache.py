"""`loadproof daemon` and `loadproof attach` as a user runs them."""

import json
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from loadproof.harness.checkpoint.digest import content_digest
from loadproof.harness.checkpoint.writer import synthetic_tensors, write_checkpoint
from loadproof.harness.matrix import layer_spec
from loadproof.harness.spec import ProjectionKind, Scheme

COMMAND = [sys.executable, "-m", "loadproof.reports.cli"]
LAYER = layer_spec(ProjectionKind.QKV, Scheme.FP8, (43, 17, 9), 48)
READY_SECONDS = 60.0


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, synthetic_tensors(LAYER, 3, False), Scheme.FP8)
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return folder / "s"


@contextmanager
def started(
    checkpoint: Path, path: Path, stderr: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    command = [*COMMAND, "daemon", str(checkpoint), "--socket", str(path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], READY_SECONDS)[0], "not ready"
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def attach(checkpoint: Path, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "attach", str(checkpoint), "--socket", str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def assert_one_line(result: subprocess.CompletedProcess[str], status: int, said: str) -> None:
    assert result.returncode == status, result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_ready_line_says_what_is_served(checkpoint: Path, path: Path) -> None:
    with started(checkpoint, path) as (process, ready):
        assert ready.pop("arena_bytes") > LAYER.padded_k * LAYER.padded_width
        assert ready == {
            "pid": process.pid,
            "socket": str(path),
            "transport": "memfd",
            "layers": 1,
            "content": content_digest(checkpoint),
        }


def test_daemon_says_what_no_layer_uses(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "more"
    tensors = synthetic_tensors(LAYER, 3, False)
    # What nothing reads comes first; the newline shows that no name breaks the line.
    tensors |= {f"{name}.weight": torch.ones(2) for name in ("model.norm", "a", "b\nc")}
    tensors["model.layers.0.rotary.k_scale_of_nobody"] = torch.ones(2)
    tensors["model.layers.0.mlp.experts.weight_scale_2"] = torch.ones(2)
    write_checkpoint(folder, tensors, Scheme.FP8)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(tensors, "model.safetensors")})
    )
    (folder / "stale.safetensors").write_bytes(b"")
    with started(folder, path, stderr=subprocess.PIPE) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said = process.stderr.read().splitlines()
    assert said == [
        "5 tensors are not part of any quantised layer: "
        "model.layers.0.mlp.experts.weight_scale_2, model.layers.0.rotary.k_scale_of_nobody, a.weight, …",
        "1 files or tensors are not named by the index: stale.safetensors",
    ]


def test_daemon_that_uses_every_tensor_says_nothing(checkpoint: Path, path: Path) -> None:
    with started(checkpoint, path, stderr=subprocess.PIPE) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize("command", ["daemon", "attach"])
def test_refused_scheme_is_one_line(command: str, path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "refused"
    write_checkpoint(folder, synthetic_tensors(LAYER, 3, False), "nvfp4")
    options = [command, str(folder), "--socket", str(path)]
    result = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60)
    assert_one_line(result, 2, "found quant_algo 'nvfp4'")


def test_attach_forgets_its_layers_when_a_config_changes(checkpoint: Path, path: Path) -> None:
    with started(checkpoint, path):
        assert attach(checkpoint, path).returncode == 0
        file = checkpoint / "hf_quant_config.json"
        file.write_text(file.read_text().replace("[]", '["*.qkv_proj"]'))
        (checkpoint / "config.json").unlink()
        assert_one_line(attach(checkpoint, path), 2, "excluded by '*.qkv_proj'")


def test_attach_verifies_every_tensor(checkpoint: Path, path: Path) -> None:
    with started(checkpoint, path) as (process, _):
        result = attach(checkpoint, path, "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["pid"] == process.pid
    assert [tensor["name"] for tensor in facts["tensors"]] == [
        f"{LAYER.name}.{tensor}" for tensor in ("weight", "weight_scale", "input_scale")
    ]


def test_attach_prints_a_table(checkpoint: Path, path: Path) -> None:
    with started(checkpoint, path):
        result = attach(checkpoint, path)
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["tensor", "dtype", "shape", "offset", "sha256"]
    assert lines[1].split()[:4] == [f"{LAYER.name}.weight", "float8_e4m3fn", "48x80", "0"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_daemon_and_leaves_nothing(
    checkpoint: Path, path: Path, signum: signal.Signals
) -> None:
    with started(checkpoint, path) as (process, _):
        process.send_signal(signum)
        assert process.wait(20) == 0
    assert list(path.parent.iterdir()) == []


def test_new_daemon_serves_where_one_was_killed(checkpoint: Path, path: Path) -> None:
    with started(checkpoint, path) as (process, _):
        process.kill()
        process.wait(20)
    assert path.is_socket()
    with started(checkpoint, path) as (successor, _):
        result = attach(checkpoint, path, "--json")
    assert json.loads(result.stdout)["pid"] == successor.pid


def test_no_daemon_is_one_line(checkpoint: Path, path: Path) -> None:
    assert_one_line(attach(checkpoint, path), 2, "no such file")


def test_unknown_transport_is_one_line(checkpoint: Path, path: Path) -> None:
    assert_one_line(attach(checkpoint, path, "--transport", "pigeon"), 2, "memfd-writable")


def test_long_path_is_one_line(checkpoint: Path, path: Path) -> None:
    assert_one_line(attach(checkpoint, path.with_name("s" * 108)), 2, "107 bytes")


def test_other_content_ends_with_status_1_and_is_named(checkpoint: Path, path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_checkpoint(other, synthetic_tensors(LAYER, 4, False), Scheme.FP8)
    with started(checkpoint, path):
        assert_one_line(attach(other, path), 1, "1 differing fields (content: ")


def test_written_memory_ends_with_status_1(checkpoint: Path, path: Path) -> None:
    from loadproof.harness.cache.client import CacheClient
    from loadproof.harness.cache.key import make_key
    from loadproof.harness.kernels import make_kernel

    command = [*COMMAND, "daemon", str(checkpoint), "--socket", str(path), "--transport", "memfd-writable"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready: ")
            key = make_key(checkpoint, content_digest(checkpoint), [LAYER], make_kernel("reference"))
            client = CacheClient(path)
            attached = client.attach(key, "memfd-writable")
            attached.arena.read(0, 1).bitwise_xor_(1)
            result = attach(checkpoint, path, "--transport", "memfd-writable")
            attached.arena.close()
            client.close()
        finally:
            process.kill()
    assert_one_line(result, 1, f"{LAYER.name}.weight: expected sha256")


def test_attach_reads_no_weight_file_while_the_sidecar_is_fresh(
    checkpoint: Path, path: Path, tmp_path: Path
) -> None:
    log = tmp_path / "reads"
    script = (
        "import os, sys\n"
        "real = os.pread\n"
        "def pread(*args):\n"
        "    if os.readlink(f'/proc/self/fd/{args[0]}').endswith('.safetensors'):\n"
        f"        open({str(log)!r}, 'a').write('read\\n')\n"
        "    return real(*args)\n"
        "os.pread = pread\n"
        "from loadproof.reports.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, "attach", str(checkpoint), "--socket", str(path)]
    with started(checkpoint, path):
        assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0
        assert log.exists(), "the first attach must hash: the witness sees nothing"
        log.unlink()
        assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    assert not log.exists()


@pytest.mark.parametrize("command", ["daemon", "attach"])
def test_every_option_is_explained(command: str) -> None:
    result = subprocess.run([*COMMAND, command, "--help"], capture_output=True, text=True, timeout=60)
    for words in ("Folder of a ModelOpt", "Unix socket", "memory is shared", "Backend", "Print JSON"):
        assert words in " ".join(result.stdout.replace("│", " ").split())
