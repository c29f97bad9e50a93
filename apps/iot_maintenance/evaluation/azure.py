"""The join, held against the same join over whole tables: Microsoft's predictive-maintenance sample.

All tables are streamed in shuffled order, with delays that stay within the grace, and a share of the facts
with such long ones that they come after readings which should have known them. The last row of each reading
is compared with what ``merge_asof`` gives in pandas.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.errors import UserError
from millrace_apps.iot_maintenance.contracts.events import Equipment, MachineError, Maintenance, Reading
from millrace_apps.iot_maintenance.evaluation.stream import Engine, Sent, run, settings_for, written

if TYPE_CHECKING:
    import pandas as pd

DAY_MS: Final = 86_400_000
QUANTITIES: Final = ("volt", "rotate", "pressure", "vibration")
COMPONENTS: Final = ("comp1", "comp2", "comp3", "comp4")
ERRORS: Final = ("error1", "error2", "error3", "error4", "error5")
#: Delays of what is not late are up to this share of the grace, of what is late from there to nearly all.
_SHUFFLE: Final = 0.4
_LATE: Final = (0.5, 0.98)
#: The watermark stays behind by this share of the grace: most facts come behind it.
_BOUND: Final = 1 / 24
_TOLERANCE: Final = 1e-9
#: A micro-batch has what comes in this share of the grace, unless that is less than this many events: what a
#: batch brings together is in order, so that in long ones nothing would come late.
_BATCH: Final = 1.0
_LEAST_BATCH: Final = 500


class DataMissing(UserError):
    """A folder does not have the files of the data set."""


class Report(msgspec.Struct, frozen=True):
    """What the evaluation found.

    Attributes:
        rows: Telemetry rows compared.
        mismatches: Rows of which any feature, or any of the four readings, differs from the oracle.
        late_facts: Facts that were delayed on purpose.
        late_corrected: Rows of readings that were corrected because a fact came late.
        late_readings: Readings that came behind the watermark.
        beyond_grace: Events that came too late to be joined.
        dead_letters: Events that could not be handled.
        events: Events streamed.
        events_per_s: How many of them a second.
        seconds: How long it took.
        grace_ms: The grace.
        bound_ms: How far the watermark stayed behind.
        engine: Where it ran.
    """

    rows: int
    mismatches: int
    late_facts: int
    late_corrected: int
    late_readings: int
    beyond_grace: int
    dead_letters: int
    events: int
    events_per_s: float
    seconds: float
    grace_ms: int
    bound_ms: int
    engine: str


#: Table → its files, and the columns that they have.
_TABLES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "telemetry": ("telemetry*.parquet", ("datetime", "machineID", *QUANTITIES)),
    "errors": ("errors*.csv", ("datetime", "machineID", "errorID")),
    "maint": ("maint*.csv", ("datetime", "machineID", "comp")),
    "machines": ("machines*.csv", ("machineID", "model", "age")),
    "failures": ("failures*.csv", ("datetime", "machineID", "failure")),
}


def read_tables(folder: Path) -> dict[str, pd.DataFrame]:
    """Return the tables of a folder: telemetry, errors, maint, machines.

    Args:
        folder: Has ``telemetry_*.parquet``, ``errors_*.csv``, ``maint_*.csv`` and ``machines_*.csv``.

    Raises:
        DataMissing: A table is not there, or is something else.
    """
    found = {name: read_table(folder, name) for name in _TABLES if name != "failures"}
    if found["telemetry"].empty:
        raise DataMissing(f"{folder} has telemetry without a row: nothing would be joined")
    return found


def read_table(folder: Path, name: str) -> pd.DataFrame:
    """Return one table of a folder, without rows that are there again; its times are of ms, UTC.

    Args:
        folder: The folder.
        name: One of ``telemetry``, ``errors``, ``maint``, ``machines`` and ``failures``.

    Raises:
        DataMissing: It is not there, cannot be read, lacks a column, or has a time or a machine that is none.
    """
    import pandas as pd

    pattern, columns = _TABLES[name]
    files = sorted(folder.glob(pattern))
    if not files:
        raise DataMissing(f"{folder} has no {pattern}: it is no folder of the Azure sample")
    parts = []
    for path in files:
        try:
            part = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
        except (OSError, ValueError) as error:
            raise DataMissing(f"{path} cannot be read: {' '.join(str(error).split())}") from None
        if missing := [column for column in columns if column not in part]:
            raise DataMissing(f"{path} has no column {missing[0]}")
        try:
            part["machineID"] = part["machineID"].astype("int64")
        except (TypeError, ValueError):
            raise DataMissing(f"{path} has a machineID that is no whole number") from None
        if "datetime" in columns:
            try:
                part["datetime"] = pd.to_datetime(part["datetime"]).astype("datetime64[ms]")
            except (TypeError, ValueError) as error:
                raise DataMissing(f"{path} has a time that is none: {' '.join(str(error).split())}") from None
            if part["datetime"].isna().any():
                raise DataMissing(f"{path} has a row without a time")
        parts.append(part)
    filled = [part for part in parts if len(part)] or parts[:1]
    return pd.concat(filled, ignore_index=True).drop_duplicates().reset_index(drop=True)


def events_of(
    tables: Mapping[str, pd.DataFrame], grace_ms: int, seed: int, late_share: float
) -> tuple[list[Sent], int]:
    """Return all events in the order in which they come, and how many facts were delayed on purpose.

    Args:
        tables: The tables.
        grace_ms: What delays stay within, ms.
        seed: Where the delays come from.
        late_share: Share of facts with a long delay.
    """
    rng = random.Random(seed)  # noqa: S311 - delays, not secrets
    arriving: list[tuple[float, int, Sent]] = []
    late = 0

    chosen = _chosen(tables, rng, late_share)

    def send(topic: str, event: Any, *, fact: bool) -> None:
        nonlocal late
        share = rng.uniform(0.0, _SHUFFLE)
        if fact and (topic, event.machine_id, event.event_time_ms) in chosen:
            late += 1
            share = rng.uniform(*_LATE)
        arriving.append((event.event_time_ms + share * grace_ms, len(arriving), Sent(topic, event)))

    first = min(at for name in ("telemetry", "maint", "errors") for at in _times(tables[name]))
    for row in tables["machines"].itertuples():
        attributes = {"model": str(row.model), "age": str(row.age)}
        send("equipment", Equipment(str(row.machineID), first, "", attributes), fact=False)
    for name, column in (("maint", "comp"), ("errors", "errorID")):
        table = tables[name]
        values = (_times(table), table["machineID"].tolist(), table[column].tolist())
        for at, machine, what in zip(*values, strict=True):
            who = str(machine)
            if name == "maint":
                send(
                    "maintenance",
                    Maintenance(f"m{who}.{what}.{at}", who, what, at, "scheduled", 0),
                    fact=True,
                )
            else:
                send("errors", MachineError(f"e{who}.{what}.{at}", who, what, at), fact=True)
    telemetry = tables["telemetry"]
    measured = [telemetry[quantity].tolist() for quantity in QUANTITIES]
    for at, machine, *values_at in zip(
        _times(telemetry), telemetry["machineID"].tolist(), *measured, strict=True
    ):
        who = str(machine)
        for quantity, value in zip(QUANTITIES, values_at, strict=True):
            identity = f"{who}.{quantity}.{at}"
            event = Reading(identity, f"{who}.{quantity}", who, "gateway", quantity, value, "1", at)
            send("readings", event, fact=False)
    arriving.sort(key=lambda item: item[:2])
    return [sent for _, _, sent in arriving], late


def _chosen(
    tables: Mapping[str, pd.DataFrame], rng: random.Random, share: float
) -> set[tuple[str, str, int]]:
    """Return which facts come late: a share of all, of those that readings follow within a day."""
    telemetry = tables["telemetry"]
    first = {str(m): times.min() for m, times in telemetry.groupby("machineID")["datetime"]}
    last = telemetry["datetime"].max()
    facts, total = [], 0
    for topic, name in (("maintenance", "maint"), ("errors", "errors")):
        table = tables[name]
        total += len(table)
        for at, ms_, machine in zip(table["datetime"], _times(table), table["machineID"], strict=True):
            if str(machine) in first and first[str(machine)] <= at <= last:
                facts.append((topic, str(machine), ms_))
    facts = sorted(set(facts))
    return set(rng.sample(facts, min(len(facts), round(share * total))))


def _times(table: pd.DataFrame) -> list[int]:
    return table["datetime"].astype("int64").tolist()


def oracle(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the features of every telemetry row by a join over whole tables.

    Args:
        tables: The tables.

    Returns:
        Telemetry with days_since_comp1 … 4, error1 … 5_24h, model and age, by machine and time.
    """
    import numpy as np
    import pandas as pd

    frame = tables["telemetry"].sort_values(["datetime", "machineID"]).reset_index(drop=True)
    for component in COMPONENTS:
        maint = tables["maint"]
        times = maint[maint["comp"] == component][["machineID", "datetime"]].sort_values("datetime")
        times["replaced"] = times["datetime"]
        joined = pd.merge_asof(
            frame[["machineID", "datetime"]], times, on="datetime", by="machineID", allow_exact_matches=False
        )
        since = joined["datetime"] - joined["replaced"]
        frame[f"days_since_{component}"] = since.dt.total_seconds() / 86_400.0
    for error in ERRORS:
        found = tables["errors"][tables["errors"]["errorID"] == error]
        counts = np.zeros(len(frame), dtype=np.int64)
        for machine, rows in frame.groupby("machineID"):
            of = np.sort(found[found["machineID"] == machine]["datetime"].to_numpy())
            at = rows["datetime"].to_numpy()
            upto = np.searchsorted(of, at, side="right")
            counts[rows.index] = upto - np.searchsorted(of, at - np.timedelta64(24, "h"), side="right")
        frame[f"{error}_24h"] = counts
    machines = tables["machines"][["machineID", "model", "age"]]
    return frame.merge(machines, on="machineID", how="left")


def features_of(rows: list[dict[str, Any]]) -> tuple[pd.DataFrame, int]:
    """Return the last row of each machine and time, and how many rows contradict others or are there again.

    Args:
        rows: Enriched readings, every revision.
    """
    import pandas as pd

    last: dict[str, dict[str, Any]] = {}
    again = len(rows) - len({(row["reading_id"], row["revision"]) for row in rows})
    for row in rows:
        before = last.get(row["reading_id"])
        if before is None or before["revision"] < row["revision"]:
            last[row["reading_id"]] = row
    wide: dict[tuple[int, int], dict[str, Any]] = {}
    contradicting = set()
    for row in last.values():
        key = int(row["machine_id"]), int(row["event_time_ms"])
        ages, errors, known = row["component_age_days"], row["errors_24h"], row["attributes"]
        told = {f"days_since_{c}": ages.get(c) for c in COMPONENTS}
        told |= {f"{e}_24h": errors.get(e, 0) for e in ERRORS}
        told |= {"model": known.get("model"), "age": int(known["age"]) if "age" in known else None}
        at = wide.setdefault(key, {"machineID": key[0], "datetime": key[1], **told})
        if any(at[name] != value for name, value in told.items()):
            contradicting.add(key)
        at[row["quantity"]] = row["value"]
    names = ["machineID", "datetime", *QUANTITIES, *(f"days_since_{c}" for c in COMPONENTS)]
    frame = pd.DataFrame(list(wide.values()), columns=[*names, *(f"{e}_24h" for e in ERRORS), "model", "age"])
    frame["datetime"] = pd.to_datetime(frame["datetime"], unit="ms").astype("datetime64[ms]")
    for component in COMPONENTS:
        frame[f"days_since_{component}"] = frame[f"days_since_{component}"].astype("float64")
    return frame.sort_values(["machineID", "datetime"]).reset_index(drop=True), len(contradicting) + again


def mismatches(found: pd.DataFrame, wanted: pd.DataFrame) -> int:
    """Return how many rows of two frames of features differ, those that only one has among them."""
    import numpy as np

    keys = ["machineID", "datetime"]
    both = wanted.merge(found, on=keys, how="outer", suffixes=("", "_found"), indicator=True)
    differs = (both["_merge"] != "both").to_numpy()
    for name in wanted.columns:
        if name in keys:
            continue
        left, right = both[name], both[f"{name}_found"]
        if left.dtype == object:
            differs |= ~((left == right) | (left.isna() & right.isna())).to_numpy()
        else:
            a, b = left.to_numpy("float64"), right.to_numpy("float64")
            differs |= ~np.isclose(a, b, rtol=0.0, atol=_TOLERANCE, equal_nan=True)
    return int(differs.sum())


def evaluate(
    folder: Path,
    *,
    grace_ms: int,
    seed: int,
    late_share: float,
    engine: Engine,
    told: Callable[[int, int], None],
) -> tuple[Report, pd.DataFrame]:
    """Stream the tables of a folder and compare what comes out with the oracle.

    Args:
        folder: The data.
        grace_ms: The grace, ms.
        seed: Where the order comes from.
        late_share: Share of facts that come late.
        engine: Where it runs.
        told: Called with how many batches are done, of how many.

    Returns:
        The report, and the features of every telemetry row.

    Raises:
        DataMissing: The folder does not have the data.
    """
    tables = read_tables(folder)
    events, late = events_of(tables, grace_ms, seed, late_share)
    bound_ms = int(grace_ms * _BOUND)
    overrides = [f"monitor.grace={grace_ms}", f"stream.out_of_orderness={bound_ms}", "monitor.keep=3650d"]
    overrides += ["spark.quick_start=true", "monitor.judge=false"]
    telemetry = tables["telemetry"]["datetime"]
    span_ms = max(int((telemetry.max() - telemetry.min()).total_seconds() * 1000), 1)
    batch = max(_LEAST_BATCH, int(len(events) * _BATCH * grace_ms / span_ms))
    with written([]) as fleet:  # the join alone: no rules of some other fleet
        settings = settings_for([*overrides, f"monitor.fleet_file={fleet}"])
        result = run(events, settings, ["readings"], engine=engine, batch=batch, told=told)
    rows = result.rows["readings"]
    found, contradicting = features_of(rows)
    wanted = oracle(tables)
    report = Report(
        rows=len(wanted),
        mismatches=mismatches(found, wanted) + contradicting,
        late_facts=late,
        late_corrected=len({row["reading_id"] for row in rows if row["corrected"]}),
        late_readings=sum(1 for row in rows if row["late"] and not row["corrected"]),
        beyond_grace=result.late,
        dead_letters=result.dead,
        events=result.events,
        events_per_s=round(result.events_per_s, 1),
        seconds=round(result.seconds, 3),
        grace_ms=grace_ms,
        bound_ms=bound_ms,
        engine=engine,
    )
    return report, found
