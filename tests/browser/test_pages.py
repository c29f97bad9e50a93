"""The pages of iot, clickstream and ridesharing in a real browser."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from millrace.dashboard.data import AppData
from millrace.dashboard.live import LivePage
from millrace.dashboard.page import load_page
from millrace.dashboard.serve import serving, wall_clock_ms
from millrace.runtime.settings import load_settings
from tests.browser.checks import check_contrast, check_width
from tests.browser.conftest import Look
from tests.unit.apps.clickstream import tables as clickstream_tables
from tests.unit.apps.iot_maintenance import tables as iot_tables
from tests.unit.apps.ridesharing import tables as rides_tables


@dataclass(frozen=True)
class Case:
    """A page, a full folder for it, and where on it something from an event looks like markup.

    Attributes:
        package: The app's package.
        fill: Writes the folder.
        evil: The text that must stay text, and the panel that shows it.
        link: Panel and key that lead to the detail, and what the detail has.
    """

    package: str
    fill: Callable[[Path], Any]
    evil: tuple[str, str]
    link: tuple[str, str, list[str]]


CASES = {
    "iot": Case(
        "iot_maintenance", iot_tables.iot_folder, ("alarms", iot_tables.EVIL),
        ("alarms", "p01-l01-m001", ["Now", "Alarms", "Bearing temperature"]),
    ),
    "clickstream": Case(
        "clickstream", clickstream_tables.shop_folder, ("offers", clickstream_tables.EVIL),
        ("offers", "u:u59", ["Offers"]),
    ),
    "ridesharing": Case(
        "ridesharing", rides_tables.rides_folder, ("violations", rides_tables.EVIL),
        ("violations", "r003", ["Violations", "Trip", "Offers"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_page_is_live_and_readable_wide_and_narrow_light_and_dark(
    name: str, tmp_path: Path, look: Look
) -> None:
    case = CASES[name]
    case.fill(tmp_path)
    app = importlib.import_module(f"millrace_apps.{case.package}.app").app
    settings = load_settings(app.settings, app=name, env={})
    data = AppData(app, settings, tmp_path, wall_clock_ms)
    with serving({name: LivePage(data, load_page(app), interval_ms=300)}) as (url, _):
        for width, dark in ((1280, False), (360, True)):
            page = look(f"{url}/#/{name}", width=width, dark=dark)
            expect(page.locator("#status")).to_have_attribute("data-state", "live")
            for panel in load_page(app).panels:
                view = page.locator(f"#panel-{panel.id} .view > *").first
                expect(view).not_to_have_text("…")
                expect(view).not_to_contain_text("this panel failed")
            check_width(page, width)
            check_contrast(page)
        panel_id, evil = case.evil
        expect(page.locator(f"#panel-{panel_id}")).to_contain_text(evil)
        assert page.evaluate("window.harmed") is None
        panel_id, key, parts = case.link
        page.locator(f"#panel-{panel_id} a", has_text=key).first.focus()
        page.keyboard.press("Enter")
        detail = page.locator("#detail")
        expect(detail.locator("h3")).to_contain_text(parts)
        check_contrast(page)
        page.keyboard.press("Escape")
        expect(detail).to_be_hidden()


def test_segments_of_the_shop_can_be_chosen_by_their_kind(tmp_path: Path, look: Look) -> None:
    CASES["clickstream"].fill(tmp_path)
    app = importlib.import_module("millrace_apps.clickstream.app").app
    data = AppData(app, load_settings(app.settings, app="clickstream", env={}), tmp_path, wall_clock_ms)
    with serving({"clickstream": LivePage(data, load_page(app), interval_ms=300)}) as (url, _):
        page = look(f"{url}/#/clickstream", width=1280, dark=False)
        panel = page.locator("#panel-segments")
        panel.locator("summary").first.click()
        kinds = panel.locator("tbody tr td:first-child, tbody tr th:first-child")
        expect(kinds).to_contain_text(["channel", "device"])
        panel.locator("select").select_option("device")
        expect(panel.locator("tbody")).not_to_contain_text("channel")
        expect(panel.locator("tbody")).to_contain_text("desktop")
        compared = page.locator("#panel-compared")
        expect(compared).to_contain_text("hour before")
        expect(compared).to_contain_text("points")
        # One choice above them all.
        every = compared.locator("tbody tr").first.inner_text()
        choice = page.locator("#choice")
        expect(choice.locator("option")).to_contain_text(["everything", "channel: ", "device: "])
        choice.select_option("device: mobile")
        told_apart = (
            *("headline", "visitors", "devices", "sessions", "compared", "funnel", "drop-offs", "channels"),
            *("revenue", "abandonment", "left-items", "uplift", "offers", "products", "categories"),
            "searches",
        )
        for name in told_apart:
            expect(page.locator(f"#title-{name}")).to_have_attribute("data-of", "device: mobile")
        expect(page.locator("#panel-uplift")).to_contain_text("offered, last hour")
        expect(page.locator("#panel-sessions")).to_contain_text("hour before")
        expect(compared.locator("tbody tr").first).not_to_have_text(every)
        # What cannot be told of a segment says so.
        for name in ("books", "segments", "product-funnel", "privacy"):
            expect(page.locator(f"#title-{name}")).to_have_attribute("data-of", "everything")
        choice.select_option("device: desktop")  # of which there are no boards
        expect(page.locator("#panel-products")).to_contain_text("boards.by_device")
        choice.select_option("device: mobile")
        expect(page.locator("#panel-products")).not_to_contain_text("boards.by_device")
        check_contrast(page)
        # What comes live meanwhile does not take its place.
        version = int(page.locator("#panel-compared").get_attribute("data-version") or 0) + 2
        deadline = time.monotonic() + 15
        while int(page.locator("#panel-compared").get_attribute("data-version") or 0) < version:
            assert time.monotonic() < deadline, "nothing came"
            page.wait_for_timeout(50)
        expect(compared.locator("tbody tr").first).not_to_have_text(every)
        choice.select_option("")
        for name in ("sessions", "books"):
            expect(page.locator(f"#title-{name}")).not_to_have_attribute("data-of", re.compile("."))
        expect(compared.locator("tbody tr").first).to_contain_text(every.split()[1])
