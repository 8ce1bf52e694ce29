"""Processes from the forkserver: their output, and the spare one that starts CUDA ahead of its job.

The spare is tried without a GPU: there it finds no CUDA, and waits for its job all the same.
"""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadproof.cases.selfcheck.test_runs import alive
from loadproof.harness.child import Child
from loadproof.harness.daemon import DaemonJob
from loadproof.harness.engine import EngineJob
from loadproof.harness.errors import LaunchError, OutputUnwritable
from loadproof.harness.launch import Forkserver, Needs
from loadproof.harness.model_spec import PlainTensor
from loadproof.harness.subjects.builtin import BuiltinSubject

CPU, CUDA = Needs("cpu", "reference"), Needs("cuda", "reference")


@pytest.fixture
def forkserver() -> Iterator[Forkserver]:
    server = Forkserver()
    yield server
    server.close()


def start(forkserver: Forkserver, needs: Needs, stderr: Path) -> Child:
    """An engine whose job lacks everything: it says so on its stderr, and ends with status 1."""
    return forkserver.start("engine", {"defect": None}, needs, stderr)


def spare(forkserver: Forkserver) -> Child:
    assert forkserver._spare is not None
    return forkserver._spare.child


def test_output_of_a_failed_process_is_in_its_file(forkserver: Forkserver, tmp_path: Path) -> None:
    for needs in (CPU, CUDA, CUDA):
        stderr = tmp_path / f"{needs.device}.stderr"
        child = start(forkserver, needs, stderr)
        assert child.wait(30) == 1
        assert "KeyError" in child.stderr_tail()
        assert "KeyError" in stderr.read_text()


def test_next_process_on_a_gpu_is_the_spare(forkserver: Forkserver, tmp_path: Path) -> None:
    first = start(forkserver, CUDA, tmp_path / "first")
    waiting = spare(forkserver)
    assert waiting.pid != first.pid
    second = start(forkserver, CUDA, tmp_path / "second")
    assert second.pid == waiting.pid
    assert spare(forkserver).pid not in (first.pid, second.pid)


def test_no_spare_on_a_cpu(forkserver: Forkserver, tmp_path: Path) -> None:
    start(forkserver, CPU, tmp_path / "first")
    assert forkserver._spare is None


def test_spare_whose_output_cannot_be_moved_is_replaced(forkserver: Forkserver, tmp_path: Path) -> None:
    start(forkserver, CUDA, tmp_path / "first")
    waiting = spare(forkserver)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        assert os.stat(elsewhere).st_dev != os.stat(tmp_path).st_dev
        second = start(forkserver, CUDA, Path(elsewhere, "second"))
        assert second.wait(30) == 1
        assert "KeyError" in second.stderr_tail()
    assert waiting.exit is not None
    waiting = spare(forkserver)
    with pytest.raises(OutputUnwritable, match="nowhere"):
        start(forkserver, CUDA, tmp_path / "nowhere" / "third")
    assert waiting.exit is not None


def test_spare_serves_every_kernel_that_its_server_knows(forkserver: Forkserver, tmp_path: Path) -> None:
    other = Needs("cuda", "torch-scaled-mm")
    for index, needs in enumerate((CUDA, other)):
        start(forkserver, needs, tmp_path / f"{index}")
    for index, needs in enumerate((CUDA, other, CUDA)):
        waiting = spare(forkserver)
        assert start(forkserver, needs, tmp_path / f"again-{index}").pid == waiting.pid


@pytest.mark.parametrize("needs", [CPU, CUDA], ids=["cpu", "cuda"])
def test_what_is_prepared_is_the_next_process(forkserver: Forkserver, tmp_path: Path, needs: Needs) -> None:
    forkserver.prepare(needs)
    waiting = spare(forkserver)
    forkserver.prepare(needs)
    assert spare(forkserver) is waiting
    child = start(forkserver, needs, tmp_path / "stderr")
    assert child.pid == waiting.pid
    assert child.wait(30) == 1
    assert "KeyError" in child.stderr_tail()


def test_process_of_one_device_is_no_spare_for_another(forkserver: Forkserver, tmp_path: Path) -> None:
    forkserver.prepare(CPU)
    forkserver.prepare(CUDA)
    waiting = spare(forkserver)
    assert start(forkserver, CPU, tmp_path / "stderr").pid != waiting.pid
    assert waiting.exit is not None


def test_spare_of_another_kernel_is_replaced(forkserver: Forkserver, tmp_path: Path) -> None:
    start(forkserver, CUDA, tmp_path / "first")
    waiting = spare(forkserver)
    second = start(forkserver, Needs("cuda", "torch-scaled-mm"), tmp_path / "second")
    assert second.pid != waiting.pid
    assert waiting.wait(30) is not None
    assert second.wait(30) == 1


@pytest.mark.parametrize("needs", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("killed", ["spare", "server"])
def test_spare_that_died_unseen_is_replaced(
    forkserver: Forkserver, tmp_path: Path, needs: Needs, killed: str
) -> None:
    forkserver.prepare(needs)
    waiting = spare(forkserver).pid
    os.kill(waiting if killed == "spare" else forkserver._server.process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while alive(waiting) and time.monotonic() < deadline:
        time.sleep(0.01)
    # The server has seen it, and says so.
    time.sleep(0.2)
    child = start(forkserver, needs, tmp_path / "stderr")
    assert child.pid != waiting
    assert child.wait(30) == 1


def test_spare_for_a_layer_is_none_for_a_model(forkserver: Forkserver, tmp_path: Path) -> None:
    model = replace(CUDA, transformers=True)
    # The server knows both, so that nothing but how a spare was started tells them apart.
    for needs in (CUDA, model, CUDA):
        forkserver.prepare(needs)
    for needs in (model, CUDA):
        waiting = spare(forkserver)
        assert start(forkserver, needs, tmp_path / f"{needs.transformers}").pid != waiting.pid
        assert waiting.exit is not None


def test_all_processes_of_a_model_s_case_are_started_alike() -> None:
    asked: list[Needs] = []
    recorder = SimpleNamespace(start=lambda _life, _job, needs, _stderr: asked.append(needs))
    subject = BuiltinSubject(recorder)  # type: ignore[arg-type]
    plain = (PlainTensor(name="model.norm.weight", dtype="bfloat16", shape=(64,)),)
    shared: dict[str, Any] = {
        "checkpoint": Path(),
        "layers": (),
        "socket": Path(),
        "transport": "memfd",
        "kernel": "cutlass",
    }
    daemon = DaemonJob(**shared, plain=plain, device="cuda")
    engine = EngineJob(
        **shared,
        plain=plain,
        device="cuda",
        loader="cache",
        links_into=None,
        new_tokens=16,
        expected_content="",
        fallback_allowed=False,
        inputs=Path(),
        results=Path(),
    )
    subject.start_daemon(daemon, Path())
    subject.start_engine(engine, Path())
    assert asked == [Needs("cuda", "cutlass", transformers=True)] * 2
    subject.start_daemon(replace(daemon, plain=()), Path())
    subject.start_engine(replace(engine, plain=(), new_tokens=0), Path())
    assert asked[2:] == [Needs("cuda", "cutlass")] * 2


def test_closed_forkserver_leaves_no_spare(forkserver: Forkserver, tmp_path: Path) -> None:
    start(forkserver, CUDA, tmp_path / "first")
    pid = spare(forkserver).pid
    forkserver.close()
    assert not alive(pid)


def test_server_that_was_fine_and_is_silent_now_is_an_error(
    forkserver: Forkserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = replace(CPU, transformers=True)
    forkserver._server.prepared |= {needs}
    monkeypatch.setattr("loadproof.harness.launch.ANSWER_SECONDS", 0.2)
    os.kill(forkserver._server.process.pid, signal.SIGSTOP)
    with pytest.raises(LaunchError, match="TimeoutError"):
        start(forkserver, needs, tmp_path / "stderr")
    assert not forkserver._transformers_harms


PRELOADS = {
    "starts-a-thread": "import threading, time\n"
    "def preload(): threading.Thread(target=time.sleep, args=(60,)).start()\n",
    "dies": "import os\ndef preload(): os._exit(9)\n",
    "fails": "def preload(): 1 // 0\n",
    "is-fine": "def preload(): pass\n",
}


@pytest.mark.parametrize("preload", PRELOADS)
def test_preload_that_harms_costs_one_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preload: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types\n"
        "work = types.ModuleType('loadproof.harness.models.work')\n"
        f"exec({PRELOADS[preload]!r}, vars(work))\n"
        "sys.modules[work.__name__] = work\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    server = Forkserver()
    try:
        first, used = server._server.process.pid, set()
        server.prepare(replace(CPU, transformers=True))
        ahead = spare(server).pid
        for index in range(2):
            child = start(server, replace(CPU, transformers=True), tmp_path / f"{index}")
            assert child.wait(30) == 1
            assert "KeyError" in child.stderr_tail()
            used.add(server._server.process.pid)
            assert (child.pid == ahead) is (index == 0)
    finally:
        server.close()
    assert len(used) == 1
    assert (used != {first}) == (preload in ("starts-a-thread", "dies"))
