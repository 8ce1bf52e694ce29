"""One case as plain text, for the terminal."""

from . import wording
from .text import one_line, short_hash
from .view import CaseView


def case_summary(case: CaseView) -> str:
    """Verdict, routes and checks of a case, one fact a line."""
    lines = [
        f"{wording.symbol(case.verdict)} {case.verdict}  {one_line(case.id)}  (expected {case.expected})",
        *([] if case.holds else [f"  {one_line(case.reason)}"]),
        "",
        *(_route_line(case, name) for name in case.routes),
        "",
        *_check_lines(case),
        f"outputs {one_line(short_hash(case.output_digest)) or 'none'}",
    ]
    return "\n".join([*lines, *([f"rerun   {one_line(case.rerun)}"] if case.rerun else [])])


def _route_line(case: CaseView, name: str) -> str:
    outcome, route = case.outcomes[name], case.routes[name]
    line = f"{name:<11} {wording.symbol(outcome)} {outcome:<12}"
    if route is None:
        return f"{line} nothing recorded"
    error = f"  {route.error.type}: {route.error.message}" if route.error else ""
    return f"{line} came by {one_line(route.route_taken + error)}"


def _check_lines(case: CaseView) -> list[str]:
    checks = case.record.checks if case.record else []
    return [
        f"{one_line(check.name):<20} {wording.symbol(verdict)} {verdict:<12} {one_line(check.detail)}"
        for check in checks
        for verdict in [check.verdict]
    ]
