"""All links of a topology in one place: what a chain does in several operators, one task does in turn.

A chain moves what a link emits to the next one by a shuffle, and every link is an operator with a state store
of its own. A station has the state of all links in one store, runs the key groups of each link that have
something to do, gives what they emit new keys in memory, and goes on to the next link. What it keeps of a key
group are the same bytes that a chain keeps; the clock, processing time and broadcast state, of which each key
group of a chain has a copy, stand once per link.

Pages stay at hand from batch to batch. Each batch writes a *token* with them: only who finds its own token in
the store has what is kept there, and nobody else's batch has come between.

A topology whose keys all begin with one field, its *locality*, may have several stations: all that is of one
locality is in one of them, and goes from link to link there. Each is told all that moves the clock.

Nothing here knows an engine: a :class:`StationStore` holds bytes.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from millrace.errors import UserError
from millrace.host.chunks import (
    CONTROL,
    WATERMARK,
    InputChunk,
    encode_emissions,
    encode_status,
)
from millrace.host.garbage_collection import collector_paused
from millrace.host.groups import group_labels, locality_of
from millrace.host.intake import Brought, Handed, Intake, JsonEvents, control_order, moved
from millrace.host.key_times import KeyTimes
from millrace.host.rows import Emission, Row
from millrace.host.runner import Runner, StreamTime
from millrace.inputs import mark_of
from millrace.object_reuse import changeable_in
from millrace.outputs import output_types
from millrace.process import KeyedProcess
from millrace.state.cells import CLOCK_PAGE, StateCorrupted, encode, read_clock
from millrace.state.envelope import Place, unwrap, wrap
from millrace.state.keyring import KeyReference, Keyring
from millrace.state.pages import PagedStore
from millrace.time import NO_WATERMARK
from millrace.time.clock import ClockSettings, ClockState, ClockStatus
from millrace.topology import Topology
from millrace.topology.keys import KeyingError, key_reader, key_types, structs_of

#: Name of the state variable that has it all.
VARIABLE: Final = "station"
#: Where a value is: number of the link, label of the key group, number of the page.
At = tuple[int, int, int]
#: Numbers that stand for what is not a page, and the label of what all key groups of a link share.
HEADER: Final = -1
BROADCAST: Final = -2
SHARED: Final = -1
#: Where the token stands: it is of no link.
TOKEN: Final[At] = (-1, SHARED, 0)
#: A page that grows past this many bytes is split in two. A small batch changes an entry of each page that it
#: writes: with small ones it writes less, and reads none, since pages stay at hand.
STATION_PAGE_BYTES: Final = 4_096
#: A key group's log of changes may become so long before its pages are written.
LOG_BYTES: Final = 1 << 20
#: So many bytes of pages stay at hand, unless told otherwise.
KEPT_BYTES: Final = 256 << 20
#: So many records of an output go into one chunk.
_RECORDS: Final = 20_000
#: The localities of so many keys are remembered.
_REMEMBERED: Final = 65_536


class LocalityError(UserError):
    """A record has another locality than the key that it came from, and cannot get to its station."""


class StationStore(Protocol):
    """Where a station's bytes are kept; what is written counts when the batch is committed."""

    def read(self, places: Sequence[At]) -> list[bytes | None]:
        """Return the values of some places, in that order; ``None`` where there is none."""

    def write(self, place: At, data: bytes) -> None:
        """Write a value."""

    def remove(self, place: At) -> None:
        """Remove a value."""

    def push(self) -> None:
        """Let the engine go to work on what was written, without waiting for it."""

    def flush(self) -> None:
        """Send what was written, and wait until it is taken."""


class Onward(NamedTuple):
    """Where records of an output go on to.

    Attributes:
        link: Number of the link that takes them.
        keys: Fields of the records that make the key, with their types.
        mark: What leads its records, to say by which input they come.
        reused: Classes of records that it is given as they are; the others are written as JSON and read.
    """

    link: int
    keys: tuple[tuple[str, Any], ...]
    mark: bytes = b""
    reused: frozenset[type] = frozenset()


@dataclass(frozen=True)
class StationLink:
    """A link as a station runs it.

    Attributes:
        process: The process.
        events: How its events are read.
        key_groups: Number of its key groups.
        onward: Output → who takes it.
        names: Output → name under which it comes out; outputs that stand not here do not.
    """

    process: KeyedProcess[Any, Any]
    events: JsonEvents
    key_groups: int
    onward: Mapping[str, tuple[Onward, ...]]
    names: Mapping[str, str]


class Head(msgspec.Struct, array_like=True):
    """What stands beside the links: the token of the last batch, and the last tick of each link, ms."""

    token: bytes
    ticks: list[int | None]


class _Kept:
    """The store of the running batch; values are in clear here and sealed there.

    Args:
        names: Names of the processes, which seals are bound to.
        station: Number of the station.
    """

    def __init__(self, names: Sequence[str], station: int) -> None:
        self._names = names
        self._station = station
        self._fetched: dict[At, bytes | None] = {}
        self._store: StationStore | None = None
        self._ring: Keyring | None = None

    def begin(self, store: StationStore, ring: Keyring | None) -> None:
        """Begin a batch.

        Args:
            store: Where everything is.
            ring: The keys; ``None``: values get a checksum.
        """
        self._store, self._ring = store, ring
        self._fetched.clear()

    def fetch(self, places: Iterable[At]) -> None:
        """Read values that are asked for next, all at once."""
        wanted = list(places)
        self._fetched.update(zip(wanted, self.read(wanted), strict=True))

    def read(self, places: Sequence[At]) -> list[bytes | None]:
        """Return some values; ``None`` where there is none."""
        assert self._store is not None  # noqa: S101  (begin() has been called)
        return [
            None if data is None else unwrap(data, self._place(place), self._ring)
            for place, data in zip(places, self._store.read(places), strict=True)
        ]

    def get(self, place: At) -> bytes | None:
        """Return a value; ``None`` where there is none."""
        return self._fetched.pop(place) if place in self._fetched else self.read([place])[0]

    def put(self, place: At, data: bytes) -> None:
        """Write a value."""
        assert self._store is not None  # noqa: S101
        self._store.write(place, wrap(data, self._place(place), self._ring))

    def remove(self, place: At) -> None:
        """Remove a value."""
        assert self._store is not None  # noqa: S101
        self._store.remove(place)

    def push(self) -> None:
        """Let the engine go to work on what was written."""
        assert self._store is not None  # noqa: S101
        self._store.push()

    def _place(self, at: At) -> Place:
        link, label, number = at
        return place_of(self._names[link], label, number, self._station)


def place_of(process: str, label: int, number: int, station: int = 0) -> Place:
    """Return what a value is bound to, by its number.

    >>> str(place_of("Cards", 7, HEADER)), str(place_of("Cards", 7, 3, station=1))
    ('the header of key group 7 of Cards', 'page 3 of key group 7 of Cards in station 1')
    """
    if station:  # the first one has what the only one has
        process = f"{process} in station {station}"
    if number == HEADER:
        return Place(process, label, "header")
    return (
        Place(process, label, "broadcast") if number == BROADCAST else Place(process, label, "page", number)
    )


class _Group:
    """The bytes of one key group."""

    __slots__ = ("_kept", "_label", "_link")

    def __init__(self, kept: _Kept, link: int, label: int) -> None:
        self._kept, self._link, self._label = kept, link, label

    def get_header(self) -> bytes | None:
        return self._kept.get((self._link, self._label, HEADER))

    def put_header(self, header: bytes) -> None:
        self._kept.put((self._link, self._label, HEADER), header)

    def clear(self) -> None:
        self._kept.remove((self._link, self._label, HEADER))

    def get_page(self, page: int) -> bytes:
        return self.get_pages([page])[0]

    def get_pages(self, pages: Sequence[int]) -> list[bytes]:
        link, label = self._link, self._label
        found = self._kept.read([(link, label, page) for page in pages])
        for page, data in zip(pages, found, strict=True):
            if data is None:
                raise StateCorrupted(f"page {page} of key group {label} of link {link} is missing")
        return found  # type: ignore[return-value]

    def find_pages(self, pages: Sequence[int]) -> list[bytes | None]:
        link, label = self._link, self._label
        return self._kept.read([(link, label, page) for page in pages])

    def put_page(self, page: int, data: bytes) -> None:
        self._kept.put((self._link, self._label, page), data)

    def delete_page(self, page: int) -> None:
        self._kept.remove((self._link, self._label, page))


class Station:
    """Runs the links of a topology; one lives as long as its worker.

    Args:
        links: The links, in order.
        keys: Where the keys are that state is encrypted with; ``None``: it is kept in clear.
        kept_bytes: So many bytes of pages stay at hand, of all stations together.
        number: Which of the stations it is; the first one speaks for all.
        stations: How many there are.
    """

    def __init__(
        self,
        links: Sequence[StationLink],
        keys: KeyReference | None = None,
        *,
        kept_bytes: int = KEPT_BYTES,
        number: int = 0,
        stations: int = 1,
    ) -> None:
        self._keys = keys
        self._speaks = number == 0
        self._kept = _Kept([link.process.stored_as for link in links], number)
        self._most_pages = kept_bytes // stations // STATION_PAGE_BYTES
        taken = any(link.events.control_type is not None for link in links)
        self._links = [
            _RunningLink(
                place,
                link,
                self._kept,
                last=place == len(links) - 1,
                stays=stations > 1,
                speaks=self._speaks,
                refuses=not taken,
            )
            for place, link in enumerate(links)
        ]
        self._token = b""

    def run(
        self, chunks: Iterable[InputChunk], store: StationStore, settings: ClockSettings
    ) -> Iterator[tuple[str, int, bytes]]:
        """Run one batch.

        Args:
            chunks: What came, with reports of what was read.
            store: Where the state is.
            settings: What the clock goes by.

        Yields:
            An output, how many records of it, and these as a chunk; of several stations one tells the clock.

        Raises:
            LocalityError: A record would have to go to another station.
        """
        token, self._token = self._token, b""
        (stored,) = store.read([TOKEN])
        head = Head(b"", [None] * len(self._links)) if stored is None else read_head(stored)
        known = bool(token) and head.token == token
        ring = None if self._keys is None else self._keys.ring()
        self._kept.begin(store, ring)
        if not known:
            self._kept.fetch(place for link in self._links for place in link.beginning())
            for link, tick in zip(self._links, head.ticks, strict=True):
                link.begin(tick)
        brought = Brought(speaks=self._speaks, hands_on=True)
        self._links[0].read(chunks, brought)
        coming: list[list[InputChunk | Handed]] = [[] for _ in self._links]
        status: ClockStatus | None = None
        out: dict[str, list[Emission]] = {}
        with collector_paused():  # once for all key groups
            for place, link in enumerate(self._links):
                if place:
                    brought = Brought(speaks=self._speaks, hands_on=True)
                    brought.status = status
                    link.read(coming[place], brought)
                status = link.run(brought, settings if place == 0 else None)
                for onward, chunk in link.emit(out):
                    coming[onward].append(chunk)
                if brought.forwarded and place + 1 < len(self._links):
                    raws, causes, headers, times = map(list, zip(*brought.forwarded, strict=True))
                    count = len(raws)
                    kinds = bytes([CONTROL]) * count
                    coming[place + 1].append(InputChunk([None] * count, times, kinds, causes, headers, raws))
        head.token = os.urandom(12)
        head.ticks = [None if link.tick == NO_WATERMARK else link.tick for link in self._links]
        store.write(TOKEN, encode(head))
        store.flush()
        self._trim()
        self._token = head.token
        for output, emissions in out.items():
            for low in range(0, len(emissions), _RECORDS):
                for _, records, packed in encode_emissions(emissions[low : low + _RECORDS]):
                    yield output, records, packed
        assert status is not None  # noqa: S101  (a topology has a link)
        if self._speaks:
            yield WATERMARK, 0, encode_status(status)

    def _trim(self) -> None:
        """Keep no more at hand than may be: each link gives up the same share of what it has."""
        pages = [link.pages_at_hand for link in self._links]
        if (total := sum(pages)) > self._most_pages:
            for link, count in zip(self._links, pages, strict=True):
                link.trim(self._most_pages * count // total)


read_head = msgspec.msgpack.Decoder(Head).decode


class _RunningLink:
    """A link at work.

    Args:
        place: Its number.
        link: The link.
        kept: Where its bytes are.
        last: Whether none comes after it.
        stays: Whether what it emits must stay in its locality.
        speaks: Whether it tells what all stations find alike.
        refuses: Whether no link takes control events.
    """

    def __init__(
        self,
        place: int,
        link: StationLink,
        kept: _Kept,
        *,
        last: bool,
        stays: bool,
        speaks: bool,
        refuses: bool,
    ) -> None:
        process = link.process
        self._stays, self._speaks = stays, speaks
        self._place = place
        self._kept = kept
        self._name = process.name
        self._labels = group_labels(link.key_groups)
        self._names = link.names
        #: Output → classes of records that nobody reads as JSON.
        bare = {
            output: frozenset.intersection(*(to.reused for to in takers))
            for output, takers in link.onward.items()
            if output not in link.names
        }
        self._runner = Runner(process, encode=msgspec.json.encode, decode=link.events.event, bare=bare)
        self._intake = Intake(process, link.events, self._runner, forwards=not last, refuses=refuses)
        self._onward = {output: [_Taker(to) for to in takers] for output, takers in link.onward.items()}
        self._uses_ticks = process.needs_ticks()
        self._has_broadcast = process.keeps_broadcast()
        self._clock = ClockState()
        #: The last tick of processing time, ms.
        self.tick = NO_WATERMARK
        self._broadcast: bytes | None = None
        #: When each key group has something to do that no row brings.
        self._wake: dict[int, Wake] = {}
        #: The key groups that are at hand.
        self._stores: dict[int, PagedStore] = {}
        #: The key groups in turn: the log of each ends when nobody has come to it for so many batches.
        self._turns = itertools.cycle(self._labels)
        self._begins = True
        #: Key that emits → its locality, as far as they are remembered.
        self._localities: dict[str, str] = {}

    def beginning(self) -> Iterator[At]:
        """Yield what is read when nothing is at hand."""
        place = self._place
        yield place, SHARED, CLOCK_PAGE
        if self._has_broadcast:
            yield place, SHARED, BROADCAST
        for label in self._labels:
            yield place, label, HEADER

    def begin(self, tick: int | None) -> None:
        """Begin with what the store has.

        Args:
            tick: The last tick, ms.
        """
        clock = self._kept.get((self._place, SHARED, CLOCK_PAGE))
        self._clock = ClockState() if clock is None else read_clock(clock)
        self._runner.layout.lag_ms = self._clock.lag_ms
        self.tick = NO_WATERMARK if tick is None else tick
        self._broadcast = self._kept.get((self._place, SHARED, BROADCAST)) if self._has_broadcast else None
        self._wake.clear()
        self._stores.clear()
        # What a batch that was cut off has emitted is emitted again.
        self._runner.emissions, self._runner.controls.late = [], 0
        # Which groups have something to do is known when all have been looked at.
        self._begins = True

    def read(self, chunks: Iterable[InputChunk | Handed], brought: Brought) -> None:
        """Read what has come."""
        for chunk in chunks:
            if isinstance(chunk, Handed):
                self._intake.take(chunk, brought)
            else:
                self._intake.read(chunk, brought)

    def run(self, brought: Brought, settings: ClockSettings | None) -> ClockStatus:
        """Run the key groups that have something to do.

        Args:
            brought: What the batch brought.
            settings: What the clock goes by; ``None``: it is that of the link before.

        Returns:
            How far the clock is.
        """
        runner, before = self._runner, self._clock
        after, status = moved(self._name, before, settings, brought)
        if after != before:
            self._kept.put((self._place, SHARED, CLOCK_PAGE), encode(after))
            self._clock = after
        watermark, ahead = before.own(), after.own()
        runner.layout.lag_ms = after.lag_ms
        tells = after.lag_ms != before.lag_ms and runner.layout.streams
        bound_ms = 0 if settings is None else settings.bound_ms
        time = StreamTime(status.before, status.watermark, status.reach, bound_ms, brought.newest)
        tick = self._uses_ticks and brought.tick > self.tick
        if tick:
            self.tick = brought.tick
        kept = self._take_controls(brought, watermark)
        of_group: dict[int, dict[str, list[Row]]] = {}
        labels = self._labels
        count = len(labels)
        for key, rows in brought.by_key.items():
            label = labels[zlib.crc32(key.encode()) % count]
            of_group.setdefault(label, {})[key] = rows
        if self._begins or tells:
            wanted: Sequence[int] = labels
        else:
            due = [label for label, wake in self._wake.items() if wake.is_due(ahead, self.tick)]
            wanted = [*of_group, *(label for label in due if label not in of_group)]
        self._begins = False
        for label in wanted:
            store = self._store(label)
            if tells:
                store.tell_again()
            rows_of = of_group.get(label) or {}
            runner.run_batch(store, rows_of, watermark, self.tick, tick=tick, ahead=ahead, time=time)
            store.commit(ahead, self.tick)
            self._kept.push()
            wake = Wake(*store.wakes())
            if wake == _NEVER:
                self._wake.pop(label, None)
            else:
                self._wake[label] = wake
        turn = next(self._turns)
        if turn not in of_group:
            self._store(turn).end_log()
            self._kept.push()
        if self._has_broadcast:
            self._keep_controls(kept, runner.controls.pass_(kept, ahead, report=self._speaks))
        late, runner.controls.late = runner.controls.late, 0
        if late:
            status = msgspec.structs.replace(status, control_late=status.control_late + late)
        return status

    def _store(self, label: int) -> PagedStore:
        """Return the store of a key group, with the pages that it has read and written in batches before."""
        store = self._stores.pop(label, None)
        if store is None:
            group = _Group(self._kept, self._place, label)
            store = PagedStore(
                group,
                self._runner.layout,
                page_bytes=STATION_PAGE_BYTES,
                label=label,
                log_bytes=LOG_BYTES,
            )
        # The latest used stand last.
        self._stores[label] = store
        return store

    @property
    def pages_at_hand(self) -> int:
        """How many pages it has at hand."""
        return sum(store.pages_at_hand for store in self._stores.values())

    def trim(self, most_pages: int) -> None:
        """Let go of the key groups that nobody has come to in a long time, until so few pages are left."""
        pages = {label: store.pages_at_hand for label, store in self._stores.items()}
        total = sum(pages.values())
        for label, count in pages.items():
            if total <= most_pages:
                return
            del self._stores[label]
            total -= count

    def _take_controls(self, brought: Brought, watermark: int) -> bytes | None:
        """Take control events; return what is to be kept of them so far."""
        controls, stored = self._runner.controls, self._broadcast
        if not brought.controls:
            controls.load(stored)
            return stored
        brought.controls.sort(key=control_order)
        changed = controls.take(brought.controls, stored, watermark, report=self._speaks)
        return stored if changed is None else changed

    def _keep_controls(self, kept: bytes | None, passed: bytes | None) -> None:
        kept = kept if passed is None else passed
        if kept is not None and kept != self._broadcast:
            self._kept.put((self._place, SHARED, BROADCAST), kept)
            self._broadcast = kept

    def emit(self, out: dict[str, list[Emission]]) -> Iterator[tuple[int, InputChunk | Handed]]:
        """Put what comes out where it belongs, and yield what goes on, with the number of the link.

        Args:
            out: What comes out so far, by name.
        """
        emissions, self._runner.emissions = self._runner.emissions, []
        by_output: dict[str, list[Emission]] = {}
        for emission in emissions:
            of = by_output.get(emission[0])
            if of is None:
                by_output[emission[0]] = [emission]
            else:
                of.append(emission)
        for output, records in by_output.items():
            name = self._names.get(output)
            if name is not None:
                out.setdefault(name, []).extend(records)
            takers = self._onward.get(output)
            if not takers:
                continue
            for taker in takers:
                for keys, chunk, own in taker.chunks(records):
                    if self._stays:
                        self._check_localities(output, own, keys)
                    yield taker.link, chunk

    def _check_localities(self, output: str, own: Sequence[str], keys: Sequence[str | None]) -> None:
        """Refuse records that are of another locality than the key that emitted them."""
        localities = self._localities
        for key, new in zip(own, keys, strict=True):
            if new is None:
                continue  # it becomes a dead letter where it is
            here = localities.get(key)
            if here is None:
                if len(localities) >= _REMEMBERED:
                    localities.clear()
                here = localities[key] = locality_of(key) if key else ""
            if not here or not new.startswith(here):
                found, was = locality_of(new), here or "none"
                raise LocalityError(
                    f"{self._name}.{output} has a record of the locality {found}, from a key of {was}: with "
                    "several stations a record goes on in the one that made it. Let it keep its locality, or "
                    "have one station or a chain (stream.stations=1, stream.plan=chain)"
                )


class _Taker:
    """What a link is given of an output.

    Args:
        to: Who takes what.
    """

    def __init__(self, to: Onward) -> None:
        self.link, self._mark = to.link, to.mark
        self._reader = KeyTimes(to.keys, ("", int), 1)
        self._names = [name for name, _ in to.keys]
        self._key_of: dict[type, Callable[[Any], str]] = {}

    def chunks(
        self, records: list[Emission]
    ) -> Iterator[tuple[Sequence[str | None], InputChunk | Handed, list[str]]]:
        """Yield the records with their keys by this link, and with those that emitted them."""
        written: list[Emission] = []
        keys: list[str] = []
        handed: list[Emission] = []
        for record in records:
            payload = record.payload
            kind = payload.__class__
            if kind is bytes:
                written.append(record)
                continue
            try:
                key_of = self._key_of.get(kind) or self._reader_of(kind)
                keys.append(key_of(payload))
            except KeyingError:
                # It becomes a dead letter where its bytes are read.
                written.append(record._replace(payload=msgspec.json.encode(payload)))
            else:
                handed.append(record)
        if handed:
            _, causes, own, times, on_time, events = map(list, zip(*handed, strict=True))
            yield keys, Handed(keys, times, causes, events, on_time, self._mark), own
        if written:
            yield self._as_json(written)

    def _reader_of(self, kind: type) -> Callable[[Any], str]:
        reader = self._key_of[kind] = key_reader(kind, self._names)
        return reader

    def _as_json(self, records: list[Emission]) -> tuple[Sequence[str | None], InputChunk, list[str]]:
        mark = self._mark
        _, causes, own, times, on_time, payloads = map(list, zip(*records, strict=True))
        keys, _, _ = self._reader.read(payloads, None, {})
        values = [mark + payload for payload in payloads] if mark else payloads
        return keys, InputChunk(keys, times, None, causes, None, values, bytes(on_time)), own


class Wake(NamedTuple):
    """When a key group has something to do without a row; ``None``: never.

    Attributes:
        timer: Its first timer, ms.
        expiry: When the first of its values is removed, ms.
        processing_timer: Its first timer on processing time, ms.
        processing_expiry: When the first of its values is removed by processing time, ms.
    """

    timer: int | None
    expiry: int | None
    processing_timer: int | None
    processing_expiry: int | None

    def is_due(self, watermark: int, tick: int) -> bool:
        """Return whether it has, at a watermark and a tick of processing time (ms)."""
        timer, expiry, processing_timer, processing_expiry = self
        return (
            (timer is not None and timer <= watermark)
            or (expiry is not None and expiry <= watermark)
            or (processing_timer is not None and processing_timer <= tick)
            or (processing_expiry is not None and processing_expiry <= tick)
        )


_NEVER: Final = Wake(None, None, None, None)


def outputs_of_links(
    topology: Topology,
) -> tuple[list[dict[str, str]], list[dict[str, tuple[Onward, ...]]]]:
    """Return for each link under which names its outputs come out, and by which links they are taken."""
    names: list[dict[str, str]] = [{} for _ in topology.links]
    onward: list[dict[str, tuple[Onward, ...]]] = [{} for _ in topology.links]
    places = {link.name: place for place, link in enumerate(topology.links)}
    for full, (process, output) in topology.outputs.items():
        names[places[process.name]][output] = full
    for place, link in enumerate(topology.links):
        inputs = list(link.process.inputs)
        for taken in link.takes:
            owner = topology.link(taken.link).process
            emitted = output_types(owner)[taken.output]
            kinds = key_types(owner.name, emitted, taken.key)
            mark = mark_of(inputs.index(taken.input)) if inputs else b""
            wanted = link.process.inputs[taken.input] if inputs else link.process.event_type
            reused = _reused(owner, emitted, wanted)
            of = onward[places[taken.link]]
            of[taken.output] = (*of.get(taken.output, ()), Onward(place, tuple(kinds.items()), mark, reused))
    return names, onward


def _reused(owner: KeyedProcess[Any, Any], emitted: Any, wanted: Any) -> frozenset[type]:
    """Return the classes of records that may go on as they are."""
    if not owner.object_reuse:
        return frozenset()
    emits, reads = ({struct.cls for struct in structs_of(tp)} for tp in (emitted, wanted))
    return frozenset(of for of in emits & reads if not changeable_in(of))
