"""Recorded trips through the process that estimates them: the table, the model, and their intervals."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from millrace.errors import UserError
from millrace.host.memory_chain import MemoryChain
from millrace.operations.report import write_parquet
from millrace_apps.ridesharing.eta.times import Model
from millrace_apps.ridesharing.eta.training import columns_of, export, train
from millrace_apps.ridesharing.eta.travel import Estimate, Leg, TravelTimes
from millrace_apps.ridesharing.evaluation.in_memory import REGION, chain_of, run
from millrace_apps.ridesharing.evaluation.recorded import read_requests, read_table

_HOUR_MS: Final = 3_600_000
#: Of an hour with fewer legs nothing is said.
_LEAST: Final = 50
#: The model is there before the first leg, and stays.
_NEVER_S: Final = 1e9
_END_MS: Final = 100_000 * 24 * _HOUR_MS


def carry_out(
    trips: Path,
    train_until_ms: int,
    test_from_ms: int,
    test_until_ms: int | None = None,
    *,
    zone: str = "UTC",
    scores: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Learn from the trips that ended by a time, and estimate those from another on.

    Args:
        trips: Parquet of recorded trips, with ``cab_id`` if the drivers are known.
        train_until_ms: Trips that ended by then are learned from, UTC ms; the table and what is recent go on
            learning as trips end.
        test_from_ms: Trips from then on are judged, UTC ms; not before ``train_until_ms``.
        test_until_ms: Trips before then, UTC ms; ``None``: to the end.
        zone: Time zone of the city.
        scores: Parquet for a row per judged trip.
        say: Is told what is done.

    Returns:
        The report: ``mae_s``, ``mape``, ``coverage_90`` and, beside them, those of table and straight line.

    Raises:
        UserError: The times contradict each other, or there are too few trips.
    """
    if test_from_ms < train_until_ms:
        raise UserError("--test-from is before --train-until: what is judged must not have been learned from")
    frame = _frame(trips)
    until = _END_MS if test_until_ms is None else test_until_ms
    judged = frame[(frame["at_ms"] >= test_from_ms) & (frame["at_ms"] < until)]
    if judged.empty:
        raise UserError(f"{trips} has no trip to judge")
    frame = frame[frame["at_ms"] < until]
    events = _legs(frame)
    before = [leg for leg in events if leg.at_ms <= train_until_ms]
    say(f"{len(before):,} beginnings and ends until training")
    chain = chain_of(TravelTimes(zone, tell_features=True))
    known = _run(chain, before)
    with tempfile.TemporaryDirectory(prefix="millrace-eta-") as folder:
        trained, training_s = _train(known, frame, train_until_ms, Path(folder))
        say(f"learned from {trained:,} trips in {training_s:.0f} s")
        later = chain_of(TravelTimes(zone, Model(folder, poll_s=_NEVER_S)))
        later.restore(chain.snapshot())
        began = time.perf_counter()
        told = _run(later, events[len(before) :])
        took = time.perf_counter() - began
    say(f"{len(told):,} trips estimated, {took / max(len(told), 1) * 1e3:.2f} ms each")
    rows = _rows(told, judged)
    if scores is not None:
        write_parquet(scores, rows)
    return {
        "trained": trained,
        "tested": len(rows),
        **_figures(rows),
        "training_s": round(training_s, 1),
        "estimate_ms": round(took / max(len(told), 1) * 1e3, 3),
    }


def _frame(trips: Path) -> pd.DataFrame:
    requests = read_requests(trips, 0, _END_MS)
    frame = pd.DataFrame(
        [(r.request_id, r.at_ms, r.lat, r.lon, r.to_lat, r.to_lon, r.duration_ms) for r in requests],
        columns=["trip_id", "at_ms", "from_lat", "from_lon", "to_lat", "to_lon", "took_ms"],
    )
    told = read_table(trips)
    drivers = dict(zip(told["trip_id"].astype(str), told.get("cab_id", told["trip_id"]), strict=True))
    frame["driver_id"] = [str(drivers[name]) for name in frame["trip_id"]]
    if frame["trip_id"].duplicated().any():
        raise UserError(f"{trips} has two trips of one trip_id")
    return frame[frame["took_ms"] > 0]


def _legs(frame: pd.DataFrame) -> list[Leg]:
    legs = []
    names = ("trip_id", "at_ms", "took_ms", "driver_id", "from_lat", "from_lon", "to_lat", "to_lon")
    for name, at, took, driver, *place in zip(*(frame[n].tolist() for n in names), strict=True):
        legs.append(Leg("begin", name, REGION, at, driver, *place))
        legs.append(Leg("end", name, REGION, at + took, driver, *place))
    return sorted(legs, key=lambda leg: (leg.at_ms, leg.what, leg.leg_id))


def _run(chain: MemoryChain, legs: Sequence[Leg]) -> list[Estimate]:
    return run(chain, legs, legs[-1].at_ms if legs else None)


def _train(known: Sequence[Estimate], frame: pd.DataFrame, until_ms: int, folder: Path) -> tuple[int, float]:
    took = dict(zip(frame["trip_id"], frame["took_ms"] / 1_000, strict=True))
    ended = [one for one in known if one.at_ms + took[one.leg_id] * 1_000 <= until_ms]
    began = time.perf_counter()
    trained = train(
        columns_of([one.features for one in ended]),
        np.array([one.straight_s for one in ended]),
        np.array([took[one.leg_id] for one in ended]),
        until_ms,
    )
    export(trained, folder)
    return trained.legs, time.perf_counter() - began


def _rows(told: Sequence[Estimate], judged: pd.DataFrame) -> pd.DataFrame:
    of = {one.leg_id: one for one in told}
    missing = [name for name in judged["trip_id"] if name not in of or of[name].model_s is None]
    if missing:
        raise UserError(f"{len(missing):,} trips have no estimate, {missing[0]} for one")
    found = [of[name] for name in judged["trip_id"]]
    return pd.DataFrame(
        {
            "trip_id": judged["trip_id"].to_numpy(),
            "at_ms": judged["at_ms"].to_numpy(),
            "duration_s": judged["took_ms"].to_numpy() / 1_000,
            "straight_s": [one.straight_s for one in found],
            "table_s": [one.table_s for one in found],
            "eta_s": np.array([one.model_s for one in found], dtype=float),
            "low_s": np.array([one.low_s for one in found], dtype=float),
            "high_s": np.array([one.high_s for one in found], dtype=float),
        }
    )


def _figures(rows: pd.DataFrame) -> dict[str, Any]:
    truth = rows["duration_s"].to_numpy()
    figures: dict[str, Any] = {}
    for name, prefix in (("eta_s", ""), ("table_s", "table_"), ("straight_s", "straight_")):
        error = np.abs(rows[name].to_numpy() - truth)
        figures[f"{prefix}mae_s"] = round(float(error.mean()), 2)
        figures[f"{prefix}mape"] = round(float((error / truth).mean()), 4)
    held = (rows["low_s"].to_numpy() <= truth) & (truth <= rows["high_s"].to_numpy())
    figures["coverage_90"] = round(float(held.mean()), 4)
    figures["interval_s"] = round(float(np.median(rows["high_s"] - rows["low_s"])), 1)
    hours = pd.Series(held).groupby(rows["at_ms"].to_numpy() // _HOUR_MS).agg(["size", "mean"])
    hours = hours[hours["size"] >= _LEAST]
    names = pd.to_datetime(hours.index.to_numpy() * _HOUR_MS, unit="ms").strftime("%Y-%m-%dT%HZ")
    figures["coverage_by_hour"] = dict(zip(names, hours["mean"].round(4).tolist(), strict=True))
    if len(hours):
        figures["coverage_least_hour"] = round(float(hours["mean"].min()), 4)
    return figures
