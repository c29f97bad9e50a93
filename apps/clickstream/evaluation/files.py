"""Evaluations: sessions of other people's data through the app's processes on Spark, compared exactly."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.operations.report import write_parquet
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.settings import AppSettings
from millrace.topology import Input, Topology, Upsert, read
from millrace_apps.clickstream.contracts.snowplow_events import (
    TrackerEvent,
    TrackerSession,
    TrackerUser,
    TrackerView,
)
from millrace_apps.clickstream.evaluation.snowplow_files import (
    SESSION_COLUMNS,
    USER_COLUMNS,
    VIEW_COLUMNS,
    BadFile,
    Comparison,
    compare,
    read_events,
)
from millrace_apps.clickstream.processes.rules import SNOWPLOW, SessionRules, rules_named
from millrace_apps.clickstream.processes.sessionize import BareClick, Sessionize
from millrace_apps.clickstream.processes.snowplow import TrackerSessions, TrackerUsers

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: How Snowplow's own tests are set up: every page view is a conversion, and one session is declared to be
#: engaged, to see that a shop may say so (integration_tests/dbt_project.yml and
#: integration_tests/macros/engaged_session_overwrite.sql of dbt-snowplow-web 0.15.0).
TEST_SUITE: Final = replace(
    SNOWPLOW,
    conversions=frozenset({"page_view"}),
    engaged_sessions=frozenset({"0b0c7bb589ebd041177514f3e43446ca5d4343328936d2f8f12a42b41bf9140e"}),
)
_EVENTS, _CONTROL = "events", "control"
#: Records per batch: several batches, so that sessions are carried over from one to the next.
_BATCH: Final = 50_000

Progress = Callable[[str], None]


def _topics(_: Any) -> Topics:
    return Topics(reads=(Topic(_EVENTS), Topic(_CONTROL)), control=_CONTROL)


def tracker_app(rules: SessionRules) -> App:
    """Return Snowplow's model as an app: sessions and page views, then visitors."""

    def topology(_: AppSettings) -> Topology:
        return (
            read(Input(_EVENTS, "session_id", "collector_ms"), control=_CONTROL)
            .process(TrackerSessions(rules))
            .key_by("visitor")
            .process(TrackerUsers())
            .write(
                tables={
                    "main": Upsert("users", ("visitor_id",), "revision"),
                    "sessions": Upsert("sessions", ("session_id",), "revision"),
                    "TrackerSessions.page_views": "page_views",
                    "TrackerSessions.put_aside": "put_aside",
                    "TrackerSessions.dead_letters": "dead_letters",
                    "TrackerSessions.late": "late",
                }
            )
        )

    return App("clickstream-tracker", "Snowplow's web model", AppSettings, topology, _topics)


def click_app(rules: SessionRules) -> App:
    """Return an app that cuts bare clicks into sessions."""

    def topology(_: AppSettings) -> Topology:
        return (
            read(Input(_EVENTS, "visitor_id"), control=_CONTROL)
            .process(Sessionize(rules))
            .write(tables={"main": "sessions", "late": "late", "dead_letters": "dead_letters"})
        )

    return App("clickstream-sessionize", "sessions of bare clicks", AppSettings, topology, _topics)


def _settings(name: str) -> AppSettings:
    from millrace.runtime.settings import load_settings

    overrides = ["spark.quick_start=true", "stream.out_of_orderness=0s"]
    return load_settings(AppSettings, app=name, overrides=overrides)


def _batches(events: Iterable[Any], time_of: Callable[[Any], int], size: int) -> Iterator[list[Any]]:
    """Yield records in batches; events of one instant stay in one, so that none is late for another."""
    from millrace.runtime.replay import Record

    encode = msgspec.json.encode
    batch: list[Any] = []
    last = None
    for event in events:
        at = time_of(event)
        if len(batch) >= size and at != last:
            yield batch
            batch = []
        batch.append(Record(_EVENTS, encode(event), None, at))
        last = at
    yield batch


def evaluate_sessions(
    events: Path, sessions: Path, views: Path, users: Path, *, rows_to: Path | None = None,
    rules: SessionRules = TEST_SUITE, say: Progress = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """Run Snowplow's events through the pipeline and compare with the rows that Snowplow expects.

    Args:
        events: CSV of events.
        sessions: CSV of expected sessions.
        views: CSV of expected page views.
        users: CSV of expected users.
        rows_to: Parquet file for the sessions found.
        rules: Rules and configuration.
        say: Told what goes on.

    Returns:
        The report.

    Raises:
        BadFile: A file cannot be read.
    """
    from millrace.runtime.replay import run_records

    found = read_events(events)
    say(f"{len(found):,} events; starting Spark")
    app = tracker_app(rules)
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        # In order of the collector's time, which is the event time: nothing is late.
        batches = _batches(found, lambda e: e.collector_ms, 40)
        done = run_records(app, _settings(app.name), Path(folder), batches)
        tables = {
            "sessions": (TrackerSession, sessions, SESSION_COLUMNS, "domain_sessionid"),
            "page_views": (TrackerView, views, VIEW_COLUMNS, "page_view_id"),
            "users": (TrackerUser, users, USER_COLUMNS, "domain_userid"),
        }
        results: dict[str, Comparison] = {}
        for name, (cls, expected, columns, key) in tables.items():
            rows = [_struct(cls, row) for row in done.table(name).to_pylist()]
            results[name] = compare(name, rows, expected, columns, key)
        put_aside = [row["reason"] for row in done.table("put_aside").to_pylist()]
        late = done.table("late").num_rows + done.table("dead_letters").num_rows
        if rows_to is not None:
            write_parquet(rows_to, done.table("sessions"))
    report = _sessions_report(results, rules, len(found), done.seconds, put_aside, late)
    return report | {"live": _live_report(found, sessions, users, rules)}


def _live_report(
    events: Sequence[TrackerEvent], sessions: Path, users: Path, rules: SessionRules
) -> dict[str, Any]:
    """Compare what the app's own process makes of the events with the sessions that Snowplow expects."""
    from millrace_apps.clickstream.evaluation.tracked import LIVE_COLUMNS, live_sessions

    rows = live_sessions(events, rules)
    compared = compare("live", rows, sessions, LIVE_COLUMNS, "domain_sessionid")
    visitors = [{"domain_userid": name} for name in sorted({row.visitor_id for row in rows} - {""})]
    known = compare(
        "live users", visitors, users, {"domain_userid": itemgetter("domain_userid")}, "domain_userid"
    )
    return {
        "expected": compared.expected,
        "matching": compared.matching,
        "mismatches": compared.mismatches,
        "page_views": sum(row.page_views for row in rows),
        "users": {"expected": known.expected, "matching": known.matching, "mismatches": known.mismatches},
        "compared": compared.compared,
        "differences": [d._asdict() for d in (*compared.differences, *known.differences)],
    }


def _struct(cls: Any, row: Mapping[str, Any]) -> Any:
    """Make a record of a table's row; maps come as lists of pairs."""
    fields = {f.name: row[f.name] for f in msgspec.structs.fields(cls)}
    for name, value in fields.items():
        if isinstance(value, list) and (not value or isinstance(value[0], tuple)) and name in _MAPS:
            fields[name] = dict(value)
    return msgspec.convert(fields, cls)


_MAPS: Final = ("first", "last", "event_counts", "attributes")


def _sessions_report(
    results: Mapping[str, Comparison], rules: SessionRules, events: int, seconds: float,
    put_aside: list[str], late: int,
) -> dict[str, Any]:  # fmt: skip
    from collections import Counter

    report: dict[str, Any] = {
        name: {"expected": r.expected, "matching": r.matching, "mismatches": r.mismatches}
        for name, r in results.items()
    }
    report |= {
        "differences": [d._asdict() for r in results.values() for d in r.differences],
        "compared": {name: r.compared for name, r in results.items()},
        "not_compared": [f"{name}.{column}" for name, r in results.items() for column in r.not_compared],
        "not_compared_why": "from Snowplow's seed tables, enrichments and configuration, not from the events",
        "configuration": {
            "rules": rules.name,
            "conversions": sorted(rules.conversions),
            "engaged_sessions": sorted(rules.engaged_sessions),
        },
        "events": events,
        "put_aside": dict(sorted(Counter(put_aside).items())),
        "late_or_unreadable": late,
        "seconds": round(seconds, 3),
    }
    return report


# -- bare clicks -------------------------------------------------------------------------------------


def read_clicks(path: Path) -> pd.DataFrame:
    """Read clicks: ``visitor_id``, ``item_id`` (text) and ``at`` (UTC ms), in order of time.

    Raises:
        BadFile: The file is no Parquet, or has other columns.
    """
    import pandas as pd

    try:
        read = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise BadFile(f"{path} cannot be read as Parquet: {error}") from error
    missing = [name for name in ("session_id", "item_id", "event_time") if name not in read.columns]
    if missing:
        raise BadFile(f"{path} has no column {', '.join(missing)}; it has {', '.join(read.columns)}")
    times = read["event_time"]
    if pd.api.types.is_integer_dtype(times):
        at = times.astype("int64")  # already ms
    elif pd.api.types.is_datetime64_any_dtype(times):
        at = pd.to_datetime(times, utc=True).astype("datetime64[ms, UTC]").astype("int64")
    else:
        raise BadFile(f"{path}: event_time is {times.dtype}, neither a time nor whole ms")
    if at.min() < 0 or read[["session_id", "item_id"]].isna().any().any():
        raise BadFile(f"{path} has rows without visitor, item or time")
    clicks = pd.DataFrame(
        {"visitor_id": read["session_id"].astype(str), "item_id": read["item_id"].astype(str), "at": at}
    )
    clicks = clicks.sort_values("at", kind="stable", ignore_index=True)
    # What comes out names visitors as what came in does.
    clicks.attrs["visitors"] = str(read["session_id"].dtype)
    return clicks


def expected_sessions(clicks: pd.DataFrame, gap_ms: int) -> pd.DataFrame:
    """Cut clicks into sessions with pandas: another way to the same rows, to compare with.

    Args:
        clicks: As :func:`read_clicks` returns them.
        gap_ms: A pause of more than this begins a new session, ms.

    Returns:
        ``visitor_id``, ``session_start``, ``session_end`` (UTC ms) and ``events``, sorted.
    """
    ordered = clicks.sort_values(["visitor_id", "at"], kind="stable")
    begins = ordered.groupby("visitor_id")["at"].diff().gt(gap_ms).cumsum()
    found = ordered.groupby(["visitor_id", begins.rename("n")])["at"].agg(["min", "max", "size"])
    found = found.reset_index().drop(columns="n")
    found.columns = ["visitor_id", "session_start", "session_end", "events"]
    return found.sort_values(["visitor_id", "session_start"], ignore_index=True)


def differing_sessions(found: pd.DataFrame, expected: pd.DataFrame) -> pd.DataFrame:
    """Return the sessions that only one of two tables has; one that stands there twice needs another.

    Args:
        found: ``visitor_id``, ``session_start``, ``session_end`` (UTC ms) and ``events``.
        expected: The same.
    """
    keys = ["visitor_id", "session_start", "session_end", "events"]
    mine, theirs = (frame[keys].assign(time=frame.groupby(keys).cumcount()) for frame in (found, expected))
    both = theirs.merge(mine, how="outer", on=[*keys, "time"], indicator=True).drop(columns="time")
    return both[both["_merge"] != "both"]


def evaluate_sessionize(
    clicks_path: Path, gap_ms: int, *, rows_to: Path | None = None, say: Progress = lambda _: None
) -> dict[str, Any]:
    """Cut clicks into sessions on Spark and compare with pandas, row by row.

    Args:
        clicks_path: Parquet with ``session_id`` (the visitor), ``item_id``, ``event_time``.
        gap_ms: A pause of more than this begins a new session, ms.
        rows_to: Parquet file for the sessions.
        say: Told what goes on.

    Returns:
        The report.

    Raises:
        BadFile: The file cannot be read.
    """
    from millrace.runtime.replay import run_records

    clicks = read_clicks(clicks_path)
    rules = rules_named("ga4", gap_ms=gap_ms)
    app = click_app(rules)
    columns = (clicks[name].tolist() for name in ("visitor_id", "item_id", "at"))
    events = (BareClick(*row) for row in zip(*columns, strict=True))
    say(f"{len(clicks):,} clicks; starting Spark")
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        done = run_records(
            app, _settings(app.name), Path(folder), _batches(events, lambda e: e.event_time_ms, _BATCH)
        )
        table = done.table("sessions")
        aside = done.table("late").num_rows + done.table("dead_letters").num_rows
    began = time.monotonic()
    found = sessions_of(table.to_pandas())
    expected = expected_sessions(clicks, gap_ms)
    wrong = differing_sessions(found, expected)
    if rows_to is not None:
        named = found
        if clicks.attrs["visitors"].startswith(("int", "uint")):
            named = found.astype({"visitor_id": clicks.attrs["visitors"]})
        write_parquet(rows_to, _with_times(named))
    return {
        "clicks": len(clicks),
        "visitors": int(clicks["visitor_id"].nunique()),
        "sessions": len(found),
        "expected_sessions": len(expected),
        "events_per_session": round(len(clicks) / max(len(found), 1), 4),
        "longest_session_events": int(found["events"].max()),
        "mismatches": len(wrong),
        "differences": wrong.head(50).astype(str).to_dict("records"),
        "close_reasons": {str(k): int(v) for k, v in found["close_reason"].value_counts().items()},
        "late_or_unreadable": aside,
        "gap_ms": gap_ms,
        "events_per_s": round(done.events_per_s),
        "warm_events_per_s": round(done.warm_events_per_s),
        "batches": done.batches,
        "seconds": round(done.seconds, 3),
        "compare_seconds": round(time.monotonic() - began, 3),
    }


def sessions_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the sessions that hold: of each the newest row, less those that are part of another."""
    newest = rows.sort_values("revision").groupby("session_id", as_index=False).last()
    held = newest[newest["close_reason"] != "merged"]
    held = held.rename(columns={"session_start_ms": "session_start", "session_end_ms": "session_end"})
    columns = ["visitor_id", "session_start", "session_end", "events", "close_reason"]
    return held[columns].sort_values(["visitor_id", "session_start"], ignore_index=True)


def _with_times(found: pd.DataFrame) -> pa.Table:
    import pandas as pd
    import pyarrow as pa

    names = ("session_start", "session_end")
    times = {name: pd.to_datetime(found[name], unit="ms", utc=True) for name in names}
    return pa.Table.from_pandas(found.assign(**times), preserve_index=False)
