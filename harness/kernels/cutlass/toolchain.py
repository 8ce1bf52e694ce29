"""What builds the kernel, nvcc and CUTLASS's headers, and what identifies it; imports none of it."""

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ...errors import KernelBuildError

INCLUDE_VARIABLE = "LOADPROOF_CUTLASS_INCLUDE"
"""Names the folder that holds `cutlass/` and `cute/`; else the installed `cutlass_library` has them."""

VERSION_HEADER = Path("cutlass/version.h")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """nvcc, its version as it prints it, and the include folder with the digest of all files in it."""

    nvcc: Path
    version: str
    include: Path
    headers: str


def find_toolchain() -> Toolchain:
    """The tools of this host.

    Raises:
        KernelBuildError: there is no nvcc, or it does not run, or there are no headers.
    """
    nvcc = _nvcc()
    include = _include()
    return Toolchain(nvcc=nvcc, version=_version(nvcc), include=include, headers=tree_digest(include))


def _nvcc() -> Path:
    """nvcc of `PATH`, else of `CUDA_HOME`, else of the package `nvidia-cuda-nvcc`."""
    found = shutil.which("nvcc")
    if found:
        return Path(found)
    candidates = [Path(home) / "bin" / "nvcc" for home in [os.environ.get("CUDA_HOME")] if home]
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        candidates += sorted(Path(folder).glob("cu*/bin/nvcc"))
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return candidate
    raise KernelBuildError(
        "CUTLASS kernel",
        expected="nvcc on PATH, below CUDA_HOME, or in the package nvidia-cuda-nvcc",
        found="none",
        remedy="Install CUDA 13's nvcc (pip install 'loadproof[cutlass]'), or choose another kernel.",
    )


def _version(nvcc: Path) -> str:
    try:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise KernelBuildError(
            nvcc,
            expected="an nvcc that prints its version",
            found=error,
            remedy="Repair the CUDA installation, or put another nvcc first on PATH.",
        ) from error
    return done.stdout


def _include() -> Path:
    named = os.environ.get(INCLUDE_VARIABLE)
    if named:
        include, where = Path(named), f"{INCLUDE_VARIABLE}={named}"
    else:
        spec = importlib.util.find_spec("cutlass_library")
        folders = spec.submodule_search_locations if spec else None
        if not folders:
            raise _no_headers("CUTLASS kernel", "neither the variable nor the package cutlass_library")
        include = Path(folders[0]) / "source" / "include"
        where = str(include)
    if not (include / VERSION_HEADER).is_file():
        raise _no_headers(where, f"no {VERSION_HEADER} there")
    return include.resolve()


def _no_headers(where: str, found: str) -> KernelBuildError:
    return KernelBuildError(
        where,
        expected=f"CUTLASS 4.x headers in the folder that {INCLUDE_VARIABLE} names, or in cutlass_library",
        found=found,
        remedy=f"pip install nvidia-cutlass==4.2.0, or point {INCLUDE_VARIABLE} at a checkout's include/.",
    )


@functools.cache
def tree_digest(folder: Path) -> str:
    """sha256 over names and contents of all files below `folder`: where the folder lies changes nothing."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(file.relative_to(folder)).encode()
        digest.update(hashlib.sha256(name).digest() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
