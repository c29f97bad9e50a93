from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace.runtime.settings import SettingsError, load_settings
from millrace_apps.generators.ridesharing import DOMAIN
from millrace_apps.generators.ridesharing.loop import APP_TOPICS
from millrace_apps.ridesharing.app import topics
from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import (
    GATE_INPUTS,
    LAST_ATTEMPT,
    MOST_ATTEMPTS,
    Command,
    Control,
    SetPair,
    SetPolicy,
    SetShadows,
    SetSurgeCap,
)
from millrace_apps.ridesharing.evaluation.cli import app as evaluate_cli
from millrace_apps.ridesharing.evaluation.cli import parse_radius
from millrace_apps.ridesharing.evaluation.location_report import stale_drivers, zone_counts
from millrace_apps.ridesharing.evaluation.recorded import cut, read_positions, read_requests
from millrace_apps.ridesharing.operations.cli import app as operator_cli
from millrace_apps.ridesharing.processes.regions import EVERYWHERE, Regions
from millrace_apps.ridesharing.settings import HintSettings, RidesharingSettings, SurgeSettings
from tests.unit.apps.ridesharing.test_audit import line_of_requests
from tests.unit.millrace.operations.cases import MockBroker, messages_of, records_of

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def broker() -> Iterator[MockBroker]:
    mock = MockBroker()
    yield mock
    mock.stop()


def test_more_attempts_than_an_answer_has_bits_are_refused() -> None:
    def of(attempts: int) -> int:
        told = [f"dispatch.attempts={attempts}"]
        found = load_settings(RidesharingSettings, app="ridesharing", overrides=told, env={})
        return found.dispatch.attempts

    assert of(MOST_ATTEMPTS) == MOST_ATTEMPTS < LAST_ATTEMPT < 64
    with pytest.raises(SettingsError, match="attempts"):
        of(MOST_ATTEMPTS + 1)


def test_the_app_reads_what_the_generator_sends_and_says_what_its_agents_read() -> None:
    found = topics(RidesharingSettings(surge=SurgeSettings(on=True), hints=HintSettings(on=True)))
    reads, writes = {t.name for t in found.reads}, {t.name for t in found.writes}
    assert {stream.topic for stream in DOMAIN.streams.values()} <= reads
    assert set(APP_TOPICS) <= writes
    for name, stream in DOMAIN.streams.items():
        sent = {f.name for f in msgspec.structs.fields(stream.event_type)}
        read = {f.name: f.required for f in msgspec.structs.fields(GATE_INPUTS[name])}
        assert {field for field, required in read.items() if required} <= sent <= read.keys()


def test_settings_become_what_the_processes_are_told() -> None:
    told = RidesharingSettings().dispatch_config()
    assert (told.window_ms, told.policy, told.regions) == (2_000, "optimal", Regions())
    assert (told.rules.unmatched_ms, told.rules.car_value_ms) == (900_000, 400_000)
    same = msgspec.structs.replace(
        told, window_ms=5_000, shadows=(), rules=DispatchConfig().rules, free_ms=DispatchConfig().free_ms
    )
    assert same == DispatchConfig()


def test_regions_of_cells_and_the_places_near_a_border() -> None:
    assert Regions().of_place(37.77, -122.42) == Regions().of_zone("87283082bffffff") == EVERYWHERE
    cells = Regions(parent=5)
    assert cells.of_place(37.77, -122.42) == cells.of_zone("87283082bffffff")
    assert not cells.is_one
    halves = Regions(lat_cuts=((37.77,),))
    assert halves.near(37.75, -122.42) == ("r0-1",)
    assert halves.near(37.0, -122.42) == ()
    with pytest.raises(ValueError, match="no H3 cell of resolution 7"):
        cells.of_zone("85283083fffffff")


def test_four_regions_have_about_as_many_requests_each() -> None:
    requests = line_of_requests(70, 1)
    regions = cut(requests, 4)
    assert cut(requests, 1) == Regions()
    assert (len(regions.lon_cuts), len(regions.lat_cuts)) == (1, 2)
    with pytest.raises(UserError, match="even"):
        cut(requests, 3)


@pytest.mark.parametrize("text", ["x", "3", "99km", "1m"])
def test_a_radius_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--radius"):
        parse_radius(text)


def trips_file(folder: Path) -> Path:
    times = pd.to_datetime(
        ["2008-05-18T02:00:05Z", "2008-05-18T02:00:05Z", "2008-05-18T01:59:59Z", "2008-05-18T02:00:00Z"]
    )
    frame = pd.DataFrame(
        {
            "trip_id": [7, 3, 1, 2],
            "pickup_time": times,
            "pickup_lat": 37.77,
            "pickup_lon": -122.42,
            "dropoff_lat": 37.78,
            "dropoff_lon": -122.42,
            "duration_s": 300,
            "plausible": [True, True, True, False],
        }
    )
    frame.to_parquet(folder / "trips.parquet")
    return folder / "trips.parquet"


def test_requests_are_the_plausible_ones_of_the_time_in_order(tmp_path: Path) -> None:
    path = trips_file(tmp_path)
    start = 1_211_076_000_000  # 2008-05-18T02:00Z
    assert [r.request_id for r in read_requests(path, start, start + 60_000)] == ["3", "7"]
    with pytest.raises(UserError, match="no plausible request"):
        read_requests(path, start + 60_000, start + 120_000)
    with pytest.raises(UserError, match="there is no file"):
        read_requests(tmp_path / "none.parquet", start, start + 1)


def test_positions_are_read_in_both_formats(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "cab_id,event_time,lat,lon,occupied\nb,2008-05-18T01:00:00Z,37.7,-122.4,0\na,2008-05-18T01:00:00Z,37.7,-122.4,1\n"
    )
    compact = pd.DataFrame(
        {"cab_id": [1, 1], "ts": [60, 60], "lat_e5": 3_770_000, "lon_e5": -12_240_000, "occupied": [1, 1]}
    )
    compact.to_parquet(tmp_path / "b.parquet")
    first, second = read_positions(tmp_path / "a.csv"), read_positions(tmp_path / "b.parquet")
    assert first["cab_id"].tolist() == ["a", "b"]
    assert first["occupied"].tolist() == [True, False]
    assert second[["cab_id", "at_ms", "lat"]].to_numpy().tolist() == [["1", 60_000, 37.7]]
    (tmp_path / "c.csv").write_text("x\n1\n")
    with pytest.raises(UserError, match="columns"):
        read_positions(tmp_path / "c.csv")


def test_zone_counts_and_exclusions_of_a_few_positions() -> None:
    """A position holds until the next of its car, or for the time to live.

    ::

        minute      0     60    120   180   240   300
        a           x------------x(120 s)----|
        b                 x------|                       (the next one is elsewhere)
    """
    rows = [
        ("a", 0, 0.0, True),
        ("a", 120_000, 0.0, False),
        ("b", 59_000, 0.0, False),
        ("b", 130_000, 1.0, False),
    ]
    frame = pd.DataFrame(rows, columns=["cab_id", "at_ms", "lat", "occupied"]).assign(lon=0.0)
    counts = zone_counts(frame, 120_000)
    home = counts[counts["zone"] == counts["zone"].iloc[0]]
    assert home[["minute_ms", "cars", "free"]].to_numpy().tolist() == [
        [0, 1, 0],
        [60_000, 2, 1],
        [120_000, 2, 2],
        [180_000, 1, 1],
    ]
    assert stale_drivers(frame, 120_000).to_dict() == {"a": 1, "b": 1}
    assert stale_drivers(frame, 60_000).to_dict() == {"a": 2, "b": 2}


def test_the_replay_command_writes_the_report_and_the_assignments(tmp_path: Path) -> None:
    trips = trips_file(tmp_path)
    out, served = tmp_path / "r" / "report.json", tmp_path / "served.parquet"
    result = RUNNER.invoke(
        evaluate_cli,
        ["replay", "--trips", str(trips), "--from", "2008-05-18T02:00Z", "--to", "2008-05-18T02:05Z",
         "--fleet", "3", "--window", "10s", "--out", str(out), "--assignments", str(served)],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    report = msgspec.json.decode(out.read_bytes())
    wanted = {"served_share", "mean_wait_s", "p95_wait_s", "mean_pickup_km", "idle_gini", "optimality_ratio"}
    assert wanted | {"invariant_violations", "requests", "wall_s"} <= set(report)
    assert (report["requests"], report["served_share"], report["invariant_violations"]) == (2, 1.0, 0)
    assert pd.read_parquet(served)["request_id"].tolist() == ["3", "7"]


def test_commands_of_operators_say_what_is_missing(tmp_path: Path) -> None:
    for arguments in (
        ["policy", "fifo"],
        ["audit", "--root", str(tmp_path)],
        ["assign", "r1", "d1", "--by", "ann", "--reason", "x", "--root", str(tmp_path)],
    ):
        result = RUNNER.invoke(operator_cli, arguments)
        assert isinstance(result.exception, UserError), arguments


def test_commands_are_typed_and_say_who_has_sent_them(broker: MockBroker) -> None:
    topics = {one: broker.topic() for one in ("commands", "control")}
    where = [
        "--bootstrap",
        broker.bootstrap,
        *(f"--set=topics.{one}={topic}" for one, topic in topics.items()),
    ]

    def run(*arguments: str) -> str:
        done = RUNNER.invoke(operator_cli, [*arguments, *where])
        if isinstance(done.exception, UserError):
            return str(done.exception)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    at = "2026-01-02T16:00Z"
    assert "sent" in run("block", "d1", "--by", "ann", "--reason", "rude", "--for", "30m", "--at", at)
    assert "nothing was sent" in run("block", "d2", "--reason", "rude", "--for", "400d", "--at", at)
    assert "nothing was sent" in run("block", "d3", "--reason", "", "--at", at)
    assert "policy fifo" in run("policy", "fifo", "--from", at, "--by", "ann", "--reason", "a test")
    assert "sent" in run("surge", "cap", "1.5", "--from", at, "--by", "ann", "--reason", "a storm")
    assert "nothing was sent" in run("surge", "cap", "1.5", "--reason", "")
    pair = ("pair", "block", "rider-7", "d1", "--from", at, "--by", "ann")
    assert "sent" in run(*pair, "--reason", "complaint")
    assert "nothing was sent" in run(*pair, "--reason", "")
    assert "shadows: nearest" in run("shadows", "nearest")
    found = [records_of(broker.bootstrap, topics["commands"], partition) for partition in range(4)]
    ((key, value),) = [record for part in found for record in part]
    sent = msgspec.json.decode(value or b"")
    assert (key, sent["action"], sent["operator"], sent["reason"]) == (b"d1", "block", "ann", "rude")
    assert sent["until_ms"] - sent["event_time_ms"] == 30 * 60_000
    assert msgspec.json.decode(value or b"", type=Command).driver_id == "d1"
    said = [msgspec.json.decode(m, type=Control) for m in messages_of(broker.bootstrap, topics["control"])]
    policy, cap, apart, shadows = said
    assert isinstance(apart, SetPair)
    assert (apart.rider_id, apart.driver_id, apart.stands, apart.from_ms, apart.operator) == (
        "rider-7", "d1", "block", 1_767_369_600_000, "ann",
    )  # fmt: skip
    assert isinstance(policy, SetPolicy)
    assert isinstance(cap, SetSurgeCap)
    assert (policy.policy, cap.cap, shadows) == ("fifo", 1.5, SetShadows(["nearest"]))
    assert [(one.operator, one.reason, one.from_ms) for one in (policy, cap)] == [
        ("ann", "a test", 1_767_369_600_000),
        ("ann", "a storm", 1_767_369_600_000),
    ]
    assert len({policy.command_id, cap.command_id, ""}) == 3


def test_who_sends_a_command_is_who_has_logged_in_unless_named(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "eva")
    topic = broker.topic()
    where = ["--bootstrap", broker.bootstrap, f"--set=topics.commands={topic}"]
    done = RUNNER.invoke(operator_cli, ["lift", "87283082bffffff", "--reason", "over", *where])
    assert done.exit_code == 0, done.output
    found = [v for n in range(4) for v in messages_of(broker.bootstrap, topic, n)]
    assert [msgspec.json.decode(value)["operator"] for value in found] == ["eva"]
