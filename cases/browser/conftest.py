"""A browser for the report, where there is one."""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from loadproof.reports.html import render_html
from loadproof.reports.load import Run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")


@dataclass
class Opened:
    """A report in a tab: what it asked for, and what it complained of."""

    page: "Page"
    url: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    """The distribution's chromium; the tests are skipped, by name, where it or playwright is missing."""
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("playwright is not installed (the extra `browser`)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root, in a container, chromium has no sandbox; it opens our own files alone.
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_report(browser: "Browser", tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens a run's report by file://, at a fragment, with options of the browser's context."""
    contexts = []

    def open_it(run: Run, fragment: str = "", **options: Any) -> Opened:
        file = tmp_path / "report.html"
        file.write_text(render_html(run), encoding="utf-8")
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        contexts.append(context)
        page = context.new_page()
        opened = Opened(page=page, url=file.as_uri())
        page.on("request", lambda request: opened.requests.append(request.url))
        page.on("console", lambda message: opened.complaints.append(message.text))
        page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        page.goto(opened.url + fragment)
        return opened

    yield open_it
    for context in contexts:
        context.close()
