"""Polling with a deadline, for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], bool],
    seconds: float,
    *,
    every_s: float = 0.25,
    told: Callable[[float], None] = lambda _: None,
    told_every_s: float = 5.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait for a condition; return whether it has come in time.

    Args:
        condition: Asked again and again; what it raises ends the waiting.
        seconds: For how long.
        every_s: How often it is asked, s.
        told: Told now and then how long it has taken so far, s.
        told_every_s: How often, s.
        clock: Seconds that only go forward.
        sleep: Waits for some seconds.

    >>> wait_until(lambda: True, 1.0)
    True
    """
    began = said = clock()
    while not condition():
        now = clock()
        if now - began >= seconds:
            return False
        if now - said >= told_every_s:
            said = now
            told(now - began)
        sleep(every_s)
    return True
