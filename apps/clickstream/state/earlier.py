"""Earlier versions of the state of persons, carts, shards, boards and orders, brought into today's.

They were two processes that told what a key is of by its first letters, and were told everything by one kind
of record.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from millrace.inputs import mark_of
from millrace.state.conversion import Conversion, EarlierEntry
from millrace.state.layout import PendingRow
from millrace_apps.clickstream.contracts.messages import (
    ErasePerson,
    MarketingConsent,
    OrderPlaced,
    OrderRefunded,
    Purchase,
    ShardWindow,
    Shopping,
)

#: Inputs of the process of results, in their order.
RESULT_INPUTS: Final = ("offers_persons", "offers_carts", "boards", "orders_placed", "orders_refunded")
#: Kind of an act → the input by which it comes; all others concern a person.
_INPUT_OF: Final = {
    "abandoned": "offers_carts",
    "window": "boards",
    "attributed": "orders_placed",
    "refund": "orders_refunded",
}
_SHOPPED: Final = frozenset({"view", "search", "add_to_cart", "checkout", "purchase", "abandoned"})


class Act(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The one record of then; which fields mean something hangs on ``kind``."""

    key: str
    kind: str
    at_ms: int
    cause: str = ""
    visitor: str = ""
    person: str = ""
    subject: str = ""
    category: str = ""
    device: str = ""
    stage: str = ""
    cents: int = 0
    quantity: int = 0
    lo_ms: int = 0
    hi_ms: int = 0
    first_ms: int = 0
    first: str = ""
    last_ms: int = 0
    last: str = ""
    marketing: bool = False
    gender: str = ""
    birth_year: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    revision: int = 0


def _entity(entry: EarlierEntry) -> None:
    """Bring a person, a cart or a shard over; shards are named as they were keyed."""
    entry.key = (_bare(entry.key[0]),)
    person = entry.states.get("persons_person")
    if person is not None:
        person[_PURCHASES] = [_purchase(msgspec.convert(act, Act)) for act in person[_PURCHASES]]


#: The place of what waits to be attributed among the fields of a person.
_PURCHASES: Final = 3


def _purchase(act: Act) -> Purchase:
    return Purchase(
        person=_bare(act.key),
        at_ms=act.at_ms,
        cause=act.cause,
        visitor=act.visitor,
        order_id=act.subject,
        cart_id=act.stage,
        cents=act.cents,
        quantity=act.quantity,
        first_ms=act.first_ms,
        first=act.first,
        last_ms=act.last_ms,
        last=act.last,
        marketing=act.marketing,
    )


def _result(entry: EarlierEntry) -> None:
    """Bring a person's offers, a board or an order over, and what waits for the watermark."""
    entry.key = (_bare(entry.key[0]),)
    offers = entry.states.get("offers_person")
    if offers is not None:
        for kept in offers.get("partials", {}).values():
            for stored in kept[_EVENTS].values():
                stored[_EVENT] = _shopping(msgspec.convert(stored[_EVENT], Act))
    entry.waiting = [row for row in entry.waiting if _waits(row)]


#: Places among the fields of what is kept of a pattern: its events, and the event in each of them.
_EVENTS: Final = 2
_EVENT: Final = 2


def _waits(row: PendingRow) -> bool:
    """Bring what waits over; what nobody looks at any more goes."""
    act = msgspec.json.decode(row.raw, type=Act)
    event = _told(act)
    if event is None:
        return False
    name = _INPUT_OF.get(act.kind, "offers_persons")
    row.raw = mark_of(RESULT_INPUTS.index(name)) + msgspec.json.encode(event)
    return True


def _told(act: Act) -> Any:
    """Return what an act is now; ``None`` for what only went along."""
    name = _bare(act.key)
    if act.kind == "window":
        return ShardWindow(name, act.subject, act.lo_ms, act.hi_ms, act.visitor, act.counts)
    if act.kind == "attributed":
        return OrderPlaced(name, act.at_ms, act.cents, act.first, act.last)
    if act.kind == "refund":
        return OrderRefunded(name, act.subject, act.cents)
    if act.kind == "consent":
        return MarketingConsent(name, act.at_ms, act.visitor, act.stage == "granted")
    if act.kind == "erase":
        return ErasePerson(name, act.at_ms, act.subject)
    return _shopping(act) if act.kind in _SHOPPED else None


def _shopping(act: Act) -> Shopping:
    stage = act.stage if act.kind in ("checkout", "abandoned") else ""
    return Shopping(
        person=act.person,
        kind=act.kind,  # type: ignore[arg-type]
        at_ms=act.at_ms,
        cause=act.cause,
        visitor=act.visitor,
        subject=act.subject,
        category=act.category,
        device=act.device,
        stage=stage,
        cents=act.cents,
        quantity=act.quantity,
        gender=act.gender,
        birth_year=act.birth_year,
        counts=act.counts,
    )


def _bare(key: str) -> str:
    """Return a key without the letters that said what it is of; shards keep theirs as their names."""
    return key[2:] if key[:2] in ("p:", "c:", "o:", "b:") else key


ENTITIES: Final = Conversion(
    states={"person": "persons_person", "cart": "carts_cart", "shard": "shards_shard"},
    timers={"person": "persons:person", "cart": "carts:cart", "shard": "shards:shard"},
    rewrite=_entity,
    rewrites=("persons_person",),
)
RESULTS: Final = Conversion(
    states={"person": "offers_person", "board": "boards_board", "bought": "orders_bought"},
    timers={"tidy": "offers:tidy", "tell": "boards:tell", "drop": "boards:drop"},
    rewrite=_result,
    rewrites=("offers_person",),
)
#: Version 3 of both had no orders by themselves, and no books: what it kept is kept as it is.
BEFORE_ORDERS: Final = Conversion()
