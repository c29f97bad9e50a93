"""The evaluations on small data of the same formats, in memory."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
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


def spoilt(file: str, content: str | bytes) -> Callable[[Path], None]:
    """A file has something else in it."""

    def change(folder: Path) -> None:
        (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def without(file: str, column: str) -> Callable[[Path], None]:
    """A table lacks a column."""

    def change(folder: Path) -> None:
        path = folder / file
        parquet = path.suffix == ".parquet"
        frame = (pd.read_parquet(path) if parquet else pd.read_csv(path)).drop(columns=column)
        frame.to_parquet(path) if parquet else frame.to_csv(path, index=False)

    return change


def nobody_measures(folder: Path) -> None:
    path = folder / "telemetry_x.parquet"
    pd.read_parquet(path).iloc[:0].to_parquet(path)


NO_AZURE = [
    (spoilt("telemetry_x.parquet", b"no parquet"), "telemetry_x.parquet cannot be read"),
    (without("telemetry_x.parquet", "volt"), "telemetry_x.parquet has no column volt"),
    (nobody_measures, "telemetry without a row"),
    (spoilt("errors_x.csv", ""), "errors_x.csv cannot be read"),
    (spoilt("errors_x.csv", b"\xff\xfe\x00"), "errors_x.csv cannot be read"),
    (without("errors_x.csv", "errorID"), "errors_x.csv has no column errorID"),
    (spoilt("errors_x.csv", "datetime,machineID,errorID\nnever,1,e\n"), "a time that is none"),
    (spoilt("errors_x.csv", "datetime,machineID,errorID\n,1,e\n"), "a row without a time"),
    (spoilt("maint_x.csv", "datetime,machineID,comp\n2015-01-01,m1,c\n"), "no whole number"),
    (spoilt("maint_x.csv", "datetime,machineID,comp\n2015-01-01,,c\n"), "no whole number"),
    (without("machines_x.csv", "model"), "machines_x.csv has no column model"),
]


@pytest.mark.parametrize(("change", "why"), NO_AZURE)
def test_what_is_no_table_of_the_sample_is_one_clear_line(
    azure_folder: Path, change: Callable[[Path], None], why: str
) -> None:
    change(azure_folder)
    with pytest.raises(azure.DataMissing, match=why) as refused:
        azure.read_tables(azure_folder)
    assert "\n" not in str(refused.value)


def test_without_an_error_or_a_replacement_the_join_is_that_of_nothing(
    azure_folder: Path, tmp_path: Path
) -> None:
    spoilt("errors_x.csv", "datetime,machineID,errorID\n")(azure_folder)
    spoilt("maint_x.csv", "datetime,machineID,comp\n")(azure_folder)
    out = tmp_path / "r.json"
    invoke("azure-join", "--data", str(azure_folder), "--out", str(out))
    report = json.loads(out.read_text())
    assert (report["rows"], report["mismatches"], report["dead_letters"]) == (2 * 12 * 24, 0, 0)
    assert report["events"] == 2 * 12 * 24 * 4 + 3  # the master data among them


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


@pytest.mark.parametrize(
    "row", ["x,L,298,308,1500,40,0,0,0,0", "1,X,298,308,1500,40,0,0,0,0", "1,L,298,308,fast,40,0,0,0,0",
            "1,L,298,308,nan,40,0,0,0,0", "1,L,298"],
)  # fmt: skip
def test_a_product_without_its_numbers_is_named_by_its_line(tmp_path: Path, row: str) -> None:
    heading = ",".join(("UDI", "Type", *ai4i.COLUMNS, *ai4i.MODES))
    (tmp_path / "x.csv").write_text(f"{heading}\n7,L,298,308,1500,40,0,0,0,0\n{row}\n")
    with pytest.raises(ai4i.NotAi4i, match=r"x\.csv, line 3: a product has"):
        ai4i.read_products(tmp_path / "x.csv")


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


def shifting(folder: Path, seed: int) -> tuple[Path, Path]:
    """A series whose level moves now and then, for as long as it likes, and windows anywhere."""
    rng = random.Random(seed)
    times = pd.date_range("2014-01-01", periods=1_500, freq="5min")
    values, level = [], 0.0
    for n in range(len(times)):
        if n > 300 and rng.random() < 0.02:
            level = rng.choice((0.0, 0.0, 3.0, 4.5, -4.5))
        values.append(round(10 + level + rng.gauss(0, 1), 3))
    path = folder / "made" / "one.csv"
    path.parent.mkdir()
    pd.DataFrame({"timestamp": times, "value": values}).to_csv(path, index=False)
    begins = sorted(rng.sample(range(300, 1_400, 60), 6))
    spans = [[str(times[n]), str(times[n + 40])] for n in begins]
    (folder / "windows.json").write_text(json.dumps({"made/one.csv": spans}))
    return path, folder / "windows.json"


def by_the_minute(frame: pd.DataFrame, *, dead: float, on: int, off: int) -> list[bool]:
    """Whether an alarm is active at each minute, by a walk through them; delays in minutes."""
    values = {5 * n: value for n, value in enumerate(frame["value"])}
    known = frame["value"][: int(0.15 * len(frame))]
    high, low = known.mean() + 3.5 * known.std(ddof=0), known.mean() - 3.5 * known.std(ddof=0)
    dead *= known.std(ddof=0)
    holds, active, since, found = False, False, 0, []
    for minute in range(5 * len(frame) - 4):
        if (value := values.get(minute)) is not None:
            inner = dead if holds else 0.0
            beyond = value > high - inner or value < low + inner
            since = since if beyond == holds else minute
            holds = beyond
        if holds != active and minute - since >= (on if holds else off):
            active = holds
        found.append(active)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_raised_windows_and_the_active_share_are_those_of_every_minute(seed: int, tmp_path: Path) -> None:
    path, windows = shifting(tmp_path, seed)
    out = tmp_path / "r.json"
    invoke("alarms", "--series", str(path), "--windows", str(windows), "--out", str(out))
    report = json.loads(out.read_text())
    frame = pd.read_csv(path, parse_dates=["timestamp"])
    begin = frame["timestamp"][0]
    (spans,) = json.loads(windows.read_text()).values()
    inside = [tuple(int((pd.Timestamp(t) - begin).total_seconds()) // 60 for t in span) for span in spans]
    for name, how in (
        ("bare", {"dead": 0.0, "on": 0, "off": 0}),
        ("filtered", {"dead": nab.DEAD_BAND, "on": 15, "off": 120}),
    ):
        active = by_the_minute(frame, **how)  # type: ignore[arg-type]
        rises = [n for n in range(len(active)) if active[n] and not (n and active[n - 1])]
        found = report[name]
        changes = sum(one != other for one, other in pairwise([False, *active]))
        assert found["transitions"] == changes
        assert found["windows_raised"] == sum(any(low <= n <= high for n in rises) for low, high in inside)
        assert found["windows_hit"] == sum(any(active[low : high + 1]) for low, high in inside)
        assert found["active_share"] == pytest.approx(sum(active[:-1]) / (len(active) - 1), abs=2e-4)
    assert (report["windows_raised"], report["active_share"]) == tuple(
        report["filtered"][name] for name in ("windows_raised", "active_share")
    )
    assert report["held"] is (report["active_share"] <= 0.1)


def test_a_filter_that_is_active_most_of_the_time_is_not_held(tmp_path: Path) -> None:
    path, windows = series(tmp_path)
    frame = pd.read_csv(path)
    frame.loc[1_000:, "value"] += 20.0
    frame.to_csv(path, index=False)
    out = tmp_path / "r.json"
    invoke("alarms", "--series", str(path), "--windows", str(windows), "--out", str(out))
    report = json.loads(out.read_text())
    assert report["active_share"] > 0.6
    assert report["held"] is False


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
        ("foresight.every=0", r"foresight\.every.*a step takes time"),
        ("health.interval=0s", r"health\.interval.*an interval takes time"),
    ):
        with pytest.raises(UserError, match=why):
            load_settings(IotSettings, app="iot", overrides=[override], env={})
    settings = load_settings(IotSettings, app="iot", overrides=["monitor.shift_tz=Europe/Berlin"], env={})
    assert monitoring(settings).calendar.tz == "Europe/Berlin"
    with pytest.raises(UserError, match="cannot be read"):
        monitoring(load_settings(IotSettings, app="iot", overrides=["monitor.fleet_file=/nowhere"], env={}))
