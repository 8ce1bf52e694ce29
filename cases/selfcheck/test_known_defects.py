"""The table of public defects names tests that exist, and every test of a defect is in it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "docs" / "known-defects.md").read_text()
NAMED = sorted(set(re.findall(r"`(cases/[\w/]+\.py::[\w:]+)`", TABLE)))
REFERENCE = re.compile(r"[\w.-]+/[\w.-]+ [PI]\d+")
DEFECTS = sorted((ROOT / "cases" / "defects").glob("test_*.py"))


def collected(file: Path) -> set[str]:
    """`Class`, `Class::test` and `test` of a module that pytest would collect."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found.add(node.name)
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            tests = {
                n.name for n in node.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")
            }
            found |= {f"{node.name}::{name}" for name in tests} | ({node.name} if tests else set())
    return found


@pytest.mark.parametrize("named", NAMED)
def test_named_test_exists(named: str) -> None:
    file, _, test = named.partition("::")
    assert test in collected(ROOT / file)


@pytest.mark.parametrize("file", DEFECTS, ids=lambda file: file.stem)
def test_every_class_is_in_the_table_beside_what_it_cites(file: Path) -> None:
    classes = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.ClassDef)]
    tested = [c for c in classes if c.name.startswith("Test")]
    assert tested
    for each in tested:
        rows = [row for row in TABLE.splitlines() if f"{file.name}::{each.name}" in row]
        cited = REFERENCE.findall(ast.get_docstring(each) or "")
        assert cited, f"{each.name} cites no report"
        assert rows, f"{each.name} is not in the table"
        assert [c for c in cited if not any(c in row for row in rows)] == []


def test_every_row_says_where_or_why_not() -> None:
    rows = [row for row in TABLE.splitlines() if re.match(r"\| [\w.-]+/", row)]
    assert len(rows) >= 38
    for row in rows:
        _, defect, kind, shown, _ = row.split("|")
        assert REFERENCE.search(defect)
        assert kind.strip()
        assert "::" in shown or shown.strip().startswith(("not in scope: ", "needs a GPU")), row
