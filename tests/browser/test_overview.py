"""The first page in a real browser: what runs, flows with rates, what is folded, and its way to the apps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from millrace.dashboard.data import AppData
from millrace.dashboard.live import LivePage
from millrace.dashboard.serve import serving, wall_clock_ms
from millrace.observing.figures import Figures, SourceFigures, write_figures
from millrace.observing.history import HistoryWriter
from millrace.observing.jobs import jobs_folder, recorded_job
from millrace.runtime.settings import load_settings
from millrace_apps.fraud.app import app as fraud
from millrace_apps.fraud.dashboard import page as dashboard
from tests.browser.checks import check_contrast, check_width
from tests.browser.conftest import Look
from tests.unit.apps.fraud.tables import fraud_folder
from tests.unit.millrace.dashboard.cases import put
from tests.unit.millrace.dashboard.test_overview import page_of
from tests.unit.millrace.observing.cases import figures, record

#: What each panel of a page takes, for who asks why a page is too long.
HEIGHTS = """[...document.querySelectorAll('[id^=panel-]')].map(
    one => `${one.id} ${one.offsetHeight}${one.open ? ' open' : ''}`).join(', ')"""


def told(root: Path, **more: Any) -> Figures:
    """Figures of a fraud job at work."""
    usual: dict[str, Any] = {
        "at_ms": wall_clock_ms(),
        "sources": {"fraud.transactions:0": SourceFigures(50_000, 50_020),
                    "fraud.labels:0": SourceFigures(800, 800)},
        "outputs": {"main": 48_000, "alerts": 120, "CardMonitor.late_transactions": 5},
        "read_rates": {"fraud.transactions": 812.4, "fraud.labels": 6.0},
        "written_rates": {"main": 801.0, "alerts": 1.5},
    }  # fmt: skip
    return figures(root, **usual | more)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_the_first_page_shows_what_runs_and_folds_the_rest(
    width: int, dark: bool, tmp_path: Path, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path / "home"))
    root = tmp_path / "fraud"
    fraud_folder(root, number=300)
    put(tmp_path / "shop", "sales", [{"n": 1}])
    writer = HistoryWriter(root, every_ms=1)
    for n in range(30):
        at = wall_clock_ms() - 10_000 * (30 - n)
        writer.see(told(root, at_ms=at, rows=8_000 * n + 900 * (n % 3)))
    data = AppData(fraud, load_settings(fraud.settings, app="fraud", env={}), root, wall_clock_ms)
    pages = {"fraud": LivePage(data, dashboard.page, interval_ms=300), "shop": page_of(tmp_path / "shop")}
    job = record(root)
    write_figures(root, told(root, job=job))
    with recorded_job(job, jobs_folder()), serving(pages) as (url, _):
        page = look(url, width=width, dark=dark)
        expect(page.locator("#status")).to_have_attribute("data-state", "live")
        rows = page.locator("#panel-apps tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("running")
        expect(rows.nth(1)).to_contain_text("never run")
        app = page.locator("#panel-app-fraud")
        expect(app.locator(".numbers")).to_contain_text("running")
        flow = app.locator(".graph svg").first
        expect(flow.locator(".on-edge", has_text="812/s")).to_have_count(1)
        expect(flow.locator(".on-edge", has_text="801/s")).to_have_count(1)
        expect(flow.locator(".head-of").first).to_be_attached()
        for name in ("fraud.transactions", "CardMonitor", "alerts"):
            expect(flow.locator("g.node title", has_text=name).first).to_be_attached()
        day = app.locator("details[data-part=day]")
        expect(day).to_be_visible()
        expect(day.locator("svg").first).not_to_be_visible()
        check_contrast(page)
        check_width(page, width)
        day.locator("summary").click()
        expect(day.locator("svg").first).to_be_visible()

        # What comes shows at once, and what was opened stays open.
        write_figures(root, told(root, job=job, read_rates={"fraud.transactions": 13.0}))
        expect(flow.locator(".on-edge", has_text="13/s")).to_have_count(1)
        expect(day.locator("svg").first).to_be_visible()
        check_width(page, width)
        expect(look(url, width=width, dark=dark).locator("#panel-apps tbody tr")).to_have_count(2)
        app.locator("h2 a").click()
        expect(page).to_have_title("fraud · Millrace")

        # What matters first; what is folded opens, and stays so.
        drift = page.locator("#panel-drift")
        expect(drift.locator("summary")).to_be_visible()
        expect(page.locator(".panel:not(.foldable)[data-version='0']")).to_have_count(0)
        height = page.evaluate("document.documentElement.scrollHeight")
        assert height < (3_000 if width > 1000 else 6_500), page.evaluate(HEIGHTS)
        expect(drift.locator(".view")).not_to_be_visible()
        drift.locator("summary").click()
        expect(drift.locator(".view")).to_be_visible()
        check_width(page, width)
