"""Versioned facts of a machine within the grace: status, maintenance, errors, master data.

A join over one right stream would not do: a reading meets four kinds of facts at once, one of them by
component, one as a count over a window that slides with the reading, and maintenance only strictly before
it. Their versions stand side by side in one state, so that a reading is one look-up, and a late fact of any
kind corrects a reading once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import Final

import msgspec

from millrace.parts.versions import add_version, forget_versions, next_change, place_at
from millrace.time import NEVER

DAY_MS: Final = 86_400_000
#: How far back errors are counted, ms.
ERRORS_MS: Final = DAY_MS

_at = itemgetter(0)


class MachineAsOf(msgspec.Struct, frozen=True):
    """What held for a machine at one time.

    Attributes:
        status: Its status, ``None`` before the first.
        status_since_ms: Since when.
        kind: Kind of machine, empty if nobody has said.
        attributes: Its other master data.
        last_maintenance_ms: Component → when it was last replaced, strictly before.
        errors_24h: Error code → how often in the 24 hours up to then, that instant included.
    """

    status: str | None = None
    status_since_ms: int | None = None
    kind: str = ""
    attributes: dict[str, str] = {}
    last_maintenance_ms: dict[str, int] = {}
    errors_24h: dict[str, int] = {}


class Past(msgspec.Struct, array_like=True, dict=True):
    """Versions of everything that is known of a machine.

    What :meth:`as_of` has found is remembered beside the fields, and not kept: between two facts all readings
    of a machine meet the same.

    Attributes:
        statuses: Time (ms) and status, in order.
        equipment: Time (ms), kind and attributes as JSON, in order.
        replaced: Component → times (ms) of replacement, in order.
        errors: Time (ms), code and identity, in order.
        told: Identity of a fact → its time (ms), and a digest of what it said.

    Example:
        >>> past = Past()
        >>> past.put_status(100, "running") and past.put_maintenance(200, "seal")
        True
        >>> past.as_of(200).status, past.as_of(200).last_maintenance_ms, past.as_of(201).last_maintenance_ms
        ('running', {}, {'seal': 200})
    """

    statuses: list[tuple[int, str]] = []
    equipment: list[tuple[int, str, str]] = []
    replaced: dict[str, list[int]] = {}
    errors: list[tuple[int, str, str]] = []
    told: dict[str, tuple[int, int]] = {}

    def contradicts(self, identity: str, at: int, content: int) -> bool:
        """Remember what a fact said; return whether one of its identity said something else before.

        Args:
            identity: Its identity.
            at: Its time, ms.
            content: A digest of what it says.
        """
        before = self.told.get(identity)
        if before is None:
            self.told[identity] = at, content
            return False
        return before[1] != content

    def put_status(self, at: int, status: str) -> bool:
        """Add a status valid from ``at`` (ms); return whether it is news.

        Of two of one instant the greater text is taken, whichever comes first.
        """
        self.__dict__.clear()
        return add_version(self.statuses, (at, status))

    def put_equipment(self, at: int, kind: str, attributes: dict[str, str]) -> bool:
        """Add master data valid from ``at`` (ms); return whether it is news."""
        self.__dict__.clear()
        packed = msgspec.json.encode(attributes, order="deterministic").decode()
        return add_version(self.equipment, (at, kind, packed))

    def put_maintenance(self, at: int, component: str) -> bool:
        """Add a replacement; return whether it is news."""
        self.__dict__.clear()
        times = self.replaced.setdefault(component, [])
        place = bisect_left(times, at)
        if place < len(times) and times[place] == at:
            return False
        times.insert(place, at)
        return True

    def put_error(self, at: int, code: str, error_id: str) -> bool:
        """Add an error; return whether it is news."""
        self.__dict__.clear()
        found = (at, code, error_id)
        place = bisect_left(self.errors, found)
        if place < len(self.errors) and self.errors[place] == found:
            return False
        self.errors.insert(place, found)
        return True

    def status_at(self, at: int) -> str | None:
        """Return the status that held at ``at`` (ms)."""
        place = place_at(self.statuses, at)
        return self.statuses[place - 1][1] if place else None

    def kind_at(self, at: int) -> str:
        """Return the kind of machine that held at ``at`` (ms), empty if nobody has said."""
        place = place_at(self.equipment, at)
        return self.equipment[place - 1][1] if place else ""

    def as_of(self, at: int) -> MachineAsOf:
        """Return what held at ``at`` (ms)."""
        remembered = self.__dict__.get("known")
        if remembered is not None and remembered[0] <= at < remembered[1]:
            return remembered[2]  # type: ignore[no-any-return]
        known = self._find(at)
        self.__dict__["known"] = at, self._until(at), known
        return known

    def _find(self, at: int) -> MachineAsOf:
        statuses = self.statuses
        place = place_at(statuses, at)
        since, status = statuses[place - 1] if place else (None, None)
        kind, attributes = "", _NONE
        if place := place_at(self.equipment, at):
            _, kind, packed = self.equipment[place - 1]
            attributes = msgspec.json.decode(packed, type=dict[str, str])
        last = {}
        for component, times in self.replaced.items():
            place = len(times) if times[-1] < at else bisect_left(times, at)
            if place:
                last[component] = times[place - 1]
        return MachineAsOf(status, since, kind, attributes, last, self._errors(at))

    def _until(self, at: int) -> int:
        """Return the first time (ms) after ``at`` at which something else may hold."""
        until = min(next_change(versions, at) for versions in (self.statuses, self.equipment, self.errors))
        for times in self.replaced.values():
            place = bisect_left(times, at)
            if place < len(times):  # strictly before: it holds only for what comes after it
                until = min(until, times[place] + 1)
        counted = next_change(self.errors, at - ERRORS_MS)
        return until if counted == NEVER else min(until, counted + ERRORS_MS)

    def _errors(self, at: int) -> dict[str, int]:
        errors = self.errors
        if not errors:
            return {}
        counts: dict[str, int] = {}
        for place in range(place_at(errors, at) - 1, -1, -1):
            found, code, _ = errors[place]
            if found <= at - ERRORS_MS:
                break
            counts[code] = counts.get(code, 0) + 1
        return counts

    def prune(self, before: int) -> None:
        """Forget what no reading at or after ``before`` (ms) can ask for."""
        self.__dict__.clear()
        forget_versions(self.statuses, before)
        forget_versions(self.equipment, before)
        if self.told:
            self.told = {name: kept for name, kept in self.told.items() if kept[0] >= before}
        for times in self.replaced.values():
            # Strictly before: of times before the bound the last one is still the answer.
            del times[: max(bisect_left(times, before) - 1, 0)]
        del self.errors[: bisect_right(self.errors, before - ERRORS_MS, key=_at)]


_NONE: Final[dict[str, str]] = {}
