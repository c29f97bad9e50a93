"""Rows that name somebody, exactly: by columns, and in whatever column, against an oracle of words."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.privacy.erasure import (
    Names,
    count_left,
    delete_letters,
    delete_rows,
    rows_with,
    wait_for_rows,
)

USER = frozenset({"user", "visitor"})
OTHER = frozenset({"item", "sku"})


def _text(random: Random, name: str, *, named: bool) -> str:
    """A text that names somebody, or only looks as if it did."""
    if named:
        ways = [name, f"u:{name}", f"p:u:{name}", f"{len(name)}:{name}", f"says '{name}' of it"]
        return random.choice([*ways, f"user={name}", f"/?visitor={name}&x=1"])
    return random.choice(
        [
            *(f"1{name}", f"{name}1", f"{name}.5", f"19.{name}", f"-{name}-", f"x{name}", f"9:{name}", ""),
            *(f"U:{name}", f"user={name}1", f"muser={name}", f"user=19.{name}", "nothing", f"{name} "),
            *(f"it is {name} s", f"user={name}.5"),
        ]
    )  # fmt: skip


def _value(random: Random, name: str, *, named: bool, depth: int = 0) -> Any:
    """A value as JSON has it, and whether it names somebody is known because it was made so."""
    if depth < 3 and random.random() < 0.5:
        inner = _value(random, name, named=named, depth=depth + 1)
        beside = _value(random, name, named=False, depth=depth + 1)
        if random.random() < 0.5:
            both = [inner, beside]
            random.shuffle(both)
            return both
        if named and random.random() < 0.1:
            return {name: beside}
        return dict(random.sample([("a", inner), ("b", beside)], 2))
    if named:
        return random.choice([_text(random, name, named=True), {random.choice([*USER]): int(name)}])
    decoys = [int(name), int(name) + 0.5, True, None, {"item": name}, {"sku": [name, {"price": int(name)}]}]
    return random.choice(
        [*decoys, {"user": int(name) * 10}, {"n": int(name)}, _text(random, name, named=False)]
    )


def _message(random: Random, name: str, *, named: bool) -> bytes:
    if random.random() < 0.3:
        return _text(random, name, named=named).encode()
    text, quoted = json.dumps({"of": _value(random, name, named=named)}), f'"{name}"'
    if random.random() < 0.2 and not named and quoted not in text:
        text = text[:-1]  # broken
    if random.random() < 0.2:
        text = text.replace(quoted, '"' + "".join(f"\\u{ord(c):04x}" for c in name) + '"', 1)
    return text.encode()


@pytest.mark.parametrize("seed", range(10))
def test_of_10000_rows_those_that_name_42_go_and_no_other(tmp_path: Path, seed: int) -> None:
    random, name = Random(seed), "42"
    names = Names((name,), fields={key: {"42"} for key in USER}, others=OTHER)
    rows: list[dict[str, Any]] = []
    expected = set()
    for number in range(1_000):
        of_key, of_value, of_deep = (random.random() < 0.1 for _ in range(3))
        identity = f"row'{number}x"
        key = _text(random, name, named=of_key)
        value = _message(random, name, named=of_value)
        deep = {"of": [_text(random, name, named=of_deep)], "n": 42, "item": "42"}
        rows.append({"_event_id": identity, "key": key, "value": value, "deep": deep, "price": 42})
        if of_key or of_value or of_deep:
            expected.add(identity)
        assert names.stands_in(value) == of_value, value
        assert names.stands_in(key) == of_key, key
    write_deltalake(str(tmp_path / "t"), pa.Table.from_pylist(rows))
    assert count_left(tmp_path / "t", names) == len(expected)
    assert delete_letters(tmp_path / "t", names) == len(expected)
    kept = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["_event_id"].to_pylist()
    assert set(kept) == {row["_event_id"] for row in rows} - expected
    assert count_left(tmp_path / "t", names) == 0


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b'{"user":"42","user":"43"}', True),  # of two with one key neither hides the other
        (b'{"price":42}', False),
        (b'{"amount":19.42}', False),
        (b'{"user":42', True),  # cut off
        (b'{"price":42', False),
        (b'{"user":4200', False),
        (b"[" * 5_000 + b'"42"', True),
        (b"\xff42", False),
        (b"42", True),
        (b"", False),
        (b'"42"', True),
        (b'{"42":1}', True),
        (b'{"user":true}', False),
        (b'{"item":{"42":1}}', False),
        (b'{"cookie":"42","n":["c1"]}', False),
        (b'{"cookie":"c1"}', True),
        (b'{"cookie":"v:c1"}', True),
        (b'{"user":"c1"}', False),
    ],
)  # fmt: skip
def test_what_names_a_user_42(message: bytes, expected: bool) -> None:
    fields = {**{key: {"42"} for key in USER}, "cookie": {"c1"}}
    assert Names(("42",), fields=fields, others=OTHER).stands_in(message) is expected


def test_rows_by_a_value_are_found_whoever_has_written_them(tmp_path: Path) -> None:
    """Some are written as they are, some by a merge, which has a form of its own for texts."""
    table = str(tmp_path / "t")
    write_deltalake(table, pa.table({"who": ["ann", "bob", None], "what": ["a", "b", "c"]}))
    source = pa.table({"who": ["ann", "eve"], "what": ["c", "d"]})
    told = DeltaTable(table).merge(source, "t.what = s.what", source_alias="s", target_alias="t")
    told.when_matched_update_all().when_not_matched_insert_all().execute()
    found = rows_with(DeltaTable(table), "who", ["ann", "eve", "nobody"], ["what"])
    assert sorted((row["who"], row["what"]) for row in found) == [("ann", "a"), ("ann", "c"), ("eve", "d")]
    assert wait_for_rows(tmp_path / "t", "who", ["bob", "eve", "none"], patience_s=0) == ["none"]


def test_keys_of_dead_letters_are_of_what_their_topic_has(tmp_path: Path) -> None:
    names = Names(
        ("42",), fields={"user": {"42"}, "cookie": {"c1"}}, others={"item"},
        keyed={"users": "user", "items": "item", "clicks": "cookie"},
    )  # fmt: skip
    rows = {
        "_event_id": list("abcdefg"),
        "topic": ["users", "items", "clicks", "clicks", "other", None, "users"],
        "key": ["2:42", "2:42", "2:42", "2:c1", "42", "42", "2:c1"],
        "kafka_key": [b"x", b"42", b"42", b"x", b"x", b"x", b"42"],
    }
    write_deltalake(str(tmp_path / "t"), pa.table(rows))
    assert count_left(tmp_path / "t", names) == 5
    assert delete_letters(tmp_path / "t", names) == 5
    left = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["_event_id"].to_pylist()
    assert left == ["b", "c"]  # an item and a browser that are called so


def test_exact_names_are_led_by_nothing_and_empty_ones_are_nobodys() -> None:
    names = Names(("42", "u:42", ""), fields={"cookie": {"c1", ""}}, exact=True)
    for text in ("42", "u:42", "4:u:42", '{"cookie":"c1"}', '{"who":"u:42"', "says 'u:42'"):
        assert names.stands_in(text), text
    for text in (
        "c:42",
        "v:42",
        '{"who":"c:42"}',
        '{"cookie":"v:c1"}',
        '{"cookie":""}',
        "",
        '{"who":"c:42"',
        "user=",
    ):
        assert not names.stands_in(text), text
    assert not Names(("",)).stands_in("anything, or ''")


def test_names_that_json_writes_in_two_ways_are_found(tmp_path: Path) -> None:
    rows = {
        "_event_id": ["a", "b", "c"],
        "value": [json.dumps({"u": "j\u00fcrg"}).encode(), "jürg".encode(), b"jurg"],
    }
    write_deltalake(str(tmp_path / "t"), pa.table(rows))
    assert count_left(tmp_path / "t", Names(("jürg",))) == 2


def test_a_word_in_a_text_counts_and_part_of_one_does_not() -> None:
    names = Names(("v1",))
    assert names.stands_in("seen v1 today")
    assert names.stands_in("/u/v1?x")
    assert not names.stands_in("seen v12, av1, v1-a, v1_b")


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


def test_a_merge_that_gets_in_the_way_of_a_deletion_is_no_end_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake.exceptions import CommitFailedError

    table = tmp_path / "t"
    write_deltalake(table, pa.table({"_event_id": ["1", "2", "3"], "card": ["a", "b", "a"]}))
    real, tries = DeltaTable.create_write_transaction, []

    def beaten(self: DeltaTable, *args: Any, **more: Any) -> None:
        tries.append(self.version())
        if len(tries) % 3:
            # What another has written since counts: the table is read anew.
            write_deltalake(table, pa.table({"_event_id": [f"n{len(tries)}"], "card": ["a"]}), mode="append")
            DeltaTable(table).optimize.compact()
            raise CommitFailedError("another was quicker")
        real(self, *args, **more)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", beaten)
    assert delete_rows(table, ["card"], Names(("a",))) == 4
    assert tries == [0, 2, 4]
    assert DeltaTable(table).to_pyarrow_table()["card"].to_pylist() == ["b"]
    never = CommitFailedError("never")
    monkeypatch.setattr(DeltaTable, "create_write_transaction", lambda *_, **__: (_ for _ in ()).throw(never))
    with pytest.raises(CommitFailedError):
        delete_rows(table, ["card"], Names(("b",)))
