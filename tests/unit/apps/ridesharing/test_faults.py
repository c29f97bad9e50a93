"""What the generator breaks and repeats on purpose is found at the gate, and counted as its ledger says."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from millrace.testing import TestDriver
from millrace_apps.generators.engine.world import deliver_domain
from millrace_apps.generators.ridesharing import DOMAIN, RidesProfile
from millrace_apps.ridesharing.contracts.events import INPUTS
from millrace_apps.ridesharing.processes.gate import Gate

_TOPICS = {spec.topic: name for name, spec in DOMAIN.streams.items()}


@pytest.mark.parametrize("seed", [3, 4])
def test_broken_messages_and_repeats_are_dead_letters_with_a_reason_and_nothing_else_is(seed: int) -> None:
    profile = RidesProfile(
        seed=seed,
        drivers=120,
        rings=2,
        location_interval_ms=30_000,
        events=2_500,
        duplicates=0.03,
        malformed=0.03,
        start_ms=1_767_369_600_000,
    )
    decoders = {name: msgspec.json.Decoder(tp) for name, tp in INPUTS.items()}
    driver, faults, undecoded = TestDriver(Gate(), out_of_orderness_ms=10_000), Counter[str](), 0
    for message in deliver_domain(DOMAIN, profile):
        faults.update([message.fault.kind] if message.fault else [])
        name = _TOPICS[message.topic]
        try:
            event = decoders[name].decode(message.value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            undecoded += 1
            continue
        driver.send(message.key.decode(), event, at=event.event_time_ms, input=name)
    reasons = Counter(letter["reason"] for letter in driver.values("dead_letters"))
    assert undecoded + reasons["schema"] + reasons["range"] == faults["malformed"] > 30
    assert 0.9 * faults["duplicate"] < reasons["duplicate"] <= faults["duplicate"]
    assert reasons.keys() <= {"schema", "range", "duplicate"}
    assert driver.values("late") == []
