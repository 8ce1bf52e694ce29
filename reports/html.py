"""The equivalence report: one HTML file that needs nothing else, rendered from evidence alone."""

from functools import cache

from jinja2 import Environment
from markupsafe import Markup

from loadproof.harness.routes import REFERENCE_ROUTE, ROUTES

from . import text, wording
from .embedded import embed
from .facts import CASE_LABELS, facts_of
from .figures import case_timeline, pointer_figure, tensor_bytes
from .heatmap import heat_map
from .islands import CHUNK, json_island
from .load import Run
from .page import page_of
from .page_source import asset, source_hash, templates
from .pointers import module_rows, pointer_table
from .view import device, values_of

SHOWN_FIGURES = 24
"""Figures shown of a check's evidence."""


def render_html(run: Run) -> str:
    """The page, a pure function of the evidence: no clock, no path of this machine."""
    style, script = asset("report.css"), asset("report.js")
    page = page_of(run)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            record=run.record,
            page=page,
            device=device(run),
            transports=values_of(run, "transport"),
            kernels=values_of(run, "kernel"),
            evidence_sha256=run.sha256,
            digest=json_island(_digest(run)),
            embedded=embed(run),
            names=json_island({"chunk": CHUNK, "lines": CASE_LABELS, "routes": page.labels}),
            style=Markup(style),  # our own files, as they are
            script=Markup(script),
            csp=_content_policy(style, script),
        )
    )


def _digest(run: Run) -> dict[str, object]:
    """The island `evidence-digest`, which `loadproof verify` reads; no head where the run was not sealed."""
    record = run.record
    head = record.chain.head if record.chain else ""
    return {"run_id": record.run_id, "schema_version": record.schema_version, "head": head}


@cache
def _environment() -> Environment:
    environment = templates(_finalize)
    environment.filters |= {
        "duration": text.duration,
        "facts": facts_of,
        "flatten": text.flatten,
        "heat_map": heat_map,
        "module_rows": module_rows,
        "pointer_figure": pointer_figure,
        "pointer_table": pointer_table,
        "scalar": text.scalar,
        "short_hash": text.short_hash,
        "size": text.size,
        "tail": text.tail,
        "tensor_bytes": tensor_bytes,
        "timeline": case_timeline,
    }
    environment.globals |= {
        "wording": wording,
        "routes": ROUTES,
        "reference": REFERENCE_ROUTE.name,
        "case_labels": CASE_LABELS,
        "shown_figures": SHOWN_FIGURES,
    }
    return environment


def _finalize(value: object) -> object:
    """Every value on its way into the page is cleaned; jinja2 escapes it afterwards."""
    return text.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _content_policy(style: str, script: str) -> str:
    """Nothing is fetched, and nothing runs but the one script that we wrote."""
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src '{source_hash(style)}'; script-src '{source_hash(script)}'"
    )
