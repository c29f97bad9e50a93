"""Which plan an app runs by, and what it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millrace.errors import UserError
from millrace.runtime.plans import BACKLOG, FULL_BATCHES, SMALL_STATE_BYTES, Backlog, choose, kept_plan
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
    assert choose(settings(), root, never) == (kept, "as the checkpoint has it", False)
    assert choose(settings(f"stream.plan={kept}"), root, never) == (kept, "as set", False)


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
