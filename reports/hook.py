"""The pytest plugin of the reports: renders a run as soon as its evidence is written.

pytest knows the function by its name. The rendering is imported only when there is something to render,
since pytest loads this module in every session.
"""

from pathlib import Path


def pytest_loadproof_run_written(run_dir: Path) -> None:
    """Write `report.html`, `validation.md` and `junit.xml` into the run's folder."""
    from .load import load_run
    from .write import write_reports

    write_reports(load_run(run_dir))
