"""Wiring only: names the plugins where loadproof is not installed (its source tree on ``PYTHONPATH``)."""

from importlib.metadata import entry_points

_PLUGINS = ["loadproof.fixtures.plugin", "loadproof.reports.hook"]

pytest_plugins = [] if entry_points(group="pytest11", name="loadproof") else _PLUGINS
