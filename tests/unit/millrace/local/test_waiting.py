"""Waiting for what another does."""

from __future__ import annotations

from millrace.local.waiting import wait_until


class Passing:
    """Time that passes by waiting alone."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_it_is_told_now_and_then_how_long_it_takes_until_it_has_come() -> None:
    clock, told = Passing(), list[float]()
    came = wait_until(
        lambda: clock.now >= 107.0, 60.0, every_s=0.5, told=told.append, told_every_s=3.0,
        clock=clock, sleep=clock.sleep,
    )  # fmt: skip
    assert (came, clock.now, told) == (True, 107.0, [3.0, 6.0])


def test_after_the_time_that_there_is_it_has_not_come() -> None:
    clock = Passing()
    assert not wait_until(lambda: False, 2.0, every_s=0.5, clock=clock, sleep=clock.sleep)
    assert clock.now == 102.0


def test_what_has_come_already_is_not_waited_for() -> None:
    clock = Passing()
    assert wait_until(lambda: True, 0.0, clock=clock, sleep=clock.sleep)
    assert clock.now == 100.0
