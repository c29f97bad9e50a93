"""Multivariate control charts of a machine: T² and Q of a value a minute, by kind and status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from millrace import Context, minutes, side_output, value_state
from millrace.dead_letters import NOT_JSON
from millrace.errors import UserError
from millrace.operators import cusum
from millrace.operators.control import Chart
from millrace.operators.detectors import Cusum, CusumState
from millrace_apps.iot_maintenance.processes.anomalies import Scoring
from millrace_apps.iot_maintenance.processes.forecasts import Forecasting, Foreseen, hours_until
from millrace_apps.iot_maintenance.processes.liveness_monitor import Monitoring
from millrace_apps.iot_maintenance.processes.normal import Registered

if TYPE_CHECKING:
    from millrace_apps.iot_maintenance.contracts.events import Reading
    from millrace_apps.iot_maintenance.state.past import MachineAsOf

#: A sensor that has said nothing for so many intervals has no value any more.
_LATEST: Final = 10


@dataclass(frozen=True)
class Charts:
    """What is normal, and how machines are held against it.

    Attributes:
        by_kind: Kind of machine → what is normal, in its statuses as regimes.
        interval_ms: The means of so long are a row, ms.
        detector: What finds changes of the score.
        registered: In place of ``by_kind``: the champion of the registry, exchanged while the stream runs.
    """

    by_kind: Mapping[str, Chart] = field(default_factory=dict)
    interval_ms: int = minutes(1)
    detector: Cusum = field(default_factory=lambda: cusum(learn=60, threshold=8.0))
    registered: Registered | None = None

    def of(self, kind: str) -> tuple[Chart | None, str]:
        """Return what is normal for a kind of machine, and the version of the model that says so."""
        return (self.by_kind.get(kind), "") if self.registered is None else self.registered.of(kind)


class MachineHealth(msgspec.Struct, frozen=True):
    """What a machine's sensors say together, held against what is normal.

    Attributes:
        machine_id: The machine.
        kind: Its kind.
        regime: Its status.
        event_time_ms: End of the interval.
        score: 0 to 1; 0.5 at the limit of T² or of Q.
        t2: Hotelling's T²: how far it is out in ways that are usual.
        t2_limit: Its limit.
        q: How far its sensors are from going together as they did.
        q_limit: Its limit.
        statistic: Which of the two is further, in shares of its limit.
        sensor: The sensor that has most to do with it.
        contributions: Sensor → what it has to do with it; they add up to 1.
        change: Whether the mean of the score has just changed, and where to.
        model: Version of the registered model that says what is normal; empty: a file does.
    """

    machine_id: str
    kind: str
    regime: str
    event_time_ms: int
    score: float
    t2: float
    t2_limit: float
    q: float
    q_limit: float
    statistic: Literal["t2", "q"]
    sensor: str
    contributions: dict[str, float]
    change: Literal["", "up", "down"]
    model: str = ""


class Together(msgspec.Struct, array_like=True):
    """What was gathered of a machine's sensors.

    Attributes:
        pane: Number of the interval since the epoch.
        regime: Status in it; ``None``: it changed meanwhile.
        sums: Sensor → sum and number of its values.
        latest: Sensor → number of the last interval with a value, and its mean there.
        watched: State of the detector.
        score: The newest score.
    """

    pane: int = -1
    regime: str | None = ""
    sums: dict[str, tuple[float, int]] = {}
    latest: dict[str, tuple[int, float]] = {}
    watched: CusumState = msgspec.field(default_factory=CusumState)
    score: float | None = None


class Learned(NamedTuple):
    """What the monitor has found out by the time of a reading.

    Attributes:
        anomaly_score: How unusual the point's newest scored value is, 0 to 1.
        crosses_in_h: In how many hours it crosses a limit of a rule.
        health_score: How far the machine's sensors together are from normal, 0 to 1.
    """

    anomaly_score: float | None
    crosses_in_h: float | None
    health_score: float | None


_NOTHING: Final = Learned(None, None, None)


class Charted(Foreseen):
    """The part of the monitor that holds machines against what is normal."""

    machine_health = side_output(MachineHealth)

    together = value_state(Together)

    def __init__(
        self,
        monitoring: Monitoring,
        scoring: Scoring | None = None,
        forecasting: Forecasting | None = None,
        charts: Charts | None = None,
    ) -> None:
        super().__init__(monitoring, scoring, forecasting)
        self._charts = charts or Charts()

    def _learn(
        self,
        event: Reading,
        subject: str,
        value: float | None,
        every: float,
        known: MachineAsOf,
        mark: str,
        ctx: Context,
    ) -> Learned:
        """Take a reading of a point; return what is known of point and machine by now.

        Args:
            event: The reading.
            subject: The measuring point.
            value: Its value, ``None`` where it is not believed.
            every: How often the point reports, ms; 0 while nobody knows.
            known: What is known of the machine.
            mark: Its kind, where nobody has said.
            ctx: The reading's context.
        """
        if value is None:
            return _NOTHING
        scored = self._score(event, subject, value, every, ctx)
        health = self._chart(event.machine_id, subject, value, known.kind or mark, known.status, ctx)
        if scored is None:
            return Learned(None, None, health)
        return Learned(scored.score, hours_until(scored, ctx.event_time), health)

    def _chart(
        self, machine_id: str, subject: str, value: float, kind: str, status: str | None, ctx: Context
    ) -> float | None:
        """Take a point's good value; return the newest score of its machine.

        Args:
            machine_id: The machine.
            subject: The measuring point.
            value: Its value.
            kind: The machine's kind.
            status: Its status.
            ctx: The reading's context.
        """
        chart, version = self._charts.of(kind)
        if chart is None:
            return None
        known = self.together.value
        if known is None:
            known = self.together.value = Together()
        if subject not in chart.sensors:
            return known.score
        pane, regime = ctx.event_time // self._charts.interval_ms, status or ""
        if pane != known.pane:
            if known.sums:
                self._close(machine_id, kind, chart, version, known, ctx)
            known.pane, known.regime, known.sums = pane, regime, {}
        elif regime != known.regime:
            known.regime = None
        total, count = known.sums.get(subject, (0.0, 0))
        known.sums[subject] = (total + value, count + 1)
        return known.score

    def _close(
        self, machine_id: str, kind: str, chart: Chart, version: str, known: Together, ctx: Context
    ) -> None:
        """Judge an interval that is over, where every sensor has a value of late."""
        pane = known.pane
        for sensor, (total, count) in known.sums.items():
            known.latest[sensor] = (pane, total / count)
        recent = [known.latest.get(sensor, (-1, 0.0)) for sensor in chart.sensors]
        if known.regime is None or any(pane - at >= _LATEST for at, _ in recent):
            return
        found = chart.read(known.regime, [mean for _, mean in recent])
        if found is None:
            return
        share = found.share
        known.score = share / (1 + share)
        change = self._charts.detector.add(known.watched, known.score)
        normal = chart.regimes[known.regime]
        contributions = dict(zip(chart.sensors, found.contributions, strict=True))
        ctx.output(
            self.machine_health,
            MachineHealth(
                machine_id=machine_id,
                kind=kind,
                regime=known.regime,
                event_time_ms=(pane + 1) * self._charts.interval_ms,
                score=known.score,
                t2=found.t2,
                t2_limit=normal.t2_limit,
                q=found.q,
                q_limit=normal.q_limit,
                statistic=found.statistic,
                sensor=max(contributions, key=contributions.__getitem__),
                contributions=contributions,
                change="" if change is None else change.direction,
                model=version,
            ),
        )

    def _tidy(self, ctx: Context) -> None:
        super()._tidy(ctx)
        if self.machine.value is None:
            self.together.clear()


def read_charts(path: Path) -> dict[str, Chart]:
    """Return the charts of a file that ``millrace iot health train`` wrote.

    Raises:
        UserError: It cannot be read, or has none.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Chart])
    except (OSError, *NOT_JSON) as error:
        raise UserError(f"{path} has no charts of machines: {error}") from None
    for kind, chart in found.items():
        width = len(chart.sensors)
        for regime in chart.regimes.values():
            sizes = {len(regime.mean), len(regime.scale), *map(len, regime.components)}
            positive = all(x > 0 for x in (*regime.scale, *regime.variances, regime.t2_limit, regime.q_limit))
            if sizes != {width} or len(regime.variances) != len(regime.components) or not positive:
                raise UserError(f"{path}: the chart of {kind} contradicts itself")
    return found
