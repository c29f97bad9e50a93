"""Benchmarks of the apps: answers and their causes, what was taken, checks of tables, sizes of state."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from millrace import Context, KeyedProcess, Timer, arrival, value_state
from millrace.errors import UserError
from millrace.host.memory import MemoryHost
from millrace.runtime.apps import load_app
from millrace.runtime.monitor import BatchStat
from millrace_apps.benchmarks import app_drain, app_latency, app_run, rules_cost, silence, state_size
from millrace_apps.benchmarks.app_bench import Answers, Key, Record, bench_of
from millrace_apps.benchmarks.app_drain import Mark
from millrace_apps.benchmarks.app_latency import Answer, Asked
from millrace_apps.benchmarks.cli import app
from millrace_apps.benchmarks.cli.apps import BenchApp, LatencyJob
from millrace_apps.benchmarks.paged import PagedHost
from millrace_apps.benchmarks.state_apps import BENCHES
from millrace_apps.benchmarks.streams import BenchmarkFailed

APPS = [member.value for member in BenchApp]


class Tables:
    """Rows of tables and messages of streams, as a run gives them to a check."""

    def __init__(self, sent: dict[str, list[Record]], **tables: list[Record]) -> None:
        self._sent, self._tables = sent, tables

    def rows(self, name: str, columns: Sequence[str]) -> list[Record]:
        return [{column: row[column] for column in columns} for row in self._tables.get(name, [])]

    def sent(self, stream: str) -> Iterator[Record]:
        return iter(self._sent.get(stream, []))

    def check(self, name: str) -> Record:
        return bench_of(name).check(self.rows, self.sent)


# -- what is known of the apps -----------------------------------------------------------------------


@pytest.mark.parametrize("name", APPS)
def test_streams_and_answers_are_topics_of_the_app_and_options_are_the_generators(name: str) -> None:
    bench = bench_of(name)
    topics = load_app(name).settings().topics  # type: ignore[attr-defined]
    assert all(getattr(topics, topic) for topic in (*bench.streams, bench.answers.topic))
    assert bench.answers.stream in bench.streams
    assert {member.value for member in LatencyJob} == {*APPS, "w1"}
    from millrace_apps.generators.domain_command import _SHARED, own_options
    from millrace_apps.generators.domains import load

    domain = load(name)
    assert set(bench.streams) == set(domain.streams)
    known = {*_SHARED, *own_options(domain), "loop"}
    assert {o.replace("-", "_") for o in (bench.entities, *bench.preload, *bench.live)} <= known


@pytest.mark.parametrize("name", APPS)
def test_settings_of_a_benchmark_are_ones_that_the_app_knows(name: str, tmp_path: Path) -> None:
    from millrace.runtime.settings import load_settings

    bench, kind = bench_of(name), load_app(name).settings
    names = app_run.topic_settings(kind, ".x")
    sets = [*names, *app_drain.settings_of(bench, ["spark.key_groups=8"]), *bench.paced(tmp_path)]
    settings: Any = load_settings(kind, app=name, overrides=sets, env={})
    assert settings.topics.control == f"{kind().topics.control}.x"  # type: ignore[attr-defined]
    assert settings.spark.key_groups == 8


def test_rules_of_the_latency_are_the_apps_own_and_one_that_answers_at_once(tmp_path: Path) -> None:
    from millrace_apps.clickstream.processes.offer_rules import DEFAULT_RULES, read_rules
    from millrace_apps.iot_maintenance.alarms.book import read_rules as read_alarm_rules
    from millrace_apps.iot_maintenance.settings import DEFAULTS

    (fleet,) = bench_of("iot").paced(tmp_path)
    own, rules = read_alarm_rules(DEFAULTS), read_alarm_rules(Path(fleet.partition("=")[2]))
    assert list(rules)[:-1] == list(own)
    assert list(rules)[-1].id == "bench-vibration"
    (offers,) = bench_of("clickstream").paced(tmp_path)
    assert read_rules(Path(offers.partition("=")[2]))[:-1] == DEFAULT_RULES


def test_a_loop_is_closed_with_the_topics_of_the_run() -> None:
    options = app_run._arguments({"rate": 5, "loop": True}, ".bench-1")
    assert options == ["--rate", "5", "--loop", "--loop-suffix", ".bench-1"]


# -- drain -------------------------------------------------------------------------------------------


def mark(at: float, **taken: int) -> Mark:
    return Mark(at, {"driver": at, "workers": 2 * at}, taken)


def test_drain_counts_what_was_read_after_the_first_batch_stream_by_stream() -> None:
    marks = [mark(20, a=90, b=10), mark(25, a=180, b=20), mark(30, a=360, b=40), mark(99, a=360, b=40)]
    found = app_drain.figures(Mark(10, {"driver": 10, "workers": 20}), marks)
    assert (found["events"], found["batches"], found["seconds"]) == (400, 3, 20)
    assert (found["rows_per_s"], found["rows_per_s_after_first_batch"]) == (20.0, 30.0)
    assert found["streams"]["a"] == {"events": 360, "share": 0.9, "per_s_after_first_batch": 27.0}
    assert found["batch_seconds"] == [10, 5, 5]
    assert found["cpu_s_of_first_batch"] == {"driver": 10, "workers": 20}
    assert found["cpu_s_after_first_batch"] == {"driver": 10, "workers": 20}
    assert found["cpu_s_per_million"] == pytest.approx(60 / 400 * 1e6)


def test_drain_of_one_batch_has_no_speed_after_it_and_of_none_no_figures() -> None:
    start = Mark(0, {"driver": 0, "workers": 0})
    assert app_drain.figures(start, [mark(5, a=7)])["rows_per_s_after_first_batch"] is None
    assert app_drain.figures(start, [mark(5, a=7)])["streams"] == {}, "of one stream it says nothing more"
    with pytest.raises(BenchmarkFailed, match="read nothing"):
        app_drain.figures(start, [mark(5, a=0)])


def test_what_a_batch_has_read_stands_in_its_offsets(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    lines = ["v1", '{"batchWatermarkMs":0,"conf":{}}', '{"a":{"0":3,"1":4},"control":{"0":9}}', "-"]
    (tmp_path / "offsets" / "2").write_text("\n".join(lines))
    assert app_run.read_ends(tmp_path, 2) == {"a": 7, "control": 9}


# -- checks of the tables ----------------------------------------------------------------------------


def test_fraud_has_a_decision_for_every_transaction() -> None:
    sent = {"transactions": [{"transaction_id": "t1"}, {"transaction_id": "t2"}]}
    decided = [{"transaction_id": "t1"}, {"transaction_id": "t2"}]
    assert Tables(sent, transactions=decided).check("fraud") == {"rows_in_table": 2, "correct": True}
    assert Tables(sent, transactions=decided[:1]).check("fraud")["correct"] is False


def readings(*ids: str, revision: int = 0) -> list[Record]:
    return [{"reading_id": i, "revision": revision} for i in ids]


@pytest.mark.parametrize(
    ("rows", "late", "letters", "correct"),
    [
        (readings("r1", "r2"), [], [], True),
        ([*readings("r1", "r2"), *readings("r1", revision=1)], [], [], True),
        (readings("r1"), ["r2"], [], True),
        (readings("r1"), [], [], False),
        (readings("r1", "r1"), [], [], False),
        (readings("r1", "r2", "r2"), [], [], False),
        (readings("r1", "r2"), [], [{"reason": "failed"}], False),
    ],
)
def test_iot_has_every_reading_once_or_late(
    rows: list[Record], late: list[str], letters: list[Record], correct: bool
) -> None:
    late_rows = [{"input": "readings", "event": json.dumps({"reading_id": i})} for i in late]
    late_rows.append({"input": "heartbeats", "event": "{}"})
    sent = {"readings": [{"reading_id": "r1"}, {"reading_id": "r2"}]}
    found = Tables(sent, readings=rows, late=late_rows, dead_letters=letters).check("iot")
    assert found["correct"] is correct


def click(visitor: str, at: int) -> Record:
    return {"visitor_id": visitor, "event_time_ms": at, "event_id": f"{visitor}{at}"}


def session(visitor: str, start: int, end: int, events: int, bot: str = "", deleted: bool = False) -> Record:
    return {
        "visitor_id": visitor,
        "start_ms": start,
        "end_ms": end,
        "events": events,
        "bot": bot,
        "deleted": deleted,
    }


def test_clickstream_has_the_sessions_of_its_clicks_bots_and_late_clicks_left_out() -> None:
    sent = {"clicks": [click("v", 0), click("v", 5), click("v", 9), click("bot", 1), click("w", 2)]}
    table = [session("v", 0, 5, 2), session("w", 2, 2, 1), session("bot", 0, 0, 99, bot="rate")]
    late = [{"input": "clicks", "event": json.dumps(click("v", 9))}]
    found = Tables(sent, sessions=table, late=late).check("clickstream")
    assert (found["correct"], found["bots"], found["late"]) == (True, 1, 1)
    assert Tables(sent, sessions=table).check("clickstream")["correct"] is False, "one click is nowhere"
    gone = [*table, session("x", 0, 0, 1, deleted=True)]
    assert Tables(sent, sessions=gone, late=late).check("clickstream")["correct"] is True


def test_ridesharing_has_every_driver_and_every_request_once() -> None:
    sent = {
        "locations": [{"driver_id": "d1"}, {"driver_id": "d1"}],
        "status": [{"driver_id": "d2", "status": "online"}, {"driver_id": "d3", "status": "offline"}],
        "requests": [{"request_id": "r1"}],
    }
    drivers = [{"driver_id": d, "change": "entered"} for d in ("d1", "d2", "d1")]
    drivers.append({"driver_id": "d3", "change": "left"})
    trips = [{"request_id": "r1", "before": ""}, {"request_id": "r1", "before": "processing"}]
    assert Tables(sent, drivers=drivers, trips=trips).check("ridesharing")["correct"] is True
    assert Tables(sent, drivers=drivers[:1], trips=trips).check("ridesharing")["correct"] is False
    assert Tables(sent, drivers=drivers, trips=[*trips, trips[0]]).check("ridesharing")["correct"] is False


# -- latency -----------------------------------------------------------------------------------------


def test_answers_of_the_apps_are_found_by_what_they_share_with_their_cause() -> None:
    iot, shop, rides = (bench_of(name).answers for name in ("iot", "clickstream", "ridesharing"))
    reading = {"machine_id": "m", "quantity": "vibration", "event_time_ms": 5}
    alarm = {"entity_id": "m", "quantity": "vibration", "event_time_ms": 5, "change": "active"}
    assert iot.answered(alarm) == iot.asked(reading)
    assert iot.answered({**alarm, "change": "inactive"}) is None
    clicked = {"event_id": "e-7", "event_time_ms": 5}
    why = {"first": "view a at 3 (e-6)", "then": "view (new) b at 5 (e-7)"}
    assert shop.answered({"why": why, "at_ms": 5}) == shop.asked(clicked)
    left = {"why": {"left": "abandoned c at 900 (e-7)"}, "at_ms": 900}
    assert shop.answered(left) != shop.asked(clicked), "a timer caused it"
    request = {"request_id": "r", "event_time_ms": 5, "pickup_at_ms": 5}
    assert rides.answered({"request_id": "r", "attempt": 1}) == rides.asked(request)
    assert rides.answered({"request_id": "r", "attempt": 2}) is None
    assert rides.asked({**request, "pickup_at_ms": 6}) is None, "booked ahead"


SIMPLE = Answers("alarm", "alarms", "readings", lambda e: e["id"], lambda a: a.get("of"))


def test_latency_is_from_when_the_cause_was_due_to_its_first_answer_after_the_warm_up() -> None:
    sent = [({"id": n, "event_time_ms": 1_000 * n}, 1_000 * n + 40) for n in range(6)]
    asked = app_latency.asked_of(sent, SIMPLE)
    told = [({"of": 1}, 1_900), ({"of": 3}, 3_500), ({"of": 3}, 3_300), ({"of": 4}, 4_100), ({}, 9_999)]
    answers = app_latency.answers_of(told, SIMPLE)
    due = app_latency.asked_with_due(asked, own_clock=False)
    found = app_latency.figures("alarm", due, answers, 2_000)
    assert (found["alarms"], found["without_cause"], found["asked"]) == (2, 1, 4)
    assert (found["alarm_ms"]["p50"], found["alarm_ms"]["max"]) == (200.0, 300.0)
    assert found["alarm_from_sent_ms"]["max"] == 260.0
    assert found["sent_behind_ms"]["p50"] == 40.0
    assert found["correct"] is True


def test_what_is_due_after_the_measured_seconds_does_not_count() -> None:
    due: dict[Key, tuple[Asked, int]] = {n: (Asked(n, n), n) for n in (90, 100, 199, 200)}
    answers = [Answer(n, n + n, None) for n in (90, 100, 199, 200)]
    found = app_latency.figures("alarm", due, answers, 100, end_ms=200)
    assert (found["alarms"], found["asked"], found["alarm_ms"]["max"]) == (2, 2, 199.0)


def test_the_warm_up_counts_by_when_messages_are_due_also_with_another_clock() -> None:
    """Event time is 1,000 behind: by it, both would be the warm-up's."""
    due: dict[Key, tuple[Asked, int]] = {"a": (Asked(500, 1_500), 1_500), "b": (Asked(900, 1_900), 1_900)}
    found = app_latency.figures("offer", due, [Answer("a", 1_600, None), Answer("b", 2_200, None)], 1_800)
    assert (found["offers"], found["offer_ms"]["max"]) == (1, 300.0)


def test_nothing_answered_is_not_correct() -> None:
    due: dict[Key, tuple[Asked, int]] = {1: (Asked(5, 6), 5)}
    found = app_latency.figures("alarm", due, [Answer(None, 9, None)], 0)
    assert (found["correct"], found["alarm_ms"], found["without_cause"]) == (False, None, 1)


def test_a_generator_with_a_clock_of_its_own_is_never_early() -> None:
    asked: dict[Key, Asked] = {
        n: Asked(1_000 * n, 500_000 + 1_000 * n + late) for n, late in enumerate([30, 10, 250])
    }
    due = app_latency.asked_with_due(asked, own_clock=True)
    assert [sent - at for (_, sent), at in due.values()] == [20, 0, 240]


def test_an_answer_that_waits_for_its_window_is_measured_with_and_without_it() -> None:
    """Windows end at 2,000 and 4,000.

    request   500 ----------| 2,000   offered, there at 2,700
    request 1,900 --| no car | 4,000   offered, there at 4,900
    """
    due: dict[Key, tuple[Asked, int]] = {"a": (Asked(500, 500), 500), "b": (Asked(1_900, 1_900), 1_900)}
    answers = [Answer("a", 2_700, 2_000), Answer("b", 4_900, 4_000)]
    found = app_latency.figures("offer", due, answers, 0, window_ms=2_000)
    assert (found["offers"], found["waited_for_another_window"]) == (1, 1)
    assert found["offer_ms"]["max"] == 2_200.0
    assert (found["offer_after_window_ms"]["p50"], found["offer_after_window_ms"]["max"]) == (800.0, 900.0)


def test_a_slow_app_is_waited_for_until_it_has_read_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it answers late would be missing from the figures, which would look the better for it."""

    class Run:
        broker, bench = "b:1", bench_of("fraud")
        topic = staticmethod(lambda name: f"{name}.x")

    taken, looks = {"transactions.x": 5, "labels.x": 9, "authorisations.x": 9}, []

    def look(_seconds: float) -> None:
        looks.append(dict(taken))
        taken["transactions.x"] += 2

    monkeypatch.setattr("millrace.kafka.admin.end_offsets", lambda *_: {0: 4, 1: 5})
    monkeypatch.setattr("millrace_apps.benchmarks.app_latency.time.sleep", look)
    app_latency._await_read(cast(app_run.BenchRun, Run()), taken, threading.Event())
    assert [look["transactions.x"] for look in looks] == [5, 7]
    ended = threading.Event()
    ended.set()
    app_latency._await_read(cast(app_run.BenchRun, Run()), {}, ended)  # a job that has failed reads no more


# -- silence -----------------------------------------------------------------------------------------


def told(device: str, heard: int, at: int, state: str = "silent") -> tuple[Record, int]:
    return {"device_id": device, "state": state, "last_heard_ms": heard, "cause": "own"}, at


BATCHES = [BatchStat(0, 60_000, 5), BatchStat(70_000, 4_000, 1), BatchStat(90_000, 9_000, 0)]


#: Ticks of one second; the watermark of each, and when it was sent.
CLOCK = silence.Clock(10_000, [(69_900, 70_600), (70_900, 71_600), (71_900, 72_600)])


def test_silence_counts_from_each_devices_timeout_to_its_declaration() -> None:
    rows = [told("a", 60_000, 73_000), told("b", 61_000, 73_500)]
    found = silence.figures({"a", "b"}, rows, CLOCK, BATCHES)
    assert (found["declared"], found["missing"], found["repeated"], found["correct"]) == (2, 0, 0, True)
    assert found["last_after_timeout_s"] == 3.0
    assert found["last_after_stream_clock_s"] == 0.9, "the third tick is the first that passes 71,000"
    assert (found["trigger_s"], found["within_target"], found["within_target_by_wall_clock"]) == (
        4,
        True,
        True,
    )
    late = silence.figures({"a"}, [told("a", 40_000, 95_000)], CLOCK, BATCHES)
    assert (late["last_after_timeout_s"], late["within_target_by_wall_clock"]) == (45.0, False)
    assert (late["last_after_stream_clock_s"], late["trigger_s"], late["within_target"]) == (24.4, 9.0, False)
    never = silence.figures({"a"}, [told("a", 90_000, 95_000)], CLOCK, BATCHES)
    assert (never["last_after_stream_clock_s"], never["within_target"]) == (None, False)


@pytest.mark.parametrize(
    "rows",
    [
        [told("a", 0, 20_000)],
        [told("a", 0, 20_000), told("b", 0, 20_000), told("b", 0, 21_000)],
        [told("a", 0, 20_000), told("b", 0, 20_000), told("c", 0, 20_000)],
        [told("a", 0, 20_000), told("b", 0, 20_000), told("b", 0, 21_000, "online")],
    ],
)
def test_a_device_that_is_missing_or_told_twice_is_not_correct(rows: list[tuple[Record, int]]) -> None:
    assert silence.figures({"a", "b"}, rows, CLOCK, BATCHES)["correct"] is False


def test_fleet_has_so_many_devices_each_of_a_gateway() -> None:
    devices = list(silence.fleet(silence.Sizes(devices=120, per_gateway=50)))
    assert len({d.device_id for d in devices}) == 120
    assert len({d.gateway_id for d in devices}) == 3
    assert {d.gateway_id for d in devices} <= {d.device_id for d in devices}


# -- state -------------------------------------------------------------------------------------------


class Sum(KeyedProcess[int, int]):
    """Adds up, and says the sum a second after the last number."""

    order = arrival(commutes=True)
    total = value_state(int, default=0)

    def process(self, event: int, ctx: Context) -> None:
        self.total.value += event
        ctx.timers.at(ctx.event_time + 1_000)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(self.total.value)


def test_paged_host_emits_what_the_other_does_and_keeps_the_same_keys() -> None:
    paged, other = PagedHost(Sum()), MemoryHost(Sum())
    for batch in range(6):
        events = [(f"k{(batch * 37 + n) % 200}", batch * 700, n) for n in range(100)]
        assert sorted(paged.run_batch(events)) == sorted(other.run_batch(events))
    kept = dict(paged.entries())
    assert kept.keys() == other.store.cells.keys()
    assert sum(kept.values()) < paged.size
    wanted = sum(n for batch in range(6) for n in range(100) if (batch * 37 + n) % 200 == 5)
    assert paged.read("2:k5").total == wanted
    assert sorted(paged.drain()) == sorted(other.drain())


@pytest.mark.parametrize("name", list(BENCHES))
def test_state_is_weighed_from_the_command_line(name: str, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    size = {"clickstream": "60", "ridesharing": "80"}.get(name, "12")
    done = CliRunner().invoke(app, ["state", "--app", name, "--quick", "--entities", size, "--out", str(out)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert found["bytes_per"].keys() >= BENCHES[name].targets.keys()
    of_processes = sum(p["entries"] * p["bytes_per_entry"] for p in found["processes"].values())
    weighed = sum(found["bytes_per"][entity] * n for entity, n in found["kept"].items())
    assert 0 < weighed <= of_processes * 1.0001
    if name == "iot":
        assert found["kept"] == {"device": 12}
    if name in ("iot", "fraud"):
        by_day = found["growth"]["bytes_by_day"]
        assert by_day.keys() == found["bytes_per"].keys()
        assert all(len(days) == 3 and days[-1] > 0 for days in by_day.values())
    else:
        assert "growth" not in found


def test_rules_of_the_benchmark_are_taken_and_ask_for_thirty_windows() -> None:
    from millrace.operations.control_topic import ControlState
    from millrace.rules import InForce
    from millrace_apps.fraud.contracts.events import Control
    from millrace_apps.fraud.processes.rulebook import LANGUAGE

    book = ControlState(LANGUAGE, Control)
    for event in rules_cost.active_rules(100):
        book.apply(event)
    assert len(book.rules) == 100
    assert {entry.versions[-1].plan[-1].state for entry in book.rules.values()} == {"active"}
    assert len(set(rules_cost.conditions(100))) == 100
    uses = {use for match in InForce(LANGUAGE, book.rules).rules for use in match.condition.uses}
    assert len(uses) == 30


def test_cost_of_rules_is_that_of_throughput_and_of_cpu_time() -> None:
    def run(rate: float, cpu_s: float, correct: bool = True) -> dict[str, Any]:
        return {
            "rows_per_s_after_first_batch": rate,
            "events_after_first_batch": 1_000,
            "cpu_s_after_first_batch": {"workers": cpu_s, "spark": 0.1},
            "correct": correct,
        }

    found = rules_cost.compared([run(100, 0.1), run(300, 0.3), run(200, 0.2)], [run(150, 0.26, False)])
    assert found["throughput_cost"] == pytest.approx(0.25)
    assert found["cpu_us_per_event_after_first_batch"] == pytest.approx({"without": 300, "with": 360})
    assert found["cpu_cost"] == pytest.approx(0.2)
    assert found["correct"] is False
    with pytest.raises(BenchmarkFailed, match="more events"):
        rules_cost.compared([{**run(1, 1), "rows_per_s_after_first_batch": None}], [run(1, 1)])


def test_growth_compares_the_last_third_of_the_days_with_the_second() -> None:
    assert state_size.flatness([1.0, 2.0, 100.0, 100.0, 104.0, 106.0])["flat"] is True
    assert state_size.flatness([1.0, 2.0, 100.0, 100.0, 106.0, 106.0])["flat"] is False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--app", "fraud-live", "--days", "5"], "--app fraud and iot"),
        (["--app", "iot", "--days", "2"], "3 or more"),
    ],
)
def test_days_that_mean_nothing_are_refused_in_one_line(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["state", *arguments])
    assert isinstance(done.exception, UserError)
    assert said in str(done.exception)
