"""The loop: what is decided changes what happens, what becomes known, and so what is learned.

Hour by hour the payments of the town and of the thieves go through the app's own topology in memory. What
passes and was a fraud is charged back weeks later; what is alerted on is looked at as far as the
investigators come; what is blocked is never spoken of. Every few days a model is trained on the decisions,
labels and authorisations that the loop itself has made, and decides from then on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from millrace.host.memory_chain import MemoryChain
from millrace.models.exports import CHAMPION, Exports
from millrace.models.manifest import Curve
from millrace.models.tables import CannotTrain
from millrace_apps.fraud.contracts.control_events import SetThreshold
from millrace_apps.fraud.contracts.events import Alert, Authorisation, Decision, Label, Transaction
from millrace_apps.fraud.loop.thieves import Thief, Tried
from millrace_apps.fraud.loop.world import BEGIN_MS, DAY_MS, HOUR_MS, Size, Town
from millrace_apps.fraud.model.estimator import ModelSpec
from millrace_apps.fraud.model.known import AUTHORISATION_COLUMNS, LABEL_COLUMNS
from millrace_apps.fraud.model.live import (
    DECIDED_COLUMNS,
    LIVE_COLUMNS,
    LIVE_INPUTS,
    LIVE_MODEL,
    LIVE_NAME,
    StreamScorer,
    flat,
)
from millrace_apps.fraud.model.training import examples, train
from millrace_apps.fraud.operations.economics import Costs
from millrace_apps.fraud.settings import FraudSettings
from millrace_apps.fraud.topology import topology

if TYPE_CHECKING:
    import pandas as pd

    from millrace_apps.fraud.model.training import Trained

#: Days before those that count, in which rules are alone and the first labels come.
WARM_UP: Final = 30
#: A model is trained every so many days, on so many days whose labels are known.
EVERY, LEARNED_DAYS = 5, 60
#: Chargebacks come after so many days, at least, in the middle and at most; of silence so much is genuine.
_SOONEST, _MIDDLE, _LATEST = 4, 8, 14
MATURITY_MS: Final = _LATEST * DAY_MS
#: Share of frauds that their holders never notice.
_UNNOTICED: Final = 0.05
#: Probabilities of the model from which on a payment is looked at, and blocked.
REVIEW_FROM, BLOCK_FROM = 0.25, 0.5
#: Names of the arms: blocked payments are left out of training; so with a control group; they are genuine.
BASE, CONTROL, GENUINE = "excluded", "control", "genuine"
#: How long a new model may take to be in force, seconds.
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class Arm:
    """One way of going about what is blocked.

    Attributes:
        name: Its name.
        control_share: Share of the would-be blocks that are let through.
        genuine: Whether what was blocked and nobody spoke of is learned as genuine.
    """

    name: str
    control_share: float = 0.0
    genuine: bool = False


class DayOfArm(msgspec.Struct):
    """What a day of an arm came to; amounts in currency units.

    Attributes:
        arm: The arm.
        day: The day, from 0; below 0: before those that count.
        payments: Payments decided on.
        frauds: Frauds tried.
        stopped: Frauds blocked.
        looked_at: Frauds that passed and were looked at.
        control: Payments let through to learn.
        false_blocks: Genuine payments blocked.
        looks: Alerts looked at.
        wrong_looks: Genuine ones among them that were not blocked.
        cost: Of frauds that passed, of looking, of blocking what was genuine.
        lost: Of it, frauds.
        trained: Rows that a model was trained on at the end of the day; 0: none was.
    """

    arm: str
    day: int
    payments: int = 0
    frauds: int = 0
    stopped: int = 0
    looked_at: int = 0
    control: int = 0
    false_blocks: int = 0
    looks: int = 0
    wrong_looks: int = 0
    cost: float = 0.0
    lost: float = 0.0
    trained: int = 0


class _Seen(NamedTuple):
    """A decision of today, and whether it is a fraud."""

    decision: Decision
    fraud: bool


@dataclass
class _Recorded:
    """What the loop has on record: the tables that a model is trained on."""

    features: list[pd.DataFrame] = field(default_factory=list)
    labels: list[tuple[Any, ...]] = field(default_factory=list)
    authorisations: list[tuple[Any, ...]] = field(default_factory=list)


class Loop:
    """The world of one arm.

    Args:
        arm: The arm.
        seed: Seed of the world.
        folder: Where models are exported to.
        size: How large the world is.
        costs: What things cost.
    """

    def __init__(
        self, arm: Arm, seed: int, folder: Path, size: Size | None = None, costs: Costs | None = None
    ) -> None:
        self.arm, self._seed = arm, seed
        self._size, self._costs = size or Size(), costs or Costs()
        self._exports = Exports(str(folder), LIVE_NAME)
        self._exports.path.mkdir(parents=True, exist_ok=True)
        self._town = Town(seed, self._size)
        self._thieves = [Thief(n, seed, self._town) for n in range(self._size.thieves)]
        self._spec = ModelSpec(LIVE_NAME, LIVE_INPUTS, self._size.trees, LIVE_MODEL.features_version)
        self._chain = MemoryChain(topology(self._settings(folder)), records=True)
        self._due: list[tuple[int, str, Label | Authorisation]] = []
        self._record = _Recorded()
        self._versions = 0

    def _settings(self, folder: Path) -> FraudSettings:
        return FraudSettings.model_validate(
            {
                "features": {"entities": "account,terminal,device,ip"},
                "labels": {"maturity_chargeback": f"{_LATEST}d"},
                "decisions": {"control_share": self.arm.control_share},
                "model": {"exports": str(folder)},
            }
        )

    def run(self, days: int) -> Iterator[DayOfArm]:
        """Yield the days, those before them that count included.

        Args:
            days: How many days count.
        """
        self._send(self._town.opening())
        self._chain.broadcast(
            SetThreshold("model_review", REVIEW_FROM), SetThreshold("model_block", BLOCK_FROM)
        )
        for day in range(-WARM_UP, days):
            yield self._day(day)

    def _day(self, day: int) -> DayOfArm:
        found = DayOfArm(self.arm.name, day)
        genuine = iter(self._town.genuine(day + WARM_UP))
        following = next(genuine, None)
        draw = random.Random(f"{self._seed} {day}")  # noqa: S311 - a simulation
        seen: list[_Seen] = []
        alerted: list[Alert] = []
        for hour in range(24):
            at = BEGIN_MS + (day + WARM_UP) * DAY_MS + hour * HOUR_MS
            tried = {
                found.transaction.transaction_id: found
                for thief in self._thieves
                if draw.random() < self._size.attempts / 24
                for found in (thief.attempt(day + WARM_UP, at),)
            }
            batch = [one.transaction for one in tried.values()]
            while following is not None and following.event_time_ms < at + HOUR_MS:
                batch.append(following)
                following = next(genuine, None)
            decisions, alerts = self._send(sorted(batch, key=lambda tx: tx.event_time_ms), at)
            alerted += alerts
            for decision in decisions:
                one = tried.get(decision.transaction_id)
                seen.append(_Seen(decision, one is not None))
                self._decided(decision, one, found)
        self._look(seen, alerted, found, BEGIN_MS + (day + WARM_UP + 1) * DAY_MS)
        self._record.features.append(_table(seen))
        for thief in self._thieves:
            thief.sleep()
        if day >= -1 and (day + 1) % EVERY == 0:
            found.trained = self._learn(BEGIN_MS + (day + WARM_UP + 1) * DAY_MS)
        return found

    def _send(self, payments: list[Transaction], at: int = BEGIN_MS) -> tuple[list[Decision], list[Alert]]:
        """Bring payments, and before them what has become known by a time, as two batches."""
        told: list[tuple[str, int, Any]] = []
        while self._due and self._due[0][0] <= at:
            event = heappop(self._due)[2]
            told.append((event.card_id, event.transaction_time_ms, event))
        emitted = self._chain.run_batch(told) if told else []
        emitted += self._chain.run_batch([(tx.card_id, tx.event_time_ms, tx) for tx in payments])
        for e in emitted:
            said: Any = e.payload
            if e.output.endswith("labels"):
                self._record.labels.append(tuple(getattr(said, name) for name in LABEL_COLUMNS))
            elif e.output.endswith("authorisations"):
                self._record.authorisations.append(tuple(getattr(said, n) for n in AUTHORISATION_COLUMNS))
            elif e.output.endswith("dead_letters"):
                raise AssertionError(f"the loop has sent what the app does not take: {said}")
        decisions = [e.payload for e in emitted if e.output == "main"]
        return decisions, [e.payload for e in emitted if e.output == "alerts"]

    def _decided(self, decision: Decision, tried: Tried | None, found: DayOfArm) -> None:
        """Let a decision have its effects."""
        blocked, amount = decision.action == "block", decision.amount
        found.payments += 1
        found.control += decision.control_group
        if blocked:
            self._tell(_declined(decision), decision.event_time_ms + 1)
        if tried is None:
            if blocked:
                found.false_blocks += 1
                found.cost += self._costs.false_block + self._costs.margin * amount
            return
        found.frauds += 1
        self._thieves[tried.thief].told(tried, passed=not blocked)
        if blocked:
            found.stopped += 1
            return
        found.cost += amount
        found.lost += amount
        draw = random.Random(f"{self._seed} {decision.transaction_id}")  # noqa: S311 - a simulation
        if draw.random() >= _UNNOTICED:
            days = draw.triangular(_SOONEST, _LATEST, _MIDDLE)
            self._say(decision, int(days * DAY_MS), fraud=True, source="chargeback")

    def _look(self, seen: list[_Seen], alerts: list[Alert], found: DayOfArm, now: int) -> None:
        """Have the investigators look at the alerts of a day: what can still be saved first, by score."""
        of = {one.decision.transaction_id: one for one in seen}
        queue = [of[alert.transaction_id] for alert in alerts]
        queue.sort(key=lambda one: (one.decision.action == "block", -_suspicion(one.decision)))
        for one in queue[: self._size.looks]:
            decision = one.decision
            found.looks += 1
            found.cost += self._costs.review
            self._say(decision, now - decision.event_time_ms, fraud=one.fraud, source="feedback")
            if decision.action == "block":
                continue
            if one.fraud:
                found.looked_at += 1
                found.cost -= self._costs.review_saves * decision.amount
                found.lost -= self._costs.review_saves * decision.amount
            else:
                found.wrong_looks += 1

    def _say(self, decision: Decision, after: int, *, fraud: bool, source: Any) -> None:
        at, name = decision.event_time_ms, decision.transaction_id
        label = Label(
            f"{source}-{name}", at + after, name, at, decision.card_id, decision.terminal_id, fraud, source
        )
        self._tell(label, at + after)

    def _tell(self, event: Label | Authorisation, at: int) -> None:
        heappush(self._due, (at, f"{type(event).__name__} {event.transaction_id} {at}", event))

    def _learn(self, now: int) -> int:
        """Train a model on what is known, and let it decide; return on how many payments."""
        import pandas as pd

        record = self._record
        features = pd.concat(record.features[-(LEARNED_DAYS + _LATEST + 1) :], ignore_index=True)
        labels = pd.DataFrame(record.labels, columns=list(LABEL_COLUMNS))
        answers: pd.DataFrame | None = pd.DataFrame(
            record.authorisations, columns=list(AUTHORISATION_COLUMNS)
        )
        if self.arm.genuine:
            features, answers = features.drop(columns=["action", *DECIDED_COLUMNS]), None
        known = examples(
            features, now, MATURITY_MS, labels=labels, authorisations=answers, days=LEARNED_DAYS,
            inputs=LIVE_INPUTS,
        )  # fmt: skip
        try:
            trained = train(known, MATURITY_MS, spec=self._spec, seed=self._seed, as_of_ms=now)
        except CannotTrain:
            return 0
        self._promote(trained)
        return trained.rows

    def _promote(self, trained: Trained) -> None:
        """Export a model, and wait until it is in force."""
        self._versions += 1
        manifest = self._exports.publish_estimator(
            CHAMPION,
            trained.model,
            version=str(self._versions),
            inputs=LIVE_INPUTS,
            features_version=self._spec.features_version,
            calibration=Curve(trained.calibration.slope, trained.calibration.intercept),
            trained_since_ms=trained.since_ms,
            trained_until_ms=trained.until_ms,
        )
        scorer, until = StreamScorer(self._exports.folder), time.monotonic() + _PATIENCE_S
        while (status := scorer.status()).version != manifest.version:
            if status.error or time.monotonic() > until:
                raise RuntimeError(f"version {manifest.version} does not come into force: {status.error}")
            time.sleep(0.02)


def _suspicion(decision: Decision) -> float:
    return max(decision.score, decision.model_score or 0.0)


def _declined(decision: Decision) -> Authorisation:
    at, name = decision.event_time_ms, decision.transaction_id
    return Authorisation(
        f"declined-{name}", at + 1, name, at, decision.card_id, "declined", decision.amount,
        terminal_id=decision.terminal_id,
    )  # fmt: skip


def _table(seen: list[_Seen]) -> pd.DataFrame:
    """Return decisions as the table ``transactions`` gives them to training."""
    import pandas as pd

    wanted = (*LIVE_COLUMNS, *DECIDED_COLUMNS)
    rows = [{name: msgspec.to_builtins(getattr(one.decision, name)) for name in wanted} for one in seen]
    return flat(pd.DataFrame(rows, columns=list(wanted)))


def arms_of(control_share: float, *, genuine: bool) -> list[Arm]:
    """Return the arms.

    Args:
        control_share: Share of the would-be blocks that is let through in the arm with a control group.
        genuine: Whether to have the arm that counts blocked payments as genuine, too.
    """
    arms = [Arm(BASE), Arm(CONTROL, control_share)]
    return [*arms, Arm(GENUINE, genuine=True)] if genuine else arms


def run_arms(
    arms: list[Arm], seed: int, days: int, folder: Path, size: Size, say: Callable[[str], None]
) -> list[DayOfArm]:
    """Run arms one after the other; return their days that count.

    Args:
        arms: The arms.
        seed: Seed of the world, which is the same for all.
        days: Days that count.
        folder: Where models are exported to.
        size: How large the world is.
        say: Told in a line how far it is.
    """
    found = []
    for number, arm in enumerate(arms):
        began = time.monotonic()
        for one in Loop(arm, seed, folder / arm.name, size).run(days):
            if one.day >= 0:
                found.append(one)
            if (one.day + 1) % 10 == 0:
                say(
                    f"{arm.name} ({number + 1} of {len(arms)}): day {one.day + 1} of {days}, "
                    f"{time.monotonic() - began:.0f} s"
                )
    return found
