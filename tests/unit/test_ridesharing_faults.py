"""What the generator breaks and repeats on purpose is found at the gate, and counted as its ledger says."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from apps.ridesharing.events import Signal
from apps.ridesharing.gate import Gate
from generators.engine.world import deliver_domain
from generators.ridesharing import DOMAIN, RidesProfile
from millrace.testing import TestDriver

_TOPICS = {spec.topic: name for name, spec in DOMAIN.streams.items()}


def as_the_pipeline_makes_it(value: bytes, topic: str, key: bytes) -> bytes:
    """A twin of what the pipeline does in the engine: stream and key go into the event."""
    text = value.rstrip(b" ")
    if not (text.startswith(b"{") and text.endswith(b"}")):
        return value
    added = msgspec.json.encode({"stream": _TOPICS[topic], "entity": key.decode()})
    return text[:-1] + b"," + added[1:]


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
    decode = msgspec.json.Decoder(Signal).decode
    driver, faults, undecoded = TestDriver(Gate(), out_of_orderness_ms=10_000), Counter[str](), 0
    for message in deliver_domain(DOMAIN, profile):
        faults.update([message.fault.kind] if message.fault else [])
        try:
            signal = decode(as_the_pipeline_makes_it(message.value, message.topic, message.key))
        except (msgspec.DecodeError, UnicodeDecodeError):
            undecoded += 1
            continue
        driver.send(signal.entity, signal, at=signal.event_time_ms)
    reasons = Counter(letter["reason"] for letter in driver.values("dead_letters"))
    assert undecoded + reasons["schema"] + reasons["range"] == faults["malformed"] > 30
    assert 0.9 * faults["duplicate"] < reasons["duplicate"] <= faults["duplicate"]
    assert reasons.keys() <= {"schema", "range", "duplicate"}
    assert driver.values("late") == []
