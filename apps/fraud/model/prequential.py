"""Prequential evaluation: each payment is judged by the score that it got before its label.

:class:`PrequentialMetrics` is keyed by the model and takes :class:`Outcomes`, the scores of payments with
what they turned out to be, counted where they were scored. A day is judged once the label delay has passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, zip_longest
from typing import Any, Final

import msgspec

from millrace import Context, KeyedProcess, Timer, arrival, days, map_state, value_state
from millrace.errors import UserError
from millrace.models.drift import SHIFTED, psi_of_counts
from millrace_apps.fraud.model.metrics import CARDS_A_DAY, FALSE_POSITIVES
from millrace_apps.fraud.model.outcomes import STEPS, Day, Outcomes, add, top_cards
from millrace_apps.fraud.state.labels import DAY_MS

#: How long labels still change a day that has been judged, ms.
KEPT_MS: Final = 35 * DAY_MS
#: So many days of a version are what its later ones are compared with.
REFERENCE_DAYS: Final = 7


class DayMetrics(msgspec.Struct, frozen=True, gc=False):
    """A day of a model, a row of the table ``model_metrics``; measures are null where they mean nothing.

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
        version: Version of the model that scored most of the day.
        age_days: From the newest payment that the model was trained on to the end of the day.
        drifted: The feature that is farthest from what it was; empty as long as there is nothing to compare.
        psi: Its population stability index of this day.
        shifted: How many features have shifted.
        score_psi: The same index of the scores.
        label_psi: The same index of the share of frauds.
        revision: Counts how often the day was judged, from 1: labels that come later judge it anew.
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
    version: str = ""
    age_days: float | None = None
    drifted: str = ""
    psi: float | None = None
    shifted: int = 0
    score_psi: float | None = None
    label_psi: float | None = None
    revision: int = 1


class Reference(msgspec.Struct, array_like=True, gc=False):
    """The first days of a version, with which later ones are compared.

    Attributes:
        version: The version.
        days: How many days.
        scores: Bin of the score → payments.
        labels: 1 for frauds, 0 for others → payments.
        bins: For each watched feature bin → payments.
    """

    version: str = ""
    days: int = 0
    scores: dict[int, int] = {}
    labels: dict[int, int] = {}
    bins: list[dict[int, int]] = []


class PrequentialMetrics(KeyedProcess[Outcomes, DayMetrics]):
    """Measures of each day of a model, once its labels are known, and again when later labels change them.

    ::

        day n   |------|            | label delay      | kept               |
        judged                      revision 1         2, 3 … at midnight    forgotten

    Drift is measured against the first days that the version in force was judged on.

    Args:
        label_delay_ms: How long after its end a day stays open, ms.
        kept_ms: How long labels change it from then on, ms.
        features: Names of the features whose bins come with the outcomes.
    """

    order = arrival(commutes=True)
    open_days = map_state(int, Day, ttl=days(180))
    reference = value_state(Reference, ttl=days(180))

    def __init__(
        self,
        label_delay_ms: int = 7 * DAY_MS,
        *,
        kept_ms: int = KEPT_MS,
        features: Sequence[str] = (),
    ) -> None:
        if not 0 <= label_delay_ms <= 90 * DAY_MS:
            raise UserError(f"the label delay must be 0 to 90 days, not {label_delay_ms} ms")
        self._delay, self._kept, self._features = label_delay_ms, kept_ms, tuple(features)

    def describe(self) -> dict[str, Any]:
        """Return what the state depends on."""
        return {"label_delay_ms": self._delay, "features": list(self._features)}

    def process(self, event: Outcomes, ctx: Context) -> None:
        """Add what was counted to its day."""
        number = event.day_ms // DAY_MS
        end = (number + 1) * DAY_MS
        day = self.open_days.get(number)
        if day is None:
            if end + self._delay <= ctx.watermark:
                self.emit_late(event, ctx)
                return
            day = Day()
            ctx.timers.at(end + self._delay, f"day-{number}")
        add(day, event)
        if day.judged:
            # Once a day is enough to judge it anew, and it does not hang on how labels are cut into batches.
            ctx.timers.at((ctx.watermark // DAY_MS + 1) * DAY_MS, f"day-{number}")
        self.open_days.put(number, day)

    def on_late(self, event: Outcomes, ctx: Context) -> None:
        """A label always speaks of the past: what counts is whether its day is kept."""
        self.process(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Judge or forget a day."""
        what, _, text = timer.name.partition("-")
        number = int(text)
        day = self.open_days.get(number)
        if day is None:
            return
        if what == "gone":
            self.open_days.remove(number)
            return
        if what == "day":
            day.judged += 1
            found = measure(str(ctx.key), number * DAY_MS, day)
            ctx.emit(self._compared(found, day), revision=day.judged, on_time=day.judged == 1)
            if day.judged == 1:
                ctx.timers.at(timer.at + self._kept, f"gone-{number}")
            self.open_days.put(number, day)

    def last_due(self, latest: int) -> int:
        """Return when (ms) a day is forgotten that is judged at ``latest``."""
        return latest + self._kept

    def _compared(self, found: DayMetrics, day: Day) -> DayMetrics:
        """Add how far the day is from the first days of its version."""
        reference = self.reference.value or Reference()
        if reference.version != found.version and day.judged == 1:
            reference = Reference(found.version)
        labels = {0: found.rows - found.frauds, 1: found.frauds}
        now = Reference(found.version, 1, _score_bins(day), labels, day.bins)
        if reference.version != found.version or reference.days < REFERENCE_DAYS:
            if day.judged == 1:
                self.reference.value = _joined(reference, now)
            return found
        self.reference.value = reference  # its life begins anew
        moved = [
            (psi_of_counts(then, counts), name)
            for name, then, counts in zip(self._features, reference.bins, now.bins, strict=False)
        ]
        far, name = max(moved, default=(None, ""))
        return msgspec.structs.replace(
            found,
            drifted=name,
            psi=far,
            shifted=sum(index >= SHIFTED for index, _ in moved),
            score_psi=psi_of_counts(reference.scores, now.scores),
            label_psi=psi_of_counts(reference.labels, now.labels),
        )


def _joined(one: Reference, other: Reference) -> Reference:
    def plus(a: Mapping[int, int], b: Mapping[int, int]) -> dict[int, int]:
        return {k: a.get(k, 0) + b.get(k, 0) for k in sorted({*a, *b})}

    nothing: dict[int, int] = {}
    bins = [plus(a, b) for a, b in zip_longest(one.bins, other.bins, fillvalue=nothing)]
    return Reference(
        other.version,
        one.days + other.days,
        plus(one.scores, other.scores),
        plus(one.labels, other.labels),
        bins,
    )


def _score_bins(day: Day) -> dict[int, int]:
    """Return payments by how large their score is: most scores are small, so bins double in width."""
    found: dict[int, int] = {}
    for counts in (day.genuine, day.fraud):
        for score, n in counts.items():
            found[score.bit_length()] = found.get(score.bit_length(), 0) + n
    return found


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
    version = min(day.versions, key=lambda v: (-day.versions[v], v), default="")
    until = day.trained_until_ms
    return DayMetrics(
        model=model,
        day_ms=day_ms,
        rows=rows,
        frauds=positives,
        auc=_auc(frauds, genuine) if both else None,
        ap=_average_precision(frauds, genuine) if positives else None,
        cp100=sum(day.card_frauds.get(card, 0) > 0 for card, _ in top_cards(day)) / CARDS_A_DAY
        if rows
        else None,
        alert_precision=day.right / day.alerts if day.alerts else None,
        recall_at_01pct_fpr=_recall(frauds, genuine) if both else None,
        mean_score=total / STEPS / rows if rows else 0.0,
        version=version,
        age_days=max(0.0, (day_ms + DAY_MS - until) / DAY_MS) if until else None,
        revision=max(1, day.judged),
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
