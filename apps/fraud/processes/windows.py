"""The window functions that rules ask of one history, all of them in one pass over it.

Each by itself searches where its window begins. Thirty of them have few lengths between them: from the
longest to the shortest each search goes on where the last one ended, and from the shortest to the longest
the largest and the smallest purchase go on from the last window's. What
:func:`millrace_apps.fraud.processes.rulebook.asked` gives for one use is what is found here, to the last bit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from millrace.parts.lookback import Look
from millrace.rules import Use
from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.fraud.processes.rulebook import Windows, text_of
from millrace_apps.fraud.processes.window_functions import PAIRS, asked, chosen_of, entity_of

Values = list[float | None]
_Part = Callable[[Look, list[int], int], Values]


class Plan:
    """How the values of some uses are found together.

    Args:
        uses: Window functions of one entity.

    Attributes:
        texts: Their texts.

    Example:
        >>> from millrace_apps.fraud.state.history import History
        >>> history = History(since=0)
        >>> history.add(60_000, 700, ())
        >>> plan = Plan([Use("sum", ("amount", "card", 60_000)), Use("count", ("card", 120_000))])
        >>> plan.values(Look(history, 120_000), None, 300)
        (3.0, 2.0)
    """

    def __init__(self, uses: Sequence[Use]) -> None:
        self.texts = tuple(map(text_of, uses))
        self._each = tuple(map(asked, uses))
        together = [
            use
            for use in uses
            if use.name in _PARTS and chosen_of(use) is None and use.arguments[-2] not in PAIRS
        ]
        #: Lengths of the windows, ms, the longest first.
        self._lengths = sorted({use.arguments[-1] for use in together}, reverse=True)
        #: What is asked of the windows, and of which of them.
        self._parts: list[tuple[_Part, list[int]]] = []
        self._alone: list[Callable[[Look, Transaction, int], float | None]] = []
        places: dict[Use, int] = {}
        for name, part in _PARTS.items():
            asked_of = [use for use in together if use.name == name]
            if asked_of:
                asked_of.sort(key=lambda use: -use.arguments[-1])
                places |= {use: len(places) + place for place, use in enumerate(asked_of)}
                self._parts.append((part, [self._lengths.index(use.arguments[-1]) for use in asked_of]))
        for use in uses:
            if use not in places:
                places[use] = len(places)
                self._alone.append(asked(use))
        self._pick = _picker([places[use] for use in uses])

    def values(self, look: Look, tx: Any, cents: int) -> Sequence[float | None]:
        """Return the values, in the order of the uses.

        Args:
            look: The history before the transaction.
            tx: The transaction.
            cents: Its amount if it is a purchase, else 0.
        """
        if look.tail is not None:
            return [float(v) if (v := compute(look, tx, cents)) is not None else None
                    for compute in self._each]  # fmt: skip
        times, time, start, end = look.times, look.at, 0, look.end
        starts = []
        for length in self._lengths:
            start = bisect_right(times, time - length, start, end)
            starts.append(start)
        found: Values = []
        for part, of in self._parts:
            found += part(look, starts if len(of) == len(starts) else [starts[place] for place in of], cents)
        for compute in self._alone:
            value = compute(look, tx, cents)
            found.append(None if value is None else float(value))
        return self._pick(found)


def _picker(order: list[int]) -> Callable[[Values], Sequence[float | None]]:
    if len(order) < 2:  # of one, itemgetter gives no tuple
        return lambda found: [found[place] for place in order]
    return itemgetter(*order)


def _counts(look: Look, starts: list[int], cents: int) -> Values:
    upto = look.end + (cents > 0)
    return [float(upto - start) for start in starts]


def _sums(look: Look, starts: list[int], cents: int) -> Values:
    totals = look.totals
    upto = totals[look.end] + cents
    return [(upto - totals[start]) / 100 for start in starts]


def _means(look: Look, starts: list[int], cents: int) -> Values:
    totals, upto = look.totals, look.end + (cents > 0)
    total = totals[look.end] + cents
    return [(total - totals[start]) / (upto - start) / 100 if upto > start else None for start in starts]


def _largest(look: Look, starts: list[int], cents: int) -> Values:
    amounts, before, most = look.amounts, look.end, cents
    found: Values = []
    for start in reversed(starts):
        if start < before:
            most = max(most, max(amounts[start:before]))
            before = start
        found.append(most / 100)
    found.reverse()
    return found


def _smallest(look: Look, starts: list[int], cents: int) -> Values:
    amounts, before = look.amounts, look.end
    least = cents or None
    found: Values = []
    for start in reversed(starts):
        if start < before:
            here = min(filter(None, amounts[start:before]), default=None)
            least = here if least is None or (here is not None and here < least) else least
            before = start
        found.append(None if least is None else least / 100)
    found.reverse()
    return found


_PARTS: Final[dict[str, _Part]] = {
    "count": _counts,
    "sum": _sums,
    "mean": _means,
    "largest": _largest,
    "smallest": _smallest,
}


class CardWindows(Windows):
    """Values of window functions of a card, of which those that are always asked for can be had at once."""

    __slots__ = ()

    def fill(self, uses: tuple[Use, ...]) -> None:
        """Compute what will be asked for first, as if it were asked for in this order.

        Args:
            uses: The functions; those of other entities are left out.
        """
        if self._look is not None:
            plan = _plan_of(uses)
            self.update(zip(plan.texts, plan.values(self._look, self._tx, self._cents), strict=True))


#: Plans by what they were made of, which stays the same object as long as the rules do.
_plans: dict[int, tuple[tuple[Use, ...], Plan]] = {}
_KEPT: Final = 16


def _plan_of(uses: tuple[Use, ...]) -> Plan:
    found = _plans.get(id(uses))
    if found is None or found[0] is not uses:
        if len(_plans) >= _KEPT:
            _plans.clear()
        found = _plans[id(uses)] = (uses, Plan([use for use in uses if entity_of(use) == "card"]))
    return found[1]
