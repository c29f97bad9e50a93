"""Outcomes of scored payments, one by one and counted: for the metrics of a day.

A batch of a key group is counted before it leaves the decision stage: one :class:`Outcomes` per model and
day, whose parts add up to the same numbers in any order and any cut. A metrics' key, of which there is one
per model, takes as many events as there are key groups in a batch, not as there are payments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from millrace.parts.top import best
from millrace_apps.fraud.model.metrics import CARDS_A_DAY
from millrace_apps.fraud.state.labels import DAY_MS

#: Scores are kept in thousandths: two that differ by less are a tie.
STEPS: Final = 1_000
#: So many cards of a day are kept at most, before all but the highest go.
_MOST_CARDS: Final = 4 * CARDS_A_DAY

K = TypeVar("K")


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """A scored payment and what is known of it: at first by silence, then by each word that changes it.

    Of what was stopped nothing is known until somebody speaks of it: it is counted for drift alone.

    Attributes:
        model: Whose score: ``champion``, ``challenger``, or ``rules`` for the built-in one.
        event_time_ms: When the payment happened, UTC ms.
        card: Its card.
        score: The score it got then, 0 to 1.
        is_fraud: What it is held to be now; None: neither a fraud nor genuine.
        alerted: Whether it was stopped or looked at.
        was: What it has been counted as before; None: as neither, or it is counted for the first time.
        version: The model's version; as what follows, only where it is counted for the first time.
        trained_until_ms: Event time of the newest payment that the model was trained on; 0: not known.
        bins: Where its features lie, a bin for each of :data:`millrace_apps.fraud.processes.judging.WATCHED`.
        again: Whether it has come before, where ``was`` does not tell.
        weight: For how many payments it stands.
        off: Whether its card was known to be compromised when it was scored: nobody looks for such a card any
            more, so it is off the list of the highest.
    """

    model: str
    event_time_ms: int
    card: str
    score: float
    is_fraud: bool | None
    alerted: bool = False
    was: bool | None = None
    version: str = ""
    trained_until_ms: int = 0
    bins: list[int] = []
    again: bool = False
    weight: int = 1
    off: bool = False


class Outcomes(msgspec.Struct, frozen=True, gc=False):
    """Outcomes of one model and day, counted: a part of a :class:`Day`, with its numbers as text.

    Attributes:
        model: Whose scores.
        day_ms: The day's beginning, UTC ms.
        genuine: Score → genuine payments that come to those counted before; below 0: that go. Payments count
            by their weight.
        fraud: Score → frauds, in the same way.
        cards: Card → its highest score here; of many cards the highest.
        card_frauds: Card → frauds that come, or go.
        alerts: Payments alerted on of which something is known, that come or go.
        right: Frauds among them that come, or go.
        versions: Version of the model → payments that it scored.
        trained_until_ms: Event time of the newest payment that one of these was trained on.
        bins: For each watched feature bin → payments.
    """

    model: str
    day_ms: int
    genuine: dict[str, int] = {}
    fraud: dict[str, int] = {}
    cards: dict[str, int] = {}
    card_frauds: dict[str, int] = {}
    alerts: int = 0
    right: int = 0
    versions: dict[str, int] = {}
    trained_until_ms: int = 0
    bins: list[dict[str, int]] = []


class Day(msgspec.Struct, array_like=True, gc=False):
    """A day: scores by thousandth, the best score of every card, and where features lie.

    Attributes:
        genuine: Score → genuine payments, by their weight.
        fraud: Score → frauds, by their weight.
        cards: Card → its highest score while it was not known to be compromised; of a few hundred cards, the
            100 highest among them.
        card_frauds: Card → its frauds, of cards that have some.
        alerts: Payments alerted on of which something is known.
        right: Frauds among them.
        versions: Version of the model → payments that it scored.
        trained_until_ms: Event time of the newest payment that a model of the day was trained on.
        bins: For each watched feature bin → payments.
        judged: How often it was judged.
    """

    genuine: dict[int, int] = {}
    fraud: dict[int, int] = {}
    cards: dict[str, int] = {}
    card_frauds: dict[str, int] = {}
    alerts: int = 0
    right: int = 0
    versions: dict[str, int] = {}
    trained_until_ms: int = 0
    bins: list[dict[int, int]] = []
    judged: int = 0


def count(day: Day, event: Outcome) -> None:
    """Count an outcome for its day; one that was counted otherwise before is moved.

    One of which nobody can tell what it was is in no measure. The order does not matter: what moves may come
    before what is moved, in the same batch.
    """
    score = min(STEPS, max(0, round(event.score * STEPS)))
    known, before = event.is_fraud is not None, event.was is not None
    if known:
        _add(day.fraud if event.is_fraud else day.genuine, score, event.weight)
    if before:
        _add(day.fraud if event.was else day.genuine, score, -event.weight)
    frauds = bool(event.is_fraud) - bool(event.was)
    if frauds:
        _add(day.card_frauds, event.card, frauds)
    day.right += event.alerted and frauds
    day.alerts += event.alerted and known - before
    if known and not before and not event.off:
        _see(day, event.card, score)
    if before or event.again:
        return
    if event.version:
        _add(day.versions, event.version, 1)
    day.trained_until_ms = max(day.trained_until_ms, event.trained_until_ms)
    _widen(day, len(event.bins))
    for counts, bin_ in zip(day.bins, event.bins, strict=False):
        _add(counts, bin_, 1)


def counted(outcomes: Iterable[Outcome]) -> list[Outcomes]:
    """Count outcomes by model and day.

    >>> said = [Outcome("m", 5, "c", 0.5, False), Outcome("m", 5, "c", 0.5, True, was=False, again=True)]
    >>> [(found.day_ms, found.genuine, found.fraud) for found in counted(said)]
    [(0, {}, {'500': 1})]
    """
    days: dict[tuple[str, int], Day] = {}
    for outcome in outcomes:
        of = (outcome.model, outcome.event_time_ms // DAY_MS)
        day = days.get(of)
        if day is None:
            day = days[of] = Day()
        count(day, outcome)
    return [
        Outcomes(
            model=model,
            day_ms=number * DAY_MS,
            genuine=_texts(day.genuine),
            fraud=_texts(day.fraud),
            cards=dict(top_cards(day)),
            card_frauds=day.card_frauds,
            alerts=day.alerts,
            right=day.right,
            versions=day.versions,
            trained_until_ms=day.trained_until_ms,
            bins=[_texts(counts) for counts in day.bins],
        )
        for (model, number), day in days.items()
    ]


def add(day: Day, part: Outcomes) -> None:
    """Add what was counted of a day elsewhere."""
    for counts, more in ((day.genuine, part.genuine), (day.fraud, part.fraud)):
        for step, n in more.items():
            _add(counts, int(step), n)
    for card, score in part.cards.items():
        _see(day, card, score)
    for card, n in part.card_frauds.items():
        _add(day.card_frauds, card, n)
    day.alerts += part.alerts
    day.right += part.right
    for version, n in part.versions.items():
        _add(day.versions, version, n)
    day.trained_until_ms = max(day.trained_until_ms, part.trained_until_ms)
    _widen(day, len(part.bins))
    for counts, more in zip(day.bins, part.bins, strict=False):
        for bin_, n in more.items():
            _add(counts, int(bin_), n)


def _texts(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(key): n for key, n in counts.items()}


def _see(day: Day, card: str, score: int) -> None:
    """Take a card's score. What is kept is bounded, and exact all the same.

    A card's highest score only grows, and so do those of the others: one that is not among the highest now
    will be only by a score that is still to come, and comes back with it.
    """
    cards = day.cards
    before = cards.get(card)
    if before is None or score > before:
        cards[card] = score
        if len(cards) > _MOST_CARDS:
            day.cards = dict(top_cards(day))


def _widen(day: Day, features: int) -> None:
    if len(day.bins) < features:
        day.bins = [*day.bins, *({} for _ in range(features - len(day.bins)))]


def _add(counts: dict[K, int], key: K, n: int) -> None:
    left = counts.get(key, 0) + n
    if left:
        counts[key] = left
    else:
        counts.pop(key, None)


def top_cards(day: Day) -> list[tuple[str, int]]:
    """Return the most suspicious cards of a day, of equal ones the first by name."""
    return best(day.cards.items(), CARDS_A_DAY)
