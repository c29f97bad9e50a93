"""Ticks: when the input counts as silent, and what event time has come to then."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.host.system import Drain, Idle, SystemMessage, Tick, decode_system, encode_system
from millrace.runtime.clocks import Progress, Silence, Ticker, progress_of

SECOND = 1_000
WATERMARK = 1_700_000_000_000
BOUND = 5 * SECOND


def at(events: int, *, control: int = 0, behind: int = 0, watermark: int | None = WATERMARK) -> Progress:
    return Progress({"events": {0: events}, "control": {0: control}}, behind, watermark)


def silence() -> Silence:
    return Silence(10 * SECOND, BOUND, "control")


def test_event_time_goes_on_by_as_much_as_the_silence_lasts() -> None:
    judge = silence()
    assert judge.look(at(7), 100 * SECOND) is None
    assert judge.look(at(7), 109 * SECOND) is None
    newest = WATERMARK + BOUND + 1  # the newest event that has come
    assert judge.look(at(7), 110 * SECOND) == newest + 10 * SECOND
    # The idle tick itself has moved the watermark and the control topic: neither is an input.
    moved = at(7, control=1, watermark=WATERMARK + 10 * SECOND)
    assert judge.look(moved, 111 * SECOND) == newest + 11 * SECOND
    assert judge.look(moved, 200 * SECOND) == newest + 100 * SECOND


def test_an_event_ends_the_silence() -> None:
    judge = silence()
    judge.look(at(7), 0)
    assert judge.look(at(7), 20 * SECOND) is not None
    assert judge.look(at(8), 21 * SECOND) is None
    later = at(8, watermark=WATERMARK + SECOND)
    assert judge.look(later, 30 * SECOND) is None
    assert judge.look(later, 31 * SECOND) == WATERMARK + SECOND + BOUND + 1 + 10 * SECOND


@pytest.mark.parametrize("progress", [None, at(0, watermark=None), at(7, behind=1)])
def test_nothing_is_said_before_the_first_event_nor_while_events_wait(progress: Progress | None) -> None:
    judge = silence()
    judge.look(progress, 0)
    assert judge.look(progress, 60 * SECOND) is None


def query(last: dict[str, Any] | None) -> Any:
    return SimpleNamespace(lastProgress=last)


def test_progress_is_read_from_a_query() -> None:
    source = {
        "endOffset": json.dumps({"events": {"0": 5, "1": 2}}),
        "latestOffset": json.dumps({"events": {"0": 9, "1": 2}}),
    }
    when = "2023-11-14T22:13:20.000Z"
    found = progress_of(query({"sources": [source], "eventTime": {"watermark": when}}))
    assert found == Progress({"events": {0: 5, 1: 2}}, 4, 1_700_000_000_000)
    epoch = {"watermark": "1970-01-01T00:00:00.000Z"}
    assert progress_of(query({"sources": [source], "eventTime": epoch})).watermark_ms is None  # type: ignore[union-attr]
    assert progress_of(query(None)) is None


class Recorder:
    def __init__(self) -> None:
        self.sent: list[SystemMessage] = []

    def send(self, message: SystemMessage) -> int:
        self.sent.append(message)
        return len(self.sent) - 1


def test_a_ticker_says_the_time_and_what_event_time_has_come_to() -> None:
    control, now = Recorder(), [0]
    source = {"endOffset": {"events": {"0": 5}}, "latestOffset": {"events": {"0": 5}}}
    running = query({"sources": [source], "eventTime": {"watermark": "2023-11-14T22:13:20.000Z"}})
    ticker = Ticker(control, running, tick_ms=SECOND, silence=silence(), now_ms=lambda: now[0])  # type: ignore[arg-type]
    for now[0] in (1 * SECOND, 11 * SECOND):
        ticker.step()
    assert control.sent == [Tick(SECOND), Tick(11 * SECOND), Idle(WATERMARK + BOUND + 1 + 10 * SECOND)]


@pytest.mark.parametrize("message", [Tick(5), Idle(-3), Drain()])
def test_messages_of_the_engine_are_told_from_control_events(message: SystemMessage) -> None:
    assert decode_system(encode_system(message)) == message
    assert decode_system(b'{"name":"$millrace"}') is None
