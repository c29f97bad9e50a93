"""The map of a city in a real browser: shaded cells, marks that move, a slider over what was."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

from millrace.dashboard.data import AppData
from millrace.dashboard.live import LivePage
from millrace.dashboard.serve import serving, wall_clock_ms
from millrace.runtime.settings import load_settings
from millrace_apps.ridesharing.app import app as ridesharing
from millrace_apps.ridesharing.dashboard import page as dashboard
from millrace_apps.ridesharing.dashboard.city import city
from tests.browser.checks import check_contrast, check_width
from tests.browser.conftest import PATIENCE_MS, Look
from tests.unit.apps.ridesharing.tables import RidesRecords, rides_folder, venue_shapes
from tests.unit.millrace.dashboard.cases import put_records

expect.set_options(timeout=PATIENCE_MS)


class Served(NamedTuple):
    """A server of the ridesharing page."""

    data: AppData
    records: RidesRecords
    url: str
    with_token: str


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    records = rides_folder(tmp_path)
    settings = load_settings(ridesharing.settings, app="ridesharing", env={})
    data = AppData(ridesharing, settings, tmp_path, wall_clock_ms)
    with serving({"ridesharing": LivePage(data, dashboard.page, interval_ms=300)}) as (url, access):
        yield Served(data, records, f"{url}/#/ridesharing", f"{url}/?token={access.token}")


def opened(look: Look, served: Served, **how: object) -> tuple[Page, Locator]:
    page = look(served.url, **how)  # type: ignore[arg-type]
    panel = page.locator("#panel-map")
    expect(panel.locator(".picture .mark").first).to_be_visible()
    return page, panel


def move_slider(panel: Locator, at_ms: int) -> None:
    panel.locator("input[type=range]").evaluate(
        "(slider, at) => { slider.value = at; slider.dispatchEvent(new Event('input')); }", at_ms
    )


def numbers(panel: Locator) -> dict[str, int]:
    """Kind of marks → how many the legend says there are."""
    texts = panel.locator(".kinds li").all_inner_texts()
    return {name: int(n) for name, n in (re.split(r"\s+(?=\d+$)", text.strip()) for text in texts)}


def test_cells_and_marks_are_those_of_the_moment_and_can_be_chosen(served: Served, look: Look) -> None:
    _, panel = opened(look, served)
    found = city(served.data)
    assert found is not None
    moment = found.moment()
    assert panel.locator(".area[d]").count() == len(moment.cells)
    assert sum(numbers(panel).values()) == panel.locator(".picture .mark").count()
    assert numbers(panel)["free"] == sum(car.state == "free" for car in moment.cars)
    panel.get_by_role("button", name="mean wait").click()
    expect(panel.get_by_role("button", name="mean wait")).to_have_attribute("aria-pressed", "true")
    shaded = panel.locator(".area[d]:not(.r0)")
    expect(shaded).to_have_count(
        sum(cell.wait_ms is not None and cell.wait_ms > 0 for cell in moment.cells.values())
    )
    title = shaded.first.locator("title").text_content() or ""
    assert title.split(":")[0] in moment.cells
    free = panel.locator(".picture .mark.s2")
    expect(free.first).to_be_visible()
    panel.get_by_role("button", name="free", exact=False).last.click()
    expect(free.first).to_be_hidden()
    panel.locator("summary").click()
    expect(panel.locator("details tbody tr")).to_have_count(len(moment.cells))
    label = panel.locator(".picture > svg").get_attribute("aria-label") or ""
    assert f"{len(moment.cells)} cells by mean wait" in label


def test_the_slider_shows_what_was_in_every_panel_of_the_city_and_the_way_back(
    served: Served, look: Look
) -> None:
    page, panel = opened(look, served)
    now = numbers(panel)
    waiting = page.locator("#panel-longest tbody").inner_text()
    at = served.records.until_ms - 40 * 60_000
    found = city(served.data)
    assert found is not None
    move_slider(panel, at)
    for name in ("map", "longest", "shortage", "stuck", "dearest"):
        expect(page.locator(f"#panel-{name}")).to_have_class(re.compile("past"))
    riders = found.moment(at).riders
    expect(page.locator("#panel-longest tbody a").first).to_have_text(riders[0].request_id)
    assert numbers(panel)["rider who waits"] == len(riders)
    expect(page.locator("#panel-stuck button")).to_have_count(0)
    check_contrast(page)
    version = page.locator("#panel-tables").get_attribute("data-version")
    put_records(
        served.data.root, "places", [msgspec.structs.replace(served.records.places[-1], driver_id="d99")]
    )
    expect(page.locator("#panel-tables")).not_to_have_attribute("data-version", version or "")
    assert numbers(panel)["rider who waits"] == len(riders)  # what comes meanwhile changes nothing
    panel.get_by_role("button", name="Now").click()
    expect(panel).not_to_have_class(re.compile("past"))
    expect(page.locator("#panel-longest tbody")).to_have_text(waiting, use_inner_text=True)
    assert numbers(panel)["rider who waits"] == now["rider who waits"]


def test_play_goes_on_by_itself_and_pause_ends_it(served: Served, look: Look) -> None:
    _, panel = opened(look, served)
    slider = panel.locator("input[type=range]")
    move_slider(panel, served.records.until_ms - 40 * 60_000)
    expect(panel).to_have_class(re.compile("past"))
    begin = int(slider.input_value())
    panel.get_by_role("button", name="Play").click()
    expect(slider).not_to_have_value(str(begin))
    panel.get_by_role("button", name="Pause").click()
    expect(panel.get_by_role("button", name="Play")).to_be_visible()
    assert (int(slider.input_value()) - begin) % 30_000 == 0


def test_a_car_moves_and_is_not_drawn_anew(served: Served, look: Look) -> None:
    page, panel = opened(look, served)
    car = next(p for p in reversed(served.records.places) if p.driver_id == "d5")
    mark = panel.locator(".picture .mark", has_text="d5, ").first
    mark.evaluate("node => { window.kept = node; }")
    before = mark.evaluate("node => node.style.transform")
    moved = msgspec.structs.replace(car, at_ms=car.at_ms + 30_000, lat=car.lat + 0.01, state="away")
    put_records(served.data.root, "places", [moved])
    expect(mark).to_have_class(re.compile("hollow"))
    assert mark.evaluate("node => node === window.kept")
    assert mark.evaluate("node => node.style.transform") != before
    mark.dispatch_event("click")
    expect(page.locator("#detail-title")).to_have_text("Request or driver d5")


def test_a_trip_is_ended_with_a_reason_by_who_has_the_token(served: Served, look: Look) -> None:
    page, _ = opened(look, served)
    expect(page.locator("#panel-stuck [data-act=end-trip]").first).to_be_disabled()
    page = look(served.with_token)
    page.goto(served.url)
    page.locator("#panel-stuck [data-act=end-trip]").first.click()
    page.locator("#act input[name=reason]").fill("the phone is lost")
    page.locator("#act input[name=by]").fill("ann")
    page.locator("#act-send").click()
    expect(page.locator("#act-said")).to_contain_text("no broker is named")  # the server has none here


def test_dear_cells_are_shaded_and_listed_now_and_as_they_were(served: Served, look: Look) -> None:
    page, panel = opened(look, served)
    found = city(served.data)
    assert found is not None

    def dear(at_ms: int | None = None) -> dict[str, float]:
        cells = found.moment(at_ms).cells
        return {name: cell.multiplier for name, cell in cells.items() if cell.multiplier is not None}

    panel.get_by_role("button", name="surge").click()
    expect(panel.locator(".area[d]:not(.r0)")).to_have_count(len(dear()))
    rows = page.locator("#panel-dearest tbody tr")
    expect(rows).to_have_count(min(len(dear()), 25))
    expect(rows.first).to_contain_text(f"{max(dear().values()):g}")
    shades = {area.get_attribute("class") or "" for area in panel.locator(".area[d]:not(.r0)").all()}
    assert len(shades) > 1, "the dearest are darker"
    at = served.records.until_ms - 40 * 60_000
    assert dear(at) != dear()
    move_slider(panel, at)
    expect(page.locator("#panel-dearest")).to_have_class(re.compile("past"))
    expect(panel.locator(".area[d]:not(.r0)")).to_have_count(len(dear(at)))
    check_contrast(page)


def test_cap_and_policy_are_set_with_a_reason_by_who_has_the_token(served: Served, look: Look) -> None:
    page, _ = opened(look, served)
    expect(page.locator("#panel-prices [data-act=set-cap]").first).to_be_disabled()
    page = look(served.with_token)
    page.goto(served.url)
    for name, fill in (("set-cap", "cap"), ("set-policy", "policy")):
        page.locator(f"#panel-prices [data-act={name}]").first.click()
        if fill == "cap":
            page.locator("#act input[name=cap]").fill("1.5")
        else:
            page.locator("#act select[name=policy]").select_option("fifo")
        page.locator("#act input[name=reason]").fill("a storm")
        page.locator("#act input[name=by]").fill("ann")
        page.locator("#act-send").click()
        expect(page.locator("#act-said")).to_contain_text("no broker is named")  # the server has none here
        page.keyboard.press("Escape")


@pytest.mark.parametrize("dark", [False, True])
def test_venues_stand_on_the_map_with_points_and_lines_now_and_as_they_were(
    served: Served, look: Look, dark: bool
) -> None:
    until = served.records.until_ms
    put_records(served.data.root, "venues", venue_shapes(until))
    page, panel = opened(look, served, dark=dark)
    zones, pens = panel.locator(".outline.zone"), panel.locator(".outline.pen")
    expect(zones).to_have_count(1)
    expect(pens).to_have_count(1)
    expect(panel.locator(".outlined")).to_contain_text(["airport", "3 in line"])
    assert pens.locator("title").text_content() == "airport, pen: 3 in line, the first for 30 min"
    assert "airport, pen: 3 in line" in (panel.locator(".picture > svg").get_attribute("aria-label") or "")
    doors = panel.locator(".picture .mark text")
    expect(doors).to_have_text(["door 1", "door <2>"])
    assert numbers(panel)["pick-up point"] == 2
    cells, marks = panel.locator(".area[d]").count(), panel.locator(".picture .mark").count()
    check_contrast(page)
    move_slider(panel, until - 21 * 60_000)
    expect(panel).to_have_class(re.compile("past"))
    expect(zones).to_have_count(2)
    expect(doors).to_have_text(["door 1", "door <2> (closed)"])
    panel.get_by_role("button", name="pick-up point").click()
    expect(doors.first).to_be_hidden()
    panel.get_by_role("button", name="Now").click()
    expect(zones).to_have_count(1)
    expect(doors.first).to_be_hidden()  # what was chosen stays chosen
    assert panel.locator(".area[d]").count() == cells
    assert panel.locator(".picture .mark").count() == marks


@pytest.mark.parametrize(("width", "dark"), [(360, False), (1280, True)])
def test_a_story_with_its_map_fits_and_is_readable(
    served: Served, look: Look, width: int, dark: bool
) -> None:
    page, _ = opened(look, served, width=width, dark=dark)
    check_width(page, width)
    page.goto(f"{served.url}/key/r003")
    detail = page.locator("#detail")
    expect(detail.locator("h3")).to_contain_text(["Story", "Where the car was"])
    expect(detail.locator(".picture .mark")).to_have_count(82)
    expect(detail.locator(".replay")).to_be_hidden()
    check_contrast(page)
