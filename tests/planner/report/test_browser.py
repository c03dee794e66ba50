"""The page in a browser: quiet, alone, and no wider than the window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import planner
from planner.report.page import report
from tests.planner.report.browser import Browser, browser, find_browser

PLANS = Path(__file__).resolve().parents[3] / "plans/compiled"
PROGRAM = find_browser()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine (Debian: apt install chromium)"),
]


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with browser(PROGRAM, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = planner.load_plan(PLANS / "qwen3-8b-dflash.yaml")
    other = planner.load_plan(PLANS / "qwen3-30b-a3b-schedule.yaml")
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report(plan, against=other))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_the_page(window: Browser, page: Path, width: int, scheme: str) -> None:
    window.open(page, width=width, scheme=scheme)
    assert window.named("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []
    requests = [event["request"]["url"] for event in window.named("Network.requestWillBeSent")]
    assert requests == [page.as_uri()]
    assert window.value("innerWidth") == width
    assert window.value("document.documentElement.scrollWidth") <= width
    background = window.value("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
    ink = window.value("getComputedStyle(document.querySelector('svg text')).fill")
    assert ink == {"light": "rgb(28, 32, 38)", "dark": "rgb(232, 235, 239)"}[scheme]
