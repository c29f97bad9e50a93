"""The windows of all aggregations, on those of the core; bounded in keys and windows.

A key of this link is a part of an aggregation's keys. What the core keeps of a key's windows, and does with
them, is done here for each of the keys in it: its process sees a map of windows, a clock and one timer.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from millrace import Context, KeyedProcess, Timer, arrival, broadcast_state, map_state, side_output
from millrace.process import BroadcastContext
from millrace.time import NEVER
from millrace.windows.assigners import Ranges
from millrace.windows.definition import WindowDefinition
from millrace.windows.process import WindowProcess, build, register
from millrace.windows.ranges import RangeWindows
from millrace_apps.aggregates.definition import PARTS, Aggregation
from millrace_apps.aggregates.life import AggregateEvent, Version, Versions
from millrace_apps.aggregates.selecting import Picked, take

_TIMER: Final = "windows"


class Result(msgspec.Struct, frozen=True):
    """What an aggregation says of a window.

    Attributes:
        name: The aggregation.
        version: Its version.
        key: Field of the key → its value as text.
        window_start_ms: Begin of the window, UTC ms.
        window_end_ms: Its end, which does not belong to it.
        values: Column → what was computed; null where there was nothing.
        revision: 0; higher where late events have refined what was said.
        event_time_ms: The window's last instant.
    """

    name: str
    version: int
    key: dict[str, str | None]
    window_start_ms: int
    window_end_ms: int
    values: dict[str, float | None]
    revision: int
    event_time_ms: int


class LimitReached(msgspec.Struct, frozen=True):
    """An aggregation has reached a limit: events are not counted.

    Attributes:
        name: The aggregation.
        version: Its version.
        limit: Which limit: ``max_keys`` or ``max_windows``.
        most: What it says.
        shard: In which part of its keys.
        events: How many events were left out in this part since it was last empty; told at 1, 2, 4, 8, ...
        event_time_ms: Time of the last of them.
    """

    name: str
    version: int
    limit: str
    most: int
    shard: int
    events: int
    event_time_ms: int


class Kept(msgspec.Struct, array_like=True, gc=False):
    """What is kept of a key.

    Attributes:
        due_ms: When its windows want to be looked at, event time, ms.
        last_ms: When the last of them is forgotten.
        windows: Start → window, packed as the core's process has them.
    """

    due_ms: int
    last_ms: int
    windows: bytes


@dataclass(frozen=True)
class Own(Ranges):
    """The windows of a version: those of its kind that begin while it is in force."""

    of: Ranges
    from_ms: int
    until_ms: int

    def ranges(self, at: int) -> list[tuple[int, int]]:
        """Return the windows that a time (ms) is in."""
        return [(s, e) for s, e in self.of.ranges(at) if self.from_ms <= s < self.until_ms]

    @property
    def label(self) -> str:
        """How windows of this kind are called in names."""
        return self.of.label


register(Own, lambda _: RangeWindows)


class _Windows(dict[int, Any]):
    """A key's windows, as the core's process has them."""

    def put(self, start: int, window: Any) -> None:
        self[start] = window

    def remove(self, start: int) -> None:
        self.pop(start, None)


class _Timers:
    """The one timer of a key."""

    def __init__(self) -> None:
        self.due = NEVER

    def bring_forward(self, when: int, _name: str = "") -> None:
        self.due = min(self.due, when)

    def at(self, when: int, _name: str = "") -> None:
        self.due = when


class _Moment:
    """What the core's process knows while it handles something: the context of a key."""

    def __init__(self, ctx: Context, key: str) -> None:
        self.key, self.event_time, self.watermark = key, ctx.event_time, ctx.watermark
        self.timers = _Timers()
        self.said: list[tuple[Any, bool | None, int, str | None]] = []
        self.late = False

    def emit(
        self, record: Any, *, on_time: bool | None = None, revision: int = 0, identity: str | None = None
    ) -> None:
        self.said.append((record, on_time, revision, identity))

    def put_aside(self, _late: Any) -> None:
        self.late = True


class Running:
    """A version at work.

    Args:
        version: The version.
    """

    def __init__(self, version: Version) -> None:
        self.version = version
        self.aggregation = aggregation = version.aggregation
        kind = aggregation.windows.assigner()
        if isinstance(kind, Ranges):
            kind = Own(kind, version.from_ms, version.until_ms)
        self.process: WindowProcess = build(
            WindowDefinition(
                list,
                kind,
                tuple(aggregation.made().items()),
                allowed_lateness_ms=aggregation.allowed_lateness_ms,
                order="arrival",
                name=aggregation.name,
            )
        )
        self.columns = tuple(aggregation.aggregates)
        self._pack = msgspec.msgpack.Encoder().encode
        cell: Any = self.process.cell  # type: ignore[attr-defined] # its windows are cells
        self._unpack = msgspec.msgpack.Decoder(types.GenericAlias(dict, (int, cell))).decode

    def open(self, packed: bytes | None) -> _Windows:
        """Let the core's process see the windows of a key."""
        windows = _Windows() if packed is None else _Windows(self._unpack(packed))
        self.process.windows = windows  # type: ignore[attr-defined]
        return windows

    def keep(self, due: int, windows: _Windows) -> Kept:
        """Return the windows of a key as they are kept.

        Args:
            due: When they want to be looked at, ms.
            windows: The windows; they are those that the core's process sees.
        """
        return Kept(due, self.process.last_due(due), self._pack(dict(windows)))

    def results(self, moment: _Moment) -> list[tuple[Result, bool | None, int, str]]:
        """Return what the core's process has said, as results of the aggregation."""
        found = []
        fields = self.aggregation.key
        for record, on_time, revision, identity in moment.said:
            if not self.version.has(record.window_start_ms):
                continue  # it was begun before it was known that the version had ended
            texts = msgspec.json.decode(moment.key)
            values = {name: getattr(record, name) for name in self.columns}
            result = Result(
                self.aggregation.name, self.version.number, dict(zip(fields, texts, strict=True)),
                record.window_start_ms, record.window_end_ms,
                {name: None if value is None else float(value) for name, value in values.items()},
                revision, record.window_end_ms - 1,
            )  # fmt: skip
            found.append((result, on_time, revision, f"{self.version.number}:{moment.key}:{identity}"))
        return found


class Windowing(KeyedProcess[Picked, Result]):
    """Keeps the windows of the aggregations, and tells their results.

    Args:
        types: Topic → type of its events, of the topics that may be aggregated.
    """

    order = arrival(commutes=True)
    control_type = AggregateEvent
    limits = side_output(LimitReached)

    aggregations = broadcast_state(str, Versions)
    kept = map_state(str, Kept)
    left_out = map_state(str, int)

    def __init__(self, types: dict[str, Any]) -> None:
        self._types = types

    def process(self, event: Picked, ctx: Context) -> None:
        """Add an event to its windows."""
        self._add(event, ctx, late=False)

    def on_late(self, event: Picked, ctx: Context) -> None:
        """Add an event to those of its windows that take it yet; if none does, it is late."""
        self._add(event, ctx, late=True)

    def process_broadcast(self, control: AggregateEvent, ctx: BroadcastContext) -> None:
        """Take what is published or removed."""
        take(self.aggregations, control, self._types, ctx.watermark)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Tell the results of windows that are complete, and forget those for which no event is awaited."""
        now, following = timer.at, NEVER
        for place, kept in sorted(self.kept.items()):
            due = kept.due_ms
            if due <= now:
                due = self._turn(place, kept, Timer(now, _TIMER), ctx)
            following = min(following, due)
        if following != NEVER:
            ctx.timers.at(following, _TIMER)
        else:
            self.left_out.clear()

    def last_due(self, latest: int) -> int:
        """Return when the last window is forgotten, event time, ms."""
        return max((kept.last_ms for _, kept in self.kept.items()), default=latest)

    def _turn(self, place: str, kept: Kept, timer: Timer, ctx: Context) -> int:
        """Do what is due for a key; return when it wants to be looked at again."""
        running = self._of(str(ctx.key[0]), place)
        if running is None:
            self.kept.remove(place)
            return NEVER
        windows = running.open(kept.windows)
        moment = _Moment(ctx, place.partition(":")[2])
        running.process.on_timer(timer, moment)  # type: ignore[arg-type] # all that it asks for is there
        self._emit_window(running, moment, ctx)
        if not windows:
            self.kept.remove(place)
            return NEVER
        due = moment.timers.due
        self.kept.put(place, running.keep(due, windows))
        return due

    def _add(self, event: Picked, ctx: Context, *, late: bool) -> None:
        place = f"{event.version}:{event.key}"
        running = self._of(event.name, place)
        if running is None:
            return
        aggregation = running.aggregation
        kept = self.kept.get(place)
        if kept is None and sum(1 for _ in self.kept) >= keys_per_shard(aggregation):
            self._leave_out(event, "max_keys", aggregation.max_keys, ctx)
            return
        windows = running.open(None if kept is None else kept.windows)
        before = len(windows)
        moment = _Moment(ctx, event.key)
        step = running.process.on_late if late else running.process.process
        step(event.values, moment)  # type: ignore[arg-type]
        if moment.late:
            self.emit_late(event, ctx)
        if len(windows) > max(before, aggregation.max_windows):
            self._leave_out(event, "max_windows", aggregation.max_windows, ctx)
            return
        self._emit_window(running, moment, ctx)
        if not windows:
            return
        due = min(NEVER if kept is None else kept.due_ms, moment.timers.due)
        self.kept.put(place, running.keep(due, windows))
        ctx.timers.bring_forward(due, _TIMER)

    def _emit_window(self, running: Running, moment: _Moment, ctx: Context) -> None:
        for result, on_time, revision, identity in running.results(moment):
            ctx.emit(result, on_time=on_time, revision=revision, identity=identity)

    def _leave_out(self, event: Picked, limit: str, most: int, ctx: Context) -> None:
        what = f"{event.version}:{limit}"
        count = (self.left_out.get(what) or 0) + 1
        self.left_out.put(what, count)
        if count & (count - 1) == 0:
            told = LimitReached(
                event.name, event.version, limit, most, event.shard, count, ctx.event_time
            )  # fmt: skip
            ctx.output(self.limits, told)

    def _of(self, name: str, place: str) -> Running | None:
        number = int(place.partition(":")[0])
        return self.aggregations.view(_by_number).get((name, number))


def keys_per_shard(aggregation: Aggregation) -> int:
    """Return how many keys a part of an aggregation's keys may have: together no more than its limit."""
    return aggregation.max_keys // PARTS


def _by_number(entries: list[tuple[str, Versions]]) -> dict[tuple[str, int], Running]:
    return {(name, v.number): Running(v) for name, versions in entries for v in versions}
