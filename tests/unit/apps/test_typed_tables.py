"""Every table and topic of every app has typed columns on Spark, whatever parts of the app are on."""

from __future__ import annotations

import pytest

from millrace.host.spark_records import TypedColumns
from millrace.runtime.apps import load_app
from millrace.runtime.settings import load_settings

SETTINGS = [
    ("fraud", []),
    ("fraud", ["model.registry=sqlite:///none.db"]),
    ("iot", []),
    ("iot", ["foresight.on=true"]),
    ("iot", ["monitor.clock=key", "monitor.patience=3h", "monitor.correct_clocks=both"]),
    ("clickstream", []),
    ("clickstream", ["recommend.on=true"]),
    ("ridesharing", []),
    ("aggregates", ["sources=fraud.transactions,iot.readings"]),
]


@pytest.mark.parametrize(("name", "overrides"), SETTINGS)
def test_what_is_written_has_columns_of_its_own(name: str, overrides: list[str]) -> None:
    app = load_app(name)
    topology = app.topology(load_settings(app.settings, app=name, overrides=overrides, env={}))
    types = topology.types
    written = {*topology.tables, *topology.topics}
    assert written
    for output in sorted(written):
        assert len(TypedColumns(types[output]).schema) > 2, output
