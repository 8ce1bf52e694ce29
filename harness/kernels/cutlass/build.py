"""The library's build and its cache.

An entry is `$XDG_CACHE_HOME/loadproof/cutlass/<key>/` with the library and its sha256 beside it. The key
covers whatever decides the bytes: sources, flags, nvcc's version, the headers' contents, the architecture.
A whole folder appears by one rename; a library that differs from its sha256 is built again.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

from ...errors import KernelBuildError
from ...user_cache import user_cache
from . import abi
from .toolchain import Toolchain, find_toolchain

LIBRARY = "libloadproof_cutlass.so"
DIGEST = f"{LIBRARY}.sha256"
ARCHITECTURES = {"sm_90a": "arch=compute_90a,code=sm_90a"}
"""The supported architectures, and how nvcc is told."""

SOURCE = Path(__file__).parent
FLAGS = (
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-shared",
    "-cudart=static",
    "-Xcompiler=-fPIC,-fvisibility=hidden",
)
STDERR_TAIL = 2000
"""Characters of nvcc's stderr that an error quotes."""


def library(architecture: str = "sm_90a") -> Path:
    """The library for `architecture`, built if the cache has none, by one process however many ask.

    Raises:
        KernelBuildError: another architecture, no nvcc, no headers, nvcc failed, or the cache is unwritable.
    """
    if architecture not in ARCHITECTURES:
        raise KernelBuildError(
            "CUTLASS kernel",
            expected=f"one of {', '.join(ARCHITECTURES)} (compute capability 9.0: H100, H200)",
            found=architecture,
            remedy="Run on such a GPU, or choose another kernel.",
        )
    tools = find_toolchain()
    entry = cache_root() / cache_key(tools, architecture)
    if not _intact(entry):
        _build_once(entry, tools, architecture)
    return entry / LIBRARY


def cache_root() -> Path:
    """`$XDG_CACHE_HOME/loadproof/cutlass`, `~/.cache` by default."""
    return user_cache("cutlass")


def cache_key(tools: Toolchain, architecture: str) -> str:
    """sha256 over what decides the library's bytes."""
    parts = [tools.version, tools.headers, architecture, ARCHITECTURES[architecture], *FLAGS]
    for file in _sources():
        parts += [file.name, file.read_text()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _sources() -> list[Path]:
    return sorted(path for path in SOURCE.iterdir() if path.suffix in {".cu", ".cuh", ".h"})


def _intact(entry: Path) -> bool:
    try:
        return (entry / DIGEST).read_text() == _sha256(entry / LIBRARY)
    except (OSError, UnicodeDecodeError):
        return False


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _build_once(entry: Path, tools: Toolchain, architecture: str) -> None:
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{entry}.lock"):
            if _intact(entry):
                return
            # Left by builds that were killed: this process holds the lock, so nobody is writing them.
            for leftover in entry.parent.glob(f"{entry.name}.*.tmp"):
                shutil.rmtree(leftover)
            scratch = Path(tempfile.mkdtemp(prefix=f"{entry.name}.", suffix=".tmp", dir=entry.parent))
            try:
                _build(scratch, tools, architecture)
                shutil.rmtree(entry, ignore_errors=True)
                scratch.rename(entry)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise KernelBuildError(
            entry,
            expected="a cache folder that can be written",
            found=error,
            remedy="Free the disk, or point XDG_CACHE_HOME at a folder that you may write to.",
        ) from error


def _build(scratch: Path, tools: Toolchain, architecture: str) -> None:
    print(
        f"loadproof: building the CUTLASS kernel for {architecture}, about 2 minutes, once",
        file=sys.stderr,
        flush=True,
    )
    built = scratch / LIBRARY
    units = [str(file) for file in _sources() if file.suffix == ".cu"]
    # --threads=0: as many sources at a time as there are cores. It changes no byte, so the key leaves it out.
    command = [str(tools.nvcc), *FLAGS, "-gencode", ARCHITECTURES[architecture], "--threads=0"]
    # nvcc looks for the static runtime below lib64; the package nvidia-cuda-runtime has it below lib.
    command += [f"-L{tools.nvcc.parent.parent / 'lib'}"]
    command += [f"-I{tools.include}", *units, "-o", str(built)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    if done.returncode != 0 or not built.is_file():
        raise KernelBuildError(
            f"nvcc {tools.nvcc}",
            expected=f"{LIBRARY} for {architecture}",
            found=f"exit {done.returncode}: {done.stderr[-STDERR_TAIL:].strip() or 'no words'}",
            remedy="See that nvcc is of CUDA 13 and finds its host compiler (g++); the headers must be 4.x.",
        )
    abi.load(built)
    (scratch / DIGEST).write_text(_sha256(built))
    for file in (built, scratch / DIGEST):
        _flush(file)
    scratch.chmod(0o755)


def _flush(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
