"""How much memory an engine and its device use. Information for people: no verdict may rest on it."""

from pathlib import Path

import torch


def memory_in_use(moment: str, device: str) -> dict[str, int]:
    """Bytes in use, by `<moment>: <what>`.

    Returns:
        On a GPU `all processes` and `own tensors`, of which an attachment is none; what was started ahead
        for a model has cuBLAS's workspace before its job. On a CPU, of this process, `own` and `shared`; an
        attachment is shared.
    """
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        own = torch.cuda.memory_allocated()
        return {f"{moment}: all processes": total - free, f"{moment}: own tensors": own}
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    own, shared = _bytes(status["RssAnon"]), _bytes(status["RssShmem"])
    return {f"{moment}: own": own, f"{moment}: shared": shared}


def _bytes(field: str) -> int:
    return int(field.split()[0]) * 1024
