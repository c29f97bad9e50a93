"""Where something of what was forgotten may still be: every store, with what ends it and when."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.checkpoints.positions import WAITING
from millrace.connectors.merging import _keep
from millrace.privacy.residues import state_residues, table_residues, topic_residues, topics_of
from millrace.runtime.settings import KafkaSettings

HOUR, DAY = 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("config", "until", "ends"),
    [
        ({"retention.ms": str(DAY), "segment.ms": str(HOUR)}, "1970-01-02T01:00:00+00:00", "kept for 1d"),
        ({"retention.ms": str(DAY)}, "1970-01-09T00:00:00+00:00", "as long as their segment"),
        ({"retention.ms": "-1"}, None, "for ever: set retention.ms"),
        ({"cleanup.policy": "compact", "retention.ms": str(DAY)}, None, "tombstone"),
        ({"cleanup.policy": "compact,delete", "retention.ms": "0", "segment.ms": "1000"},
         "1970-01-01T00:00:01+00:00", "kept for"),
        ({}, None, "the broker did not tell"),
    ],
)  # fmt: skip
def test_a_topic_ends_by_its_own_settings(config: dict[str, str], until: str | None, ends: str) -> None:
    (found,) = topic_residues({"clicks": config}, 0)
    assert (found.kind, found.name, found.until) == ("topic", "clicks", until)
    assert ends in found.ends


def test_without_a_broker_each_topic_is_named_all_the_same() -> None:
    found = topics_of(KafkaSettings(), ["b", "a"], 0)
    assert [(one.name, one.until) for one in found] == [("a", None), ("b", None)]


def test_tables_are_named_while_files_of_before_or_rows_that_wait_are_there(tmp_path: Path) -> None:
    for name in ("kept", "changed", "waits"):
        write_deltalake(str(tmp_path / name), pa.table({"who": ["ann", "bob"]}))
    DeltaTable(str(tmp_path / "changed")).delete("who = 'ann'")
    (tmp_path / "waits" / WAITING).mkdir()
    _keep(tmp_path / "waits" / WAITING / "000000000004.arrow", pa.table({"who": ["ann"]}), "app:0:waits", 4)
    found = table_residues(sorted(tmp_path.iterdir()), "clickstream")
    assert [(one.name, one.ends) for one in found] == [
        ("changed", "`millrace tables vacuum clickstream`"),
        ("waits", "the next run, or the job that runs"),
    ]


def test_checkpoint_and_savepoints_are_named_where_there_are_such(tmp_path: Path) -> None:
    assert state_residues(tmp_path) == []
    (tmp_path / "checkpoint" / "state").mkdir(parents=True)
    assert state_residues(tmp_path) == []
    (tmp_path / "checkpoint" / "state" / "0").mkdir()
    for name in ("tuesday", "monday"):
        (tmp_path / "savepoints" / name).mkdir(parents=True)
    os.utime(tmp_path / "savepoints" / "monday", (5, 5))
    found = state_residues(tmp_path)
    assert [(one.kind, one.name) for one in found] == [
        ("checkpoint", "checkpoint"), ("savepoint", "monday"), ("savepoint", "tuesday"),
    ]  # fmt: skip
    assert "made 1970-01-01T00:00:05+00:00" in found[1].ends
