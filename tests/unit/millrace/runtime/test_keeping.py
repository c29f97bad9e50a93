"""Jobs that are started again when they end unasked, and when that is given up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.errors import MillraceError, UserError
from millrace.kafka.keeping import KeptBroker
from millrace.local.waiting import wait_until
from millrace.runtime.keeping import MOST_FAILURES, KeptJob
from millrace.runtime.monitor import QueryMonitor
from tests.unit.millrace.runtime.test_monitor import progress

PATIENCE_S = 10.0


class Job:
    """A job that does what it is told: has a batch, waits until it is asked to end, fails."""

    def __init__(self, monitor: QueryMonitor, does: str, batch: int) -> None:
        self.settings = SimpleNamespace()
        self.session_ready, self.started, self.asked = (threading.Event() for _ in range(3))
        self._monitor, self._does, self._batch = monitor, does, batch

    def run(self) -> None:
        if "refused" in self._does:
            raise UserError("no such topic")
        self.started.set()
        if "batch" in self._does:
            self._monitor.progressed(progress(self._batch, 10, took_ms=100))
        if "fails" in self._does:
            raise MillraceError("the broker is gone")
        if "waits" in self._does:
            assert self.asked.wait(PATIENCE_S)

    def stop(self) -> None:
        self.asked.set()

    def working(self) -> bool:
        return False

    def pass_time(self, to_ms: int) -> bool:
        return True

    def wake(self) -> bool:
        return True


def kept(does: list[str]) -> tuple[KeptJob, list[Job], list[str], list[float]]:
    """Return a kept job whose jobs do this one after the other, those made, what was told, the waits."""
    monitor, made, told, waits = QueryMonitor(), [], [], []

    def make() -> Job:
        made.append(Job(monitor, does[min(len(made), len(does) - 1)], len(made)))
        return made[-1]

    def wait(event: threading.Event, seconds: float) -> bool:
        waits.append(seconds)
        return event.is_set()

    return KeptJob("fraud", make, monitor, told=told.append, wait=wait), made, told, waits


def until(condition: Callable[[], bool]) -> None:
    assert wait_until(condition, PATIENCE_S, every_s=0.01)


def test_it_goes_on_after_failures_and_ends_when_it_is_asked_to() -> None:
    job, made, told, waits = kept(["batch fails", "fails", "batch", "batch waits"])
    job.start()
    until(lambda: len(made) == 4 and made[3].started.is_set())
    assert job.is_alive()
    job.stop()
    job.join()
    assert (job.restarts, waits) == (3, [1.0, 2.0, 1.0]), "a batch between begins the count anew"
    assert told == [
        "fraud: the broker is gone; it is started again",
        "fraud: the broker is gone; it is started again",
        "fraud: it ended without being asked to; it is started again",
    ]


def test_one_that_fails_again_and_again_is_given_up() -> None:
    job, made, _, waits = kept(["batch fails", "fails"])
    job.start()
    with pytest.raises(MillraceError, match=f"fraud failed {MOST_FAILURES} times in a row: the broker"):
        job.join()
    assert (len(made), waits) == (MOST_FAILURES, [1.0, 2.0, 4.0, 8.0, 15.0])
    assert not job.is_alive()


def test_one_that_never_began_is_for_the_user_to_put_right() -> None:
    job, made, told, _ = kept(["refused"])
    job.start()
    with pytest.raises(UserError, match="no such topic"):
        job.join()
    assert job.started.is_set(), "nobody waits for it"
    assert (len(made), told) == (1, [])


def test_one_that_is_refused_after_it_ran_is_tried_again() -> None:
    job, made, _, _ = kept(["batch fails", "refused", "waits"])
    job.start()
    until(lambda: len(made) == 3 and made[2].started.is_set())
    assert job.restarts == 2
    job.stop()
    job.join()


def test_asked_to_end_between_two_starts_it_does_not_start() -> None:
    monitor = QueryMonitor()
    made: list[Job] = []

    def make() -> Job:
        made.append(Job(monitor, "batch fails", len(made)))
        return made[-1]

    def wait(event: threading.Event, seconds: float) -> bool:
        job.stop()
        return event.is_set()

    job = KeptJob("fraud", make, monitor, told=lambda text: None, wait=wait)
    job.start()
    job.join()
    assert len(made) == 1


def test_between_two_starts_there_may_be_work() -> None:
    job, made, _, _ = kept(["waits"])
    assert job.working(), "it has not begun"
    job.start()
    until(lambda: made[0].started.is_set())
    assert not job.working()
    job.stop()
    job.join()


class Broker:
    """A broker that dies when it is told to, and comes again as often as it may."""

    def __init__(self, restarts: int) -> None:
        self.alive, self.left = True, restarts

    def is_alive(self) -> bool:
        return self.alive

    def restart(self) -> None:
        if not self.left:
            raise MillraceError("its data are gone")
        self.left -= 1
        self.alive = True


def test_a_broker_that_ends_is_started_again_until_that_fails() -> None:
    broker, told = Broker(2), []
    anything: Any = broker
    with KeptBroker(anything, told=told.append, every_s=0.005) as watch:
        for n in (1, 2):
            broker.alive = False
            until(lambda n=n: watch.restarts == n)  # type: ignore[misc]
            watch.check()
        broker.alive = False
        until(lambda: watch.error is not None)
        with pytest.raises(MillraceError, match="its data are gone"):
            watch.check()
    assert told == ["the broker has ended; it is started again"] * 3
