"""Training from tables: what was known when, in order of time, and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from apps.fraud.handbook.events import PaymentFeatures
from apps.fraud.labels import DAY_MS
from apps.fraud.model.drift import profile_of
from apps.fraud.model.estimator import MODEL, Calibration, ModelSpec, calibration, matrix
from apps.fraud.model.metrics import Quality, quality
from apps.fraud.model.weeks import day_of
from millrace.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: Payments that a model is trained on, days; and those held back to see how good it is.
TRAIN_DAYS: Final = 28
VALIDATE_DAYS: Final = 7
#: Fewer frauds teach nothing.
LEAST_FRAUDS: Final = 20
_NEEDED: Final = ("transaction_id", "event_time_ms", "customer_id", "is_fraud", *MODEL.inputs)


class CannotTrain(UserError):
    """There is not enough known to train on."""


@dataclass(frozen=True)
class Examples:
    """Payments whose labels were known at some time, in order of time.

    Attributes:
        x: Features, shape (n, features).
        fraud: True for frauds.
        cards: Card of each.
        at: Event time of each, ms.
        alerted: Which somebody was alerted to.
    """

    x: npt.NDArray[np.float32]
    fraud: npt.NDArray[np.bool_]
    cards: npt.NDArray[Any]
    at: npt.NDArray[np.int64]
    alerted: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.fraud)

    def part(self, since: int, until: int) -> Examples:
        """Return those from ``since`` up to before ``until``, ms."""
        rows = (self.at >= since) & (self.at < until)
        return self.chosen(rows)

    def chosen(self, rows: Any) -> Examples:
        """Return some of them, by a mask or by their places."""
        return Examples(self.x[rows], self.fraud[rows], self.cards[rows], self.at[rows], self.alerted[rows])


@dataclass(frozen=True)
class Trained:
    """A trained model, and how good it was before it saw everything.

    Attributes:
        spec: The kind of model.
        model: The model, trained on all examples.
        calibration: From its scores to probabilities.
        validation: Measures on the newest examples, of a model trained on the older ones.
        rows: Examples.
        frauds: Frauds among them.
        since_ms: Event time of the oldest.
        until_ms: Event time of the newest.
        profile: Bins of the features and their shares, for drift.
    """

    spec: ModelSpec
    model: Any
    calibration: Calibration
    validation: Quality
    rows: int
    frauds: int
    since_ms: int
    until_ms: int
    profile: Mapping[str, Mapping[str, list[float]]]

    def metrics(self) -> dict[str, float]:
        """Return the measures by name, those that are numbers."""
        return {f"validation_{k}": v for k, v in asdict(self.validation).items() if np.isfinite(v)}


def read_table(folder: str | Path, columns: tuple[str, ...]) -> tuple[pd.DataFrame, int]:
    """Read columns of a Delta table; return them with the table's version.

    Raises:
        CannotTrain: There is no such table, or it lacks a column.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        table = DeltaTable(str(folder))
    except TableNotFoundError as error:
        raise CannotTrain(f"there is no table {folder}: run the app first") from error
    names = {f.name for f in table.schema().fields}
    missing = [name for name in columns if name not in names]
    if missing:
        raise CannotTrain(f"the table {folder} has no column {', '.join(missing[:5])}")
    return table.to_pyarrow_table(columns=list(columns)).to_pandas(), int(table.version())


def read_features(folder: str | Path) -> tuple[pd.DataFrame, int]:
    """Read what training needs of a table of :class:`~apps.fraud.handbook.events.PaymentFeatures`."""
    assert set(_NEEDED) <= set(PaymentFeatures.__struct_fields__)  # noqa: S101 - a name was changed
    return read_table(folder, _NEEDED)


def examples(
    features: pd.DataFrame,
    as_of_ms: int,
    label_delay_ms: int,
    *,
    labels: pd.DataFrame | None = None,
    days: int = TRAIN_DAYS + VALIDATE_DAYS,
    inputs: tuple[str, ...] = MODEL.inputs,
) -> Examples:
    """Return the payments whose labels are known at a time: those at least the label delay old.

    Args:
        features: Features of payments.
        as_of_ms: The time, ms; nothing that became known later is used.
        label_delay_ms: How long labels take, ms: younger payments are left out.
        labels: Labels with ``transaction_id``, ``event_time_ms`` (when it became known) and ``is_fraud``;
            the newest known word counts, and what nobody has spoken of is genuine. Without them
            ``is_fraud`` of the features counts.
        days: How far to go back.
        inputs: The features to take.
    """
    until = as_of_ms - label_delay_ms
    at = features["event_time_ms"]
    chosen = features[(at <= until) & (at > until - days * DAY_MS)]
    chosen = chosen.sort_values(["event_time_ms", "transaction_id"], ignore_index=True)
    if labels is None:
        fraud = (chosen["is_fraud"] == True).to_numpy(dtype=bool)  # noqa: E712 - null is genuine
    else:
        known = labels[labels["event_time_ms"] <= as_of_ms].sort_values("event_time_ms", kind="stable")
        said = known.drop_duplicates("transaction_id", keep="last").set_index("transaction_id")["is_fraud"]
        fraud = (chosen["transaction_id"].map(said) == True).to_numpy(dtype=bool)  # noqa: E712
    return Examples(
        matrix(chosen, inputs),
        fraud,
        chosen["customer_id"].to_numpy(),
        chosen["event_time_ms"].to_numpy(dtype=np.int64),
        chosen["alerted"].to_numpy(dtype=bool) if "alerted" in chosen else np.zeros(len(chosen), dtype=bool),
    )


def train(
    known: Examples,
    label_delay_ms: int,
    *,
    spec: ModelSpec = MODEL,
    seed: int = 0,
    jobs: int = 1,
    validate_days: int = VALIDATE_DAYS,
) -> Trained:
    """Train a model, and tell how good such a model is on payments it has not seen.

    The newest days are held back; between them and what the judged model is trained on the label delay
    passes, as it does in life. The model that is returned is then trained on all.

    Args:
        known: Examples, in order of time.
        label_delay_ms: How long labels take, ms.
        spec: The kind of model.
        seed: Its seed.
        jobs: Threads to train with.
        validate_days: Days held back.

    Raises:
        CannotTrain: There are too few frauds.
    """
    frauds = int(known.fraud.sum())
    if frauds < LEAST_FRAUDS or frauds == len(known):
        raise CannotTrain(
            f"{len(known):,} payments with {frauds} known frauds are not enough to learn from: "
            f"at least {LEAST_FRAUDS} frauds are needed, older than the label delay"
        )
    end = int(known.at[-1]) + 1
    held = known.part(end - validate_days * DAY_MS, end)
    seen = known.part(0, int(held.at[0]) - label_delay_ms)
    every = np.arange(len(known))
    return Trained(
        spec,
        spec.build(seed, jobs=jobs).fit(known.x, known.fraud),
        calibration(known.x, known.fraud, every, spec=spec, jobs=jobs),
        _validate(seen, held, spec, seed, jobs),
        len(known),
        frauds,
        int(known.at[0]),
        end - 1,
        profile_of(known.x, spec.inputs),
    )


def _validate(seen: Examples, held: Examples, spec: ModelSpec, seed: int, jobs: int) -> Quality:
    if not 0 < int(seen.fraud.sum()) < len(seen):
        return Quality(float("nan"), float("nan"), float("nan"), float("nan"))
    model = spec.build(seed, jobs=jobs).fit(seen.x, seen.fraud)
    return quality(held.fraud, model.predict_proba(held.x)[:, 1], held.cards, day_of(held.at))
