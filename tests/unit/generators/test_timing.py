"""Flags that say when: rate, speed, duration, start; and the stage that keeps to them."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.errors import UserError
from millrace_apps.generators.engine import Generated
from millrace_apps.generators.engine.pace import pace
from millrace_apps.generators.timing import Timing, parse_start, resolve_timing

NOW_MS = 1_795_255_441_789


def timing(**flags: Any) -> Timing:
    given: dict[str, Any] = {
        "rate": "1000",
        "speed": None,
        "event_rate": None,
        "duration": None,
        "events": None,
        "start": None,
        "now_ms": NOW_MS,
    }
    return resolve_timing(**{**given, **flags})


def test_event_time_goes_with_the_clock_unless_told_otherwise() -> None:
    found = timing(rate="250", duration="60s")
    assert found == Timing(250.0, 1.0, 15_000, NOW_MS // 1000 * 1000, live=True)


def test_speed_thins_the_stream_in_event_time_and_keeps_the_rate() -> None:
    found = timing(rate="600", speed=60.0, duration="10s", start="0")
    assert (found.event_rate, found.speed, found.events) == (10.0, 60.0, 6_000)


def test_an_event_rate_keeps_the_bytes_whatever_the_rate() -> None:
    slow, fast = timing(rate="100", event_rate=1000.0), timing(rate="5000", event_rate=1000.0)
    assert (slow.event_rate, slow.speed) == (1000.0, 0.1)
    assert (fast.event_rate, fast.speed) == (1000.0, 5.0)


@pytest.mark.parametrize("rate", ["max", "0", "MAX"])
def test_as_fast_as_possible_sends_what_the_default_rate_would(rate: str) -> None:
    found = timing(rate=rate, duration="60s", start="0")
    assert found == Timing(1000.0, None, 60_000, 0, live=False)


def test_the_smaller_of_events_and_duration_counts() -> None:
    assert timing(events=10, duration="60s").events == 10
    assert timing(events=10**9, duration="60s").events == 60_000
    assert timing(rate="0.5", duration="1s").events == 1
    assert timing().events is None


def test_a_bounded_run_faster_than_real_time_ends_now_and_not_in_the_future() -> None:
    for flags in ({"rate": "max"}, {"rate": "1000", "speed": 2.0}):
        found = timing(events=90_000, **flags)
        last = found.start_ms + 90_000 * 1000 / found.event_rate
        assert NOW_MS - 2_000 < last <= NOW_MS
        assert not found.live


def test_live_sends_the_past_at_once_and_goes_on_with_the_clock() -> None:
    found = timing(rate="100", start="2026-11-01", live=True)
    assert (found.live, found.speed, found.start_ms) == (True, 1.0, 1_793_491_200_000)
    assert not timing(rate="100", start="2026-11-01").live


def test_a_run_that_is_gone_on_with_keeps_its_start_and_goes_with_the_clock() -> None:
    found = timing(rate="100", resumed_start_ms=1_700_000_000_000)
    assert (found.live, found.start_ms) == (True, 1_700_000_000_000)
    assert timing(rate="max", resumed_start_ms=5_000).start_ms == 5_000


def test_a_duration_can_end_a_stream_by_its_event_time() -> None:
    found = timing(rate="50", duration="10s", start="0", by_time=True)
    assert (found.events, found.until_ms) == (None, 10_000)
    assert timing(rate="50", speed=60.0, duration="10s", start="0", by_time=True).until_ms == 600_000
    past = timing(rate="max", duration="1h", by_time=True)
    assert past.until_ms is not None
    assert NOW_MS - 2_000 < past.until_ms <= NOW_MS


def test_a_domain_has_its_own_usual_event_rate() -> None:
    assert timing(rate="max", usual_event_rate=20.0).event_rate == 20.0
    assert timing(rate="max", usual_event_rate=20.0, event_rate=7.0).event_rate == 7.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-01", 1_767_225_600_000),
        ("2026-01-01T00:00:00Z", 1_767_225_600_000),
        ("2026-01-01T01:00:00.250+01:00", 1_767_225_600_250),
        ("1767225600000", 1_767_225_600_000),
    ],
)
def test_start_is_read(text: str, expected: int) -> None:
    assert parse_start(text) == expected


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"rate": "fast"}, "--rate is a number of events per second, or max"),
        ({"rate": "-1"}, "--rate"),
        ({"rate": "nan"}, "--rate"),
        ({"speed": 0.0}, "--speed is above 0"),
        ({"event_rate": -5.0}, "--event-rate is above 0"),
        ({"speed": 2.0, "event_rate": 5.0}, "leave one of them out"),
        ({"duration": "soon"}, "'soon' is not a duration"),
        ({"duration": "0s"}, "--duration is above 0"),
        ({"live": True, "speed": 2.0}, "--live goes with the clock"),
        ({"live": True, "rate": "max"}, "--live goes with the clock"),
        ({"start": "2026-13-01"}, "--start is a time with its zone"),
        ({"start": "yesterday"}, "--start is a time with its zone"),
        ({"start": "2026-01-01T00:00:00"}, "--start is a time with its zone"),
    ],
)
def test_a_flag_that_cannot_be_meant_is_named(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        timing(**flags)


class Clock:
    """Time in the hands of the test; records every sleep."""

    def __init__(self) -> None:
        self.time = 100.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time += seconds


def messages(times: list[int]) -> list[Generated]:
    return [Generated(str(at), b"k", b"v", [], at, "purchase", 1) for at in times]


@pytest.mark.parametrize("speed", [0.5, 1.0, 60.0])
def test_no_message_is_sent_early_and_none_more_than_a_tick_late(speed: float) -> None:
    clock = Clock()
    for message in pace(iter(messages(list(range(0, 5_000, 7)))), speed=speed, start_ms=0, clock=clock):
        due = 100.0 + message.due_ms / 1000 / speed
        # Event times are whole ms, so "due" is known to a ms of event time.
        assert clock.time - due >= -0.001 / speed - 1e-9
        assert clock.time - due <= 0.0041


def test_a_stream_that_was_held_up_catches_up_without_waiting() -> None:
    clock = Clock()
    stream = pace(iter(messages([0, 100, 200, 300, 1_000])), speed=1, start_ms=0, clock=clock)
    next(stream)
    clock.time += 0.5
    assert [next(stream).due_ms for _ in range(3)] == [100, 200, 300]
    assert clock.sleeps == []
    next(stream)
    assert clock.time == pytest.approx(101.0)


def test_what_fell_due_before_the_run_goes_out_at_once() -> None:
    clock = Clock()
    stream = pace(iter(messages([0, 400, 900])), speed=1, start_ms=0, clock=clock, behind_s=0.5)
    assert [next(stream).due_ms, next(stream).due_ms] == [0, 400]
    assert clock.sleeps == []
    next(stream)
    assert clock.sleeps == [pytest.approx(0.4)]


def test_the_sink_is_told_before_every_wait() -> None:
    clock, told = Clock(), []
    stream = pace(
        iter(messages([0, 50, 100])),
        speed=1,
        start_ms=0,
        clock=clock,
        on_idle=lambda: told.append(clock.time),
    )
    list(stream)
    assert told == [pytest.approx(100.0), pytest.approx(100.05)]
