"""Recorded forecasts from the tables, so that rules on them can be tried on the past."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace import Context
from millrace_apps.iot_maintenance.contracts.records import EnrichedReading
from millrace_apps.iot_maintenance.foresight.alarming import Ruling
from millrace_apps.iot_maintenance.foresight.baseline import Baseline
from millrace_apps.iot_maintenance.foresight.condition import Life
from millrace_apps.iot_maintenance.foresight.process import Foresight, Looking

if TYPE_CHECKING:
    import pyarrow as pa

#: Table → its column of figures.
_TABLES: Final = {"risks": "probability", "remaining_life": "remaining_h"}
#: The column with the begin of the interval.
_BEGIN: Final = "low_h"
_BATCH: Final = 20_000
#: The columns that all rows have once they are one table.
_ORDER: Final = ("event_time_ms", "machine_id", "component")


class Foreseen:
    """What the models said at the end of each step, handed out as time passes.

    Args:
        rows: Moment (UTC ms), machine, component and figure, in order; without a component the figure is the
            remaining life in hours, else the probability that it fails.
        at_least: Whether that remaining life is the begin of its interval.

    Example:
        >>> past = Foreseen([(60, "m1", "", 9.5), (60, "m1", "pump", 0.25)])
        >>> past.pass_to(60)
        >>> past.at("m1", 60), past.at("m1", 120)
        (({'pump': 0.25}, 9.5), None)
    """

    def __init__(self, rows: Iterable[tuple[int, str, str, float]], *, at_least: bool = False) -> None:
        self.at_least = at_least
        self._steps = groupby(rows, key=itemgetter(0, 1))
        self._ahead: tuple[tuple[int, str], tuple[dict[str, float], float | None]] | None = None
        self._known: dict[tuple[int, str], tuple[dict[str, float], float | None]] = {}
        self.found = 0
        self._advance()

    def pass_to(self, until_ms: int, since_ms: int = -(1 << 62)) -> None:
        """Let time pass.

        Args:
            until_ms: What was said until then can be asked for, UTC ms.
            since_ms: What was said before is forgotten, UTC ms.
        """
        for step in [step for step in self._known if step[0] < since_ms]:
            del self._known[step]
        while self._ahead is not None and self._ahead[0][0] <= until_ms:
            step, said = self._ahead
            if step[0] >= since_ms:
                self._known[step] = said
            self._advance()

    def at(self, machine: str, at_ms: int) -> tuple[dict[str, float], float | None] | None:
        """Return the risks of a machine's components and its remaining life (h), as was said at a moment.

        Args:
            machine: The machine.
            at_ms: The moment, UTC ms.

        Returns:
            ``None`` where nothing was said.
        """
        said = self._known.get((at_ms, machine))
        self.found += said is not None
        return said

    def _advance(self) -> None:
        for step, rows in self._steps:
            risks: dict[str, float] = {}
            life: float | None = None
            for _, _, component, figure in rows:
                if component:
                    risks[component] = figure
                else:
                    life = figure
            self._ahead = step, (risks, life)
            return
        self._ahead = None


def read_foreseen(
    tables: Path, *, since_ms: int, until_ms: int, by_interval: bool = False
) -> Foreseen | None:
    """Return what the tables of risks and remaining lives have; ``None`` where there is nothing.

    Args:
        tables: The folder of the tables.
        since_ms: Only from then on, UTC ms.
        until_ms: Only until then, UTC ms.
        by_interval: Whether the stream goes by the interval of remaining life, and not by the forecast.
    """
    import pyarrow as pa

    figures = {**_TABLES, "remaining_life": _BEGIN} if by_interval else _TABLES
    found = [
        part
        for name, figure in figures.items()
        if (part := _read(tables / name, figure, since_ms, until_ms)) is not None
    ]
    if not found:
        return None
    rows = pa.concat_tables(found).sort_by([(name, "ascending") for name in _ORDER])
    return Foreseen(_tuples(rows), at_least=by_interval)


def _read(table: Path, figure: str, since_ms: int, until_ms: int) -> pa.Table | None:
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(table)):
        return None
    data = DeltaTable(str(table)).to_pyarrow_dataset()
    at = pc.field("event_time_ms")
    columns: dict[str, Any] = {
        "event_time_ms": at,
        "machine_id": pc.field("machine_id"),
        "component": pc.field("component") if "component" in data.schema.names else pc.scalar(""),
        "figure": pc.field(figure),
    }
    rows = data.to_table(columns=columns, filter=(at >= since_ms) & (at <= until_ms))
    kinds = [pa.int64(), pa.string(), pa.string(), pa.float64()]
    return rows.cast(pa.schema(list(zip(columns, kinds, strict=True)))) if len(rows) else None


def _tuples(rows: pa.Table) -> Iterator[tuple[int, str, str, float]]:
    for part in rows.to_batches(max_chunksize=_BATCH):
        yield from zip(*(column.to_pylist() for column in part.columns), strict=True)


class PastForesight(Foresight):
    """Looks ahead as the models did then: what they said is not asked for anew.

    Args:
        every_ms: Length of a step, ms.
        ruling: By what alarms are judged.
        said: What the models said.
    """

    def __init__(self, every_ms: int, ruling: Ruling, said: Foreseen) -> None:
        super().__init__(Looking(every_ms=every_ms), ruling)
        self._said = said

    def _end_step(self, life: Life, ctx: Context) -> None:
        life.close(_NOTHING_USUAL)
        said = self._said.at(ctx.key, ctx.event_time)
        if said is not None:
            self._judge(life, *said, ctx, at_least=self._said.at_least)


#: Values of readings are in nothing that is said then.
_NOTHING_USUAL: Final = Baseline()


def seen(row: dict[str, Any]) -> EnrichedReading:
    """Return what a row of the table of readings says of its machine; its value is left out.

    Args:
        row: With ``errors_24h`` beside what back-tests of other rules read.
    """
    return EnrichedReading(
        reading_id=row["reading_id"],
        sensor_id=row["sensor_id"],
        machine_id=row["machine_id"],
        quantity=row["quantity"],
        value=None,
        unit="",
        event_time_ms=row["event_time_ms"],
        revision=0,
        corrected=False,
        late=False,
        quality="good",
        fault="",
        status=row["status"],
        status_since_ms=row["status_since_ms"],
        kind=row["kind"],
        attributes=dict(row["attributes"] or ()),
        last_maintenance_ms=dict(row["last_maintenance_ms"] or ()),
        component_age_days={},
        errors_24h=dict(row["errors_24h"] or ()),
    )
