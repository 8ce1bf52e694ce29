"""The report as a reader meets it: opened from disk, searched, sorted, copied, printed, without a script."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from loadproof.cases.browser.conftest import Opened
from loadproof.cases.perf.report_runs import large_run
from loadproof.cases.selfcheck.test_report_html import HOSTILE
from loadproof.cases.selfcheck.test_report_samples import case_record, failing_record, run_of
from loadproof.harness.outcome import Outcome
from loadproof.reports.load import Run

Open = Callable[..., Opened]
THEMES = ("light", "dark")
SEARCH_MS = """
(query) => {
  const box = document.getElementById("search"), from = performance.now();
  box.value = query;
  box.dispatchEvent(new Event("input"));
  return document.body.offsetHeight && performance.now() - from;
}
"""
"""Milliseconds from typing a query to the table laid out anew."""


def mixed() -> Run:
    """Failing, lost and passing cases; one has a map of its mismatch, and one is refused as it should be."""
    refused = case_record("refused-nvfp4")
    refused = refused.model_copy(
        update={"case": refused.case | {"expected": "REFUSED"}, "verdict": Outcome.REFUSED}
    )
    many = [case_record(f"case-{n}", duration_ms=1000.0 * (n + 1)) for n in range(12)]
    return run_of(*many, failing_record("broken-one"), _with_grid(), refused, missing=("lost-one",))


def _with_grid() -> Any:
    found = large_run(1, failing=1).cases[0]
    levels = ["00" * 8, "00" * 3 + "ff" + "00" * 4]
    grid = {"rows": 2, "columns": 96, "block": [1, 12], "levels": levels, "worst": [[1, 36, 12, 12]]}
    evidence = found.checks[0].evidence | {"grid": grid}
    checks = [found.checks[0].model_copy(update={"evidence": evidence}), *found.checks[1:]]
    return found.model_copy(update={"checks": checks, "run_id": case_record().run_id})


def shown(opened: Opened) -> list[str]:
    """Ids in the table, as it shows them now."""
    rows = opened.page.locator("#cases > tbody > tr:not(.detail):visible th")
    return [text.strip() for text in rows.all_inner_texts()]


def search(opened: Opened, query: str) -> list[str]:
    opened.page.fill("#search", query)
    return shown(opened)


def test_it_asks_for_nothing_else_and_complains_of_nothing(open_report: Open) -> None:
    opened = open_report(mixed())
    opened.page.locator("#cases tr[id] a").first.click()
    opened.page.wait_for_selector("tr.detail table")
    assert opened.requests == [opened.url]
    assert opened.complaints == []


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_no_violation(open_report: Open, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    opened = open_report(mixed(), color_scheme=theme)
    opened.page.locator("#cases tr[id] a").first.click()
    opened.page.wait_for_selector("tr.detail table")
    opened.page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    found = axe.run(opened.page)
    assert found.violations_count == 0, found.generate_report()


def test_both_themes_are_themes(open_report: Open) -> None:
    colours = [
        open_report(mixed(), color_scheme=theme).page.evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for theme in THEMES
    ]
    assert len(set(colours)) == 2


def test_words_fields_and_exclusions_narrow_the_table(open_report: Open) -> None:
    opened = open_report(mixed())
    everything = shown(opened)
    assert len(everything) == 16
    assert search(opened, "broken") == ["broken-one"]
    assert set(search(opened, "status:bytes")) >= {"broken-one"}
    assert "case-1" not in shown(opened)
    assert set(search(opened, "way:ipc status:bytes")) == set(search(opened, "status:bytes"))
    assert search(opened, "way:ordinary") == ["lost-one"]
    assert search(opened, "kernel:cutlass") == [_with_grid().id]
    assert set(search(opened, "-case-")) == {i for i in everything if not i.startswith("case-")}
    assert search(opened, "no such case") == []
    assert opened.page.inner_text("#shown") == "0 of 16 shown"


def test_chips_count_and_choose_a_verdict(open_report: Open) -> None:
    opened = open_report(mixed())
    chip = opened.page.locator("#chips button", has_text="INCOMPLETE")
    assert chip.inner_text() == "INCOMPLETE 1"
    chip.click()
    assert shown(opened) == ["lost-one"]
    assert chip.get_attribute("aria-pressed") == "true"
    chip.click()
    assert len(shown(opened)) == 16


def test_columns_sort_both_ways_and_say_so(open_report: Open) -> None:
    opened = open_report(mixed())
    search(opened, "case-")
    header = opened.page.locator("#cases > thead th").last
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert shown(opened) == [f"case-{n}" for n in range(12)]
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert shown(opened) == [f"case-{n}" for n in reversed(range(12))]


def test_the_address_reopens_the_view(open_report: Open) -> None:
    opened = open_report(mixed())
    search(opened, "case-1")
    opened.page.locator("#cases > thead th").last.locator("button").click()
    opened.page.locator("#cases tr[id]:visible a").first.click()
    opened.page.wait_for_selector("tr.detail table")
    fragment = opened.page.evaluate("location.hash")
    again = open_report(mixed(), fragment)
    again.page.wait_for_selector("tr.detail table")
    assert again.page.input_value("#search") == "case-1"
    assert shown(again) == shown(opened)
    assert again.page.inner_text("tr.detail") == opened.page.inner_text("tr.detail")


def test_a_plain_anchor_opens_its_case(open_report: Open) -> None:
    opened = open_report(mixed())
    anchor = opened.page.locator("#cases tr[id]").last.get_attribute("id")
    again = open_report(mixed(), f"#{anchor}")
    again.page.wait_for_selector("tr.detail table")
    assert again.page.locator(f"tr#{anchor}").is_visible()


def test_details_of_a_row_are_those_of_its_case(open_report: Open) -> None:
    run = large_run(150)
    opened = open_report(run)
    link = opened.page.locator("#cases tr[id] a").nth(140)
    link.click()
    opened.page.wait_for_selector("tr.detail table")
    text = opened.page.inner_text("tr.detail")
    case = next(case for case in run.cases if case.id == link.inner_text())
    assert case.routes["ordinary"].outputs[1].sha256[:12] in text
    assert case.id in text
    assert link.get_attribute("aria-expanded") == "true"
    link.click()
    assert opened.page.locator("tr.detail").count() == 0


def test_markdown_and_commands_are_copied(open_report: Open) -> None:
    opened = open_report(mixed(), permissions=["clipboard-read", "clipboard-write"])
    opened.page.locator("button[data-copy=markdown]").click()
    opened.page.wait_for_function("document.getElementById('announcement').textContent !== ''")
    selected = opened.page.evaluate("getSelection().toString()")
    copied = opened.page.evaluate("navigator.clipboard?.readText()") or selected
    assert copied.startswith("## loadproof: NOT EQUIVALENT")


def test_where_the_clipboard_is_refused_the_text_is_selected(open_report: Open) -> None:
    opened = open_report(mixed())
    opened.page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    opened.page.locator("button[data-copy=markdown]").click()
    opened.page.wait_for_function("document.activeElement.id === 'markdown'")
    start, end, length = opened.page.evaluate(
        "(({ selectionStart, selectionEnd, value }) => [selectionStart, selectionEnd, value.length])"
        "(document.activeElement)"
    )
    assert (start, end) == (0, length)
    assert "Ctrl+C" in opened.page.inner_text("#announcement")


def test_the_keyboard_is_enough(open_report: Open) -> None:
    opened = open_report(mixed())
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.focus("#search")
    page.keyboard.type("case-3")
    assert shown(opened) == ["case-3"]
    page.locator("#cases > tbody tr:visible a").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("tr.detail table")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.locator("#cases > thead button").first.focus()
    page.keyboard.press("Space")
    assert page.locator("#cases > thead th").first.get_attribute("aria-sort") == "ascending"


def test_print_opens_what_failed_and_drops_the_controls(open_report: Open) -> None:
    opened = open_report(mixed())
    page = opened.page
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = false")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details[data-failing]").count() == 3
    assert page.evaluate("[...document.querySelectorAll('details[data-failing]')].every((each) => each.open)")
    for control in ("#filter", "nav", "button[data-copy=markdown]"):
        assert not page.locator(control).first.is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('thead')).display") == "table-header-group"
    assert len(page.pdf()) > 10_000


def test_without_a_script_everything_but_the_tools_is_there(open_report: Open) -> None:
    opened = open_report(mixed(), java_script_enabled=False)
    page = opened.page
    assert not page.locator("#filter").is_visible()
    assert page.locator("#cases > tbody > tr").count() == 16
    text = page.inner_text("body")
    for words in ("NOT EQUIVALENT", "broken-one", "0x803f = 1.0", "not performance", "python -m pytest"):
        assert words in text
    assert page.locator("figure.heat img").is_visible()
    page.locator("a", has_text="broken-one").first.click()
    assert page.locator("details", has_text="broken-one").first.is_visible()


def test_hostile_text_is_inert(open_report: Open) -> None:
    names = [f"{HOSTILE}{n}" for n in range(8)]
    opened = open_report(run_of(*(case_record(name) for name in names), failing_record(HOSTILE + "x")))
    page = opened.page
    page.on("dialog", lambda dialog: opened.complaints.append(dialog.message))
    page.locator("#cases tr[id] a").first.click()
    page.wait_for_selector("tr.detail table")
    search(opened, "<img")
    assert page.locator("img[src=x]").count() == 0
    assert len(shown(opened)) == 9
    assert opened.complaints == []
    assert opened.requests == [opened.url]


def test_it_fits_a_narrow_screen(open_report: Open) -> None:
    opened = open_report(mixed(), viewport={"width": 390, "height": 800})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_digest_island_names_the_run(open_report: Open) -> None:
    run = large_run(3)
    opened = open_report(run)
    island = json.loads(
        opened.page.inner_text("#evidence-digest") or opened.page.text_content("#evidence-digest")
    )
    assert run.record.chain is not None
    assert (island["run_id"], island["head"]) == (run.record.run_id, run.record.chain.head)


@pytest.mark.parametrize(("count", "usable_s", "search_s"), [(1_000, 1.0, 0.5), (10_000, 10.0, 2.0)])
def test_large_runs_are_usable(open_report: Open, count: int, usable_s: float, search_s: float) -> None:
    opened = open_report(large_run(count, failing=count // 100))
    timing = opened.page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1e3
    found = opened.page.evaluate(SEARCH_MS, "n777-")
    assert re.fullmatch(r"\d+ of \d+ shown", opened.page.inner_text("#shown"))
    print({"count": count, "usable_s": timing, "search_ms": found})
    assert timing <= usable_s
    assert found / 1e3 <= search_s
    assert shown(opened)
    assert all("n777-" in each for each in shown(opened))
    opened.page.locator("#cases > tbody > tr[id]:visible a").first.click()
    opened.page.wait_for_selector("tr.detail")
