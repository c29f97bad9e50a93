"""The evaluations' own parts, and the app as the runtime knows it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from millrace.contracts import folder_of, load_contracts
from millrace.runtime.settings import load_settings
from millrace.testing import TestDriver
from millrace_apps.clickstream.app import app, topics
from millrace_apps.clickstream.contracts.messages import CartChange
from millrace_apps.clickstream.evaluation.cli import app as evaluate
from millrace_apps.clickstream.evaluation.files import TEST_SUITE, expected_sessions, read_clicks, sessions_of
from millrace_apps.clickstream.evaluation.snowplow_files import BadFile
from millrace_apps.clickstream.operations.cli import app as operate
from millrace_apps.clickstream.operations.forget import Subject
from millrace_apps.clickstream.processes.rules import SNOWPLOW
from millrace_apps.clickstream.settings import ClickstreamSettings

MINUTE, START = 60_000, 1_767_225_600_000


def clicks(path: Path, *rows: tuple[int, int, int]) -> Path:
    frame = pd.DataFrame(rows, columns=["session_id", "item_id", "event_time"])
    frame["event_time"] = pd.to_datetime(frame["event_time"], unit="ms", utc=True)
    frame.to_parquet(path)
    return path


def test_clicks_are_read_in_order_of_time(tmp_path: Path) -> None:
    path = clicks(tmp_path / "c.parquet", (2, 7, 90), (1, 8, 30))
    assert read_clicks(path).to_dict("list") == {
        "visitor_id": ["1", "2"],
        "item_id": ["8", "7"],
        "at": [30, 90],
    }


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_any_grain_are_ms(tmp_path: Path, unit: str) -> None:
    frame = pd.DataFrame(
        {"session_id": [1], "item_id": [1], "event_time": pd.to_datetime([5_000], unit="ms")}
    )
    frame["event_time"] = frame["event_time"].astype(f"datetime64[{unit}]")
    frame.to_parquet(tmp_path / "c.parquet")
    assert read_clicks(tmp_path / "c.parquet")["at"].tolist() == [5_000]


def test_a_file_with_other_columns_is_refused(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(BadFile, match="no column session_id"):
        read_clicks(tmp_path / "c.parquet")
    (tmp_path / "no.parquet").write_text("x")
    with pytest.raises(BadFile, match="cannot be read"):
        read_clicks(tmp_path / "no.parquet")


def test_pandas_merges_at_exactly_the_gap() -> None:
    frame = pd.DataFrame({"visitor_id": ["a"] * 3, "at": [0, 30 * MINUTE, 60 * MINUTE + 1]})
    found = expected_sessions(frame, 30 * MINUTE)
    assert found[["session_start", "session_end", "events"]].to_numpy().tolist() == [
        [0, 30 * MINUTE, 2],
        [60 * MINUTE + 1, 60 * MINUTE + 1, 1],
    ]


def test_of_a_session_the_newest_row_holds_and_merged_ones_do_not_count() -> None:
    rows = pd.DataFrame(
        [("a:0", "a", 0, 5, 1, "inactivity", 0), ("a:0", "a", 0, 9, 3, "inactivity", 2),
         ("a:9", "a", 9, 9, 1, "inactivity", 1), ("a:9", "a", 9, 9, 1, "merged", 3)],
        columns=["session_id", "visitor_id", "session_start_ms", "session_end_ms", "events", "close_reason",
                 "revision"],
    )  # fmt: skip
    assert sessions_of(rows).to_numpy().tolist() == [["a", 0, 9, 3, "inactivity"]]


def test_the_configuration_of_snowplows_tests_differs_in_what_it_says_and_nothing_else() -> None:
    assert {f for f in TEST_SUITE.__dataclass_fields__ if getattr(TEST_SUITE, f) != getattr(SNOWPLOW, f)} == {
        "conversions",
        "engaged_sessions",
    }


@pytest.mark.parametrize("command", ["sessions", "sessionize"])
def test_an_evaluation_names_a_missing_file_in_one_line(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(evaluate, [command, "--clicks", "nowhere", "--events", "nowhere"])
    assert result.exit_code == 2


def test_the_app_reads_its_streams_and_writes_offers() -> None:
    found = topics(ClickstreamSettings())
    assert len(found.reads) == 8
    assert found.control in {t.name for t in found.reads}
    assert found.writes[0].name == "clickstream.offers"


def test_settings_make_the_rules() -> None:
    settings = load_settings(
        ClickstreamSettings,
        app="clickstream",
        overrides=["sessions.rules=universal", "sessions.zone=Europe/Berlin", "cart_timeout=15m"],
    )
    assert settings.visitor_rules().sessions.zone == "Europe/Berlin"
    target = TestDriver(app.topology(settings).link("Entities").process)
    filled = CartChange("c1", START, "e1", "v1", "v:v1", "cart", 500)
    target.send_batch([("c1", START, filled, "carts")])
    target.advance_watermark(START + 15 * MINUTE - 1)
    assert target.values("abandonments") == []
    target.advance_watermark(START + 15 * MINUTE)
    assert [left.noticed_ms - left.since_ms for left in target.values("abandonments")] == [15 * MINUTE]


def test_every_contract_is_in_git_as_it_is() -> None:
    folder = folder_of("clickstream")
    names = {contract.name.file for contract in load_contracts("clickstream")}
    newest = dict(name.removesuffix(".schema.json").split(".v") for name in names)
    versions = {f"{name}.v{n + 1}.schema.json" for name, last in newest.items() for n in range(int(last))}
    assert versions == {path.name for path in folder.glob("*.json")}
    assert set(app.contracts) == {name.removesuffix(".schema.json") for name in names}


def test_a_person_is_looked_for_by_all_its_names() -> None:
    subject = Subject("u'1", ("v1", "v2"), ("c1",))
    assert subject.asked() == [("account", "u'1"), ("browser", "v1"), ("browser", "v2"), ("cart", "c1")]
    assert subject.values("identities") == {"visitor_id": ["v1", "v2"], "user_id": ["u'1"]}
    assert Subject("u", ()).values("funnels") == {}


def test_the_operators_commands_explain_themselves() -> None:
    result = CliRunner().invoke(operate, ["forget", "--help"])
    assert result.exit_code == 0
    assert "Remove a person from state" in result.output
