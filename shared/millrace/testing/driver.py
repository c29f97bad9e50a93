"""Drive a process or a topology by hand: send events, advance the watermark, look at what came out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from millrace.host.callbacks import TIMERS, Domain
from millrace.host.groups import encode_key
from millrace.host.memory import Event, MemoryHost
from millrace.host.memory_chain import MemoryChain, event_of
from millrace.host.runner import Emission
from millrace.outputs import output_types
from millrace.process import Key, KeyedProcess
from millrace.state.paged import owner_of
from millrace.state.specs import StateSpec
from millrace.topology import KeyingError, Topology


class TestDriver:
    """A process, or a whole topology, on the in-memory host, with everything that a test wants to know.

    Args:
        process: The process or the topology under test.
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

    def __init__(self, process: KeyedProcess[Any, Any] | Topology, *, out_of_orderness_ms: int = 0) -> None:
        self._process = process
        self._bound = out_of_orderness_ms
        #: What runs it.
        self.host: Any = self._made()
        #: Everything that was emitted, in order.
        self.emissions: list[Emission] = []

    def _made(self) -> MemoryHost | MemoryChain:
        made = MemoryChain if isinstance(self._process, Topology) else MemoryHost
        return made(self._process, out_of_orderness_ms=self._bound)  # type: ignore[arg-type]

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

    def receive(self, *events: Any, input: str | None = None) -> None:
        """Send events to a topology as one batch: key and time are where it says.

        Args:
            events: The events.
            input: The input they come by, where its first process has several and types do not tell.

        Raises:
            KeyingError: This drives a process and not a topology, or an event does not have its key.

        Example:
            >>> import msgspec
            >>> from millrace import KeyedProcess, arrival
            >>> from millrace.topology import Input, read
            >>> class Sale(msgspec.Struct):
            ...     card: str
            ...     at: int
            >>> class Sales(KeyedProcess[Sale, str]):
            ...     order = arrival(commutes=True)
            ...     def process(self, event, ctx):
            ...         ctx.emit(f"{ctx.key} at {ctx.event_time}")
            >>> driver = TestDriver(read(Input("sales", "card", "at")).process(Sales()))
            >>> driver.receive(Sale("c1", 5), Sale("c2", 6))
            >>> driver.values()
            ['c1 at 5', 'c2 at 6']
        """
        if not isinstance(self._process, Topology):
            raise KeyingError("a process does not say where events have their key and time: use send()")
        self.send_batch([event_of(self._process, event, input) for event in events])

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
        raws = [e.payload for e in self.emissions if e.output == output]
        if output.rpartition(".")[2] in ("late", "dead_letters"):
            return [msgspec.json.decode(raw) for raw in raws]
        types = self._process.types if isinstance(self._process, Topology) else output_types(self._process)
        if output not in types:
            raise KeyError(f"no output {output}; there are {', '.join(types)}")
        return [msgspec.json.Decoder(types[output]).decode(raw) for raw in raws]

    def state(self, key: Key, *, process: str | None = None) -> dict[str, Any] | None:
        """Return the state of a key by name, as it is kept; ``None`` where nothing is kept.

        Args:
            key: The key.
            process: Of a topology: the name of the process; unless given the first one.
        """
        host = self._host(process)
        cell = host.store.cells.get(_text(key))
        if cell is None:
            return None
        entry = host.runner.layout.decode(cell.body)
        states = host.runner.process.states
        kept = {spec.name: getattr(entry, spec.name) for spec in states if spec.kind != "broadcast"}
        for spec in states:
            if spec.paged:
                kept[spec.name] = self._items(host, spec, _text(key))
        return kept

    @staticmethod
    def _items(host: MemoryHost, spec: StateSpec, key: str) -> Any:
        """Return what the parts of a state have, as one."""
        found: list[tuple[int, Any]] = []
        for text, cell in host.store.cells.items():
            owner, part = owner_of(text)
            if owner == key and part is not None and part[0] == spec.name:
                found.append((part[1], getattr(host.runner.layout.decode(cell.body), spec.name)))
        of_all: Any = spec.default()
        for _, items in sorted(found, key=lambda one: one[0]):
            of_all = {**of_all, **items} if spec.kind == "map" else [*of_all, *items]
        return of_all

    def timers(
        self, key: Key, domain: Domain = "event_time", *, process: str | None = None
    ) -> dict[str, int]:
        """Return the pending timers of a key (of a process, as in :meth:`state`) on one clock: name → ms."""
        host = self._host(process)
        cell = host.store.cells.get(_text(key))
        if cell is None:
            return {}
        entry = host.runner.layout.decode(cell.body)
        return {t.name: t.at for t in getattr(entry, TIMERS[domain], ())}

    def waiting(self, key: Key, *, process: str | None = None) -> list[int]:
        """Return the event times (ms) of a key's events that wait for the watermark, in order."""
        host = self._host(process)
        cell = host.store.cells.get(_text(key))
        if cell is None:
            return []
        return sorted(row.event_time for row in host.runner.layout.decode(cell.body).pending_)

    def _host(self, process: str | None) -> MemoryHost:
        if isinstance(self.host, MemoryHost):
            return self.host
        hosts = {host.runner.process.name: host for host in self.host.hosts}
        if process is not None and process not in hosts:
            raise KeyError(f"no process {process}; there are {', '.join(hosts)}")
        found: MemoryHost = self.host.hosts[0] if process is None else hosts[process]
        return found

    def snapshot(self) -> bytes:
        """Return everything that is kept, as a checkpoint would."""
        kept: bytes = self.host.snapshot()
        return kept

    def restore(self, snapshot: bytes) -> None:
        """Go on in a new host from a :meth:`snapshot`, also one of an earlier version of the process."""
        self.host = self._made()
        self.host.restore(snapshot)

    def is_empty(self) -> bool:
        """Return whether no state and no timer is kept for any key."""
        return self.host.is_empty() if isinstance(self.host, MemoryChain) else not self.host.store.cells

    def restart(self) -> None:
        """Go on in a new host from a snapshot of this one, as after a restart."""
        self.restore(self.snapshot())


def _text(key: Key) -> str:
    return encode_key((key,) if isinstance(key, str) else tuple(key))
