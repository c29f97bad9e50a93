"""Caps of a person over all browsers: what was offered before a login counts, until the browser parts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from millrace.host.memory_chain import MemoryChain
from millrace.runtime.settings import load_settings
from millrace.testing.app_contract import AppInMemory
from millrace.topology import Link, Topology
from millrace_apps.clickstream.app import app
from millrace_apps.clickstream.contracts.events import Forget
from millrace_apps.clickstream.contracts.messages import CapsBack, CapsGo, ErasePerson, Shopping
from millrace_apps.clickstream.evaluation.offer_checks import (
    Brought,
    Consents,
    Made,
    brought_along,
    check_offers,
)
from millrace_apps.clickstream.processes.caps import MOST_BROWSERS, CapChange, Caps
from millrace_apps.clickstream.processes.offer_matches import OfferMatches
from millrace_apps.clickstream.processes.offer_rules import Condition, OfferRule, OfferStep
from millrace_apps.clickstream.settings import ClickstreamSettings
from millrace_apps.clickstream.state.browser_state import VisitorRules
from millrace_apps.clickstream.state.offers import OUTCOME_MS
from tests.cases import case_count
from tests.unit.apps.clickstream.app_cases import (
    HOUR,
    MINUTE,
    START,
    click,
    consent,
    keyed,
    run_app,
    shop_chain,
)
from tests.unit.apps.clickstream.test_identity import login
from tests.unit.apps.clickstream.test_world import ClickstreamWorld

CASES = case_count(150)


def rule(name: str, kind: str, *, cap: int, cap_within: str, cool_down: str) -> OfferRule:
    """A rule that each event of a kind completes."""
    steps = (OfferStep("it", (Condition("kind", is_=kind),)),)
    return OfferRule(
        name=name, offer=name, steps=steps, within="1h", counts=(kind,), cap=cap, cap_within=cap_within,
        cool_down=cool_down, control=0.0,
    )  # fmt: skip


RULES = (
    rule("searched", "search", cap=2, cap_within="6h", cool_down="30m"),
    rule("viewed", "view", cap=3, cap_within="2h", cool_down="20m"),
    rule("seen", "view", cap=1, cap_within="1h", cool_down="5h"),
)
HOURS = {"6h": 6 * HOUR, "2h": 2 * HOUR, "1h": HOUR, "30m": 30 * MINUTE, "20m": 20 * MINUTE, "5h": 5 * HOUR}


def chain(rules: tuple[OfferRule, ...] = RULES, *, bound_ms: int = 0) -> MemoryChain:
    wired = Topology({}, (Link(OfferMatches(rules, 0.0)),)).key_by("person").process(Caps(rules, 0.0))
    return MemoryChain(wired, out_of_orderness_ms=bound_ms)


def does(at: int, person: str, kind: Any, visitor: str = "b") -> Shopping:
    return Shopping(person, kind, START + at, f"{person}.{at}", visitor, f"s{at}", cents=500)


def took(target: MemoryChain, events: Sequence[Any], *, batch: int) -> list[Any]:
    found: list[Any] = []
    for n in range(0, len(events), batch):
        part = events[n : n + batch]
        found += target.run_batch([(e.person, e.at_ms, e, "persons") for e in part])
    found += target.drain()
    assert target.is_empty()
    return found


def rows(found: Sequence[Any], output: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(e.payload) for e in found if e.output == output]


def made(found: Sequence[Any]) -> list[tuple[int, str, str]]:
    return sorted((r["at_ms"] - START, r["person"], r["rule"]) for r in rows(found, "main"))


# -- against one look at all events in order ----------------------------------------------------------


@dataclass
class Reading:
    """All events, one after the other, with everything that was ever offered in one list."""

    offered: list[dict[str, Any]] = field(default_factory=list)
    changes: list[tuple[str, str, str, dict[str, int]]] = field(default_factory=list)

    def take(self, event: Any) -> None:
        if isinstance(event, CapsGo):
            new = [o for o in self.offered if o["of"] == event.person and not o["into"]]
            for one in new:
                one["into"] = event.into
            self._changed(event.into, event.person[2:], "merged", new)
        elif isinstance(event, CapsBack):
            gone = [o for o in self.offered if (o["of"], o["into"]) == (f"v:{event.visitor}", event.person)]
            for one in gone:
                one["into"] = "nobody"
            self._changed(event.person, event.visitor, "unmerged", gone)
        elif isinstance(event, ErasePerson):
            self.offered = [o for o in self.offered if o["of"] != event.person]
            for one in self.offered:
                one["into"] = "nobody" if one["into"] == event.person else one["into"]
        else:
            self._shop(event)

    def _changed(self, person: str, visitor: str, change: str, which: list[dict[str, Any]]) -> None:
        if which:
            counts: dict[str, int] = {}
            for one in which:
                counts[one["rule"]] = counts.get(one["rule"], 0) + 1
            self.changes.append((person, visitor, change, counts))

    def _shop(self, event: Shopping) -> None:
        theirs = [o for o in self.offered if event.person in (o["of"], o["into"])]
        for one in RULES:
            if one.counts != (event.kind,):
                continue
            if any(event.at_ms - o["at"] < HOURS[one.cool_down] for o in theirs):
                continue
            like = [o for o in theirs if o["rule"] == one.name]
            if sum(event.at_ms - o["at"] < HOURS[one.cap_within] for o in like) < one.cap:
                self.offered.append({"of": event.person, "into": "", "rule": one.name, "at": event.at_ms})
                return


def history(rnd: random.Random) -> list[Any]:
    """What two accounts and three browsers do within hours, no two things at once."""
    at, found = 0, []
    for _ in range(rnd.randrange(10, 70)):
        at += rnd.choice((1, 9, 25, 70)) * MINUTE + rnd.randrange(1, 999)
        browser, account = f"b{rnd.randrange(3)}", f"u:u{rnd.randrange(2)}"
        kind = rnd.random()
        if kind < 0.12:
            found.append(CapsGo(f"v:{browser}", START + at, account))
        elif kind < 0.18:
            found.append(CapsBack(account, START + at, browser))
        elif kind < 0.2:
            found.append(ErasePerson(account, START + at, "r"))
        else:
            person = rnd.choice((account, f"v:{browser}"))
            found.append(does(at, person, rnd.choice(("view", "view", "search")), browser))
    return found


@pytest.mark.parametrize("block", range(5))
def test_offers_are_those_of_one_look_at_all_events_in_order(block: int) -> None:
    """In any order within the bound, and whatever the cuts."""
    for seed in range(block * CASES // 5, (block + 1) * CASES // 5):
        rnd = random.Random(seed)
        events = history(rnd)
        reading = Reading()
        wanted: list[tuple[int, str, str]] = []
        for event in events:
            before = len(reading.offered)
            reading.take(event)
            if isinstance(event, Shopping) and len(reading.offered) > before:
                wanted.append((event.at_ms - START, event.person, reading.offered[-1]["rule"]))
        bound = rnd.choice((0, HOUR))
        came = sorted(events, key=lambda e: e.at_ms + rnd.uniform(0, bound))
        found = took(chain(bound_ms=bound), came, batch=rnd.choice((1, 3, 100)))
        assert made(found) == sorted(wanted), seed
        outcomes = rows(found, "outcomes")
        assert {o["offer_id"] for o in outcomes} <= {o["offer_id"] for o in rows(found, "main")}


@pytest.mark.parametrize("seed", range(20))
def test_what_is_merged_and_parted_is_audited(seed: int) -> None:
    """While no cap or cool-down is over, each change says which offers it moved."""
    rnd = random.Random(seed)
    quick = [msgspec.structs.replace(e, at_ms=START + (e.at_ms - START) // 60) for e in history(rnd)]
    events = [e for e in quick if not isinstance(e, ErasePerson) and e.at_ms < START + 50 * MINUTE]
    reading = Reading()
    for event in events:
        reading.take(event)
    found = [msgspec.convert(r, CapChange) for r in rows(took(chain(), events, batch=4), "cap_changes")]
    assert [(c.person, c.visitor_id, c.change, c.offers) for c in found] == reading.changes


@pytest.mark.parametrize("seed", range(case_count(40)))
def test_the_checks_of_the_demo_know_from_the_table_what_counts_for_whom(seed: int) -> None:
    """Which offers there are follows from the events and the table of changes."""
    rnd = random.Random(seed)
    events = [e for e in history(rnd) if not isinstance(e, ErasePerson)]
    found = took(chain(), events, batch=rnd.choice((1, 5)))
    reading, wanted = Made(brought_along(rows(found, "cap_changes"))), []
    for event in (e for e in events if isinstance(e, Shopping)):
        for one in RULES:
            if one.counts == (event.kind,) and not reading.forbids(one, event.person, event.at_ms):
                reading.add(event.person, event.at_ms, one.name)
                wanted.append((event.at_ms - START, event.person, one.name))
                break
    assert made(found) == sorted(wanted)


def test_what_a_browser_has_brought_along_counts_from_the_login_until_it_parts() -> None:
    changes = [("u:a", "b", 5, "merged"), ("u:a", "b", 9, "unmerged"), ("u:c", "b", 12, "merged")]
    names = ("person", "visitor_id", "at_ms", "change")
    assert brought_along(dict(zip(names, row, strict=True)) for row in changes) == {
        "u:a": [Brought("v:b", 0, 5, 9)], "u:c": [Brought("v:b", 5, 12)],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "erased", "holds"),
    [
        ([], set(), False),
        ([(3, "merged")], set(), True),
        ([(3, "merged"), (4, "unmerged")], set(), False),
        ([(6, "merged")], set(), False),
        ([(3, "merged")], {"v:b"}, True),
    ],
    ids=["never merged", "merged", "parted", "merged later", "the browser is forgotten"],
)
def test_the_check_of_left_carts_owes_an_account_what_its_browsers_left_over(
    changes: list[tuple[int, str]], erased: set[str], holds: bool
) -> None:
    """One offer in seven days: that of the browser was made, that of the account was not."""
    left = rule("left", "abandoned", cap=1, cap_within="7d", cool_down="0m")
    told = [{"visitor_id": "b", "at_ms": 0, "in_force": ["personalisation", "marketing"]}]
    carts = [
        {"cart_id": f"c{at}", "visitor_id": "b", "user_id": user, "since_ms": at, "noticed_ms": at}
        for at, user in ((2, None), (5, "a"))
    ]
    made = {"offer_id": "o", "rule": "left", "person": "v:b", "visitor_id": "b", "cart_id": "c2", "at_ms": 2,
            "arm": "offer", "why": {"it": "abandoned at 2"}}  # fmt: skip
    rows = [{"person": "u:a", "visitor_id": "b", "at_ms": at, "change": what} for at, what in changes]
    checks = check_offers(
        [made], carts, Consents(told), (left,), holdout=0.0, until_ms=9, erased=frozenset(erased),
        changes=rows,
    )  # fmt: skip
    (check,) = [one for one in checks if one.name == "offers for carts that were left"]
    assert check.ok == holds


def test_an_account_is_not_offered_again_what_its_browser_was_and_is_after_it_is_parted() -> None:
    events = [
        does(0, "v:b", "search"),
        does(40 * MINUTE, "v:b", "search"),
        CapsGo("v:b", START + 80 * MINUTE, "u:a"),
        does(2 * HOUR, "u:a", "search"),  # twice in six hours, by the browser
        CapsBack("u:a", START + 3 * HOUR, "b"),
        does(4 * HOUR, "u:a", "search"),
    ]
    found = took(chain(), events, batch=1)
    assert made(found) == [
        (0, "v:b", "searched"), (40 * MINUTE, "v:b", "searched"), (4 * HOUR, "u:a", "searched"),
    ]  # fmt: skip
    assert [(r["change"], r["offers"]) for r in rows(found, "cap_changes")] == [
        ("merged", {"searched": 2}), ("unmerged", {"searched": 2}),
    ]  # fmt: skip


def test_a_second_account_takes_nothing_of_what_the_first_took_along() -> None:
    events = [
        does(0, "v:b", "search"),
        CapsGo("v:b", START + 1, "u:a"),
        does(2, "v:b", "view"),  # a cool-down of the browser
        CapsGo("v:b", START + 3, "u:c"),
        does(4, "u:c", "search"),
    ]
    assert made(took(chain(), events, batch=1)) == [(0, "v:b", "searched"), (4, "u:c", "searched")]


def test_more_browsers_than_are_told_apart_count_all_the_same() -> None:
    one = (rule("seldom", "view", cap=MOST_BROWSERS + 3, cap_within="7d", cool_down="0m"),)
    events: list[Any] = []
    for n in range(MOST_BROWSERS + 3):
        events += [does(10 * n, f"v:b{n}", "view"), CapsGo(f"v:b{n}", START + 10 * n + 1, "u:a")]
    found = took(chain(one), [*events, does(HOUR, "u:a", "view")], batch=7)
    assert all(person != "u:a" for _, person, _ in made(found))


def test_a_cool_down_that_is_longer_than_the_time_of_a_cap_goes_along() -> None:
    one = (rule("viewed", "view", cap=1, cap_within="1h", cool_down="5h"),)
    events = [does(0, "v:b", "view"), CapsGo("v:b", START + 2 * HOUR, "u:a")]
    events += [does(n * HOUR, "u:a", "view") for n in (3, 4, 6)]
    found = took(chain(one), events, batch=1)
    assert made(found) == [(0, "v:b", "viewed"), (6 * HOUR, "u:a", "viewed")]


def test_what_came_of_an_offer_is_told_and_who_is_forgotten_is_told_nothing() -> None:
    buys = does(HOUR, "u:a", "purchase")
    found = took(chain(), [does(0, "u:a", "search"), buys, does(2 * HOUR, "u:a", "view")], batch=1)
    outcomes = {r["rule"]: (r["converted"], r["decided_ms"]) for r in rows(found, "outcomes")}
    assert outcomes == {
        "searched": (True, START + HOUR),
        "viewed": (False, START + 2 * HOUR + OUTCOME_MS),
    }
    erased = took(chain(), [does(0, "u:a", "search"), ErasePerson("u:a", START + 1, "r"), buys], batch=1)
    assert rows(erased, "outcomes") == []


# -- the whole app ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("merges", "times"), [(False, 2), (True, 1)])
def test_who_logs_in_is_not_offered_again_what_was_offered_before(merges: bool, times: int) -> None:
    offer = (rule("viewed", "view", cap=1, cap_within="7d", cool_down="1d"),)
    events = [consent(0), click(1, item_id="a"), login(MINUTE), click(2 * MINUTE, item_id="b", user_id="u1")]
    run = run_app(keyed(*events), batch=1, offers=offer, holdout=0.0, merges_caps=merges)
    assert len(run.rows("main" if merges else "offers")) == times
    assert run.empty


def test_caps_part_where_consent_is_withdrawn_in_the_browser() -> None:
    offer = (rule("viewed", "view", cap=1, cap_within="7d", cool_down="0m"),)
    other = [consent(0, visitor="v2"), login(1, visitor="v2")]
    events = [*other, consent(2), click(3, item_id="a"), login(MINUTE)]
    late = [click(3 * HOUR, visitor="v2", item_id="b", user_id="u1")]
    withdrawn = [consent(2 * HOUR, ("personalisation",), granted=False)]
    kept, parted = (
        run_app(keyed(*events, *more, *late), batch=1, offers=offer, holdout=0.0, merges_caps=True)
        for more in ([], withdrawn)
    )
    assert [r["person"] for r in kept.rows("main")] == ["v:v1"]
    assert [r["person"] for r in parted.rows("main")] == ["v:v1", "u:u1"]
    assert [r["change"] for r in parted.rows("cap_changes")] == ["merged", "unmerged"]


class TestContract(ClickstreamWorld, AppInMemory):
    """The whole app with caps over all browsers: whatever the cut, the order and the restarts."""

    overrides = ("offers.merge_caps=true",)

    def test_offers_are_made_and_caps_are_merged(self) -> None:
        found = {name: rows.total() for name, rows in self.standing.expected().items()}
        assert found["main"] > 5
        assert found["cap_changes"] > 0


def test_the_app_is_wired_with_a_link_more_and_the_tables_of_before() -> None:
    both = []
    for sets in ((), ("offers.merge_caps=true",)):
        settings = load_settings(ClickstreamSettings, app="clickstream", overrides=sets, env={})
        both.append(app.topology(settings))
    assert [link.name for link in both[1].links][-2:] == ["Results", "Caps"]
    assert len(both[1].links) == len(both[0].links) + 1
    before, after = (
        {getattr(to, "table", to) for all_ in one.tables.values() for to in all_} for one in both
    )
    assert after - before == {"cap_changes", "late_offers", "dead_offers"}
    assert before < after


def test_of_a_browser_that_is_forgotten_no_state_of_others_has_the_name() -> None:
    """An account that was offered something in it before a login: caps, profile and links name it no more."""
    target = shop_chain(
        VisitorRules(), RULES, holdout=0.0, merges_caps=True,
    )  # fmt: skip
    before = [consent(0, visitor="browser-x"), click(1, "search", "browser-x", query="red")]
    before += [click(2, visitor="browser-x", item_id="a"), login(3, visitor="browser-x")]
    after = [click(MINUTE, visitor="browser-x", item_id="b", user_id="u1")]
    elsewhere = [consent(0, visitor="y"), login(4, visitor="y"), click(HOUR, visitor="y", item_id="c")]
    for event in (*before, *after, *elsewhere):
        target.run_batch(keyed(event))
    target.advance_watermark(START + 2 * HOUR)

    def named() -> list[str]:
        found = []
        for host in target.hosts:
            found += [
                host.runner.process.name
                for cell in host.store.cells.values()
                if b"browser-x" in bytes(cell.body)
            ]
        return sorted(set(found))

    assert {"Caps", "Entities"} <= set(named())
    gone = Forget("r1", "browser-x", START + 2 * HOUR)
    found = list(target.run_batch(keyed(gone)))
    found += target.advance_watermark(START + 3 * HOUR)
    assert not {"Caps", "Entities", "Results"} & set(named())
    changes = [e for e in found if e.output == "cap_changes"]
    assert changes == []  # nor does a row say so
