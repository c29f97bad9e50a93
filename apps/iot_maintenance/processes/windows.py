"""The windows in which a plant's alarms are counted: ten minutes and days, told early, and anew if need be.

Nothing here hangs on the order in which the plant's machines are heard, only on that of each alarm's own
changes: machines may go by clocks of their own and be minutes apart. A window is told when the stream has
passed its end, and stays open until nothing can come into it any more. What comes meanwhile is told by the
next revision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from millrace.parts.panes import forget_panes, pane_at
from millrace.parts.top import best
from millrace_apps.iot_maintenance.alarms.rule import SEVERITIES
from millrace_apps.iot_maintenance.contracts.records import digest_of

WINDOW_MS: Final = 600_000
DAY_MS: Final = 86_400_000
MINUTE_MS: Final = 60_000
#: More alarms than this in ten minutes are a flood; so many of one alarm in a minute are chattering.
FLOOD: Final = 10
CHATTER: Final = 3
_TOP: Final = 10
Span: TypeAlias = Literal["10min", "day"]
_SPANS: Final[tuple[tuple[Span, int], ...]] = (("10min", WINDOW_MS), ("day", DAY_MS))


class AlarmKpi(msgspec.Struct, frozen=True):
    """How a plant's alarm system did in ten minutes or in a day; the row of highest ``revision`` counts.

    Attributes:
        plant_id: The plant.
        span: ``10min`` or ``day``.
        start_ms: Begin, by UTC.
        end_ms: End.
        alarms: Alarms announced.
        flood: Ten minutes: more than ten of them. A day: whether any ten minutes were.
        flood_share: Share of the ten-minute windows of the day that were floods.
        chattering: Alarms that came three times or more within a minute.
        stale: Alarms active for more than 24 hours at the end, shelved or not.
        standing: Alarms active at the end.
        by_severity: Share of each priority.
        top: The alarms that came most, and how often.
        top_share: Their share.
        revision: 0, 1, …: how often it was told anew, because a machine that was behind had more to say.
    """

    plant_id: str
    span: Span
    start_ms: int
    end_ms: int
    alarms: int
    flood: bool
    flood_share: float
    chattering: list[str]
    stale: list[str]
    standing: int
    by_severity: dict[str, float]
    top: dict[str, int]
    top_share: float
    revision: int = 0


class Count(msgspec.Struct):
    """The alarms of one window.

    Attributes:
        alarms: How many.
        severities: How many of each severity.
        of: How often each alarm came.
        last: When each alarm came last, ms: at most ``CHATTER`` times.
        chattering: Those that chatter.
        floods: Windows of ten minutes that were floods; of a day.
        revision: Of the row that was told last; -1: none was.
        told: A digest of that row.
        changed: Whether something has happened since.
    """

    alarms: int = 0
    severities: list[int] = msgspec.field(default_factory=lambda: [0] * len(SEVERITIES))
    of: dict[str, int] = {}
    last: dict[str, list[int]] = {}
    chattering: list[str] = []
    floods: int = 0
    revision: int = -1
    told: bytes = b""
    changed: bool = True

    def add(self, alarm: str, severity: int, at: int) -> None:
        """Count an alarm."""
        self.alarms += 1
        self.changed = True
        self.severities[severity] += 1
        self.of[alarm] = self.of.get(alarm, 0) + 1
        times = self.last.setdefault(alarm, [])
        times.append(at)
        del times[:-CHATTER]
        if len(times) == CHATTER and at - times[0] <= MINUTE_MS and alarm not in self.chattering:
            self.chattering.append(alarm)


class Ended(msgspec.Struct, array_like=True, gc=False):
    """An alarm that stood, or was shelved, and may have been at the end of a window that is open.

    Attributes:
        alarm: Its name.
        since: Since when, ms.
        until: Until when, ms.
        age: Since when it is active, ms; -1: since it stood.
        shelved: Whether it was shelved.
    """

    alarm: str
    since: int
    until: int
    age: int = -1
    shelved: bool = False


class Held(msgspec.Struct, array_like=True, gc=False):
    """An alarm that stood, is active still, and is held back: shelved, suppressed or out of service.

    Attributes:
        since: Since when, ms.
        age: Since when it is active, ms.
        shelved: Whether it is shelved.
    """

    since: int
    age: int
    shelved: bool


class Windows(msgspec.Struct):
    """A plant's windows that are open, and the alarms that stand.

    Attributes:
        standing: Announced alarm → since when, ms, its severity, and since when it is active, ms.
        ended: Those that stood when an open window ended.
        open: Span → begin (ms) → the window.
        held: Alarms that stood and are held back: once they are not, they are no new ones.

    Example:
        >>> windows = Windows()
        >>> windows.begins("m1:hot", 2, 5_000, 0); windows.stands("m1:hot", 2, 5_000, 5_000)
        >>> [(row.alarms, row.standing, row.revision) for row in windows.rows_upto("p1", WINDOW_MS)]
        [(1, 1, 0)]
        >>> windows.begins("m2:hot", 2, 7_000, 0); windows.stands("m2:hot", 2, 7_000, 7_000)  # it was behind
        >>> windows.ends("m1:hot", 700_000, 0)
        5000
        >>> [(row.alarms, row.standing, row.revision) for row in windows.rows_upto("p1", WINDOW_MS)]
        [(2, 2, 1)]
        >>> windows.rows_upto("p1", WINDOW_MS)
        []
        >>> windows.close("p1", WINDOW_MS), [*windows.open["10min"]], [*windows.open["day"]]
        ([], [], [0])
    """

    standing: dict[str, list[int]] = {}
    ended: list[Ended] = []
    open: dict[str, dict[int, Count]] = {}
    held: dict[str, Held] = {}

    def __bool__(self) -> bool:
        return bool(self.standing or self.ended or self.held or any(self.open.values()))

    def begins(self, alarm: str, severity: int, at: int, closed: int) -> None:
        """Count an alarm that is announced, also one that is announced again.

        Args:
            alarm: Its name.
            severity: Place of its severity.
            at: When, ms.
            closed: Up to when (ms) everything is told for good.
        """
        for span, size in _SPANS:
            start = at - at % size
            if start + size - 1 > closed:
                pane_at(self.open.setdefault(span, {}), at, size, Count).add(alarm, severity, at)
        ten = self.open.get("10min", {}).get(at - at % WINDOW_MS)
        day = self.open.get("day", {}).get(at - at % DAY_MS)
        if ten is not None and day is not None and ten.alarms == FLOOD + 1:
            day.floods += 1

    def stands(self, alarm: str, severity: int, at: int, age: int) -> None:
        """Take note that an alarm stands, how severe it is, and since when it is active (``age``, ms)."""
        was = self.standing.get(alarm)
        self.standing[alarm] = [at, severity, age] if was is None else [was[0], severity, _age(was)]
        if was is None:
            self._touch(at)

    def ends(self, alarm: str, at: int, closed: int) -> int:
        """Take note that an alarm stands no more; return since when it was active, ms.

        ``closed`` (ms) is as :meth:`begins` has it.
        """
        stood = self.standing.pop(alarm)
        if at - 1 > closed:
            self.ended.append(Ended(alarm, stood[0], at, _age(stood)))
            self._touch(at)
        return _age(stood)

    def hold(self, alarm: str, at: int, age: int, shelved: bool) -> None:
        """Take note that an alarm that stood is held back from a time on, ms."""
        self.held[alarm] = Held(at, age, shelved)
        if shelved:
            self._touch(at)

    def release(self, alarm: str, at: int, closed: int) -> int:
        """Take note that an alarm is held back no more; return since when it is active, ms, else -1."""
        held = self.held.pop(alarm, None)
        if held is None:
            return -1
        if held.shelved and at - 1 > closed:
            self.ended.append(Ended(alarm, held.since, at, held.age, True))
            self._touch(at)
        return held.age

    def rows_upto(self, plant: str, upto: int) -> list[AlarmKpi]:
        """Return the rows of windows in which there is news.

        Args:
            plant: The plant.
            upto: Those that were not told yet are when their last millisecond is not behind this, ms.
        """
        due = [
            (start + size, place, span, start, count)
            for place, (span, size) in enumerate(_SPANS)
            for start, count in self._of(span)
            if count.changed and (count.revision >= 0 or start + size - 1 <= upto)
        ]
        rows = []
        for end, _, span, start, count in sorted(due, key=lambda d: d[:2]):
            count.changed = False
            row = self._row(plant, span, start, end, count)
            digest = digest_of(row)
            if digest != count.told:
                count.told, count.revision = digest, count.revision + 1
                rows.append(msgspec.structs.replace(row, revision=count.revision))
        return rows

    def close(self, plant: str, upto: int) -> list[AlarmKpi]:
        """Tell windows for good, and forget them, and what nobody asks for any more."""
        rows = self.rows_upto(plant, upto)
        for span, size in _SPANS:
            forget_panes(self.open.get(span, {}), upto - size + 2)  # those whose last ms is not behind it
        if self.ended:
            self.ended = [one for one in self.ended if one.until - 1 > upto]
        return rows

    def next_told(self) -> int | None:
        """Return the last millisecond of the first window that was not told yet."""
        ends = (start + size - 1 for span, size in _SPANS for start, count in self._of(span)
                if count.revision < 0)  # fmt: skip
        return min(ends, default=None)

    def next_closed(self) -> int | None:
        """Return when (ms) there is something to close or to forget."""
        ends = [start + size - 1 for span, size in _SPANS for start, _ in self._of(span)]
        ends += [one.until - one.until % WINDOW_MS + WINDOW_MS - 1 for one in self.ended]
        return min(ends, default=None)

    def is_late(self, at: int) -> bool:
        """Return whether a window that ends behind a time (ms) has been told."""
        return any(count.revision >= 0 and start + size > at for span, size in _SPANS
                   for start, count in self._of(span))  # fmt: skip

    def _of(self, span: Span) -> Iterator[tuple[int, Count]]:
        yield from self.open.get(span, {}).items()

    def _touch(self, at: int) -> None:
        """Have windows that end behind a time (ms) looked at anew: other alarms stood at their ends."""
        for span, size in _SPANS:
            for start, count in self._of(span):
                if start + size > at:
                    count.changed = True

    def _row(self, plant: str, span: Span, start: int, end: int, count: Count) -> AlarmKpi:
        last = end - 1
        stood = [(name, _age(found)) for name, found in self.standing.items() if found[0] <= last]
        shelved = [(n, held.age) for n, held in self.held.items() if held.shelved and held.since <= last]
        for one in self.ended:
            if one.since <= last < one.until:
                (shelved if one.shelved else stood).append((one.alarm, one.since if one.age < 0 else one.age))
        top = dict(best(count.of.items(), _TOP))
        total = max(count.alarms, 1)
        is_flood = count.alarms > FLOOD
        return AlarmKpi(
            plant_id=plant,
            span=span,
            start_ms=start,
            end_ms=end,
            alarms=count.alarms,
            flood=is_flood if span == "10min" else count.floods > 0,
            flood_share=float(is_flood) if span == "10min" else count.floods * WINDOW_MS / DAY_MS,
            chattering=sorted(count.chattering),
            stale=sorted({name for name, age in (*stood, *shelved) if end - age > DAY_MS}),
            standing=len(stood),
            by_severity={name: n / total for name, n in zip(SEVERITIES, count.severities, strict=True)},
            top=top,
            top_share=sum(top.values()) / total,
        )


def _age(stood: list[int]) -> int:
    """Return since when a standing alarm is active, ms; older state says only since when it stands."""
    return stood[2] if len(stood) > 2 else stood[0]
