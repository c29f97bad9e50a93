"""The app's tables compared with what a generator says is true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from millrace.console.report import Check, equal, same
from millrace.testing.world_ledger import ReadLedger, WorldTruth

Rows = Callable[[str], list[dict[str, Any]]]
_MINUTE_MS: Final = 60_000
_GAP_MS: Final = 30 * _MINUTE_MS
#: Bots of which so many events have come have shown how fast they are.
_SHOWN: Final = 100


def check_ledger(rows: Rows, ledger: ReadLedger, *, end_ms: int, cart_timeout_ms: int) -> list[Check]:
    """Compare tables with a ledger.

    What the end of the run cuts through is left out: the app has not been told how it went on. So are truths
    of which an event came late or never.

    Args:
        rows: Name of a table → its rows.
        ledger: What the generator did.
        end_ms: Up to when everything has been said, UTC ms.
        cart_timeout_ms: After which time a cart is left, ms; 15 minutes or more.
    """
    truths: dict[str, list[WorldTruth]] = {}
    for truth in ledger.truths:
        truths.setdefault(truth.kind, []).append(truth)
    sessions = rows("sessions")
    letters = Counter(row["reason"] for row in rows("dead_letters"))
    faults = ledger.summary.faults
    offers = [row["offer_id"] for row in rows("offers")]
    return [
        *_sessions(sessions, truths.get("session", []), end_ms - _GAP_MS),
        _bots(sessions, truths.get("bot", []), end_ms - _GAP_MS),
        *_carts(
            rows("abandonments"), truths.get("abandonment", []), end_ms - cart_timeout_ms, cart_timeout_ms
        ),
        *_orders(rows("attributions"), truths, end_ms),
        _consents(rows("consents"), truths.get("consent_withdrawn", []), end_ms),
        _erased(rows("profiles"), truths.get("erasure", []), end_ms),
        equal("repeats in dead letters", faults.get("duplicate", 0), letters["duplicate"]),
        equal(
            "malformed in dead letters",
            faults.get("malformed", 0),
            sum(letters[reason] for reason in ("malformed", "schema", "range")),
        ),
        equal("no offer twice", 0, len(offers) - len(set(offers))),
    ]


def _sessions(rows: list[dict[str, Any]], truths: Iterable[WorldTruth], until: int) -> list[Check]:
    found = {
        (r["visitor_id"], r["start_ms"], r["end_ms"], r["events"], r["page_views"])
        for r in rows
        if r["is_final"] and not r["bot"] and r["end_ms"] <= until
    }
    told = [t for t in truths if t.detail["end_ms"] <= until]
    whole = {_session(t) for t in told if not t.disturbed}
    disturbed = {(t.entity, t.detail["start_ms"]) for t in told if t.disturbed}
    found = {row for row in found if row[:2] not in disturbed}
    return [same("sessions that are over", whole, found, "visitor, start, end, events, views")]


def _session(truth: WorldTruth) -> tuple[Any, ...]:
    return (truth.entity, *(truth.detail[k] for k in ("start_ms", "end_ms", "events", "page_views")))


def _bots(rows: list[dict[str, Any]], truths: list[WorldTruth], until: int) -> Check:
    found = {r["visitor_id"] for r in rows if r["bot"]}
    over = [t for t in truths if t.detail["end_ms"] <= until]
    shown = {t.entity for t in over if t.detail["by"] == "user_agent" or len(t.event_ids) > _SHOWN}
    holds = shown <= found <= {t.entity for t in truths}
    return Check("bots found, nobody else", f"{len(shown):,}", f"{len(found):,}", holds, "or more that began")


def _carts(
    rows: list[dict[str, Any]], truths: Iterable[WorldTruth], until: int, timeout_ms: int
) -> list[Check]:
    whole = [t for t in truths if not t.disturbed]
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
    bought = {t.entity: t.detail["bought_ms"] for t in whole if t.detail["bought_ms"] is not None}
    after = sum(r["since_ms"] >= bought.get(r["cart_id"], r["since_ms"] + 1) for r in rows)
    return [
        same("carts that were left", expected, found, "cart, time, stage and value"),
        equal("no cart left after its purchase", 0, after),
    ]


def _orders(rows: list[dict[str, Any]], truths: dict[str, list[WorldTruth]], until: int) -> list[Check]:
    bought = [t for t in truths.get("attribution", []) if t.last_event_time_ms <= until and not t.disturbed]
    held = {r["order_id"]: r for r in rows}
    expected = {(t.entity, t.detail["amount_cents"]) for t in bought}
    found = {(o, held[o]["amount_cents"]) for o, _ in expected if o in held}
    alone = [t for t in bought if len(t.detail["visitors"]) == 1 and t.entity in held]
    touches = {
        (t.entity, t.detail["first_touch"] or "direct", t.detail["last_touch"] or "direct") for t in alone
    }
    mine = {(t.entity, held[t.entity]["first_touch"], held[t.entity]["last_touch"]) for t in alone}
    back: Counter[str] = Counter()
    for t in truths.get("refund", []):
        if t.last_event_time_ms <= until and not t.disturbed:
            back[t.entity] += t.detail["amount_cents"]
    refunded = {(o, cents) for o, cents in back.items() if o in held}
    taken = {(o, held[o]["refunded_cents"]) for o in back if o in held}
    return [
        same("conversions: orders and their value", expected, found),
        same("first and last touch", touches, mine, "of orders by one browser: others need consent"),
        same("refunds taken off", refunded, taken),
    ]


def _consents(rows: list[dict[str, Any]], truths: Iterable[WorldTruth], until: int) -> Check:
    expected = {t.entity for t in truths if t.last_event_time_ms <= until and not t.disturbed}
    found = {r["visitor_id"] for r in rows if not r["granted"]}
    return equal("withdrawals in the audit", len(expected), len(expected & found))


def _erased(rows: list[dict[str, Any]], truths: Iterable[WorldTruth], until: int) -> Check:
    gone = {f"u:{t.entity}" for t in truths if t.last_event_time_ms <= until and not t.disturbed}
    return equal("no profile of who asked for erasure", 0, len(gone & {r["person"] for r in rows}))
