"""The scheme that the configs prescribe for each layer, decided before any weight file is opened."""

from pathlib import Path

from ..errors import ConfigError, RefusedScheme
from ..spec import Scheme
from .config import QuantizationConfig
from .exclusions import Exclusions
from .names import Group, unwrapped

MIXED = "MIXED_PRECISION"
REFUSED = {
    "FP8_PB_WO": "block-scaled FP8",
    "NVFP4": "4-bit weights and activations",
    "W4A16_NVFP4": "4-bit weights",
    "MXFP8": "block-scaled FP8",
}
"""Schemes that are known and refused; all others are refused as unknown."""
SUPPORTED = tuple(scheme.value for scheme in Scheme)


class SchemePlan:
    """What the configs of one checkpoint say about its layers."""

    def __init__(self, config: QuantizationConfig, path: Path) -> None:
        """Take what the configs say; `path` is the checkpoint that messages name."""
        self._config = config
        self._path = path
        self._exclusions = Exclusions(config.excluded, path)
        listed = config.quantized_layers or {}
        self._algos = {unwrapped(name): algo for name, algo in listed.items()} | listed
        self._refused = [name for name, algo in listed.items() if not _is_supported(algo)]

    @property
    def _is_mixed(self) -> bool:
        algo = self._config.quant_algo or ""
        # Other alphabets have letters that become these in upper case.
        return algo.isascii() and algo.upper() == MIXED

    def require_supported(self, group: Group | None = None) -> None:
        """Refuse what is not processed here; `group` is the layer asked for, which messages then name.

        Raises:
            RefusedScheme: by the quant_algo, or by that of any layer where each has its own.
        """
        if not self._is_mixed:
            if not _is_supported(self._config.quant_algo):
                raise self._refusal(group, f"quant_algo {_shown(self._config.quant_algo)}")
            if self._refused:
                name = self._refused[0]
                algo = _shown((self._config.quantized_layers or {})[name])
                found = f"quant_algo {_shown(self._config.quant_algo)}, while {name} has {algo}"
                raise self._refusal(group, found)
        elif not self._config.quantized_layers:
            raise self._refusal(group, f"quant_algo {MIXED} without quantized_layers, an object of layers")
        elif self._refused:
            parts = (group.name, *group.members) if group is not None else ()
            culprit = next((name for name in self._refused if unwrapped(name) in map(unwrapped, parts)), None)
            culprit = culprit or self._refused[0]
            algo = _shown(self._config.quantized_layers[culprit])
            raise self._refusal(group, f"quant_algo {MIXED}, in which {culprit} has {algo}")

    def why_unquantised(self, group: Group) -> str | None:
        """Why the configs leave this layer alone, in words for a message; None where they quantise it.

        Raises:
            ConfigError: they quantise only some members of a fused layer.
        """
        entry = self._exclusions.entry_for_layer(group)
        if entry is not None:
            return f"excluded by {entry!r}"
        if self._is_mixed and self._own_algo(group) is None:
            return f"absent from the quantized_layers of {MIXED}"
        return None

    def scheme(self, group: Group) -> Scheme:
        """The scheme of a layer.

        Raises:
            RefusedScheme: as `require_supported`; never loaded as something else.
            ConfigError: the layer is not quantised, or the members of a fused layer differ.
        """
        self.require_supported(group)
        reason = self.why_unquantised(group)
        if reason is not None:
            raise ConfigError(
                f"{self._path}: {group.name}",
                expected="a layer that the configs quantise",
                found=f"one {reason}",
                remedy="Ask for another layer, or export this one quantised.",
            )
        own = self._own_algo(group) if self._config.quantized_layers else None
        algo = str(self._config.quant_algo).upper()
        if not self._is_mixed and own not in (None, algo):
            raise ConfigError(
                f"{self._path}: {group.name}",
                expected=f"quant_algo {algo}, as for the whole checkpoint",
                found=f"{own} in quantized_layers",
                remedy=f"Export it anew: schemes that differ by layer are quant_algo {MIXED}.",
            )
        return Scheme(own or algo)

    def _own_algo(self, group: Group) -> str | None:
        """What `quantized_layers` gives a layer, by its own name or by those of its members; None without."""
        whole = self._listed(group.name)
        algos = {member: self._listed(member) or whole for member in group.members}
        if len(set(algos.values()) | ({whole} - {None})) > 1:
            raise ConfigError(
                f"{self._path}: {group.name}",
                expected="one quant_algo for all projections of the fused layer",
                found=", ".join(f"{m} {a or 'not listed'}" for m, a in {group.name: whole, **algos}.items()),
                remedy="Export the fused projections alike: a fused layer cannot be half quantised.",
            )
        return algos[group.members[0]]

    def _listed(self, module: str) -> str | None:
        algo = self._algos.get(module, self._algos.get(unwrapped(module)))
        return algo and algo.upper()

    def _refusal(self, group: Group | None, found: str) -> RefusedScheme:
        return RefusedScheme(
            self._path if group is None else f"{self._path}: {group.name}",
            expected=f"quant_algo {' or '.join(SUPPORTED)}",
            found=found,
            remedy="Export the checkpoint in a supported scheme.",
        )


def _is_supported(algo: str | None) -> bool:
    return algo is not None and algo.upper() in SUPPORTED


def _shown(algo: str | None) -> str:
    if algo is None:
        return "null (nothing is named)"
    return f"{algo!r} ({REFUSED.get(algo.upper(), 'not a scheme known here')})"
