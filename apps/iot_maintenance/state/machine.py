"""The monitor's state of a machine."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from millrace.time import NEVER, NO_WATERMARK
from millrace_apps.iot_maintenance.contracts.events import MachineError, Maintenance, Status
from millrace_apps.iot_maintenance.contracts.records import EnrichedReading
from millrace_apps.iot_maintenance.contracts.signals import Fact
from millrace_apps.iot_maintenance.processes.quality import Fault, Quality, Sensor
from millrace_apps.iot_maintenance.processes.shifts import ShiftState
from millrace_apps.iot_maintenance.state.breakdowns import Breakdowns
from millrace_apps.iot_maintenance.state.past import DAY_MS, MachineAsOf, Past
from millrace_apps.iot_maintenance.state.running import Running

#: Whether a machine is in the registry: nobody has asked; it is not, and that is told; it is, and nothing is
#: said of its measuring points; it is, with them.
UNASKED: Final = 0
UNKNOWN: Final = 1
REGISTERED: Final = 2
WITH_POINTS: Final = 3
#: So many readings are sealed together.
_SEAL: Final = 64
_encode: Final = msgspec.msgpack.Encoder().encode


class Kept(msgspec.Struct, array_like=True, gc=False):
    """A reading whose row a late fact may correct.

    Attributes:
        at: Its event time, ms.
        revision: Of its last row.
        row: What of the row does not hang on facts, packed.
    """

    at: int
    revision: int
    row: bytes


class Sealed(msgspec.Struct, array_like=True, gc=False):
    """Some kept readings as bytes: what only waits costs next to nothing, whatever it is.

    Attributes:
        first: Time of the first, ms.
        last: Time of the last, ms.
        rows: The readings, packed.
    """

    first: int
    last: int
    rows: bytes


class KeptRows(msgspec.Struct, array_like=True):
    """The readings of the grace, in order of time; all but the newest are sealed.

    Attributes:
        sealed: The older ones.
        open: The newest.

    Example:
        >>> rows = KeptRows()
        >>> for at in range(100):
        ...     rows.add(Kept(at, 0, b""))
        >>> len(rows.sealed), len(rows.open), [kept.at for kept in rows.all()] == list(range(100))
        (1, 36, True)
    """

    sealed: list[Sealed] = []
    open: list[Kept] = []

    def __bool__(self) -> bool:
        return bool(self.open or self.sealed)

    def add(self, kept: Kept) -> None:
        """Keep a reading that is not before the others."""
        self.open.append(kept)
        if len(self.open) >= _SEAL:
            self._seal()

    def all(self) -> list[Kept]:
        """Return all of them."""
        found = [kept for part in self.sealed for kept in _decode_rows(part.rows)]
        return found + self.open

    def of_time(self, at: int) -> list[Kept]:
        """Return those of one time (ms)."""
        parts = [_decode_rows(part.rows) for part in self.sealed if part.first <= at <= part.last]
        return [kept for rows in (*parts, self.open) for kept in rows if kept.at == at]

    def replace(self, rows: list[Kept]) -> None:
        """Keep these instead, which are in order of time."""
        self.sealed = []
        for low in range(0, len(rows) - _SEAL + 1, _SEAL):
            self.open = rows[low : low + _SEAL]
            self._seal()
        self.open = rows[len(rows) - len(rows) % _SEAL :]

    def forget(self, upto: int) -> None:
        """Forget those up to a time (ms), it included; of what is sealed only what is so as a whole."""
        sealed = self.sealed
        if sealed and sealed[0].last <= upto:
            self.sealed = [part for part in sealed if part.last > upto]
        if not self.sealed and self.open and self.open[0].at <= upto:
            self.open = [kept for kept in self.open if kept.at > upto]

    def _seal(self) -> None:
        self.sealed.append(Sealed(self.open[0].at, self.open[-1].at, _encode(self.open)))
        self.open = []


_decode_rows: Final = msgspec.msgpack.Decoder(list[Kept]).decode


class Silence(msgspec.Struct, array_like=True, gc=False):
    """A sensor that has been told silent.

    Attributes:
        since: When it was last heard, ms.
        own: Whether it is the sensor's own silence, not its machine's.
        judge: When to look at it again, ms.
        told: When that was told, ms.
    """

    since: int
    own: bool
    judge: int
    told: int = NO_WATERMARK


class Machine(msgspec.Struct, array_like=True):
    """What is kept of a machine.

    Attributes:
        past: What was known of it at any time within the grace.
        sensors: What its sensors have been like, by quantity and measuring point.
        running: Their statistics.
        kept: Readings of the grace.
        silences: Sensors that are silent.
        shift: How it does in this shift.
        seen: Newest event time, ms.
        mark: Its kind by what it measures.
        gateway: Its gateway.
        watch_at: When its sensors are next looked for, ms.
        tidy_at: When it is next swept, ms.
        registered: What is known of its registration: one of the constants below.
        breakdowns: When it broke down last.
    """

    past: Past = msgspec.field(default_factory=Past)
    sensors: dict[str, Sensor] = {}
    running: dict[str, Running] = {}
    kept: KeptRows = msgspec.field(default_factory=KeptRows)
    silences: dict[str, Silence] = {}
    shift: ShiftState | None = None
    seen: int = -1
    mark: str = ""
    gateway: str = ""
    watch_at: int = NEVER
    tidy_at: int = NEVER
    registered: int = UNASKED
    breakdowns: Breakdowns = msgspec.field(default_factory=Breakdowns)

    def learn(self, event: Fact) -> bool:
        """Take a fact; return whether it is news."""
        past, at = self.past, event.event_time_ms
        if isinstance(event, Status):
            return past.put_status(at, event.status)
        if isinstance(event, Maintenance):
            return past.put_maintenance(at, event.component)
        if isinstance(event, MachineError):
            return past.put_error(at, event.code, event.error_id)
        return past.put_equipment(at, event.kind, event.attributes)


class RowPart(NamedTuple):
    """What of an enriched reading does not hang on facts."""

    reading_id: str
    sensor_id: str
    machine_id: str
    quantity: str
    value: float | None
    unit: str
    event_time_ms: int
    late: bool
    quality: Quality
    fault: Fault
    average: float | None
    average_by_time: float | None
    trend: float | None
    low: float | None
    high: float | None
    zscore: float | None
    point: str = ""


_decode: Final = msgspec.msgpack.Decoder(RowPart).decode


def pack(row: EnrichedReading) -> bytes:
    """Pack what of a row is kept."""
    return _encode(
        (
            row.reading_id,
            row.sensor_id,
            row.machine_id,
            row.quantity,
            row.value,
            row.unit,
            row.event_time_ms,
            row.late,
            row.quality,
            row.fault,
            row.average,
            row.average_by_time,
            row.trend,
            row.low,
            row.high,
            row.zscore,
            row.point,
        )
    )


def unpack(packed: bytes) -> RowPart:
    """Return what :func:`pack` packed."""
    return _decode(packed)


def corrected(part: RowPart, known: MachineAsOf, revision: int, mark: str = "") -> EnrichedReading:
    """Return the row of a reading anew, with what is known now.

    Args:
        part: The reading.
        known: What held at its time.
        revision: Which correction it is.
        mark: The machine's kind by what it measures.
    """
    at = part.event_time_ms
    return EnrichedReading(
        *part[:7],
        revision,
        True,
        *part[7:10],
        known.status,
        known.status_since_ms,
        known.kind or mark,
        known.attributes,
        known.last_maintenance_ms,
        {component: (at - last) / DAY_MS for component, last in known.last_maintenance_ms.items()},
        known.errors_24h,
        *part[10:16],
        part.point,
    )
