"""Which plan an app runs by, and what it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from apps.fraud.app import app as fraud
from apps.fraud.settings import FraudSettings
from millrace.errors import UserError
from millrace.runtime.plans import (
    BACKLOG,
    FULL_BATCHES,
    SMALL_STATE_BYTES,
    Backlog,
    choose,
    kept_links,
    kept_plan,
    settled,
    settled_what,
)
from millrace.runtime.settings import AppSettings, load_settings


def settings(*sets: str) -> AppSettings:
    return load_settings(AppSettings, app="any", overrides=list(sets), env={})


def never() -> int:
    raise AssertionError("nobody needs to know what waits")


def with_checkpoint(root: Path, *, station: bool, size: int = 10) -> Path:
    contract = {"incarnation": "a", "process": "P", **({"station": {"broadcast": []}} if station else {})}
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


def test_a_contract_that_cannot_be_read_is_left_to_who_reads_it_next(tmp_path: Path) -> None:
    (tmp_path / "contract.json").write_text("{")
    assert kept_plan(tmp_path) is None
    assert kept_plan(tmp_path / "nowhere") is None


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
