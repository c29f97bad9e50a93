"""Hostile input by a real broker through Spark: the job goes on, and every record is accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.chaos.broker import input_on_spark
from millrace.chaos.world import generated
from millrace.runtime.apps import load_app
from millrace.runtime.plans import settled
from millrace.runtime.settings import load_settings


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("iot", []),
        # By Spark's own writer, and as a chain.
        pytest.param("fraud", ["stream.driver_records=0", "stream.plan=chain"], marks=pytest.mark.matrix),
        pytest.param("ridesharing", [], marks=pytest.mark.matrix),
        pytest.param("clickstream", [], marks=pytest.mark.matrix),
    ],
)
def test_no_record_stops_the_job_and_none_is_lost(tmp_path: Path, name: str, overrides: list[str]) -> None:
    app = load_app(name)
    told = ["spark.key_groups=8", "spark.quick_start=true", *overrides]
    settings = load_settings(app.settings, app=name, overrides=told, env={})
    settings = settled(app, settings, "chain" if settings.stream.plan == "chain" else "station", anew=True)
    world = generated(app, settings, events=2_000, seed=1, folder=tmp_path)
    report = input_on_spark(app, settings, world, events=2_000, seed=1, folder=tmp_path)
    assert report.holds, [report.ended, *report.faults, *(row for row in report.rows if not row.holds)]
    assert report.sent > 1_900
    assert sum(row.processed for row in report.rows) > 700
