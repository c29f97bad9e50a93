"""Answers to the question for consent, against a reading of the whole history."""

from __future__ import annotations

import random

import msgspec
import pytest

from millrace_apps.clickstream.contracts.events import Consent
from millrace_apps.clickstream.evaluation.consent import drawn as history
from millrace_apps.clickstream.evaluation.consent import evaluate_consent, run, wrong
from millrace_apps.clickstream.state.consent import BITS, OFFER, STITCH, Answer, Answers, Step, names
from millrace_apps.clickstream.state.offers import KeptOffers
from millrace_apps.clickstream.state.registers import MOST_ANSWERS, Register
from tests.cases import case_count
from tests.unit.apps.clickstream.app_cases import DAY, HOUR, MINUTE, keyed, run_app, shop_chain
from tests.unit.apps.clickstream.test_caps import rule
from tests.unit.apps.clickstream.test_identity import login
from tests.unit.apps.clickstream.test_visitor import START, click, consent, driver, send

CASES = 10_000
HISTORIES = case_count(150)


def drawn(draws: random.Random) -> list[Answer]:
    """Answers with different names, some of one moment."""
    return [
        Answer(draws.randrange(1, 40), f"a{number}", draws.randrange(8), draws.random() < 0.5)
        for number in range(draws.randrange(1, 9))
    ]


def allowed_by(answers: list[Answer]) -> list[str]:
    """What is allowed by an own reading: of each purpose the newest answer that names it."""
    found = []
    for name, bit in BITS.items():
        naming = [a for a in answers if a.bits & bit]
        newest = max((a.at_ms for a in naming), default=None)
        if naming and all(a.granted for a in naming if a.at_ms == newest):
            found.append(name)
    return found


def _place(answer: Answer) -> tuple[int, int, str]:
    """Of one moment withdrawals are last."""
    return answer.at_ms, 0 if answer.granted else 1, answer.consent_id


def test_what_was_said_last_holds_in_whichever_order_answers_come() -> None:
    draws = random.Random(5)
    for _ in range(CASES):
        said = drawn(draws)
        draws.shuffle(said)
        kept, horizon = Answers(), 0
        for number, answer in enumerate(said, 1):
            horizon = max(horizon, draws.choice((0, horizon, draws.randrange(45))))
            steps = kept.take(answer, horizon)
            assert steps[0].answer is answer or answer in [step.answer for step in steps]
            assert names(kept.in_force) == allowed_by(said[:number])


def test_rows_hang_on_the_answers_alone() -> None:
    draws = random.Random(6)
    for _ in range(CASES):
        said = drawn(draws)
        expected = {a.consent_id: allowed_by([b for b in said if _place(b) <= _place(a)]) for a in said}
        draws.shuffle(said)
        kept, rows = Answers(), dict[str, Step]()
        for answer in said:
            rows |= {step.answer.consent_id: step for step in kept.take(answer, 0)}
        assert {name: names(step.after) for name, step in rows.items()} == expected
        ordered = [rows[a.consent_id] for a in sorted(said, key=_place)]
        assert [step.before for step in ordered] == [0, *(step.after for step in ordered[:-1])]


def test_an_older_grant_that_comes_later_gives_nothing_back() -> None:
    target = driver()
    send(target, consent(0), click(1, "login", user_id="u1"))
    send(target, consent(10, ("personalisation", "marketing"), granted=False))
    send(target, consent(5))
    send(target, click(11, item_id="i1", user_id="u1"))
    rows = {row.at_ms - START: row for row in target.values("consents")}
    assert [rows[at].in_force for at in (0, 5, 10)] == [[*BITS], [*BITS], ["analytics"]]
    assert [a for a in target.values() if getattr(a, "subject", None) == "i1"] == []


def test_a_row_that_an_older_answer_changes_is_written_again() -> None:
    target = driver()
    send(target, consent(10, ("marketing",)))
    send(target, consent(5, ("personalisation",)))
    found = [(row.at_ms - START, row.in_force) for row in target.values("consents")]
    assert found == [
        (10, ["marketing"]),
        (5, ["personalisation"]),
        (10, ["personalisation", "marketing"]),
    ]
    revisions = [row.revision for row in target.values("consents")]
    assert revisions == sorted(set(revisions))


def test_a_withdrawal_with_the_id_of_a_click_counts() -> None:
    target = driver()
    send(target, consent(0))
    send(target, click(1, id="consent-v1-3"))
    send(target, consent(3, ("marketing",), granted=False))
    assert [row.withdrawn for row in target.values("consents")] == [False, True]


def test_who_takes_back_consent_has_asked_to_be_forgotten_for_nothing_and_the_cart_is_counted() -> None:
    """No account is named by it; only who asks for it is forgotten, cart and all."""
    fills = click(1, "add_to_cart", item_id="a", cart_id="c1", price=5.0, quantity=1, page_type="item")
    run = run_app(
        keyed(consent(0), fills, consent(MINUTE, granted=False), click(3 * HOUR, visitor="v2")), batch=1
    )
    assert run.rows("Entities.forget") == run.rows("Visitors.erasures") == []
    assert [(r["cart_id"], r["user_id"]) for r in run.rows("Entities.abandonments")] == [("c1", None)]
    assert run.rows("offers") == []


def test_a_browser_that_is_linked_again_is_not_told_again_what_was_said_elsewhere() -> None:
    """Twice told it is a repeat, and stands among the dead letters, though nobody has sent anything twice."""
    said = consent(0, visitor="v2", user="u1")
    clicks = [
        click(n * MINUTE, visitor="v1", user_id="u1", page_url=f"https://shop.example/x?utm_source=s{n}")
        for n in range(1, 4)
    ]
    run = run_app(keyed(said, consent(1), *clicks), batch=1)
    told = [r for r in run.rows("Entities.consents") if r["visitor_id"] == "v1"]
    assert len(told) == len({r["consent_id"] for r in told}) == 3


def test_a_register_says_what_was_said_last_in_whichever_order_and_however_often() -> None:
    draws = random.Random(7)
    for _ in range(CASES // 4):
        said = drawn(draws)
        come = [*said, *draws.choices(said, k=draws.randrange(4))]
        draws.shuffle(come)
        register = Register()
        for answer in come:
            register.take(answer.bits, answer.at_ms, answer.granted)
        at = draws.randrange(45)
        for name, bit in BITS.items():
            naming = [a for a in said if a.bits & bit]
            refused = bool(naming) and name not in allowed_by(naming)
            assert register.refuses(bit) == refused
            then = [a for a in naming if a.at_ms <= at]
            assert register.refuses(bit, at) == (refused or (bool(then) and name not in allowed_by(then)))
        held = {bit: (at_ms, granted) for bit, at_ms, granted in register.entries()}
        assert {BITS[name] for name in BITS if held.get(BITS[name], (0, False))[1]} == {
            BITS[name] for name in allowed_by(said)
        }


def test_a_withdrawal_is_kept_however_much_is_said_and_however_old_what_comes_is() -> None:
    register = Register()
    register.take(7, 10_000, False)
    for at in range(3 * MOST_ANSWERS):
        register.take(7, at, True)
    assert register.refuses(STITCH)
    assert register.refuses(OFFER)
    assert max(map(len, register.said)) == MOST_ANSWERS


def test_random_histories_through_the_whole_app_allow_nothing_that_was_withdrawn() -> None:
    report = evaluate_consent(HISTORIES, 5400)
    assert report["failures"] == []
    assert min(report["offers"], report["profiles"], report["told"]) > HISTORIES // 3


@pytest.mark.parametrize("what", ["profile", "offer", "in force"])
def test_what_no_answer_allows_is_seen(what: str) -> None:
    """The comparison is worth something: what is broken on purpose is told."""
    seen = 0
    for seed in range(case_count(30)):
        told, found = history(seed), run(history(seed))
        assert wrong(told, found) == []
        if what == "profile":
            found.profiles |= {"u:u0", "u:u1"}
        elif what == "offer":
            found.offers = [({**o, "person": "v:b9", "visitor_id": "b9"}, place) for o, place in found.offers]
        else:
            for row in found.consents.values():
                row["in_force"] = ["marketing"]
        seen += bool(wrong(told, found))
    assert seen > case_count(30) // 10


def test_a_withdrawal_on_the_phone_ends_offers_and_identity_on_the_laptop() -> None:
    """What the app tells the laptop comes back by the topic of answers; offers end before that.

    ======  ===========================  ==================  ==========
    laptop  consent, login, view                             view
    phone                                login, withdrawal
    ======  ===========================  ==================  ==========
    """
    chain = shop_chain(bound_ms=0)
    laptop, phone = ("v1", "v2")
    both = [consent(0, visitor=v, user="u1") for v in (laptop, phone)]
    logins = [click(n + 1, "login", v, user_id="u1") for n, v in enumerate((laptop, phone))]
    chain.run_batch(keyed(*both, *logins, click(5, item_id="i1", user_id="u1")))
    taken = consent(10, ("personalisation",), phone, granted=False, user="u1")
    found = chain.run_batch(keyed(taken, click(11, "page_view", phone)))
    told = [msgspec.json.decode(e.payload, type=Consent) for e in found if e.output == "Entities.consents"]
    assert [(t.visitor_id, t.purposes, t.granted, t.told) for t in told] == [
        (laptop, ("personalisation",), False, phone)
    ]
    found = chain.run_batch(keyed(click(12, item_id="i2", user_id="u1")))
    assert [e for e in found if e.output == "Entities.profiles"] == []
    found = chain.run_batch(keyed(*told))
    gone = [msgspec.json.decode(e.payload) for e in found if e.output == "Visitors.identities"]
    assert [(row["visitor_id"], row["deleted"]) for row in gone] == [(laptop, True)]


@pytest.mark.parametrize("turned", [False, True])
def test_of_what_is_said_of_one_moment_the_newest_revision_holds(turned: bool) -> None:
    said = [(21, True, 1), (21, False, 2), (30, True, 3)]
    state = KeptOffers()
    for at, granted, revision in reversed(said) if turned else said:
        state.browser_says("v1", at, granted, revision)
    assert [state.forbids("v1", at) for at in (20, 21, 29, 30)] == [False, True, True, False]


@pytest.mark.parametrize("merges", [False, True])
def test_who_logs_in_where_consent_was_given_again_long_after_may_be_offered_something(merges: bool) -> None:
    """Whose the browser was is forgotten there by then; the account still knows of the withdrawal."""
    offer = (rule("searched", "search", cap=9, cap_within="7d", cool_down="0m"),)
    events = [consent(0), login(1), click(2, "search", query="a", user_id="u1")]
    events += [click(MINUTE, visitor="v2"), consent(HOUR, granted=False), click(DAY, visitor="v2")]
    events += [consent(2 * DAY)]
    events += [login(2 * DAY + 1), click(2 * DAY + 2, "search", query="b", user_id="u1")]
    run = run_app(keyed(*events), batch=1, offers=offer, holdout=0.0, merges_caps=merges)
    made = run.rows("main" if merges else "offers")
    assert [(r["person"], r["at_ms"] - START) for r in made] == [("u:u1", 2), ("u:u1", 2 * DAY + 2)]


def test_consent_that_is_said_again_is_there_since_it_was_given() -> None:
    """Also when the answers themselves are not kept any more; an hour later a session may ask for it."""
    kept = Answers()
    for number, (at, granted) in enumerate(((10, True), (20, False), (30, True), (40, True))):
        kept.take(Answer(at, f"c{number}", STITCH, granted), 0)
    wanted = [bool(kept.at(at) & STITCH) for at in range(5, 50, 10)]
    assert wanted == [False, False, False, True, True]
    kept.settle(100)
    assert [bool(kept.at(at) & STITCH) for at in range(5, 50, 10)] == wanted
    assert kept.answers == []
