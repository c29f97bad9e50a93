"""Models of the live stream: trained on what decisions rested on, and asked by the pipeline.

The table ``transactions`` keeps every decision with the features it rested on, so a model is trained on the
very numbers that it will be asked about: there is no second way to compute them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.models.exports import CHAMPION, POLL_S, Exports
from millrace.models.loading import Reader
from millrace.models.serving import ModelHolder, ServedModel, Status
from millrace_apps.fraud.contracts.events import Channel
from millrace_apps.fraud.contracts.feature_types import CardFeatures, EntityFeatures
from millrace_apps.fraud.model.estimator import ModelSpec
from millrace_apps.fraud.processes.billing import billed
from millrace_apps.fraud.processes.decision import FEATURES_VERSION as DECIDED_BY
from millrace_apps.fraud.processes.features import Features
from millrace_apps.fraud.processes.local_time import hour_of, weekday_of
from millrace_apps.fraud.state.labels import LabelRisk, TerminalLabels

if TYPE_CHECKING:
    import pandas as pd

    from millrace_apps.fraud.processes.scorer import Observed

#: Entities that a decision may know something of, by the names of its columns.
ENTITIES: Final = ("account", "terminal", "device", "address")
#: Stands for what is not known: below all that is.
UNKNOWN: Final = -1.0


class _Payment(NamedTuple):
    """Where and when a payment was made, by the names of the transaction's fields."""

    event_time_ms: int
    mcc: str
    country: str
    channel: Channel | None
    utc_offset_min: int | None
    home_country: str | None


_CHANNELS: Final = {"terminal": 0.0, "online": 1.0}


def _abroad(tx: Any, home: str | None) -> float | None:
    home = tx.home_country or home
    return None if home is None else float(tx.country != home)


#: Where and when a payment was made, as numbers: of the transaction, and its card's home by its purchases.
#: Categories that are alike have codes near to each other, so a tree cuts them into ranges.
_PLACE_AND_TIME: Final[dict[str, Callable[[Any, str | None], float | None]]] = {
    "mcc": lambda tx, home: float(tx.mcc),
    "abroad": _abroad,
    "channel": lambda tx, home: _CHANNELS.get(tx.channel),
    "hour": lambda tx, home: float(hour_of(tx)),
    "weekday": lambda tx, home: float(weekday_of(tx)),
}
_CARD: Final = tuple(name for name in CardFeatures.__struct_fields__ if name != "home_country")

#: Features of the live stream: a name of its own, or with a point the field of a column. A model says which
#: it takes: one that was trained before some came goes on with its own.
LIVE_INPUTS: Final = (
    "amount",
    *Features.__struct_fields__,
    *(f"card.{name}" for name in _CARD),
    *(f"{entity}.{name}" for entity in ENTITIES for name in EntityFeatures.__struct_fields__),
    *(f"card_labels.{name}" for name in LabelRisk.__struct_fields__),
    *(f"terminal_labels.{name}" for name in TerminalLabels.__struct_fields__),
    *_PLACE_AND_TIME,
)
#: Decisions carry the version of the definitions of their features: a model is trained on those of this one.
LIVE_MODEL: Final = ModelSpec("live", LIVE_INPUTS, 100, int(DECIDED_BY))
#: Name under which models of the live stream are registered.
LIVE_NAME: Final = "fraud"
#: Columns of the table of decisions that training reads.
LIVE_COLUMNS: Final = (
    "transaction_id",
    "event_time_ms",
    "card_id",
    "kind",
    "action",
    "amount",
    *Features.__struct_fields__,
    "card",
    *ENTITIES,
    "card_labels",
    "terminal_labels",
    *_Payment._fields[1:],
)
#: Of these, those that a table of an earlier version may lack.
LATER_COLUMNS: Final = ("utc_offset_min", "home_country")
#: What else is read where a table has it.
DECIDED_COLUMNS: Final = ("control_group", "features_version")


def flat(decisions: pd.DataFrame) -> pd.DataFrame:
    """Return decisions as training takes them: a column per feature, and ``customer_id`` for the card.

    Those that rest on features of another version are left out: a model would be asked about other numbers.

    Args:
        decisions: Columns :data:`LIVE_COLUMNS` of the table ``transactions``, and :data:`DECIDED_COLUMNS`.
    """
    import pandas as pd

    chosen = decisions["kind"] == "purchase"
    if "features_version" in decisions:
        chosen &= decisions["features_version"] == DECIDED_BY
    purchases = decisions[chosen].reset_index(drop=True)
    found = {
        "transaction_id": purchases["transaction_id"],
        "event_time_ms": purchases["event_time_ms"].astype("int64"),
        "customer_id": purchases["card_id"],
        "is_fraud": pd.Series([None] * len(purchases), dtype=object),
        "alerted": purchases["action"] != "approve",
        "action": purchases["action"],
    }
    found |= {name: purchases[name] for name in DECIDED_COLUMNS if name in purchases}
    found |= _place_and_time(purchases)
    for name in LIVE_INPUTS:
        if name in _PLACE_AND_TIME:
            continue
        column, _, inside = name.partition(".")
        values = purchases[column]
        if inside:
            values = pd.Series([UNKNOWN if v is None else v.get(inside) for v in values], dtype=object)
        found[name] = pd.to_numeric(values, errors="coerce").fillna(UNKNOWN).astype("float32")
    return pd.DataFrame(found)


def _place_and_time(purchases: pd.DataFrame) -> dict[str, Any]:
    """Return columns of where and when payments were made."""
    import pandas as pd

    columns = [
        [None if value is None or value != value else value for value in purchases[name].tolist()]
        for name in _Payment._fields
    ]
    payments = [_Payment(*values) for values in zip(*columns, strict=True)]
    homes = [None if card is None else card.get("home_country") for card in purchases["card"]]
    found = {}
    for name, of in _PLACE_AND_TIME.items():
        values = [of(tx, home) for tx, home in zip(payments, homes, strict=True)]
        found[name] = pd.Series([UNKNOWN if v is None else v for v in values], dtype="float32")
    return found


def row_of(observed: Observed, inputs: Sequence[str]) -> list[float]:
    """Return the features of one transaction, in the order that a model takes."""
    return [UNKNOWN if (value := _GETTERS[name](observed)) is None else float(value) for name in inputs]


def _getter(name: str) -> Callable[[Any], Any]:
    column, _, inside = name.partition(".")
    if inside:

        def of_entity(observed: Any) -> Any:
            entity = getattr(observed, column)
            return None if entity is None else getattr(entity, inside)

        return of_entity
    if name == "amount":
        return lambda observed: billed(observed.tx)
    if name in _PLACE_AND_TIME:
        of = _PLACE_AND_TIME[name]
        return lambda observed: of(observed.tx, observed.card.home_country)
    return lambda observed: getattr(observed.own, name)


_GETTERS: Final = {name: _getter(name) for name in LIVE_INPUTS}


#: How models of the live stream are read: they must take what it has.
LIVE_READER: Final = Reader(features_version=LIVE_MODEL.features_version, known=frozenset(_GETTERS))


@dataclass(frozen=True)
class StreamScorer:
    """The pipeline's scorer: the exported model under an alias; travels to workers.

    Attributes:
        folder: Folder of the exports.
        alias: Whose model.
        name: Name of the registered model.
        poll_s: How often the folder is looked into, seconds.
    """

    folder: str
    alias: str = CHAMPION
    name: str = LIVE_NAME
    poll_s: float = POLL_S

    def score(self, observed: Sequence[Observed]) -> Sequence[tuple[float, str] | None]:
        """Return probability and model version of each transaction, ``None`` without a model."""
        return score_with(self._served(), observed)

    def trained_until_ms(self) -> int:
        """Return the event time of the newest payment that the model was trained on, ms; 0 without one."""
        return self._served().trained_until_ms()

    def status(self) -> Status:
        """Return how this worker's scorer stands."""
        return self._served().status()

    def _served(self) -> ServedModel:
        return ServedModel(Exports(self.folder, self.name), self.alias, LIVE_READER, self.poll_s)


def score_with(
    model: ServedModel | ModelHolder, observed: Sequence[Observed]
) -> Sequence[tuple[float, str] | None]:
    """Return probability and version of each transaction by the model that is in force."""
    scores = model.score(lambda inputs: [row_of(one, inputs) for one in observed])
    if scores is None:
        return [None] * len(observed)
    return [(value, scores.version) for value in scores.values]
