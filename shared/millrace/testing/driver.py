"""Drive a process by hand: send events, advance the watermark, look at what came out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from millrace.host.groups import encode_key
from millrace.host.memory import Event, MemoryHost
from millrace.host.runner import TIMERS, Domain, Emission
from millrace.process import Key, KeyedProcess


class TestDriver:
    """A process on the in-memory host, with everything that a test wants to know.

    Args:
        process: The process under test.
        out_of_orderness_ms: Bound by which the watermark stays behind the newest event, ms.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> class Last(KeyedProcess[str, str]):
        ...     order = arrival(in_order_per_key=True)
        ...     last = value_state(str)
        ...     def process(self, event, ctx):
        ...         self.last.value = event
        ...         ctx.timers.after(1_000, "idle")
        ...     def on_timer(self, timer, ctx):
        ...         ctx.emit(f"{ctx.key} idle since {self.last.value}")
        ...         self.last.clear()
        >>> driver = TestDriver(Last())
        >>> driver.send("a", "hello", at=0)
        >>> driver.advance_watermark(1_000)
        >>> driver.values(), driver.is_empty()
        (['a idle since hello'], True)
    """

    __test__ = False  # not a test class, whatever its name

    def __init__(self, process: KeyedProcess[Any, Any], *, out_of_orderness_ms: int = 0) -> None:
        self._process = process
        self._bound = out_of_orderness_ms
        self.host = MemoryHost(process, out_of_orderness_ms=out_of_orderness_ms)
        #: Everything that was emitted, in order.
        self.emissions: list[Emission] = []

    def send(self, key: Key, event: Any, *, at: int, input: str | None = None) -> None:
        """Send one event as a batch of its own.

        Args:
            key: Its key.
            event: The event.
            at: Its event time, ms.
            input: The input it comes by, where the process has several and its type does not tell.
        """
        self.send_batch([(key, at, event) if input is None else (key, at, event, input)])

    def send_batch(self, events: Iterable[Event]) -> None:
        """Send several events (key, event time in ms, event, input if needed) as one batch."""
        self.emissions += self.host.run_batch(events)

    def advance_watermark(self, to: int) -> None:
        """Move the watermark to ``to`` (ms) and fire the timers it passes."""
        self.emissions += self.host.advance_watermark(to)

    def advance_processing_time(self, to: int) -> None:
        """Bring a tick of processing time (ms) and fire the timers that are due by it."""
        self.emissions += self.host.advance_processing_time(to)

    def drain(self) -> None:
        """End the input: the watermark moves to the end of time, and all timers fire."""
        self.emissions += self.host.drain()

    def broadcast(self, *controls: Any, at: int | None = None) -> None:
        """Send control events to every key.

        Args:
            controls: The events.
            at: The event time (ms) from which on they hold, for a process in event-time order; ``None``: now.
        """
        self.emissions += self.host.broadcast(*controls, at=at)

    def values(self, output: str = "main") -> list[Any]:
        """Return the records of one output, decoded to its type, in order of emission."""
        types = {
            "main": self._process.output_type,
            **{tag.name: tag.type for tag in self._process.side_outputs},
        }
        if output in ("late", "dead_letters"):
            return [msgspec.json.decode(e.payload) for e in self.emissions if e.output == output]
        decoder = msgspec.json.Decoder(types[output])
        return [decoder.decode(e.payload) for e in self.emissions if e.output == output]

    def state(self, key: Key) -> dict[str, Any] | None:
        """Return the state of a key by name, as it is kept; ``None`` where nothing is kept."""
        cell = self.host.store.cells.get(_text(key))
        if cell is None:
            return None
        entry = self.host.runner.layout.decode(cell.body)
        states = self._process.states
        return {spec.name: getattr(entry, spec.name) for spec in states if spec.kind != "broadcast"}

    def timers(self, key: Key, domain: Domain = "event_time") -> dict[str, int]:
        """Return the pending timers of a key on one clock: name → time (ms)."""
        cell = self.host.store.cells.get(_text(key))
        if cell is None:
            return {}
        entry = self.host.runner.layout.decode(cell.body)
        return {t.name: t.at for t in getattr(entry, TIMERS[domain], ())}

    def waiting(self, key: Key) -> list[int]:
        """Return the event times (ms) of a key's events that wait for the watermark, in order."""
        cell = self.host.store.cells.get(_text(key))
        return (
            []
            if cell is None
            else sorted(row.event_time for row in self.host.runner.layout.decode(cell.body).pending_)
        )

    def snapshot(self) -> bytes:
        """Return everything that is kept, as a checkpoint would."""
        return self.host.snapshot()

    def restore(self, snapshot: bytes) -> None:
        """Go on in a new host from a :meth:`snapshot`, also one of an earlier version of the process."""
        self.host = MemoryHost(self._process, out_of_orderness_ms=self._bound)
        self.host.restore(snapshot)

    def is_empty(self) -> bool:
        """Return whether no state and no timer is kept for any key."""
        return not self.host.store.cells

    def restart(self) -> None:
        """Go on in a new host from a snapshot of this one, as after a restart."""
        self.restore(self.snapshot())


def _text(key: Key) -> str:
    return encode_key((key,) if isinstance(key, str) else tuple(key))
