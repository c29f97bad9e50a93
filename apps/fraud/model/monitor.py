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

METRICS_TABLE: Final = "model_metrics"


class ModelDay(msgspec.Struct, frozen=True):
    """A day of a model in the table ``model_metrics``.

    The first fields are those of :class:`~apps.fraud.model.prequential.DayMetrics`; ``model`` is the role.

    Attributes:
        version: The model's version.
        drifted: The feature that is farthest from what the model learned from.
        psi: Its population stability index of this day.
        shifted: How many features have shifted.
        age_days: From the newest payment that the model was trained on to the end of the day.
    """

    model: str
    day_ms: int
    rows: int
    frauds: int
    auc: float | None
    ap: float | None
    cp100: float | None
    alert_precision: float | None
    recall_at_01pct_fpr: float | None
    mean_score: float
    version: str
    drifted: str
    psi: float
    shifted: int
    age_days: float


def days_of(
    role: str, model: LoadedModel, known: Examples, alerted: Sequence[bool], until_ms: int
) -> Iterator[ModelDay]:
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


def write(days: Sequence[ModelDay], root: Path) -> None:
    """Write the table ``model_metrics`` anew."""
    import pandas as pd
    import pyarrow as pa
    from deltalake import write_deltalake

    frame = pd.DataFrame([msgspec.structs.asdict(day) for day in days])
    for name in ("auc", "ap", "cp100", "alert_precision", "recall_at_01pct_fpr"):
        frame[name] = frame[name].astype("float64")
    table = pa.Table.from_pandas(frame, preserve_index=False)
    write_deltalake(str(root / "tables" / METRICS_TABLE), table, mode="overwrite", schema_mode="overwrite")


def _with_drift(measured: DayMetrics, model: LoadedModel, x: Any) -> ModelDay:
    found = shifts(model.about.get("profile", {}), {name: x[:, i] for i, name in enumerate(model.inputs)})
    return ModelDay(
        **msgspec.structs.asdict(measured),
        version=model.version,
        drifted=found[0].feature if found else "",
        psi=found[0].psi if found else 0.0,
        shifted=sum(shift.shifted for shift in found),
        age_days=age_days(model.trained_until_ms, measured.day_ms + DAY_MS),
    )
