"""``millrace evaluate clickstream recommend``: queries, lists and what is let in, over small files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace_apps.clickstream.evaluation.cli import app as evaluate
from millrace_apps.clickstream.evaluation.snowplow_files import BadFile
from millrace_apps.clickstream.recommend.evaluate import _in_time, evaluate_clicks
from millrace_apps.clickstream.recommend.files import Columns, Session, read_sessions
from millrace_apps.clickstream.recommend.index import build
from millrace_apps.clickstream.recommend.scoring import POLICIES, recommend

MINUTE = 60_000
COLUMNS = Columns()


def clicks(path: Path, rows: list[tuple[Any, Any, int]], columns: Columns = COLUMNS) -> Path:
    session, item, at = zip(*rows, strict=True)
    table = {columns.session: list(session), columns.item: list(item)}
    times = pa.array(at, pa.timestamp("ms", "UTC"))
    pq.write_table(pa.table({**table, columns.time: times}), path)
    return path


def some_clicks(seed: int, sessions: int, first: int = 0) -> list[tuple[int, int, int]]:
    of = random.Random(seed)
    rows = []
    for session in range(sessions):
        at = of.randrange(600) * MINUTE
        for _ in range(of.randint(1, 6)):
            rows.append((first + session, of.randrange(12), at))
            at += of.choice((0, 1, 7)) * MINUTE
    of.shuffle(rows)
    return rows


def run(*arguments: object) -> UserError | None:
    """Run the command; return what the user did wrong, if anything."""
    result = CliRunner().invoke(evaluate, ["recommend", *map(str, arguments)])
    if result.exit_code and not isinstance(result.exception, UserError):
        raise AssertionError(result.output) from result.exception
    return result.exception if isinstance(result.exception, UserError) else None


def test_both_formats_say_the_same_of_the_same_sessions(tmp_path: Path) -> None:
    train = clicks(tmp_path / "train.parquet", some_clicks(1, 40))
    test = clicks(tmp_path / "test.parquet", some_clicks(2, 20, first=1000))
    assert run("--train", train, "--test", test, "--out", tmp_path / "a.json",
               "--recs", tmp_path / "a.parquet") is None  # fmt: skip
    lists = [s.items for s in read_sessions([train], COLUMNS)]
    asked = [
        (s.items[:n], s.items[n]) for s in read_sessions([test], COLUMNS) for n in range(1, len(s.items))
    ]
    pq.write_table(pa.table({"session_id": range(len(lists)), "items": lists}), tmp_path / "l.parquet")
    pq.write_table(
        pa.table({"prefix": [p for p, _ in asked], "target": [t for _, t in asked]}), tmp_path / "p.parquet"
    )
    assert run("--train-sessions", tmp_path / "l.parquet", "--test-prefixes", tmp_path / "p.parquet",
               "--out", tmp_path / "b.json") is None  # fmt: skip
    a, b = (json.loads((tmp_path / f"{name}.json").read_text()) for name in "ab")
    for policy in POLICIES:
        assert a[policy] == b[policy]
        assert {"hr20", "mrr20", "ndcg20"} <= set(a[policy])
    assert a["coverage"] == b["coverage"]
    assert set(a["scoring_ms"]) == {"p50", "p90", "p99"}
    _lists_and_measures_agree(pq.read_table(tmp_path / "a.parquet").to_pylist(), a, len(asked))


def _lists_and_measures_agree(rows: list[dict[str, Any]], report: dict[str, Any], queries: int) -> None:
    """Take the measures from the lists that were written, another way."""
    assert len(rows) == report["queries"] == queries
    for policy in POLICIES:
        hits = [r[policy].index(r["target"]) + 1 for r in rows if r["target"] in r[policy][:20]]
        assert report[policy]["hr20"] == pytest.approx(len(hits) / queries, abs=1e-6)
        assert report[policy]["mrr20"] == pytest.approx(sum(1 / h for h in hits) / queries, abs=1e-6)


def test_sessions_in_several_files_of_training_are_one_index(tmp_path: Path) -> None:
    rows = some_clicks(3, 40)
    whole = clicks(tmp_path / "whole.parquet", rows)
    parts = [clicks(tmp_path / f"{n}.parquet", rows[n::2]) for n in (0, 1)]
    test = clicks(tmp_path / "test.parquet", some_clicks(4, 20, first=1000))
    # Clicks of one instant have no order but the files'; without such ones a session may be split over files.
    by_time = {(s, at) for s, _, at in rows}
    if len(by_time) < len(rows):
        kept = {(s, at): (s, i, at) for s, i, at in rows}
        clicks(whole, list(kept.values()))
        parts = [clicks(path, list(kept.values())[n::2]) for n, path in enumerate(parts)]
    made = [
        evaluate_clicks(train, test, columns=COLUMNS, update=False, ends_after_ms=0, m=50)
        for train in ([whole], parts, parts[:1])
    ]
    assert made[0]["train_sessions"] == made[1]["train_sessions"] >= made[2]["train_sessions"]
    assert made[0]["train_clicks"] == made[1]["train_clicks"] > made[2]["train_clicks"]


@pytest.mark.parametrize("seed", range(60))
def test_with_update_a_query_sees_the_sessions_ended_by_then_and_no_other(seed: int) -> None:
    of = random.Random(seed)
    tests = []
    for name in range(of.randint(1, 12)):
        times = sorted(of.randrange(0, 200) * MINUTE for _ in range(of.randint(1, 5)))
        tests.append(Session(name, [of.randrange(6) for _ in times], times))
    trained = [[0, 1], [2, 3, 1]]
    pause = of.choice((0, 30)) * MINUTE
    index = build(trained)
    seen = 0
    for query in _in_time(index, tests, update=True, ends_after_ms=pause):
        now = tests[query.session].times[query.step - 1]
        ended = sorted((s for s in tests if s.times[-1] < now - pause), key=lambda s: s.times[-1])
        fresh = build([*trained, *(s.items for s in ended)])
        assert index.sessions == fresh.sessions
        assert recommend(index, query.visit) == recommend(fresh, query.visit)
        seen += 1
    assert seen == sum(len(s.items) - 1 for s in tests)


def test_without_update_no_test_session_is_let_in() -> None:
    index = build([["a", "b"]])
    tests = [Session(1, ["a", "b", "a"], [0, 1, 2]), Session(2, ["b", "a"], [10**9, 10**9 + 1])]
    assert [q.step for q in _in_time(index, tests, update=False, ends_after_ms=0)] == [1, 2, 1]
    assert index.sessions == 1


def test_other_names_of_columns(tmp_path: Path) -> None:
    names = Columns("sid", "aid", "ts")
    train = clicks(tmp_path / "train.parquet", some_clicks(1, 10), names)
    out = tmp_path / "r.json"
    options = ("--session-column", "sid", "--item-column", "aid", "--time-column", "ts")
    assert run("--train", train, "--test", train, "--update", "--out", out, *options) is None
    assert json.loads(out.read_text())["update"] is True
    assert run("--train", train, "--test", train, "--out", out) is not None


def lines(path: Path, rows: list[tuple[Any, Any, int]]) -> Path:
    """The same clicks as OTTO writes sessions, with carts and orders among them."""
    sessions: dict[int, list[dict[str, Any]]] = {}
    for session, item, at in rows:
        sessions.setdefault(session, []).append({"aid": item, "ts": at, "type": "clicks"})
    for number, events in sessions.items():
        events.insert(number % 2, {"aid": 999, "ts": 0, "type": ("carts", "orders")[number % 2]})
    told = [json.dumps({"session": name, "events": events}) for name, events in sessions.items()]
    path.write_text("\n".join([*told, "", ""]), "utf-8")
    return path


def test_lines_of_json_as_otto_has_them_say_the_same_as_parquet(tmp_path: Path) -> None:
    """Clicks count; carts and orders are no clicks."""
    trained, tested = some_clicks(1, 40), some_clicks(2, 20, first=1000)
    reports = []
    for name, write, end in (("parquet", clicks, "parquet"), ("lines", lines, "jsonl")):
        # A session is a line: its clicks stand together, by time.
        train, test = (
            write(tmp_path / f"{name}-{n}.{end}", sorted(rows, key=lambda r: (r[0], r[2])))
            for n, rows in enumerate((trained, tested))
        )
        out = tmp_path / f"{name}.json"
        assert run("--train", train, "--test", test, "--out", out, "--update") is None
        reports.append(json.loads(out.read_text()))
    for policy in POLICIES:
        assert reports[0][policy] == reports[1][policy]
    for name in ("queries", "train_sessions", "train_clicks", "coverage"):
        assert reports[0][name] == reports[1][name]
    assert reports[0]["queries"] > 20


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"session": 0, "events": []}', "has no click"),
        ('{"session": 0, "events": [{"aid": 1, "ts": 5, "type": "clicks"}]}\n{"session": ', "line 2"),
        ('{"session": 0, "events": [{"aid": 1, "ts": "noon", "type": "clicks"}]}', "line 1"),
        ('{"session": 0, "events": [{"aid": 1, "ts": 5, "type": "looks"}]}', "line 1"),
    ],
)
def test_lines_that_are_no_sessions_are_refused_in_one_line(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "otto.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(BadFile, match=why):
        read_sessions([path], COLUMNS)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    train = clicks(tmp_path / "train.parquet", [("a", 1, 0), ("b", 2, 5)])
    with pytest.raises(BadFile, match="nothing to predict"):
        evaluate_clicks([train], train, columns=COLUMNS, update=False, ends_after_ms=0, m=5)
    out = ("--out", tmp_path / "r.json")
    assert "--test" in str(run("--train", train, *out))
    assert "not some of both" in str(run("--train", train, "--test", train, "--test-prefixes", train, *out))
    lists = ("--train-sessions", train, "--test-prefixes", train, *out)
    assert "no column items" in str(run(*lists))
    assert "needs times" in str(run(*lists, "--update"))
    assert not (tmp_path / "r.json").exists()
