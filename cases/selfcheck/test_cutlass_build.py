"""The CUTLASS library's build and cache, with a stand-in for nvcc."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch

from loadproof.harness.errors import KernelBuildError
from loadproof.harness.kernels.cutlass import abi, build, toolchain
from loadproof.harness.outcome import Outcome

FAKE_NVCC = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "fake nvcc 13.0"; exit 0; fi
echo run >> "$FAKE_NVCC_RUNS"
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
{body}
"""
WRITES = 'printf "a library" > "$out"'
LOAD = abi.load


class Host:
    """A host with a stand-in for nvcc, with headers, and with an empty cache; the library is not loaded."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.runs = root / "runs"
        (root / "bin").mkdir()
        self.version_header = root / "include" / toolchain.VERSION_HEADER
        self.version_header.parent.mkdir(parents=True)
        self.version_header.write_text("#define CUTLASS_MAJOR 4\n")
        self.nvcc(WRITES)
        monkeypatch.setenv("PATH", f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        monkeypatch.setenv("FAKE_NVCC_RUNS", str(self.runs))
        monkeypatch.setenv(toolchain.INCLUDE_VARIABLE, str(root / "include"))
        monkeypatch.setattr(abi, "load", lambda path: None)
        self.forget_headers()

    def nvcc(self, body: str) -> None:
        file = self.root / "bin" / "nvcc"
        file.write_text(FAKE_NVCC.format(body=body))
        file.chmod(0o755)

    def forget_headers(self) -> None:
        toolchain.tree_digest.cache_clear()

    @property
    def builds(self) -> int:
        return len(self.runs.read_text().splitlines()) if self.runs.exists() else 0


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


# --- build and cache --------------------------------------------------------------------------


def test_build_happens_once_and_is_announced(host: Host, capfd: pytest.CaptureFixture[str]) -> None:
    first = build.library()
    assert build.library() == first
    assert first.read_text() == "a library"
    assert host.builds == 1
    assert capfd.readouterr().err.count("building the CUTLASS kernel for sm_90a") == 1
    assert sorted(path.name for path in first.parent.iterdir()) == [build.LIBRARY, build.DIGEST]


@pytest.mark.parametrize(
    "damage",
    [
        lambda library: library.write_text("a librarx"),
        lambda library: library.write_text("a lib"),
        lambda library: library.unlink(),
        lambda library: (library.parent / build.DIGEST).unlink(),
        lambda library: (library.parent / build.DIGEST).write_bytes(b"\xff"),
    ],
    ids=["altered", "torn", "no-library", "no-digest", "digest-not-text"],
)
def test_broken_entry_is_built_again(host: Host, damage: Callable[[Path], object]) -> None:
    library = build.library()
    damage(library)
    assert build.library().read_text() == "a library"
    assert host.builds == 2
    assert build.library() == library
    assert host.builds == 2


def test_half_written_entry_is_ignored_and_removed(host: Host) -> None:
    key = build.cache_key(toolchain.find_toolchain(), "sm_90a")
    half = build.cache_root() / f"{key}.killed.tmp"
    half.mkdir(parents=True)
    (half / build.LIBRARY).write_text("a lib")
    assert build.library().read_text() == "a library"
    assert host.builds == 1
    assert not half.exists()


def test_key_covers_what_decides_the_bytes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def key() -> str:
        host.forget_headers()
        return build.cache_key(toolchain.find_toolchain(), "sm_90a")

    keys = [key()]
    host.version_header.write_text("#define CUTLASS_MAJOR 5\n")  # the same size
    keys.append(key())
    host.version_header.with_name("other.h").touch()
    keys.append(key())
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-G"))
    keys.append(key())
    source = host.root / "source"
    source.mkdir()
    monkeypatch.setattr(build, "SOURCE", source)
    for text in ("int before;", "int after;"):
        (source / "api.cu").write_text(text)
        keys.append(key())
    fake = host.root / "bin" / "nvcc"
    fake.write_text(fake.read_text().replace("13.0", "13.1"))
    keys.append(key())
    assert len(set(keys)) == len(keys)
    assert key() == keys[-1]


def test_key_does_not_depend_on_where_the_headers_lie(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.cache_key(toolchain.find_toolchain(), "sm_90a")
    moved = (host.root / "include").rename(host.root / "elsewhere")
    monkeypatch.setenv(toolchain.INCLUDE_VARIABLE, str(moved))
    assert build.cache_key(toolchain.find_toolchain(), "sm_90a") == before


def test_processes_that_ask_together_build_once(host: Host) -> None:
    host.nvcc(f"sleep 0.3; {WRITES}")
    code = (
        "from loadproof.harness.kernels.cutlass import abi, build; abi.load = lambda path: None;"
        "print('ready', flush=True); input(); print(build.library().read_text())"
    )
    pipe = subprocess.PIPE
    asking = [
        subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) for _ in "ab"
    ]
    for process in asking:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in asking:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate(timeout=60)[0] for process in asking] == ["a library\n"] * 2
    assert host.builds == 1


# --- refusals of the build --------------------------------------------------------------------


def assert_refuses(*words: str) -> None:
    with pytest.raises(KernelBuildError) as caught:
        build.library()
    assert caught.value.outcome is Outcome.INFRA
    for word in words:
        assert word in str(caught.value)
    left = [path for path in build.cache_root().rglob("*") if not path.name.endswith(".lock")]
    assert left == []


def test_no_nvcc(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(host.root))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    assert_refuses("nvcc on PATH", "loadproof[cutlass]")


def test_nvcc_of_cuda_home_is_found(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", str(host.root))
    assert toolchain._nvcc() == host.root / "bin" / "nvcc"


def test_nvcc_of_the_package_is_found(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    package = ModuleSpec("nvidia", None, is_package=True)
    package.submodule_search_locations = [str(host.root / "nvidia")]
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: package)
    (host.root / "nvidia" / "cu13").mkdir(parents=True)
    moved = (host.root / "bin").rename(host.root / "nvidia" / "cu13" / "bin")
    assert toolchain._nvcc() == moved / "nvcc"


def test_nvcc_that_does_not_run(host: Host) -> None:
    (host.root / "bin" / "nvcc").write_text("#!/bin/sh\nexit 3\n")
    assert_refuses("prints its version", "exit status 3")


def test_nvcc_that_fails_is_quoted(host: Host) -> None:
    host.nvcc(f'{WRITES}; echo "gemm.cuh(12): error: no such thing" >&2; exit 2')
    assert_refuses("exit 2", "gemm.cuh(12): error: no such thing", "CUDA 13")


def test_nvcc_that_writes_nothing(host: Host) -> None:
    host.nvcc("exit 0")
    assert_refuses("exit 0: no words")


def test_library_that_cannot_be_loaded_is_not_kept(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi, "load", LOAD)
    assert_refuses("a library with the functions of api.h")
    assert host.builds == 1


def test_library_without_the_functions_is_refused() -> None:
    with pytest.raises(KernelBuildError, match="functions of api"):
        abi.load(Path(torch._C.__file__))


@pytest.mark.parametrize("named", [True, False], ids=["variable", "package"])
def test_no_headers(host: Host, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    if named:
        monkeypatch.setenv(toolchain.INCLUDE_VARIABLE, "/nowhere")
    else:
        monkeypatch.delenv(toolchain.INCLUDE_VARIABLE)
        monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    assert_refuses("CUTLASS 4.x headers", "nvidia-cutlass==4.2.0", "/nowhere" if named else "cutlass_library")


def test_unsupported_architecture(host: Host) -> None:
    with pytest.raises(KernelBuildError, match=r"expected one of sm_90a .* found sm_100a"):
        build.library("sm_100a")
    assert host.builds == 0


def test_unwritable_cache(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    file = host.root / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    with pytest.raises(KernelBuildError, match="XDG_CACHE_HOME"):
        build.library()
