"""State as data on Spark: what is shown is what is kept, and a table becomes what is kept."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millrace import cli
from millrace.checkpoints import savepoints, session
from millrace.checkpoints.bootstrap import BootstrapError, bootstrap
from millrace.checkpoints.checkpoint import Checkpoint
from millrace.checkpoints.figures import figures_of
from millrace.checkpoints.reading import view_of
from millrace.checkpoints.tables import compared, digests_of, entries_of
from millrace.host.groups import encode_key, key_group
from tests.spark.savepoint_jobs import (
    START,
    Balances,
    BalancesByShop,
    Payments,
    rows_of,
)
from tests.spark.state_history import ALL, History, snapshot_of


@pytest.fixture
def history(spark: SparkSession, tmp_path: Path) -> History:
    return History(spark, tmp_path / "history")


def test_what_is_shown_is_what_is_kept_and_looking_writes_nothing(history: History) -> None:
    history.run(*ALL[:3])
    before = snapshot_of(history.checkpoint.root)
    kept = history.kept()
    with view_of(history.spark, history.checkpoint) as view:
        for who in ("who-3", "long-7"):
            found = view.entry((who,))
            assert found is not None
            assert found[0].as_data() == kept[who]
        assert view.entry(("nobody",)) is None
        figures = figures_of(view, top=5)
        rows = {r.key: r for r in entries_of(view).collect()}
    assert figures.entries == len(kept)
    assert figures.timers == sum(len(e["timers"]) for e in kept.values())
    assert figures.processing_timers == sum(len(e["processing_timers"]) for e in kept.values())
    assert figures.waiting == sum(len(e["waiting"]) for e in kept.values())
    assert figures.pages > figures.groups
    assert rows.keys() == kept.keys()
    numbers = {k: e["states"]["number"] for k, e in kept.items()}
    assert {k: r.states.number for k, r in rows.items()} == numbers
    assert rows["long-7"].key_group == key_group(encode_key(("long-7",)), 4)
    assert snapshot_of(history.checkpoint.root) == before


def test_state_of_a_query_that_goes_on_while_the_engine_starts_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the time that Spark stands the query has removed the batch that is to be compared with."""
    payments, root = Payments(spark, tmp_path / "input"), tmp_path / "state"
    for part in range(2):
        payments.add_some(range(part, part + 2))
        payments.run(payments.stream(Balances()), {"main": tmp_path / "t"}, root, "parquet")
    command = Commands(spark, monkeypatch, capsys)

    @contextlib.contextmanager
    def started(**_: object) -> Iterator[SparkSession]:
        for log in ("offsets", "commits"):
            (root / "checkpoint" / log / "0").unlink(missing_ok=True)
        yield spark

    monkeypatch.setattr(session, "tool_session", started)
    said = command("state", "health", root, "-f", "json")
    assert command.code == 0, said
    assert json.loads(said)[0]["from_batch"] == 0
    said = command("state", "diff", root, "--from-batch", 1)
    assert command.code == 0, said


@pytest.mark.matrix
def test_two_batches_are_compared_key_by_key(history: History) -> None:
    history.run(*ALL[:2])
    first, old = history.checkpoint.last(), history.kept()
    history.run(ALL[2])
    new = history.kept()
    with (
        view_of(history.spark, history.checkpoint, batch=first) as before,
        view_of(history.spark, history.checkpoint) as after,
    ):
        found = {r.key: r.change for r in compared(digests_of(before), digests_of(after)).collect()}
    expected = dict.fromkeys(new.keys() - old.keys(), "added")
    expected |= dict.fromkeys(old.keys() - new.keys(), "removed")
    expected |= {k: "changed" for k in old.keys() & new.keys() if old[k] != new[k]}
    assert found == expected
    assert set(expected.values()) >= {"added", "changed"}


class Commands:
    """`millrace` in this process and its session: exit code and what it printed."""

    def __init__(
        self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        monkeypatch.setattr(session, "tool_session", lambda **_: contextlib.nullcontext(spark))

    def __call__(self, *arguments: object) -> str:
        self._monkeypatch.setattr(sys, "argv", ["millrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        self.code = end.value.code
        printed = self._capsys.readouterr()
        return printed.out + printed.err


def test_the_commands_tell_what_is_kept_and_reshape_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Commands(spark, monkeypatch, capsys)
    payments = Payments(spark, tmp_path / "input")
    payments.add_some(range(3))
    root = tmp_path / "state"
    payments.run(payments.stream(Balances()), {"main": tmp_path / "t"}, root, "parquet")
    text = command("state", "list", root, "--top", 3)
    assert "Balances: 4 key groups by user" in text
    assert "entries  8 keys," in text
    assert "timers   8 on event time, 0 on processing time" in text
    data = json.loads(command("state", "list", root, "-f", "json"))
    assert [(p["entries"], p["states"]) for p in data["processes"]] == [(8, {"total": 8})]
    assert all(b["changelog_bytes"] > 0 for b in data["batches"][:3])
    (health,) = json.loads(command("state", "health", root, "-f", "json"))
    assert (health["process"], health["entries"], health["timers"]) == ("Balances", 8, 8)
    assert (health["from_batch"], health["more_entries"], health["findings"]) == (0, 0, [])
    assert "Balances: batch" in command("state", "health", root, "--strict")
    assert command.code == 0
    text = command("state", "show", root, "-k", "u5")
    assert (command.code, "total (value): 45" in text, '"name":"idle"' in text) == (0, True, True)
    assert json.loads(command("state", "show", root, "-k", "u5", "-f", "json"))["states"] == {"total": 45}
    assert "keeps nothing for nobody" in command("state", "show", root, "-k", "nobody")
    assert command.code == 1
    rows = [json.loads(line) for line in command("state", "export", root).splitlines()]
    assert {r["key"]: r["states"]["total"] for r in rows} == {f"u{i}": 30 + 3 * i for i in range(8)}
    assert len(command("state", "export", root, "-f", "table", "--limit", 2).splitlines()) == 2
    command("state", "export", root, "-f", "parquet", "-o", tmp_path / "out")
    assert spark.read.parquet(str(tmp_path / "out")).where("states.total = 45").count() == 1
    command("savepoint", "create", root, "--name", "before")
    text = command("state", "diff", root, "--from-batch", 0)
    assert "8 changed" in text
    data = json.loads(command("state", "diff", root / "savepoints" / "before", root, "-f", "json"))
    assert (data["growth_bytes"], data["keys"]) == (0, [])
    assert "3 partitions, Balances 4 key groups" in command("rescale", root, "--partitions", 3)
    assert "3 partitions, Balances 16 key groups" in command("rescale", root, "--key-groups", 16)
    data = json.loads(command("state", "list", root, "-f", "json"))
    assert [(p["entries"], p["key_groups"]) for p in data["processes"]] == [(8, 16)]


def test_a_table_becomes_the_state_that_a_query_begins_with(spark: SparkSession, tmp_path: Path) -> None:
    payments = Payments(spark, tmp_path / "input")
    payments.add_some(range(1))
    opening = spark.createDataFrame(
        [("u1", 1_000, {"corner": 7}, ("mill", 2), [(START - 5, 0.5), (START - 9, 0.25)]),
         ("u2", None, {}, None, None), ("u3", 3_000, None, None, None)],
        "user string, total bigint, shops map<string,bigint>, last struct<name:string,visits:bigint>, "
        "rate array<struct<valid_from:bigint,value:double>>",
    )  # fmt: skip
    root, table = tmp_path / "state", tmp_path / "balances"
    stream = payments.stream(BalancesByShop(), key_groups=64)
    done = bootstrap(stream, opening, root, written_at=START, watermark=START - 1)
    with view_of(spark, done.checkpoint) as view:
        rows = {r.key: r for r in entries_of(view).collect()}
        assert rows.keys() == {"u1", "u3"}, "what is empty is not kept"
        found = view.entry(("u1",))
        assert found is not None
        data = found[0].as_data()
        assert data["states"] == {
            "total": 1_000,
            "shops": {"corner": 7},
            "last": {"name": "mill", "visits": 2},
            "rate": [{"valid_from": START - 9, "value": 0.25}, {"valid_from": START - 5, "value": 0.5}],
        }
        assert data["expires_at"]["shops"] == {"corner": START + 86_400_000}
    payments.run(stream, {"main": table}, root, "parquet")
    totals = {row[0]: row[1] for row in rows_of(spark, table, "parquet")}
    assert totals == {f"u{i}": {1: 1_000, 3: 3_000}.get(i, 0) + i for i in range(8)}
    with view_of(spark, done.checkpoint) as view:
        found = view.entry(("u1",))
        assert found is not None
        assert found[0].states["shops"].value == {"corner": 8}


def test_a_table_that_does_not_fit_the_process_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    payments = Payments(spark, tmp_path / "input")
    stream = payments.stream(BalancesByShop())

    def refused(message: str, rows: list[Any], schema: str, **options: Any) -> None:
        with pytest.raises(BootstrapError, match=message):
            bootstrap(stream, spark.createDataFrame(rows, schema), tmp_path / "state", **options)

    refused("no column user", [(1,)], "total bigint")
    refused("columns x are a state of Balances; it has total", [("u", 1)], "user string, x bigint")
    refused("shops lives for a limited time", [("u", {})], "user string, shops map<string,bigint>")
    refused("the key u stands in the table 2 times", [("u", 1), ("u", 2)], "user string, total bigint")


@pytest.mark.matrix
def test_state_is_read_while_its_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    payments = Payments(spark, tmp_path / "input")
    payments.add_some(range(1))
    root = tmp_path / "state"
    checkpoint = Checkpoint(root, root / "checkpoint")
    payments.run(payments.stream(Balances()), {"main": tmp_path / "t"}, root, "parquet")
    payments.add_some(range(1, 40))
    query = payments.stream(Balances()).write_to({"main": tmp_path / "t"}, root, table_format="parquet")
    try:
        seen = []
        while not seen or seen[-1][0] < 6:
            with view_of(spark, checkpoint) as view:
                figures = figures_of(view)
                found = view.entry(("u1",))
                assert found is not None
                seen.append((view.batch, figures.entries, found[0].states["total"].value))
            made = savepoints.create(checkpoint, name=f"at-{len(seen)}")
            savepoints.verify(made)
        assert query.isActive
    finally:
        query.stop()
    assert {entries for _, entries, _ in seen} == {8}
    # Without a batch that has no data, batch n has the payments of minutes 0 … n.
    totals = [total for _, _, total in seen]
    assert totals == sorted(totals)
    assert all(total in {sum(n * 10 + 1 for n in range(m)) for m in range(1, 41)} for total in totals)
