"""`millrace generate DOMAIN` for a domain of several streams, as a person or a script uses it."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millrace.cli import main
from millrace.testing.world_ledger import read_world_ledger
from millrace_apps.generators import domains
from millrace_apps.generators.domain_command import help_of, own_options
from millrace_apps.generators.engine.disturb import Disturbances
from millrace_apps.generators.engine.simulated import Domain
from millrace_apps.generators.engine.world import deliver_domain
from millrace_apps.generators.options import PRESETS, Preset
from tests.installed import install
from tests.unit.generators.world import METERS, MeterProfile

START = "2026-01-01"


#: What another package has in its metadata: domains of its own, one of them by the name of one of ours.
OTHERS = {
    "meters": "tests.unit.generators.world:METERS",
    "absent": "millrace_apps.generators.absent:DOMAIN",
    "iot": "tests.unit.generators.world:METERS",
    "needy": "needy_domain:DOMAIN",
    "wrong": "tests.unit.generators.world:MeterProfile",
}


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Install another package, as far as Python's metadata goes."""
    site = tmp_path_factory.mktemp("site")
    (site / "needy_domain.py").write_text("import no_such_package_anywhere\n")
    install(site, "millrace-meters", "millrace.domains", OTHERS)
    monkeypatch.syspath_prepend(str(site))


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["millrace", "generate", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def to_folder(folder: Path, *flags: str) -> list[str]:
    out = ["--to", "jsonl", "--out", str(folder / "out"), "--ledger", str(folder / "ledger.jsonl")]
    return ["meters", "--start", START, "--rate", "max", *flags, *out]


def test_a_domain_is_listed_and_an_absent_one_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "list") == 0
    named = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert named["meters"] == METERS.description
    assert named["iot"] != METERS.description, "nobody takes the place of one of ours"
    assert "no_such_package_anywhere" in named["needy"]
    assert "absent" not in named
    assert list(named)[-3:] == ["meters", "needy", "wrong"]


def test_describe_shows_streams_fields_parameters_and_truths(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "describe", "meters") == 0
    shown = capsys.readouterr().out
    for text in (
        "meters: meters that report, and doors that open",
        "reports → meters.reports, version 1, identified by report_id",
        "note                    string or null",
        "Number of meters, with a door each.",
        "leak                    a meter that loses water",
    ):
        assert text in shown
    assert call(monkeypatch, "describe", "fraud") == 0
    shown = capsys.readouterr().out
    assert {"card_testing", "spree", "device_ring"} <= set(shown.split())


def test_each_stream_has_its_file_and_the_bytes_are_the_profiles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    faults = [
        "--late",
        "0.05",
        "--lateness",
        "2s",
        "--loss",
        "0.05",
        "--drift",
        "0.05",
        "--clock-skew",
        "0.1",
    ]
    own = ["--meters", "30", "--no-leaks", "--event-rate", "50", "--idle", "1s/5s", "--partitions", "2"]
    assert call(monkeypatch, *to_folder(tmp_path, "--events", "800", "--seed", "5", *faults, *own)) == 0
    start_ms = round(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    profile = MeterProfile(
        seed=5,
        events=800,
        event_rate=50,
        start_ms=start_ms,
        late=0.05,
        lateness_ms=2_000,
        meters=30,
        leaks=False,
    )
    wrong = Disturbances(
        loss=0.05, drift=0.05, clock_skew=0.1, idle_ms=1_000, idle_every_ms=5_000, idle_partitions=2
    )
    sent = [m for m in deliver_domain(METERS, profile, wrong) if not m.dropped]
    for stream in METERS.streams:
        expected = b"".join(m.value + b"\n" for m in sent if m.stream == stream)
        assert (tmp_path / "out" / f"{stream}.jsonl").read_bytes() == expected
    ledger = read_world_ledger(tmp_path / "ledger.jsonl")
    assert ledger.summary.sent == len(sent)
    parameters = dict(ledger.run.parameters)
    assert Disturbances(**parameters.pop("disturbances")) == wrong
    assert parameters.pop("until_ms") is None
    assert MeterProfile(**parameters) == profile
    shown = capsys.readouterr().err
    assert f"sent {len(sent):,} messages" in shown
    assert "distinct events: reports" in shown


def test_rate_and_shape_change_no_byte(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flags = ["--events", "120", "--event-rate", "100", "--duplicates", "0.1", "--quiet"]
    assert call(monkeypatch, *to_folder(tmp_path, *flags)) == 0
    first = {p.name: p.read_bytes() for p in tmp_path.rglob("*.jsonl")}
    pace = ["--rate", "2000", "--shape", "burst(every=1s, length=100ms, times=3)"]
    assert call(monkeypatch, *to_folder(tmp_path, *flags, *pace)) == 0
    assert {p.name: p.read_bytes() for p in tmp_path.rglob("*.jsonl")} == first


def test_a_duration_is_one_of_event_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At --rate max, what would be sent in this time; at --speed 60, a minute is an hour."""
    for flags, seconds in ((["--rate", "max"], 2), (["--rate", "6000", "--speed", "60"], 120)):
        assert (
            call(monkeypatch, *to_folder(tmp_path, "--duration", "2s", "--quiet", "--dry-run", *flags)) == 0
        )
        assert call(monkeypatch, *to_folder(tmp_path, "--duration", "2s", "--quiet", *flags)) == 0
        ledger = read_world_ledger(tmp_path / "ledger.jsonl")
        start_ms = ledger.run.parameters["start_ms"]
        assert ledger.run.parameters["until_ms"] == start_ms + seconds * 1000
        last_ms = ledger.summary.last_event_time_ms
        assert last_ms == start_ms + seconds * 1000 - 10


@pytest.mark.parametrize("preset", list(Preset))
def test_a_preset_gives_what_flags_leave_open(
    preset: Preset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flags = ["--profile", preset.value, "--events", "300", "--duplicates", "0.25", "--quiet"]
    assert call(monkeypatch, *to_folder(tmp_path, *flags, "--rate", "max")) == 0
    parameters = read_world_ledger(tmp_path / "ledger.jsonl").run.parameters
    assert parameters["events"] == 300
    assert parameters["duplicates"] == 0.25
    assert parameters["late"] == PRESETS[preset]["late"]
    assert parameters["disturbances"]["loss"] == PRESETS[preset].get("loss", 0)


def test_parquet_has_the_columns_of_sparks_kafka_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out.parquet"
    flags = [
        "--events",
        "50",
        "--seed",
        "5",
        "--start",
        START,
        "--rate",
        "max",
        "--disorder-ms",
        "0",
        "--quiet",
    ]
    assert call(monkeypatch, "meters", *flags, "--to", "parquet", "--out", str(out)) == 0
    table = pq.read_table(out)
    assert table.column_names == ["key", "value", "topic", "timestamp", "headers"]
    profile = MeterProfile(seed=5, events=50, disorder_ms=0)
    sent = list(deliver_domain(METERS, profile))
    assert table["value"].to_pylist() == [m.value for m in sent]
    assert table["key"].to_pylist() == [m.key for m in sent]
    assert table["topic"].to_pylist() == [m.topic for m in sent]
    assert [[(h["key"], h["value"]) for h in row] for row in table["headers"].to_pylist()] == [
        m.headers for m in sent
    ]
    assert [at.timestamp() * 1000 for at in table["timestamp"].to_pylist()] == pytest.approx(
        [m.due_ms for m in sent], abs=0.5
    )


def test_a_dry_run_says_what_would_be_sent_and_sends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["--events", "200", "--loss", "0.2", "--dry-run"]
    assert call(monkeypatch, *to_folder(tmp_path, *flags)) == 0
    shown = capsys.readouterr().out
    assert "nothing was sent" in shown
    assert "topic meters.openings: " in shown
    assert "fault lost: " in shown
    assert "loss = 0.2" in shown
    assert "clock_skew" not in shown, "only what is on is shown"
    assert f"in all: about {200 * 0.8:,.0f}"[:-2] in shown
    assert list(tmp_path.iterdir()) == []


def test_sample_shows_topic_and_truths(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "meters", "--sample", "40", "--start", START, "--disorder-ms", "0") == 0
    shown = capsys.readouterr().out
    first = json.loads(shown[: shown.index("\n}") + 2])
    assert first["topic"] == "meters.reports"
    assert first["truth"].keys() == {"truths", "fault"}
    assert '"kind": "leak"' in shown


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--idle", "5m/1m"], "--idle is a length and a longer period"),
        (["--shape", "square"], "--shape is one of constant"),
        (["--delay", "uniform()"], "needs max"),
        (["--loss", "2"], "loss is a share between 0 and 1"),
        (["--topic", "x"], "--topic is STREAM=NAME with a stream of reports, openings"),
        (["--topic", "doors=x"], "--topic is STREAM=NAME"),
        (["--to", "parquet"], "--to parquet needs a file"),
        (["--resume"], "add --ledger FILE"),
        (["--kafka-option", "sasl.password"], "--kafka-option is NAME=VALUE, got sasl.password"),
        (["--live", "--speed", "3"], "--live goes with the clock"),
        (["--start", "2026-01-01T00:00:00"], "--start is a time with its zone"),
    ],
)
def test_a_bad_flag_is_one_clear_line_and_exit_code_2(
    flags: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = [] if "--to" in flags else ["--to", "stdout"]
    assert call(monkeypatch, "meters", *where, *flags) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("millrace: ")
    assert says in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_topics_can_be_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--topic", "reports=mine", "--dry-run", "--events", "50"]
    assert call(monkeypatch, "meters", *flags) == 0
    shown = capsys.readouterr().out
    assert "mine, meters.openings at localhost:9092" in shown
    assert "topic mine: 4" in shown


def test_an_unknown_domain_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "describe", "absent") == 2
    assert "there is no domain absent" in capsys.readouterr().err
    assert call(monkeypatch, "absent") == 2


def test_a_missing_package_and_what_is_no_domain_are_named() -> None:
    with pytest.raises(domains.UserError, match="which the entry point wrong names, is no Domain"):
        domains.load("wrong")
    with pytest.raises(domains.UserError, match="needy needs the package no_such_package_anywhere"):
        domains.load("needy")


def test_options_come_from_the_profile() -> None:
    assert {name: default for name, (_, default) in own_options(METERS).items()} == {
        "meters": 20,
        "leaks": True,
    }
    assert help_of(MeterProfile)["meters"] == "Number of meters, with a door each."
    assert isinstance(METERS, Domain)
