"""Selection of the aggregations that an event is for, and its reduction to their key and numbers."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import msgspec

from millrace import Context, KeyedProcess, arrival, broadcast_state, map_state
from millrace.defined_process import class_for
from millrace.process import BroadcastContext
from millrace.rules import Language
from millrace.windows.assigners import Ranges
from millrace_apps.aggregates.definition import MAX_TEXT, PARTS, AggregationError, check, columns_of
from millrace_apps.aggregates.life import AggregateEvent, Version, Versions, change


class Source(NamedTuple):
    """A topic whose events may be aggregated.

    Attributes:
        topic: Its name.
        type: Type of its events.
        identity: The field that says which event it is, by which repeats are known; empty: there is none.
    """

    topic: str
    type: Any
    identity: str = ""


class Picked(msgspec.Struct, frozen=True, gc=False):
    """An event as one aggregation sees it.

    Attributes:
        name: The aggregation.
        version: Its version.
        shard: Which part of its keys.
        key: Its key: a JSON list of texts and nulls.
        values: The numbers that its aggregates are of; of what is counted 1 where it is there, of what is
            counted once a number for each value (:func:`digest`), of a text nothing.
        texts: The texts that its aggregates are of, in the places of the values that are none; empty where
            none are.
    """

    name: str
    version: int
    shard: int
    key: str
    values: list[float | None]
    texts: list[str | None] = []

    @property
    def seen(self) -> Sequence[float | str | None]:
        """What its aggregates are of, numbers and texts in their places."""
        if not self.texts:
            return self.values
        return [v if t is None else t for v, t in zip(self.values, self.texts, strict=True)]


class _Ready(NamedTuple):
    """A version, ready to be asked."""

    version: Version
    ranges: Callable[[int], list[tuple[int, int]]] | None
    holds: Callable[[Any], bool]
    keys: tuple[Callable[[Any], Any], ...]
    values: tuple[Callable[[Any], Any], ...]
    has_texts: bool

    def takes(self, event: Any, at: int) -> bool:
        has = self.version.has
        mine = has(at) if self.ranges is None else any(has(start) for start, _ in self.ranges(at))
        return mine and self.holds(event)


class Selecting(KeyedProcess[Any, Picked]):
    """Gives each event to the aggregations that it is for; an event that comes again is given once.

    Args:
        sources: Input → its topic.
        once_ms: For how long (event time, ms) an event is known again.
    """

    order = arrival(commutes=True)
    control_type = AggregateEvent
    definition: ClassVar[Any] = None

    aggregations = broadcast_state(str, Versions)

    def __init__(self, sources: Mapping[str, Source], once_ms: int) -> None:
        self._sources, self._once_ms = dict(sources), once_ms
        self._types = {source.topic: source.type for source in sources.values()}
        self._make = partial(_ready, self._types)

    def __reduce__(self) -> Any:
        return selecting, (self._sources, self._once_ms)

    def process(self, event: Any, ctx: Context) -> None:
        """Give an event on."""
        source = self._sources[ctx.input]
        ready = self.aggregations.view(self._make).get(source.topic)
        if not ready:
            return
        at = ctx.event_time
        wanted = [one for one in ready if one.takes(event, at)]
        if not wanted or self._is_repeat(event, source):
            return
        for one in wanted:
            name = one.version.aggregation.name
            key = msgspec.json.encode([get(event) for get in one.keys]).decode()
            shard = zlib.crc32(f"{name} {key}".encode()) % PARTS
            values, texts = [get(event) for get in one.values], list[str | None]()
            if one.has_texts:
                texts = [value if isinstance(value, str) else None for value in values]
                values = [None if isinstance(value, str) else value for value in values]
            ctx.emit(Picked(name, one.version.number, shard, key, values, texts))

    def on_late(self, event: Any, ctx: Context) -> None:
        """Give an event on that is late: its windows may take it yet."""
        self.process(event, ctx)

    def process_broadcast(self, control: AggregateEvent, ctx: BroadcastContext) -> None:
        """Take what is published or removed."""
        take(self.aggregations, control, self._types, ctx.watermark)

    def _is_repeat(self, event: Any, source: Source) -> bool:
        if not source.identity:
            return False
        told = getattr(event, source.identity)
        if told is None:
            return False
        identity = f"{source.topic} {told}"
        if self.seen.get(identity) is not None:  # type: ignore[attr-defined] # by the class that is made
            return True
        self.seen.put(identity, True)  # type: ignore[attr-defined]
        return False


def selecting(sources: Mapping[str, Source], once_ms: int) -> Selecting:
    """Return the process for some sources.

    Args:
        sources: Input → its topic.
        once_ms: For how long (event time, ms) an event is known again.
    """
    inputs = {name: source.type for name, source in sources.items()}
    made = class_for(
        Selecting,  # type: ignore[arg-type] # it is made of a definition as those are
        name="Selecting",
        inputs=inputs,
        seen=map_state(str, bool, ttl=once_ms),
    )
    found: Selecting = made(sources, once_ms)
    return found


def take(states: Any, control: AggregateEvent, types: Mapping[str, Any], watermark: int) -> None:
    """Write into a broadcast state what a control event makes of it.

    Raises:
        AggregationError: It is refused.
    """
    for name, versions in list(change(control, dict(states.items()), types, watermark)):
        if versions is None:
            states.remove(name)
        else:
            states.put(name, versions)


def _ready(types: Mapping[str, Any], entries: list[tuple[str, Versions]]) -> dict[str, list[_Ready]]:
    found: dict[str, list[_Ready]] = {}
    for _, versions in sorted(entries):
        for version in versions:
            aggregation = version.aggregation
            try:
                check(aggregation, types)
            except AggregationError:
                continue  # the job was begun again without that topic, or its events have that field no more
            there = columns_of(types[aggregation.source])
            where, kind = aggregation.where, aggregation.windows.assigner()
            ranges = kind.ranges if isinstance(kind, Ranges) else None
            holds = Language(there).condition(where).holds if where else _always
            keys = tuple(_text_of(field) for field in aggregation.key)
            texts = aggregation.texts_of([f for f, about in there.items() if about.type == "text"])
            values = tuple(
                _which(field)
                if once
                else attrgetter(field)
                if there[field].type == "number"
                else _start_of(field)
                if field in texts
                else _is_there(field)
                for field, once in aggregation.values
            )
            found.setdefault(aggregation.source, []).append(
                _Ready(version, ranges, holds, keys, values, bool(texts))
            )
    return found


def _always(_: Any) -> bool:
    return True


def _text_of(field: str) -> Callable[[Any], str | None]:
    get = attrgetter(field)

    def text(event: Any) -> str | None:
        value = get(event)
        if value is None or isinstance(value, str):
            return value
        return str(value).lower() if isinstance(value, bool) else str(value)

    return text


def _is_there(field: str) -> Callable[[Any], float | None]:
    get = attrgetter(field)
    return lambda event: None if get(event) is None else 1.0


def _start_of(field: str) -> Callable[[Any], str | None]:
    get = attrgetter(field)
    return lambda event: None if (text := get(event)) is None else text[:MAX_TEXT]


def _which(field: str) -> Callable[[Any], float | None]:
    get = attrgetter(field)
    return lambda event: digest(get(event))


def digest(value: Any) -> float | None:
    """Return a number that stands for a value: 53 bits of its BLAKE2b, as a float; of nothing ``None``.

    Of a million values two have one number once in 18,000 times. Whole numbers are the same as floats.

    >>> digest(3) == digest(3.0) != digest("3"), digest(0.0) == digest(-0.0), digest(float("nan"))
    (True, True, None)
    """
    if value is None or value != value:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = f"{type(value).__name__} {value}".encode("utf-8", "surrogatepass")
    return float(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 11)
