"""Sends messages at their time: the one stage that looks at a clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from millrace_apps.generators.engine.message import Generated
from millrace_apps.generators.engine.shape import Constant, Shape

#: One wake-up sends all that fell due in this time; a wake-up per message would cost a core at 20,000/s.
_TICK_S: Final = 0.004


class Clock(Protocol):
    """Time that passes, in seconds; tests bring their own."""

    def now(self) -> float:
        """Return seconds since any fixed moment."""

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``, or earlier when the run is being stopped."""


class WallClock:
    """The monotonic clock; its sleep ends at once when ``stop`` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def now(self) -> float:
        """Return seconds of the monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``, or as soon as the run is stopped."""
        self._stop.wait(seconds)


def pace(
    stream: Iterator[Generated],
    *,
    speed: float,
    start_ms: int,
    clock: Clock,
    behind_s: float = 0.0,
    on_idle: Callable[[], None] = lambda: None,
    shape: Shape | None = None,
) -> Iterator[Generated]:
    """Yield every message at its time of arrival, or late, but never early.

    A stream that was held up (by a full queue, say) catches up as fast as it can and keeps event time
    and clock together.

    Args:
        stream: Messages in order of arrival.
        speed: Seconds of event time per second of the clock.
        start_ms: Event time at which the clock starts, ms.
        clock: Time.
        behind_s: How long ago ``start_ms`` was, seconds: what has fallen due since then goes out at once.
        on_idle: Called before every wait; sinks push out there what they have.
        shape: Makes the rate swell and ebb; constant by default.
    """
    progress, when = (shape or Constant()).progress, (shape or Constant()).when
    began = clock.now() - behind_s
    reached_ms = start_ms
    for message in stream:
        if message.due_ms > reached_ms:
            wait = began + when((message.due_ms - start_ms) / 1000) / speed - clock.now()
            if wait > 0:
                on_idle()
                clock.sleep(max(wait, _TICK_S))
            # All that falls due up to now goes out without another look at the clock.
            passed_ms = int(progress((clock.now() - began) * speed) * 1000)
            reached_ms = max(message.due_ms, start_ms + passed_ms)
        yield message
