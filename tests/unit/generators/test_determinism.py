"""Same seed and parameters, same bytes: in any process, at any rate, whatever else is switched on."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from millrace_apps.generators.engine import Generated, substream
from millrace_apps.generators.engine.pace import pace
from millrace_apps.generators.fraud import FraudProfile
from tests.payments import transactions_of

ROOT = Path(__file__).resolve().parents[3]
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


def fault_of(message: Generated) -> str | None:
    return None if message.fault is None else message.fault.kind


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
    assert digest(transactions_of(PROFILE)) == digest(transactions_of(PROFILE))
    other = FraudProfile(**{**PROFILE.parameters(), "seed": 8})
    assert digest(transactions_of(other)) != digest(transactions_of(PROFILE))


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_another_process_gives_the_same_bytes(hash_seed: str) -> None:
    code = (
        "import hashlib\nfrom millrace_apps.generators.fraud import FraudProfile\n"
        "from tests.payments import transactions_of\n"
        f"messages = transactions_of(FraudProfile(**{PROFILE.parameters()!r}))\n"
        "rows = [(m.key, m.value, tuple(m.headers)) for m in messages]\n"
        "print(hashlib.sha256(repr(rows).encode()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == digest(transactions_of(PROFILE))


@pytest.mark.parametrize("speed", [0.001, 1.0, 60.0])
def test_the_rate_of_sending_changes_no_byte(speed: float) -> None:
    paced = pace(transactions_of(PROFILE), speed=speed, start_ms=PROFILE.start_ms, clock=SteppingClock())
    assert digest(paced) == digest(transactions_of(PROFILE))


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
    valid = {as_bytes(m) for m in transactions_of(changed) if fault_of(m) in (None, "late")}
    calm = FraudProfile(**{**PROFILE.parameters(), "late": 0.0, "duplicates": 0.0, "malformed": 0.0})
    assert valid == {as_bytes(m) for m in transactions_of(calm)}


def test_one_fault_does_not_move_another() -> None:
    """Which events are late or sent twice does not depend on whether broken messages are added."""
    calm = FraudProfile(**{**PROFILE.parameters(), "malformed": 0.0})
    for fault in ("late", "duplicate"):
        assert [as_bytes(m) for m in transactions_of(calm) if fault_of(m) == fault] == [
            as_bytes(m) for m in transactions_of(PROFILE) if fault_of(m) == fault
        ]


def test_numbers_for_one_purpose_do_not_depend_on_other_purposes() -> None:
    alone = [substream(7, "fraud", "amount").random() for _ in range(3)]
    other = substream(7, "fraud", "a_new_field")
    assert alone == [(other.random(), substream(7, "fraud", "amount").random())[1] for _ in range(3)]
    assert substream(7, "ab", "c").random() != substream(7, "a", "bc").random()


def test_bytes_stay_the_same_between_releases() -> None:
    """A change here changes every stream that someone made with a seed: say so in the change log."""
    assert (
        digest(transactions_of(PROFILE)) == "8332f55f8f4419bec7fe4b1b0408dd47d4911a8ddb9752a551d9096cbaf3d65c"
    )
