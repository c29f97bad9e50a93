"""The evaluations on small data of the same formats, in memory."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace.runtime.settings import load_settings
from millrace_apps.iot_maintenance.contracts.events import Action
from millrace_apps.iot_maintenance.evaluation import ai4i, azure, nab
from millrace_apps.iot_maintenance.evaluation.cli import app
from millrace_apps.iot_maintenance.operations.cli import app as iot
from millrace_apps.iot_maintenance.settings import DEFAULTS, IotSettings, monitoring
from tests.unit.apps.iot_maintenance.monitor_cases import action, driver, history, reading, rule, send, until
from tests.unit.millrace.operations.cases import MockBroker, records_of


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--engine", "memory"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def azure_folder(tmp_path: Path) -> Path:
    """Three machines for twelve days, two of them with telemetry."""
    rng = random.Random(2)
    hours = pd.date_range("2015-01-01", periods=12 * 24, freq="h")
    telemetry = pd.DataFrame(
        [
            {"datetime": at, "machineID": m, **{q: rng.gauss(100, 9) for q in azure.QUANTITIES}}
            for m in (1, 2)
            for at in hours
        ]
    )
    telemetry.to_parquet(tmp_path / "telemetry_x.parquet")

    def some(column: str, names: tuple[str, ...], size: int) -> pd.DataFrame:
        rows = [
            {"datetime": rng.choice(hours), "machineID": rng.choice([1, 2, 3]), column: rng.choice(names)}
            for _ in range(size)
        ]
        return pd.DataFrame(rows).sort_values("datetime")

    some("errorID", azure.ERRORS, 120).to_csv(tmp_path / "errors_x.csv", index=False)
    some("comp", azure.COMPONENTS, 40).to_csv(tmp_path / "maint_x.csv", index=False)
    machines = pd.DataFrame({"machineID": [1, 2, 3], "model": ["m1", "m2", "m1"], "age": [3, 18, 7]})
    machines.to_csv(tmp_path / "machines_x.csv", index=False)
    return tmp_path


def test_the_join_equals_merge_asof_and_corrects_what_was_late(azure_folder: Path, tmp_path: Path) -> None:
    out, features = tmp_path / "r.json", tmp_path / "f.parquet"
    told = invoke(
        "azure-join", "--data", str(azure_folder), "--out", str(out), "--features", str(features),
        "--late-share", "0.3", "--shuffle-seed", "3",
    )  # fmt: skip
    report = json.loads(out.read_text())
    assert (report["rows"], report["mismatches"], report["beyond_grace"]) == (2 * 12 * 24, 0, 0)
    assert report["late_facts"] > 20
    assert report["late_corrected"] > 20
    assert "mismatches" in told
    frame = pd.read_parquet(features)
    wanted = azure.oracle(azure.read_tables(azure_folder))
    assert azure.mismatches(frame, wanted) == 0
    # The comparison sees what is wrong.
    for column, value in (("days_since_comp1", 1e6), ("error1_24h", 99), ("model", "other"), ("volt", 0.0)):
        wrong = frame.copy()
        wrong.loc[5, column] = value
        assert azure.mismatches(wrong, wanted) == 1
    assert azure.mismatches(frame.drop(index=7), wanted) == 1


def test_the_oracle_leaves_out_what_is_at_the_instant_and_counts_24_hours(azure_folder: Path) -> None:
    tables = azure.read_tables(azure_folder)
    wanted = azure.oracle(tables).sample(60, random_state=1)
    for row in wanted.itertuples():
        at = row.datetime
        errors = tables["errors"]
        mine = errors[(errors.machineID == row.machineID) & (errors.errorID == "error2")]
        assert row.error2_24h == sum(at - pd.Timedelta(hours=24) < t <= at for t in mine.datetime)
        maint = tables["maint"]
        times = maint[(maint.machineID == row.machineID) & (maint.comp == "comp3")].datetime
        before = [t for t in times if t < at]
        assert (not before and pd.isna(row.days_since_comp3)) or row.days_since_comp3 == pytest.approx(
            (at - max(before)) / pd.Timedelta(days=1)
        )


def test_a_folder_without_the_data_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(azure.DataMissing, match="no folder of the Azure sample"):
        invoke("azure-join", "--data", str(tmp_path), "--out", str(tmp_path / "r.json"))


def test_the_documented_rules_find_what_they_say(tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = []
    for number in range(1, 301):
        row: dict[str, Any] = {
            "UDI": number,
            "Type": rng.choice("LMH"),
            "Air temperature [K]": round(rng.uniform(298, 303), 1),
            "Process temperature [K]": round(rng.uniform(306, 313), 1),
            "Rotational speed [rpm]": rng.randint(1_200, 2_800),
            "Torque [Nm]": round(rng.uniform(5, 75), 1),
            "Tool wear [min]": rng.randint(0, 250),
        }
        text = {name: str(value) for name, value in row.items()}
        for mode in ai4i.MODES:
            row[mode] = int(ai4i._implied(text, mode))
        rows.append(row)
    frame = pd.DataFrame(rows)
    frame.loc[frame.index[frame.HDF == 1][0], "HDF"] = 0  # one that the rule implies and nobody has labelled
    frame.to_csv(tmp_path / "a.csv", index=False)
    invoke("ai4i", "--data", str(tmp_path / "a.csv"), "--out", str(tmp_path / "r.json"))
    report = json.loads((tmp_path / "r.json").read_text())
    for mode in ai4i.MODES:
        found = report[mode]
        assert found["expected"] == found["matched"] == int(frame[mode].sum()) > 5
        assert found["false"] == found["implied"] == (1 if mode == "HDF" else 0)


def test_a_file_of_another_data_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ai4i.NotAi4i, match="no column"):
        invoke("ai4i", "--data", str(tmp_path / "x.csv"), "--out", str(tmp_path / "r.json"))


def series(folder: Path) -> tuple[Path, Path]:
    """A noisy series with two excursions, in which the value goes in and out of its limit."""
    rng = random.Random(3)
    times = pd.date_range("2014-01-01", periods=3_000, freq="5min")
    values = [10 + rng.gauss(0, 1) for _ in times]
    for begin in (1_500, 2_500):
        for i in range(begin, begin + 40):
            values[i] += 4.0
    path = folder / "realX" / "one.csv"
    path.parent.mkdir()
    pd.DataFrame({"timestamp": times, "value": values}).to_csv(path, index=False)
    windows = {
        "realX/one.csv": [[str(times[1_490]), str(times[1_560])], [str(times[2_490]), str(times[2_560])]]
    }
    (folder / "windows.json").write_text(json.dumps(windows))
    return path, folder / "windows.json"


def test_dead_band_and_delays_leave_a_few_transitions_at_the_same_windows(tmp_path: Path) -> None:
    path, windows = series(tmp_path)
    out = tmp_path / "r.json"
    invoke("alarms", "--series", str(path), "--windows", str(windows), "--out", str(out))
    report = json.loads(out.read_text())
    assert report["bare"]["windows_hit"] == report["filtered"]["windows_hit"] == report["windows"] == 2
    assert report["filtered"]["transitions"] <= 0.3 * report["bare"]["transitions"]
    # The bare rule, counted by hand.
    frame = pd.read_csv(path)
    known = frame.value[: int(0.15 * len(frame))]
    high, low = known.mean() + 3.5 * known.std(ddof=0), known.mean() - 3.5 * known.std(ddof=0)
    beyond = ((frame.value > high) | (frame.value < low)).to_numpy()
    changes = int((beyond[1:] != beyond[:-1]).sum()) + int(beyond[0])
    assert report["bare"]["transitions"] == changes


def test_a_series_without_windows_is_refused(tmp_path: Path) -> None:
    path, windows = series(tmp_path)
    windows.write_text("{}")
    with pytest.raises(nab.NotNab, match="no entry"):
        invoke("alarms", "--series", str(path), "--windows", str(windows), "--out", str(tmp_path / "r.json"))
    with pytest.raises(UserError, match="no engine"):
        CliRunner().invoke(
            app,
            ["alarms", "--series", str(path), "--windows", str(windows), "--engine", "abacus"],
            catch_exceptions=False,
        )


# -- what operators see ----------------------------------------------------------------------------


def test_alarms_are_listed_by_severity_and_those_that_do_not_matter_are_left_out(tmp_path: Path) -> None:
    target = driver(rule(), rule(id="worse", quantities=("load",)))
    send(target, reading(0, 90.0), reading(1_000, 99.0, "load"), reading(2_000, 70.0), action(3_000, "ack"))
    until(target, 10_000)
    rows = pd.DataFrame([{f: getattr(e, f) for f in e.__struct_fields__} for e in history(target)])
    newest = rows.groupby("alarm_id").last().reset_index()
    write_deltalake(str(tmp_path / "tables" / "alarms"), newest)
    write_deltalake(str(tmp_path / "tables" / "alarm_history"), rows)
    listed = CliRunner().invoke(iot, ["alarms", "list", "--root", str(tmp_path), "--format", "json"])
    found = [json.loads(line) for line in listed.output.splitlines()]
    assert [row["alarm"] for row in found] == ["worse/load"]
    whole = CliRunner().invoke(iot, ["alarms", "list", "--all", "--root", str(tmp_path), "--format", "json"])
    assert len(whole.output.splitlines()) == 2
    told = CliRunner().invoke(
        iot,
        [
            "alarms",
            "history",
            f"{found[0]['entity_id']}:hot/oil",
            "--root",
            str(tmp_path),
            "--format",
            "json",
        ],
    )
    assert [json.loads(line)["change"] for line in told.output.splitlines()] == ["active", "inactive", "ack"]


def test_a_wrong_name_of_an_alarm_or_no_broker_is_one_clear_line() -> None:
    for arguments, why in (
        (["alarms", "ack", "m1"], "names no alarm"),
        (["alarms", "ack", "m1:hot"], "no broker"),
        (["alarms", "list", "--root", "/nowhere"], "no table"),
        (["rules", "validate", "/nowhere.yaml"], "cannot be read"),
    ):
        with pytest.raises(UserError, match=why):
            CliRunner().invoke(iot, arguments, catch_exceptions=False)


def test_an_action_stands_in_the_topic_when_the_command_ends(tmp_path: Path) -> None:
    broker = MockBroker()
    topic = broker.topic()
    where = ["--bootstrap", broker.bootstrap, "--root", str(tmp_path), "--set", f"topics.actions={topic}"]
    said = [
        "alarms",
        "shelve",
        "m1:hot/oil",
        "--for",
        "10m",
        "--by",
        "ann",
        "--reason",
        "spare part",
        "--at",
        "500",
    ]
    done = CliRunner().invoke(iot, [*said, *where], catch_exceptions=False)
    assert "shelve of m1:hot/oil sent" in done.output
    with pytest.raises(UserError, match="nothing was sent, since the app would not take it"):
        CliRunner().invoke(iot, ["alarms", "ack", f"{'m' * 300}:hot", *where], catch_exceptions=False)
    ((key, value),) = [r for n in range(4) for r in records_of(broker.bootstrap, topic, n)]
    sent = msgspec.json.decode(value or b"", type=Action)
    assert (key, sent.alarm, sent.verb, sent.operator) == (b"m1", "hot/oil", "shelve", "ann")
    assert (sent.event_time_ms, sent.duration_ms, sent.comment) == (500, 600_000, "spare part")
    broker.stop()


def test_the_file_of_the_app_itself_is_right_and_a_wrong_one_says_where(tmp_path: Path) -> None:
    assert "rules are right" in CliRunner().invoke(iot, ["rules", "validate", str(DEFAULTS)]).output
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("rules:\n- {id: a, quantities: [q], levels: [{above: 1}], suppress_in: [off]}\n")
    with pytest.raises(UserError, match="quote words such as off"):
        CliRunner().invoke(iot, ["rules", "validate", str(wrong)], catch_exceptions=False)
    wrong.write_text("rules:\n- {id: a, quantities: [q], levels: [{above: 1, onn_delay: 3s}]}\n")
    with pytest.raises(UserError, match=r"rule 1 \(a\).*onn_delay"):
        CliRunner().invoke(iot, ["rules", "validate", str(wrong)], catch_exceptions=False)


def test_settings_that_make_no_sense_are_named() -> None:
    for override, why in (
        ("monitor.shift_starts=6", "no time of day"),
        ("monitor.shift_tz=Mars", "time zone"),
    ):
        with pytest.raises(UserError, match=why):
            load_settings(IotSettings, app="iot", overrides=[override], env={})
    settings = load_settings(IotSettings, app="iot", overrides=["monitor.shift_tz=Europe/Berlin"], env={})
    assert monitoring(settings).calendar.tz == "Europe/Berlin"
    with pytest.raises(UserError, match="cannot be read"):
        monitoring(load_settings(IotSettings, app="iot", overrides=["monitor.fleet=/nowhere"], env={}))
