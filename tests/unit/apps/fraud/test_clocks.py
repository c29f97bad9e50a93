"""Clocks that are wrong: one that is ahead silences nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from millrace.chaos.hostile import Message
from millrace.chaos.memory import MemoryStation
from millrace.runtime.settings import load_settings
from millrace_apps.fraud.app import app
from millrace_apps.fraud.contracts.control_events import SetThreshold
from millrace_apps.fraud.contracts.events import Decision, LateTransaction
from millrace_apps.fraud.settings import FraudSettings
from tests.unit.apps.fraud.cases import DAY, MINUTE, SECOND, START_MS, authorisation, label, transaction

#: Of 100 terminals; its clock is half a minute ahead, six times the bound.
FAST = "terminal-7"
AHEAD = 30 * SECOND


def payments(*, fast: bool) -> Iterator[tuple[int, Message]]:
    """Payments of ten minutes at 100 terminals, each sent when it happens, whatever its clock says."""
    random = Random(14)
    for n in range(3_000):
        at = n * 200
        terminal = f"terminal-{random.randrange(100)}"
        tx = transaction(
            at + (AHEAD if fast and terminal == FAST else 0),
            round(random.uniform(5, 50), 2),
            id=f"t{n}",
            card=f"card-{random.randrange(300)}",
            terminal=terminal,
        )
        yield at, _message("fraud.transactions", tx.card_id, tx, at)


def said_of_the_future() -> Iterator[tuple[int, Message]]:
    """Labels, authorisations and control events that are dated ahead of their time."""
    for n, ahead in enumerate((50 * SECOND, 10 * MINUTE, 20 * DAY)):
        at = n * MINUTE + 7
        of = transaction(at, 10, id=f"of{n}", card=f"other-{n}")
        beyond = transaction(at + ahead, 10, id=f"beyond{n}", card=f"other-{n}")
        for tx in (of, beyond):
            known = tx.event_time_ms - START_MS + ahead
            yield at, _message("fraud.labels", of.card_id, label(tx, known), at)
            yield at, _message("fraud.authorisations", of.card_id, authorisation(tx, known, "declined"), at)
        control = msgspec.json.encode(SetThreshold("travel_km", 150.0))
        yield at, Message("fraud.control", None, control, START_MS + at + ahead)


def _message(topic: str, card: str, event: object, at: int) -> Message:
    return Message(topic, card.encode(), msgspec.json.encode(event), START_MS + at)


def run(messages: list[tuple[int, Message]], overrides: list[str]) -> dict[str, list[bytes]]:
    """Return what comes out of the app's own topology, by output."""
    law = "governance.two_person=block_rules,approve_rules"
    settings = load_settings(FraudSettings, app="fraud", overrides=[law, *overrides], env={})
    station = MemoryStation(app.topology(settings), settings)
    ordered = [message for _, message in sorted(messages, key=lambda sent: sent[0])]
    found: dict[str, list[bytes]] = {}
    for first in range(0, len(ordered), 100):
        for output, payload in station.run(ordered[first : first + 100]):
            found.setdefault(output.rpartition(".")[2], []).append(payload)
    return found


def _without_terminal(decision: Decision) -> Decision:
    """A decision without what it says of its terminal, where cards with a fast clock may have been."""
    return msgspec.structs.replace(decision, terminal=None, terminal_labels=None)


ENTITIES = "features.entities=terminal,device"


@pytest.mark.parametrize("overrides", [[], [ENTITIES]], ids=["card", "stages"])
def test_one_terminal_whose_clock_is_ahead_leaves_all_others_their_decisions(overrides: list[str]) -> None:
    """With the settings as they come: 5 s of disorder, 60 s of future."""
    right = run(list(payments(fast=False)), overrides)
    wrong = run(list(payments(fast=True)), overrides)
    assert len(right["main"]) == 3_000
    decided = [msgspec.json.decode(payload, type=Decision) for payload in wrong["main"]]
    late = [
        msgspec.json.decode(payload, type=LateTransaction).event
        for payload in wrong.get("late_transactions", [])
    ]
    assert len(decided) == 3_000
    assert not late
    terminals = Counter(d.terminal_id for d in decided)
    assert len(terminals) == 100
    assert min(terminals.values()) > 10
    assert "dead_letters" not in wrong
    # Nothing of the others is another than if that clock were right.
    touched = {d.card_id for d in decided if d.terminal_id == FAST}
    others = [d for d in decided if d.card_id not in touched]
    assert len(others) > 500
    expected = {d.transaction_id: d for d in (msgspec.json.decode(p, type=Decision) for p in right["main"])}
    for d in others:
        assert _without_terminal(d) == _without_terminal(expected[d.transaction_id])


@pytest.mark.parametrize("overrides", [[], [ENTITIES]], ids=["card", "stages"])
def test_what_is_dated_in_the_future_moves_no_clock(overrides: list[str]) -> None:
    plain = run(list(payments(fast=False)), overrides)
    found = run([*payments(fast=False), *said_of_the_future()], overrides)
    assert sorted(found["main"]) == sorted(plain["main"])
    assert not found.get("late_transactions")
    # What is dated more than a minute ahead is put aside; all else is taken.
    kept = Counter(msgspec.json.decode(payload)["reason"] for payload in found["dead_letters"])
    assert kept == {"future": 4}
    assert (len(found["labels"]), len(found["authorisations"])) == (4, 4)
