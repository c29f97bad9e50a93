"""Daily model monitoring: metrics, drift and age, as rows of the table ``model_metrics``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from millrace.errors import UserError
from millrace.models.drift import age_days, shifts
from millrace.models.loading import LoadedModel
from millrace_apps.fraud.model.examples import Examples
from millrace_apps.fraud.model.feedback import PAYMENTS_A_DAY
from millrace_apps.fraud.model.metrics import alert_precision_of_days
from millrace_apps.fraud.model.outcomes import Day, Outcome, count
from millrace_apps.fraud.model.prequential import DayMetrics, measure
from millrace_apps.fraud.model.weeks import day_of
from millrace_apps.fraud.state.labels import DAY_MS

METRICS_TABLE: Final = "model_metrics"


class Judged(NamedTuple):
    """A day of a model.

    Attributes:
        metrics: Its measures.
        alert_precision: Share of frauds among the payments that this model would have had looked at. That of
            ``metrics`` is of those that were, whichever model chose them.
    """

    metrics: DayMetrics
    alert_precision: float


def days_of(
    role: str,
    model: LoadedModel,
    known: Examples,
    alerted: Sequence[bool],
    until_ms: int,
    capacity: int = PAYMENTS_A_DAY,
) -> Iterator[Judged]:
    """Yield the days of a model after its training that are over and whose labels are known.

    Args:
        role: What the model is: champion, challenger.
        model: The model.
        known: Payments with their labels, by the model's inputs.
        alerted: Which of them somebody was alerted to.
        until_ms: Days that end later are not over.
        capacity: Payments that investigators look at in a day.
    """
    days = day_of(known.at)
    for number in np.unique(days[known.at > model.trained_until_ms]).tolist():
        if (number + 1) * DAY_MS > until_ms or number * DAY_MS <= model.trained_until_ms:
            continue
        rows = np.flatnonzero(days == number)
        x = known.x[rows]
        day = Day()
        scores = model.score_many(x)
        (precision,) = alert_precision_of_days(scores, known.fraud[rows], days[rows], capacity)
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
            card, fraud = str(known.cards[row]), bool(known.fraud[row])
            count(day, Outcome(role, int(known.at[row]), card, score, fraud, bool(alerted[row])))
        yield Judged(_with_drift(measure(role, number * DAY_MS, day), model, x), precision)


def standing(role: str, judged: Sequence[Judged], capacity: int) -> str:
    """Return how a model has done so far, in a line; means of the days.

    Args:
        role: What the model is.
        judged: Its days, one at least.
        capacity: Payments that investigators look at in a day.
    """
    metrics = [day.metrics for day in judged]
    ranked = [m.ap for m in metrics if m.ap is not None]
    ap = f"average precision {np.mean(ranked):.3f}" if ranked else "no frauds"
    precision = np.mean([day.alert_precision for day in judged])
    return (
        f"{role}, version {metrics[0].version}: {len(judged)} days, {ap}, "
        f"{precision:.1%} frauds among the {capacity} highest of a day"
    )


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
