"""Models of the live stream: what training reads and what the pipeline asks are the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from millrace.models.exports import Found
from millrace.models.forest import Forest
from millrace.models.loading import LoadedModel
from millrace.models.manifest import BrokenModel, Manifest
from millrace.models.serving import ModelHolder
from millrace.models.tables import matrix
from millrace_apps.fraud.app import app
from millrace_apps.fraud.contracts.feature_types import CardFeatures, EntityFeatures
from millrace_apps.fraud.model.live import (
    LATER_COLUMNS,
    LIVE_COLUMNS,
    LIVE_INPUTS,
    LIVE_MODEL,
    LIVE_READER,
    UNKNOWN,
    StreamScorer,
    flat,
    row_of,
    score_with,
)
from millrace_apps.fraud.processes.features import Features
from millrace_apps.fraud.processes.scorer import Observed, Scorer
from millrace_apps.fraud.settings import FraudSettings
from millrace_apps.fraud.state.labels import LabelRisk, TerminalLabels
from tests.unit.apps.fraud.cases import transaction
from tests.unit.apps.fraud.chain import Chain


def filled(struct: Any, rng: np.random.Generator, *, holes: bool) -> Any:
    """A struct of random numbers, some missing where that may be."""
    values = []
    for field in msgspec.structs.fields(struct):
        if field.type == str | None:
            values.append(rng.choice(["DE", "FR", None]))
            continue
        may_miss = "None" in str(field.type)
        missing = holes and may_miss and rng.random() < 0.5
        values.append(None if missing else float(np.float32(rng.normal())))
    return struct(*values)


def observed(seed: int) -> Observed:
    rng = np.random.default_rng(seed)
    own, card = filled(Features, rng, holes=True), filled(CardFeatures, rng, holes=True)
    entities = [filled(EntityFeatures, rng, holes=True) if rng.random() < 0.5 else None for _ in range(4)]
    tx = transaction(
        seed * 7_000_000,
        round(float(rng.uniform(1, 99)), 2),
        id=f"tx-{seed}",
        channel=[None, "terminal", "online"][seed % 3],
        utc_offset_min=[None, -480, 330][seed % 3],
        home_country=[None, None, "DE", "US"][seed % 4],
    )
    labels = [
        filled(tp, rng, holes=True) if rng.random() < 0.5 else None for tp in (LabelRisk, TerminalLabels)
    ]
    return Observed(tx, own, card, entities[0], entities[1], entities[2], entities[3], {}, *labels)


def decision(seen: Observed) -> dict[str, Any]:
    """The columns of a decision that training reads, as the table gives them."""
    tx = msgspec.to_builtins(seen.tx)
    row = {name: tx[name] for name in ("transaction_id", "event_time_ms", "card_id", "kind", "amount")}
    row |= {name: getattr(seen.tx, name) for name in ("mcc", "country", "channel", *LATER_COLUMNS)}
    row |= {"action": "review", **msgspec.to_builtins(seen.own)}
    for name in ("card", "account", "terminal", "device", "address", "card_labels", "terminal_labels"):
        row[name] = msgspec.to_builtins(getattr(seen, name))
    assert set(row) == set(LIVE_COLUMNS)
    return row


def test_training_and_scoring_see_the_same_numbers() -> None:
    seen = [observed(seed) for seed in range(40)]
    table = flat(pd.DataFrame([decision(one) for one in seen]))
    trained_on = matrix(table, LIVE_INPUTS)
    asked = np.array([row_of(one, LIVE_INPUTS) for one in seen], dtype=np.float32)
    np.testing.assert_array_equal(trained_on, asked)
    assert (asked == UNKNOWN).any()


def test_place_and_time_are_numbers_that_say_what_happened_where() -> None:
    """F8: category, home or abroad, channel, local hour and weekday."""
    names = ("mcc", "abroad", "channel", "hour", "weekday")
    card = filled(CardFeatures, np.random.default_rng(1), holes=False)
    own = filled(Features, np.random.default_rng(2), holes=False)

    def row(home: str | None, **more: Any) -> list[float]:
        at_home = msgspec.structs.replace(card, home_country=home)
        tx = transaction(0, 20, **more)  # a Thursday, midnight UTC
        return row_of(Observed(tx, own, at_home, None, None, None, None, {}), names)

    assert row(None) == [5411, UNKNOWN, UNKNOWN, 0, 4]
    assert row("DE", channel="terminal", utc_offset_min=-60) == [5411, 0, 0, 23, 3]
    assert row("FR", channel="online") == [5411, 1, 1, 0, 4]
    assert row("FR", home_country="DE")[1] == 0, "what is said counts"


def test_a_table_of_before_is_learned_from_and_a_model_of_before_goes_on() -> None:
    later = ("mcc", "abroad", "channel", "hour", "weekday")
    before = tuple(name for name in LIVE_INPUTS if name not in later)
    seen = [observed(seed) for seed in range(4)]
    rows = [decision(one) | dict.fromkeys(LATER_COLUMNS) for one in seen]
    for one in rows:
        one["card"].pop("home_country")
    table = flat(pd.DataFrame(rows))
    assert set(table["abroad"]) == {UNKNOWN}
    asked = np.array([row_of(one, before) for one in seen], dtype=np.float32)
    np.testing.assert_array_equal(matrix(table, before), asked)
    assert asked.shape[1] == len(LIVE_INPUTS) - 5
    of_now = LIVE_MODEL.features_version
    old = Manifest(name="fraud", version="3", size=1, sha256="0" * 64, inputs=before, features_version=of_now)
    with pytest.raises(BrokenModel) as refused:
        LIVE_READER.read(old, b"x")
    assert "takes" not in str(refused.value), "its inputs are known: what is wrong is the file"
    new = msgspec.structs.replace(old, version="9", inputs=(*LIVE_INPUTS, "moon"))
    with pytest.raises(BrokenModel, match="takes moon, which the stream has not"):
        LIVE_READER.read(new, b"x")


def test_refunds_are_not_learned_from() -> None:
    rows = [decision(observed(1)), decision(observed(2)) | {"kind": "refund"}]
    assert flat(pd.DataFrame(rows))["transaction_id"].tolist() == ["tx-1"]


def test_decisions_by_features_of_another_version_are_not_learned_from() -> None:
    """F9: the guard compared with what no decision carries."""
    chain = Chain(())
    chain.send(transaction(0, 10, id="now"), transaction(1, 10, id="before"))
    now, before = (msgspec.to_builtins(decision) for decision in chain.decisions)
    assert int(now["features_version"]) == LIVE_MODEL.features_version == LIVE_READER.features_version
    rows = pd.DataFrame([now, before | {"features_version": "1"}])
    assert flat(rows)["transaction_id"].tolist() == ["now"]
    assert flat(rows.drop(columns="features_version"))["transaction_id"].tolist() == ["now", "before"]


class Models:
    version_now: str | None = "7"

    def __init__(self) -> None:
        x = np.random.default_rng(0).normal(size=(200, len(LIVE_INPUTS))).astype(np.float32)
        from sklearn.ensemble import ExtraTreesClassifier  # type: ignore[import-untyped]

        trees = ExtraTreesClassifier(5, random_state=0).fit(x, x[:, 0] > 0)
        self.model = LoadedModel("7", LIVE_INPUTS, Forest.of(trees, len(LIVE_INPUTS)))

    def find(self, alias: str) -> Found | None:
        if self.version_now is None:
            return None
        found = Manifest(name="fraud", version=self.version_now, size=1, sha256="0" * 64, inputs=LIVE_INPUTS)
        return Found(found, ())

    def load(self, manifest: Manifest) -> LoadedModel:
        return self.model


def test_many_transactions_score_as_one_by_one() -> None:
    models = Models()
    holder = ModelHolder(models)
    holder.poll()
    seen = [observed(seed) for seed in range(6)]
    together = score_with(holder, seen)
    alone = [score_with(holder, [one])[0] for one in seen]
    for a, b in zip(together, alone, strict=True):
        assert a is not None
        assert b is not None
        assert a[1] == b[1] == "7"
        assert abs(a[0] - b[0]) < 1e-12


def test_without_a_model_rules_are_alone() -> None:
    models = Models()
    models.version_now = None
    holder = ModelHolder(models)
    holder.poll()
    assert score_with(holder, [observed(1), observed(2)]) == [None, None]


def test_the_scorer_is_what_the_pipeline_takes() -> None:
    scorer: Scorer = StreamScorer("/nowhere/exported")
    assert scorer.score([observed(1)]) == [None]


def test_a_job_with_a_registry_has_its_models_exported_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr("millrace.models.beginning.export_first", lambda *told: asked.append(told))
    assert app.begin is not None
    for model in (
        {},
        {"exports": "/mnt/models"},
        {"registry": "sqlite:////data/m/mlflow.db", "name": "mine"},
    ):
        app.begin(FraudSettings.model_validate({"model": model}))
    assert asked == [
        ("fraud", "transactions", "mine", "sqlite:////data/m/mlflow.db", Path("/data/m/exported"))
    ]


def test_exports_are_where_the_settings_say_or_beside_the_registry() -> None:
    def folder(**model: str) -> str | None:
        return FraudSettings.model_validate({"model": model, "storage": {"root": "/data/fraud"}}).exports

    assert folder() is None
    assert folder(registry="sqlite:////data/models/registry.db") == "/data/models/exported"
    assert folder(registry="http://registry:5000") == "/data/fraud/models/exported"
    assert folder(registry="http://registry:5000", exports="/mnt/models") == "/mnt/models"
    assert folder(exports="/mnt/models") == "/mnt/models"
