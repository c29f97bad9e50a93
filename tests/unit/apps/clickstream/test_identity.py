"""Whose a browser is when: shared browsers, logouts, what was done before a login, all in any order."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Any

import pytest

from millrace.testing import TestDriver
from millrace_apps.clickstream.contracts.events import Click, Forget
from millrace_apps.clickstream.contracts.messages import Absorb, Activity
from millrace_apps.clickstream.processes.visitor import Visitors
from millrace_apps.clickstream.state.browser_state import VisitorRules
from millrace_apps.clickstream.state.ownership import MOST_RUNS, NOBODY, Mark, Ownership
from tests.cases import case_count, sampled
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
    run_app,
    send,
)

ACCOUNTS = ("u1", "u2", "u3")


# -- the marks by themselves ------------------------------------------------------------------------


def owner_of_all(marks: Sequence[Mark], at_ms: int) -> str:
    """Whose an event is, by a look at all marks."""
    before = [mark for mark in marks if mark[0] <= at_ms]
    if before and max(before)[1]:
        return max(before)[1]
    return _first([mark for mark in marks if mark[0] > at_ms and mark[1]])


def _first(marks: Sequence[Mark]) -> str:
    return sorted(marks)[0][1] if marks else NOBODY


def owner_of_span(marks: Sequence[Mark], start_ms: int, end_ms: int) -> str:
    """Whose a session is, by a look at every moment of it."""
    found = NOBODY
    for at in range(start_ms, end_ms + 1):
        there = [mark for mark in marks if mark[0] == at and mark[1]]
        if there:
            found = max(there)[1]
    if found:
        return found
    before = [mark for mark in marks if mark[0] <= start_ms]
    if before and max(before)[1]:
        return max(before)[1]
    return _first([mark for mark in marks if mark[0] > end_ms and mark[1]])


@pytest.mark.parametrize("block", range(case_count(10)))
def test_who_was_there_is_what_a_look_at_all_marks_says_in_any_order(block: int) -> None:
    for seed in range(block * 1_000, block * 1_000 + 1_000):
        draws = random.Random(seed)
        marks = sorted(
            {(draws.randrange(60), draws.choice((NOBODY, *ACCOUNTS))) for _ in range(draws.randrange(1, 14))}
        )
        bound = draws.choice((0, 5, 15, 60))
        came = sorted(marks, key=lambda mark: (mark[0] + draws.randint(0, bound), draws.random()))
        seen, watermark, told = Ownership(), -1, False
        for mark in came:
            before = {at: seen.owner(at) for at in range(-1, 61)}
            news = seen.see(*mark, watermark)
            told = told or news
            changed = before != {at: seen.owner(at) for at in range(-1, 61)}
            assert news or not changed, seed
            watermark = max(watermark, mark[0] - bound - 1)
        for at in range(-1, 61):
            assert seen.owner(at) == owner_of_all(marks, at), (seed, at)
        start = draws.randrange(60)
        end = draws.randrange(start, 60)
        assert seen.owner_within(start, end) == owner_of_span(marks, start, end), (seed, start, end)
        runs, before_user = {}, NOBODY
        for at in range(60):
            there = [user for moment, user in marks if moment == at]
            if there and max(there) != before_user:
                runs[at] = before_user = max(there)
        assert seen.runs() == runs, seed
        named = [mark for mark in marks if mark[1]]
        assert seen.latest == (named[-1][1] if named else NOBODY), seed


def test_marks_are_bounded_whatever_comes() -> None:
    seen = Ownership()
    for number in range(10_000):
        seen.see(number, f"u{number % 7}", number - 1)
    assert len(seen.marks) <= 2 * MOST_RUNS + 2
    one = Ownership()
    for number in range(10_000):
        one.see(number, "u1", number - 100)
    assert len(one.marks) <= 104
    one.settle(20_000)
    assert (one.base, one.marks) == ("u1", [])


# -- a browser ----------------------------------------------------------------------------------------


def driver(bound: int = 0, **rules: Any) -> TestDriver:
    return TestDriver(Visitors(VisitorRules(**rules)), out_of_orderness_ms=bound)


def doers(target: TestDriver) -> list[str]:
    return [told.person for told in target.values() if isinstance(told, Activity)]


def test_c8_after_a_logout_views_are_nobodys_until_the_next_login() -> None:
    target = driver()
    send(target, consent(0), click(1, "login", user_id="u1"), click(2, item_id="a"))
    send(target, click(3, "logout", user_id="u1"), click(4, item_id="b"), click(5, item_id="c", user_id="u2"))
    target.drain()
    assert doers(target) == ["u:u1", "v:v1", "u:u2"]
    rows = [(r.user_id, r.deleted) for r in target.values("identities")]
    assert rows == [("u1", False), ("u1", True), ("u2", False)]
    changes = [(c.from_ms - START, c.user_id, c.why, c.cause) for c in target.values("owner_changes")]
    assert changes == [
        (1, "u1", "seen", "v1-login-1"),
        (4, None, "logout", "v1-logout-3"),
        (5, "u2", "seen", "v1-page_view-5"),
    ]


def test_by_the_last_one_a_logout_says_nothing() -> None:
    target = driver(shared="last")
    send(target, consent(0), click(1, "login", user_id="u1"), click(2, item_id="a"))
    send(target, click(3, "logout", user_id="u1"), click(4, item_id="b"), click(5, item_id="c", user_id="u2"))
    send(target, click(6, item_id="d"))
    target.drain()
    assert doers(target) == ["u:u1", "u:u1", "u:u2", "u:u2"]
    final = {row.session_id: row.user_id for row in target.values("sessions")}
    assert set(final.values()) == {"u2"}


@pytest.mark.parametrize(("shared", "wanted"), [("split", ["u1", "u2", "u2"]), ("last", ["u2", "u2", "u2"])])
def test_sessions_of_a_shared_browser(shared: str, wanted: list[str]) -> None:
    target = driver(shared=shared)
    send(target, consent(0), click(1, user_id="u1"), click(2, "logout", user_id="u1"))
    send(target, click(1 * HOUR, item_id="a"))  # nobody's, until somebody logs in
    send(target, click(2 * HOUR, user_id="u2"))
    target.drain()
    newest = {row.session_id: row for row in target.values("sessions")}
    assert [r.user_id for r in sorted(newest.values(), key=lambda r: r.start_ms)] == wanted


def test_without_consent_a_login_says_nothing_and_nothing_is_kept_for_one() -> None:
    target = driver()
    send(target, click(1, item_id="a"), click(2, "add_to_cart", item_id="a", cart_id="c1", price=1.0))
    send(target, click(3, "login", user_id="u1"), consent(4), click(5, user_id="u1"))
    assert [told for told in target.values() if isinstance(told, Absorb)] == []
    assert [c.from_ms - START for c in target.values("owner_changes")] == [5]


def test_who_withdraws_consent_leaves_nothing_to_a_later_login() -> None:
    target = driver()
    send(target, consent(0), click(1, item_id="a"), consent(2, granted=False), consent(3))
    send(target, click(4, user_id="u1"))
    assert [told for told in target.values() if isinstance(told, Absorb)] == []


def history(draws: random.Random, visitor: str) -> list[Any]:
    """What happens in a browser that several use, in order of time; clicks may name nobody."""
    found: list[Any] = [consent(0, visitor=visitor)]
    at, there = 10, NOBODY
    for number in range(draws.randrange(5, 30)):
        at += draws.choice((1, 200, 400, 5_000, 10 * MINUTE, 31 * MINUTE))
        what = draws.choice(("login", "logout", "page_view", "page_view", "page_view"))
        if what == "login" or (there and draws.random() < 0.1):
            there = draws.choice(ACCOUNTS)
        named = there and (what != "page_view" or draws.random() < 0.6)
        item = {"item_id": f"i{number}", "category": "shoes"} if what == "page_view" else {}
        found.append(
            click(at, what, visitor, id=f"{visitor}-{number}", user_id=there if named else None, **item)
        )
        if what == "logout":
            there = NOBODY
    return found


def marks_of(events: Sequence[Any]) -> list[Mark]:
    marks = []
    for event in events:
        if isinstance(event, Click):
            if event.user_id:
                marks.append((event.event_time_ms, event.user_id))
            if event.event_type == "logout":
                marks.append((event.event_time_ms + 1, NOBODY))
    return sorted(set(marks))


@pytest.mark.parametrize("block", range(case_count(20, share=5)))
def test_tables_say_what_a_look_at_all_events_says_in_any_order(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        draws = random.Random(seed)
        events = history(draws, "v1")
        marks = marks_of(events)
        bound = draws.choice((0, SECOND, MINUTE))
        first, *others = events
        came = [first, *sorted(others, key=lambda e: e.event_time_ms + draws.uniform(0, bound))]
        # Logouts that come before any login that they end say nothing: there is nobody known yet.
        run = run_app(keyed(*came), batch=draws.choice((1, 3, 100)), bound_ms=bound)
        named = [m for m in marks if m[1]]
        sessions = run.table("Visitors.sessions", "session_id")
        assert sessions or not named
        for row in sessions:
            wanted = _whose_session(marks, row["start_ms"], row["end_ms"])
            if wanted and row["user_id"] is None:  # only the last sessions are remembered
                next_ms = min(at for at, user in marks if at > row["end_ms"] and user)
                assert len([r for r in sessions if row["end_ms"] < r["start_ms"] < next_ms]) >= 5, seed
                continue
            assert (row["user_id"] or NOBODY) == wanted, (seed, row)
        told = {row["visitor_id"]: row["user_id"] for row in run.table("Visitors.identities", "visitor_id")}
        now = marks[-1][1] if marks else NOBODY
        assert told == ({"v1": now} if now else {}), seed
        changes = run.table("Visitors.owner_changes", "visitor_id", "from_ms")
        runs, before = {}, NOBODY
        for at, user in _last_of_each_moment(marks):
            if user != before:
                runs[at] = before = user
        assert {row["from_ms"]: row["user_id"] or NOBODY for row in changes} == runs, seed


def _last_of_each_moment(marks: Sequence[Mark]) -> list[Mark]:
    return sorted(dict(sorted(marks)).items())


def _whose_session(marks: Sequence[Mark], start_ms: int, end_ms: int) -> str:
    within = [user for at, user in marks if start_ms < at <= end_ms and user]
    before = [user for at, user in marks if at <= start_ms]
    after = [user for at, user in marks if at > end_ms and user]
    return (within[-1:] or [user for user in before[-1:] if user] or after[:1] or [NOBODY])[0]


# -- profiles and carts -------------------------------------------------------------------------------


def profile(run: Run, person: str) -> dict[str, Any] | None:
    found = [row for row in run.table("Entities.profiles", "person") if row["person"] == person]
    return {k: v for k, v in found[0].items() if k not in ("revision", "visitors")} if found else None


def shopping(*, user: str | None) -> list[Click]:
    who = {"user_id": user}
    return [
        click(1, item_id="a", category="shoes", price=10.0, **who),
        click(2 * HOUR, item_id="b", category="hats", price=20.0, **who),
        click(2 * HOUR + 1, "search", query="red", **who),
        click(2 * HOUR + 2, "add_to_cart", item_id="b", cart_id="c1", price=20.0, **who),
        click(2 * HOUR + 3, "purchase", order_id="o1", cart_id="c1", amount=20.0, **who),
        click(2 * DAY, item_id="c", category="hats", price=30.0, **who),
    ]


def login(at: int, user: str = "u1", visitor: str = "v1") -> Click:
    return click(at, "login", visitor, user_id=user)


def written(at: int, user: str, visitor: str) -> Click:
    """A purchase, at which a profile is always written."""
    return click(at, "purchase", visitor, order_id=f"o-{at}", amount=1.0, user_id=user)


def test_a_profile_is_the_same_whether_the_account_was_known_before_or_after() -> None:
    late = [consent(0), *shopping(user=None), login(2 * DAY + 1), written(2 * DAY + 2, "u1", "v1")]
    known = [consent(0), login(0), *shopping(user="u1"), written(2 * DAY + 2, "u1", "v1")]
    found, wanted = (run_app(keyed(*events), batch=1) for events in (late, known))
    assert profile(found, "u:u1") == profile(wanted, "u:u1") is not None
    assert profile(found, "u:u1")["last_items"] == ["c", "b", "a"]  # type: ignore[index]
    assert (profile(found, "v:v1"), profile(wanted, "v:v1")) == (None, None)
    assert profile(run_app(keyed(consent(0), *shopping(user=None)), batch=1), "v:v1") is not None


def test_what_came_with_a_browser_goes_with_it() -> None:
    """Its owner withdraws in that browser, by no account: only what was done elsewhere is left of it."""
    elsewhere = [
        consent(0, visitor="v2"),
        login(1, visitor="v2"),
        click(2, visitor="v2", item_id="z", price=1.0),
    ]
    events = [*elsewhere, consent(0), *shopping(user=None), login(2 * DAY + 1)]
    after = consent(2 * DAY + 9, ("personalisation",), granted=False)
    end = written(2 * DAY + 10, "u1", "v2")
    merged = profile(run_app(keyed(*events, end), batch=1), "u:u1")
    parted = profile(run_app(keyed(*events, after, end), batch=1), "u:u1")
    alone = profile(run_app(keyed(*elsewhere, end), batch=1), "u:u1")
    assert merged is not None
    assert merged["last_items"] == ["c", "b", "z", "a"]
    assert parted == alone


def test_a_second_account_takes_nothing_of_what_the_first_took_along() -> None:
    events = [consent(0), click(1, item_id="a"), login(2), click(3, "logout", user_id="u1")]
    events += [click(4, item_id="b"), login(5, "u2"), written(6, "u1", "v2"), written(7, "u2", "v1")]
    run = run_app(keyed(consent(0, visitor="v2"), *events), batch=1)
    items = {person: (profile(run, person) or {}).get("last_items") for person in ("u:u1", "u:u2", "v:v1")}
    assert items == {"u:u1": ["a"], "u:u2": ["b"], "v:v1": None}


@pytest.mark.parametrize("at", [10 * MINUTE, 40 * MINUTE])
def test_a_cart_that_was_filled_before_the_login_is_the_accounts(at: int) -> None:
    filled = click(1, "add_to_cart", item_id="a", cart_id="c1", price=20.0)
    run = run_app(keyed(consent(0), filled, login(at), click(HOUR, item_id="q", user_id="u1")), batch=1)
    (left,) = run.rows("Entities.abandonments")
    # It is told at once, 30 minutes after it was filled: of whom nobody knows by then.
    assert left["user_id"] == ("u1" if at < 30 * MINUTE else None)
    assert left["since_ms"] == START + 1  # a login is nothing that happens to the cart


def test_a_cart_that_is_left_before_the_login_is_nobodys_though_that_is_told_first() -> None:
    """A withdrawal has told of the login ahead of time."""
    filled = click(1, "add_to_cart", item_id="a", cart_id="c1", price=20.0)
    withdrawn = consent(45 * MINUTE, ("personalisation",), granted=False)
    events = [consent(0), filled, login(40 * MINUTE), withdrawn, click(3 * HOUR, visitor="z")]
    (left,) = run_app(keyed(*events), batch=1, bound_ms=HOUR).rows("Entities.abandonments")
    assert left["user_id"] is None


def test_a_cart_that_was_bought_is_nobodys_to_be() -> None:
    events = [
        click(1, "add_to_cart", item_id="a", cart_id="c1", price=20.0),
        click(2, "purchase", cart_id="c1", order_id="o1", amount=20.0),
    ]
    target = driver()
    send(target, consent(0), *events, login(3))
    target.drain()
    (absorbed,) = [told for told in target.values() if isinstance(told, Absorb)]
    assert absorbed.carts == []


# -- withdrawals and erasures, in whichever order they are read --------------------------------------------


def orders_of(*events: Any) -> Iterable[list[Any]]:
    """Every order in which events may be read after consent was given, in time all of them; in CI a third."""
    return ([consent(0), *some] for some in sampled([*permutations(events)]))


@pytest.mark.parametrize("again", [False, True])
def test_nothing_after_a_withdrawal_is_the_accounts_of_before_in_any_order(again: bool) -> None:
    """Also where consent is given again, which says nothing about who was there before."""
    events = [
        login(1), consent(3, ("personalisation",), granted=False),
        click(7, item_id="cup"), *([consent(5)] if again else []),
    ]  # fmt: skip
    for some in orders_of(*events):
        run = run_app(keyed(*some), batch=1, bound_ms=HOUR)
        read = [type(one).__name__ + str(one.event_time_ms - START) for one in some]
        (session,) = run.table("Visitors.sessions", "session_id")
        assert session["user_id"] is None, read
        assert run.table("Visitors.identities", "visitor_id") == [], read
        assert "cup" not in (profile(run, "u:u1") or {}).get("last_items", ()), read
        assert profile(run, "u:u1") is None, read
        assert run.empty


@pytest.mark.parametrize(("login_at", "kept"), [(5, None), (1, ["tea"])])
def test_nothing_goes_on_from_a_browser_that_is_forgotten_in_any_order(
    login_at: int, kept: list[str] | None
) -> None:
    """What nobody did before is not the next account's; what is done after is not the one's of before."""
    tea, forgotten, cup = click(2, item_id="tea"), Forget("r1", "v1", START + 3), click(7, item_id="cup")
    for some in orders_of(login(login_at), tea, forgotten, cup):
        run = run_app(keyed(*some), batch=1, bound_ms=HOUR)
        read = [type(one).__name__ + str(one.event_time_ms - START) for one in some]
        (of_account, of_browser) = (profile(run, person) for person in ("u:u1", "v:v1"))
        assert of_browser is None, read
        assert of_account is None or of_account["last_items"] == kept, read
        assert run.table("Visitors.identities", "visitor_id") == [], read
        assert run.empty
