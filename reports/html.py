"""The equivalence report: one HTML file that needs nothing else, rendered from evidence alone."""

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from loadproof.harness.routes import REFERENCE_ROUTE, ROUTES

from . import text, wording
from .load import Run
from .markdown import render_markdown
from .pointers import pointer_table
from .view import VERDICT_CHECKS, cases_in_order, device, evidence_sha256, values_of

DETAILED_CASES = 150
"""Cases shown in detail; failing ones come first, and the report says where the rest is."""
SHOWN_FIGURES = 24
"""Figures shown of a check's evidence."""

_TEMPLATES = Path(__file__).parent / "templates"


def render_html(run: Run) -> str:
    """The page, a pure function of the evidence: no clock, no path of this machine."""
    style, script = _asset("report.css"), _asset("report.js")
    cases = cases_in_order(run)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            record=run.record,
            cases=cases,
            failing=[case for case in cases if not case.holds],
            detailed=cases[:DETAILED_CASES],
            device=device(run),
            transports=values_of(run, "transport"),
            kernels=values_of(run, "kernel"),
            evidence_sha256=evidence_sha256(run),
            markdown=render_markdown(run),
            style=Markup(style),  # our own files, as they are
            script=Markup(script),
            csp=_content_policy(style, script),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters |= {
        "duration": text.duration,
        "flatten": text.flatten,
        "scalar": text.scalar,
        "short_hash": text.short_hash,
        "size": text.size,
        "tail": text.tail,
        "pointer_table": pointer_table,
    }
    environment.globals |= {
        "wording": wording,
        "routes": ROUTES,
        "reference": REFERENCE_ROUTE.name,
        "verdict_checks": VERDICT_CHECKS,
        "shown_figures": SHOWN_FIGURES,
    }
    return environment


def _finalize(value: object) -> object:
    """Every value on its way into the page is cleaned; jinja2 escapes it afterwards."""
    return text.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8").rstrip("\n")


def _content_policy(style: str, script: str) -> str:
    """Nothing is fetched, and nothing runs but the one script that we wrote."""
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src '{_source_hash(style)}'; script-src '{_source_hash(script)}'"
    )


def _source_hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
