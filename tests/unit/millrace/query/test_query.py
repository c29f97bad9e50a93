"""SQL over tables: as they are when what waits is merged, and what is said where a text is wrong."""

from __future__ import annotations

import csv
import doctest
import importlib
import io
import json
import os
import random
import re
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from millrace.checkpoints.positions import WAITING
from millrace.cli import build
from millrace.connectors.merging import _keep, open_with_waiting
from millrace.errors import MillraceError, UserError
from millrace.query.catalog import AppTable, asked_for
from millrace.query.shown import as_table, rows_of
from millrace.query.tables import asking, interruptible
from millrace.query.topics import topics_of
from millrace.runtime.apps import load_app
from millrace.runtime.settings import load_settings
from millrace.topology import Upsert
from tests.unit.millrace.connectors.test_merging import cut_off, waits, writer
from tests.unit.millrace.connectors.test_upsert import BY_REVISION, Session, batch, rows

SESSIONS = 'SELECT "user", n, revision, clicks FROM shop.sessions'


def tables(folder: Path) -> list[AppTable]:
    return [AppTable("shop", log.parent.name, log.parent) for log in sorted(folder.glob("*/_delta_log"))]


def ask(text: str, folder: Path, app: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
    with asking(text, tables(folder), {"shop.sessions": BY_REVISION}, app) as answer:
        return list(rows_of(answer.batches(limit)))


def sessions(folder: Path) -> dict[tuple[str, int], tuple[int, int]]:
    return {(row["user"], row["n"]): (row["revision"], row["clicks"]) for row in ask(SESSIONS, folder)}


@pytest.mark.parametrize("seed", range(12))
def test_a_table_is_asked_as_it_is_when_what_waits_is_merged(tmp_path: Path, seed: int) -> None:
    """The oracle is the merge itself: what was answered before it is what stands in the table after it."""
    chance = random.Random(seed)
    into = writer(tmp_path)
    into.prepare()
    seen = 0
    for number in range(8):
        made = {
            (user, n): Session(user, n, chance.randrange(6), chance.randrange(9), chance.random() < 0.3)
            for user, n in (
                (chance.choice("abc"), chance.randrange(3)) for _ in range(chance.randrange(1, 5))
            )
        }
        into.write(batch(*made.values()), number)
        if chance.random() < 0.4:
            answered, kept = sessions(tmp_path), waits(tmp_path)
            again = sessions(tmp_path)
            assert (answered, waits(tmp_path)) == (again, kept)  # to ask changes nothing
            into.flush()
            assert answered == rows(tmp_path)
            seen += bool(kept)
    last = sessions(tmp_path)
    into.close()
    assert (last, waits(tmp_path)) == (rows(tmp_path), [])
    assert sessions(tmp_path) == rows(tmp_path)


def test_what_is_merged_while_it_is_read_counts_once(tmp_path: Path) -> None:
    """The file is still there, and the table has its batch already: as between a merge and its end."""
    into = writer(tmp_path)
    into.write(batch(Session("a", 1, 1, 10)), 0)
    file = next((tmp_path / "sessions" / WAITING).glob("*.arrow"))
    kept = file.read_bytes()
    into.flush()
    into.write(batch(Session("b", 1, 1, 11)), 1)
    file.write_bytes(kept)
    opened, waiting = open_with_waiting(tmp_path / "sessions")
    assert [part.num_rows for part in waiting] == [1]
    assert opened.transaction_version("a:sessions") == 0
    assert sessions(tmp_path) == {("a", 1): (1, 10), ("b", 1): (1, 11)}
    file.unlink()
    into.close()


def test_a_table_without_a_version_takes_what_waits(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "sessions"), pa.table({"id": ["a", "b"], "n": [1, 2]}))
    _keep(
        tmp_path / "sessions" / WAITING / "000000000003.arrow",
        pa.table({"id": ["b", "c"], "n": [5, 6]}),
        "q",
        3,
    )
    upsert = Upsert("sessions", key=("id",))
    with asking(
        "SELECT * FROM shop.sessions ORDER BY id", tables(tmp_path), {"shop.sessions": upsert}
    ) as answer:
        found = list(rows_of(answer.batches()))
    assert found == [{"id": "a", "n": 1}, {"id": "b", "n": 5}, {"id": "c", "n": 6}]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    stamps = pa.array([0, 10**15], pa.timestamp("us", "UTC"))
    write_deltalake(
        str(tmp_path / "alerts"), pa.table({"card": ["c1", "c2"], "amount": [1.5, None], "at": stamps})
    )
    write_deltalake(str(tmp_path / "late"), pa.table({"card": ["c2"]}))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT * FROM shop.alrets", "there is no table shop.alrets; did you mean shop.alerts?"),
        ("SELECT * FROM alerts", "there is no table alerts; did you mean shop.alerts?"),
        (
            "SELECT * FROM shop.wholly_other",
            "there is no table shop.wholly_other; `millrace query --tables` lists",
        ),
        ("SELECT crad FROM shop.alerts", "No field named crad."),
        ("SELEC 1", "line 1, column 1: Expected: "),
        ("SELECT card\nFORM shop.alerts", "line 2, column 6: Expected: "),
        ("INSERT INTO shop.late VALUES ('x')", "not implemented yet"),
        ("WITH x AS (SELECT 1) INSERT INTO shop.late VALUES ('x')", "not implemented yet"),
        ("DROP TABLE shop.late", "Expected: "),
        ("COPY shop.late TO 'x.csv'", "Expected: "),
        ("SET datafusion.execution.batch_size = 1", "Expected: "),
        ("SELECT 1; DROP TABLE shop.late", "single SQL statement"),
        ("EXPLAIN ANALYZE INSERT INTO shop.late VALUES ('x')", "Expected: "),
        ("SELECT cast(card AS int) FROM shop.alerts", "Cannot cast string 'c1'"),
        ("SELECT sum(card) FROM shop.alerts", "Function 'sum' failed to match any signature"),
        ("SELECT nothing(card) FROM shop.alerts", "Invalid function 'nothing'."),
    ],
)
def test_what_is_wrong_is_said_in_a_line_and_nothing_is_written(shop: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        ask(text, shop)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300
    assert [DeltaTable(str(shop / name)).version() for name in ("alerts", "late")] == [0, 0]


def test_joins_limits_times_and_the_tables_of_one_app(shop: Path) -> None:
    joined = "SELECT a.card, a.at FROM alerts a JOIN late l ON a.card = l.card;"
    (row,) = ask(joined, shop, "shop")
    assert (row["card"], row["at"].isoformat()) == ("c2", "2001-09-09T01:46:40+00:00")
    assert len(ask("SELECT * FROM shop.alerts", shop, limit=1)) == 1
    assert [t.name for t in asked_for("SELECT 'late' FROM x -- alerts", tables(shop))] == []


@pytest.fixture
def fraud(tmp_path: Path, shop: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "run"
    (root / "tables").mkdir(parents=True)
    (shop / "alerts").rename(root / "tables" / "alerts")
    (shop / "late").rename(root / "tables" / "late")
    monkeypatch.chdir(tmp_path)
    return root


def command(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(build(), ["query", *arguments])
    if isinstance(done.exception, MillraceError):
        return done.exception.exit_code, str(done.exception)
    return done.exit_code, done.output


def test_rows_come_as_a_table_json_csv_and_parquet(fraud: Path, tmp_path: Path) -> None:
    where = ["--app", "fraud", "--root", str(fraud)]
    text = "SELECT card, amount, at FROM alerts ORDER BY card"
    code, shown = command(text, *where)
    assert (code, shown.splitlines()) == (
        0,
        ["card  amount  at", "c1       1.5  1970-01-01T00:00:00Z", "c2         -  2001-09-09T01:46:40Z"],
    )
    code, shown = command(text, *where, "--json")
    assert [json.loads(line) for line in shown.splitlines()][1] == {
        "card": "c2", "amount": None, "at": "2001-09-09T01:46:40Z",
    }  # fmt: skip
    code, shown = command(text, *where, "--format", "csv", "--limit", "1")
    assert list(csv.reader(io.StringIO(shown))) == [
        ["card", "amount", "at"],
        ["c1", "1.5", "1970-01-01T00:00:00Z"],
    ]
    out = tmp_path / "found.parquet"
    code, shown = command(text, *where, "--out", str(out))
    assert (code, pq.read_table(out).num_rows) == (0, 2)
    assert [p.name for p in tmp_path.glob(".found*")] == []
    code, shown = command("--tables", *where)
    assert "fraud.alerts  amount  double" in shown


def test_what_events_say_does_not_steer_the_terminal() -> None:
    shown = as_table(["k\x1b[2J"], [{"k\x1b[2J": "red \x1b[31m\x07\u202e\x9b"}, {"k\x1b[2J": ["\x1b"]}])
    assert shown == ["k?[2J", "red ?[31m???", '["\\u001b"]']


def test_of_an_app_that_has_written_nothing_its_last_demo_is_asked(fraud: Path, tmp_path: Path) -> None:
    demo = tmp_path / ".millrace" / "demo" / "fraud"
    demo.parent.mkdir(parents=True)
    assert "no app has written any" in command("SELECT count(*) n FROM fraud.alerts")[1]
    shutil.copytree(fraud, demo)
    done = CliRunner().invoke(build(), ["query", "SELECT count(*) n FROM fraud.alerts", "--json"])
    assert (done.exit_code, done.stdout) == (0, '{"n":2}\n')
    assert done.stderr == f"of fraud the last demo was asked, in {demo.parent}\n"
    shutil.rmtree(demo / "tables" / "late")
    at_root = CliRunner().invoke(build(), ["query", "--tables", "--app", "fraud", "--root", str(fraud)])
    assert ("fraud.late" in at_root.stdout, at_root.stderr) == (True, "")
    empty = CliRunner().invoke(build(), ["query", "--tables", "--app", "fraud", "-s", "storage.root=other"])
    assert (empty.stdout.split(), empty.stderr) == (["table", "column", "type"], "")
    own = load_settings(load_app("fraud").settings, app="fraud").storage.local_root
    assert own is not None
    shutil.copytree(fraud, own)
    assert "fraud.late" in command("--tables")[1]
    assert "fraud.late" not in command("--tables", "--demo")[1]
    assert "two folders" in command("--tables", "--app", "fraud", "--root", str(fraud), "--demo")[1]
    for app in ("iot", "clickstream"):  # those that had no demo are left out
        assert f"{app}." not in command("--tables", "--demo")[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "what is asked?"),
        (["SELECT 1", "--root", "x"], "say which with --app"),
        (["SELECT 1", "--app", "fruad"], "did you mean fraud?"),
        (["SELECT 1", "--out", "x.csv"], "name it x.parquet"),
        (["SELECT 1", "--tables"], "leave out the query"),
        (["SELECT 1", "--for", "5s"], "--for goes with --stream"),
        (["SELECT 1", "--stream", "--out", "x", "--to", "y"], "give --out or --to"),
        (["SELECT 1", "--stream", "--out", "x", "--limit", "3"], "--limit is of rows on the terminal"),
        (["SELECT 1", "--stream", "--for", "0s"], "for some time"),
        (["SELECT * FROM topic.fraud_alert", "--stream"], "did you mean topic.fraud_alerts"),
        (["SELECT * FROM fraud.alerts"], "no app has written any yet"),
    ],
)
def test_a_users_mistake_is_a_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, shown = command(*arguments)
    assert code == 2
    assert said in shown
    assert "\n" not in shown.strip()


def test_times_of_wrong_clocks_and_within_values_come_as_text(shop: Path) -> None:
    text = (
        "SELECT to_timestamp_millis(253402300800000) a, to_timestamp_millis(0) b, "
        "make_array(to_timestamp_nanos(1000)) c, {t: to_timestamp_nanos(0)} d, "
        "arrow_cast(253402300800000, 'Timestamp(Millisecond, None)') e"
    )
    (row,) = ask(text, shop)
    assert json.loads(msgspec.json.encode(row)) == {
        "a": "10000-01-01T00:00:00.000Z", "b": "1970-01-01T00:00:00Z", "e": "10000-01-01T00:00:00.000",
        "c": ["1970-01-01T00:00:00.000001Z"], "d": {"t": "1970-01-01T00:00:00Z"},
    }  # fmt: skip
    with pytest.raises(UserError, match=r"^d has a date or time outside the years"):
        ask("SELECT make_array(to_timestamp_millis(253402300800000)) d", shop)


def test_what_parquet_cannot_have_is_said_and_leaves_no_file(fraud: Path, tmp_path: Path) -> None:
    out = tmp_path / "found" / "x.parquet"
    out.parent.mkdir()
    code, said = command("SELECT interval '1 month' m", "--out", str(out))
    assert (code, "Parquet cannot have these columns" in said) == (2, True), said
    assert list(out.parent.iterdir()) == []


def test_a_table_that_is_being_made_or_is_damaged_is_named_and_hides_no_other(fraud: Path) -> None:
    tables, where = fraud / "tables", ["--app", "fraud", "--root", str(fraud)]
    (tables / "making" / "_delta_log").mkdir(parents=True)
    log = tables / "damaged" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text('{"x')
    for name in ("making", "damaged"):
        code, said = command(f"SELECT * FROM fraud.{name}", *where)  # noqa: S608
        assert code == 2
        assert said.startswith(f"table fraud.{name} cannot be read: ")
        assert len(said.splitlines()) == 1
    code, said = command("--tables", *where)
    assert code == 0
    assert "fraud.making cannot be read" in said
    assert "fraud.alerts " in said


def queries_of_pages() -> list[str]:
    """Return what the pages ask of tables."""
    root = Path(__file__).resolve().parents[4]
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("apps/**/*.md")]
    found = [re.findall(r'^millrace query (.*?)"(.+?)"', page.read_text(), re.MULTILINE) for page in pages]
    return sorted({text for of in found for words, text in of if "--stream" not in words})


@pytest.mark.parametrize("text", queries_of_pages())
def test_what_pages_ask_is_understood(text: str) -> None:
    with pytest.raises(UserError, match="there is no table"), asking(text, [], {}):
        pass


def test_ctrl_c_is_heard_while_the_engine_works() -> None:
    began, ends = threading.Event(), threading.Event()

    def works() -> None:
        began.set()
        ends.wait(60)

    def ctrl_c() -> None:
        began.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is not heard
    teller = threading.Thread(target=ctrl_c)
    teller.start()
    since = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            interruptible(works)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - since < 30
    teller.join()
    ends.set()


def test_a_merge_that_is_cut_off_is_asked_as_well(tmp_path: Path) -> None:
    into = writer(tmp_path)
    into.write(batch(Session("a", 1, 1, 10)), 0)
    cut_off(into)
    assert sessions(tmp_path) == {("a", 1): (1, 10)}
    assert rows(tmp_path) == {}


@pytest.mark.parametrize("module", ["catalog", "shown", "topics"])
def test_examples_run_as_they_stand(module: str) -> None:
    assert doctest.testmod(importlib.import_module(f"millrace.query.{module}")).failed == 0


def test_topics_have_the_columns_of_their_contracts() -> None:
    app = load_app("fraud")
    found = {one.topic: one for one in topics_of(app, load_settings(app.settings, app="fraud", env={}))}
    one = found["fraud.transactions"]
    columns = dict(one.named_columns())
    assert (one.full_name, one.event_time, one.is_ms) == ("topic.fraud_transactions", "event_time_ms", True)
    assert (columns["amount"], columns["card_id"]) == ("DOUBLE", "STRING")
    assert found["fraud.labels"].event_time == "transaction_time_ms"
    alerts = dict(found["fraud.alerts"].named_columns())
    assert alerts["reasons"].startswith("ARRAY<STRUCT<`code`: STRING")
    assert "code" not in alerts
