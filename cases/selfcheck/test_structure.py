"""The rules of the structure: who may import whom, and what importing costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = {
    "harness": {"pytest", "loadproof.fixtures", "loadproof.reports", "loadproof.cases", "pickle", "marshal"},
    "reports": {"pytest", "loadproof.fixtures", "loadproof.cases", "pickle"},
    "fixtures": {"loadproof.reports", "loadproof.cases", "pickle"},
}


def imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("folder", sorted(FORBIDDEN))
def test_folder_imports_nothing_above_it(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    for file in files:
        wrong = {n for n in imported(file) for f in FORBIDDEN[folder] if n == f or n.startswith(f"{f}.")}
        assert not wrong, f"{file.relative_to(ROOT)} imports {sorted(wrong)}"


def test_collection_imports_no_torch() -> None:
    code = (
        "import sys, pytest; folders = ['cases/layers', 'cases/models', 'cases/twin'];"
        "status = pytest.main(['--collect-only', '-q', *folders]);"
        "print('STATUS', int(status), sorted({'torch', 'transformers', 'tokenizers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "STATUS 0 []"


def test_reports_need_nothing_that_an_interrupted_run_may_have_half_imported() -> None:
    """A signal in the middle of numpy's import leaves a numpy that cannot be imported again."""
    code = (
        "import sys; sys.modules |= dict.fromkeys(('numpy', 'torch', 'transformers'));"
        "import loadproof.reports.write, loadproof.reports.hook"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
