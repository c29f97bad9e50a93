"""Window functions of rules: which stage computes one, and how."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

from millrace.parts.lookback import Look, link_of
from millrace.rules import Chosen, Use
from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.fraud.state.card_history import DEVICES, IPS, TERMINALS
from millrace_apps.fraud.state.kinds import TOLD_APART, of_chosen, of_different

#: Entities that have a stage of their own beside the card's: name → field of the transaction.
ENTITIES: Final[Mapping[str, str]] = {
    "account": "account_id",
    "terminal": "terminal_id",
    "device": "device_id",
    "ip": "ip",
    "customer": "customer_id",
    "merchant": "merchant_id",
}
#: A card with one of these: computed where the card's history is.
PAIRS: Final = {"card_terminal": TERMINALS, "card_device": DEVICES, "card_ip": IPS}
_PAIRED: Final = {TERMINALS: "terminal_id", DEVICES: "device_id", IPS: "ip"}
_COLUMNS: Final = {"terminal": TERMINALS, "device": DEVICES, "ip": IPS}

#: What a stage computes for rules: text of the use → function of look, transaction and cents.
Compute = Callable[[Any, Transaction, int], float | None]
Asked = dict[str, Compute]
#: How what hangs on no amount begins, unless a condition asks for one.
_COUNTS: Final = ("count(", "distinct(", "declined(")


def entity_of(use: Use) -> str:
    """Return the stage that computes a use: ``card`` or one of :data:`ENTITIES`; empty: none does."""
    if use.name == "small_then_large":
        return "card"
    if use.name not in ("count", "sum", "mean", "largest", "smallest", "distinct", "declined"):
        return ""
    entity, _ = _of_window(use)
    return "card" if entity in PAIRS else entity


def chosen_of(use: Use) -> Chosen | None:
    """Return the condition on purchases that a use has."""
    last = use.arguments[-1]
    return last if isinstance(last, Chosen) else None


def _of_window(use: Use) -> tuple[str, int]:
    """Return the entity of a window function, and the window's length, ms."""
    *_, entity, window = use.arguments if chosen_of(use) is None else use.arguments[:-1]
    return str(entity), int(window)


def asked(use: Use) -> Compute:
    """Return what computes a use: of the look before a purchase, the purchase, its cents (or 0)."""
    name = use.name
    if name == "small_then_large":
        within = use.arguments[-1]
        return lambda look, tx, cents: _units(look.smallest(within))
    entity, window = _of_window(use)
    where = chosen_of(use)
    if where is not None:
        return of_chosen(name, window, where)
    if name == "declined":
        return lambda look, tx, cents: look.declined(window)
    if entity in PAIRS:
        return _of_pair(name, PAIRS[entity], window)
    if name == "count":
        return _count(window)
    if name == "sum":
        return _sum(window)
    if name == "mean":
        return _mean(window)
    if name == "largest":
        return _largest(window)
    if name == "smallest":
        return lambda look, tx, cents: _units(_least(look.smallest(window), cents))
    what = use.arguments[0]
    if entity == "card":
        if what == "card":
            return lambda look, tx, cents: 1.0
        if what in TOLD_APART:
            return of_different(what, window)
        column, of = _COLUMNS[what], attrgetter(ENTITIES[what])
        return lambda look, tx, cents: look.different(window, column, link_of(of(tx)) if cents else 0)
    if what == "card":
        return lambda look, tx, cents: look.different(window, 0, link_of(tx.card_id) if cents else 0)
    return lambda look, tx, cents: None


# These are not put together of what Look can do: rules ask for them more than for all else, each for a
# window of its own.


def _count(window: int) -> Callable[[Look, Transaction, int], float]:
    def compute(look: Look, tx: Transaction, cents: int) -> float:
        end = look.end
        if look.tail is not None:
            return look.count(window) + (cents > 0)
        return end - bisect_right(look.times, look.at - window, 0, end) + (cents > 0)

    return compute


def _sum(window: int) -> Callable[[Look, Transaction, int], float]:
    def compute(look: Look, tx: Transaction, cents: int) -> float:
        end, totals = look.end, look.totals
        if look.tail is not None:
            return (look.total(window) + cents) / 100
        return (totals[end] - totals[bisect_right(look.times, look.at - window, 0, end)] + cents) / 100

    return compute


def _mean(window: int) -> Callable[[Look, Transaction, int], float | None]:
    def compute(look: Look, tx: Transaction, cents: int) -> float | None:
        end, totals = look.end, look.totals
        if look.tail is not None:
            count, total = look.numbers(window)
            n = count + (cents > 0)
            return (total + cents) / n / 100 if n else None
        start = bisect_right(look.times, look.at - window, 0, end)
        n = end - start + (cents > 0)
        return (totals[end] - totals[start] + cents) / n / 100 if n else None

    return compute


def _largest(window: int) -> Callable[[Look, Transaction, int], float]:
    def compute(look: Look, tx: Transaction, cents: int) -> float:
        end = look.end
        if look.tail is not None:
            return max(look.largest(window), cents) / 100
        start = bisect_right(look.times, look.at - window, 0, end)
        return max(max(look.amounts[start:end], default=0), cents) / 100

    return compute


def _of_pair(name: str, column: int, window: int) -> Callable[[Look, Transaction, int], float | None]:
    of = attrgetter(_PAIRED[column])

    def compute(look: Look, tx: Transaction, cents: int) -> float | None:
        link = link_of(of(tx))
        if not link:
            return None
        start = look.start(window)
        links = look.link(start, column)
        if name == "count":
            return links.count(link) + (cents > 0)
        same = (a for a, of in zip(look.amounts_from(start), links, strict=True) if of == link)
        return (sum(same) + cents) / 100

    return compute


def without_amounts(asked: Asked) -> Asked:
    """Return what rules ask of a purchase whose amount is not known: all but what hangs on it is missing."""
    return {text: of for text, of in asked.items() if text.startswith(_COUNTS) and "amount" not in text}


def _least(before: int | None, cents: int) -> int | None:
    return min(v for v in (before, cents or None) if v is not None) if before or cents else None


def _units(cents: int | None) -> float | None:
    return None if cents is None else cents / 100


def compute(asked: Asked | None, windows: dict[str, float], look: Look, tx: Transaction, cents: int) -> None:
    """Add to ``windows`` what rules ask of a stage."""
    if asked:
        for text, function in asked.items():
            value = function(look, tx, cents)
            if value is not None:
                windows[text] = float(value)
