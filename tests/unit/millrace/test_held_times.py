"""Times that are held to when events were received: on all ways from bytes to a time."""

from __future__ import annotations

import json
import pickle
import random

import msgspec
import pytest

from millrace import Context, KeyedProcess
from millrace.host.chunks import NO_TIME
from millrace.host.key_times import KeyTimes
from millrace.testing import TestDriver
from millrace.time.held import HeldTime
from millrace.topology import Input, KeyingError, read


class Seen(msgspec.Struct):
    key: str
    at: int = 0
    received: int | None = None


class Dated(KeyedProcess[Seen, Seen]):
    order = "event_time"

    def process(self, event: Seen, ctx: Context) -> None:
        ctx.emit(Seen(event.key, ctx.event_time, event.at))


def by_hand(at: int | None, received: int | None, limit: int, *, behind: bool) -> int | None:
    if at is None or received is None:
        return at
    ahead_by = at - received
    wrong = ahead_by > limit or (behind and -ahead_by > limit)
    return received if wrong else at


@pytest.mark.parametrize("behind", [False, True])
def test_10000_times_on_both_ways(behind: bool) -> None:
    rng = random.Random(1)
    name = HeldTime("at", "received", 50, behind=behind)
    reader = KeyTimes((("key", str),), (name, int), 4)
    topology = read(Input("t", "key", name)).process(Dated())
    events = [Seen("k", rng.randrange(200), rng.choice([None, rng.randrange(200)])) for _ in range(10_000)]
    wanted = [by_hand(e.at, e.received, 50, behind=behind) for e in events]
    found = reader.read([msgspec.json.encode(e) for e in events], None, {})[1]
    assert [None if at == NO_TIME else at for at in found] == wanted
    assert [topology.time_of(e) for e in events] == wanted


def test_events_among_broken_ones_have_their_times_and_a_time_may_be_the_key() -> None:
    reader = KeyTimes((("at", int),), (HeldTime("at", "received", 5), int), 4)
    values = [b"{", json.dumps({"at": 90, "received": 10}).encode(), b'{"at":7}', b'{"at":"x"}', b"{}"]
    keys, times, _ = reader.read(values, None, {})
    assert (keys[1], times) == ("2:90", [NO_TIME, 10, 7, NO_TIME, NO_TIME])


def test_it_travels_to_workers_and_is_the_fields_name() -> None:
    name = pickle.loads(pickle.dumps(HeldTime("at", "received", 5, behind=True)))  # noqa: S301
    assert (name, name.received, name.limit_ms, name.behind) == ("at", "received", 5, True)


def test_events_are_handled_in_the_order_of_their_held_times() -> None:
    driver = TestDriver(read(Input("t", "key", HeldTime("at", "received", 5))).process(Dated()))
    driver.receive(Seen("k", 900, 20), Seen("k", 10, 10), Seen("k", 15), Seen("k", 1, 99))
    driver.drain()
    assert [(one.at, one.received) for one in driver.values()] == [(1, 1), (10, 10), (15, 15), (20, 900)]


def test_a_field_that_is_not_there_or_no_number_is_refused() -> None:
    with pytest.raises(KeyingError, match="no field heard"):
        read(Input("t", "key", HeldTime("at", "heard", 5))).process(Dated())
