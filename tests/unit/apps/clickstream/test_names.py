"""A browser, an account and a cart may share any name; what is forgotten is what was asked for alone."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.errors import UserError
from millrace.testing import TestDriver
from millrace_apps.clickstream.contracts.events import (
    MAX_NAME,
    Consent,
    Customer,
    Erasure,
    Forget,
    ItemChange,
    Refund,
    SubjectKind,
    told_apart,
)
from millrace_apps.clickstream.contracts.messages import CartChange, EraseCart, ErasePerson
from millrace_apps.clickstream.contracts.rows import digest_of
from millrace_apps.clickstream.operations.forget import app_settings, left_rows, requests, run, subject_of
from millrace_apps.clickstream.processes.carts import Carts
from millrace_apps.clickstream.processes.visitor import Visitors
from millrace_apps.clickstream.state.browser_state import VisitorRules
from millrace_apps.clickstream.state.suppression import Suppressed
from tests.cases import case_count
from tests.unit.apps.clickstream.app_cases import (
    HOUR,
    MINUTE,
    SECOND,
    START,
    Run,
    click,
    consent,
    keyed,
    send,
    shop_chain,
)

#: Names that look like keys, prefixes, other names' numbers, or code; and the longest that there may be.
NAMES = (
    *("1", "c:1", "p:1", "u:1", "v:1", "p:u:1", "v:u:1", "42", "b:42", "c:42", "2:42", "4:c:1", " ", "ключ"),
    *("é", "e\u0301", "o'b", '"', "\\", "%", "a\nb", "\u0000", "'; DROP TABLE sessions; --", "consent 1"),
    *("click 1", "x" * MAX_NAME, "c:" + "x" * (MAX_NAME - 2), "\U0001f6d2" * MAX_NAME),
)  # fmt: skip
KINDS: tuple[SubjectKind, ...] = ("browser", "account", "cart")
#: What the app tells itself over its topics.
BACK: dict[str, Any] = {"Entities.forget": Forget, "Entities.consents": Consent}


# -- the process ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_forgotten_is_of_the_kind_that_was_asked_for(kind: SubjectKind, name: str) -> None:
    target = TestDriver(Visitors(VisitorRules()))
    agreed = Consent("c1", name, None, ("personalisation",), True, START)
    send(target, agreed, click(1, visitor=name, id="e1", item_id="i1"))
    before = len(target.values())
    send(target, Forget("r1", name, START + MINUTE, kind))
    told = [one for one in target.values()[before:] if isinstance(one, ErasePerson)]
    led = {"browser": ["v:"], "account": ["u:"], "cart": []}[kind]
    assert told == [ErasePerson(f"{letters}{name}", START + MINUTE, "r1") for letters in led]
    assert target.values("carts") == ([EraseCart(name, START + MINUTE, "r1")] if kind == "cart" else [])
    assert (target.state(name)["known"] is None) == (kind == "browser")
    (audit,) = target.values("erasures")
    assert (audit.subject_digest, audit.had_state) == (digest_of(name, kind), kind == "browser")
    assert len(name) < 4 or name not in msgspec.json.encode(audit).decode()


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_late_of_before_is_dropped_of_what_was_forgotten_alone(kind: SubjectKind) -> None:
    target = TestDriver(Visitors(VisitorRules()), out_of_orderness_ms=HOUR)
    send(target, Forget("r1", "42", START + MINUTE, kind))
    before = len(target.values())
    send(target, consent(0, visitor="42"), click(1, visitor="42", item_id="i1"))
    send(target, Customer("k1", "42", "f", 1990, "DE", START + 2))
    target.drain()
    known = {one.person for one in target.values()[before:]}
    assert known == {"browser": {"u:42"}, "account": {"v:42"}, "cart": {"v:42", "u:42"}}[kind]
    suppressed = {one.subject_digest for one in target.values("erasures") if one.suppressed}
    assert suppressed == ({digest_of("42", kind)} if kind != "cart" else set())


def test_a_request_of_an_earlier_version_says_by_its_first_letters_what_it_is_of() -> None:
    """It cannot say more: a browser of that very name is forgotten, too."""
    read = msgspec.json.decode(b'{"request_id":"r1","subject":"c:1","event_time_ms":5}', type=Forget)
    assert (read.kind, read.subject) == (None, "c:1")
    for subject, person, cart in (("c:1", None, "1"), ("p:u:1", "u:1", None), ("1", "v:1", None)):
        target = TestDriver(Visitors(VisitorRules()))
        send(target, Forget("r1", subject, START + MINUTE))
        assert [one.person for one in target.values()] == ([person] if person else [])
        assert [one.cart_id for one in target.values("carts")] == ([cart] if cart else [])
        assert [one.subject_digest for one in target.values("erasures")] == [digest_of(subject)]
    target = TestDriver(Visitors(VisitorRules()))
    send(target, consent(0, visitor="c:1"), Forget("r1", "c:1", START + MINUTE))
    assert (target.state("c:1")["known"], len(target.values("carts"))) == (None, 1)
    # The list of what was forgotten, as it stood in checkpoints then.
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode([START, "r0"]), type=Suppressed)
    assert stored == Suppressed(START, "r0", -1)


def test_a_cart_is_known_by_its_own_list_alone() -> None:
    target = TestDriver(Carts(), out_of_orderness_ms=2 * HOUR)
    target.send_batch([("42", START + HOUR, EraseCart("42", START + HOUR, "r1"))])
    for cart in ("42", "c:42"):
        change = CartChange(cart, START + MINUTE, "e1", "v1", "v:v1", "cart", 500)
        target.send_batch([(cart, START + MINUTE, change)])
    target.drain()
    assert [row.cart_id for row in target.values("abandonments")] == ["c:42"]


def _named_alike(identity: str) -> list[Any]:
    """An event of each kind under the key 42, all with one identity."""
    at = START + MINUTE
    return [
        click(MINUTE, visitor="42", id=identity),
        Consent(identity, "42", None, ("marketing",), False, at),
        Customer(identity, "42", "f", 1990, "DE", at),
        Refund(identity, "o1", "42", None, (), 5.0, at),
        Erasure(identity, "42", at),
        ItemChange(identity, "42", at),
    ]


@pytest.mark.parametrize("first", range(6))
def test_events_of_different_kinds_with_one_identity_under_one_key_are_no_repeats(first: int) -> None:
    """A browser, an account and an item are called 42; what is repeated of one kind is a repeat."""
    target = TestDriver(Visitors(VisitorRules()), out_of_orderness_ms=HOUR)
    events = _named_alike("r1")
    send(target, consent(0, visitor="42"))
    for event in (events[first], *events):
        send(target, event) if not isinstance(event, ItemChange) else target.send_batch(
            [("42", event.event_time_ms, event)]
        )
    assert [letter["reason"] for letter in target.values("dead_letters")] == ["duplicate"]


def test_identities_are_told_apart_whatever_they_look_like() -> None:
    looks = ["r1", "click r1", "consent r1", "click consent r1", "item r1", "erasure r1", "forget r1"]
    every = [told_apart(event) for identity in looks for event in _named_alike(identity)]
    assert len(set(every)) == len(every)
    assert told_apart(click(0, id="e1")) == "e1"  # as checkpoints of before have it


# -- the whole app: any names are as good as names that nothing else has -------------------------------


Rename = Callable[[str, str], str]


def _history(draws: random.Random) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """What is done, with names as numbers, and the hostile names that these may stand for."""
    found: list[tuple[str, dict[str, Any]]] = [
        ("consent", {"at": n, "number": n - 9, "browser": n, "account": 0, "cart": 0}) for n in range(3)
    ]
    at = 10
    kinds = ["consent", "login", "login", "view", "add", "add", "order", "forget", "erasure", "customer"]
    for number in range(draws.randrange(6, 20)):
        at += draws.choice((300, 20 * SECOND, 4 * MINUTE, 40 * MINUTE))
        told = {"at": at, "number": number, "browser": draws.randrange(3), "account": draws.randrange(2),
                "cart": draws.randrange(3), "of": draws.choice(KINDS)}  # fmt: skip
        found.append((draws.choice(kinds), told))
    return found, draws.sample(NAMES, 3)


def _event(what: str, told: dict[str, Any], name: Rename) -> Any:
    at, number = told["at"], told["number"]
    browser, account, cart = (name(kind, str(told[kind])) for kind in KINDS)
    if what == "consent":
        return Consent(f"c{number}", browser, None, ("personalisation", "marketing"), True, START + at)
    if what == "customer":
        return Customer(f"k{number}", account, "f", 1990, "DE", START + at)
    if what == "erasure":
        return Erasure(f"r{number}", account, START + at)
    if what == "forget":
        return Forget(f"f{number}", name(told["of"], str(told[told["of"]])), START + at, told["of"])
    fields: dict[str, Any] = {
        "login": {"user_id": account},
        "view": {"item_id": f"i{number}", "price": 1.0},
        "add": {"item_id": f"i{number}", "price": 1.0, "cart_id": cart},
        "order": {"order_id": f"o{number}", "amount": 2.0, "cart_id": cart},
    }[what]
    kind = {"login": "login", "view": "page_view", "add": "add_to_cart", "order": "purchase"}[what]
    return click(at, kind, browser, id=f"e{number}", **fields)


def _played(events: list[Any], size: int) -> Run:
    """What comes of events; what the app tells itself is read next, by its contract."""
    chain, found = shop_chain(VisitorRules(), ()), list[Any]()
    todo = [events[n : n + size] for n in range(0, len(events), size)]
    while todo:
        told = chain.run_batch(keyed(*todo.pop(0)))
        found += told
        back = [msgspec.json.decode(e.payload, type=BACK[e.output]) for e in told if e.output in BACK]
        todo = [back, *todo] if back else todo
    return Run([*found, *chain.drain()], chain.is_empty())


def _told(run: Run, plain: dict[tuple[str, str], str]) -> dict[str, Any]:
    """What the app says in the end, with the names of each kind as numbers again."""

    def of(kind: str, name: str | None) -> str | None:
        return None if name is None else plain[kind, name]

    def person(name: str) -> str:
        return f"{name[:2]}{of('account' if name.startswith('u:') else 'browser', name[2:])}"

    digests = {digest_of(name, kind): f"{kind} {number}" for (kind, name), number in plain.items()}  # type: ignore[arg-type]
    return {
        "profiles": sorted(
            (person(r["person"]), sorted(plain["browser", v] for v in r["visitors"]), r["orders"],
             r["last_items"], r["seen_ms"])
            for r in run.table("Entities.profiles", "person")
        ),
        "identities": sorted(
            (of("browser", r["visitor_id"]), of("account", r["user_id"]))
            for r in run.table("Visitors.identities", "visitor_id")
        ),
        "carts": sorted(
            (of("cart", r["cart_id"]), of("browser", r["visitor_id"]), of("account", r["user_id"]) or "",
             r["since_ms"], r["value_cents"])
            for r in run.rows("Entities.abandonments")
        ),
        "sessions": sorted(
            (of("browser", r["visitor_id"]), of("account", r["user_id"]) or "", r["start_ms"], r["events"])
            for r in run.table("Visitors.sessions", "session_id")
        ),
        "erasures": Counter(
            (r["request_id"], digests[r["subject_digest"]], r["had_state"], r["suppressed"])
            for r in run.rows("Visitors.erasures")
        ),
        "letters": Counter(json.loads(e.payload)["reason"] for e in run.emissions if "letter" in e.output),
    }  # fmt: skip


@pytest.mark.parametrize("block", range(4))
def test_a_shop_of_hostile_names_is_one_of_plain_names(block: int) -> None:
    """One history with names of which each is another kind's, too, and with names that nothing else has."""
    cases = case_count(160)
    for seed in range(block * cases // 4, (block + 1) * cases // 4):
        draws = random.Random(seed)
        history, names = _history(draws)
        size, both = draws.choice((1, 2, 100)), []

        def hostile(_: str, number: str, names: list[str] = names) -> str:
            return names[int(number)]

        for way in (hostile, "{}-{}".format):
            plain = {(kind, way(kind, str(n))): f"{kind} {n}" for kind in KINDS for n in range(3)}
            run = _played([_event(what, told, way) for what, told in history], size)
            assert run.empty, seed
            both.append(_told(run, plain))
        assert both[0] == both[1], (seed, names)


# -- the tables and the certificate --------------------------------------------------------------------


def _letter(topic: str, key: str, **value: Any) -> tuple[str, str, bytes]:
    return topic, f"{len(key.encode())}:{key}", json.dumps(value).encode()


@pytest.mark.parametrize("name", NAMES)
def test_what_else_has_a_persons_names_stays_and_is_not_found_as_left(name: str, tmp_path: Path) -> None:
    """The account ``name``, its browser ``mine`` and cart ``1``; a browser, item and more are called so."""
    letters = [
        _letter("clickstream.customers", name, user_id=name),
        _letter("clickstream.clicks", "mine", visitor_id="mine", item_id="x"),
        _letter("clickstream.erasures", name, user_id=name, request_id="r"),
        # Not theirs: a browser, an item, an order, a search and an identity that are called so.
        _letter("clickstream.clicks", name, visitor_id=name, event_id=name),
        _letter("clickstream.items", name, item_id=name),
        _letter("clickstream.refunds", "other", visitor_id="other", order_id=name, refund_id=name),
        _letter("clickstream.clicks", "c:1", visitor_id="c:1", query=name, cart_id=f"c:{name}"),
    ]
    late = [
        {"type": "shopping", "person": person, "visitor": visitor, "subject": name, "cause": name}
        for person, visitor in ((f"u:{name}", "new"), (f"v:{name}", name), ("v:other", "other"))
    ]
    tables: dict[str, dict[str, Any]] = {
        "sessions": {"visitor_id": ["mine", name, "c:1"], "user_id": [name, None, f"u:{name}"],
                     "end_ms": [1, 2, 3]},
        "abandonments": {"visitor_id": ["mine", "other"], "user_id": [name, None], "cart_id": ["1", "c:1"]},
        "profiles": {"person": [f"u:{name}", f"v:{name}", f"u:u:{name}", "v:mine", "u:mine"]},
        "consents": {"visitor_id": ["mine", "other", name], "consent_id": ["a", name, "b"],
                     "user_id": [name, None, None], "told": ["", "", name]},
        "late_results": {"_event_id": ["a", "b", "c"], "event": [json.dumps(one) for one in late]},
        "boards": {"item": [name, "x"], "board": ["searches/1h", "views/1h"]},
        "dead_letters": {"_event_id": [f"l{n}" for n in range(len(letters))],
                         "topic": [one[0] for one in letters], "key": [one[1] for one in letters],
                         "value": [one[2] for one in letters]},
    }  # fmt: skip
    for table, columns in tables.items():
        types = {"told": pa.string(), "user_id": pa.string()}
        arrays = {c: pa.array(v, types.get(c)) if c in types else pa.array(v) for c, v in columns.items()}
        write_deltalake(str(tmp_path / "tables" / table), pa.table(arrays))
    sets, out = [f"storage.root={tmp_path}"], tmp_path / "proof.json"
    settings = app_settings(None, sets)
    subject = subject_of(settings, name)
    assert (subject.user, subject.visitors, subject.carts) == (name, ("mine",), ("1",))
    assert [(one.kind, one.subject) for one in requests(subject, "r", 5)] == [
        ("account", name), ("browser", "mine"), ("cart", "1"),
    ]  # fmt: skip
    for one in requests(subject, "r", 5):
        assert msgspec.json.decode(msgspec.json.encode(one), type=Forget) == one
    code = run(name, bootstrap=None, at="1970-01-01T00:00:05", sets=sets, tables_only=True, out=out)
    proof = json.loads(out.read_text())
    assert {table: n for table, n in proof["deleted"].items() if n} == {
        "sessions": 1, "abandonments": 1, "profiles": 2, "consents": 1, "late_results": 1, "dead_letters": 3,
    }  # fmt: skip
    assert (code, proof["clean"], sum(proof["left"].values())) == (0, True, 0)
    assert proof["subject_digest"] == digest_of(name, "account")
    kept = {table: DeltaTable(str(tmp_path / "tables" / table)).to_pyarrow_table() for table in tables}
    assert kept["dead_letters"]["_event_id"].to_pylist() == ["l3", "l4", "l5", "l6"]
    assert sorted(kept["profiles"]["person"].to_pylist()) == sorted([f"v:{name}", f"u:u:{name}", "u:mine"])
    # What is theirs is found where it is still there.
    again = pa.table({"visitor_id": ["new"], "user_id": [name], "end_ms": [9]})
    write_deltalake(str(tmp_path / "tables" / "sessions"), again, mode="append")
    assert left_rows(settings, subject)["sessions"] == 1


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME + 1)], ids=["empty", "too long"])
@pytest.mark.parametrize("of", ["user", "visitors", "carts"])
def test_what_is_no_name_is_refused_before_anything_goes(name: str, of: str, tmp_path: Path) -> None:
    rows = {"_event_id": ["a"], "key": ["2:v1"], "value": [b'{"visitor_id":"v1","user_id":""}']}
    write_deltalake(str(tmp_path / "tables" / "dead_letters"), pa.table(rows))
    told: dict[str, Any] = {"user": "ann", "visitors": (), "carts": ()}
    told[of] = name if of == "user" else (name,)
    with pytest.raises(UserError, match="is no name"):
        run(told["user"], bootstrap=None, at=None, sets=[f"storage.root={tmp_path}"], tables_only=True,
            out=None, visitors=told["visitors"], carts=told["carts"])  # fmt: skip
    assert DeltaTable(str(tmp_path / "tables" / "dead_letters")).to_pyarrow_table().num_rows == 1


def test_no_two_kinds_of_one_name_have_one_digest() -> None:
    every = [digest_of(name, kind) for name, kind in itertools.product(NAMES, KINDS)]
    assert len(set(every)) == len(every)
