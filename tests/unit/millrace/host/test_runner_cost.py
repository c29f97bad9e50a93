"""What the runner and the handles leave out for the sake of speed must not show."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import msgspec
import pytest

from millrace import BroadcastContext, Context, KeyedProcess, Timer, arrival, broadcast_state
from millrace.host.runner import Row, Runner, make_event_id
from millrace.inputs import NO_INPUT, Inputs
from millrace.state.handles import BroadcastState
from millrace.testing import TestDriver
from millrace.time import NO_WATERMARK


def total(entries: list[tuple[str, int]]) -> int:
    return sum(value for _, value in entries)


class Limits(KeyedProcess[str, int]):
    order = arrival(in_order_per_key=True)
    control_type = str
    limits = broadcast_state(str, int)

    def process(self, event: str, ctx: Context) -> None:
        ctx.emit(self.limits.view(total))

    def process_broadcast(self, control: str, ctx: BroadcastContext) -> None:
        self.limits.put(control, self.limits.view(total) + 1)
        if control == "fails":
            raise ValueError(control)


def test_a_view_of_broadcast_state_follows_every_change_and_no_failed_one() -> None:
    driver = TestDriver(Limits())
    driver.send("k", "x", at=1)
    driver.broadcast("a", "b")  # 1, then 1 + 1
    driver.send("k", "x", at=2)
    driver.broadcast("fails")
    driver.send("k", "x", at=3)
    driver.broadcast("a")  # 3 + 1 instead of 1
    driver.send("k", "x", at=4)
    assert driver.values() == [0, 3, 3, 6]


def test_groups_that_keep_the_same_share_what_is_unpacked_and_others_do_not() -> None:
    runner = Runner(Limits(), encode=msgspec.json.encode)
    limits: BroadcastState[str, int] = runner.process.__dict__["limits"]
    made: list[int] = []

    def counted_total(entries: list[tuple[str, int]]) -> int:
        made.append(1)
        return total(entries)

    def seen(stored: bytes | None) -> int:
        runner.controls.load(stored)
        return limits.view(counted_total)

    def control(stored: bytes | None, name: str) -> bytes:
        row = Row(0, b"", None, name)
        changed = runner.controls.take([row], stored, NO_WATERMARK, report=True)
        assert changed is not None
        return changed

    first = control(None, "a")
    assert limits.view(counted_total) == 1, "the group that was changed sees the change at once"
    assert [seen(None), seen(first), seen(first), seen(first)] == [0, 1, 1, 1]
    assert len(made) == 2
    second = control(first, "b")
    assert [limits.view(counted_total), seen(first), seen(second), seen(None)] == [3, 1, 3, 0]


def test_events_of_one_input_have_one_decoder() -> None:
    inputs = Inputs({"numbers": int, "texts": str}, "Both")
    texts = [b'\x02"a"', b'\x02"b"']
    decoder = inputs.only(texts)
    assert [decoder.decode(raw[1:]) for raw in texts] == [inputs.decode(raw) for raw in texts] == ["a", "b"]
    assert inputs.only([*texts, b"\x011"]) is None
    assert inputs.only([NO_INPUT + b"1"]) is None


class Chained(KeyedProcess[int, str]):
    """Sets a timer at the event's value; timers below 100 set the next one, 10 later."""

    order = arrival(in_order_per_key=True)

    def process(self, event: int, ctx: Context) -> None:
        ctx.timers.at(abs(event), "t", on_key_time=True)
        if event < 0:
            raise ValueError("set a timer and failed")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(f"fired {timer.at}")
        if timer.at < 30:
            ctx.timers.at(timer.at + 10, "t")


def test_a_timer_of_a_failed_callback_is_not_there_and_the_one_before_still_fires() -> None:
    driver = TestDriver(Chained())
    driver.send("k", 50, at=1)
    driver.send("k", -20, at=2)
    driver.advance_watermark(to=100)
    assert driver.values() == ["fired 50"]


def test_timers_that_timers_set_fire_in_the_same_batch() -> None:
    driver = TestDriver(Chained())
    driver.send("k", 10, at=1)
    driver.advance_watermark(to=1_000)
    assert driver.values() == ["fired 10", "fired 20", "fired 30"]


@pytest.fixture(params=[True, False])
def collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    (gc.enable if request.param else gc.disable)()
    yield request.param
    gc.enable()


def test_the_garbage_collector_is_as_it_was_after_a_batch(collecting: bool) -> None:
    TestDriver(Chained()).send("k", 10, at=1)
    assert gc.isenabled() is collecting


def test_identities_differ_by_each_of_their_parts() -> None:
    parts = [("p", "k", "t:0:1", "main", 0)]
    parts += [("q", *parts[0][1:]), ("p", "l", *parts[0][2:]), ("p", "k", "t:0:2", "main", 0)]
    parts += [("p", "k", "t:0:1", "late", 0), ("p", "k", "t:0:1", "main", 1)]
    identities = {make_event_id(*p) for p in parts}
    assert len(identities) == len(parts)
    assert all(len(i) == 32 and int(i, 16) >= 0 for i in identities)
