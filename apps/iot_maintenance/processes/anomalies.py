"""Anomaly scores of measuring points: a value a minute, scored after those before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from millrace import Context, map_state, minutes, side_output
from millrace.operators import novelty
from millrace.operators.anomaly import Novelty, NoveltyState, Why
from millrace_apps.iot_maintenance.processes.liveness_monitor import LivenessMonitor, Monitoring

if TYPE_CHECKING:
    from millrace_apps.iot_maintenance.contracts.events import Reading


@dataclass(frozen=True)
class Scoring:
    """How values are scored.

    Attributes:
        enabled: Whether they are.
        interval_ms: The mean of so long is a value, unless a point reports less often, ms; 0: every reading.
        threshold: From which score on a value is an anomaly.
        detector: What scores.
    """

    enabled: bool = True
    interval_ms: int = minutes(1)
    threshold: float = 0.5
    detector: Novelty = field(default_factory=novelty)


class PointScore(msgspec.Struct, frozen=True, gc=False):
    """How unusual a value of a measuring point is after those before it.

    Attributes:
        machine_id: The machine.
        quantity: What was measured.
        subject: The measuring point: the quantity, with a name where the machine has several of it.
        sensor_id: The sensor that measured last.
        event_time_ms: When the value was there; of a mean, when its last reading was.
        value: A reading, or the mean of the readings of the interval before.
        score: 0 to 1; 0.5 where it is as far beyond what was seen so far as is tolerated.
        expected: What was expected, in the value's unit.
        residual: The value less that.
        low: The least value that would have been nothing new.
        high: The largest.
        why: What is new about it; empty where nothing is.
    """

    machine_id: str
    quantity: str
    subject: str
    sensor_id: str
    event_time_ms: int
    value: float
    score: float
    expected: float
    residual: float
    low: float
    high: float
    why: Why


class Gathered(msgspec.Struct, array_like=True, gc=False):
    """What was gathered of a point since its last scored value.

    Attributes:
        pane: Number of the interval since the epoch.
        at: When the last of its readings was there, ms.
        total: Sum of its readings.
        count: How many there were.
        score: The last value's score, ``None`` before the first.
        crosses_at: When the point's series will cross a limit, ms; -1: nothing is foreseen.
    """

    pane: int = -1
    at: int = -1
    total: float = 0.0
    count: int = 0
    score: float | None = None
    crosses_at: int = -1


class Scored(LivenessMonitor):
    """The part of the monitor that scores values; for each point it keeps a fraction of a KiB."""

    scores = side_output(PointScore)
    anomalies = side_output(PointScore)

    gathered = map_state(str, Gathered)
    series = map_state(str, NoveltyState)

    def __init__(self, monitoring: Monitoring, scoring: Scoring | None = None) -> None:
        super().__init__(monitoring)
        self._scoring = scoring or Scoring()

    def _score(
        self, event: Reading, subject: str, value: float, every: float, ctx: Context
    ) -> Gathered | None:
        """Take a point's good value; return what is known of its newest that was scored.

        Args:
            event: The reading.
            subject: The measuring point.
            value: Its value, in the quantity's unit.
            every: How often the point reports, ms; 0 while nobody knows.
            ctx: The reading's context.
        """
        how = self._scoring
        if not how.enabled:
            return None
        gathered = self.gathered.get(subject)
        if gathered is None:
            gathered = Gathered()
        at, pane = ctx.event_time, 0
        if how.interval_ms:
            pane = at // how.interval_ms
            if gathered.count and pane != gathered.pane:
                mean, gathered.count = gathered.total / gathered.count, 0
                self._add(event, subject, mean, gathered.at, gathered, ctx)
        if not how.interval_ms or every >= how.interval_ms:
            self._add(event, subject, value, at, gathered, ctx)
        elif gathered.count:
            gathered.at, gathered.total = at, gathered.total + value
            gathered.count += 1
        else:
            gathered.pane, gathered.at, gathered.total, gathered.count = pane, at, value, 1
        self.gathered.put(subject, gathered)
        return gathered

    def _add(
        self, event: Reading, subject: str, value: float, at: int, gathered: Gathered, ctx: Context
    ) -> None:
        """Score a value of a time (ms), tell what was found, and look ahead."""
        detector = self._scoring.detector
        series = self.series.get(subject)
        if series is None:
            series = detector.new()
        try:
            found = detector.add(series, value, at)
        except OverflowError:
            return  # no machine measures this; the reading stands in its table all the same
        self.series.put(subject, series)
        self._look_ahead(event, subject, value, at, gathered, ctx)
        if found is None:
            return
        gathered.score = found.score
        row = PointScore(event.machine_id, event.quantity, subject, event.sensor_id, at, value, *found)
        ctx.output(self.scores, row)
        if found.score >= self._scoring.threshold:
            ctx.output(self.anomalies, row)

    def _look_ahead(
        self, event: Reading, subject: str, value: float, at: int, gathered: Gathered, ctx: Context
    ) -> None:
        """Say what a value lets one expect; nothing here."""

    def _tidy(self, ctx: Context) -> None:
        super()._tidy(ctx)
        if self.machine.value is None:
            self.gathered.clear()
            self.series.clear()
