"""Data of the threshold economics: all decisions of the app's tables, each with what is known of it.

A payment is known as :func:`millrace_apps.fraud.model.known.known` has it. Those younger than the label delay
are left out altogether, since of them frauds alone would be known. What was stopped and nobody has looked at
stays: it is looked at and blocked as any other, and neither a fraud nor genuine.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from millrace_apps.fraud.cases.store import case_view
from millrace_apps.fraud.model.known import AUTHORISATION_COLUMNS, LABEL_COLUMNS, Maturity, Verdict, known
from millrace_apps.fraud.operations.economics import EconomicsError, Scored
from millrace_apps.fraud.processes.billing import BILLED, worths

if TYPE_CHECKING:
    import pandas as pd

    from millrace.dashboard.data import AppData
    from millrace_apps.fraud.cases.app import FraudCasesSettings

_DAY_MS: Final = 86_400_000
_COLUMNS: Final = ("transaction_id", "event_time_ms", "card_id", "kind", "amount", "action")


class ScoreName(StrEnum):
    """Whose score thresholds are chosen for."""

    rules = "rules"
    champion = "champion"
    challenger = "challenger"


#: Columns of a score and of the model's version.
_SCORES: Final[dict[ScoreName, tuple[str, ...]]] = {
    ScoreName.rules: ("score",),
    ScoreName.champion: ("model_score", "model_version"),
    ScoreName.challenger: ("challenger_score", "challenger_version"),
}


class Basis(msgspec.Struct, frozen=True):
    """What a choice of thresholds rests on.

    Attributes:
        score: Whose score.
        versions: Versions of the model that gave it.
        as_of_ms: What became known later was not used, UTC milliseconds.
        label_delay_ms: How old a payment is before silence says that it was genuine, ms.
        early: Whether no payment was so old, and silence was taken for an answer at once: frauds that are
            not reported yet are missing.
        payments: Purchases that were decided on, and are counted.
        frauds: Of them, known frauds.
        genuine: Known to be genuine.
        unknown: Stopped, and nobody has looked at them.
        control_group: Let through by chance though they would have been blocked.
        young: Purchases that are left out: younger than the label delay.
        unscored: Left out: without such a score.
    """

    score: str
    versions: list[str]
    as_of_ms: int
    label_delay_ms: int
    early: bool
    payments: int
    frauds: int
    genuine: int
    unknown: int
    control_group: int
    young: int
    unscored: int


def scored_decisions(
    data: AppData,
    settings: FraudCasesSettings,
    score: ScoreName,
    label_delay_ms: int,
    *,
    insist: bool = False,
    as_of_ms: int | None = None,
    days: int | None = None,
) -> tuple[Scored, Basis]:
    """Return all purchases that were decided on, with a score and what is known of them.

    Args:
        data: The fraud app's data.
        settings: The settings of the case work, whose labels count as those of the table do.
        score: Whose score.
        label_delay_ms: How long the slowest labels take, ms; younger payments are left out.
        insist: Whether to refuse where no payment is so old, rather than to take silence for an answer.
        as_of_ms: Know nothing later, UTC milliseconds; default the newest event.
        days: Of the newest so many days only.

    Raises:
        EconomicsError: There are no such purchases.
    """
    from millrace.models.tables import TrainingTables

    tables = TrainingTables(data.root / "tables")
    names = _SCORES[score]
    optional = (*names, "control_group", *BILLED)
    decided = tables.read("transactions", (*_COLUMNS, *names), optional=optional)
    paid = decided[decided["kind"] == "purchase"]
    labels = _labels(data, settings, tables.find("labels", LABEL_COLUMNS))
    responses = tables.find("authorisations", AUTHORISATION_COLUMNS)
    at, now = paid["event_time_ms"], as_of_ms
    if now is None:
        newest = max((int(part.max()) for part in (at, labels["event_time_ms"]) if len(part)), default=0)
        now = min(data.now_ms(), newest)
    paid = paid[at <= now]
    old = paid["event_time_ms"] <= now - label_delay_ms
    early = not insist and len(paid) > 0 and not old.any()
    delay = 0 if early else label_delay_ms
    chosen = paid if early else paid[old]
    if days is not None:
        chosen = chosen[chosen["event_time_ms"] > now - delay - days * _DAY_MS]
    scored = chosen[chosen[names[0]].notna()]
    if not len(scored):
        raise EconomicsError(_nothing(data, score, len(paid), len(chosen)))
    found = known(scored, labels, now, Maturity.of(delay), authorisations=responses)
    fraud = (found["verdict"] == Verdict.FRAUD).to_numpy(dtype=bool)
    unknown = (found["verdict"] == Verdict.UNKNOWN).to_numpy(dtype=bool)
    control = scored["control_group"] == True if "control_group" in scored else fraud[:0]  # noqa: E712
    basis = Basis(
        score=score.value,
        versions=sorted({str(v) for v in scored[names[1]].dropna()}) if names[1:] else [],
        as_of_ms=now,
        label_delay_ms=delay,
        early=early,
        payments=len(scored),
        frauds=int(fraud.sum()),
        genuine=int((~fraud & ~unknown).sum()),
        unknown=int(unknown.sum()),
        control_group=int(control.sum()),
        young=0 if early else int((~old).sum()),
        unscored=len(chosen) - len(scored),
    )
    return _arrays(scored, names[0], fraud, np.where(unknown, 0.0, found["weight"])), basis


def _labels(data: AppData, settings: FraudCasesSettings, table: pd.DataFrame | None) -> pd.DataFrame:
    """Return the labels of the table, and those of cases, which may not have come back by the topic."""
    import pandas as pd

    view = case_view(data, settings)
    said = [] if view is None else [[getattr(x, name) for name in LABEL_COLUMNS] for x in view.labels]
    own = pd.DataFrame(said, columns=list(LABEL_COLUMNS))
    parts = [part for part in (own, table) if part is not None and len(part)]
    return pd.concat(parts, ignore_index=True) if parts else own


def _arrays(scored: pd.DataFrame, score: str, fraud: np.ndarray, weight: np.ndarray) -> Scored:
    import pandas as pd

    return Scored(
        scored["event_time_ms"].to_numpy(dtype=np.int64),
        pd.factorize(scored["card_id"])[0].astype(np.int64),
        worths(scored.__getitem__, scored.columns),
        scored[score].to_numpy(dtype=np.float64),
        fraud,
        weight,
    )


def _nothing(data: AppData, score: ScoreName, paid: int, chosen: int) -> str:
    if not paid:
        return f"{data.root} has no purchases to judge by: run the app first, or give --scores FILE"
    if not chosen:
        return f"none of {paid:,} purchases is older than the label delay: give a shorter --label-delay"
    return f"none of {chosen:,} purchases has a score of the {score.value}: choose another --score"
