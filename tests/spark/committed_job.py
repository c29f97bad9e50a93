"""Runs in a process of its own: random histories whose state is read by files at every batch, and by Spark.

State stores that make snapshots often take settings that a session begins with.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import msgspec
from pyspark.sql import SparkSession

from millrace.checkpoints.committed import CommittedState
from millrace.checkpoints.groups import StoredGroup
from millrace.checkpoints.reading import opened, view_of
from millrace.checkpoints.tables import EntryRows, entries_of
from millrace.host.system import Idle, Tick
from millrace.runtime.session import spark_session
from millrace.state.keyring import KEY_FILE_CONF, write_key_file
from tests.spark.golden_checkpoint import MINUTE, SECOND, START, Limit, Sight
from tests.spark.mirror import DRAIN, Item
from tests.spark.state_history import History

_STORE = "spark.sql.streaming.stateStore"
_SNAPSHOTS = {f"{_STORE}.minDeltasForSnapshot": "2", f"{_STORE}.maintenanceInterval": "100ms"}
Plan = Literal["chain", "station"]


def batches(chance: random.Random, count: int, at: int) -> list[list[Item]]:
    """Return random batches of sights, limits and what moves time, from an event time on."""
    made, number = [], at
    for _ in range(count):
        values: list[Any] = []
        for _ in range(chance.randrange(1, 40)):
            who = f"{chance.choice(('who', 'other', 'é'))}-{chance.randrange(9)}"
            note = chance.choice((None, "red", "né", "x" * chance.randrange(3_000)))
            values.append(Sight(who, at + chance.randrange(40 * SECOND), chance.randrange(11), note))
        if chance.random() < 0.3:
            values.append(Limit(chance.choice(("low", "high")), chance.randrange(9)))
        if chance.random() < 0.4:
            values.append(Tick(at))
        if chance.random() < 0.2:
            values.append(Idle(at + 11 * MINUTE))
        at += 20 * SECOND
        made.append([Item(f"random:0:{number + i}", v, isinstance(v, Limit)) for i, v in enumerate(values)])
        number += 1_000
    return made


def stored_by_spark(view: Any) -> dict[tuple[int, int], StoredGroup]:
    """Return all key groups as Spark reads them."""
    rows: dict[tuple[int, int], dict[int, bytes]] = {}
    for row in view.stored().collect():
        rows.setdefault((row.station, row.label), {})[row.number] = bytes(row.data)
    process, keys = view.stage.process, view.keys
    return {at: opened(process, at[1], values, keys, at[0]) for at, values in rows.items()}


def compare(
    spark: SparkSession, history: History, following: CommittedState, keys: str | None, seen: Counter[str]
) -> None:
    """Compare what is read at every batch that is kept, by one that goes along and by one that is new."""
    checkpoint = history.checkpoint
    for batch in checkpoint.batches():
        if batch < following.batch:
            continue
        following.move_to(batch)
        anew = CommittedState(checkpoint, batch=batch, key_file=keys)
        with view_of(spark, checkpoint, batch=batch, key_file=keys) as view:
            expected = stored_by_spark(view)
            rows = {row.key: row.asDict(recursive=True) for row in entries_of(view).collect()}
            make = EntryRows(view)
        for state in (following, anew):
            found = {(station, label): group for station, label, group in state.groups()}
            assert found == expected, f"batch {batch}"
            made = {
                row["key"]: row
                for (_, label), group in found.items()
                for row in make(label, group).to_pylist()
            }
            assert made == rows, f"batch {batch}"
        for row in rows.values():
            entry = anew.entry(None, tuple(row["key_parts"]))
            assert entry is not None
            assert entry == following.entry(None, tuple(row["key_parts"]))
            assert (entry[1], len(entry[0].waiting)) == (row["bytes"], row["waiting"])
        assert anew.entry(None, ("nobody",)) is None
        seen["batches"] += 1
        seen["keys"] += len(rows)


def run(
    spark: SparkSession, folder: Path, seed: int, plan: Plan, stations: int, encrypted: bool
) -> Counter[str]:
    """Run a random history and compare it after each of its queries."""
    chance, seen = random.Random(seed), Counter[str]()
    history = History(spark, folder)
    history.plan, history.stations = plan, stations
    if encrypted:
        write_key_file(folder / "keys")
        spark.conf.set(KEY_FILE_CONF, str(folder / "keys"))
    following: CommittedState | None = None
    keys = str(folder / "keys") if encrypted else None
    try:
        for number in range(3):
            history.run(*batches(chance, chance.randrange(2, 4), START + number * 2 * MINUTE))
            deadline = time.monotonic() + 20
            while number == 1 and not list(folder.rglob("*.zip")) and time.monotonic() < deadline:
                time.sleep(0.05)
            first = history.checkpoint.batches()[0]
            following = following or CommittedState(history.checkpoint, batch=first, key_file=keys)
            compare(spark, history, following, keys, seen)
        ends = [
            Item(f"end:0:{seed}", Tick(START + 90 * MINUTE), False),
            Item(f"end:0:{seed + 9}", DRAIN, False),
        ]
        history.run(*([one] for one in ends))
        assert following is not None
        compare(spark, history, following, keys, seen)
    finally:
        spark.conf.unset(KEY_FILE_CONF)
    seen["snapshots"] = len(list(folder.rglob("*.zip")))
    seen["reloads"] = following.reloads
    return seen


def main(folder: Path) -> None:
    """Print what was compared."""
    told = {}
    cases: list[tuple[Plan, int, bool]] = [
        ("chain", 1, False), ("chain", 1, True), ("station", 1, True), ("station", 3, False)
    ]  # fmt: skip
    with spark_session(
        "committed", master="local[2]", shuffle_partitions=2, quick_start=True,
        log_file=folder / "spark.log", conf=_SNAPSHOTS,
    ) as spark:  # fmt: skip
        for seed, (plan, stations, encrypted) in enumerate(cases):
            at = folder / f"{plan}-{stations}-{encrypted}"
            at.mkdir()
            told[at.name] = dict(run(spark, at, seed, plan, stations, encrypted))
    print(msgspec.json.encode(told).decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
