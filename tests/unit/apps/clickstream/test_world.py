"""The whole app in memory on a part of a shop's day, against the generator's ledger."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any, ClassVar

import msgspec
import pytest

from millrace.testing.app_contract import AppInMemory, AppWorld
from millrace.testing.standing import Happened
from millrace_apps.clickstream.app import app
from millrace_apps.clickstream.contracts.events import Click, Consent
from millrace_apps.clickstream.processes.channels import built_in
from millrace_apps.clickstream.processes.funnels import PURCHASE, step_of
from millrace_apps.clickstream.state.browser_state import VisitorRules
from millrace_apps.clickstream.state.consent import Answer, bits_of, may_stitch
from tests.unit.apps.clickstream.app_cases import (
    DAY,
    HOUR,
    MINUTE,
    START,
    Events,
    Run,
    as_read,
    run_app,
    shop_chain,
    truths,
    world,
)

#: Output → key of its rows.
UPSERTED = {
    "Visitors.sessions": ("session_id",),
    "Visitors.funnels": ("funnel", "session_id"),
    "Visitors.identities": ("visitor_id",),
    "Visitors.consents": ("visitor_id", "consent_id"),
    "Entities.profiles": ("person",),
    "Entities.items": ("item_id",),
    "boards": ("board", "window_end_ms", "rank"),
    "Entities.order_rows": ("order_id",),
    "orders": ("order_id",),
    "revenue": ("day", "currency"),
}
APPENDED = ("Entities.abandonments", "offers", "outcomes")


@cache
def events() -> Events:
    return as_read(world())


@cache
def reference() -> Run:
    return run_app(events())


def end_ms() -> int:
    return max(at for _, at, _ in events())


def after(allowed: int, event: Consent) -> int:
    """What is allowed after an answer that is read in order of time."""
    said = Answer(event.event_time_ms, event.consent_id, bits_of(event.purposes), event.granted)
    return said.after(allowed)


def tables(run: Run, *, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """What stands in the tables in the end; revisions count how often a row was written."""

    def bare(row: dict[str, Any]) -> bytes:
        return msgspec.json.encode({k: v for k, v in sorted(row.items()) if k != "revision"})

    found: dict[str, Any] = {
        name: Counter(map(bare, run.table(name, *key))) for name, key in UPSERTED.items()
    }
    found |= {name: Counter(map(bare, run.rows(name))) for name in APPENDED}
    return {name: rows for name, rows in found.items() if name not in leave_out}


# -- against the ledger ------------------------------------------------------------------------------


def test_every_session_of_the_ledger_comes_out_and_no_other() -> None:
    rows = reference().table("Visitors.sessions", "session_id")
    people = {(r["visitor_id"], r["start_ms"]): r for r in rows if not r["bot"]}
    told = [t for t in truths(world(), "session").values() if t.detail["end_ms"] <= end_ms()]
    assert len(told) > 300
    for truth in told:
        row, detail = people[truth.entity, truth.detail["start_ms"]], truth.detail
        assert row["is_final"]
        assert (row["end_ms"], row["events"], row["page_views"]) == (
            detail["end_ms"],
            detail["events"],
            detail["page_views"],
        )
    cut = {(t.entity, t.detail["start_ms"]) for t in truths(world(), "session").values()}
    assert people.keys() <= cut


#: How is told of what bots are found by.
SAID = {"rate/10m": "pace", "views_alone": "alone"}


def test_bots_are_found_with_their_reason_and_nobody_else_is_one() -> None:
    rows = reference().table("Visitors.sessions", "session_id")
    found = {r["visitor_id"]: r["bot"] for r in rows if r["bot"]}
    told = {t.entity: t.detail["by"] for t in truths(world(), "bot").values()}
    assert {visitor: SAID.get(why, why) for visitor, why in found.items()} == told
    assert set(told.values()) >= {"rate", "user_agent"}


def test_carts_are_left_exactly_as_the_ledger_says() -> None:
    timeout, end = 30 * MINUTE, end_ms()
    expected = set()
    for truth in truths(world(), "abandonment").values():
        for spell in truth.detail["idle"]:
            until = spell["until_ms"]
            if spell["since_ms"] <= end - timeout and (until is None or until - spell["since_ms"] > timeout):
                expected.add((truth.entity, spell["since_ms"], spell["stage"], spell["value_cents"]))
    found = {
        (a["cart_id"], a["since_ms"], a["stage"], a["value_cents"])
        for a in reference().rows("Entities.abandonments")
    }
    assert len(expected) > 15
    assert {f for f in found if f[1] <= end - timeout} == expected


def test_no_cart_is_said_to_be_left_after_its_purchase() -> None:
    bought = {e.cart_id: at for _, at, e in events() if isinstance(e, Click) and e.event_type == "purchase"}
    assert len(bought) > 8
    for row in reference().rows("Entities.abandonments"):
        assert row["since_ms"] < bought.get(row["cart_id"], row["since_ms"] + 1)


def test_orders_are_attributed_as_the_ledger_says_where_consent_allows_to_know() -> None:
    rows = {row["order_id"]: row for row in reference().table("orders", "order_id")}
    told = [t for t in truths(world(), "attribution").values() if t.entity in rows]
    assert len(told) == len(rows) > 8
    for truth in told:
        row, detail = rows[truth.entity], truth.detail
        assert row["amount_cents"] == detail["amount_cents"]
        if len(detail["visitors"]) == 1:
            assert (row["first_touch"], row["last_touch"]) == (
                detail["first_touch"] or "direct",
                detail["last_touch"] or "direct",
            )


def test_browsers_are_stitched_where_they_may_be_and_nowhere_else() -> None:
    allowed: dict[str, int] = {}
    expected: dict[str, str] = {}
    for key, _, event in events():
        if isinstance(event, Consent):
            allowed[key] = after(allowed.get(key, 0), event)
            if not may_stitch(allowed[key]):
                expected.pop(key, None)
        elif isinstance(event, Click) and event.user_id and may_stitch(allowed.get(key, 0)):
            expected[key] = event.user_id
            if event.event_type == "logout":
                del expected[key]
    found = {r["visitor_id"]: r["user_id"] for r in reference().table("Visitors.identities", "visitor_id")}
    assert found == expected
    assert len(expected) > 10


def test_nothing_is_offered_without_consent_and_nothing_twice() -> None:
    made = reference().rows("offers")
    assert len({o["offer_id"] for o in made}) == len(made) > 8
    allowed: dict[str, list[tuple[int, bool]]] = {}
    bits: dict[str, int] = {}
    for key, at, event in events():
        if isinstance(event, Consent):
            bits[key] = after(bits.get(key, 0), event)
            allowed.setdefault(key, []).append((at, bits[key] & 6 == 6))
    for offer in made:
        said = [ok for at, ok in allowed.get(offer["visitor_id"], ()) if at <= offer["at_ms"]]
        assert said
        assert said[-1]


def test_funnels_count_what_a_look_at_the_sessions_events_counts() -> None:
    rows = {r["session_id"]: r for r in reference().table("Visitors.funnels", "funnel", "session_id")}
    sessions = [s for s in reference().table("Visitors.sessions", "session_id") if not s["bot"]]
    clicks: dict[str, list[tuple[int, str]]] = {}
    for key, at, event in events():
        if isinstance(event, Click):
            step = step_of(event.event_type, event.page_type, event.step)
            clicks.setdefault(key, []).append((at, step or ""))
    reached = Counter[int]()
    for session in sessions:
        mine = [c for c in clicks[session["visitor_id"]] if session["start_ms"] <= c[0] <= session["end_ms"]]
        done, since = 0, None
        for at, step in sorted(mine):
            if since is not None and at > since + PURCHASE.within_ms:
                break
            if done < len(PURCHASE.steps) and step == PURCHASE.steps[done]:
                done += 1
                since = since or at
        found = rows.get(session["session_id"])
        assert (found["reached"] if found else 0) == done
        reached[done] += 1
    assert min(reached[n] for n in range(1, 6)) >= 1


@pytest.mark.parametrize("shards", [5])
def test_boards_are_the_same_whatever_the_shards(shards: int) -> None:
    found = run_app(events(), visitor_rules=VisitorRules(shards=shards))
    assert tables(found)["boards"] == tables(reference())["boards"]
    assert tables(found)["Entities.items"] == tables(reference())["Entities.items"]


def test_visitors_now_are_those_who_clicked_in_the_last_five_minutes() -> None:
    bots = {t.entity for t in truths(world(), "bot").values()}
    rows = reference().table("boards", "board", "window_end_ms", "rank")
    now = Counter[int]()
    for row in rows:
        if row["board"] == "visitors/now":
            now[row["window_end_ms"]] += row["value"]
    moments = sorted(now)[5:-5:17]
    assert len(moments) > 5
    for end in moments:
        there = {k for k, at, e in events() if isinstance(e, Click) and end - 5 * MINUTE <= at < end}
        assert len(there - bots) <= now[end] <= len(there)


# -- whatever the way --------------------------------------------------------------------------------


def two_hours(*, clicks_of_people: bool = False) -> list[Happened]:
    """Two hours of the shop, among whose people many come back."""
    simulated = world(1_600, seed=6, event_rate=0.2, boundaries=0.3, known=0.6, people=120)
    bots = {t.entity for t in truths(simulated, "bot").values()}
    return [
        Happened(at, key, at, event)
        for key, at, event in as_read(simulated)
        if at < START + 2 * HOUR and not (clicks_of_people and (key in bots or not isinstance(event, Click)))
    ]


class ClickstreamWorld(AppWorld):
    """Two hours of the shop."""

    app = app
    bound_ms = MINUTE
    repeats = True
    overrides: ClassVar = (
        'funnels=[{"name": "purchase"}, {"name": "persons", "of": "persons", "within": "10m"}]',
    )

    def world(self) -> list[Happened]:
        return two_hours()


def test_carts_and_offers_have_the_device_and_channel_of_their_visit() -> None:
    """A look at all clicks: the first landing of the visit, up to what was done there."""
    table, clicks = built_in(), dict[str, list[Click]]()
    for key, _, event in events():
        if isinstance(event, Click):
            clicks.setdefault(key, []).append(event)

    def segment(visitor: str, at: int) -> tuple[str, str]:
        before = sorted((c for c in clicks[visitor] if c.event_time_ms <= at), key=lambda c: c.event_time_ms)
        visit = before[-1:]
        for one in reversed(before[:-1]):
            if visit[0].event_time_ms - one.event_time_ms > 30 * MINUTE:
                break
            visit.insert(0, one)
        labels = [label for c in visit if (label := table.landing(c)) is not None]
        return visit[-1].device, table.channel(labels[0] if labels else None)

    left = reference().rows("Entities.abandonments")
    for row in left:
        assert (row["device"], row["channel"]) == segment(row["visitor_id"], row["since_ms"]), row
    since = {(row["cart_id"], row["noticed_ms"]): row["since_ms"] for row in left}
    parts = {}
    for row in reference().rows("offers"):
        at = since[row["cart_id"], row["at_ms"]] if row["cart_id"] else row["at_ms"]
        parts[row["offer_id"]] = segment(row["visitor_id"], at)
        assert (row["device"], row["channel"]) == parts[row["offer_id"]], row
    for row in reference().rows("outcomes"):
        assert (row["device"], row["channel"]) == parts[row["offer_id"]], row
    assert len({row["channel"] for row in left}) > 2
    assert len(set(parts.values())) > 2


class TestContract(ClickstreamWorld, AppInMemory):
    def test_all_tables_are_written(self) -> None:
        found = {name: rows.total() for name, rows in self.standing.expected().items()}
        wanted = {*self.standing.upserted, "Entities.abandonments", "offers"}
        assert found.keys() >= wanted
        assert min(found["Visitors.sessions"], found["Visitors.funnels"], found["boards"]) > 80
        assert found["Entities.person_funnels"] > 80


class ClicksOfPeople(ClickstreamWorld):
    """What people click, also where a browser's clicks do not come in order.

    Answers about consent are left out, by what was known when a click came it is decided what may be; and
    bots, since from which event on somebody is too fast hangs on what came by then. The row of an open
    session is of what had come when it was written.
    """

    only: ClassVar = {"Visitors.sessions": lambda row: row["is_final"]}
    per_key = False

    def world(self) -> list[Happened]:
        return two_hours(clicks_of_people=True)


def test_disorder_within_a_browsers_clicks_changes_no_table() -> None:
    ClicksOfPeople().standing.check([1])


def test_half_a_second_of_disorder_changes_no_table() -> None:
    class AsItComes(ClickstreamWorld):
        bound_ms = 500
        per_key = False

    found = AsItComes().standing.differing([1, 2])
    assert found["Visitors.consents"][0] > 300
    assert sum(rows for rows, _ in found.values()) > 5_000
    assert {name: others for name, (_, others) in found.items() if others} == {}


def test_nothing_is_left_when_all_is_over() -> None:
    chain = shop_chain()
    chain.run_batch(events()[:2_000])
    chain.advance_watermark(end_ms() + 801 * DAY)
    assert chain.is_empty()


def test_a_visitor_at_rest_is_small() -> None:
    chain = shop_chain()
    chain.run_batch(events())
    sizes = sorted(len(cell.body) for cell in chain.hosts[0].store.cells.values())
    assert sum(sizes) / len(sizes) < 700  # in the middle of its visit, for many
    chain.advance_watermark(end_ms() + 3 * HOUR)
    sizes = [len(cell.body) for cell in chain.hosts[0].store.cells.values()]
    assert sum(sizes) / len(sizes) < 350


def test_bad_input_disturbs_nothing_else() -> None:
    """A click whose money does not fit in what is stored ends alone in the dead letters."""
    good = events()[:1_000]
    poison = msgspec.structs.replace(
        next(e for _, _, e in good if isinstance(e, Click)), event_id="poison", visitor_id="p",
        event_type="purchase", amount=float("inf"),
    )  # fmt: skip
    found = run_app([*good[:500], ("p", poison.event_time_ms, poison), *good[500:]])
    letters = found.rows("Visitors.dead_letters")
    assert [(d["reason"], d["stage"]) for d in letters] == [("process_error", "process")]
    assert tables(found) == tables(run_app(good))
