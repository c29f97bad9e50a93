"""Shows on standard error how a run goes: live on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from millrace.testing.ledger import Summary

_TERMINAL_PERIOD_S: Final = 0.25
_LINE_PERIOD_S: Final = 5.0


class Progress:
    """Reports in the background while a run goes on; use it as a context manager.

    A thread of its own reads the counters, so the loop that sends does nothing for it.

    Args:
        totals: Returns the totals so far.
        target: Where messages go, for people.
        events: How many events will come, if known.
        quiet: Show nothing.
    """

    def __init__(
        self, totals: Callable[[], Summary], target: str, events: int | None, *, quiet: bool = False
    ) -> None:
        self._totals = totals
        self._target = target
        self._events = events
        self._live = sys.stderr.isatty()
        self._done = threading.Event()
        self._began = time.monotonic()
        self._thread = None if quiet else threading.Thread(target=self._report, daemon=True)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def __enter__(self) -> Progress:
        self._began = time.monotonic()
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _report(self) -> None:
        if not self._live:
            while not self._done.wait(_LINE_PERIOD_S):
                print(self._line(), file=sys.stderr, flush=True)
            return
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            while not self._done.wait(_TERMINAL_PERIOD_S):
                live.update(self._line(), refresh=True)

    def _line(self) -> str:
        totals = self._totals()
        rate = totals.sent / max(self.seconds, 1e-9)
        of = f" of {self._events:,}" if self._events is not None else ""
        return (
            f"{totals.valid_unique:,}{of} events → {self._target} · {rate:,.0f}/s · "
            f"{totals.episodes} frauds · {totals.late} late · {totals.duplicates} repeated · "
            f"{totals.malformed} malformed"
        )


def describe(summary: Summary, target: str, seconds: float) -> str:
    """Return a finished run in a few lines."""
    rate = summary.sent / max(seconds, 1e-9)
    amounts = ", ".join(f"{kind} {cents / 100:,.2f}" for kind, cents in summary.amount_cents.items())
    lines = [
        f"sent {summary.sent:,} messages → {target} in {seconds:.1f} s ({rate:,.0f}/s)",
        f"  {summary.valid_unique:,} distinct events, {summary.late:,} of them late; "
        f"{summary.duplicates:,} repeated, {summary.malformed:,} malformed",
        f"  {summary.episodes:,} frauds with {summary.frauds:,} transactions",
    ]
    if amounts:
        lines.append(f"  EUR {amounts}")
    return "\n".join(lines)
