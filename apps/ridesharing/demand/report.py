"""Recorded requests through the process that foresees them: model, table, and what is simpler."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import h3
import numpy as np
import pandas as pd

from millrace.errors import UserError
from millrace.host.memory_chain import MemoryChain
from millrace.models.exports import CHAMPION, Exports
from millrace.operations.report import write_parquet
from millrace_apps.ridesharing.demand.process import (
    FEATURES_VERSION,
    MODEL_NAME,
    NAMES,
    QUARTER_MS,
    Ask,
    Demand,
    Foreseen,
    Model,
)
from millrace_apps.ridesharing.evaluation.in_memory import REGION, chain_of, run
from millrace_apps.ridesharing.evaluation.recorded import read_requests

_END_MS: Final = 100_000 * 96 * QUARTER_MS
#: So many quarters of cells are needed to learn from.
_LEAST: Final = 2_000
#: The model is there before the first request that it is asked for, and stays.
_NEVER_S: Final = 1e9


def carry_out(
    trips: Path,
    train_until_ms: int,
    test_from_ms: int,
    test_until_ms: int | None = None,
    *,
    zone: str = "UTC",
    resolution: int = 8,
    scores: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Learn from the quarters that ended by a time, and foresee those from another on.

    Args:
        trips: Parquet of recorded trips; each begins as a request.
        train_until_ms: Quarters that ended by then are learned from, UTC ms; counts go on.
        test_from_ms: Quarters that begin then or later are judged, UTC ms; not before ``train_until_ms``.
        test_until_ms: Quarters that end then or before, UTC ms; ``None``: the last whole one.
        zone: Time zone of the city.
        resolution: H3 resolution of the cells.
        scores: Parquet for a row per cell and quarter.
        say: Is told what is done.

    Returns:
        The report: ``mae``, ``wape``, ``poisson_deviance``, ``coverage_90`` of the model, and the errors of
        table, last quarter, and the same quarter a week (a day, where there is less) before.

    Raises:
        UserError: The times contradict each other, or there is too little to learn from or to judge.
    """
    if test_from_ms < train_until_ms:
        raise UserError("--test-from is before --train-until: what is judged must not have been learned from")
    if not 5 <= resolution <= 10:
        raise UserError("--resolution is from 5 to 10")
    until = _END_MS if test_until_ms is None else test_until_ms
    asks = [
        Ask(r.request_id, REGION, r.at_ms, r.lat, r.lon)
        for r in read_requests(trips, 0, _END_MS)
        if r.at_ms < until
    ]
    if not asks or asks[-1].at_ms < test_from_ms + QUARTER_MS:
        raise UserError(f"{trips} has no whole quarter of an hour to judge")
    until = min(until, asks[-1].at_ms) // QUARTER_MS * QUARTER_MS
    asks = [ask for ask in asks if ask.at_ms < until]
    truth = _counts(asks, resolution)
    with tempfile.TemporaryDirectory(prefix="millrace-demand-") as folder:
        began = time.perf_counter()
        later, trained, cut = learned(asks, train_until_ms, Path(folder), zone=zone, resolution=resolution)
        training_s = time.perf_counter() - began
        say(f"learned from {trained:,} quarters of cells in {training_s:.0f} s")
        began = time.perf_counter()
        told = run(later, asks[cut:], until)
        took = time.perf_counter() - began
    rows = _rows([one for one in told if one.start_ms >= test_from_ms], truth, test_from_ms, until)
    say(f"{len(rows):,} quarters of cells foreseen, {took / max(len(told), 1) * 1e6:.0f} µs each")
    if scores is not None:
        write_parquet(scores, rows)
    return {
        "trained": trained,
        "tested": len(rows),
        "cells": int(rows["cell"].nunique()),
        "requests": int(rows["requests"].sum()),
        **_figures(rows),
        "training_s": round(training_s, 1),
        "forecast_us": round(took / max(len(told), 1) * 1e6, 1),
    }


def learned(
    asks: Sequence[Ask], until_ms: int, folder: Path, *, zone: str, resolution: int
) -> tuple[MemoryChain, int, int]:
    """Let requests pass until a time, learn from them, and go on with the model.

    Args:
        asks: Requests, in order.
        until_ms: Quarters that ended by then are learned from, UTC ms.
        folder: Where the model is put.
        zone: Time zone of the city.
        resolution: H3 resolution of the cells.

    Returns:
        The process that goes on, how many quarters of cells it has learned from, and how many requests it has
        taken.
    """
    cut = sum(ask.at_ms < until_ms // QUARTER_MS * QUARTER_MS for ask in asks)
    chain = chain_of(Demand(zone, resolution, tell_features=True))
    known = run(chain, asks[:cut])
    known = [one for one in known if one.start_ms + QUARTER_MS <= until_ms]
    _train(known, _counts(asks[:cut], resolution), until_ms, folder)
    later = chain_of(Demand(zone, resolution, Model(str(folder), poll_s=_NEVER_S), tell_features=True))
    later.restore(chain.snapshot())
    return later, len(known), cut


def _counts(asks: Sequence[Ask], resolution: int) -> dict[tuple[str, int], int]:
    return Counter(
        (h3.latlng_to_cell(ask.lat, ask.lon, resolution), ask.at_ms - ask.at_ms % QUARTER_MS) for ask in asks
    )


def _train(known: Sequence[Foreseen], truth: dict[tuple[str, int], int], until_ms: int, folder: Path) -> None:
    """Learn how many requests come, and let workers find the model."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    if len(known) < _LEAST:
        raise UserError(f"{len(known):,} quarters of cells have ended by then: {_LEAST:,} are needed")
    features = np.array([one.features for one in known], dtype=np.float32)
    came = np.array([truth.get((one.cell, one.start_ms), 0) for one in known], dtype=float)
    if not came.any():
        raise UserError("nobody asked for a ride by then: there is nothing to learn from")
    model = HistGradientBoostingRegressor(
        loss="poisson", learning_rate=0.05, max_iter=200, max_leaf_nodes=31, min_samples_leaf=200,
        max_features=0.5, random_state=0,
    )  # fmt: skip
    Exports(str(folder), MODEL_NAME).publish_estimator(
        CHAMPION,
        model.fit(features, came),
        inputs=tuple(NAMES),
        features_version=FEATURES_VERSION,
        kind="regressor",
        trained_until_ms=until_ms,
        about={"quarters": len(known)},
    )


def _rows(
    told: Sequence[Foreseen], truth: dict[tuple[str, int], int], from_ms: int, until_ms: int
) -> pd.DataFrame:
    """Return what was foreseen beside what came; in a cell of the first time nothing was foreseen."""
    week, days = NAMES.index("week"), NAMES.index("days")
    yesterday = NAMES.index("yesterday")
    rows = []
    seen = set()
    if any(not one.model_version for one in told):
        raise UserError("the model could not be asked: the log says why")
    for one in told:
        if one.start_ms + QUARTER_MS > until_ms:
            continue
        seen.add((one.cell, one.start_ms))
        before = one.features[week] if one.features[days] >= 7 else one.features[yesterday]
        came = truth.get((one.cell, one.start_ms), 0)
        rows.append(
            (one.cell, one.start_ms, came, one.expected, one.low, one.high, one.table, one.last, before)
        )
    for (cell, start), came in truth.items():
        if from_ms <= start and (cell, start) not in seen:
            rows.append((cell, start, came, 0.0, 0, 0, 0.0, 0, 0.0))
    if not rows:
        raise UserError("there is no whole quarter of an hour to judge")
    names = ["cell", "start_ms", "requests", "expected", "low", "high", "table", "last", "week"]
    frame = pd.DataFrame(rows, columns=names)
    return frame.sort_values(["start_ms", "cell"], ignore_index=True)


def _figures(rows: pd.DataFrame) -> dict[str, Any]:
    from sklearn.metrics import mean_poisson_deviance

    came = rows["requests"].to_numpy(dtype=float)
    figures: dict[str, Any] = {}
    for name, prefix in (("expected", ""), ("table", "table_"), ("last", "last_"), ("week", "week_")):
        error = np.abs(rows[name].to_numpy(dtype=float) - came)
        figures[f"{prefix}mae"] = round(float(error.mean()), 4)
        figures[f"{prefix}wape"] = round(float(error.sum() / max(came.sum(), 1.0)), 4)
        if prefix in ("", "table_"):
            foreseen = np.maximum(rows[name].to_numpy(dtype=float), 1e-3)
            figures[f"{prefix}poisson_deviance"] = round(float(mean_poisson_deviance(came, foreseen)), 4)
    held = (rows["low"] <= rows["requests"]) & (rows["requests"] <= rows["high"])
    figures["coverage_90"] = round(float(held.mean()), 4)
    busy = rows["expected"] >= 1.0
    if busy.any():
        figures["coverage_90_busy"] = round(float(held[busy].mean()), 4)
    return figures
