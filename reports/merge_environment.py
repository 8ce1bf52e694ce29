"""What the machines of a merged run must have in common."""

from collections.abc import Mapping
from typing import Any

from loadproof.harness.errors import InvalidInput

MAY_DIFFER = ("host", "env", "gpu.uuid", "options.out", "options.shard")
"""Facts, as paths, that the shards of one plan need not share: none of them decides a byte."""
OF_ONE_SHARD = ("options.out", "options.shard")
"""Facts that the whole has not."""


def merged_environment(shards: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One environment for the whole: facts that may differ are joined, others must be equal.

    Args:
        shards: the shard's name, `1/4`, to its environment; empty where it did not end in order.

    Raises:
        InvalidInput: shards of another commit, GPU model, driver, package or option.
    """
    known = {name: dict(environment) for name, environment in shards.items() if environment}
    return _joined(known, "") if known else {}


def _joined(shards: Mapping[str, Mapping[str, Any]], path: str) -> dict[str, Any]:
    names = dict.fromkeys(name for facts in shards.values() for name in facts)
    joined: dict[str, Any] = {}
    for name in names:
        where = f"{path}.{name}" if path else name
        values = {shard: facts.get(name) for shard, facts in shards.items()}
        groups = {shard: value for shard, value in values.items() if isinstance(value, dict)}
        if where in OF_ONE_SHARD:
            joined[name] = None
        elif len(groups) == len(values):
            joined[name] = _joined(groups, where)
        else:
            joined[name] = _one(values, where)
    return joined


def _one(values: Mapping[str, Any], where: str) -> Any:
    first = next(iter(values.values()))
    if all(value == first for value in values.values()):
        return first
    if any(where == fact or where.startswith(f"{fact}.") for fact in MAY_DIFFER):
        return " | ".join(sorted({str(value) for value in values.values()}))
    told = ", ".join(f"{value} in shard {shard}" for shard, value in values.items())
    remedy = "Merge shards of one commit, environment and GPU model; another model is a run of its own."
    raise InvalidInput(f"environment.{where}", expected="one value in all shards", found=told, remedy=remedy)
