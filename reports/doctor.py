"""What this machine offers: the facts behind `loadproof doctor`."""

import fcntl
import os
import platform
import shutil
import sys
from importlib import metadata
from typing import Any

_PACKAGES = (
    "pytest",
    "pytest-xdist",
    "safetensors",
    "pydantic",
    "jinja2",
    "transformers",
    "nvidia-modelopt",
    "nvidia-cutlass",
    "nvidia-cuda-nvcc",
    "nvidia-ml-py",
    "cuda-bindings",
    "vllm",
)
_SEAL_FUTURE_WRITE = 0x10


def examine() -> dict[str, Any]:
    """Builtins only; `ok` says whether the CPU default can run here."""
    torch_facts = _torch()
    seals = memfd_seals_available()
    return {
        "ok": torch_facts["version"] is not None and seals,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "device": "cuda" if torch_facts["gpus"] else "cpu",
        "torch": torch_facts,
        "memfd_seals": seals,
        "nvcc": shutil.which("nvcc"),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def memfd_seals_available() -> bool:
    """Whether an anonymous file can be sealed against later writers."""
    if not hasattr(os, "memfd_create"):
        return False
    try:
        fd = os.memfd_create("loadproof-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _SEAL_FUTURE_WRITE)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _torch() -> dict[str, Any]:
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"version": None, "cuda": None, "gpus": [], "error": str(error)}
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = [torch.cuda.get_device_name(index) for index in range(count)]
    return {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": gpus, "error": None}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
