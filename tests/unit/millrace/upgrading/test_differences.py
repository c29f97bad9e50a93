"""What two versions wrote, compared: held to sets and dictionaries over random histories of both."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from millrace.upgrading.differences import Looks, difference, difference_by_key
from tests.cases import case_count

#: Histories by chance; more by hand.
CASES = case_count(400, "UPGRADE_SEEDS")
COLUMNS = ["_event_id", "amount", "note"]


def written(chance: random.Random, count: int) -> list[dict[str, Any]]:
    notes = (None, "a", float("nan"), [1, 2], {"k": 1})
    return [
        {"_event_id": f"e{n}", "amount": chance.randrange(3), "note": chance.choice(notes)}
        for n in range(count)
    ]


def as_text(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


@pytest.mark.parametrize("seed", range(CASES))
def test_rows_of_one_only_and_rows_that_differ_are_those_of_a_set_based_comparison(seed: int) -> None:
    """Both write one stream, each as far as it is; the new version loses, adds, changes and doubles some.

    ::

        all     |-----------------------|
        blue    |---- first ---|- then -|
        green   |-- first --|--- then --|      less lost, with changed, added, doubled ones
    """
    chance = random.Random(seed)
    rows = written(chance, chance.randrange(30))
    lost = {r["_event_id"] for r in rows if chance.random() < 0.1}
    changed = {r["_event_id"] for r in rows if chance.random() < 0.1} - lost
    own = [{**row, "amount": row["amount"] + 10} if row["_event_id"] in changed else row for row in rows]
    own = [row for row in own if row["_event_id"] not in lost]
    own += [{"_event_id": f"n{n}", "amount": 0, "note": None} for n in range(chance.choice((0, 0, 2)))]
    own += [row for row in own if chance.random() < 0.05]
    chance.shuffle(own)
    blue_first, green_first = rows[: chance.randint(0, len(rows))], own[: chance.randint(0, len(own))]

    found = difference(Looks(blue_first, rows), Looks(green_first, own), ["_event_id"], (COLUMNS, COLUMNS))

    ids = {"blue": {r["_event_id"] for r in blue_first}, "green": {r["_event_id"] for r in green_first}}
    everything = {r["_event_id"] for r in rows}
    assert found.only_blue == len(ids["blue"] & lost)
    assert found.only_green == len(ids["green"] - everything)
    seen = (ids["blue"] | ids["green"]) & everything - lost
    assert found.differ == len(seen & changed)
    assert found.same == len(seen - changed)
    assert found.columns == ({"amount": len(seen & changed)} if seen & changed else {})
    twice = [key for key, count in Counter(r["_event_id"] for r in green_first).items() if count > 1]
    assert (found.twice_blue, found.twice_green) == (0, len(twice))
    assert (found.blue, found.green) == (len(blue_first), len(green_first))
    nothing = (
        not (ids["blue"] & lost) and not (ids["green"] - everything) and not (seen & changed) and not twice
    )
    assert found.is_same == nothing


@pytest.mark.parametrize("seed", range(CASES))
def test_of_a_table_with_one_row_per_key_those_that_stand_still_are_compared(seed: int) -> None:
    chance = random.Random(seed)

    def table(keys: int, missing: float) -> dict[int, dict[str, Any]]:
        there = [k for k in range(keys) if chance.random() >= missing]
        return {k: {"key": k, "n": chance.randrange(2)} for k in there}

    def later(rows: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        moved = {k: {**row, "n": 5} for k, row in rows.items() if chance.random() < 0.2}
        return rows | moved | ({99: {"key": 99, "n": 0}} if chance.random() < 0.2 else {})

    blue, green = table(20, 0.1), table(20, 0.5)
    blue_then, green_then = later(blue), later(green)
    found = difference_by_key(
        Looks(list(blue.values()), list(blue_then.values())),
        Looks(list(green.values()), list(green_then.values())),
        ["key"],
        (["key", "n"], ["key", "n"]),
    )
    keys = set(green) | set(green_then)
    text = {name: {k: as_text(r) for k, r in rows.items()} for name, rows in
            {"b0": blue, "b1": blue_then, "g0": green, "g1": green_then}.items()}  # fmt: skip
    still = {
        k for k in keys if text["b0"].get(k) == text["b1"].get(k) and text["g0"].get(k) == text["g1"].get(k)
    }
    assert found.moving == len(keys - still)
    assert found.only_green == len(still - set(blue_then))
    assert found.differ == sum(text["b1"][k] != text["g1"][k] for k in still & set(blue_then))
    assert found.same == sum(text["b1"][k] == text["g1"][k] for k in still & set(blue_then))


def test_columns_of_one_only_are_a_difference_and_are_not_compared_by_row() -> None:
    blue, green = [{"_event_id": "a", "old": 1}], [{"_event_id": "a", "new": 2}]
    found = difference(
        Looks(blue, blue), Looks(green, green), ["_event_id"], (["_event_id", "old"], ["_event_id", "new"])
    )
    assert (found.same, found.differ, found.is_same) == (1, 0, False)
    assert (found.columns_only_blue, found.columns_only_green) == (["old"], ["new"])


def test_what_comes_after_the_first_look_is_left_for_the_next_comparison() -> None:
    old, new = {"_event_id": "a"}, {"_event_id": "b"}
    found = difference(
        Looks([old], [old, new]), Looks([], [old]), ["_event_id"], (["_event_id"], ["_event_id"])
    )
    assert (found.same, found.only_blue, found.is_same) == (1, 0, True)


def test_a_value_that_is_no_number_is_the_same_in_both() -> None:
    blue, green = ([{"_event_id": "a", "deep": {"v": [float("nan")]}}] for _ in range(2))
    columns = ["_event_id", "deep"]
    found = difference(Looks(blue, blue), Looks(green, green), ["_event_id"], (columns, columns))
    assert (found.same, found.differ) == (1, 0)
