"""A checkpoint of each version of the encoding is opened by this one, and nothing in it is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millrace import Context, KeyedProcess, arrival, keyed
from millrace.runtime.contract import check_contract
from millrace.state.layout import ENCODING_VERSION
from tests.spark.conftest import StreamFactory
from tests.spark.golden_checkpoint import BOUND, DATA, SCHEMA, Everything, Sight, batches, build, unpack
from tests.spark.mirror import Mirror, comparable, to_row

VERSIONS = sorted(folder.name for folder in DATA.iterdir())


class Sights(KeyedProcess[Sight, int]):
    order = arrival(commutes=True)

    def process(self, event: Sight, ctx: Context) -> None: ...


def test_there_is_a_checkpoint_of_this_version() -> None:
    assert f"v{ENCODING_VERSION}" in VERSIONS
    assert all((DATA / version / "checkpoint.zip").stat().st_size < 300_000 for version in VERSIONS)


@pytest.mark.parametrize("profile", ["latency", pytest.param("throughput", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_kept_checkpoint_goes_on_as_if_it_had_never_stopped(
    stream: StreamFactory, version: str, profile: Literal["latency", "throughput"]
) -> None:
    mirror = Mirror(Everything(), BOUND)
    for batch in batches("before"):
        mirror.begin_batch()
        mirror.batch(batch, key="who", at="at")
    mirror.end_run()
    entries = [mirror.runner.layout.decode(cell.body) for cell in mirror.store.cells.values()]
    assert any(entry.pending_ for entry in entries), "no event waits in the checkpoint"
    assert all(any(getattr(entry, s.name) for entry in entries) for s in mirror.runner.layout.specs)
    before = len(mirror.runner.emissions)
    for batch in batches("after"):
        mirror.begin_batch()
        mirror.batch(batch, key="who", at="at", packed=True)
    mirror.end_run()
    assert not mirror.store.cells
    made = stream(SCHEMA, lambda df: build(df, profile))
    root: Path = made.checkpoint.parent
    unpack(DATA / version / "checkpoint.zip", root)
    made._files = len(batches("before"))  # the names of these are taken
    for batch in batches("after"):
        made.add([to_row(item) for item in batch])
    made.run()
    assert comparable(made.emitted) == comparable(mirror.runner.emissions[before:])
    assert made.output is not None
    check_contract(root / "contract", made.output.contract())
    assert made.timers() == []


@pytest.mark.parametrize("with_control", [False, True])
def test_the_state_key_is_the_same_in_both_profiles_so_that_a_restart_may_change_it(
    spark: SparkSession, with_control: bool
) -> None:
    df = spark.createDataFrame([], SCHEMA)
    for profile in ("latency", "throughput"):
        control = F.col("control") if with_control else None
        stream = keyed(df, by="who", event_time="at", value="value", control=control, profile=profile)
        # Spark refuses state whose key may be null after one that may not.
        assert stream.process(Sights()).plan.rows.schema["_group"].nullable is False
