"""The checks of demo and evaluation on two hours of a shop in memory: they hold, and they can fail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.console.report import Check
from millrace.dead_letters import reason_of
from millrace.demo import DemoRun
from millrace.testing.world_ledger import ReadLedger, WorldRun, WorldTruth, read_world_ledger
from millrace_apps.clickstream import demo
from millrace_apps.clickstream.contracts.events import INPUTS, Forget
from millrace_apps.clickstream.evaluation.ledger_checks import check_ledger
from millrace_apps.clickstream.evaluation.offer_checks import Consents
from millrace_apps.clickstream.processes.money import read_rates
from millrace_apps.clickstream.processes.orders import Orders
from millrace_apps.clickstream.recommend.checks import check_read
from millrace_apps.clickstream.recommend.process import Recommending
from millrace_apps.clickstream.settings import ClickstreamSettings
from millrace_apps.clickstream.state.browser_state import VisitorRules
from millrace_apps.generators.clickstream import DOMAIN, ClickstreamProfile
from millrace_apps.generators.clickstream.loop import APP_TOPICS, ShopWorld
from millrace_apps.generators.engine.loop import Mailbag, looped
from millrace_apps.generators.engine.simulated import Domain
from millrace_apps.generators.engine.world import deliver_domain
from millrace_apps.generators.world_ledger import WorldLedger
from tests.broken import (
    Break,
    Change,
    Rows,
    added,
    all_hold,
    breaks,
    check_listed,
    doubled,
    dropped,
    fails,
    halved,
    less,
    renamed,
    shifted,
    stuck,
    swapped,
    where,
)
from tests.cases import sampled
from tests.unit.apps.clickstream.app_cases import HOUR, MINUTE, Run, shop_chain

PROFILE = ClickstreamProfile(
    seed=7,
    event_rate=2.8,
    events=20_000,
    people=250,
    items=400,
    known=0.9,
    refunds=0.5,
    refund_after_h=0.3,
    cancellations=0.25,
    foreign=0.3,
    erasures=60.0,
    sold_out=0.1,
    conversion=0.2,
    recovery=0.4,
    offer_uplift=0.4,
    offer_answer_min=10.0,
    list_clicks=0.3,
    bots=0.12,
    duplicates=0.01,
    malformed=0.002,
)
#: After which time a cart is left, as in the demo: some are left twice.
TIMEOUT = 15 * MINUTE
#: Table → output of the app's processes, and what tells rows that replace each other.
TABLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "sessions": ("Visitors.sessions", ("session_id",)),
    "identities": ("Visitors.identities", ("visitor_id",)),
    "profiles": ("Entities.profiles", ("person",)),
    "boards": ("boards", ("board", "window_end_ms", "rank")),
    "attributions": ("orders", ("order_id",)),
    "orders": ("Entities.order_rows", ("order_id",)),
    "revenue": ("revenue", ("day", "currency")),
    "consents": ("Visitors.consents", ("visitor_id", "consent_id")),
    "erasures": ("Visitors.erasures", ()),
    "abandonments": ("Entities.abandonments", ()),
    "offers": ("offers", ()),
    "outcomes": ("outcomes", ()),
    "recommendations": ("Recommender.main", ()),
    "recommendation_quality": ("Recommender.quality", ()),
    "recommendation_clicks": ("Recommender.clicks", ()),
    "recommendation_click_through": ("Recommender.click_through", ()),
}
#: Output → topic that shoppers listen to.
SAID = {"offers": "clickstream.offers", "Recommender.main": "clickstream.recommendations"}
Tables = dict[str, Rows]


class Inbox:
    """What the app has told the shoppers, and a clock that goes as far as they wait."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bytes]] = []
        self.seconds = 0.0

    def poll(self, timeout_s: float) -> list[tuple[str, bytes]]:
        self.seconds += timeout_s
        told, self.told = self.told, []
        return told

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def answering(inbox: Inbox) -> Domain:
    """The shop, its visitors in a loop with the app."""
    return looped(
        DOMAIN, ShopWorld, inbox, mailbag=Mailbag(APP_TOPICS), clock=inbox, speed=60.0,
    )  # fmt: skip


def run_app(ledger: WorldLedger) -> tuple[Tables, int]:
    """Send the streams, and what the app sends itself; return what stands in the tables, and up to when."""
    emitted, broken, inbox = [], [], Inbox()
    rates = read_rates(demo.RATES)
    rules = VisitorRules(recommends=True, rates=rates)
    chain = shop_chain(
        rules, cart_timeout_ms=TIMEOUT, recommending=Recommending(control=0.3), orders=Orders(rates)
    )
    batch: list[Any] = []
    decoders = {name: msgspec.json.Decoder(kind) for name, kind in INPUTS.items()}
    again = msgspec.json.Decoder(Forget)

    def flush() -> None:
        found = chain.run_batch(batch)
        emitted.extend(found)
        inbox.told += [(SAID[e.output], e.payload) for e in found if e.output in SAID]
        asked = [again.decode(e.payload) for e in found if e.output == "Entities.forget"]
        batch[:] = [(one.subject, one.event_time_ms, one) for one in asked]

    for message in deliver_domain(answering(inbox), PROFILE):
        ledger.add(message)
        try:
            event: Any = decoders[message.stream].decode(message.value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            broken.append({"reason": reason_of(error)})
            continue
        batch.append((message.key.decode(), event.event_time_ms, event))
        if len(batch) >= 1_000:
            flush()
    flush()
    end_ms = ledger.totals().last_event_time_ms or 0
    emitted.extend(chain.advance_watermark(end_ms))
    run = Run(emitted, False)
    tables = {
        name: run.table(output, *key) if key else run.rows(output) for name, (output, key) in TABLES.items()
    }
    for offer in tables["offers"]:
        offer["_event_id"] = offer["offer_id"]
    tables["dead_letters"] = [*broken, *run.rows("Visitors.dead_letters")]
    tables["late"] = run.rows("Visitors.late")
    return tables, end_ms


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tables, ReadLedger, int]:
    path = tmp_path_factory.mktemp("demo") / "ledger.jsonl"
    ledger = WorldLedger(
        path, WorldRun("clickstream", PROFILE.seed, dict.fromkeys(DOMAIN.streams, "t"), {}, {})
    )
    tables, end_ms = run_app(ledger)
    ledger.finish()
    return tables, read_world_ledger(path), end_ms


Seen = tuple[Tables, ReadLedger, int]


def of_ledger(seen: Seen, one: Break | None = None) -> list[Check]:
    """The checks against the ledger, with something broken."""
    tables, ledger, end_ms = seen
    changed = tables if one is None else one.applied(tables)
    rows: Mapping[str, Rows] = defaultdict(list, changed)
    return check_ledger(rows.__getitem__, ledger, end_ms=end_ms, cart_timeout_ms=TIMEOUT)


def of_demo(seen: Seen, patch: pytest.MonkeyPatch, one: Break | None = None) -> list[Check]:
    """The demo's own checks, which come beside those against the ledger."""
    tables, ledger, end_ms = seen
    changed = tables if one is None else one.applied(tables)
    patch.setattr(demo, "said_until", lambda checkpoint: end_ms)
    patch.setattr(demo, "app_rows", lambda folder, name: changed[name])
    patch.setattr(demo, "check_ledger", lambda *args, **options: [])
    run = DemoRun("", Path(), ClickstreamSettings(), 60.0, 100, PROFILE.seed)
    return demo.checks(run, ledger, {row["_event_id"] for row in tables["offers"]})


def test_every_check_of_the_demo_holds(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    all_hold([*of_ledger(seen), *of_demo(seen, monkeypatch)])


def test_without_refunds_erasures_and_offers_it_is_said_that_nothing_is_compared(seen: Seen) -> None:
    tables, ledger, end_ms = seen
    few = msgspec.structs.replace(
        ledger,
        truths=[
            t for t in ledger.truths if t.kind not in ("refund", "cancellation", "erasure", "abandonment")
        ],
    )
    none: Tables = {**tables, "offers": [], "outcomes": [], "abandonments": [], "erasures": []}
    empty = {check.name for check in of_ledger((none, few, end_ms)) if check.is_empty}
    assert empty >= {
        "refunds taken off",
        "what is left of orders",
        "profiles of who asked for erasure",
        "browsers forgotten in the audit",
        "offers for carts that were left",
        "arms of offers",
        "offers above caps and cool-downs",
        "purchases after an offer",
    }


def test_where_nobody_hears_anything_it_is_said_that_nothing_is_compared(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, ledger, end_ms = seen
    deaf = msgspec.structs.replace(
        ledger, truths=[t for t in ledger.truths if t.kind not in ("offer", "list")]
    )
    empty = {check.name for check in of_demo((tables, deaf, end_ms), monkeypatch) if check.is_empty}
    assert {name for name in empty if "list" in name or "adds" in name} == {
        "clicks that shoppers made on lists",
        "click-through of lists that were read",
        "clicks that recommending adds: discover",
        "clicks that recommending adds: resume",
    }
    told = check_ledger(
        defaultdict(list, tables).__getitem__, deaf, end_ms=end_ms, cart_timeout_ms=TIMEOUT, listening=True
    )
    assert {check.name for check in told if check.is_empty} >= {
        "offers that shoppers have heard of",
        "purchases by who was shown nothing",
        "purchases that offers brought about",
    }
    silent = {check.name for check in of_ledger((tables, deaf, end_ms))}
    assert "offers that shoppers have heard of" not in silent  # nobody was asked to listen


def final(change: Change) -> Change:
    return where(lambda row: row["is_final"] and not row["bot"], change)


def bots(change: Change) -> Change:
    return where(lambda row: bool(row["bot"]), change)


def board(name: str, change: Change) -> Change:
    return where(lambda row: row["board"] == name, change)


def reason(name: str, change: Change) -> Change:
    return where(lambda row: row["reason"] == name, change)


def refunded(change: Change) -> Change:
    return where(lambda row: row["refunded_cents"] > 0, change)


def with_margin(change: Change) -> Change:
    return where(lambda row: row["margin_cents"] is not None, change)


def of_arm(arm: str, change: Change) -> Change:
    return where(lambda row: row["arm"] == arm, change)


def in_pounds(change: Change) -> Change:
    return where(lambda row: row["currency"] == "GBP", change)


def sent_anyway(rows: Rows) -> Rows:
    """What was cancelled has been sent."""
    return [
        {**row, "cancelled_cents": 0, "net_cents": row["net_cents"] + row["cancelled_cents"]} for row in rows
    ]


def without_lines(rows: Rows) -> Rows:
    return [{**row, "lines": row["lines"][1:]} for row in rows]


def taxed(rows: Rows) -> Rows:
    """Margins have the tax in them."""
    return [{**row, "margin_cents": row["margin_cents"] + row["tax_cents"]} for row in rows]


def converted(change: Change) -> Change:
    return where(lambda row: bool(row["converted"]), change)


def withdrawn(change: Change) -> Change:
    return where(lambda row: not row["granted"] and row["withdrawn"], change)


def fifty_times(rows: Rows) -> Rows:
    """Every offer is made fifty times, under identities of its own, an hour after the other."""
    return [{**row, "offer_id": f"{row['offer_id']}-{n}", "at_ms": row["at_ms"] + n * HOUR}
            for row in rows for n in range(50)]  # fmt: skip


def to_everybody(rows: Rows) -> Rows:
    """Every offer is made to everybody."""
    people = sorted({row["person"] for row in rows})
    return [
        {**row, "offer_id": f"{row['offer_id']}-{person}", "person": person}
        for row in rows
        for person in people
    ]


def nobody_withdraws(rows: Rows) -> Rows:
    return [{**row, "granted": True} for row in rows]


def denied(rows: Rows) -> Rows:
    """Nobody has ever allowed anything."""
    return [{**row, "in_force": []} for row in rows]


def of_the_erased(table: str, name: str) -> dict[str, Change]:
    """Everybody is still there, under the names of those who asked for erasure."""

    def change(rows: Rows) -> Rows:
        return [*rows, *({**rows[0], name: who} for who in ERASED[name])]

    return {table: change}


#: Filled by the fixture below: accounts that asked for erasure.
ERASED: dict[str, list[str]] = {"person": [], "user_id": []}


@pytest.fixture(scope="module", autouse=True)
def _erased(seen: Seen) -> None:
    users = [t.entity for t in seen[1].truths if t.kind == "erasure"]
    ERASED.update(person=[f"u:{user}" for user in users], user_id=users)


LEDGER = (
    *breaks(
        "sessions that are over",
        dropped={"sessions": final(less)},
        all_dropped={"sessions": dropped},
        shifted={"sessions": final(shifted("start_ms", 1))},
        never_final={"sessions": stuck("is_final", False)},
        an_event_too_many={"sessions": final(shifted("events", 1))},
    ),
    *breaks("no session twice", doubled={"sessions": doubled}),
    *breaks(
        "bots found, nobody else",
        dropped={"sessions": bots(dropped)},
        people_taken_for_bots={"sessions": stuck("bot", "rate")},
    ),
    *breaks(
        "why bots are bots",
        dropped={"sessions": bots(dropped)},
        all_by_rate={"sessions": bots(stuck("bot", "rate"))},
    ),
    *breaks(
        "slow bots",
        all_by_rate={"sessions": bots(stuck("bot", "rate"))},
        taken_for_people={"sessions": bots(stuck("bot", ""))},
    ),
    *breaks(
        "carts that were left",
        dropped={"abandonments": less},
        shifted={"abandonments": shifted("since_ms", 1)},
        values_stuck={"abandonments": stuck("value_cents")},
        of_other_carts={"abandonments": swapped("cart_id")},
    ),
    *breaks(
        "items in carts that were left",
        dropped={"abandonments": stuck("items", [])},
        one_alone={"abandonments": lambda rows: [{**r, "items": r["items"][:1]} for r in rows]},
        backwards={"abandonments": lambda rows: [{**r, "items": r["items"][::-1]} for r in rows]},
        of_other_carts={"abandonments": swapped("items")},
    ),
    *breaks("no cart left twice at one time", doubled={"abandonments": doubled}),
    *breaks(
        "carts left after their purchase", a_month_later={"abandonments": shifted("since_ms", 30 * 24 * HOUR)}
    ),
    *breaks(
        "conversions: orders and their value",
        dropped={"attributions": less},
        all_dropped={"attributions": dropped},
        values_stuck={"attributions": stuck("amount_cents")},
        of_other_orders={"attributions": renamed("order_id")},
    ),
    *breaks("no order twice", doubled={"attributions": doubled}),
    *breaks(
        "first and last touch",
        first_stuck={"attributions": stuck("first_touch")},
        last_stuck={"attributions": stuck("last_touch")},
        of_other_orders={"attributions": swapped("first_touch")},
    ),
    *breaks(
        "refunds taken off",
        dropped={"attributions": stuck("refunded_cents", 0)},
        doubled={
            "attributions": refunded(
                lambda rows: [{**row, "refunded_cents": 2 * row["refunded_cents"]} for row in rows]
            )
        },
        of_other_orders={"attributions": refunded(swapped("refunded_cents"))},
    ),
    *breaks(
        "orders with tax, shipping and lines",
        dropped={"orders": less},
        all_dropped={"orders": dropped},
        of_other_orders={"orders": renamed("order_id")},
        all_in_one_currency={"orders": stuck("currency", "EUR")},
        at_par={"orders": in_pounds(shifted("amount_reported_cents", -100))},
        tax_stuck={"orders": stuck("tax_cents")},
        free_of_shipping={"orders": stuck("shipping_cents", 0)},
        lines_dropped={"orders": without_lines},
    ),
    *breaks("no row of an order twice", doubled={"orders": doubled}),
    *breaks(
        "what is left of orders",
        sent_anyway={"orders": sent_anyway},
        refunds_dropped={"orders": stuck("refunded_cents", 0)},
        of_other_orders={"orders": refunded(swapped("refunded_cents"))},
        shipping_kept={"orders": stuck("shipping_back_cents", 0)},
        all_stand={"orders": stuck("status", "placed")},
    ),
    *breaks(
        "margins of orders",
        never_known={"orders": lambda rows: [{**row, "margin_cents": None} for row in rows]},
        with_tax={"orders": with_margin(taxed)},
        at_par={"orders": in_pounds(with_margin(shifted("margin_reported_cents", -100)))},
    ),
    *breaks(
        "orders worth other than what brought them says",
        a_cent_more={"attributions": shifted("amount_cents", 1)},
        refunds_forgotten={"attributions": refunded(shifted("net_cents", 100))},
        of_other_orders={"attributions": renamed("order_id")},
    ),
    *breaks(
        "books of days add up their orders",
        dropped={"revenue": dropped},
        a_cent_more={"revenue": shifted("net_cents", 1)},
        margins_stuck={"revenue": stuck("margin_cents", 1)},
        a_day_later={"revenue": stuck("day", "2026-01-09")},
        all_in_one_currency={"revenue": stuck("currency", "EUR")},
    ),
    *breaks("no book twice", doubled={"revenue": doubled}),
    *breaks(
        "paid back by currency",
        dropped={"revenue": stuck("paid_back_cents", 0)},
        doubled={"revenue": doubled},
        in_one_currency={"revenue": stuck("currency", "EUR")},
    ),
    *breaks("answers to the question for consent", dropped={"consents": less}, doubled={"consents": doubled}),
    *breaks("no answer twice", doubled={"consents": doubled}, stuck={"consents": stuck("consent_id")}),
    *breaks(
        "withdrawals in the audit",
        dropped={"consents": withdrawn(less)},
        taken_for_grants={"consents": nobody_withdraws},
        shifted={"consents": shifted("at_ms", 1)},
    ),
    *breaks("profiles of who asked for erasure", kept=of_the_erased("profiles", "person")),
    *breaks("browsers known of who asked for erasure", kept=of_the_erased("identities", "user_id")),
    *breaks(
        "browsers forgotten in the audit",
        dropped={"erasures": dropped},
        others_forgotten={"erasures": stuck("subject_digest", "0")},
    ),
    *breaks("audited without a request", of_no_request={"erasures": renamed("request_id")}),
    *breaks("no offer twice", doubled={"offers": doubled}, stuck={"offers": stuck("offer_id")}),
    *breaks(
        "offers for carts that were left",
        dropped={"offers": less},
        all_dropped={"offers": dropped},
        fifty_times={"offers": fifty_times},
        to_everybody={"offers": to_everybody},
        shifted={"offers": shifted("at_ms", -1)},
        of_other_carts={"offers": swapped("cart_id")},
    ),
    *breaks(
        "offers without what their rule asks for",
        nothing_happened={"offers": lambda rows: [{**row, "why": {}} for row in rows]},
        shifted={"offers": shifted("at_ms", 1)},
        of_no_rule={"offers": stuck("rule", "another")},
    ),
    *breaks(
        "offers without consent",
        consent_dropped={"consents": denied},
        in_other_browsers={"offers": renamed("visitor_id")},
    ),
    *breaks(
        "offers above caps and cool-downs",
        fifty_times={"offers": fifty_times},
        to_one_person={"offers": stuck("person")},
        doubled={"offers": doubled},
    ),
    *breaks("arms of offers", stuck={"offers": stuck("arm", "offer")}, swapped={"offers": swapped("arm")}),
    *breaks(
        "purchases after an offer",
        dropped={"outcomes": dropped},
        never_converted={"outcomes": stuck("converted", False)},
        of_other_orders={"outcomes": renamed("order_id")},
        values_stuck={"outcomes": stuck("cents", 1)},
    ),
    *breaks(
        "outcomes of another offer, order or time",
        of_no_offer={"outcomes": renamed("offer_id")},
        a_cent_more={"outcomes": converted(shifted("cents", 1))},
        weeks_later={"outcomes": converted(shifted("decided_ms", 14 * 24 * HOUR))},
    ),
    *breaks(
        "offers that shoppers have heard of",
        dropped={"offers": less},
        shown_to_nobody={"offers": stuck("arm", "control")},
        of_other_carts={"offers": swapped("cart_id")},
    ),
    *breaks("purchases by who was shown nothing", to_nobody={"offers": stuck("arm", "control")}),
    *breaks(
        "purchases that offers brought about",
        dropped={"outcomes": dropped},
        never_converted={"outcomes": stuck("converted", False)},
        of_other_orders={"outcomes": renamed("order_id")},
    ),
    *breaks(
        "hours whose visits are not those on the board",
        dropped={"boards": dropped},
        one_shard_of_many={"boards": board("sources.visits/1h", less)},
        doubled={"boards": board("sources.visits/1h", doubled)},
        shifted={"boards": board("sources.visits/1h", shifted("window_end_ms", HOUR))},
    ),
    *breaks(
        "hours whose search terms are not those on the board",
        dropped={"boards": board("searches/1h", dropped)},
        half_of_them={"boards": board("searches/1h", halved)},
        one_too_few={"boards": board("searches/1h", shifted("value", -1))},
        shifted={"boards": board("searches/1h", shifted("window_end_ms", HOUR))},
        of_other_terms={"boards": board("searches/1h", swapped("item"))},
    ),
    *breaks(
        "revenue on the board",
        dropped={"boards": board("revenue/1h", dropped)},
        doubled={"boards": board("revenue/1h", doubled)},
        shifted={"boards": board("revenue/1h", shifted("window_end_ms", 5 * MINUTE))},
    ),
    *breaks(
        "repeats in dead letters",
        dropped={"dead_letters": reason("duplicate", less)},
        doubled={"dead_letters": reason("duplicate", doubled)},
    ),
    *breaks(
        "malformed in dead letters",
        dropped={"dead_letters": reason("malformed", less)},
        doubled={"dead_letters": reason("malformed", doubled)},
    ),
    *breaks("other dead letters", one_that_failed={"dead_letters": added({"reason": "process_error"})}),
)


def first_item_only(rows: Rows) -> Rows:
    """Every list names its first item again and again."""
    return [{**row, "items": row["items"][:1] * len(row["items"])} for row in rows]


def what_is_looked_at(rows: Rows) -> Rows:
    """Every list names the item that is looked at."""
    return [{**row, "items": [row["item"], *row["items"][1:]]} for row in rows]


def backwards(rows: Rows) -> Rows:
    return [{**row, "items": row["items"][::-1][:3]} for row in rows]


def what_was_dropped_is_shown(rows: Rows) -> Rows:
    return [{**row, "items": [*row["items"], *(d["item"] for d in row["dropped"])]} for row in rows]


def what_was_shown_is_dropped(rows: Rows) -> Rows:
    return [{**row, "dropped": [{"item": i, "rule": "sold-out"} for i in row["items"]]} for row in rows]


DEMO = (
    *breaks("no list of next items twice", doubled={"recommendations": doubled}),
    *breaks(
        "lists with an item twice, or too long",
        of_one_item={"recommendations": first_item_only},
        empty={"recommendations": lambda rows: [{**row, "items": []} for row in rows]},
    ),
    *breaks(
        "lists without consent",
        consent_dropped={"consents": denied},
        in_other_browsers={"recommendations": renamed("visitor_id")},
    ),
    *breaks("lists to discover with what was looked at", looked_at={"recommendations": what_is_looked_at}),
    *breaks(
        "next items that were foreseen",
        dropped={"recommendation_quality": less},
        too_many={"recommendation_quality": shifted("queries", 1)},
        of_other_lists={"recommendations": backwards},
        shifted={"recommendation_quality": shifted("start_ms", 1)},
    ),
    *breaks(
        "next items foreseen, more than by what is popular",
        never={"recommendation_quality": stuck("hit_rate", 0.0)},
        popular_alone={"recommendation_quality": stuck("popular_hit_rate", 1.0)},
    ),
    *breaks(
        "clicks on next items",
        dropped={"recommendation_clicks": less},
        of_other_places={"recommendation_clicks": shifted("rank", 1)},
        of_other_lists={"recommendations": backwards},
    ),
    *breaks(
        "lists that were clicked",
        dropped={"recommendation_click_through": less},
        all_of_them={
            "recommendation_click_through": lambda rows: [{**r, "clicked": r["lists"]} for r in rows]
        },
        too_many={"recommendation_click_through": shifted("lists", 1)},
        shifted={"recommendation_click_through": shifted("start_ms", 1)},
    ),
    *breaks(
        "clicks that shoppers made on lists",
        dropped={"recommendation_clicks": halved},
        of_other_places={"recommendation_clicks": shifted("rank", 1)},
        of_other_arms={"recommendation_clicks": stuck("arm", "popular")},
    ),
    *breaks(
        "click-through of lists that were read",
        dropped={"recommendation_clicks": halved},
        arms_swapped={"recommendations": swapped("arm")},
        all_of_one_arm={"recommendations": stuck("arm", "learned")},
    ),
    *breaks(
        "clicks that recommending adds: resume",
        of_recommended_dropped={"recommendation_clicks": of_arm("learned", dropped)},
        all_of_one_arm={"recommendation_clicks": stuck("arm", "popular")},
    ),
    *breaks(
        "clicks that recommending adds: discover",
        of_recommended_dropped={"recommendation_clicks": of_arm("learned", dropped)},
    ),
    *breaks(
        "next items that were sold out",
        shown={"recommendations": what_was_dropped_is_shown},
        later={"recommendations": shifted("event_time_ms", 20 * MINUTE)},
    ),
    *breaks("items dropped that were not sold out", others={"recommendations": what_was_shown_is_dropped}),
    *breaks("nothing that was late", one_set_aside={"late": added({"event": "e"})}),
    *breaks(
        "offers on the topic = rows in offers",
        one_not_in_the_table={"offers": less},
        one_not_on_the_topic={"offers": added({"_event_id": "another"})},
    ),
)


@pytest.mark.parametrize("one", sampled(LEDGER), ids=str)
def test_a_check_against_the_ledger_fails_where_its_feature_is_broken(one: Break, seen: Seen) -> None:
    assert fails(of_ledger(seen, one), one.check)


@pytest.mark.parametrize("one", sampled(DEMO), ids=str)
def test_a_check_of_the_demo_fails_where_its_feature_is_broken(
    one: Break, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fails(of_demo(seen, monkeypatch, one), one.check)


def test_every_check_is_listed_with_what_breaks_it(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [check.name for check in of_ledger(seen)]
    check_listed("`millrace demo clickstream` and `millrace evaluate clickstream shop`", names, LEDGER)
    check_listed("`millrace demo clickstream` alone", [c.name for c in of_demo(seen, monkeypatch)], DEMO)


def test_what_is_read_of_an_offer_can_be_a_map_of_delta(seen: Seen) -> None:
    tables, ledger, end_ms = seen
    pairs = [{**row, "why": list(row["why"].items())} for row in tables["offers"]]
    all_hold(of_ledger(({**tables, "offers": pairs}, ledger, end_ms)))


def test_a_later_look_that_counts_for_an_older_list_is_not_the_one_that_its_reader_tells_of() -> None:
    """Lists a and b; then a look at what is on a alone: it counts for a, of which the ledger told before.

    ::

        lists    a (boot)      b (shoe)
        looks              b            c (boot)
    """

    def shown(cause: str, at: int, item: str) -> dict[str, Any]:
        about = {"surface": "resume", "arm": "learned", "visitor_id": "v"}
        return {"cause": cause, "event_time_ms": at, "items": [item], **about}

    def read(cause: str, at: int, click: str | None) -> WorldTruth:
        detail = {"cause": cause, "surface": "resume", "arm": "learned", "due_ms": at, "read": True,
                  "chance": 0.5, "drawn": False, "click": click, "item": None, "rank": None}  # fmt: skip
        return WorldTruth(f"list-{cause}", "list", "v", "read", detail, [], [], at, at)

    lists = [shown("a", 10, "boot"), shown("b", 20, "shoe"), shown("c", 30, "sock")]
    later = {"list_cause": "a", "surface": "resume", "arm": "learned", "visitor_id": "v", "cause": "c",
             "item": "boot", "rank": 1, "shown_ms": 10, "event_time_ms": 30}  # fmt: skip

    def failing(click: dict[str, Any]) -> set[str]:
        truths = [read("a", 10, None), read("b", 20, None)]
        checks = check_read(lists, [click], truths, Consents([]), within_ms=MINUTE, until_ms=HOUR)
        return {check.name for check in checks if not check.ok}

    assert failing(later) == set()
    # The look that came next would have been told of.
    next_one = {**later, "cause": "b", "event_time_ms": 20}
    assert failing(next_one) == {
        "clicks that shoppers made on lists",
        "click-through of lists that were read",
    }
    assert failing({**later, "list_cause": "b", "shown_ms": 20}) == failing(next_one)
