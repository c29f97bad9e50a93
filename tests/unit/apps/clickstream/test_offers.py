"""Offers: rules as patterns, caps, the control arm, what came of them."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark import cloudpickle

from millrace.errors import UserError
from millrace.experiments import share
from millrace.testing import TestDriver
from millrace.testing.properties import invariant
from millrace_apps.clickstream.contracts.messages import ErasePerson, MarketingConsent, Shopping
from millrace_apps.clickstream.operations.uplift import run, uplift_of, uplifts
from millrace_apps.clickstream.processes.offer_rules import (
    DEFAULT_RULES,
    Condition,
    OfferRule,
    OfferRuleError,
    OfferStep,
    read_rules,
)
from millrace_apps.clickstream.processes.offering import Offers
from millrace_apps.clickstream.state.browser_state import VisitorRules, arm_of
from millrace_apps.clickstream.state.offers import experiment_of
from millrace_apps.generators.clickstream import ClickstreamProfile, responds
from tests.unit.apps.clickstream.app_cases import (
    DAY,
    HOUR,
    MINUTE,
    START,
    click,
    consent,
    keyed,
    run_app,
)

LEFT = OfferRule(
    name="left",
    offer="ten",
    steps=(OfferStep("left", (Condition("kind", is_="abandoned"),)),),
    within="1h",
    counts=("abandoned",),
    control=0.0,
)


def driver(*rules: OfferRule, bound: int = 0) -> TestDriver:
    return TestDriver(Offers(rules or DEFAULT_RULES, 0.0), out_of_orderness_ms=bound)


def view(at: int, category: str, item: str, *, person: str = "u:u1", **fields: Any) -> Shopping:
    given = {"gender": "m", "birth_year": 1986, **fields}
    return Shopping(person, "view", START + at, f"{item}-{at}", "v1", item, category, **given)


def abandoned(at: int, person: str = "u:u1", cart: str = "c1") -> Shopping:
    return Shopping(person, "abandoned", START + at, f"cart-{at}", "v1", cart, stage="cart", cents=1000)


def bought(at: int, person: str = "u:u1") -> Shopping:
    return Shopping(person, "purchase", START + at, f"buy-{at}", "v1", f"o{at}", cents=1000)


def came(*events: Any) -> list[tuple[str, int, Any, str]]:
    """What is told of persons, as the process of offers takes it."""
    return [
        (e.person, e.at_ms, e, "carts" if getattr(e, "kind", "") == "abandoned" else "persons")
        for e in events
    ]


def offers(target: TestDriver, *events: Shopping) -> list[str]:
    for one in events:
        target.send_batch(came(one))
    target.advance_watermark(max(e.at_ms for e in events) + MINUTE)
    return [offer.offer for offer in target.values()]


C, S, X = "clothing", "shoes", "toys"


@pytest.mark.parametrize(
    ("walk", "who", "offer"),
    [
        ([(C, "a"), (S, "b"), (C, "c")], {}, ["offer1"]),
        ([(C, "a"), (S, "b"), (C, "c")], {"gender": "f", "birth_year": 1996}, ["offer2"]),
        ([(C, "a"), (S, "b"), (C, "c")], {"gender": "f"}, []),
        ([(C, "a"), (S, "b"), (C, "c")], {"birth_year": 1966}, []),
        ([(C, "a"), (S, "b"), (C, "c")], {"birth_year": 0}, []),
        ([(C, "a"), (S, "b"), (C, "a")], {}, []),
        ([(C, "a"), (X, "x"), (S, "b"), (C, "c")], {}, []),
        ([(C, "a"), (C, "a"), (S, "b"), (S, "b"), (C, "c")], {}, ["offer1"]),
        ([(C, "a"), (S, "b"), (S, "b2"), (C, "c")], {}, []),
        ([(C, "a"), (C, "d"), (S, "b"), (C, "c")], {}, ["offer1"]),
    ],
)
def test_clothes_shoes_and_other_clothes(
    walk: list[tuple[str, str]], who: dict[str, Any], offer: list[str]
) -> None:
    rules = tuple(msgspec.structs.replace(rule, control=0.0) for rule in DEFAULT_RULES)
    events = [view(n * MINUTE, category, item, **who) for n, (category, item) in enumerate(walk)]
    assert offers(driver(*rules), *events) == offer


@pytest.mark.parametrize(("last", "offer"), [(30 * MINUTE - 1, ["offer1"]), (30 * MINUTE, [])])
def test_the_time_of_a_rule_runs_from_its_first_event(last: int, offer: list[str]) -> None:
    rules = tuple(msgspec.structs.replace(rule, control=0.0) for rule in DEFAULT_RULES)
    walk = [view(0, C, "a"), view(MINUTE, S, "b"), view(last, C, "c")]
    assert offers(driver(*rules), *walk) == offer


def test_an_offer_says_why() -> None:
    target = driver(LEFT)
    offers(target, abandoned(0))
    (offer,) = target.values()
    assert offer.why == {"left": f"abandoned c1 at {START} (cart-0)"}
    assert (offer.cart_id, offer.person, offer.arm) == ("c1", "u:u1", "offer")


@pytest.mark.parametrize(
    ("at", "made"), [(-1, ["ten"]), (0, []), (29 * MINUTE, []), (30 * MINUTE, []), (31 * MINUTE, ["ten"])]
)
def test_to_who_buys_something_else_before_a_cart_is_left_nothing_is_offered(
    at: int, made: list[str]
) -> None:
    """The cart lay idle from 0:00 on and is said to be left at 0:30; another one is bought."""
    left = msgspec.structs.replace(abandoned(30 * MINUTE), since_ms=START)
    events = sorted([left, bought(at)], key=lambda e: e.at_ms)
    assert offers(driver(LEFT), *events) == made


def test_an_order_that_is_told_again_is_no_purchase_of_later() -> None:
    left = msgspec.structs.replace(abandoned(30 * MINUTE), since_ms=START)
    again = msgspec.structs.replace(bought(-HOUR), at_ms=START + MINUTE)
    assert offers(driver(LEFT), bought(-HOUR), again, left) == ["ten"]


def test_of_what_was_bought_nothing_is_kept_after_a_day() -> None:
    target = driver(LEFT)
    offers(target, bought(0))
    assert not target.is_empty()
    target.advance_watermark(START + DAY + HOUR)
    assert target.is_empty()


def test_a_rule_is_capped_and_rules_cool_down() -> None:
    rule = msgspec.structs.replace(LEFT, cap=2, cap_within="7d", cool_down="1d")
    target = driver(rule)
    times = [0, 12 * HOUR, 24 * HOUR, 48 * HOUR, 7 * DAY, 8 * DAY]
    offers(target, *(abandoned(at) for at in times))
    assert [(o.at_ms - START) // HOUR for o in target.values()] == [0, 24, 168, 192]


def test_the_control_arm_gets_a_record_and_stays_the_same() -> None:
    rule = msgspec.structs.replace(LEFT, control=0.5, cool_down="0s", cap=9)
    target = driver(rule)
    people = [f"u:{n}" for n in range(200)]
    both = [abandoned(start + n, person) for start in (0, DAY) for n, person in enumerate(people)]
    offers(target, *both)
    arms: dict[str, set[str]] = {}
    for offer in target.values():
        arms.setdefault(offer.person, set()).add(offer.arm)
    assert all(len(found) == 1 for found in arms.values())
    assert 70 < sum(found == {"control"} for found in arms.values()) < 130


def test_a_replay_in_other_batches_gives_the_same_offers_with_the_same_identities() -> None:
    draw = random.Random(4)
    events = []
    for n in range(40):
        person = f"u:{n % 7}"
        what = draw.choice([abandoned, bought])
        events.append(what(draw.randrange(3 * DAY), person))
        events.append(view(draw.randrange(DAY), draw.choice([C, S]), f"i{n % 5}", person=person))
    invariant(Offers((*DEFAULT_RULES, LEFT), 0.0), came(*events), bound_ms=4 * DAY, seed=3)


def test_what_was_bought_within_seven_days_came_of_the_offer() -> None:
    target = driver(LEFT)
    offers(target, abandoned(0), bought(7 * DAY))
    (outcome,) = target.values("outcomes")
    assert (outcome.converted, outcome.order_id, outcome.cents) == (True, f"o{7 * DAY}", 1000)


def test_nothing_bought_is_an_outcome_after_seven_days_and_nothing_is_left() -> None:
    target = driver(LEFT)
    offers(target, abandoned(0))
    target.advance_watermark(START + 7 * DAY - 1)
    assert target.values("outcomes") == []
    target.advance_watermark(START + 7 * DAY)
    (outcome,) = target.values("outcomes")
    assert not outcome.converted
    target.advance_watermark(START + 40 * DAY)
    assert target.is_empty()


def test_withdrawn_consent_stops_offers_from_the_next_event_also_of_those_on_their_way() -> None:
    walk = [view(0, C, "a"), view(MINUTE, S, "b"), view(3 * MINUTE, C, "c")]
    withdrawn = MarketingConsent("u:u1", START + 2 * MINUTE, "v1", False)
    rules = tuple(msgspec.structs.replace(rule, control=0.0) for rule in DEFAULT_RULES)
    target = driver(*rules, bound=HOUR)
    for one in (*walk, withdrawn):  # the withdrawal comes last
        target.send_batch(came(one))
    target.drain()
    assert target.values() == []


def test_an_erased_person_leaves_no_state() -> None:
    target = driver(LEFT)
    offers(target, abandoned(0))
    assert target.state("u:u1") is not None
    target.send_batch(came(ErasePerson("u:u1", START + MINUTE, "r")))
    target.advance_watermark(START + HOUR)
    assert target.state("u:u1") is None


# -- rules as data -----------------------------------------------------------------------------------


def test_rules_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        """
- name: hesitating
  offer: free-delivery
  within: 2h
  control: 0
  steps:
    - {name: cart, where: [{field: kind, is: add_to_cart}, {field: cents, at_least: 2000}]}
    - {name: again, where: [{field: kind, is: view}, {field: subject, as: cart}, {field: orders, at_most: 3}]}
"""
    )
    (rule,) = read_rules(path)
    cart = Shopping("u:u1", "add_to_cart", START, visitor="v1", subject="tea", cents=2500)
    assert offers(driver(rule), cart, view(1, C, "mug"), view(2, C, "tea")) == ["free-delivery"]
    assert offers(driver(rule), cart, view(2, C, "tea", counts={"orders": 4})) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[{name: a, offer: b, steps: []}]", "no steps"),
        ("[{name: a, offer: b, steps: [{name: x, where: [{field: mood, is: good}]}]}]", "no field 'mood'"),
        ("[{name: a, offer: b, steps: [{name: x, where: [{field: kind}]}]}]", "asks nothing"),
        ("[{name: a, offer: b, steps: [{name: x, where: [{field: kind, as: y}]}]}]", "no earlier step"),
        ("[{name: a, offer: b, within: soon, steps: [{name: x, where: []}]}]", "no length of time"),
        ("[{name: a, offer: b, then: c, steps: []}]", "then"),
        ("- :", "rules.yaml"),
    ],
)
def test_rules_that_cannot_be_understood_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(OfferRuleError, match=said):
        read_rules(path)


# -- uplift ------------------------------------------------------------------------------------------


def test_an_empty_arm_has_no_uplift_and_a_small_one_no_interval() -> None:
    assert uplift_of("r", (3, 10), (0, 0)).uplift is None
    few = uplift_of("r", (3, 10), (30, 100))
    assert (few.uplift, few.low) == (0.0, None)


def test_who_is_in_the_hold_out_is_offered_nothing_by_any_rule_and_is_no_control_arm() -> None:
    """His funnels have the arm `control`: what all offers add together is seen there."""
    other = msgspec.structs.replace(LEFT, name="other", offer="five", cool_down="0s")
    target = TestDriver(Offers((msgspec.structs.replace(LEFT, control=0.3), other), 0.2))
    people = [f"u:{n}" for n in range(400)]
    for n, person in enumerate(people):
        target.send_batch(came(abandoned(n, person)))
    target.advance_watermark(START + HOUR)
    arms: dict[str, set[str]] = {}
    for offer in target.values():
        arms.setdefault(offer.person, set()).add(offer.arm)
    out = {person for person, found in arms.items() if "holdout" in found}
    assert all(arms[person] == {"holdout"} for person in out)
    assert out == {p for p in people if arm_of(p, VisitorRules(holdout=0.2)) == "control"}
    assert 50 < len(out) < 110


def test_an_offers_effect_is_not_read_from_what_is_decided_so_far() -> None:
    """All who buy are known at once, who does not only after 7 days: till then all have bought."""
    rule = msgspec.structs.replace(LEFT, control=0.5)
    offers, outcomes = [], []
    for n in range(2_000):
        person = f"u:{n}"
        arm = experiment_of(rule, 0.0).arm(person)
        offers.append({"offer_id": f"o{n}", "rule": "left", "arm": arm, "person": person, "at_ms": n})
        if n % 10 < (4 if arm == "offer" else 3):
            outcomes.append({"offer_id": f"o{n}", "converted": True, "decided_ms": n + HOUR})
    (early,) = uplifts(offers, outcomes, [rule], until_ms=6 * DAY)
    assert (early.uplift, early.offered, early.maturing) == (None, 0, 2_000)
    (found,) = uplifts(offers, outcomes, [rule], until_ms=8 * DAY)
    assert found.uplift == pytest.approx(0.1, abs=0.03)
    assert found.dealt
    swapped = [{**row, "arm": "offer"} if n % 3 else row for n, row in enumerate(offers)]
    (odd,) = uplifts(swapped, outcomes, [rule], until_ms=8 * DAY)
    assert not odd.dealt


@pytest.mark.parametrize("truth", [0.1, -0.05])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(truth: float) -> None:
    held = 0
    for seed in range(25):
        profile = ClickstreamProfile(seed=seed, recovery=0.15, offer_uplift=truth)
        counts = {"offer": [0, 0], "control": [0, 0]}
        for n in range(300):
            arm = "control" if share(f"v:{n}", "left") < 0.5 else "offer"
            counts[arm][0] += responds(profile, f"{n}", "ten" if arm == "offer" else None)
            counts[arm][1] += 1
        (b1, n1), (b0, n0) = counts["offer"], counts["control"]
        found = uplift_of("left", (b1, n1), (b0, n0))
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
    assert held >= 20


@pytest.mark.parametrize(("seed", "truth"), [(7, 0.10), (8, 0.0)])
def test_the_uplift_that_the_generator_hides_is_within_the_interval(seed: int, truth: float) -> None:
    """900 visitors leave a cart; who gets an offer answers to it, who is in the control arm does not."""
    profile = ClickstreamProfile(seed=seed, recovery=0.15, offer_uplift=truth)
    visitors = [f"visitor-{n}" for n in range(900)]
    rule = msgspec.structs.replace(LEFT, control=0.5)
    filled = []
    for n, visitor in enumerate(visitors):
        at = n * 1_000
        add = click(at + 2, "add_to_cart", visitor, cart_id=f"cart-{visitor}", price=20.0, quantity=1)
        filled += [consent(at, visitor=visitor), add]
    made = run_app(keyed(*filled), offers=(rule,), holdout=0.0).rows("offers")
    assert Counter(o["visitor_id"] for o in made) == Counter(visitors)
    bought = []
    for offer in made:
        visitor = offer["visitor_id"]
        if responds(profile, visitor, offer["offer"] if offer["arm"] == "offer" else None):
            at = offer["at_ms"] - START + HOUR
            bought.append(click(at, "purchase", visitor, cart_id=offer["cart_id"], order_id=f"o-{visitor}"))
    ordered = sorted([*filled, *bought], key=lambda e: e.event_time_ms)
    run = run_app(keyed(*ordered), offers=(rule,), batch=10_000, holdout=0.0)
    assert sorted(o["offer_id"] for o in run.rows("offers")) == sorted(o["offer_id"] for o in made)
    (found,) = uplifts(run.rows("offers"), run.rows("outcomes"), [rule], until_ms=START + 30 * DAY)
    assert found.offered + found.control == len(visitors)
    assert found.dealt
    assert found.low is not None
    assert found.high is not None
    assert found.low <= truth <= found.high


def test_the_process_travels_to_workers_by_its_rules() -> None:
    there: Any = cloudpickle.loads(cloudpickle.dumps(Offers((LEFT,), 0.0)))
    target = TestDriver(there)
    assert offers(target, abandoned(0)) == ["ten"]


def test_the_command_compares_whose_time_is_over_by_the_apps_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = next(r for r in DEFAULT_RULES if r.name == "cart-left")
    arms = [experiment_of(rule, 0.0).arm(f"u:{n}") for n in range(400)]
    tables = {
        "offers": {"offer_id": [f"o{n}" for n in range(400)], "rule": ["cart-left"] * 400, "arm": arms,
                   "person": [f"u:{n}" for n in range(400)], "at_ms": [n * HOUR for n in range(400)]},
        "outcomes": {"offer_id": ["o1", "o2"], "converted": [True, False], "decided_ms": [2 * HOUR, 8 * DAY]},
        "boards": {"window_end_ms": [10 * DAY]},
    }  # fmt: skip
    for name, columns in tables.items():
        write_deltalake(str(tmp_path / "tables" / name), pa.table(columns))
    (found,) = run(sets=[f"storage.root={tmp_path}"], out=tmp_path / "report.json")
    # Of offers at hour 0 to 399 those up to hour 399 less 168 are over: the newest offer is what time it is.
    assert (found.offered + found.control, found.maturing) == (232, 168)
    assert found.offered_bought + found.control_bought == 1
    assert "168 not yet over" in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text())[0]["maturing"] == 168
    with pytest.raises(UserError, match="has the app run"):
        run(sets=[f"storage.root={tmp_path / 'nowhere'}"], out=None)
