"""Where events have their key and their time: found by reading no more of them than that."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from millrace.dead_letters import NOT_JSON as NOT_JSON
from millrace.host.chunks import NO_TIME
from millrace.host.groups import key_part
from millrace.time import ms_of

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
            fields.append(("time", event_time[1] | None, msgspec.field(name=event_time[0], default=None)))
        self._decoder = msgspec.json.Decoder(msgspec.defstruct("KeyTime", fields, gc=False))
        self._time = operator.attrgetter(same[0] if same else "time")
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
        if found is None:
            found = [self._try(v) for v in values]
        if control is not None and any(control):
            found = [None if c else f for c, f in zip(control, found, strict=True)]
        keys: list[str | None] = []
        times: list[int] = []
        groups: list[int] = []
        known, time_of, is_ms = self._known, self._time, self._is_ms
        timed = self._timed
        for event, key, raw in zip(found, self._keys(found, control, given), values, strict=True):
            time = time_of(event) if timed and event is not None else None
            if time is None:
                times.append(NO_TIME)
            else:
                at = time if is_ms else ms_of(time)
                times.append(at if FIRST_MS <= at <= LAST_MS else NO_TIME)
            place = known.get(key) if key is not None else None
            if place is None:
                place = self._place(key)
                if place is None:
                    keys.append(None)
                    # An event without a key still needs a place: by its bytes.
                    groups.append(zlib.crc32(raw) % self.groups)
                    continue
            keys.append(place[0])
            groups.append(place[1])
        return keys, times, groups

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
        parts = (key,) if self._one else key
        if key is None or any(p is None for p in parts):
            return None
        texts = [key_part(p) for p in parts]
        text = "".join(f"{len(t.encode())}:{t}" for t in texts)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        place = self._known[key] = (text, zlib.crc32(text.encode()) % self.groups)
        return place


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
