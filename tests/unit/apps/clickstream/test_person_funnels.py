"""Funnels of persons over sessions and browsers: held to a look at all events, in any order and cut."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import msgspec
import pytest

from millrace.host.memory_chain import MemoryChain
from millrace.testing import TestDriver
from millrace.topology import Link, Topology
from millrace_apps.clickstream.contracts.events import Click, Consent, Erasure, Forget
from millrace_apps.clickstream.contracts.messages import ErasePerson, Marked
from millrace_apps.clickstream.processes.funnels import Funnel
from millrace_apps.clickstream.processes.person_funnels import MOST_BROWSERS, KeptWays, ways
from millrace_apps.clickstream.processes.persons import Persons
from millrace_apps.clickstream.processes.visitor import visitors
from millrace_apps.clickstream.settings import ClickstreamSettings, FunnelSettings
from millrace_apps.clickstream.state.browser_state import BrowserState, VisitorRules
from millrace_apps.clickstream.state.marks import MOST_MARKS, BrowserMarks
from tests.cases import case_count
from tests.unit.apps.clickstream.app_cases import DAY, HOUR, MINUTE, START, Run, click, consent, keyed

SEEDS = case_count(400, "FUNNEL_SEEDS")
WITHIN = 2 * HOUR
STEPS = ("item", "cart", "purchase")
FUNNELS = (Funnel("buying", STEPS, WITHIN), Funnel("paying", ("cart", "payment", "purchase"), HOUR))
RULES = VisitorRules(ways=FUNNELS, repeats_ms=30 * MINUTE)
ACCOUNTS = ("u1", "u2")


def chain(bound_ms: int = 0, rules: VisitorRules = RULES) -> MemoryChain:
    persons = Persons(funnels=rules.ways, lateness_ms=HOUR)
    wired = Topology({}, (Link(visitors(rules)),)).key_by("person").process(persons)
    return MemoryChain(wired, out_of_orderness_ms=bound_ms)


def run(events: Sequence[Any], cuts: random.Random | None = None, bound_ms: int = 0) -> Run:
    """Run events; what persons ask of browsers comes back with the next batch, as over its topics."""
    target, found, back = chain(bound_ms), [], list[Any]()
    kinds = {"consents": msgspec.json.Decoder(Consent), "forget": msgspec.json.Decoder(Forget)}
    at = 0
    while at < len(events) or back:
        size = 1_000 if cuts is None else cuts.choice((1, 1, 2, 5, 20))
        emitted = target.run_batch(keyed(*back, *events[at : at + size]))
        back = [kinds[e.output].decode(e.payload) for e in emitted if e.output in kinds]
        found += emitted
        at += size
    return Run([*found, *target.drain()], False)


def table(one: Run) -> dict[tuple[str, str, int], tuple[Any, ...]]:
    rows = one.table("person_funnels", "funnel", "person", "way")
    return {
        (r["funnel"], r["person"], r["way"]): (
            r["cohort_ms"], r["begin_ms"], r["end_ms"], r["reached"], tuple(r["step_ms"]), r["browsers"],
        )
        for r in rows
    }  # fmt: skip


# -- another way ----------------------------------------------------------------------------------------


def furthest(funnel: Funnel, marks: dict[str, list[int]], first: int) -> tuple[int, ...]:
    """The most steps from a beginning, the earliest ones: of all choices of times."""
    best: tuple[int, ...] = (first,)
    for length in range(2, len(funnel.steps) + 1):
        times = [[t for t in marks.get(s, ()) if first <= t <= first + funnel.within_ms]
                 for s in funnel.steps[1:length]]  # fmt: skip
        chosen = [(first, *c) for c in product(*times) if list(c) == sorted(c)]
        if chosen:
            best = min(chosen)
    return best


def all_ways(funnel: Funnel, marks: dict[str, list[int]]) -> list[tuple[int, int, tuple[int, ...]]]:
    firsts, found, after = sorted(marks.get(funnel.steps[0], [])), [], -1
    while firsts := [t for t in firsts if t > after]:
        begin = firsts[0]
        tried = [furthest(funnel, marks, f) for f in firsts if f <= begin + funnel.within_ms]
        best = max(tried, key=lambda done: (len(done), -done[0]))
        whole = len(best) == len(funnel.steps)
        after = best[-1] if whole else max(begin + funnel.within_ms, best[-1])
        found.append((begin, after, best))
    return found


@dataclass
class Story:
    """What somebody did in some browsers, and what is true of it."""

    events: list[Any] = field(default_factory=list)
    clicks: list[Click] = field(default_factory=list)
    #: Browser → since when nothing is allowed, or all is: moment and which.
    said: dict[str, list[tuple[int, bool]]] = field(default_factory=lambda: defaultdict(list))
    erased: dict[str, int] = field(default_factory=dict)

    def told(self) -> dict[tuple[str, str, int], tuple[Any, ...]]:
        """The rows, by a look at all events."""
        marks: dict[str, dict[str, set[tuple[str, int]]]] = defaultdict(lambda: defaultdict(set))
        linked: dict[str, set[str]] = defaultdict(set)
        for browser in self.said:
            for person, step, at in self._of(browser, linked):
                marks[person][browser].add((step, at))
        for user, when in self.erased.items():
            marks.pop(f"u:{user}", None)
            for browser in linked[user]:
                marks.pop(f"v:{browser}", None)
                for own in marks.values():
                    own[browser] = {m for m in own[browser] if m[1] <= when - WITHIN}
        found = {}
        for person, own in marks.items():
            for funnel in FUNNELS:
                every: dict[str, list[int]] = {
                    step: sorted({t for m in own.values() for s, t in m if s == step})
                    for step in funnel.steps
                }
                made = all_ways(funnel, every)
                for number, (begin, end, done) in enumerate(made, 1):
                    there = {b for b, m in own.items() if {*zip(funnel.steps, done, strict=False)} & m}
                    gaps = tuple(b - a for a, b in pairwise(done))
                    row = (made[0][0], begin, end, len(done), gaps, len(there))
                    found[funnel.name, person, number] = row
        return found

    def _of(self, browser: str, linked: dict[str, set[str]]) -> list[tuple[str, str, int]]:
        """Person, step and time of what was done in a browser, and may be known."""
        ends = [at for at, granted in self.said[browser] if not granted]
        found: list[tuple[str, str, int]] = []
        for begin, end in zip([0, *ends], [*ends, 1 << 62], strict=True):
            since = [at for at, granted in self.said[browser] if granted and begin <= at < end]
            if not since:
                continue
            own = [c for c in self.clicks if c.visitor_id == browser and since[0] < c.event_time_ms < end]
            named = [(c.event_time_ms, c.user_id) for c in own if c.user_id]
            gone = [c.event_time_ms for c in own if c.event_type == "logout"]
            for _, user in named:
                linked[user].add(browser)
            for one in own:
                step = {"page_view": "item", "add_to_cart": "cart", "checkout": "payment",
                        "purchase": "purchase"}.get(one.event_type)  # fmt: skip
                if step is None:
                    continue
                at = one.event_time_ms
                before = [(t, u) for t, u in named if t <= at]
                person = f"v:{browser}"
                if before and not any(before[-1][0] <= t < at for t in gone):
                    person = f"u:{before[-1][1]}"
                elif later := [(t, u) for t, u in named if at < t <= at + WITHIN]:
                    person = f"u:{later[0][1]}"
                if end < 1 << 62 and (at > end - WITHIN or person.startswith("v:")):
                    continue  # it went with the consent
                found.append((person, step, at))
        return found


def story(draws: random.Random) -> Story:
    """Some browsers, some accounts, a day or two; consent may go and come, an account be forgotten."""
    told = Story()
    browsers = ("v1", "v2", "v3")[: draws.randint(1, 3)]
    for browser in browsers:
        told.events.append(consent(0, visitor=browser))
        told.said[browser].append((START, True))
    at, there = HOUR, dict.fromkeys(browsers)
    for number in range(draws.randrange(4, 36)):
        at += draws.choice((40_001, 3 * MINUTE, 9 * MINUTE, 31 * MINUTE, 70 * MINUTE, 5 * HOUR))
        browser = draws.choice(browsers)
        if draws.random() < 0.04:
            at += 4 * HOUR  # answers come by another topic: when all before is settled
            granted = not told.said[browser][-1][1]
            event = consent(at, visitor=browser, granted=granted)
            told.events.append(event)
            told.said[browser].append((START + at, granted))
            at += HOUR
            there[browser] = None
            continue
        kind = draws.choice(
            ("page_view", "page_view", "add_to_cart", "checkout", "purchase", "login", "logout")
        )
        if kind == "login":
            there[browser] = draws.choice(ACCOUNTS)
        if kind == "logout" and not told.said[browser][-1][1]:
            continue
        names = there[browser] if kind in ("login", "logout") or draws.random() < 0.5 else None
        more: dict[str, Any] = {}
        if kind == "purchase":
            more = {"order_id": f"o{number}", "amount": 1.0}
        elif kind == "checkout":
            more = {"step": "payment", "page_type": "checkout"}
        elif kind != "logout":
            more = {"item_id": "i1", "category": "c", "page_type": "item"}
        one = click(at, kind, browser, id=f"e{number}", user_id=names, **more)
        if kind == "logout":
            there[browser] = None
        told.events.append(one)
        told.clicks.append(one)
    # Whose a browser stays that somebody had left before consent went is another's concern.
    if draws.random() < 0.4 and all(len(said) == 1 for said in told.said.values()):
        user = draws.choice(ACCOUNTS)
        at += HOUR
        told.events.append(Erasure(f"r{at}", user, START + at))
        told.erased[user] = START + at
    return told


@pytest.mark.parametrize("block", range(4))
def test_ways_are_what_a_look_at_all_events_says_in_any_order_and_cut(block: int) -> None:
    size, rows, deleted = SEEDS // 4, 0, 0
    for seed in range(block * size, block * size + size):
        draws = random.Random(seed)
        told = story(draws)
        late = draws.choice((0, MINUTE, 20 * MINUTE))
        came = sorted(told.events, key=lambda e: e.event_time_ms + draws.randint(0, late))
        doubled = [one for one in came for _ in range(1 + (draws.random() < 0.05))]
        found = run(doubled, draws, bound_ms=draws.choice((0, late)))
        assert table(found) == told.told(), seed
        rows += len(told.told())
        deleted += sum(r["deleted"] for r in found.rows("person_funnels"))
    assert rows > 3 * size
    assert deleted > size // 20


def test_a_login_that_comes_late_takes_what_another_seemed_to_take() -> None:
    """Item · ... · login u2 (late) · login u1, which came first, long after the item."""
    item, after = click(1, item_id="a"), click(100 * MINUTE, item_id="b", user_id="u1")
    late = click(90 * MINUTE, "login", user_id="u2")
    for came in ((late, after), (after, late)):
        told = run([consent(0), item, *came], OneByOne(1))
        assert ("u:u2", 1, 1, 1) in way(told)


# -- what comes late, is told again or is forgotten -------------------------------------------------------


def test_a_row_that_went_comes_again_by_what_is_dated_before_it() -> None:
    """u1 was at v1 until ten minutes before the item; the logout comes last."""
    item, login = click(10 * HOUR, item_id="a"), click(10 * HOUR - 20 * MINUTE, "login", user_id="u1")
    out = click(10 * HOUR - 10 * MINUTE, "logout", user_id="u1")
    for came in ((login, out, item), (item, login, out)):
        told = run([consent(0), *came], OneByOne(1), bound_ms=HOUR)
        assert way(told) == [("v:v1", 1, 1, 1)]


def test_an_account_whose_rows_went_has_one_by_another_browser_that_is_dated_before() -> None:
    """As above, and then an item of u1's at v2 of half an hour before comes."""
    item, login = click(10 * HOUR, item_id="a"), click(10 * HOUR - 20 * MINUTE, "login", user_id="u1")
    out = click(10 * HOUR - 10 * MINUTE, "logout", user_id="u1")
    other = click(10 * HOUR - 28 * MINUTE, "page_view", "v2", item_id="b", user_id="u1")
    for came in ((other, login, out, item), (login, item, out, other)):
        told = run([consent(0), consent(0, visitor="v2"), *came], OneByOne(1), bound_ms=HOUR)
        assert way(told) == [("u:u1", 1, 1, 1), ("v:v1", 1, 1, 1)]


def test_a_logout_that_comes_before_its_login_ends_it() -> None:
    item, login = click(2 * MINUTE, item_id="a"), click(1, "login", user_id="u1")
    out = click(MINUTE, "logout")
    for came in ((login, out, item), (out, login, item)):
        assert way(run([consent(0), *came], OneByOne(1), bound_ms=HOUR)) == [("v:v1", 1, 1, 1)]


@pytest.mark.parametrize("later", [10 * MINUTE, 9 * HOUR])
def test_accounts_keep_no_name_of_a_browser_that_is_forgotten(later: int) -> None:
    """u1 was at v1-gone and v2; v1-gone is forgotten soon, or when all it did is long ago."""
    gone = "v1-gone"
    events = [consent(0, visitor=gone), consent(0, visitor="v2"), click(1, "login", gone, user_id="u1")]
    events += [click(MINUTE, "page_view", gone, item_id="a"), click(2 * MINUTE, "login", "v2", user_id="u1")]
    events += [
        click(HOUR + MINUTE, "page_view", "v2", item_id="a"),
        Forget("r1", gone, START + MINUTE + later),
    ]
    target = chain()
    for event in events:
        target.run_batch(keyed(event))
    for event in (click(10 * HOUR, "page_view", "v2", item_id="b"), click(12 * HOUR, visitor="v3")):
        target.run_batch(keyed(event))
    kept = target.snapshot()
    # As keys the lists of what was forgotten have it for 30 days, and nothing else.
    assert kept.count(gone.encode()) == 2
    assert b"u:u1" in kept


def test_what_an_account_that_is_forgotten_had_done_is_not_kept_again() -> None:
    """u1 at v1 and, after the erasure, at v2; v1 tells of all it knows before it hears of the erasure."""
    driver = TestDriver(Persons(funnels=FUNNELS, lateness_ms=HOUR))
    driver.send_batch([("u:u1", START + 5 * HOUR, ErasePerson("u:u1", START + 5 * HOUR, "r1"))])
    before = {"item": [START + HOUR], "cart": [START + 6 * HOUR]}
    told = Marked("u:u1", START + 6 * HOUR, "v1", before, 0, START + 6 * HOUR)
    driver.send_batch([("u:u1", START + 6 * HOUR, told)])
    state = driver.state("u:u1")
    assert state is not None
    assert state["ways"][1].by["v1"][1] == {"cart": [START + 6 * HOUR]}


def test_a_withdrawal_that_is_told_again_takes_nothing_that_was_done_since() -> None:
    kept, funnel = KeptWays(), FUNNELS[0]
    kept.take("v1", 1, 0, {"item": [START + HOUR, START + DAY, START + 2 * DAY, START + 9 * DAY]})
    kept.forget_until(START + 2 * HOUR)
    kept.settle((funnel,), START + 5 * DAY, kept.marks())
    assert kept.over["buying"].number == 2
    kept.forget_until(START + 2 * HOUR)
    assert kept.over["buying"].number == 2
    kept.forget_until(START + DAY)
    assert kept.over == {}


def test_of_two_funnels_of_one_name_neither_could_be_told() -> None:
    FunnelSettings(name="p", of="persons")
    told = (FunnelSettings(name="p", of="persons"), FunnelSettings(name="p"))
    assert len(ClickstreamSettings(funnels=told).visitor_rules().ways) == 1
    with pytest.raises(ValueError, match="two funnels of persons are called 'p'"):
        ClickstreamSettings(funnels=(*told, told[0]))


# -- what a row is ----------------------------------------------------------------------------------------


class OneByOne(random.Random):
    """Each event is a batch of its own."""

    def choice(self, seq: Any) -> Any:
        """Return the least."""
        return min(seq)


def way(told: Run) -> list[tuple[Any, ...]]:
    rows = told.table("person_funnels", "funnel", "person", "way")
    return sorted(
        (r["person"], r["way"], r["reached"], r["browsers"]) for r in rows if r["funnel"] == "buying"
    )


def test_who_looks_on_the_phone_and_buys_on_the_laptop_has_one_way_over_two_browsers() -> None:
    """v1: item ... login · v2: ... login, cart, purchase."""
    phone = [consent(0), click(1, item_id="a"), click(MINUTE, "login", user_id="u1")]
    cart = click(HOUR + 1, "add_to_cart", "v2", item_id="a", user_id="u1")
    buys = click(HOUR + 2, "purchase", "v2", order_id="o1", amount=1.0, user_id="u1")
    laptop = [consent(0, visitor="v2"), click(HOUR, "login", "v2", user_id="u1"), cart, buys]
    assert way(run([*phone, *laptop])) == [("u:u1", 1, 3, 2)]
    assert way(run([phone[0], laptop[0], *phone[1:2]])) == [("v:v1", 1, 1, 1)]


def test_a_way_that_is_done_stays_and_another_begins_with_the_next_first_step() -> None:
    first = [click(1, item_id="a"), click(2, "add_to_cart", item_id="a")]
    first += [
        click(3, "purchase", order_id="o1", amount=1.0),
        click(4, "purchase", order_id="o2", amount=1.0),
    ]
    again = [click(2 * DAY, item_id="b"), click(2 * DAY + 1, "add_to_cart", item_id="b")]
    told = run([consent(0), *first, *again])
    assert way(told) == [("v:v1", 1, 3, 1), ("v:v1", 2, 2, 1)]
    rows = [r for r in told.table("person_funnels", "funnel", "person", "way") if r["funnel"] == "buying"]
    assert {r["cohort_ms"] for r in rows} == {START + 1}
    assert [r["end_ms"] - START for r in sorted(rows, key=lambda r: r["way"])] == [3, 2 * DAY + WITHIN]


def test_an_order_that_an_earlier_event_tells_of_is_bought_then() -> None:
    """Item · cart · purchase o1 (late) ... purchase o1 told again, came first."""
    before = [consent(0), click(1, item_id="a"), click(2, "add_to_cart", item_id="a")]
    before += [click(6 * MINUTE, item_id="b"), click(7 * MINUTE, "add_to_cart", item_id="b")]
    late = click(5, "purchase", id="p1", order_id="o1", amount=1.0)
    told_again = click(9 * MINUTE, "purchase", id="p2", order_id="o1", amount=1.0)
    tables = [
        table(run([*before, *came], OneByOne(1), bound_ms=HOUR))
        for came in ((late, told_again), (told_again, late))
    ]
    assert tables[0] == tables[1]
    assert tables[0]["buying", "v:v1", 1][2] == START + 5
    assert tables[0]["buying", "v:v1", 2][3] == 2  # the order was bought once


def test_a_bot_goes_no_way_and_without_consent_nobody_does() -> None:
    bot = [click(n, item_id="a", user_agent="Googlebot/2.1") for n in (1, 2)]
    assert way(run([consent(0), *bot])) == []
    assert way(run([click(1, item_id="a")])) == []


def test_a_login_later_than_the_funnel_lasts_takes_nothing_along() -> None:
    def came(at: int) -> list[tuple[Any, ...]]:
        return way(run([consent(0), click(1, item_id="a"), click(at, "login", user_id="u1")]))

    assert came(WITHIN) == [("u:u1", 1, 1, 1)]
    assert came(WITHIN + 2) == [("v:v1", 1, 1, 1)]


def test_marks_are_bounded_and_go_with_time() -> None:

    known, marks = BrowserState(), BrowserMarks(FUNNELS, "split")
    for number in range(5_000):
        marks.take(known, START + number * 1_000, ("item", "cart")[number % 2])
    assert len(known.marks) == MOST_MARKS
    marks.settle(known, START + DAY, START + DAY, "v1")
    assert known.marks == []
    kept = KeptWays()
    for number in range(100):
        kept.take(f"v{number}", 1, 0, {"item": [number]})
    assert len(kept.by) <= MOST_BROWSERS + 1
    assert kept.marks()["item"] == list(range(100))


def test_of_several_tellings_of_a_browser_the_newest_holds() -> None:
    kept = KeptWays()
    kept.take("v1", 2, 0, {"item": [5, 9]})
    kept.take("v1", 1, 0, {"item": [1]})
    assert kept.marks() == {"item": [5, 9]}
    kept.take("v1", 3, 5, {"cart": [7]})  # of what was up to 5 nothing is said
    assert kept.marks() == {"item": [5], "cart": [7]}


def test_what_is_over_is_a_number() -> None:
    kept, funnel = KeptWays(), FUNNELS[0]
    times = [number * 3 * HOUR for number in range(50)]
    kept.take("v1", 1, 0, {"item": times, "cart": [t + 1 for t in times]})
    before = ways(funnel, kept.marks())
    kept.settle((funnel,), times[40], kept.marks())
    over = kept.over["buying"]
    assert len(ways(funnel, kept.marks(), over.end_ms)) + over.number == len(before) == 50
    assert over.number > 35
    assert len(kept.by["v1"][1]["item"]) < 12


def test_funnels_of_persons_are_told_by_the_settings() -> None:
    settings = ClickstreamSettings(funnels=(FunnelSettings(), FunnelSettings(name="p", of="persons")))
    rules = settings.visitor_rules()
    assert [f.name for f in rules.funnels] == ["purchase"]
    assert [f.name for f in rules.ways] == ["p"]
    assert ClickstreamSettings().visitor_rules().ways == ()
