"""Operators: who a token belongs to, and a file that lets nobody act when it is not as it should be."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.operations import roster as module
from millrace.operations.roster import COST, Cost, Operator, Role, Roster, RosterError, RosterFile
from tests.cases import case_count

CASES = case_count(150)
CHEAP = Cost(2, 1, 1)
NAMES = ("ann", "bob", "Carl.C", "d-4@x")


class Known:
    """What one knows of operators who keeps everything in dicts, tokens in clear."""

    def __init__(self) -> None:
        self.role: dict[str, Role] = {}
        self.token: dict[str, str] = {}
        self.until: dict[str, int | None] = {}

    def take(self, what: str, name: str, role: Role, token: str, until: int | None) -> None:
        if what == "remove":
            del self.token[name], self.role[name], self.until[name]
        if what in ("add", "renew"):
            self.token[name], self.until[name] = token, until
        if what in ("add", "role"):
            self.role[name] = role

    def owner(self, token: str, now: int) -> tuple[str, Role] | None:
        for name, kept in self.token.items():
            until = self.until[name]
            if kept == token and (until is None or now < until):
                return name, self.role[name]
        return None


@pytest.mark.parametrize("seed", range(CASES))
def test_after_any_history_a_token_is_whose_it_was_given_to_last(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = Roster().add("nobody", Role.look, 0, None, CHEAP)[0].operators[0]
    monkeypatch.setattr(module, "_nobody", lambda: nobody)  # an unknown token costs what a known one does
    rng = random.Random(seed)
    roster = Roster()
    known, given, now, token = Known(), ["", "mr-0-x", "ann"], 1_000, ""
    for _ in range(rng.randrange(1, 14)):
        now += rng.randrange(50)
        name, role = rng.choice(NAMES), rng.choice(list(Role))
        until = rng.choice([None, now + rng.randrange(1, 200)])
        what = rng.choice(["add", "add", "renew", "role", "remove", "other case"])
        if what == "other case":
            what, name = "add", name.upper()
        there = {one.casefold() for one in known.role}
        fits = (name.casefold() not in there) if what == "add" else name in known.role
        try:
            if what == "add":
                roster, token = roster.add(name, role, now, until, CHEAP)
            elif what == "renew":
                roster, token = roster.renew(name, now, until, CHEAP)
            else:
                roster = roster.with_role(name, role) if what == "role" else roster.without(name)
        except RosterError:
            assert not fits
        else:
            assert fits
            known.take(what, name, role, token, until)
            given += [token] if what in ("add", "renew") else []
        text = msgspec.json.encode(roster)
        roster = msgspec.json.decode(text, type=Roster)  # as another process finds it
        assert {one.name: one.role for one in roster.operators} == known.role
        # Each, and each id with the secret of the one before it.
        mixed = [one[:20] + other[20:] for one, other in itertools.pairwise(given[3:])]
        for token in [*given, *mixed, *(one[:20] + "A" * 43 for one in given[3:])]:
            found = roster.find(token, now)
            assert (None if found is None else (found.name, found.role)) == known.owner(token, now)
        assert not any(token[20:].encode() in text for token in given[3:]), "only hashes are kept"


def test_an_unknown_token_costs_what_a_known_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    roster, token = Roster().add("ann", Role.look, 0)
    roster.find("warms up", 0)
    asked: list[int] = []
    scrypt = hashlib.scrypt

    def counted(*given: Any, **more: Any) -> bytes:
        asked.append(more["n"])
        return scrypt(*given, **more)

    monkeypatch.setattr(hashlib, "scrypt", counted)
    for text in (token, token[:-1] + "!", "mr-0123456789abcdef-" + "A" * 43, "", "x" * 10_000):
        roster.find(text, 0)
    assert asked == [COST.n] * 5


def test_a_seen_operator_is_one_as_long_as_the_token_is_theirs() -> None:
    roster, token = Roster().add("ann", Role.approve, 0, 100, CHEAP)
    seen = roster.find(token, 5)
    assert seen is not None
    assert roster.still(seen, 99) == seen
    assert roster.still(seen, 100) is None
    fewer = roster.with_role("ann", Role.look)
    assert (now := fewer.still(seen, 5)) is not None
    assert now.role is Role.look
    assert roster.renew("ann", 6, None, CHEAP)[0].still(seen, 7) is None
    assert roster.without("ann").still(seen, 5) is None


def test_equal_secrets_would_have_other_hashes_and_hashing_costs_what_it_should() -> None:
    made = [Roster().add("ann", Role.look, 0)[0].operators[0] for _ in range(2)]
    assert made[0].salt != made[1].salt
    assert made[0].cost == COST == (2**14, 8, 1), "16 MiB each, as interactive log-ins should"


@pytest.mark.parametrize("name", ["", " ann", "ann ", "a b", "ann\n", "-a", "ä", "a" * 65, "a/b", "аnn"])
def test_a_name_is_one_that_people_cannot_take_for_another(name: str) -> None:
    with pytest.raises(RosterError, match="no name of an operator"):
        Roster().add(name, Role.look, 0, None, CHEAP)


def test_roles_are_steps() -> None:
    assert [[has.covers(needed) for needed in Role] for has in Role] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


# -- the file --------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> RosterFile:
    found = RosterFile(tmp_path / "new" / "operators.json")
    found.change(lambda r: r.add("ann", Role.decide, 0, None, CHEAP))
    return found


def test_without_a_file_there_are_no_operators_unless_somebody_has_named_it(tmp_path: Path) -> None:
    assert RosterFile(tmp_path / "none.json").read() is None
    with pytest.raises(RosterError, match="no such file"):
        RosterFile(tmp_path / "none.json", required=True).read()
    (tmp_path / "link.json").symlink_to(tmp_path / "gone.json")
    with pytest.raises(RosterError, match="no such file"):
        RosterFile(tmp_path / "link.json").read()


def test_only_its_owner_reads_it_unless_a_group_may(file: RosterFile) -> None:
    before = os.umask(0)
    try:
        file.change(lambda r: (r.with_role("ann", Role.look), None))
        assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
        file.path.chmod(0o640)
        file.change(lambda r: (r.with_role("ann", Role.decide), None))
        assert stat.S_IMODE(file.path.stat().st_mode) == 0o640
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", [0o660, 0o604, 0o602, 0o601, 0o666])
def test_one_that_others_can_reach_lets_nobody_act(file: RosterFile, mode: int) -> None:
    file.path.chmod(mode)
    with pytest.raises(RosterError, match="chmod 640"):
        file.read()
    with pytest.raises(RosterError, match="chmod 640"):
        file.change(lambda r: (r, None))


def _change(change: Callable[[dict[str, object], dict[str, object]], object]) -> Callable[[bytes], bytes]:
    def made(text: bytes) -> bytes:
        whole = json.loads(text)
        change(whole, whole["operators"][0])
        return json.dumps(whole).encode()

    return made


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda text: b"",
    "cut": lambda text: text[:-20],
    "no JSON": lambda text: b"\xff\xfe",
    "a list": lambda text: b"[]",
    "null": lambda text: b"null",
    "another version": _change(lambda whole, one: whole.update(version=2)),
    "a further field": _change(lambda whole, one: whole.update(everybody=True)),
    "a further field of one": _change(lambda whole, one: one.update(admin=True)),
    "no such role": _change(lambda whole, one: one.update(role="root")),
    "no name": _change(lambda whole, one: one.update(name=" ann")),
    "no hash": _change(lambda whole, one: one.update(hash="")),
    "no salt": _change(lambda whole, one: one.update(salt="")),
    "no id": _change(lambda whole, one: one.update(token_id="")),
    "twice": _change(lambda whole, one: whole.update(operators=[one, one])),
    "costs nothing": _change(lambda whole, one: one.update(cost=[0, 1, 1])),
    "costs what cannot be": _change(lambda whole, one: one.update(cost=[3, 1, 1])),
    "costs all memory": _change(lambda whole, one: one.update(cost=[2**30, 8, 1])),
    "costs for ever": _change(lambda whole, one: one.update(cost=[2, 1, 10**6])),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_broken_one_lets_nobody_act_and_is_not_written_over(file: RosterFile, what: str) -> None:
    broken = WRONG[what](file.path.read_bytes())
    file.path.write_bytes(broken)
    for use in (file.read, lambda: file.change(lambda r: r.add("eve", Role.approve, 0, None, CHEAP))):
        with pytest.raises(RosterError, match="no roster of operators"):
            use()
    assert file.path.read_bytes() == broken


def test_without_anybody_it_still_is_one(file: RosterFile) -> None:
    file.change(lambda r: (r.without("ann"), None))
    assert file.read() == Roster()


def test_a_change_that_fails_leaves_what_was_there_and_nothing_beside_it(file: RosterFile) -> None:
    before = file.path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        file.change(lambda r: (r.without("ann"), 1 // 0))
    assert file.path.read_bytes() == before
    assert {one.name for one in file.path.parent.iterdir()} == {"operators.json", ".operators.json.lock"}


def test_of_many_who_change_it_at_once_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "operators.json"

    def add(number: int) -> None:
        RosterFile(path).change(lambda r: r.add(f"op-{number}", Role.look, 0, None, CHEAP))

    threads = [threading.Thread(target=add, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = RosterFile(path).read()
    assert found is not None
    assert {one.name for one in found.operators} == {f"op-{n}" for n in range(16)}


def test_a_change_by_another_process_is_seen_at_the_next_look(file: RosterFile) -> None:
    first = file.read()
    assert first is not None
    other = RosterFile(file.path)
    other.change(lambda r: (r.with_role("ann", Role.approve), None))
    now = file.read()
    assert now is not None
    assert (first.get("ann").role, now.get("ann").role) == (Role.decide, Role.approve)


def test_the_form_of_the_file_stays() -> None:
    """One that was written before must open: its fields, and how bytes stand in it."""
    one = Operator("ann", Role.decide, "0" * 16, b"s" * 16, b"h" * 32, Cost(2**14, 8, 1), 5, None)
    assert json.loads(msgspec.json.encode(Roster((one,)))) == {
        "operators": [
            {"name": "ann", "role": "decide", "token_id": "0" * 16, "salt": "c3Nzc3Nzc3Nzc3Nzc3Nzcw==",
             "hash": "aGhoaGhoaGhoaGhoaGhoaGhoaGhoaGhoaGhoaGhoaGg=", "cost": [16384, 8, 1],
             "created_ms": 5, "until_ms": None}
        ],
        "version": 1,
    }  # fmt: skip
