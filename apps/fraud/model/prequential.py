"""How good the model has been so far: each payment is judged once, by the score it got before its label.

:class:`PrequentialMetrics` is keyed by the model and takes :class:`Outcome` events, a payment's score with
what it turned out to be. A day is judged once the label delay has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec

from apps.fraud.labels import DAY_MS
from apps.fraud.model.metrics import CARDS_A_DAY, FALSE_POSITIVES
from millrace import Context, KeyedProcess, Timer, arrival, days, map_state
from millrace.errors import UserError

#: Scores are kept in thousandths: two that differ by less are a tie.
STEPS: Final = 1_000


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """A scored payment and what is known of it.

    Attributes:
        model: Whose score: the alias, or a version.
        event_time_ms: When the payment happened, UTC ms.
        card: Its card.
        score: The score it got then, 0 to 1.
        is_fraud: What it turned out to be.
        alerted: Whether it was stopped or looked at.
    """

    model: str
    event_time_ms: int
    card: str
    score: float
    is_fraud: bool
    alerted: bool = False


class DayMetrics(msgspec.Struct, frozen=True, gc=False):
    """A day of a model; measures are null where they mean nothing.

    Attributes:
        model: Whose.
        day_ms: The day's beginning, UTC ms.
        rows: Payments judged.
        frauds: Frauds among them.
        auc: Area under the ROC curve.
        ap: Average precision.
        cp100: Precision among the 100 most suspicious cards.
        alert_precision: Share of frauds among what was alerted on.
        recall_at_01pct_fpr: Share of frauds above the score that 0.1 % of the genuine exceed.
        mean_score: Mean score.
    """

    model: str
    day_ms: int
    rows: int
    frauds: int
    auc: float | None
    ap: float | None
    cp100: float | None
    alert_precision: float | None
    recall_at_01pct_fpr: float | None
    mean_score: float


class Day(msgspec.Struct, array_like=True, gc=False):
    """An open day: scores by thousandth, and the best score of every card.

    Attributes:
        genuine: Score → genuine payments.
        fraud: Score → frauds.
        cards: Card → twice its highest score, and one more if it had a fraud.
        alerts: Payments alerted on.
        right: Frauds among them.
    """

    genuine: dict[int, int] = {}
    fraud: dict[int, int] = {}
    cards: dict[str, int] = {}
    alerts: int = 0
    right: int = 0


class PrequentialMetrics(KeyedProcess[Outcome, DayMetrics]):
    """Measures of each day of a model, once its labels are known.

    Args:
        label_delay_ms: How long after its end a day stays open, ms.
    """

    order = arrival(commutes=True)
    open_days = map_state(int, Day, ttl=days(120))

    def __init__(self, label_delay_ms: int = 7 * DAY_MS) -> None:
        if not 0 <= label_delay_ms <= 90 * DAY_MS:
            raise UserError(f"the label delay must be 0 to 90 days, not {label_delay_ms} ms")
        self._delay = label_delay_ms

    def describe(self) -> dict[str, Any]:
        """Return what the state depends on."""
        return {"label_delay_ms": self._delay}

    def process(self, event: Outcome, ctx: Context) -> None:
        """Count an outcome for its day."""
        number = event.event_time_ms // DAY_MS
        due = (number + 1) * DAY_MS + self._delay
        if due <= ctx.watermark:
            self.emit_late(event, ctx)
            return
        day = self.open_days.get(number)
        if day is None:
            day = Day()
            ctx.timers.at(due, f"day-{number}")
        count(day, event)
        self.open_days.put(number, day)

    def on_late(self, event: Outcome, ctx: Context) -> None:
        """A label always speaks of the past: what counts is whether its day is open."""
        self.process(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Judge a day and forget it."""
        number = int(timer.name.removeprefix("day-"))
        day = self.open_days.get(number)
        if day is not None:
            ctx.emit(measure(str(ctx.key), number * DAY_MS, day))
            self.open_days.remove(number)


def count(day: Day, event: Outcome) -> None:
    """Count an outcome for its day."""
    score = min(STEPS, max(0, round(event.score * STEPS)))
    counts = day.fraud if event.is_fraud else day.genuine
    counts[score] = counts.get(score, 0) + 1
    before = day.cards.get(event.card, 0)
    day.cards[event.card] = max(before >> 1, score) << 1 | (before & 1) | event.is_fraud
    day.alerts += event.alerted
    day.right += event.alerted and event.is_fraud


def measure(model: str, day_ms: int, day: Day) -> DayMetrics:
    """Return the measures of a day; scores of one thousandth are a tie, as in scikit-learn.

    Args:
        model: Whose day.
        day_ms: Its beginning, ms.
        day: What was counted.
    """
    steps = sorted({*day.genuine, *day.fraud}, reverse=True)
    frauds, genuine = [day.fraud.get(s, 0) for s in steps], [day.genuine.get(s, 0) for s in steps]
    positives, negatives = sum(frauds), sum(genuine)
    rows = positives + negatives
    total = sum(s * (f + g) for s, f, g in zip(steps, frauds, genuine, strict=True))
    both = positives > 0 and negatives > 0
    top = sorted(day.cards.values(), reverse=True)[:CARDS_A_DAY]
    return DayMetrics(
        model,
        day_ms,
        rows,
        positives,
        _auc(frauds, genuine) if both else None,
        _average_precision(frauds, genuine) if positives else None,
        sum(card & 1 for card in top) / CARDS_A_DAY if rows else None,
        day.right / day.alerts if day.alerts else None,
        _recall(frauds, genuine) if both else None,
        total / STEPS / rows if rows else 0.0,
    )


def _auc(frauds: Sequence[int], genuine: Sequence[int]) -> float:
    """Return the area from counts by falling score; a tie counts half."""
    below = accumulate(reversed(genuine))
    pairs = sum(
        f * (under - g / 2) for f, g, under in zip(reversed(frauds), reversed(genuine), below, strict=True)
    )
    return pairs / (sum(frauds) * sum(genuine))


def _average_precision(frauds: Sequence[int], genuine: Sequence[int]) -> float:
    caught = seen = 0
    area = 0.0
    for f, g in zip(frauds, genuine, strict=True):
        caught += f
        seen += f + g
        area += f * caught / seen if seen else 0.0
    return area / sum(frauds)


def _recall(frauds: Sequence[int], genuine: Sequence[int]) -> float:
    """Return the share of frauds at scores that so few genuine payments reach."""
    allowed = int(sum(genuine) * FALSE_POSITIVES)
    caught = passed = 0
    for f, g in zip(frauds, genuine, strict=True):
        passed += g
        if passed > allowed:
            break
        caught += f
    return caught / sum(frauds)
