"""Waiting for something that another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], seconds: float, *, every_s: float = 0.25) -> bool:
    """Wait for a condition; return whether it has come in time.

    >>> wait_until(lambda: True, 1.0)
    True
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
    return True
