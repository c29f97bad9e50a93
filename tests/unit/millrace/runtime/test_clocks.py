"""Ticks: when the input counts as silent, and what event time has come to then."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from millrace.host.system import Drain, Idle, SystemMessage, Tick, Wake, decode_system, encode_system
from millrace.runtime.clocks import NotDelivered, Progress, Silence, Ticker, progress_of
from millrace.time import NO_WATERMARK
from millrace.time.clock import ClockStatus

SECOND = 1_000
NEWEST = 1_700_000_000_000
BOUND = 5 * SECOND
ARRIVED = NEWEST + 200
TOPICS = ("events", "more")


def at(events: int, *, more: int = 0, control: int = 0, behind: int = 0) -> Progress:
    return Progress({"events": {0: events}, "more": {0: more}, "control": {0: control}}, behind)


def status(
    newest: int = NEWEST, *, arrival: int | None = ARRIVED, watermark: int | None = None, **of: Any
) -> ClockStatus:
    at_end = newest - BOUND - 1 if watermark is None else watermark
    return ClockStatus(of.pop("before", at_end - SECOND), at_end, newest, arrival, **of)


def silence() -> Silence:
    return Silence(10 * SECOND, "control", TOPICS)


def idle(ms: int, *, newest: int = NEWEST, arrival: int | None = ARRIVED) -> Idle:
    """What is said after so many ms of silence: of which topics, and what had been read by then."""
    return Idle(newest + ms, TOPICS, arrival)


def test_event_time_goes_on_by_as_much_as_the_silence_lasts() -> None:
    judge = silence()
    assert judge.poll(at(7), status(), 100 * SECOND) is None
    assert judge.poll(at(7), status(), 109 * SECOND) is None
    assert judge.poll(at(7), status(), 109 * SECOND + 999) is None
    assert judge.poll(at(7), status(), 110 * SECOND) == idle(10 * SECOND)
    # The idle tick itself has moved the watermark and the control topic: neither is an input.
    moved = at(7, control=1), status(watermark=NEWEST + 4 * SECOND, before=NEWEST - BOUND - 1)
    assert judge.poll(*moved, 111 * SECOND) == idle(11 * SECOND)
    assert judge.poll(*moved, 200 * SECOND) == idle(100 * SECOND)


def test_an_event_ends_the_silence() -> None:
    judge = silence()
    judge.poll(at(7), status(), 0)
    assert judge.poll(at(7), status(), 20 * SECOND) is not None
    assert judge.poll(at(8), status(), 21 * SECOND) is None
    later = at(8), status(NEWEST + SECOND, arrival=ARRIVED + SECOND)
    assert judge.poll(*later, 30 * SECOND) is None
    assert judge.poll(*later, 39 * SECOND) is None
    assert judge.poll(*later, 40 * SECOND) == idle(
        10 * SECOND, newest=NEWEST + SECOND, arrival=ARRIVED + SECOND
    )


def test_an_event_of_any_input_ends_the_silence_also_one_that_moves_no_time() -> None:
    """A late event, a dead letter, a row of an input that is no clock: the status stays as it is."""
    judge = silence()
    judge.poll(at(7), status(), 0)
    assert judge.poll(at(7, more=1), status(), 20 * SECOND) is None
    assert judge.poll(at(7, more=1), status(), 29 * SECOND) is None
    assert judge.poll(at(7, more=1), status(), 30 * SECOND) == idle(10 * SECOND)


@pytest.mark.parametrize("of_clock", [status(NEWEST + 1), status(arrival=ARRIVED + 1), status(arrival=None)])
def test_what_the_clock_has_seen_since_ends_the_silence_before_progress_tells_of_it(
    of_clock: ClockStatus,
) -> None:
    judge = silence()
    judge.poll(at(7), status(), 0)
    assert judge.poll(at(7), of_clock, 20 * SECOND) is None
    assert judge.poll(at(7), of_clock, 30 * SECOND) == idle(
        10 * SECOND, newest=of_clock.furthest, arrival=of_clock.arrival
    )


def test_a_silence_is_told_with_what_had_arrived_by_then_or_that_it_is_not_known() -> None:
    judge = silence()
    judge.poll(at(7), status(arrival=None), 0)
    assert judge.poll(at(7), status(arrival=None), 10 * SECOND) == idle(10 * SECOND, arrival=None)


@pytest.mark.parametrize(
    ("progress", "of_clock"),
    [
        (None, status()),
        (None, None),
        (at(0), None),
        (at(7), status(NO_WATERMARK, watermark=NO_WATERMARK, arrival=None, before=NO_WATERMARK)),
        (at(7, behind=1), status()),
    ],
)
def test_nothing_is_said_before_the_first_event_nor_while_events_wait(
    progress: Progress | None, of_clock: ClockStatus | None
) -> None:
    judge = silence()
    judge.poll(progress, of_clock, 0)
    assert judge.poll(progress, of_clock, 60 * SECOND) is None


def test_silence_is_counted_from_the_first_look_and_not_from_before_a_restart() -> None:
    """A new run does not know since when nothing has come."""
    assert silence().poll(at(7), status(), 1_000 * SECOND) is None


def test_times_before_1970_are_silent_too() -> None:
    judge = silence()
    judge.poll(at(7), status(-5, arrival=None), 0)
    assert judge.poll(at(7), status(-5, arrival=None), 10 * SECOND) == idle(
        10 * SECOND, newest=-5, arrival=None
    )


def query(last: dict[str, Any] | None) -> Any:
    return SimpleNamespace(lastProgress=last)


def test_progress_is_read_from_a_query() -> None:
    source = {
        "endOffset": json.dumps({"events": {"0": 5, "1": 2}}),
        "latestOffset": json.dumps({"events": {"0": 9, "1": 2}}),
    }
    assert progress_of(query({"sources": [source]})) == Progress({"events": {0: 5, 1: 2}}, 4)
    assert progress_of(query(None)) is None


class Recorder:
    """A control topic that tells when it has been sent so many messages."""

    def __init__(self, wanted: int = 1) -> None:
        self.sent: list[SystemMessage] = []
        self.enough = threading.Event()
        self._wanted = wanted

    def send(self, message: SystemMessage) -> int:
        self.sent.append(message)
        if len(self.sent) >= self._wanted:
            self.enough.set()
        return len(self.sent) - 1


SOURCE = {"endOffset": {"events": {"0": 5}}, "latestOffset": {"events": {"0": 5}}}


def ticker(control: Any, *, now: list[int], of_clock: ClockStatus | None, **of: Any) -> Ticker:
    running = query({"sources": [SOURCE]})
    given: dict[str, Any] = {"tick_ms": SECOND, "silence": silence()} | of
    return Ticker(control, running, status=lambda: of_clock, now_ms=lambda: now[0], **given)


def test_a_ticker_says_the_time_and_what_event_time_has_come_to() -> None:
    control, now = Recorder(), [0]
    ticks = ticker(control, now=now, of_clock=status())
    for now[0] in (1 * SECOND, 11 * SECOND):
        ticks.step()
    assert control.sent == [Tick(SECOND), Tick(11 * SECOND), idle(10 * SECOND)]


def test_a_ticker_says_nothing_of_event_time_before_the_clock_is_known() -> None:
    control, now = Recorder(), [0]
    ticks = ticker(control, now=now, of_clock=None)
    for now[0] in (1 * SECOND, 11 * SECOND):
        ticks.step()
    assert control.sent == [Tick(SECOND), Tick(11 * SECOND)]


def test_a_ticker_first_asks_for_a_batch_that_says_how_far_the_clock_is() -> None:
    """After a restart into silence there would be none."""
    control, now = Recorder(wanted=3), [5]
    with ticker(control, now=now, of_clock=None, tick_ms=1):
        assert control.enough.wait(10)
    assert control.sent[0] == Wake()
    assert set(map(type, control.sent[1:])) == {Tick}


def test_a_ticker_of_processing_time_alone_wakes_nobody() -> None:
    control, now = Recorder(wanted=2), [5]
    with ticker(control, now=now, of_clock=None, tick_ms=1, silence=None):
        assert control.enough.wait(10)
    assert set(control.sent) == {Tick(5)}


def test_a_message_that_was_not_delivered_does_not_end_the_ticks(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(Recorder):
        def send(self, message: SystemMessage) -> int:
            super().send(message)
            raise NotDelivered(f"the topic did not take {type(message).__name__}")

    control = Refusing(wanted=3)
    with ticker(control, now=[5], of_clock=None, tick_ms=1):
        assert control.enough.wait(10)
    assert "did not take Wake" in caplog.text
    assert "did not take Tick" in caplog.text


@pytest.mark.parametrize(
    "message",
    [Tick(5), Idle(-3), Idle(3, ("in", "more"), 7), Idle(3, ("in",), None), Drain(), Drain("ab12"), Wake()],
)
def test_messages_of_the_engine_are_told_from_control_events(message: SystemMessage) -> None:
    assert decode_system(encode_system(message)) == message
    assert decode_system(b'{"name":"$millrace"}') is None


def test_messages_of_the_engine_look_as_they_did_when_they_were_written() -> None:
    """They stand in topics: what was written once is read as what it meant, or as meaning nobody."""
    assert encode_system(Idle(3, ("in",), 7)) == b'{"$millrace":"idle","at":3,"topics":["in"],"arrival":7}'
    assert encode_system(Wake()) == b'{"$millrace":"wake"}'
    assert encode_system(Drain("ab12")) == b'{"$millrace":"drain","incarnation":"ab12"}'
    assert decode_system(b'{"$millrace":"idle","at":3}') == Idle(3)
    assert decode_system(b'{"$millrace":"drain"}') == Drain("")
    with pytest.raises(msgspec.DecodeError):
        decode_system(b'{"$millrace":"something else"}')
