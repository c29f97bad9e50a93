"""Rows that name somebody, exactly: by columns, and in whatever column, against an oracle of words."""

from __future__ import annotations

import json
import string
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.privacy.erasure import Names, count_left, delete_letters, delete_rows, wait_for_rows

WORD = set(string.ascii_letters + string.digits + "_-")


def named(text: str, name: str) -> bool:
    """Return whether a text has a name by itself, by cutting it into words."""
    words = "".join(c if c in WORD or ord(c) > 127 else " " for c in text).split()
    return name in words


@pytest.mark.parametrize("seed", range(10))
def test_of_10000_rows_those_that_name_42_go_and_no_other(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    pieces = ["42", "142", "421", "4", "-", " ", '"', ":", "x", "{", "2:", "_"]

    def text() -> str:
        return "".join(random.choices(pieces, k=random.randrange(4)))

    rows: list[dict[str, Any]] = [
        {
            "_event_id": f"row'{number}x",
            "key": random.choice([text(), None]),
            "value": random.choice([text().encode(), None]),
            "deep": {"of": [text()], "n": 42},
        }
        for number in range(1_000)
    ]
    write_deltalake(str(tmp_path / "t"), pa.Table.from_pylist(rows))
    names = Names(("42",))
    expected = {
        row["_event_id"]
        for row in rows
        if any(
            named(one, "42")
            for one in ((row["key"] or ""), (row["value"] or b"").decode(), row["deep"]["of"][0])
        )
    }
    assert expected
    assert count_left(tmp_path / "t", names) == len(expected)
    assert delete_letters(tmp_path / "t", names) == len(expected)
    kept = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["_event_id"].to_pylist()
    assert set(kept) == {row["_event_id"] for row in rows} - expected
    assert count_left(tmp_path / "t", names) == 0


def test_rows_are_deleted_by_whole_values_also_of_keys_and_of_what_stands_in_structs(tmp_path: Path) -> None:
    table = tmp_path / "t"
    rows = {
        "_event_id": list("abcde"),
        "card": ["o'b", "o'b2", "3:o'b", None, "x"],
        "event": [{"card": "x"}, {"card": "x"}, {"card": "x"}, {"card": "o'b"}, {"card": "x o'b"}],
    }
    write_deltalake(str(table), pa.table(rows))
    columns = ["card", "event.card", "event.none", "none.card", "card.none"]
    assert delete_rows(table, columns, Names(("o'b",))) == 3
    assert DeltaTable(str(table)).to_pyarrow_table()["_event_id"].to_pylist() == ["b", "e"]
    assert count_left(table, Names(("o'b",))) == 1
    assert delete_rows(table, ["none"], Names(("x",))) == delete_rows(table, ["card"], Names(())) == 0
    none = tmp_path / "no"
    for nothing in (delete_rows(none, ["a"], Names(("x",))), count_left(none, Names(("x",))),
                    delete_letters(none, Names(("x",)))):  # fmt: skip
        assert nothing == 0


def test_what_is_waited_for_comes_or_is_told(tmp_path: Path) -> None:
    table = tmp_path / "t"
    assert wait_for_rows(table, "id", ["a"], patience_s=0) == ["a"]
    write_deltalake(str(table), pa.table({"id": ["a", "c"]}))
    assert wait_for_rows(table, "id", ["a", "b"], patience_s=0) == ["b"]
    assert wait_for_rows(table, "id", ["a"], patience_s=0) == []
    assert json.dumps(Names(("a",)).keys()) == '["a", "1:a"]'
