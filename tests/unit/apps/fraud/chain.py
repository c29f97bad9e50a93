"""The fraud app's stages in memory, with rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, TypeVar

import msgspec

from millrace.host.memory import MemoryHost
from millrace.host.memory_chain import MemoryChain
from millrace.host.runner import Emission
from millrace_apps.fraud.contracts.events import (
    Alert,
    Authorisation,
    CardErasure,
    Correction,
    Decision,
    Label,
    LabelSource,
    Transaction,
)
from millrace_apps.fraud.model.outcomes import Outcomes
from millrace_apps.fraud.operations.governance import Governance
from millrace_apps.fraud.processes.control_group import ControlGroup
from millrace_apps.fraud.processes.entity_stages import stages
from millrace_apps.fraud.processes.scorer import Scorer
from millrace_apps.fraud.state.known_labels import LabelRules
from tests.unit.apps.fraud.cases import DAY, HOUR, MINUTE, SECOND, label, transaction

E = TypeVar("E")
ALL = ("account", "terminal", "device", "ip")
RULES_ALONE = Governance(frozenset({"block_rules", "approve_rules"}))


class Chain:
    """All stages, as a pipeline wires them.

    Args:
        entities: The stages after the card's.
        out_of_orderness_ms: How far the watermark stays behind, ms.
        scorer: A model.
        labels: How labels are read.
        measures: Whether scores are kept to be judged.
        control_group: Who is let through though it would be blocked.
        law: What needs two persons: rules, unless told; so that tests can set the rest by one event.
    """

    def __init__(
        self,
        entities: Sequence[str] = ALL,
        *,
        out_of_orderness_ms: int = 0,
        scorer: Scorer | None = None,
        labels: LabelRules | None = None,
        measures: bool = False,
        control_group: ControlGroup | None = None,
        law: Governance = RULES_ALONE,
    ) -> None:
        first, rest = stages(entities, scorer, labels=labels, measures=measures, control_group=control_group)
        for stage in (first, *(stage for _, stage in rest)):
            stage.governance = law
        self.chain = MemoryChain(first, *rest, out_of_orderness_ms=out_of_orderness_ms)
        self.emissions: list[Emission] = []

    def control(self, *events: Any) -> None:
        """Bring control events, as one batch."""
        for host in self.chain.hosts:
            self.emissions += [
                e._replace(output=f"{host.runner.process.name}.{e.output}") for e in host.broadcast(*events)
            ]

    def send(self, *events: Transaction | Label | Authorisation | CardErasure) -> None:
        """Send transactions, labels, authorisations and erasures as one batch."""
        self.emissions += self.chain.run_batch([(e.card_id, time_of(e), e) for e in events])

    def restart(self) -> None:
        """Go on from snapshots, as after a crash."""
        kept = [host.snapshot() for host in self.chain.hosts]
        for place, host in enumerate(self.chain.hosts):
            new = MemoryHost(host.runner.process, out_of_orderness_ms=host._bound)
            new.restore(kept[place])
            self.chain.hosts[place] = new

    def of(self, output: str) -> list[bytes]:
        """Return what came out of an output, of whichever stage."""
        return [e.payload for e in self.emissions if e.output.rpartition(".")[2] == output]

    @property
    def decisions(self) -> list[Decision]:
        return [msgspec.json.decode(p, type=Decision) for p in self.of("main")]

    @property
    def alerts(self) -> list[Alert]:
        return [msgspec.json.decode(p, type=Alert) for p in self.of("alerts")]

    @property
    def labels(self) -> list[Label]:
        return [msgspec.json.decode(p, type=Label) for p in self.of("labels")]

    @property
    def outcomes(self) -> list[Outcomes]:
        return [msgspec.json.decode(p, type=Outcomes) for p in self.of("outcomes")]

    @property
    def corrections(self) -> list[Correction]:
        return [msgspec.json.decode(p, type=Correction) for p in self.of("corrections")]

    @property
    def dead(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(p) for p in self.of("dead_letters")]


def time_of(event: Transaction | Label | Authorisation | CardErasure) -> int:
    """Return the time by which an event is ordered: what is said of a transaction has that one's."""
    return event.transaction_time_ms if isinstance(event, Label | Authorisation) else event.event_time_ms


def some_life(random: Random, number: int, *, cards: int = 4, span: int = 40 * DAY) -> list[Transaction]:
    """Transactions of a few cards that share terminals, devices and addresses; no two at one instant."""
    found = []
    at = 0
    for _ in range(number):
        at += random.choice([1, 2, MINUTE // 2, MINUTE, HOUR, DAY // 2, span // number])
        card = random.randrange(cards)
        online = random.random() < 0.5
        kind = random.choices(["purchase", "refund", "top_up"], [8, 1, 1])[0]
        amount = random.choice([0.5, 1.0, 7.5, 20.0, 33.33, 600.0])
        more: dict[str, Any] = {"account_id": f"a-{card // 2}", "channel": "online" if online else "terminal"}
        if online:
            more |= {"device_id": f"d-{random.randrange(3)}", "ip": f"10.0.0.{random.randrange(3)}"}
        else:
            more |= {"latitude": random.choice([52.5, 48.1]), "longitude": 13.4}
        terminal = f"t-{random.randrange(3)}"
        found.append(
            transaction(at, amount, card=f"c-{card}", kind=kind, terminal=terminal, **more)  # type: ignore[arg-type]
        )
    return found


def a_life_with_labels(random: Random) -> list[Transaction | Label]:
    """Purchases within a month, most with labels, some corrected; in the order in which they come about."""
    found: list[tuple[int, int, Transaction | Label]] = []
    at = 0
    for n in range(50):
        at += random.choice([SECOND, MINUTE, HOUR, 6 * HOUR, DAY])
        tx = transaction(at, 10, id=f"t{n}", card=f"c-{n % 3}", terminal=f"m-{random.randrange(3)}")
        found.append((at, 1, tx))
        known, verdict = at, random.random() < 0.6
        for step in range(random.choice([0, 1, 1, 2])):
            known += random.choice([MINUTE, HOUR + 7, 2 * DAY + 3])
            source: LabelSource = "correction" if step else "chargeback"
            found.append((known, 0, label(tx, known, verdict, id=f"l{n}-{step}", source=source)))
            verdict = not verdict
    return [event for _, _, event in sorted(found, key=lambda f: f[:2])]


def cut(random: Random, events: Iterable[E]) -> list[list[E]]:
    """Return events in batches of random length."""
    batches: list[list[E]] = [[]]
    for tx in events:
        if random.random() < 0.3:
            batches.append([])
        batches[-1].append(tx)
    return [batch for batch in batches if batch]
