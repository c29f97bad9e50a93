"""A default that a read puts in place has no life of its own: results do not depend on where batches end."""

from __future__ import annotations

import pytest

from millrace import Context, KeyedProcess, Timer, arrival, value_state
from millrace.host.memory import MemoryHost
from millrace.testing import TestDriver


class Appends(KeyedProcess[int, list[int]]):
    """Appends in place; multiples of three are set with a life of their own."""

    order = arrival(in_order_per_key=True)
    kept = value_state(list[int], default_factory=list, ttl="per_write")

    def process(self, event: int, ctx: Context) -> None:
        if event % 3:
            self.kept.value.append(event)
        else:
            self.kept.set([*self.kept.value, event], ttl=1_000)
        ctx.emit(list(self.kept.value))


class Looks(KeyedProcess[str, list[str]]):
    """Reads, which lengthens a life, and appends with a timer."""

    order = arrival(commutes=True)
    kept = value_state(list[str], default_factory=list, ttl=3_000, refresh="read_write")

    def process(self, event: str, ctx: Context) -> None:
        if event == "look":
            ctx.emit(list(self.kept.value))
        else:
            ctx.timers.at(int(event), event)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.kept.value.append(timer.name)
        ctx.emit(list(self.kept.value))


@pytest.mark.parametrize("cut", [False, True])
def test_what_was_appended_in_place_keeps_its_life_when_another_event_of_that_time_writes(cut: bool) -> None:
    driver = TestDriver(Appends())
    events = [("k", 5_000, 1), ("k", 5_000, 3)]
    for batch in [[e] for e in events] if cut else [events]:
        driver.send_batch(batch)
    driver.send_batch([("k", 9_000, 4)])
    assert driver.values() == [[1], [1, 3], [1, 3, 4]]


@pytest.mark.parametrize("cut", [False, True])
def test_a_read_that_finds_nothing_lengthens_no_life(cut: bool) -> None:
    """The look at 20 s comes before the timers of 11 and 15 s, in the batch that lets these fire."""
    host = MemoryHost(Looks(), out_of_orderness_ms=100_000)
    host.run_batch([("k", 1_000, "11000"), ("k", 1_000, "15000")])
    look = host.rows_of([("k", 20_000, "look")])
    emitted = host.run_rows(look, to=0 if cut else 16_000)
    if cut:
        emitted += host.run_rows({}, to=16_000)
    assert [e.payload for e in emitted] == [b"[]", b'["11000"]', b'["15000"]']
