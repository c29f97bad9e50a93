"""What came of an offer that was made in a browser before its login: what the account buys, wherever it does.

```
browser A   ··· search (offer) ······ login u1 ········ logout ·· search (offer) ·· login u2 ··
                └──────── waits ───────┘└─ u1's orders decide it ───────────────────────────────
browser B   ······················ login u1 ······ order (u1)                     (taken by u2 only)
```
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from millrace.console.report import Check
from millrace.testing.world_ledger import WorldTruth
from millrace_apps.clickstream.contracts.events import Click, Consent, Forget
from millrace_apps.clickstream.contracts.messages import CapsBought, CapsGo, Shopping
from millrace_apps.clickstream.evaluation.offer_checks import Consents, check_purchases_after_logins
from millrace_apps.clickstream.processes.offer_rules import OfferRule
from millrace_apps.clickstream.processes.persons import Persons
from millrace_apps.clickstream.state.browser_state import VisitorRules
from millrace_apps.clickstream.state.caps import KeptCaps
from millrace_apps.clickstream.state.offers import OUTCOME_MS, OfferBook, Waiting
from millrace_apps.clickstream.state.profiles import Person
from tests.broken import Break, breaks, check_listed, dropped, fails, renamed, stuck, where
from tests.cases import case_count
from tests.unit.apps.clickstream.app_cases import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    START,
    Run,
    click,
    consent,
    keyed,
    shop_chain,
)
from tests.unit.apps.clickstream.test_caps import chain, does, rows, rule, took
from tests.unit.apps.clickstream.test_identity import login

BROWSERS = ("a", "b", "c")
ACCOUNTS = ("u1", "u2")
#: Every search is offered something.
ALWAYS: tuple[OfferRule, ...] = (rule("searched", "search", cap=1_000, cap_within="7d", cool_down="0m"),)
CASES = case_count(1_000)
#: First seed: others than those of CI are played by another one.
FROM = int(os.environ.get("BY_TIME_FROM", "0"))
#: Identity of who was offered something, and when → whether something was bought, which order, when known.
Outcomes = dict[tuple[str, int], tuple[bool, str | None, int]]


def story(draws: random.Random, *, withdraws: bool) -> list[Any]:
    """Searches, orders, logins and logouts, and what ends consent, each at its moment."""
    found, there, at = list[Any](), dict.fromkeys(BROWSERS, ""), 10
    kinds = [*["login"] * 3, "logout", *["search"] * 3, *["purchase"] * 3]
    kinds += ["parts", "silent", "given", "given", "forget"] if withdraws else []
    browsers = BROWSERS[: draws.randrange(2, 4)]
    for number in range(draws.randrange(6, 20)):
        at += draws.choice((2, 300, 20 * SECOND, 4 * MINUTE, 2 * HOUR, 5 * HOUR, 20 * HOUR, 3 * DAY))
        browser, what = draws.choice(browsers), draws.choice(kinds)
        if what in ("parts", "silent", "given"):
            purposes = {"parts": ("personalisation",), "silent": ("marketing",)}.get(what)
            given = ("personalisation", "marketing")
            found.append(consent(at, purposes or given, browser, granted=what == "given"))
            continue
        if what == "forget":
            found.append(Forget(f"f{number}", browser, START + at, "browser"))
            continue
        if what == "login":
            there[browser] = draws.choice(ACCOUNTS)
        named = there[browser] and (what in ("login", "logout") or draws.random() < 0.3)
        fields: dict[str, Any] = {"user_id": there[browser] if named else None}
        if what == "search":
            fields |= {"query": f"q{number}"}
        if what == "purchase":
            fields |= {"order_id": f"o{number}", "amount": 2.0 + number}
        found.append(click(at, what, browser, id=f"e{number}", **fields))
        if what == "logout":
            there[browser] = ""
    return found


# -- a look at everything at once ----------------------------------------------------------------------


class Look:
    """What came of each offer, by asking the whole history about each of them."""

    def __init__(self, events: Iterable[Any], shared: str) -> None:
        self._events = sorted(events, key=lambda e: e.event_time_ms)
        self._shared = shared

    def _of(self, browser: str, after: int = -1, until: int = 1 << 62) -> list[Any]:
        return [
            e for e in self._events
            if getattr(e, "visitor_id", getattr(e, "subject", "")) == browser
            and after < e.event_time_ms <= until
        ]  # fmt: skip

    def allows(self, browser: str, at: int, purpose: str) -> bool:
        """Whether a purpose is allowed in a browser at a moment: everything is from the begin on."""
        said = [e for e in self._of(browser, until=at) if not isinstance(e, Click)]
        said = [e for e in said if isinstance(e, Forget) or purpose in e.purposes]
        return not said or (isinstance(said[-1], Consent) and said[-1].granted)

    def offers_at(self, browser: str, at: int) -> bool:
        """Whether something may be offered in a browser at a moment."""
        return all(self.allows(browser, at, one) for one in ("personalisation", "marketing"))

    def ends(self, browser: str, after: int) -> int:
        """When next everything that is known of a browser goes."""
        found = [
            e.event_time_ms for e in self._of(browser, after)
            if isinstance(e, Forget)
            or (isinstance(e, Consent) and not e.granted and "personalisation" in e.purposes
                and self.allows(browser, e.event_time_ms - 1, "personalisation"))
        ]  # fmt: skip
        return min(found, default=1 << 62)

    def owner(self, browser: str, at: int) -> str:
        """Who is there at a moment, empty for nobody."""
        who = ""
        for event in self._of(browser, until=at):
            if isinstance(event, Forget) or (isinstance(event, Consent) and not event.granted
                                             and "personalisation" in event.purposes):  # fmt: skip
                who = ""
            elif isinstance(event, Click) and self.allows(browser, event.event_time_ms, "personalisation"):
                who = event.user_id or who
                if event.event_type == "logout" and self._shared == "split" and event.event_time_ms < at:
                    who = ""
        return who

    def person(self, event: Click) -> str:
        who = self.owner(event.visitor_id, event.event_time_ms)
        return f"u:{who}" if who else f"v:{event.visitor_id}"

    def taker(self, browser: str, at: int) -> tuple[str, int, int]:
        """Which account is next in a browser, from when on, and until when the browser is that one's."""
        end = self.ends(browser, at)
        named = [
            e for e in self._of(browser, at, end)
            if isinstance(e, Click) and e.user_id
            and self.allows(browser, e.event_time_ms, "personalisation")
        ]  # fmt: skip
        if not named:
            return "", 0, 0
        who, since = str(named[0].user_id), named[0].event_time_ms
        others = [e.event_time_ms for e in named if e.user_id != who]
        return who, since, min([end, *(others if self._shared == "last" else [])])

    def outcomes(self) -> Outcomes:
        bought = [e for e in self._events if isinstance(e, Click) and e.event_type == "purchase"]
        bought = [e for e in bought if self.offers_at(e.visitor_id, e.event_time_ms)]
        found: Outcomes = {}
        for offer in self._events:
            if not isinstance(offer, Click) or offer.event_type != "search":
                continue
            at, browser, person = offer.event_time_ms, offer.visitor_id, self.person(offer)
            if not self.offers_at(browser, at):
                continue
            until, mine = at + OUTCOME_MS, [e for e in bought if self.person(e) == person]
            if person.startswith("v:"):
                end = self.ends(browser, at)
                who, since, parted = self.taker(browser, at)
                mine += [
                    e for e in bought
                    if who and self.person(e) == f"u:{who}" and since <= e.event_time_ms < parted
                    and self.offers_at(browser, e.event_time_ms)
                ]  # fmt: skip
                mine = [e for e in mine if e.event_time_ms < end]
            first = min((e for e in mine if at < e.event_time_ms <= until), key=_at, default=None)
            if first is not None:
                found[person, at] = True, first.order_id, first.event_time_ms
            elif not person.startswith("v:") or end > until:
                found[person, at] = False, None, until
        return found


def _at(event: Click) -> int:
    return event.event_time_ms


# -- the app -------------------------------------------------------------------------------------------


def played(
    batches: Sequence[Sequence[Any]], shared: str, bound: int, restarts: random.Random, *, in_order: bool
) -> Run:
    """What comes of batches, with restarts between some of them."""
    rules = VisitorRules(shared=shared, rate_events=1_000, in_order=in_order)  # type: ignore[arg-type]
    running = shop_chain(rules, ALWAYS, bound_ms=bound, holdout=0.0, merges_caps=True)
    found = list[Any]()
    for batch in batches:
        found += running.run_batch(keyed(*batch))
        if restarts.random() < 0.1:
            running.restart()
    return Run([*found, *running.drain()], running.is_empty())


def cut(draws: random.Random, events: Sequence[Any], bound: int) -> list[list[Any]]:
    """The events in any order within the bound, in any cut, some of them again."""
    found: list[list[Any]] = [[consent(0, visitor=browser) for browser in BROWSERS]]
    rest = sorted(events, key=lambda e: (e.event_time_ms + draws.uniform(0, bound), draws.random()))
    again = [e for e in rest if isinstance(e, Click)]
    rest += draws.sample(again, min(2, len(again)))
    while rest:
        size = draws.choice((1, 2, 3, 7, 100))
        found.append(rest[:size])
        rest = rest[size:]
    return found


def told(run: Run) -> Outcomes:
    """What the app says came of each offer."""
    made = {o["offer_id"]: (o["person"], o["at_ms"]) for o in run.rows("main")}
    rows = run.rows("outcomes")
    found = {made[o["offer_id"]]: (o["converted"], o["order_id"], o["decided_ms"]) for o in rows}
    assert len(found) == len(rows)  # each is told once
    return found


@pytest.mark.parametrize("block", range(5))
def test_an_offer_before_a_login_is_decided_by_what_the_account_buys_by_the_times_of_events(
    block: int,
) -> None:
    """Held to a look at all events at once, for any order within the bound, cut, repeats and restarts."""
    by_accounts = 0
    for seed in range(FROM + block * CASES // 5, FROM + (block + 1) * CASES // 5):
        draws = random.Random(seed)
        withdraws = draws.random() < 0.5
        shared, bound = draws.choice(("split", "split", "last")), draws.choice((0, SECOND, HOUR))
        events = story(draws, withdraws=withdraws)
        # What ends consent acts when it is read, so its order is kept; or all is handled in order of time.
        run = played(cut(draws, events, bound), shared, bound, draws, in_order=withdraws)
        wanted = Look(events, shared).outcomes()
        assert told(run) == wanted, seed
        assert run.empty, seed
        orders = {e.order_id: Look(events, shared).person(e) for e in events if _buys(e)}
        by_accounts += sum(
            person.startswith("v:") and bought and orders[order].startswith("u:")
            for (person, _), (bought, order, _) in wanted.items()
        )
    assert by_accounts >= CASES // 100  # it is what this is about


def _buys(event: Any) -> bool:
    return isinstance(event, Click) and event.event_type == "purchase"


# -- single cases --------------------------------------------------------------------------------------


def bought_after(
    *events: Any, merges: bool = True, shared: Any = "split"
) -> dict[str, tuple[bool, str | None]]:
    """Who was offered something → whether something was bought, and which order."""
    running = shop_chain(VisitorRules(shared=shared), ALWAYS, holdout=0.0, merges_caps=merges)
    found = list[Any]()
    for event in (*(consent(n, visitor=b) for n, b in enumerate(BROWSERS)), *events):
        found += running.run_batch(keyed(event))
    run = Run([*found, *running.drain()], running.is_empty())
    people = {o["offer_id"]: o["person"] for o in run.rows("main" if merges else "offers")}
    return {people[o["offer_id"]]: (o["converted"], o["order_id"]) for o in run.rows("outcomes")}


OFFERED = click(10, "search", "a", query="red")
COMES = login(MINUTE, "u1", visitor="a")
ELSEWHERE = login(2 * MINUTE, "u1", visitor="b")


def buys(at: int, visitor: str, user: str | None = None, order: str = "o1") -> Click:
    return click(at, "purchase", visitor, order_id=order, amount=5.0, user_id=user)


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([COMES, ELSEWHERE, buys(HOUR, "b")], (True, "o1")),
        ([COMES, buys(HOUR, "a")], (True, "o1")),
        ([buys(MINUTE, "a", "u1")], (True, "o1")),  # the order is the login
        ([buys(MINUTE - 2, "a"), COMES], (True, "o1")),  # nobody's, as before
        ([ELSEWHERE, buys(HOUR, "b"), login(2 * HOUR, "u1", visitor="a")], (False, None)),  # not yet theirs
        ([COMES, ELSEWHERE, buys(OUTCOME_MS + 11, "b")], (False, None)),
        ([COMES, ELSEWHERE, buys(OUTCOME_MS + 10, "b")], (True, "o1")),
        ([COMES, login(2 * MINUTE, "u2", visitor="b"), buys(HOUR, "b")], (False, None)),
        ([COMES, ELSEWHERE, consent(3 * MINUTE, ("marketing",), "b", granted=False), buys(HOUR, "b")],
         (False, None)),
        ([COMES, ELSEWHERE, consent(3 * MINUTE, ("marketing",), "a", granted=False), buys(HOUR, "b")],
         (False, None)),
        ([COMES, ELSEWHERE, consent(3 * MINUTE, ("marketing",), "c", granted=False, user="u1"),
          buys(HOUR, "b")], (False, None)),
        ([COMES, click(3 * MINUTE, "logout", "a"), login(4 * MINUTE, "u2", visitor="a"),
          login(5 * MINUTE, "u2", visitor="b"), buys(HOUR, "b")], (False, None)),  # the first one's
    ],
    ids=["elsewhere", "there", "by the order itself", "nobody's order", "an order before the login",
         "too late", "at the last moment", "another account", "not allowed where it is bought",
         "not allowed where it was offered", "taken back with the account", "the account after it"],
)  # fmt: skip
def test_of_an_offer_before_a_login_an_order_decides(
    events: list[Any], outcome: tuple[bool, str | None]
) -> None:
    assert bought_after(OFFERED, *events)["v:a"] == outcome


@pytest.mark.parametrize(("shared", "outcome"), [("split", (True, "o1")), ("last", (False, None))])
def test_by_the_last_one_a_browser_that_is_anothers_asks_its_person_no_more(
    shared: str, outcome: tuple[bool, str | None]
) -> None:
    another = login(10 * MINUTE, "u2", visitor="a")
    assert bought_after(OFFERED, COMES, ELSEWHERE, another, buys(HOUR, "b"), shared=shared)["v:a"] == outcome


def test_where_caps_are_not_merged_nothing_is_other_than_before() -> None:
    assert bought_after(OFFERED, COMES, ELSEWHERE, buys(HOUR, "b"), merges=False)["v:a"] == (False, None)


def test_who_parts_from_a_browser_and_comes_back_decides_what_is_offered_since() -> None:
    """Taken back is taken back: it is not theirs again by another login."""
    parts = [consent(2 * HOUR, ("personalisation",), "a", granted=False), consent(3 * HOUR, visitor="a")]
    again = [click(4 * HOUR, "search", "a", query="blue"), login(5 * HOUR, "u1", visitor="a")]
    events = [COMES, ELSEWHERE, *parts, *again, buys(6 * HOUR, "b")]
    running = shop_chain(VisitorRules(), ALWAYS, holdout=0.0, merges_caps=True)
    found = running.run_batch(keyed(*(consent(n, visitor=b) for n, b in enumerate(BROWSERS))))
    for event in (OFFERED, *events):
        found += running.run_batch(keyed(event))
    run = Run([*found, *running.drain()], running.is_empty())
    made = {o["offer_id"]: o["at_ms"] - START for o in run.rows("main")}
    # What was offered before the withdrawal went with it.
    assert [(made[o["offer_id"]], o["order_id"]) for o in run.rows("outcomes")] == [(4 * HOUR, "o1")]


def test_a_purchase_decides_for_the_logins_that_it_names_alone() -> None:
    events = [
        does(0, "v:b", "search"),
        CapsGo("v:b", START + 10, "u:a"),
        does(HOUR, "v:b", "search"),
        CapsGo("v:b", START + HOUR + 10, "u:c"),
        CapsBought("v:b", START + 2 * HOUR, "p", "o1", 500, [START + HOUR + 10]),
        CapsBought("v:b", START + 3 * HOUR, "q", "o2", 700, [START + 10]),
    ]
    found = took(chain(ALWAYS), events, batch=1)
    made = {o["offer_id"]: o["at_ms"] - START for o in rows(found, "main")}
    told = {made[o["offer_id"]]: (o["order_id"], o["cents"]) for o in rows(found, "outcomes")}
    assert told == {HOUR: ("o1", 500), 0: ("o2", 700)}


def test_what_waits_in_a_checkpoint_of_before_is_read_and_decided_as_before() -> None:
    stored = msgspec.msgpack.encode(["o", "r", "offer", START, "mobile", "email"])
    waits = msgspec.msgpack.decode(stored, type=Waiting)
    state = KeptCaps(waiting=[waits])
    other = CapsBought("v:b", START + HOUR, "p", "o1", 5, [START + 1])
    assert OfferBook.bought(state, other) == []
    (outcome,) = OfferBook.bought(state, Shopping("v:b", "purchase", START + HOUR, subject="o2", cents=5))
    assert (outcome.order_id, outcome.device) == ("o2", "mobile")
    person = msgspec.msgpack.encode([{"b": START}])
    assert msgspec.msgpack.decode(person, type=Person).came == {}


def test_so_many_browsers_and_logins_are_known_and_no_longer_than_an_offer_waits() -> None:
    person = Person()
    for n in range(40):
        person.comes("often", START + n * MINUTE, 8 * DAY)
    assert person.came == {"often": [START + n * MINUTE for n in range(8, 40)]}
    for n in range(20):
        person.comes(f"b{n:02}", START + DAY + n, 8 * DAY)
    assert sorted(person.came) == [f"b{n:02}" for n in range(4, 20)]
    person.comes("b19", START + 9 * DAY + 30, 8 * DAY)
    assert person.came == {"b19": [START + 9 * DAY + 30]}


def test_without_caps_over_all_browsers_a_person_remembers_no_logins() -> None:
    assert not Persons()._merges_caps
    running = shop_chain(VisitorRules(), ALWAYS, holdout=0.0)
    found = running.run_batch(keyed(consent(0, visitor="a"), OFFERED, COMES, buys(HOUR, "a")))
    found += running.drain()
    assert not [e for e in found if b"caps-purchase" in e.payload]


# -- the check of the demo -----------------------------------------------------------------------------

#: Bought elsewhere, not at all, and in the browser itself; of what two persons use nothing is compared.
MADE = [
    {"offer_id": f"o{n}", "person": f"v:{b}", "visitor_id": b, "at_ms": START + n}
    for n, b in enumerate("abcd", 1)
]
CAME = [{"visitor_id": b, "at_ms": START + MINUTE, "change": "merged"} for b in "abcd"]
ALLOWED = [{"visitor_id": b, "at_ms": START, "in_force": ["personalisation", "marketing"]} for b in "abcdx"]
OUTCOMES = [
    {"offer_id": "o1", "converted": True, "order_id": "first", "cents": 500},
    {"offer_id": "o2", "converted": False, "order_id": None, "cents": 0},
    {"offer_id": "o3", "converted": True, "order_id": "own", "cents": 700},
    {"offer_id": "o4", "converted": True, "order_id": "first", "cents": 500},
]


def truth(kind: str, entity: str, at: int, **detail: Any) -> WorldTruth:
    return WorldTruth(f"{kind}-{entity}", kind, entity, "", detail, [], [], START + at, START + at)


ORDERS = [
    truth("attribution", "second", 2 * HOUR, amount_cents=900, visitors=["a", "x"]),
    truth("attribution", "first", HOUR, amount_cents=500, visitors=["a", "x"]),
    truth("attribution", "own", HOUR, amount_cents=700, visitors=["c"]),
    truth("attribution", "too late", 8 * DAY, amount_cents=700, visitors=["b"]),
]
LOGINS = [truth("identity", b, MINUTE, user_id="u", shared=b == "d") for b in "abcdx"]


def compared(one: Break | None = None, answers: Sequence[Any] = (), **options: Any) -> Check:
    tables = {"outcomes": OUTCOMES} if one is None else one.applied({"outcomes": OUTCOMES})
    told = Consents([*ALLOWED, *answers])
    return check_purchases_after_logins(
        tables["outcomes"], MADE, ORDERS, LOGINS, told, CAME, until_ms=START + 9 * DAY, **options
    )


BROKEN = breaks(
    "purchases after a login",
    dropped={"outcomes": dropped},
    never_converted={"outcomes": stuck("converted", False)},
    of_other_orders={"outcomes": renamed("order_id")},
    values_stuck={"outcomes": stuck("cents", 1)},
    by_whoever_buys={"outcomes": where(lambda row: row["offer_id"] == "o2", stuck("converted", True))},
)


@pytest.mark.parametrize("one", BROKEN, ids=str)
def test_the_check_of_purchases_after_a_login_fails_where_they_decide_nothing(one: Break) -> None:
    assert fails([compared(one)], one.check)


def test_the_check_of_purchases_after_a_login_compares_what_is_known_for_certain() -> None:
    check = compared()
    assert check.ok
    assert check.compared == 2
    withdrawn = [{"visitor_id": "x", "at_ms": START + 2 * MINUTE, "in_force": []}]
    assert compared(answers=withdrawn).compared == 1
    assert compared(erased=frozenset({"v:c"})).compared == 1
    section = "`millrace demo clickstream -s offers.merge_caps=true` besides"
    check_listed(section, [check.name], BROKEN)
