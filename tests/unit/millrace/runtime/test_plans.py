"""Which plan an app runs by, and what it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient

from millrace.errors import UserError
from millrace.host import spark_state
from millrace.runtime.plans import (
    BACKLOG,
    FULL_BATCHES,
    SHORT_RUN,
    SMALL_STATE_BYTES,
    Backlog,
    choose,
    is_short,
    kept_links,
    kept_plan,
    kept_stations,
    settled,
    settled_what,
)
from millrace.runtime.settings import AppSettings, load_settings
from millrace.runtime.settings_sources import SettingsError
from millrace_apps.fraud.app import app as fraud
from millrace_apps.fraud.settings import FraudSettings


def settings(*sets: str) -> AppSettings:
    return load_settings(AppSettings, app="any", overrides=list(sets), env={})


def never() -> int:
    raise AssertionError("nobody needs to know what waits")


def with_checkpoint(root: Path, *, station: bool, size: int = 10, stations: int = 1) -> Path:
    about = {"broadcast": [], **({"stations": stations} if stations > 1 else {})}
    contract = {"incarnation": "a", "process": "P", **({"station": about} if station else {})}
    (root / "contract.json").write_text(json.dumps(contract))
    state = root / "checkpoint" / "state" / "0"
    state.mkdir(parents=True)
    with (state / "1.changelog").open("wb") as file:
        file.truncate(size)
    return root


@pytest.mark.parametrize(
    ("sets", "waiting", "plan"),
    [
        ((), 0, "station"),
        ((), BACKLOG, "station"),
        ((), BACKLOG + 1, "chain"),
        (("spark.master=spark://host:7077",), 0, "chain"),
        (("spark.shuffle_partitions=4",), 0, "chain"),
        (("spark.shuffle_partitions=1",), 0, "station"),
        (("stream.plan=chain",), 0, "chain"),
        (("stream.plan=station",), 10**9, "station"),
    ],
)
def test_a_new_checkpoint_begins_with_what_fits(
    tmp_path: Path, sets: tuple[str, ...], waiting: int, plan: str
) -> None:
    assert choose(settings(*sets), tmp_path, lambda: waiting).plan == plan


@pytest.mark.parametrize("station", [False, True])
def test_a_checkpoint_keeps_its_plan_whatever_waits(tmp_path: Path, station: bool) -> None:
    root = with_checkpoint(tmp_path, station=station)
    kept = "station" if station else "chain"
    assert kept_plan(root) == kept
    assert choose(settings(), root, never) == (kept, "as the checkpoint has it", False, 1)
    assert choose(settings(f"stream.plan={kept}"), root, never) == (kept, "as set", False, 1)


def test_with_a_pyspark_whose_client_is_another_one_it_is_a_chain_which_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark_state.sends_ahead()
    monkeypatch.delattr(StatefulProcessorApiClient, "_send_proto_message")
    spark_state.sends_ahead.cache_clear()
    assert str(choose(settings(), tmp_path, lambda: 0)) == (
        "plan: chain (this PySpark's state client is not as it is known: a station waits for each answer)"
    )
    assert choose(settings("stream.plan=station"), tmp_path, never).plan == "station"
    kept = choose(settings(), with_checkpoint(tmp_path, station=True), never)
    assert kept.plan == "station"
    assert f"bring it over with: millrace rescale {tmp_path} --plan chain" in kept.why
    spark_state.sends_ahead.cache_clear()


def test_a_small_checkpoint_of_the_other_plan_is_brought_over_and_a_large_one_is_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()
    small = with_checkpoint(tmp_path / "small", station=False, size=SMALL_STATE_BYTES)
    assert choose(settings("stream.plan=station"), small, never).converts
    large = with_checkpoint(tmp_path / "large", station=True, size=SMALL_STATE_BYTES + 1)
    with pytest.raises(UserError, match=r"is of a station, with 32 MB of state.*--plan chain --partitions N"):
        choose(settings("stream.plan=chain"), large, never)


#: What a new checkpoint begins as a station for.
LITTLE = "on one machine, and little waits"


@pytest.mark.parametrize(
    ("sets", "locality", "told"),
    [
        ("spark.master=local[3]", "plant", f"3 stations ({LITTLE}, one for each core, by plant)"),
        ("spark.master=local[3]", None, f"station ({LITTLE})"),
        ("spark.master=local[1]", "plant", f"station ({LITTLE})"),
        ("spark.master=local[999]", "plant", f"64 stations ({LITTLE}, one for each core, by plant)"),
        ("spark.master=local[3] stream.stations=2", "plant", f"2 stations ({LITTLE}, by plant)"),
        ("spark.master=local[3] stream.stations=1", "plant", f"station ({LITTLE})"),
        ("stream.plan=station stream.stations=5", "plant", "5 stations (as set, by plant)"),
        ("stream.plan=chain stream.stations=5", None, "chain (as set)"),
    ],
)
def test_there_are_as_many_stations_as_cores_where_there_is_a_locality(
    tmp_path: Path, sets: str, locality: str | None, told: str
) -> None:
    assert str(choose(settings(*sets.split()), tmp_path, lambda: 0, locality)) == f"plan: {told}"


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_a_checkpoint_keeps_its_stations(tmp_path: Path, kept: int) -> None:
    root = with_checkpoint(tmp_path, station=True, stations=kept)
    assert kept_stations(root) == kept
    found = choose(settings("spark.master=local[3]"), root, never, "plant")
    assert (found.plan, found.stations, found.converts) == ("station", kept, False)
    found = choose(settings("stream.stations=3"), root, never, "plant")
    assert (found.stations, found.converts) == (3, True)
    assert choose(settings("stream.plan=chain"), root, never, "plant").converts


def test_stations_without_a_locality_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"stream\.stations is 2, and the app's topology names no locality"):
        choose(settings("stream.stations=2"), tmp_path, lambda: 0)
    root = with_checkpoint(tmp_path, station=True, stations=2)
    with pytest.raises(UserError, match=r"is of 2 stations, .* no locality: .* --stations 1"):
        choose(settings(), root, never)
    assert choose(settings("stream.stations=1"), root, never).converts


def test_large_state_of_other_stations_is_brought_over_by_hand(tmp_path: Path) -> None:
    root = with_checkpoint(tmp_path, station=True, stations=2, size=SMALL_STATE_BYTES + 1)
    with pytest.raises(
        UserError, match=r"of 2 stations, with 32 MB .* stream\.stations is 3: .* --stations 3$"
    ):
        choose(settings("stream.stations=3"), root, never, "plant")
    with pytest.raises(UserError, match=r"stream\.plan is chain: .* --plan chain --partitions N$"):
        choose(settings("stream.plan=chain"), root, never, "plant")
    (tmp_path / "chain").mkdir()
    chain = with_checkpoint(tmp_path / "chain", station=False, size=SMALL_STATE_BYTES + 1)
    sets = settings("stream.plan=station", "stream.stations=3")
    with pytest.raises(UserError, match=r"of a chain, .* --plan station --stations 3$"):
        choose(sets, chain, never, "plant")


def test_how_many_stations_there_may_be() -> None:
    assert settings("stream.stations=auto").stream.stations == "auto"
    assert settings("stream.stations=64").stream.stations == 64
    for wrong in ("0", "65", "many"):
        with pytest.raises(SettingsError):
            settings(f"stream.stations={wrong}")


def test_a_contract_that_cannot_be_read_is_left_to_who_reads_it_next(tmp_path: Path) -> None:
    (tmp_path / "contract.json").write_text("{")
    assert kept_plan(tmp_path) is None
    assert kept_plan(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("asked", "until_end", "waiting", "short"),
    [
        ([], True, SHORT_RUN, True),
        ([], True, SHORT_RUN + 1, False),
        ([], False, 0, False),
        (["spark.quick_start=true"], False, 2 * SHORT_RUN, True),
        (["spark.quick_start=false"], True, 0, False),
    ],
)
def test_a_run_that_is_soon_over_compiles_less(
    asked: list[str], until_end: bool, waiting: int, short: bool
) -> None:
    settings = load_settings(AppSettings, app="x", overrides=asked, env={})
    assert is_short(settings, lambda: waiting, until_end=until_end) is short


def test_a_station_that_does_not_keep_up_says_so_once() -> None:
    told: list[str] = []
    backlog = Backlog(told.append)
    for _ in range(FULL_BATCHES - 1):
        backlog.see(is_full=True)
    backlog.see(is_full=False)
    assert told == []
    for _ in range(3 * FULL_BATCHES):
        backlog.see(is_full=True)
    assert len(told) == 1


def with_links(root: Path, *names: str, station: bool) -> list[str]:
    """Leave a contract with links of these names; return what makes it an app's."""
    one = {"process": names[0]}
    links = {"links": [{"process": name} for name in names]} if len(names) > 1 else {}
    contract = {**one, **links, **({"station": {"broadcast": []}} if station else {})}
    (root / "contract.json").write_text(json.dumps(contract))
    return [f"storage.root={root}"]


ALL = ["account", "terminal", "device", "ip"]


@pytest.mark.parametrize(("plan", "entities"), [("station", ALL), ("auto", ALL), ("chain", [])])
def test_fraud_decides_with_all_entities_where_that_costs_little(
    tmp_path: Path, plan: str, entities: list[str]
) -> None:
    sets = [f"stream.plan={plan}", f"storage.root={tmp_path}"]
    before = load_settings(FraudSettings, app="fraud", overrides=sets, env={})
    after = settled(fraud, before)
    assert after.features.stages == entities
    assert [link.name for link in fraud.topology(after).links][1:-1] == [
        {"account": "AccountMonitor", "terminal": "TerminalMonitor", "device": "DeviceMonitor",
         "ip": "AddressMonitor"}[entity] for entity in entities
    ]  # fmt: skip
    assert settled_what(before, after) == f"; features.entities={','.join(entities) or 'none'}"


@pytest.mark.parametrize("station", [False, True])
@pytest.mark.parametrize(
    ("links", "entities"),
    [
        (("CardMonitor",), []),
        (("CardMonitor", "DecisionDesk"), []),
        (("CardMonitor", "DeviceMonitor", "TerminalMonitor", "DecisionDesk"), ["device", "terminal"]),
    ],
)
def test_a_checkpoint_of_fraud_keeps_its_stages_under_any_plan(
    tmp_path: Path, links: tuple[str, ...], entities: list[str], station: bool
) -> None:
    sets = with_links(tmp_path, *links, station=station)
    assert kept_links(tmp_path) == list(links)
    for plan in ("auto", "station", "chain"):
        of = load_settings(FraudSettings, app="fraud", overrides=[*sets, f"stream.plan={plan}"], env={})
        assert settled(fraud, of).features.stages == entities
        assert settled(fraud, of, "chain").features.stages == entities
        named = of.model_copy(update={"features": of.features.model_copy(update={"entities": "ip"})})
        assert settled(fraud, named).features.stages == ["ip"], "what is set holds"
    assert settled(fraud, of, "station", anew=True).features.stages == ALL
