"""What a second version begins with, what of a table came since, and how far both are waited for."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from millrace.checkpoints.positions import TablePosition, files_appended
from millrace.errors import UserError
from millrace.privacy.erasure import delete_where
from millrace.runtime.apps import load_app
from millrace.runtime.installed import list_apps
from millrace.runtime.job import Job
from millrace.runtime.settings import load_settings
from millrace.upgrading import trial
from millrace.upgrading.trial import TRIAL_FILE
from millrace_apps.fraud.app import app as fraud
from millrace_apps.fraud.settings import FraudSettings


def rows(*ids: str) -> pa.Table:
    return pa.table({"_event_id": list(ids)})


def test_rows_since_a_version_are_those_appended_also_where_they_were_compacted(tmp_path: Path) -> None:
    table = tmp_path / "alerts"
    for one in ("a", "b"):
        write_deltalake(table, rows(one), mode="append")
    since = TablePosition("delta", DeltaTable(table).version(), "x")
    write_deltalake(table, rows("c", "d"), mode="append")
    DeltaTable(table).optimize.compact()
    write_deltalake(table, rows("e"), mode="append")
    found = trial._appended(table, since)
    assert sorted(row["_event_id"] for row in found.rows) == ["c", "d", "e"]
    assert found.columns == ["_event_id"]
    assert len(files_appended(table, None)) == 4
    DeltaTable(table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(UserError, match="vacuumed"):
        trial._appended(table, since)


def test_what_is_left_of_files_of_which_rows_were_deleted_is_nothing_new(tmp_path: Path) -> None:
    table = tmp_path / "alerts"
    write_deltalake(table, rows("a", "b"), mode="append")
    assert delete_where(table, {"_event_id": ["a"]}) == 1
    found = trial._appended(table, None)
    assert sorted(row["_event_id"] for row in found.rows) == ["a", "b"]


def test_rows_are_the_same_whichever_writer_has_written_them(tmp_path: Path) -> None:
    at = datetime(2026, 1, 1, 2, 3, 4, 123456, UTC)
    said = pa.table({"_event_id": ["a"], "at": pa.array([at], pa.timestamp("us", "UTC"))})
    write_deltalake(tmp_path / "driver", said, mode="append")
    spark = DeltaTable.create(tmp_path / "spark", said.schema)
    file = tmp_path / "spark" / "part-0.parquet"
    pq.write_table(said, file, use_deprecated_int96_timestamps=True, store_schema=False)  # as it does
    added = AddAction(file.name, file.stat().st_size, {}, 1, True, '{"numRecords":1}')
    spark.create_write_transaction([added], "append", spark.schema())
    assert trial._appended(tmp_path / "spark", None).rows == trial._appended(tmp_path / "driver", None).rows


def test_keys_and_models_are_taken_along_and_what_is_the_query_s_is_not(tmp_path: Path) -> None:
    blue, green = tmp_path / "app", tmp_path / "app-green"
    own = ("checkpoint/commits/0", "contract.json", "tables/alerts/x.parquet", "logs/job.log", "clock/1")
    others = ("privacy/token.keys", "models/exported/checkpoint/m.json")
    for name in (*own, *others):
        (blue / name).parent.mkdir(parents=True, exist_ok=True)
        (blue / name).write_text(name)
    trial._take_along(blue, green)
    assert sorted(str(p.relative_to(green)) for p in green.rglob("*") if p.is_file()) == sorted(others)


#: Topics that no table has: these are compared where they stand.
ALONE = {
    "clickstream": ["clickstream.consents", "clickstream.forget"],
    "fraud-cases": ["fraud.control"],
    "ridesharing": ["ridesharing.assignments"],
}


@pytest.mark.parametrize("name", list_apps())
def test_what_an_app_sends_a_table_has_too_but_for_what_is_compared_on_its_topic(name: str) -> None:
    app = load_app(name)
    settings = load_settings(app.settings, app=name)
    topology = app.topology(settings)
    assert topology.topics
    assert trial.sent_alone(app, settings) == ALONE.get(name, [])
    assert len(set(topology.topics) - set(topology.tables)) == len(ALONE.get(name, []))


def planned(root: Path, batches: dict[int, int], committed: int) -> None:
    """Write the logs of a query: batch → offset; those up to ``committed`` are committed."""
    for folder in ("offsets", "commits"):
        (root / "checkpoint" / folder).mkdir(parents=True)
    for batch, offset in batches.items():
        about = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
        ends = json.dumps({"in": {"0": offset, "1": 5}})
        (root / "checkpoint" / "offsets" / str(batch)).write_text(f"v1\n{about}\n{ends}")
        if batch <= committed:
            (root / "checkpoint" / "commits" / str(batch)).write_text("v1\n{}")


@pytest.mark.parametrize("swapped", [False, True])
def test_both_are_waited_for_up_to_what_either_has_planned(tmp_path: Path, swapped: bool) -> None:
    """What a batch wrote stands in the tables before it is committed.

    ::

        one     committed 10, planned 20
        other   committed 12
    """
    one, other = tmp_path / "one", tmp_path / "other"
    planned(one, {3: 10, 4: 20}, committed=3)
    planned(other, {7: 12}, committed=7)
    roots = (other, one) if swapped else (one, other)
    until, mark = trial._reached_by(*roots)
    assert (until, mark) == ({"in": {0: 20, 1: 5}}, None)
    assert [trial._is_there(root, until, mark) for root in (one, other)] == [False, False]
    (one / "checkpoint" / "commits" / "4").write_text("v1\n{}")
    assert [trial._is_there(root, until, mark) for root in (one, other)] == [True, False]
    with pytest.raises(UserError, match="does not run"):
        trial._wait(*roots, until, mark, 5.0, print)


def test_a_second_version_sends_no_ticks(tmp_path: Path) -> None:
    def job(*more: str) -> Job:
        sets = [f"storage.root={tmp_path}", "kafka.bootstrap=b:1", "stream.tick_interval=1s", *more]
        return Job(fraud, load_settings(FraudSettings, app="fraud", overrides=sets, env={}))

    query = object()
    assert isinstance(job("kafka.output_suffix=.green")._ticking(query), nullcontext)  # type: ignore[arg-type]
    assert [t.name for t in job("kafka.output_suffix=.green")._topics.writes] == [
        "fraud.alerts.green",
        "fraud.dead-letters.green",
    ]


def test_a_start_that_was_cut_off_does_not_stand_in_the_way_of_the_next(tmp_path: Path) -> None:
    """What it left is no second version that could be ended: the next start removes it, and nothing else."""
    green = tmp_path / "app-green"
    with pytest.raises(KeyboardInterrupt), trial._begun(green, "fraud"):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir()), "one that fails leaves nothing"
    (green / "savepoints" / ".part-1").mkdir(parents=True)
    with pytest.raises(UserError, match="is not empty"), trial._begun(green, "fraud"):
        pass
    mark = tmp_path / ".app-green.begun"
    mark.touch()  # as a command that was killed leaves it
    with trial._begun(green, "fraud"):
        assert not green.exists()
        with pytest.raises(UserError, match="another command begins"), trial._begun(green, "fraud"):
            pass
        (green / "checkpoint").mkdir(parents=True)
        (green / TRIAL_FILE).write_text("{}")
    assert not mark.exists()
    mark.touch()  # killed behind the end: there is a second version
    with pytest.raises(UserError, match="end a second version that is there"), trial._begun(green, "fraud"):
        pass
    assert (green / TRIAL_FILE).exists()
