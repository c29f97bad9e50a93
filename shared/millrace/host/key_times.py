"""Extraction of key and time from an event's JSON, reading no more of it than that."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from millrace.dead_letters import NOT_JSON as NOT_JSON
from millrace.host.chunks import NO_TIME
from millrace.host.groups import encode_key, key_part
from millrace.time import ms_of
from millrace.time.held import HeldTime

#: Years 1 to 9999, as Spark's timestamps and Python's: an event of another time has none.
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
#: Columns of parts of keys, by name.
Given = Mapping[str, Sequence[str | None]]
#: Keys whose text and group a worker remembers.
_REMEMBERED = 262_144


class KeyFields(NamedTuple):
    """Where the events of an input have their key and their time.

    Attributes:
        keys: Parts of the key: fields of the events with their types (str, int or bool), or, without a
            type, columns of text beside them.
        event_time: Field of the event time, with its type (int or datetime).
        mark: What goes in front of each event to say by which input it came.
    """

    keys: tuple[tuple[str, Any], ...]
    event_time: tuple[str, Any]
    mark: bytes = b""


def read_inputs(
    readers: list[KeyTimes], inputs: list[int | None], values: list[bytes], given: Given
) -> tuple[list[str | None], list[int], list[int]]:
    """Return key texts, event times (ms) and key groups of the events of several inputs.

    A row of no input is a control event, or becomes a dead letter in the place that its bytes give it.
    """
    if inputs and (first := inputs[0]) is not None and inputs.count(first) == len(inputs):
        return readers[first].read(values, None, {name: given[name] for name in readers[first].given})
    keys: list[str | None] = [None] * len(values)
    times = [NO_TIME] * len(values)
    groups = [0] * len(values)
    rows_of: dict[int | None, list[int]] = {}
    for row, place in enumerate(inputs):
        rows_of.setdefault(place, []).append(row)
    for place, rows in rows_of.items():
        if place is None:
            for row in rows:
                groups[row] = zlib.crc32(values[row]) % readers[0].groups
            continue
        own = {name: pick(given[name], rows) for name in readers[place].given}
        found = readers[place].read(list(pick(values, rows)), None, own)
        for row, key, time, group in zip(rows, *found, strict=True):
            keys[row], times[row], groups[row] = key, time, group
    return keys, times, groups


class KeyTimes:
    """Finds key text, event time and key group of events."""

    def __init__(self, keys: Sequence[tuple[str, Any]], event_time: tuple[str, Any], groups: int) -> None:
        #: Columns that parts of the key stand in.
        self.given = tuple(dict.fromkeys(name for name, tp in keys if tp is None))
        self.groups = groups
        read = {name: tp for name, tp in keys if tp is not None}
        fields = [(f"key{i}", tp | None, msgspec.field(name=name, default=None))
                  for i, (name, tp) in enumerate(read.items())]  # fmt: skip
        same = [f"key{i}" for i, name in enumerate(read) if name == event_time[0]]
        self._timed = event_time[0] != ""
        if not same and self._timed:
            fields.append(
                ("time", event_time[1] | None, msgspec.field(name=str(event_time[0]), default=None))
            )
        self._time: Callable[[Any], Any] = operator.attrgetter(same[0] if same else "time")
        if isinstance(event_time[0], HeldTime):
            fields.append(("received", int | None, msgspec.field(name=event_time[0].received, default=None)))
            self._time = _held(event_time[0], self._time)
        self._decoder = msgspec.json.Decoder(msgspec.defstruct("KeyTime", fields, gc=False))
        self._is_ms = event_time[1] is not datetime
        self._parts = [(name, "" if tp is None else f"key{list(read).index(name)}") for name, tp in keys]
        if not self.given:
            self._key = operator.attrgetter(*(place for _, place in self._parts))
        self._one = len(keys) == 1
        self._known: dict[Any, tuple[str, int]] = {}

    def read(
        self, values: list[bytes], control: list[bool] | None, given: Given
    ) -> tuple[list[str | None], list[int], list[int]]:
        """Return key texts, event times (ms) and key groups of events.

        Args:
            values: The events.
            control: Which of them are control events, which have no key and no time; ``None``: none.
            given: Columns of parts of the key.
        """
        found = decode_all(self._decoder, values)
        whole = found is not None and (control is None or not any(control))
        if found is None:
            found = [self._try(v) for v in values]
        if control is not None and any(control):
            found = [None if c else f for c, f in zip(control, found, strict=True)]
        if whole and not self.given:
            places = self._places(map(self._key, found))
        else:
            places = self._places(self._keys(found, control, given))
        if not all(places):
            # An event without a key still needs a place: by its bytes.
            places = [
                (None, zlib.crc32(raw) % self.groups) if place is None else place
                for place, raw in zip(places, values, strict=True)
            ]
        return [text for text, _ in places], self._times(found, whole=whole), [group for _, group in places]

    def _places(self, keys: Iterable[Any]) -> list[Any]:
        """Return text and group of each key; ``None`` where it is none."""
        keys = list(keys)
        places: list[Any] = list(map(self._known.get, keys))
        if not all(places):  # a look for None would compare every one with it
            for row, (place, key) in enumerate(zip(places, keys, strict=True)):
                if place is None and key is not None:
                    places[row] = self._known.get(key) or self._place(key)
        return places

    def _times(self, found: list[Any], *, whole: bool) -> list[int]:
        """Return the times of events, ms; ``whole``: none of them is none."""
        if not self._timed:
            return [NO_TIME] * len(found)
        times: list[Any]
        if whole:
            times = list(map(self._time, found))
        else:
            times = [None if event is None else self._time(event) for event in found]
        if self._is_ms and _are_within_years(times):
            return times
        in_ms = times if self._is_ms else [None if time is None else ms_of(time) for time in times]
        return [NO_TIME if at is None or not FIRST_MS <= at <= LAST_MS else at for at in in_ms]

    def _keys(self, found: list[Any], control: list[bool] | None, given: Given) -> Iterable[Any]:
        """Return the key of each event: its only part, or a tuple of them."""
        if not self.given:
            key_of = self._key
            return [None if event is None else key_of(event) for event in found]
        columns = [
            [None if e is None else getattr(e, place) for e in found] if place else given[name]
            for name, place in self._parts
        ]
        keys: Iterable[Any] = columns[0] if self._one else zip(*columns, strict=True)
        if control is None:
            return keys
        return (None if is_control else key for is_control, key in zip(control, keys, strict=True))

    def _try(self, raw: bytes) -> Any:
        try:
            return self._decoder.decode(raw)
        except NOT_JSON:
            return None

    def _place(self, key: Any) -> tuple[str, int] | None:
        if key is None or (not self._one and None in key):
            return None
        if self._one:
            part = key if key.__class__ is str else key_part(key)
            text = f"{len(part)}:{part}" if part.isascii() else encode_key((part,))
        else:
            text = encode_key(tuple(map(key_part, key)))
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        place = self._known[key] = (text, zlib.crc32(text.encode()) % self.groups)
        return place


def _are_within_years(times: list[Any]) -> bool:
    """Return whether all of some times (ms) are there and are times.

    >>> _are_within_years([5, 0]), _are_within_years([5, None]), _are_within_years([5, 2**62])
    (True, False, False)
    """
    try:
        return bool(times) and FIRST_MS <= min(times) <= max(times) <= LAST_MS
    except TypeError:
        return False


def _held(name: HeldTime, time_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def found(event: Any) -> int | None:
        return name.held(time_of(event), event.received)

    return found


def decode_all(decoder: Any, values: list[bytes]) -> list[Any] | None:
    """Decode all events at once; ``None`` where one of them has to be looked at by itself.

    A line is an event: a line break within one, or an empty one, could shift others.

    >>> decode_all(msgspec.json.Decoder(), [b"1", b"[2]"]), decode_all(msgspec.json.Decoder(), [b"1", b""])
    ([1, [2]], None)
    """
    lines = b"\n".join(values)
    if lines.count(b"\n") != len(values) - 1:
        return None
    try:
        found = decoder.decode_lines(lines)
    except NOT_JSON:
        return None
    return found if len(found) == len(values) else None


def pick(column: Sequence[Any], rows: list[int]) -> tuple[Any, ...]:
    """Return these rows of a column."""
    if len(rows) == 1:
        return (column[rows[0]],)
    return operator.itemgetter(*rows)(column)  # type: ignore[no-any-return]
