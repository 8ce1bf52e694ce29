"""How much memory an engine and its device use. Information for people: no verdict may rest on it."""

from pathlib import Path

import torch


def memory_in_use(device: str) -> dict[str, int]:
    """Bytes in use.

    Returns:
        On a GPU `device_used`, by all processes together, and `own_tensors`, by this one's own, which an
        attachment is not. On a CPU `own` and `shared` of this process; an attachment is shared.
    """
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return {"device_used": total - free, "own_tensors": torch.cuda.memory_allocated()}
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {"own": _bytes(status["RssAnon"]), "shared": _bytes(status["RssShmem"])}


def _bytes(field: str) -> int:
    return int(field.split()[0]) * 1024
