"""The picture of a running app in the terminal, and plain lines where there is no terminal."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from millrace.console.live_panels import AlertLine, ViewModel, alert_line, clean, render, status_line

__all__ = ["AlertLine", "LiveView", "ViewModel", "is_interactive"]

#: Points of the rate's line; one a second.
_HISTORY: Final = 48


def is_interactive(console: Console, env: Mapping[str, str] = os.environ) -> bool:
    """Say whether a moving picture is wanted: a terminal, no CI, no ``TERM=dumb`` and no ``NO_COLOR``."""
    quiet = env.get("NO_COLOR") or env.get("CI") or env.get("TERM") == "dumb"
    return console.is_terminal and not console.is_dumb_terminal and not quiet


class LiveView:
    """Shows an app while it runs; use it as a context manager, which gives the terminal back in any case.

    Args:
        title: The app's name.
        console: Where to show it; default standard output.
        env: Environment variables that decide whether this is a terminal.
        clock: Seconds that only go forward.
        every_s: Without a terminal: seconds between two status lines.
        alerts_per_s: Without a terminal: alerts shown per second at most.

    Example:
        >>> with LiveView("fraud", Console(no_color=True), env={"CI": "1"}, clock=lambda: 0.0) as view:
        ...     with view.phase("Starting the broker"):
        ...         pass
        ...     view.update(ViewModel(elapsed_s=1, processed=1200, processed_rate=1200))
        Starting the broker …
        ✓ Starting the broker  0.0 s
        [   1 s]  processed 1,200 (1,200/s)  batches 0
    """

    def __init__(
        self,
        title: str,
        console: Console | None = None,
        *,
        env: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = 5.0,
        alerts_per_s: int = 3,
    ) -> None:
        self._title = title
        self._console = console or Console(highlight=False)
        self._interactive = is_interactive(self._console, env)
        self._ascii = not self._console.encoding.lower().startswith("utf")
        self._clock = clock
        self._every_s = every_s
        self._model = ViewModel()
        self._live: Live | None = None
        self._rates: deque[float] = deque(maxlen=_HISTORY)
        self._sampled_at: float | None = None
        self._alerts = _AlertFeed(alerts_per_s)
        self._line_at: float | None = None
        self._phases: list[str] = []

    def __enter__(self) -> LiveView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def interactive(self) -> bool:
        """Whether a moving picture is shown, not lines."""
        return self._interactive

    def close(self) -> None:
        """Stop the picture; its last state stays on the screen, the cursor is back. May be called twice."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    @contextmanager
    def phase(self, text: str) -> Iterator[None]:
        """Show a step of the set-up while the block runs, then ✓ (or ✗) and its seconds."""
        started = self._clock()
        text = clean(text, ascii_only=self._ascii)
        outermost = not self._phases
        self._phases.append(text)
        try:
            if self._interactive and self._live is None and outermost:
                with self._console.status(Text(text), spinner="line" if self._ascii else "dots"):
                    yield
            else:
                if not self._interactive:
                    self._print(f"{text} {'...' if self._ascii else '…'}")
                yield
        except BaseException:
            self._print(
                f"{'FAILED' if self._ascii else '✗'} {text}  {self._clock() - started:.1f} s", "bold red"
            )
            raise
        finally:
            self._phases.pop()
        self._print(f"{'ok' if self._ascii else '✓'} {text}  {self._clock() - started:.1f} s", "green")

    def message(self, text: str) -> None:
        """Print a line; on a terminal it appears above the picture."""
        self._print(clean(text, ascii_only=self._ascii))

    def update(self, model: ViewModel) -> None:
        """Show new figures; may be called as often as one likes."""
        self._model = model
        now = self._clock()
        if self._sampled_at is None or now - self._sampled_at >= 1.0:
            self._sampled_at = now
            self._rates.append(model.processed_rate)
        if not self._interactive:
            self._update_lines(model, now)
        elif self._live is None:
            self._live = Live(
                console=self._console,
                get_renderable=self._render,
                refresh_per_second=4,
                # Cropped rather than with dots: a terminal that shrank is repainted at the next refresh.
                vertical_overflow="crop",
            )
            self._live.start(refresh=True)

    def _render(self) -> RenderableType:
        model = self._model
        size = self._console.size
        return render(
            self._title,
            model,
            list(self._rates),
            width=size.width,
            height=size.height,
            ascii_only=self._ascii,
        )

    def _update_lines(self, model: ViewModel, now: float) -> None:
        for alert in self._alerts.take(model, now):
            self._print(alert_line(alert))
        if self._line_at is not None and now - self._line_at < self._every_s:
            return
        self._line_at = now
        skipped = self._alerts.skipped()
        more = f"  ({skipped:,} more alerts not shown)" if skipped else ""
        self._print(status_line(model) + more)

    def _print(self, text: str, style: str = "") -> None:
        if self._ascii:
            text = clean(text, ascii_only=True)
        self._console.print(Text(text, style if self._interactive else ""), soft_wrap=True)


class _AlertFeed:
    """Picks the alerts that are new since the last look, no more than so many a second."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._seen = 0
        self._skipped = 0
        self._second = 0.0
        self._shown = 0

    def take(self, model: ViewModel, now: float) -> list[AlertLine]:
        new = model.alerts_total - self._seen
        if new <= 0:
            return []
        self._seen = model.alerts_total
        if now - self._second >= 1.0:
            self._second, self._shown = now, 0
        fresh = list(model.alerts)[-new:]
        taken = fresh[: max(0, self._per_second - self._shown)]
        self._shown += len(taken)
        self._skipped += new - len(taken)
        return taken

    def skipped(self) -> int:
        """Return how many were not shown since the last call."""
        count, self._skipped = self._skipped, 0
        return count
