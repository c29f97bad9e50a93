"""Shows on standard error how a run goes: live on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from millrace.testing.world_ledger import WorldSummary

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
        self, totals: Callable[[], WorldSummary], target: str, events: int | None, *, quiet: bool = False
    ) -> None:
        self._totals = totals
        self._already = totals().sent
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
        rate = (totals.sent - self._already) / max(self.seconds, 1e-9)
        of = f" of {self._events:,}" if self._events is not None else ""
        return f"{totals.valid_unique:,}{of} events → {self._target} · {rate:,.0f}/s · {_brief(totals)}"


def _brief(totals: WorldSummary) -> str:
    counts = {**totals.truths, **totals.faults}
    return " · ".join(f"{count:,} {kind}" for kind, count in counts.items())


def describe(summary: WorldSummary, target: str, seconds: float, new: int | None = None) -> str:
    """Return a finished run in a few lines.

    Args:
        summary: Its totals.
        target: Where it was sent to, for people.
        seconds: How long it took.
        new: How many messages of them this run has sent itself, where it went on with a killed one.
    """
    sent = summary.sent if new is None else new
    rate = sent / max(seconds, 1e-9)
    more = f" (of {summary.sent:,} in all)" if sent != summary.sent else ""
    lines = [f"sent {sent:,} messages{more} → {target} in {seconds:.1f} s ({rate:,.0f}/s)"]
    streams = ", ".join(f"{name} {count:,}" for name, count in summary.streams.items())
    lines.append(f"  {summary.valid_unique:,} distinct events: {streams}")
    for title, counts in (("faults", summary.faults), ("truths", summary.truths)):
        if counts:
            lines.append(f"  {title}: {', '.join(f'{kind} {n:,}' for kind, n in counts.items())}")
    return "\n".join(lines)
