"""Topologies in memory: what links emit goes on to the ones behind them, as in a chain on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from millrace.dead_letters import NOT_JSON, reason_of
from millrace.host.groups import decode_key
from millrace.host.memory import Event, MemoryHost
from millrace.host.rows import IS_AHEAD, Row
from millrace.host.runner import Emission
from millrace.inputs import event_json, mark_of
from millrace.outputs import output_types
from millrace.process import KeyedProcess, order_of
from millrace.time import END_OF_TIME, NO_WATERMARK, less
from millrace.topology import KeyingError, Link, Taken, Topology
from millrace.topology.keys import has_fields, key_reader


class MemoryChain:
    """Runs a topology: what its links emit are the events of others, by other keys.

    Args:
        first: The topology, or the first process of a chain.
        links: Of a chain: for each further process the field (or fields) that is its key, and the process,
            which takes the one before it by its ``main``.
        out_of_orderness_ms: Bound by which the watermark stays behind the newest event, ms.
        records: Leave payloads as the records themselves, as :class:`MemoryHost` does.

    Outputs of all but the last are named as on Spark: ``Process.output``. What a link takes comes out only if
    the topology writes it.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> class Sale(msgspec.Struct):
        ...     card: str
        ...     shop: str
        >>> class Cards(KeyedProcess[Sale, Sale]):
        ...     order = arrival(commutes=True)
        ...     def process(self, event, ctx):
        ...         ctx.emit(event)
        >>> class Shops(KeyedProcess[Sale, int]):
        ...     order = arrival(commutes=True)
        ...     n = value_state(int, default=0)
        ...     def process(self, event, ctx):
        ...         self.n.value += 1
        ...         ctx.emit(self.n.value)
        >>> chain = MemoryChain(Cards(), ("shop", Shops()))
        >>> sales = [("c1", 1, Sale("c1", "s1")), ("c2", 2, Sale("c2", "s1"))]
        >>> [e.payload for e in chain.run_batch(sales)]
        [b'1', b'2']
    """

    #: What runs each process.
    host_type: ClassVar[type[MemoryHost]] = MemoryHost

    def __init__(
        self,
        first: KeyedProcess[Any, Any] | Topology,
        *links: tuple[str | tuple[str, ...], KeyedProcess[Any, Any]],
        out_of_orderness_ms: int = 0,
        records: bool = False,
    ) -> None:
        self.topology = first if isinstance(first, Topology) else _chain(first, links)
        self._bound, self._records = out_of_orderness_ms, records
        self.hosts = self._made()
        self._takes = [
            [_take(self.topology, link.process, taken) for taken in link.takes]
            for link in self.topology.links
        ]
        self._goes_on = {take.source for takes in self._takes for take in takes}
        self._outputs = {
            (process.name, name): full for full, (process, name) in self.topology.outputs.items()
        }

    def _made(self) -> list[MemoryHost]:
        hosts = [
            self.host_type(link.process, out_of_orderness_ms=self._bound, records=self._records)
            for link in self.topology.links
        ]
        for host in hosts[1:]:
            host.follow(hosts[0])
        return hosts

    @property
    def watermark(self) -> int:
        """How far time has come, ms."""
        return self.hosts[0].watermark

    def run_batch(self, events: Iterable[Event]) -> list[Emission]:
        """Run one batch through all processes; see :meth:`MemoryHost.run_batch`."""
        first = self.hosts[0]
        rows = first.rows_of(events)
        newest = first.newest
        if order_of(first.runner.process).by_key:
            return self.run_rows(rows, to=less(newest, self._bound + 1))
        emitted = self._follow(first.run_rows(rows))
        if newest != NO_WATERMARK and newest - self._bound - 1 > first.watermark:
            emitted += self.advance_watermark(newest - self._bound - 1)
        return emitted

    def run_rows(self, rows: dict[str, list[Row]], *, to: int = NO_WATERMARK, **more: Any) -> list[Emission]:
        """Run one batch of rows of the first process through all; see :meth:`MemoryHost.run_rows`."""
        first = self.hosts[0]
        first.move(rows, to, **more)
        emitted = first.taken()
        done = self._follow([e for e in emitted if not e.on_time & IS_AHEAD])
        for host in self.hosts[1:]:
            host.watermark = max(host.watermark, to)
        return done + self._follow([e for e in emitted if e.on_time & IS_AHEAD])

    def run_bounded(self, events: Iterable[Event]) -> list[Emission]:
        """Run a bounded input: each process over all that it is given, to the end of its timers."""
        return self._follow(self.hosts[0].run_bounded(events), bounded=True)

    def advance_watermark(self, to: int) -> list[Emission]:
        """Move the watermark of all processes to ``to`` (ms) and fire the timers it passes."""
        for host in self.hosts[1:]:
            host.watermark = max(host.watermark, to)
        first = self.hosts[0]
        first.move({}, to)
        return self._follow(first.taken())

    def advance_processing_time(self, to: int) -> list[Emission]:
        """Bring a tick (ms) to all processes that use processing time, in the order of the links."""
        ticking = [host for host in self.hosts if host.runner.process.needs_ticks()]
        for host in ticking:
            host.processing_time = max(host.processing_time, to)
        first = self.hosts[0]
        first.step({}, tick=first in ticking)
        return self._follow(first.take(), ticking)

    def broadcast(self, *controls: Any, at: int | None = None) -> list[Emission]:
        """Bring control events to all processes that take any; see :meth:`MemoryHost.broadcast`."""
        found: list[Emission] = []
        for place, host in enumerate(self.hosts):
            if host.runner.process.control_type is not None:
                emitted = host.broadcast(*controls, at=at)
                found += self._follow(emitted, after=place)
        return found

    def drain(self) -> list[Emission]:
        """End a bounded input, in the order of the links."""
        return self.advance_watermark(END_OF_TIME)

    def snapshot(self) -> bytes:
        """Return everything that is kept, packed; :meth:`restore` on a new chain goes on from it."""
        return msgspec.msgpack.encode([host.snapshot() for host in self.hosts])

    def restore(self, snapshot: bytes) -> None:
        """Go on in new hosts from a :meth:`snapshot`, also of earlier versions of the processes."""
        self.hosts = self._made()
        for host, kept in zip(self.hosts, msgspec.msgpack.decode(snapshot, type=list[bytes]), strict=True):
            host.restore(kept)

    def restart(self) -> None:
        """Go on in new hosts from what the old ones have kept."""
        self.restore(self.snapshot())

    def is_empty(self) -> bool:
        """Return whether no state and no timer is kept for any key of any process."""
        return not any(host.store.cells for host in self.hosts)

    def _follow(
        self,
        emissions: list[Emission],
        ticking: Sequence[MemoryHost] = (),
        *,
        after: int = 0,
        bounded: bool = False,
    ) -> list[Emission]:
        """Bring what a process emitted, and a tick to some, through those behind it.

        Args:
            emissions: What it emitted.
            ticking: The hosts that get a tick.
            after: Its place; the processes behind it run.
            bounded: Whether that is all that they will be given.
        """
        done: list[Emission] = []
        by_output: dict[tuple[str, str], list[Emission]] = {}
        self._sort(self.hosts[after], emissions, by_output, done)
        for place in range(after + 1, len(self.hosts)):
            host = self.hosts[place]
            rows: dict[str, list[Row]] = {}
            for take in self._takes[place]:
                for e in by_output.get(take.source, ()):
                    self._bring(e, take, host, rows)
            if bounded:
                host.runner.run_bounded(host.store, rows, self._bound)
            else:
                host.step(rows, tick=host in ticking)
            self._sort(host, host.take(), by_output, done)
        return done

    def _sort(
        self,
        host: MemoryHost,
        emissions: list[Emission],
        by_output: dict[tuple[str, str], list[Emission]],
        done: list[Emission],
    ) -> None:
        """Put what a process emitted where it goes on, and where it comes out."""
        name = host.runner.process.name
        for e in emissions:
            source = name, e.output
            if source in self._goes_on:
                by_output.setdefault(source, []).append(e)
            full = self._outputs.get(source)
            if full is not None:
                as_it_is = full == e.output and not e.on_time & IS_AHEAD
                done.append(e if as_it_is else e._replace(output=full, on_time=bool(e.on_time & 1)))

    def _bring(self, e: Emission, take: _Take, host: MemoryHost, rows: dict[str, list[Row]]) -> None:
        if self._records:
            event: Any = e.payload
            raw = take.mark and take.mark + event_json(event)
        else:
            raw = take.mark + e.payload
            try:
                event = host.decode(raw)
            except NOT_JSON as error:  # such as NaN, for which JSON has null
                host.runner.dead_letter(reason_of(error), "decode", error, raw, e.event_id,
                                        event_time=e.event_time)  # fmt: skip
                return
        keyed = event if take.decoder is None or self._records else take.decoder.decode(e.payload)
        try:
            key = take.key(keyed)
        except KeyingError:
            said = "the event has no key"
            host.runner.dead_letter("schema", "time", said, raw, e.event_id, event_time=e.event_time)
            return
        row = Row(e.event_time, raw, e.event_id, event, on_time=bool(e.on_time & 1))
        rows.setdefault(key, []).append(row)


class _Take(NamedTuple):
    """What a process takes of another one.

    Attributes:
        source: Name of the other one, and its output.
        key: Finds the text of a record's key.
        mark: What leads its events, to say by which input they come.
        decoder: Of the records as they were emitted, where the events have not the fields of the key.
    """

    source: tuple[str, str]
    key: Callable[[Any], str]
    mark: bytes
    decoder: msgspec.json.Decoder[Any] | None


def event_of(topology: Topology, event: Any, input: str | None = None) -> Event:
    """Return an event with its key and time, as a topology says where they are.

    Args:
        topology: The topology.
        event: The event.
        input: The input it comes by, where its type does not tell.

    Raises:
        KeyingError: It has no key or no time.
        InputError: Nothing tells its input.
    """
    name = input or topology.input_of(event)
    at = topology.time_of(event, name)
    if at == NO_WATERMARK:
        raise KeyingError(f"a {type(event).__name__} has no {topology.inputs[name].event_time}")
    key = decode_key(topology.key_of(event, name))
    whose = key[0] if len(key) == 1 else key
    return (whose, at, event, name) if name else (whose, at, event)


def _take(topology: Topology, process: KeyedProcess[Any, Any], taken: Taken) -> _Take:
    mark, tp = b"", process.event_type
    if process.inputs:
        mark, tp = mark_of(list(process.inputs).index(taken.input)), process.inputs[taken.input]
    emitted = output_types(topology.link(taken.link).process)[taken.output]
    decoder = None if has_fields(tp, taken.key) else msgspec.json.Decoder(emitted)
    return _Take((taken.link, taken.output), key_reader(emitted, taken.key), mark, decoder)


def _chain(
    first: KeyedProcess[Any, Any],
    links: Sequence[tuple[str | tuple[str, ...], KeyedProcess[Any, Any]]],
) -> Topology:
    """Return a chain by hand, whose first process is given events by their keys."""
    topology = Topology({}, (Link(first),))
    for by, process in links:
        topology = topology.key_by(by).process(process)
    return topology
