"""The app's tables compared with what a generator says is true."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from millrace.console.report import Check, equal, same
from millrace.testing.world_ledger import ReadLedger, WorldTruth
from millrace_apps.clickstream.contracts.rows import digest_of
from millrace_apps.clickstream.evaluation.answer_checks import check_answers
from millrace_apps.clickstream.evaluation.offer_checks import (
    STITCHING,
    Consents,
    check_offers,
    check_outcomes,
    check_purchases_after_logins,
)
from millrace_apps.clickstream.evaluation.order_checks import check_orders, value_of_lines
from millrace_apps.clickstream.processes.counters import LEAST_SEARCHING, PLACES
from millrace_apps.clickstream.processes.offer_rules import DEFAULT_RULES, OfferRule
from millrace_apps.clickstream.state.browser_state import HOLDOUT

Rows = Callable[[str], list[dict[str, Any]]]
_MINUTE_MS: Final = 60_000
_GAP_MS: Final = 30 * _MINUTE_MS
_FIVE_MS: Final = 5 * _MINUTE_MS
_HOUR_MS: Final = 60 * _MINUTE_MS
_RETURN_MS: Final = 10 * _MINUTE_MS
#: By what a bot is found → after how many events for certain, and how that is told of.
_SHOWN: Final = {
    "user_agent": (0, ("user_agent",)),
    "rate": (100, ("rate",)),
    "pace": (350, ("rate/10m", "rate/1h")),
    "alone": (170, ("views_alone",)),
    "regular": (60, ("regular",)),
}
_FAST: Final = ("user_agent", "rate")


def check_ledger(
    rows: Rows,
    ledger: ReadLedger,
    *,
    end_ms: int,
    cart_timeout_ms: int,
    rules: Sequence[OfferRule] = DEFAULT_RULES,
    holdout: float = HOLDOUT,
    merges_caps: bool = False,
    listening: bool = False,
) -> list[Check]:
    """Compare tables with a ledger.

    What the end of the run cuts through is left out: the app has not been told how it went on. So are truths
    of which an event came late or never.

    Args:
        rows: Name of a table → its rows.
        ledger: What the generator did.
        end_ms: Up to when everything has been said, UTC ms.
        cart_timeout_ms: After which time a cart is left, ms; 15 minutes or more.
        rules: Rules of offers that were in force.
        holdout: Share of the persons who are offered nothing by any of them.
        merges_caps: Whether caps hold over all browsers of a person.
        listening: Whether shoppers were to listen to offers.
    """
    truths: dict[str, list[WorldTruth]] = defaultdict(list)
    for truth in ledger.truths:
        truths[truth.kind].append(truth)
    sessions, offers = rows("sessions"), rows("offers")
    letters = Counter(row["reason"] for row in rows("dead_letters"))
    faults = ledger.summary.faults
    told = rows("consents")
    answers = [row for row in told if not row["told"]]
    consents = Consents(told)
    abandonments = rows("abandonments")
    erased = _forgotten(truths)
    broken = sum(letters[reason] for reason in ("malformed", "schema", "range"))
    return [
        *_sessions(sessions, truths["session"], end_ms - _GAP_MS, erased),
        *_bots(sessions, truths["bot"], end_ms - _GAP_MS),
        *_carts(abandonments, truths["abandonment"], end_ms - cart_timeout_ms, cart_timeout_ms, erased),
        *_attributions(rows("attributions"), truths, end_ms),
        *check_orders(rows("orders"), rows("revenue"), rows("attributions"), truths, until_ms=end_ms),
        *_consents(answers, truths["consent_withdrawn"], ledger, end_ms),
        # What is asked for comes back over a topic before browsers are forgotten.
        *_erased(rows, truths, consents, end_ms - _RETURN_MS),
        *check_offers(
            offers,
            abandonments,
            consents,
            rules,
            holdout=holdout,
            until_ms=end_ms,
            erased=erased,
            orders=truths["attribution"],
            changes=rows("cap_changes") if merges_caps else (),
        ),
        *check_outcomes(
            rows("outcomes"), offers, truths["attribution"], truths["identity"], consents, until_ms=end_ms
        ),
        *(
            [
                check_purchases_after_logins(
                    rows("outcomes"),
                    offers,
                    truths["attribution"],
                    truths["identity"],
                    consents,
                    rows("cap_changes"),
                    until_ms=end_ms,
                    erased=erased,
                )
            ]
            if merges_caps
            else []
        ),
        *check_answers(
            offers,
            rows("outcomes"),
            truths["offer"],
            truths["attribution"],
            truths["identity"],
            consents,
            until_ms=end_ms,
            listening=listening,
        ),
        *_boards(rows("boards"), truths, end_ms, erased),
        equal("repeats in dead letters", faults.get("duplicate", 0), letters["duplicate"]),
        equal("malformed in dead letters", faults.get("malformed", 0), broken),
        equal(
            "other dead letters",
            0,
            letters.total() - letters["duplicate"] - broken,
            of=letters.total(),
        ),
    ]


def _forgotten(truths: dict[str, list[WorldTruth]]) -> frozenset[str]:
    """Return the persons, and the browsers by themselves, of accounts that have asked to be forgotten.

    A browser that several use is forgotten with each of them.
    """
    users = {truth.entity for truth in truths["erasure"]}
    visitors = {visitor for truth in truths["erasure"] for visitor in truth.detail["visitors"]}
    visitors |= {t.entity for t in truths["identity"] if t.detail["user_id"] in users}
    return frozenset({*(f"u:{user}" for user in users), *(f"v:{visitor}" for visitor in visitors)})


def _sessions(
    rows: list[dict[str, Any]], truths: Iterable[WorldTruth], until: int, erased: frozenset[str]
) -> list[Check]:
    # The last session of a browser that is forgotten is not ended, but gone.
    rows = [r for r in rows if f"v:{r['visitor_id']}" not in erased]
    found = {
        (r["visitor_id"], r["start_ms"], r["end_ms"], r["events"], r["page_views"])
        for r in rows
        if r["is_final"] and not r["bot"] and r["end_ms"] <= until
    }
    told = [t for t in truths if t.detail["end_ms"] <= until and f"v:{t.entity}" not in erased]
    whole = {_session(t) for t in told if not t.disturbed}
    disturbed = {(t.entity, t.detail["start_ms"]) for t in told if t.disturbed}
    found = {row for row in found if row[:2] not in disturbed}
    ids = [r["session_id"] for r in rows]
    return [
        same("sessions that are over", whole, found, "visitor, start, end, events, views"),
        equal("no session twice", 0, len(ids) - len(set(ids)), of=len(ids)),
    ]


def _session(truth: WorldTruth) -> tuple[Any, ...]:
    return (truth.entity, *(truth.detail[k] for k in ("start_ms", "end_ms", "events", "page_views")))


def _bots(rows: list[dict[str, Any]], truths: list[WorldTruth], until: int) -> list[Check]:
    found = {r["visitor_id"]: r["bot"] for r in rows if r["bot"]}
    over = [t for t in truths if t.detail["end_ms"] <= until]
    shown = {t.entity: t for t in over if len(t.event_ids) > _SHOWN[t.detail["by"]][0]}
    # A lost event is a pause that differs from the others.
    shown = {v: t for v, t in shown.items() if t.detail["by"] != "regular" or not t.disturbed}
    holds = shown.keys() <= found.keys() <= {t.entity for t in truths}
    due = {(v, t.detail["by"]) for v, t in shown.items()}
    told = {
        (visitor, shown[visitor].detail["by"])
        for visitor, why in found.items()
        if visitor in shown and why in _SHOWN[shown[visitor].detail["by"]][1]
    }
    return [
        Check(
            "bots found, nobody else",
            f"{len(shown):,}",
            f"{len(found):,}",
            holds,
            "or more that began",
            compared=len(shown),
        ),
        same("why bots are bots", due, told),
        same("slow bots", {o for o in due if o[1] not in _FAST}, {o for o in told if o[1] not in _FAST}),
    ]


def _carts(
    rows: list[dict[str, Any]],
    truths: Iterable[WorldTruth],
    until: int,
    timeout_ms: int,
    erased: frozenset[str],
) -> list[Check]:
    # A cart of somebody who is forgotten is forgotten with it.
    whole = [t for t in truths if not t.disturbed and not erased & _names(t)]
    expected = {
        (t.entity, spell["since_ms"], spell["stage"], spell["value_cents"])
        for t in whole
        for spell in t.detail["idle"]
        if spell["since_ms"] <= until
        and (spell["until_ms"] is None or spell["until_ms"] - spell["since_ms"] > timeout_ms)
    }
    keys = {t.entity for t in whole}
    found = {
        (r["cart_id"], r["since_ms"], r["stage"], r["value_cents"])
        for r in rows
        if r["since_ms"] <= until and r["cart_id"] in keys
    }
    inside = {
        (t.entity, spell["since_ms"], tuple(spell["items"]))
        for t in whole
        for spell in t.detail["idle"]
        if (t.entity, spell["since_ms"], spell["stage"], spell["value_cents"]) in expected
    }
    listed = {(r["cart_id"], r["since_ms"], tuple(r["items"] or ())) for r in rows}
    told = {one[:2] for one in inside}
    twice = len(rows) - len({(r["cart_id"], r["since_ms"]) for r in rows})
    bought = {t.entity: t.detail["bought_ms"] for t in whole if t.detail["bought_ms"] is not None}
    after = sum(r["since_ms"] >= bought.get(r["cart_id"], r["since_ms"] + 1) for r in rows)
    return [
        same("carts that were left", expected, found, "cart, time, stage and value"),
        same("items in carts that were left", inside, {one for one in listed if one[:2] in told}, "in order"),
        equal("no cart left twice at one time", 0, twice, of=len(rows)),
        equal("carts left after their purchase", 0, after, of=len(bought)),
    ]


def _names(cart: WorldTruth) -> set[str]:
    return {f"v:{cart.detail['visitor_id']}", f"u:{cart.detail['user_id']}"}


def _attributions(rows: list[dict[str, Any]], truths: dict[str, list[WorldTruth]], until: int) -> list[Check]:
    bought = [t for t in truths["attribution"] if t.last_event_time_ms <= until and not t.disturbed]
    held = {r["order_id"]: r for r in rows}
    expected = {(t.entity, t.detail["amount_cents"]) for t in bought}
    others = {t.entity for t in truths["attribution"]} - {t.entity for t in bought}
    found = {(o, r["amount_cents"]) for o, r in held.items() if o not in others}
    # After a logout touches are nobody's, but only where the login was known by consent.
    alone = [
        t for t in bought if len(t.detail["visitors"]) == 1 and not t.detail["parted"] and t.entity in held
    ]
    touches = {
        (t.entity, t.detail["first_touch"] or "direct", t.detail["last_touch"] or "direct") for t in alone
    }
    mine = {(t.entity, held[t.entity]["first_touch"], held[t.entity]["last_touch"]) for t in alone}
    return [
        same("conversions: orders and their value", expected, found),
        equal("no order twice", 0, len(rows) - len(held), of=len(rows)),
        same(
            "first and last touch",
            touches,
            mine,
            "of orders by one browser without a logout: others need consent",
        ),
    ]


def _consents(
    rows: list[dict[str, Any]], truths: Iterable[WorldTruth], ledger: ReadLedger, until: int
) -> list[Check]:
    expected = {
        (t.entity, t.last_event_time_ms) for t in truths if t.last_event_time_ms <= until and not t.disturbed
    }
    withdrawn = {(r["visitor_id"], r["at_ms"]) for r in rows if not r["granted"]}
    ids = [r["consent_id"] for r in rows]
    return [
        equal("answers to the question for consent", ledger.summary.streams.get("consents", 0), len(ids)),
        equal("no answer twice", 0, len(ids) - len(set(ids)), of=len(ids)),
        equal("withdrawals in the audit", len(expected), len(expected & withdrawn)),
    ]


def _erased(rows: Rows, truths: dict[str, list[WorldTruth]], consents: Consents, until: int) -> list[Check]:
    """Compare what is left of persons who asked for erasure, and the audit of their browsers."""
    asked = [t for t in truths["erasure"] if t.last_event_time_ms <= until and not t.disturbed]
    requests = {t.entity: t.truth_id.removeprefix("truth-") for t in asked}
    left = {f"u:{user}" for user in requests} & {r["person"] for r in rows("profiles")}
    known = {r["visitor_id"] for r in rows("identities") if r["user_id"] in requests}
    due = set()
    for login in truths["identity"]:
        user, visitor, at = login.detail["user_id"], login.entity, login.last_event_time_ms
        alone = user in requests and not login.detail["shared"] and not login.disturbed
        known_then = alone and consents.allow(visitor, at, STITCHING)
        if known_then and not consents.changed(visitor, at, until):
            due.add((requests[user], digest_of(visitor)))
    found = {(r["request_id"], r["subject_digest"]) for r in rows("erasures")}
    all_requests = {t.truth_id.removeprefix("truth-") for t in truths["erasure"]}
    foreign = sum(request not in all_requests for request, _ in found)
    return [
        equal("profiles of who asked for erasure", 0, len(left), of=len(requests)),
        equal("browsers known of who asked for erasure", 0, len(known), of=len(due)),
        equal("browsers forgotten in the audit", len(due), len(due & found)),
        equal("audited without a request", 0, foreign, of=len(found)),
    ]


def _boards(
    rows: list[dict[str, Any]], truths: dict[str, list[WorldTruth]], until: int, erased: frozenset[str]
) -> list[Check]:
    """Compare the sums of two boards with what the ledger says of their hours."""
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for row in rows:
        if row["window_end_ms"] <= until:
            found[row["board"]][row["window_end_ms"]] += row["value"]
    visits, certain = Counter[int](), Counter[int]()
    for truth in truths["session"]:
        # A visit is over, and counts, when its pause is.
        end = ((truth.detail["end_ms"] + _GAP_MS) // _HOUR_MS + 1) * _HOUR_MS
        if end <= until:
            visits[end] += 1
            certain[end] += f"v:{truth.entity}" not in erased
    revenue = Counter[int]()
    for truth in truths["order"]:
        first = (truth.last_event_time_ms // _FIVE_MS + 1) * _FIVE_MS
        for end in range(first, min(first + _HOUR_MS, until + 1), _FIVE_MS):
            revenue[end] += value_of_lines(truth)
    other, hours = _hours_searched(rows, truths["search"], until)
    counted = found["sources.visits/1h"]
    wrong = sum(not certain[end] <= counted[end] <= visits[end] for end in {*visits, *counted})
    note = "but those of who is forgotten before they are over"
    return [
        equal("hours whose visits are not those on the board", 0, wrong, note, of=visits.total()),
        equal("hours whose search terms are not those on the board", 0, other, of=hours),
        same(
            "revenue on the board", set(revenue.items()), set(found["revenue/1h"].items()), "by hour, cents"
        ),
    ]


def _hours_searched(
    rows: Iterable[dict[str, Any]], truths: Iterable[WorldTruth], until: int
) -> tuple[int, int]:
    """Return for how many hours other terms are on the board than were searched for most, of how many.

    An hour ends every five minutes. What less than three browsers have searched for is left out; searches of
    bots count until they are known as such, and hours of which a search came late or never are left out.
    """
    people: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    bots: dict[int, Counter[str]] = defaultdict(Counter)
    cut = set()
    for truth in truths:
        first = (truth.detail["at_ms"] // _FIVE_MS + 1) * _FIVE_MS
        for end in range(first, min(first + _HOUR_MS, until + 1), _FIVE_MS):
            if truth.disturbed:
                cut.add(end)
            elif truth.detail["bot"]:
                bots[end][truth.detail["term"]] += 1
            else:
                people[end][truth.detail["term"]].append(truth.entity)
    board: dict[int, dict[str, int]] = defaultdict(dict)
    for row in rows:
        if row["board"] == "searches/1h" and row["window_end_ms"] <= until:
            board[row["window_end_ms"]][row["item"]] = row["value"]
    hours = {*people, *bots, *board} - cut
    return sum(not _holds(board[end], people[end], bots[end]) for end in hours), len(hours)


def _holds(told: dict[str, int], people: dict[str, list[str]], bots: Counter[str]) -> bool:
    if any(not len(people[term]) <= n <= len(people[term]) + bots[term] for term, n in told.items()):
        return False
    missing = [len(by) for term, by in people.items() if term not in told and len(set(by)) >= LEAST_SEARCHING]
    return not missing or (len(told) == PLACES and max(missing) <= min(told.values()))
