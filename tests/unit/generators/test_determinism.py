"""Same seed and parameters, same bytes: in any process, at any rate, whatever else is switched on."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable

import pytest

from millrace_apps.generators.engine import Generated, substream
from millrace_apps.generators.engine.pace import pace
from millrace_apps.generators.fraud import FraudProfile, fraud_events, simulate

PROFILE = FraudProfile(
    seed=7,
    events=5_000,
    cards=100,
    late=0.02,
    lateness_ms=1_000,
    duplicates=0.02,
    malformed=0.02,
    fraud_rate=3,
)


def as_bytes(message: Generated) -> tuple[bytes, bytes, tuple[tuple[str, bytes], ...]]:
    return message.key, message.value, tuple(message.headers)


def digest(messages: Iterable[Generated]) -> str:
    return hashlib.sha256(repr([as_bytes(message) for message in messages]).encode()).hexdigest()


class SteppingClock:
    """A clock that moves only when someone sleeps, and then a little too far."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds * 1.1


def test_same_profile_gives_same_bytes_and_another_seed_gives_others() -> None:
    assert digest(fraud_events(PROFILE)) == digest(fraud_events(PROFILE))
    other = FraudProfile(**{**PROFILE.parameters(), "seed": 8})
    assert digest(fraud_events(other)) != digest(fraud_events(PROFILE))


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_another_process_gives_the_same_bytes(hash_seed: str) -> None:
    code = (
        "import hashlib\nfrom millrace_apps.generators.fraud import FraudProfile, fraud_events\n"
        f"messages = fraud_events(FraudProfile(**{PROFILE.parameters()!r}))\n"
        "rows = [(m.key, m.value, tuple(m.headers)) for m in messages]\n"
        "print(hashlib.sha256(repr(rows).encode()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == digest(fraud_events(PROFILE))


@pytest.mark.parametrize("speed", [0.001, 1.0, 60.0])
def test_the_rate_of_sending_changes_no_byte(speed: float) -> None:
    paced = pace(fraud_events(PROFILE), speed=speed, start_ms=PROFILE.start_ms, clock=SteppingClock())
    assert digest(paced) == digest(fraud_events(PROFILE))


@pytest.mark.parametrize(
    "change",
    [
        {"late": 0.0},
        {"duplicates": 0.0},
        {"malformed": 0.0},
        {"malformed": 0.5, "duplicates": 0.5},
        {"disorder_ms": 0},
    ],
    ids=str,
)
def test_faults_change_no_valid_event(change: dict[str, float]) -> None:
    changed = FraudProfile(**{**PROFILE.parameters(), **change})
    valid = {as_bytes(m) for m in fraud_events(changed) if m.labels.fault in (None, "late")}
    assert valid == {as_bytes(event) for event in simulate(PROFILE)}


def test_one_fault_does_not_move_another() -> None:
    """Which events are late or sent twice does not depend on whether broken messages are added."""
    calm = FraudProfile(**{**PROFILE.parameters(), "malformed": 0.0})
    for fault in ("late", "duplicate"):
        assert [as_bytes(m) for m in fraud_events(calm) if m.labels.fault == fault] == [
            as_bytes(m) for m in fraud_events(PROFILE) if m.labels.fault == fault
        ]


def test_a_shorter_run_is_the_beginning_of_a_longer_one() -> None:
    # The last event of a bounded run always keeps its slot, so the comparison ends before it.
    short = list(simulate(FraudProfile(**{**PROFILE.parameters(), "events": 2_000})))[:-1]
    long = list(simulate(PROFILE))
    assert [as_bytes(a) for a in short] == [as_bytes(b) for b in long[: len(short)]]


def test_numbers_for_one_purpose_do_not_depend_on_other_purposes() -> None:
    alone = [substream(7, "fraud", "amount").random() for _ in range(3)]
    other = substream(7, "fraud", "a_new_field")
    assert alone == [(other.random(), substream(7, "fraud", "amount").random())[1] for _ in range(3)]
    assert substream(7, "ab", "c").random() != substream(7, "a", "bc").random()


def test_bytes_stay_the_same_between_releases() -> None:
    """A change here changes every stream that someone made with a seed: say so in the change log."""
    first = next(simulate(FraudProfile(seed=7)))
    assert first.value == (
        b'{"transaction_id":"70321f6dbc-0000000000","card_id":"card-0000457","terminal_id":"topup-DE",'
        b'"mcc":"6540","country":"DE","amount":1990.00,"currency":"EUR","kind":"top_up",'
        b'"event_time_ms":1767225600000}'
    )
    assert digest(fraud_events(PROFILE)) == "71381701d213f4acffb21336b03326470dce8bc2e79ae30147acfed2f67232ae"
