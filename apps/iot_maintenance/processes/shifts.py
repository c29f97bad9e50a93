"""Shifts of a plant by its own clock, and how a machine does in each of them.

A shift is from one of the day's change-over times to the next, by wall clock: on the days on which clocks are
changed one shift is an hour shorter or longer. The indicators are those of ISO 22400-2: availability is
production time of planned busy time, which has neither what is off nor maintenance by plan in it;
effectiveness (here ``performance``) is what the parts would have taken at best of production time; the
quality ratio; OEE is their product. MTBF and MTTR are those of IEC 60050-192: mean operating time between
failures, and mean time to restoration, from a failure until the machine is neither broken nor repaired.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo

import msgspec

from millrace_apps.iot_maintenance.alarms.schedule import local_ms, zone
from millrace_apps.iot_maintenance.contracts.records import ShiftKpi, digest_of
from millrace_apps.iot_maintenance.processes.statuses import Regime

HOUR_MS: Final = 3_600_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Status → what it means.
Regimes: TypeAlias = Callable[[str], Regime | None]
#: So many shifts that are over are kept until it is known how many parts were made in them.
_EARLIER: Final = 3


class Calendar(msgspec.Struct, frozen=True):
    """When shifts change.

    Attributes:
        starts: Minutes of the local day at which a shift begins, in order.
        tz: Time zone.

    Example:
        >>> berlin = Calendar((360, 840, 1320), "Europe/Berlin")
        >>> start, end = berlin.shift(1_774_746_000_000)        # 2026-03-29 01:00 UTC: clocks go forward
        >>> berlin.name(start), (end - start) / 3_600_000
        ('2026-03-28T22:00', 7.0)
    """

    starts: tuple[int, ...] = (360, 840, 1320)
    tz: str = "UTC"

    def shift(self, at: int) -> tuple[int, int]:
        """Return begin and end (ms) of the shift that ``at`` (ms) is in."""
        edges = _edges(self.starts, self.tz, (_EPOCH + timedelta(milliseconds=at)).toordinal())
        place = bisect_right(edges, at)
        return edges[place - 1], edges[place]

    def name(self, start: int) -> str:
        """Return the local time at which a shift begins (ms), as text."""
        place: ZoneInfo = zone(self.tz)
        return (_EPOCH + timedelta(milliseconds=start)).astimezone(place).strftime("%Y-%m-%dT%H:%M")


@lru_cache(maxsize=64)
def _edges(starts: tuple[int, ...], tz: str, day: int) -> list[int]:
    """Return the change-overs of the days around a day, ms."""
    dates = [datetime.fromordinal(day + plus) for plus in (-2, -1, 0, 1, 2)]
    place = zone(tz)
    return sorted({local_ms(d.year, d.month, d.day, minute, place) for d in dates for minute in starts})


class ShiftState(msgspec.Struct, array_like=True):
    """A machine in the shift that it is in.

    Attributes:
        start: Begin of the shift, ms.
        end: End of the shift, ms.
        status: The machine's status.
        since: Up to when time is counted, ms.
        spent: Time in each status in this shift, ms.
        produced: Parts in this shift.
        rejected: Scrap in this shift.
        failures: Breakdowns in this shift.
        repairs: Repairs done in this shift.
        heard: Whether anything was said of the machine in this shift.
        broken: Whether it is broken, or being repaired after that.
        all_operating: Operating time since the machine is known, ms.
        all_down: Time broken or under repair since then, ms.
        all_failures: Breakdowns since then.
        all_repairs: Repairs since then.
        told: A digest of the row that was told of the shift last; empty: none was.
        revision: Of that row; -1: none was.
        planned_stop: Time of maintenance by plan in this shift, ms.
        parts_upto: Up to when parts are counted, ms; -1: none are yet.
        earlier: Shifts that are over, some of whose parts may not be counted yet.
        made: Where the machine's counter of parts stood last; -1: it has none.
        scrapped: The same of scrap.
        has_counts: Whether the machine has a stream of counts: its statuses' parts are no more taken.
    """

    start: int
    end: int
    status: str
    since: int
    spent: dict[str, int] = {}
    produced: int = 0
    rejected: int = 0
    failures: int = 0
    repairs: int = 0
    heard: bool = True
    broken: bool = False
    all_operating: int = 0
    all_down: int = 0
    all_failures: int = 0
    all_repairs: int = 0
    told: bytes = b""
    revision: int = -1
    planned_stop: int = 0
    parts_upto: int = -1
    earlier: list[ShiftState] = []
    made: int = -1
    scrapped: int = -1
    has_counts: bool = False

    def change(self, at: int, status: str, regimes: Regimes) -> None:
        """Take a status, which ends the one before; ``at`` (ms) is in the shift."""
        self.count(at, regimes)
        self.heard = True
        regime = regimes(status)
        if regime == "failed" and not self.broken:
            self.broken = True
            self.failures += 1
            self.all_failures += 1
        elif self.broken and regime not in ("failed", "maintenance", None):
            self.broken = False
            self.repairs += 1
            self.all_repairs += 1
        self.status = status

    def parts(self, at: int, produced: int, rejected: int) -> list[ShiftState]:
        """Count parts made since they were counted last, in the shifts in which that time is.

        Args:
            at: Now, ms, in the shift.
            produced: Parts.
            rejected: Scrap among them.

        Returns:
            The shifts that are over in which there are more now.
        """
        since = self.parts_upto if 0 <= self.parts_upto < at else at - 1
        self.parts_upto = at
        earlier, self.earlier = self.earlier, []
        if not (produced or rejected):
            return []
        took = at - since
        changed = []
        for shift in (*earlier, self):
            begin, end = max(shift.start, since) - since, min(shift.end, at) - since
            if end > begin:
                shift.produced += produced * end // took - produced * begin // took
                shift.rejected += rejected * end // took - rejected * begin // took
                changed += [] if shift is self else [shift]
        return changed

    def counter(self, made: int, scrapped: int) -> tuple[int, int]:
        """Return what counters have counted since they were read last; one that fell has begun anew."""
        before, self.made = self.made, made
        scrap_before, self.scrapped = self.scrapped, scrapped
        if before < 0:
            return 0, 0
        if made < before:
            return made, scrapped
        return made - before, scrapped - scrap_before if scrapped >= scrap_before else scrapped

    def resume(self, at: int, start: int, end: int) -> None:
        """Go on in the shift around ``at`` (ms), after shifts in which nothing was heard."""
        self.start, self.end, self.since = start, end, at
        self.spent, self.produced, self.rejected, self.failures, self.repairs = {}, 0, 0, 0, 0
        self.told, self.revision, self.planned_stop = b"", -1, 0

    def count(self, at: int, regimes: Regimes) -> None:
        """Count the time up to ``at`` (ms)."""
        took = at - self.since
        if took > 0:
            self.spent[self.status] = self.spent.get(self.status, 0) + took
            regime = regimes(self.status)
            if regime == "producing":
                self.all_operating += took
            if self.broken:
                self.all_down += took
            elif regime == "maintenance":
                self.planned_stop += took
            self.since = at

    def result(
        self, machine: str, calendar: Calendar, ideal_per_h: float | None, regimes: Regimes
    ) -> ShiftKpi | None:
        """Return how the shift is if nothing more is heard of it; ``None`` if that has been told.

        Args:
            machine: The machine.
            calendar: The shifts.
            ideal_per_h: Parts per operating hour at best; ``None`` if nobody has said.
            regimes: What statuses mean.
        """
        rest = max(self.end - self.since, 0)
        spent = dict(self.spent)
        if rest:
            spent[self.status] = spent.get(self.status, 0) + rest
        of: dict[Regime | None, int] = {}
        for status, took in spent.items():
            of[regimes(status)] = of.get(regimes(status), 0) + took
        ends_in = regimes(self.status)
        planned_stop = self.planned_stop + (rest if ends_in == "maintenance" and not self.broken else 0)
        unknown, operating = of.get(None, 0), of.get("producing", 0)
        planned = sum(of.values()) - of.get("off", 0) - planned_stop - unknown
        availability = _share(operating, planned)
        made = ideal_per_h * operating / HOUR_MS if ideal_per_h else 0.0
        performance = _share(self.produced, made)
        quality = _share(self.produced - self.rejected, self.produced)
        oee = None
        if availability is not None and performance is not None and quality is not None:
            oee = availability * performance * quality
        all_operating = self.all_operating + (rest if ends_in == "producing" else 0)
        all_down = self.all_down + (rest if self.broken else 0)
        kpi = ShiftKpi(
            machine_id=machine,
            shift=calendar.name(self.start),
            shift_start_ms=self.start,
            shift_end_ms=self.end,
            planned_ms=planned,
            operating_ms=operating,
            down_ms=of.get("failed", 0) + of.get("maintenance", 0) - planned_stop,
            failures=self.failures,
            repairs=self.repairs,
            produced=self.produced,
            rejected=self.rejected,
            availability=availability,
            performance=performance,
            quality=quality,
            oee=oee,
            mtbf_h=_share(all_operating / HOUR_MS, self.all_failures),
            mttr_h=_share(all_down / HOUR_MS, self.all_repairs),
            by_status_ms=dict(sorted(item for item in spent.items() if item[0])),
            planned_stop_ms=planned_stop,
            unknown_ms=unknown,
        )
        digest = digest_of(kpi)
        if digest == self.told:
            return None
        self.told, self.revision = digest, self.revision + 1
        return msgspec.structs.replace(kpi, revision=self.revision)

    def begin(self, calendar: Calendar, regimes: Regimes) -> None:
        """Begin the next shift, in the status in which this one ends."""
        self.count(self.end, regimes)
        over = msgspec.structs.replace(self, earlier=[], spent=dict(self.spent))
        self.earlier = [*self.earlier, over][-_EARLIER:]
        self.start, self.end = calendar.shift(self.end)
        self.spent, self.heard = {}, False
        self.produced = self.rejected = self.failures = self.repairs = self.planned_stop = 0
        self.told, self.revision = b"", -1


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
