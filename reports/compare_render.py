"""A comparison for the terminal, as Markdown for a pull request, and as one HTML file."""

from markupsafe import Markup
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from .compare import Comparison
from .compare_tables import Table, bytes_compared, counts, headline, tables, verdict, warning
from .markdown import LIMIT_BYTES, escape
from .page_source import asset, source_hash, templates
from .text import one_line

_STYLES = {"bad": "bold red", "ok": "green", "warn": "yellow"}
_TABLE_BYTES = LIMIT_BYTES - 10_000


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Headline, environment, then what changed."""
    console.print(
        Text(
            headline(comparison),
            style=_STYLES["bad" if comparison.broken else "warn" if comparison.disjoint else "ok"],
        )
    )
    console.print(Text(f"before {one_line(comparison.before)}, after {one_line(comparison.after)}"))
    console.print(Text(bytes_compared(comparison)))
    if reason := warning(comparison):
        console.print(Text(one_line(reason), style=_STYLES["warn"]))
    for table in tables(comparison):
        shown = RichTable(*table.columns, title=table.title, title_justify="left", box=None, pad_edge=False)
        for row in table.rows:
            cells = (Text(one_line(cell), overflow="fold") for cell in row.cells)
            shown.add_row(*cells, style=_STYLES.get(row.tone, ""))
        console.print()
        console.print(shown)


def render_markdown(comparison: Comparison) -> str:
    """At most 60 kB; what does not fit is cut, and the cut is stated."""
    reason = warning(comparison)
    parts = [
        f"## loadproof compare: {headline(comparison)}",
        f"before {escape(comparison.before)} · after {escape(comparison.after)}",
        bytes_compared(comparison),
        *([f"**{escape(reason)}**"] if reason else []),
    ]
    left = _TABLE_BYTES
    for table in tables(comparison):
        text, left = _markdown_table(table, left)
        parts.append(f"### {table.title}\n\n{text}")
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table, left: int) -> tuple[str, int]:
    """The table's text, and the bytes left for the next."""
    lines = [f"| {' | '.join(table.columns)} |", "|---" * len(table.columns) + "|"]
    for index, row in enumerate(table.rows):
        line = f"| {' | '.join(escape(cell) for cell in row.cells)} |"
        left -= len(line.encode()) + 1
        if left < 0:
            lines.append(f"\n{len(table.rows) - index} more rows: `loadproof compare --format html`")
            break
        lines.append(line)
    return "\n".join(lines), left


def render_html(comparison: Comparison) -> str:
    """One page that needs nothing else, runs nothing, and is the same for the same evidence."""
    environment = templates(lambda value: value if isinstance(value, Markup) else one_line(str(value)))
    style = asset("report.css")
    policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src '{source_hash(style)}'"
    return environment.get_template("compare.html.j2").render(
        comparison=comparison,
        verdict=verdict(comparison),
        counts=counts(comparison),
        bytes_compared=bytes_compared(comparison),
        warning=warning(comparison),
        tables=tables(comparison),
        style=Markup(style),  # our own file, as it is
        csp=policy,
    )
