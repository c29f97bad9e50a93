"""The generator's world of payments through the app: what stands in the tables hangs on events alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from millrace.testing.app_contract import AppInMemory, AppWorld
from millrace.testing.standing import Happened
from millrace_apps.fraud.app import app
from millrace_apps.fraud.contracts.events import Label, Transaction
from millrace_apps.generators.fraud import FraudProfile, simulate
from tests.unit.apps.fraud.cases import HOUR, SECOND, START_MS, authorisations
from tests.unit.apps.fraud.chain import ALL

#: Frauds and what is said of them come within minutes and hours, not days and weeks.
PROFILE = FraudProfile(
    seed=4, start_ms=START_MS, event_rate=0.4, cards=60, terminals=40, fraud_rate=20, fraud_scale=0.02,
    label_scale=0.002, events=3_000,
)  # fmt: skip


def world(profile: FraudProfile, hours: int) -> Iterator[Happened]:
    """What happens in so many hours; what is said of a transaction comes then, and has its time."""
    end = START_MS + hours * HOUR
    happened: list[Happened] = []
    for simulated in simulate(profile):
        if simulated.stream == "transactions":
            tx = msgspec.convert(simulated.event, Transaction, from_attributes=True)
            if tx.event_time_ms >= end:
                break
            happened.append(Happened(tx.event_time_ms, tx.card_id, tx.event_time_ms, tx))
            happened += (
                Happened(a.event_time_ms, a.card_id, tx.event_time_ms, a) for a in authorisations(tx)
            )
        else:
            label = msgspec.convert(simulated.event, Label, from_attributes=True)
            happened.append(Happened(label.event_time_ms, label.card_id, label.transaction_time_ms, label))
    return iter(sorted((h for h in happened if h.came_ms < end), key=lambda h: h.came_ms))


class FraudWorld(AppWorld):
    app = app
    bound_ms = 10 * SECOND
    repeats = True

    def world(self) -> Iterator[Happened]:
        return world(PROFILE, 2)


class InMemory(FraudWorld, AppInMemory):
    def test_there_are_alerts_and_labels(self) -> None:
        found = {name.rpartition(".")[2]: rows.total() for name, rows in self.standing.expected().items()}
        assert found["main"] > 700
        assert min(found["alerts"], found["labels"]) > 10


class TestTwoHours(InMemory):
    pass


@pytest.mark.long
class TestDays(InMemory):
    """Rarer, for so long that what is kept of 24 hours is forgotten again and again."""

    def world(self) -> Iterator[Happened]:
        return world(replace(PROFILE, event_rate=0.01, events=1_500), 40)


class TestEntities(InMemory):
    """All stages.

    A terminal, an account, a device see the transactions of several cards in the order in which batches bring
    them: so they are brought in order.
    """

    overrides = (f"features.entities={','.join(ALL)}",)
    bound_ms = 0

    def world(self) -> Iterator[Happened]:
        return world(replace(PROFILE, event_rate=0.12, cards=20, terminals=20, events=900), 2)


class AsItComes(FraudWorld):
    """Ordinary cards, whose transactions come out of order as the generator's do."""

    overrides = (f"features.entities={','.join(ALL)}",)
    bound_ms = FraudProfile().disorder_ms
    per_key = False

    def world(self) -> Iterator[Happened]:
        return world(
            FraudProfile(seed=4, start_ms=START_MS, cards=1_000, terminals=200, event_rate=1.0, events=5_000),
            1,
        )


@pytest.mark.long
def test_of_a_thousand_decisions_not_one_hangs_on_the_cuts() -> None:
    """A decision stands that was made without what came later: batches bring some of that in time."""
    rows, others = AsItComes().standing.differing(range(1, 5))["main"]
    assert rows > 12_000
    assert others <= rows / 1_000


def test_disorder_within_bursts_is_seen_in_the_decisions() -> None:
    """The measure itself: of cards that are tried many times a second, orders by cuts do show."""

    class Bursts(AsItComes):
        bound_ms = 10 * SECOND

        def world(self) -> Iterator[Happened]:
            return world(PROFILE, 1)

    rows, others = Bursts().standing.differing([1])["main"]
    assert rows > 500
    assert others > 0
