"""What every page is made with: strict templates, our own style and script, and a policy for no more."""

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_TEMPLATES = Path(__file__).parent / "templates"


def templates(finalize: Callable[[object], object]) -> Environment:
    """The templates, escaping all that they print; `finalize` cleans each value on its way into the page."""
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )


@cache
def asset(name: str) -> str:
    """A file of ours beside the templates."""
    return (_TEMPLATES / name).read_text(encoding="utf-8").rstrip("\n")


def source_hash(source: str) -> str:
    """As a content policy names a style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
