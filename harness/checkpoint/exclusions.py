"""Which modules the entries of `exclude_modules` and `ignore` mean.

An entry means a module and all beneath it, by dotted path:

- `lm_head`, `model.visual`: the path;
- `model.layers.0.mlp*`, `model.visual.*`: the path as well. ModelOpt writes a closing star only where all
  beneath the path is unquantised, so `model.layers.1*` does not mean `model.layers.10`;
- `*.self_attn.q_proj`, `*vision*`: any other star stands for any characters, dots included; so does the
  closing star of an entry that begins with one and no dot, which is how people write "anywhere".

No other character is special. Leading wrappers (`model.`, `language_model.`) may differ between entry and
module, since ModelOpt lists the names of modules, which are not always those of the checkpoint.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import ConfigError
from .names import Group, unwrapped


class Exclusions:
    """The entries, ready to be asked about many modules."""

    def __init__(self, entries: Iterable[str], path: Path) -> None:
        """Take the entries; `path` is the checkpoint that messages name."""
        self._path = path
        self._roots: dict[str, str] = {}
        self._patterns: list[tuple[re.Pattern[str], str]] = []
        for entry in entries:
            for spelling in _spellings(entry):
                if "*" in spelling:
                    self._patterns.append((_compiled(spelling), entry))
                else:
                    self._roots[spelling] = entry

    def entry_for(self, module: str) -> str | None:
        """The entry that means this module; None where none does."""
        paths = [*_upwards(module), *_upwards(unwrapped(module))]
        for path in paths:
            if path in self._roots:
                return self._roots[path]
        for pattern, entry in self._patterns:
            if any(pattern.fullmatch(path) for path in paths):
                return entry
        return None

    def entry_for_layer(self, group: Group) -> str | None:
        """The entry that excludes a layer, by its own name or by those of all its members; None without.

        Raises:
            ConfigError: only some members are excluded; a fused layer cannot be half quantised.
        """
        whole = self.entry_for(group.name)
        if whole is not None:
            return whole
        entries = {member: self.entry_for(member) for member in group.members}
        listed = [member for member, entry in entries.items() if entry is not None]
        missing = [member for member, entry in entries.items() if entry is None]
        if listed and missing:
            raise ConfigError(
                f"{self._path}: {group.name}",
                expected="all projections of the fused layer excluded from quantisation, or none",
                found=f"{_shown(listed)} excluded, {_shown(missing)} not",
                remedy="Export the fused projections alike: a fused layer cannot be half quantised.",
            )
        return entries[listed[0]] if listed else None


def _spellings(entry: str) -> list[str]:
    """The entry without its closing star, and once more without wrappers where that leaves a name."""
    if entry.startswith("*") and not entry.startswith("*."):
        return [entry]
    root = entry.removesuffix(".*") if entry.endswith(".*") else entry.removesuffix("*")
    if not root:
        return []
    bare = unwrapped(root)
    return [root] if bare == root or bare.startswith("*") else [root, bare]


def _shown(modules: Sequence[str]) -> str:
    return ", ".join(modules)


def _upwards(path: str) -> list[str]:
    """The path and those of its parents."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _compiled(entry: str) -> re.Pattern[str]:
    first, *others = entry.split("*")
    # Atomic groups: the shortest match of each piece is enough, so that many stars do not backtrack.
    middle = "".join(f"(?>.*?{re.escape(piece)})" for piece in others[:-1])
    return re.compile(f"{re.escape(first)}{middle}.*{re.escape(others[-1])}", re.DOTALL)
