"""Where things are kept from one run to the next."""

import os
from pathlib import Path


def user_cache(name: str) -> Path:
    """`$XDG_CACHE_HOME/loadproof/<name>`, below `~/.cache` by default; need not exist."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root) / "loadproof" / name
