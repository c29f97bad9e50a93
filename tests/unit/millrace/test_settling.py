"""When a demo's app has done all that the last events bring about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from millrace import demo
from millrace.demo import CatchUp, Settling
from millrace.errors import ChecksFailed
from millrace.runtime.monitor import QuerySnapshot

NEWEST = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Job:
    """A job that is told of time, and works when we say so."""

    def __init__(self, *, control: bool = True) -> None:
        self.settings = SimpleNamespace(stream=SimpleNamespace(out_of_orderness=timedelta(seconds=10)))
        self.told: list[int] = []
        self.busy = False
        self._control = control

    def pass_time(self, to_ms: int) -> bool:
        if self._control:
            self.told.append(to_ms)
        return self._control

    def working(self) -> bool:
        return self.busy


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(demo.time, "monotonic", lambda: now[0])
    return now


def at(**fields: Any) -> QuerySnapshot:
    return QuerySnapshot(**{"input_rows": 10, "lag": 0, "batches": 3, "newest_event": NEWEST, **fields})


def settled(job: Job) -> Settling:
    anything: Any = job
    return Settling(anything)


def test_event_time_goes_on_past_the_last_event_once_all_is_read(clock: list[float]) -> None:
    job = Job()
    settling = settled(job)
    assert not settling.done(at(input_rows=9), 10)
    assert not settling.done(at(lag=1), 10)
    assert job.told == []
    assert not settling.done(at(), 10)
    assert job.told == [int(NEWEST.timestamp() * 1_000) + 10_002]
    settling.done(at(), 10)
    assert len(job.told) == 1


def test_it_waits_for_the_watermark_and_then_for_quiet(clock: list[float]) -> None:
    job = Job()
    settling = settled(job)
    settling.done(at(), 10)
    clock[0] += 60
    assert not settling.done(at(watermark=NEWEST - timedelta(seconds=1)), 10)
    job.busy = True
    assert not settling.done(at(watermark=NEWEST, batches=4), 10)
    job.busy = False
    clock[0] += 0.9
    assert not settling.done(at(watermark=NEWEST, batches=4), 10)
    clock[0] += 0.2
    assert settling.done(at(watermark=NEWEST, batches=4), 10)


def test_where_silence_itself_makes_batches_so_many_are_enough(clock: list[float]) -> None:
    settling = settled(Job())
    settling.done(at(), 10)
    done = []
    for batches in range(4, 14):
        clock[0] += 1
        done.append(settling.done(at(watermark=NEWEST, batches=batches), 10))
    assert done == [False] * 8 + [True] * 2


def test_without_a_control_topic_quiet_is_enough(clock: list[float]) -> None:
    settling = settled(Job(control=False))
    settling.done(at(), 10)
    settling.done(at(), 10)
    clock[0] += 2.1
    assert settling.done(at(), 10)


def test_an_event_that_comes_after_all_seemed_read_is_waited_for_too(clock: list[float]) -> None:
    """Rows of the control topic count as read: with them the last event may seem to be there and is not."""
    job, last = Job(), NEWEST + timedelta(seconds=4)
    settling = settled(job)
    settling.done(at(), 10)
    clock[0] += 60
    assert not settling.done(at(input_rows=11, watermark=NEWEST, newest_event=last, batches=4), 10)
    assert job.told[1:] == [int(last.timestamp() * 1_000) + 10_002]
    clock[0] += 60
    assert not settling.done(at(input_rows=11, watermark=NEWEST, newest_event=last, batches=5), 10)
    assert not settling.done(at(input_rows=12, watermark=last, newest_event=last, batches=6), 10)
    clock[0] += 1.1
    assert settling.done(at(input_rows=12, watermark=last, newest_event=last, batches=6), 10)
    assert len(job.told) == 2


def test_each_of_several_apps_is_waited_for_while_it_reads(clock: list[float]) -> None:
    slow, stuck = CatchUp(), CatchUp()
    for read in range(1, 8):
        slow.check(read, 1, 90, "slow")
        stuck.check(5, 1, 90, "stuck") if read < 3 else None
        clock[0] += 100.0
    with pytest.raises(ChecksFailed, match=r"^stuck: 5 of 90 events were read, and nothing done for 120 s"):
        stuck.check(5, 1, 90, "stuck")


def test_the_first_batch_has_longer(clock: list[float]) -> None:
    catch_up = CatchUp()
    catch_up.check(0, 0, 90)
    clock[0] += 299.0
    catch_up.check(0, 0, 90)
    clock[0] += 2.0
    with pytest.raises(ChecksFailed, match=r"^0 of 90 events"):
        catch_up.check(0, 0, 90)


def test_what_waits_for_its_time_is_waited_for_and_a_clocks_batches_are_not(clock: list[float]) -> None:
    catch_up = CatchUp()
    for batches in range(10, 10 + 33):
        catch_up.check(90, batches, 90)
        clock[0] += 100.0
    clock[0] += 21.0
    with pytest.raises(ChecksFailed, match=r"^90 of 90 events were read, and nothing done"):
        catch_up.check(90, 43, 90)
    lost = CatchUp()
    lost.check(89, 10, 90)
    clock[0] += 121.0
    with pytest.raises(ChecksFailed, match=r"^89 of 90"):
        lost.check(89, 50, 90)
