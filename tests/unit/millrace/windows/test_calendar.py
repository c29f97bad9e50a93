"""Days in a time zone: 23 and 25 hours where the clock is changed, and never a gap between them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import days, hours
from millrace.windows import WindowDefinitionError, count, hopping, tumbling, window
from tests.unit.millrace.windows.cases import At, Ev, examples, play, windows

BERLIN = "Europe/Berlin"
HOUR = 3_600_000
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Pacific/Apia",
    "UTC",
]


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


def local(text: str, zone: str = BERLIN, fold: int = 0) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp() * 1_000)


def ranges(at: int, **options: Any) -> list[tuple[int, int]]:
    return list(tumbling(options.pop("size", days(1)), tz=options.pop("tz", BERLIN), **options).ranges(at))


@pytest.mark.parametrize(
    ("day", "length"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-07-01", 24), ("2026-01-01", 24)]
)
def test_a_day_has_23_or_25_hours_when_the_clock_is_changed(day: str, length: int) -> None:
    [(start, end)] = ranges(local(f"{day}T12:00"))
    assert start == local(f"{day}T00:00")
    assert end - start == length * HOUR


def test_an_hour_that_the_clock_shows_twice_is_in_one_day() -> None:
    events = [At(local("2026-10-25T02:30", fold=f), Ev()) for f in (0, 1)]
    events += [At(local("2026-10-24T23:59"), Ev()), At(local("2026-10-26T00:00"), Ev())]
    driver = play(window(Ev, tumbling(days(1), tz=BERLIN)).aggregate(n=count()), events)
    assert [(b - a) // HOUR for a, b, _ in windows(driver, "n")] == [24, 25, 24]
    assert [n for _, _, n in windows(driver, "n")] == [1, 2, 1]
    assert driver.is_empty()


def test_a_day_may_begin_at_another_hour_of_the_clock_on_the_wall() -> None:
    [(start, end)] = ranges(local("2026-03-29T04:00"), offset=hours(6))
    assert (start, end) == (local("2026-03-28T06:00"), local("2026-03-29T06:00"))
    assert end - start == 23 * HOUR


def test_a_day_that_begins_at_a_time_the_clock_skips_begins_when_it_jumps() -> None:
    before, after = local("2026-03-29T01:59"), local("2026-03-29T03:00")
    [(start, end)] = ranges(after, offset=hours(2) + 30 * 60_000)
    assert start == after == utc("2026-03-29T01:00")
    assert ranges(before, offset=hours(2) + 30 * 60_000)[0][1] == after
    assert end == local("2026-03-30T02:30")


def test_a_day_that_begins_at_a_time_the_clock_shows_twice_begins_the_first_time() -> None:
    offset = hours(2) + 30 * 60_000
    [(start, _)] = ranges(local("2026-10-25T02:10", fold=1), offset=offset)
    assert start == local("2026-10-25T02:30", fold=0)


def test_a_midnight_that_does_not_exist_moves_to_the_first_moment_of_the_day() -> None:
    """In São Paulo, 2018-11-04 began at 01:00."""
    [(start, end)] = ranges(local("2018-11-04T12:00", "America/Sao_Paulo"), tz="America/Sao_Paulo")
    assert start == utc("2018-11-04T03:00")
    assert end - start == 23 * HOUR


def test_a_day_that_an_island_skipped_has_no_window() -> None:
    """Samoa went from the 29th to the 31st of December 2011."""
    [(start, end)] = ranges(local("2011-12-29T12:00", "Pacific/Apia"), tz="Pacific/Apia")
    assert end - start == 24 * HOUR
    [(after, _)] = ranges(end, tz="Pacific/Apia")
    assert after == end == local("2011-12-31T00:00", "Pacific/Apia")


def test_weeks_begin_on_the_day_that_the_offset_says() -> None:
    [(start, end)] = ranges(local("2026-03-29T12:00"), size=days(7), offset=days(4))
    assert (start, end) == (local("2026-03-23T00:00"), local("2026-03-30T00:00"))
    assert datetime.fromtimestamp(start / 1_000, ZoneInfo(BERLIN)).strftime("%A") == "Monday"


def test_days_may_overlap() -> None:
    found = list(hopping(days(3), every=days(1), tz=BERLIN).ranges(local("2026-03-29T12:00")))
    assert [datetime.fromtimestamp(a / 1_000, ZoneInfo(BERLIN)).day for a, _ in found] == [27, 28, 29]
    assert [(b - a) // HOUR for a, b in found] == [71, 71, 71]


@examples(100)
@given(
    zone=st.sampled_from(ZONES),
    at=st.datetimes(datetime(2010, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001
    offset=st.integers(0, 47) | st.just(0),
)
def test_days_lie_side_by_side_in_every_zone(zone: str, at: datetime, offset: int) -> None:
    instant = int(at.replace(tzinfo=UTC).timestamp() * 1_000)
    [(start, end)] = ranges(instant, tz=zone, offset=offset * HOUR // 2)
    assert start <= instant < end
    assert 22 * HOUR <= end - start <= 49 * HOUR
    assert ranges(start, tz=zone, offset=offset * HOUR // 2) == [(start, end)]
    assert ranges(end - 1, tz=zone, offset=offset * HOUR // 2) == [(start, end)]
    [(after, _)] = ranges(end, tz=zone, offset=offset * HOUR // 2)
    assert after == end
    wall = datetime.fromtimestamp(start / 1_000, ZoneInfo(zone)) - timedelta(minutes=30 * offset)
    assert (wall.hour, wall.minute) == (0, 0) or _skipped(start, zone)


def _skipped(instant: int, zone: str) -> bool:
    """Return whether the clock jumps at this instant."""
    before, after = (datetime.fromtimestamp((instant + d) / 1_000, ZoneInfo(zone)) for d in (-1, 0))
    return before.utcoffset() != after.utcoffset()


@pytest.mark.parametrize(
    ("size", "zone", "message"),
    [(hours(6), BERLIN, "whole days"), (days(1), "Europe/Atlantis", "no time zone 'Europe/Atlantis'")],
)
def test_what_no_calendar_has_is_refused(size: int, zone: str, message: str) -> None:
    with pytest.raises(WindowDefinitionError, match=message):
        tumbling(size, tz=zone)
