"""What is said of a streaming query before Spark starts: names, places for rows, checkpoints."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from millrace.cli.query_stream import Asked, Beginning, _most, _teller
from millrace.errors import UserError
from millrace.query.catalog import AppTable
from millrace.query.places import QUERY_FILE, Noted, check_folder, check_topic, goes_on, kept
from millrace.query.topics import AppTopic, named, unknown_topics

SALES = AppTopic("shop", "shop.new-sales", "`card` STRING")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("FROM topic.shop_new_sales", "FROM `topic.shop_new_sales`"),
        ("FROM topic.`shop.new-sales` s", "FROM `topic.shop_new_sales` s"),
        ("FROM `topic`.`shop_new_sales`", "FROM `topic.shop_new_sales`"),
        ("FROM `Topic` . SHOP_new_sales", "FROM `topic.shop_new_sales`"),
        ("SELECT `topic.shop_new_sales`", "SELECT `topic.shop_new_sales`"),
        ("SELECT '`topic`.`shop_new_sales`' -- topic.shop_new_sales", None),
        ("SELECT `a``b`.c, 1.5, x.`select`", None),
    ],
)
def test_names_may_be_quoted(text: str, written: str | None) -> None:
    assert named(text, [SALES.full_name])[0] == (text if written is None else written)


def test_a_quoted_topic_that_there_is_not_is_named_as_it_is_asked() -> None:
    assert unknown_topics("SELECT 1 FROM topic.`shop.old-sales`, other.`x-y`", [SALES.full_name]) == [
        "topic.shop_old_sales"
    ]


def test_where_rows_cannot_go_is_said_before_spark_starts(tmp_path: Path) -> None:
    alerts = AppTable("shop", "alerts", tmp_path / "tables" / "alerts")
    file, full, delta = tmp_path / "file", tmp_path / "full.parquet", tmp_path / "delta"
    file.write_text("x")
    for folder in (full, delta / "_delta_log", tmp_path / "other", tmp_path / "empty.parquet"):
        folder.mkdir(parents=True)
    (full / "part-0").write_text("x")
    (tmp_path / "other" / "x").write_text("x")
    (tmp_path / "link").symlink_to(alerts.folder)
    for folder, goes, said in [
        (tmp_path / "link", False, "is table shop.alerts"),
        (alerts.folder / ".." / "alerts", False, "is table shop.alerts"),
        (alerts.folder, False, "is table shop.alerts"),
        (alerts.folder / "below", True, "is table shop.alerts"),
        (file, False, "is a file"),
        (file / "below", False, "cannot be made"),
        (full, False, "has rows already"),
        (tmp_path / "other", False, "no Delta table and not empty"),
    ]:
        with pytest.raises(UserError, match=said):
            check_folder(folder, [alerts], goes_on=goes)
    for folder, goes in [
        (full, True), (delta, False), (tmp_path / "empty.parquet", False),
        (tmp_path / "a" / "b.parquet", False),
    ]:  # fmt: skip
        check_folder(folder, [alerts], goes_on=goes)


@pytest.mark.parametrize(
    ("topic", "said"),
    [("shop.new-sales", "a topic of shop"), ("a b", "no name of a topic"), ("", "no name"), ("..", "no name"),
     ("x" * 250, "no name")],
)  # fmt: skip
def test_a_topic_that_rows_cannot_go_to_is_refused(topic: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_topic(topic, [SALES])
    check_topic("shop.mine", [SALES])


def test_a_checkpoint_is_of_one_query_at_a_time(tmp_path: Path) -> None:
    folder, query = tmp_path / "checkpoint", Noted("SELECT 1\n FROM x", out="/out")
    assert not goes_on(folder)
    assert not goes_on(None)
    with kept(folder, query), pytest.raises(UserError, match=r"another query goes on from .* \(pid "):  # noqa: SIM117
        with kept(folder, query):
            pass
    assert not goes_on(folder), "it has committed nothing"
    (folder / "offsets").mkdir()
    (folder / "offsets" / "0").write_text("v1")
    assert goes_on(folder)
    with kept(folder, msgspec.structs.replace(query, text="SELECT  1 FROM x")):
        pass
    for other, said in [
        (Noted("SELECT 2 FROM x", out="/out"), "its text is 'SELECT 1 FROM x'"),
        (Noted(query.text), "its --out is '/out'"),
        (Noted(query.text, "/out", "t"), "its --to is 'none'"),
    ]:
        with pytest.raises(UserError, match=said), kept(folder, other):
            pass
    (folder / QUERY_FILE).unlink()  # as before there were notes
    with kept(folder, Noted("SELECT 3")):
        pass


def test_what_is_no_checkpoint_of_a_query_is_left_alone(tmp_path: Path) -> None:
    app, mine, file = tmp_path / "app", tmp_path / "mine", tmp_path / "file"
    (app / "checkpoint" / "offsets").mkdir(parents=True)
    (app / "contract.json").write_text("{}")
    mine.mkdir()
    (mine / "letters.txt").write_text("x")
    file.write_text("x")
    for folder, said in [
        (app / "checkpoint", "of an app"), (app, "of an app"), (mine, "no checkpoint"), (file, "is a file"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=said), kept(folder, Noted("SELECT 1")):
            pass
    assert [one.name for one in mine.iterdir()] == ["letters.txt"]
    assert not (app / QUERY_FILE).exists()
    with contextlib.suppress(PermissionError), pytest.raises(UserError, match="cannot be a checkpoint"):  # noqa: SIM117
        with kept(Path("/proc/none"), Noted("SELECT 1")):
            pass


def asked(shape: str, limit: int | None = None) -> Asked:
    return Asked("SELECT 1", shape, None, None, limit, Beginning.earliest, None, False, None)


@pytest.mark.parametrize(
    ("shape", "limit", "rows", "lines", "more"),
    [
        ("json", None, 25_000, 25_000, False), ("csv", None, 25_000, 25_001, False),
        ("json", 7, 25_000, 7, False),
        ("table", None, 10_000, 10_001, False), ("table", None, 25_000, 10_001, True),
        ("table", 7, 25_000, 8, False), ("table", 12_000, 25_000, 10_001, True),
    ],
)  # fmt: skip
def test_no_row_of_a_batch_is_left_out_without_a_word(
    shape: str, limit: int | None, rows: int, lines: int, more: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    one = asked(shape, limit)
    most = _most(one)
    batch = [{"n": n} for n in range(rows if most is None else min(rows, most))]
    enough = _teller(one)(["n"], batch)
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == lines
    assert ("a batch has more than 10,000 rows" in said.err) == more
    assert enough == (limit is not None and limit <= len(batch))


def test_whoever_reads_may_have_seen_enough() -> None:
    """As ``millrace query --stream … --json | head -2``."""
    code = (
        "from tests.unit.millrace.query.test_streaming import _teller, asked\n"
        "tell = _teller(asked('json'))\n"
        "told = [tell(['n'], [{'n': 'x' * 1000}] * 1000) for _ in range(9)]\n"
        "import sys; sys.exit(3 if any(told) else 4)\n"
    )
    piped = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=piped, stderr=piped) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        ran.stdout.readline()
        ran.stdout.close()
        assert (ran.wait(), ran.stderr.read()) == (3, b"")
