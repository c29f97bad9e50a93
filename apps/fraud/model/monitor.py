"""How the models do, day by day: measures, drift and age, as rows of the table ``model_metrics``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from apps.fraud.labels import DAY_MS
from apps.fraud.model.drift import age_days, shifts
from apps.fraud.model.prequential import Day, DayMetrics, Outcome, count, measure
from apps.fraud.model.source import LoadedModel
from apps.fraud.model.training import Examples
from apps.fraud.model.weeks import day_of
from millrace.errors import UserError

METRICS_TABLE: Final = "model_metrics"


def days_of(
    role: str, model: LoadedModel, known: Examples, alerted: Sequence[bool], until_ms: int
) -> Iterator[DayMetrics]:
    """Yield the days of a model after its training that are over and whose labels are known.

    Args:
        role: What the model is: champion, challenger.
        model: The model.
        known: Payments with their labels, by the model's inputs.
        alerted: Which of them somebody was alerted to.
        until_ms: Days that end later are not over.
    """
    days = day_of(known.at)
    for number in np.unique(days[known.at > model.trained_until_ms]).tolist():
        if (number + 1) * DAY_MS > until_ms or number * DAY_MS <= model.trained_until_ms:
            continue
        rows = np.flatnonzero(days == number)
        x = known.x[rows]
        day = Day()
        scores = model.score_many(x).tolist()
        for row, score in zip(rows.tolist(), scores, strict=True):
            card, fraud = str(known.cards[row]), bool(known.fraud[row])
            count(day, Outcome(role, int(known.at[row]), card, score, fraud, bool(alerted[row])))
        yield _with_drift(measure(role, number * DAY_MS, day), model, x)


def write(days: Sequence[DayMetrics], root: Path) -> None:
    """Write the table ``model_metrics`` anew.

    Raises:
        UserError: The streaming job writes it.
    """
    import pandas as pd
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    folder = str(root / "tables" / METRICS_TABLE)
    if DeltaTable.is_deltatable(folder) and "_event_id" in {
        field.name for field in DeltaTable(folder).schema().fields
    }:
        raise UserError(f"the streaming job writes {folder} (model.measure is on): its figures are there")
    frame = pd.DataFrame([msgspec.structs.asdict(day) for day in days])
    for name in ("auc", "ap", "cp100", "alert_precision", "recall_at_01pct_fpr", "score_psi", "label_psi"):
        frame[name] = frame[name].astype("float64")
    table = pa.Table.from_pandas(frame, preserve_index=False)
    write_deltalake(folder, table, mode="overwrite", schema_mode="overwrite")


def _with_drift(measured: DayMetrics, model: LoadedModel, x: Any) -> DayMetrics:
    found = shifts(model.about.get("profile", {}), {name: x[:, i] for i, name in enumerate(model.inputs)})
    return msgspec.structs.replace(
        measured,
        version=model.version,
        drifted=found[0].feature if found else "",
        psi=found[0].psi if found else 0.0,
        shifted=sum(shift.shifted for shift in found),
        age_days=age_days(model.trained_until_ms, measured.day_ms + DAY_MS),
    )
