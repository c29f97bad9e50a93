"""A domain's messages on their way: faults of every kind, told by the messages themselves."""

from __future__ import annotations

import gc
import hashlib
import json
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema
import msgspec
import pytest

from millrace.dead_letters import reason_of
from millrace.errors import UserError
from millrace_apps.generators.engine import Generated, substream
from millrace_apps.generators.engine.disturb import Disturbances, _murmur2, partition_of, windows
from millrace_apps.generators.engine.encode import Clocks
from millrace_apps.generators.engine.world import deliver_domain
from tests.unit.generators.world import METERS, MeterProfile, Opening, Report, simulate

PROFILE = MeterProfile(seed=4, events=4_000, late=0.03, lateness_ms=2_000, duplicates=0.03, malformed=0.03)
EVERYTHING = Disturbances(
    delay="exponential(mean=100ms, max=1s)",
    loss=0.03,
    drift=0.05,
    unknown_version=0.03,
    clock_skew=0.2,
    clock_skew_ms=5_000,
    idle_ms=1_000,
    idle_every_ms=8_000,
    silence_ms=500,
    silence_every_ms=10_000,
)


@lru_cache
def send(profile: MeterProfile = PROFILE, wrong: Disturbances = EVERYTHING) -> tuple[Generated, ...]:
    return tuple(deliver_domain(METERS, profile, wrong))


def of(kind: str, sent: tuple[Generated, ...]) -> list[Generated]:
    return [message for message in sent if message.fault is not None and message.fault.kind == kind]


def as_bytes(message: Generated) -> tuple[Any, ...]:
    return (message.topic, message.key, message.value, tuple(message.headers), message.dropped)


def test_without_faults_every_event_is_sent_as_it_is() -> None:
    sent = send(MeterProfile(seed=4, events=500, disorder_ms=0), Disturbances())
    for message, happened in zip(sent, simulate(MeterProfile(seed=4, events=500)), strict=False):
        headers = dict(message.headers)
        assert message.value == msgspec.json.encode(happened.event)
        assert message.key == happened.key.encode()
        assert message.topic == f"meters.{happened.stream}"
        assert headers["ce_type"] == f"millrace.meters.{happened.stream}".encode()
        assert headers["ce_id"].decode() == message.transaction_id
        assert (headers["ce_specversion"], headers["schema_version"]) == (b"1.0", b"1")
        assert message.fault is None
    assert len(sent) == 500
    assert dict(sent[1].headers)["ce_time"] == b"2026-01-01T00:00:00.010Z"


def test_equal_profiles_give_equal_bytes_between_releases() -> None:
    again = tuple(deliver_domain(METERS, PROFILE, EVERYTHING))
    assert [as_bytes(m) for m in again] == [as_bytes(m) for m in send()]
    other = tuple(deliver_domain(METERS, replace(PROFILE, seed=5), EVERYTHING))
    assert [as_bytes(m) for m in other] != [as_bytes(m) for m in send()]
    found = hashlib.sha256(repr([as_bytes(m) for m in send()]).encode()).hexdigest()
    assert found == "95e480a9d935c5aee5e77527975704fd1c13716eb6fd3d7fb180ac20913b4897"


OFF = [
    {"loss": 0.0},
    {"drift": 0.0},
    {"unknown_version": 0.0},
    {"delay": ""},
]


@pytest.mark.parametrize("change", OFF, ids=str)
def test_one_fault_does_not_move_another(change: dict[str, Any]) -> None:
    """An event has one fault at most, so those that get another one instead are left out."""
    wrong = replace(EVERYTHING, idle_ms=0, silence_ms=0)
    before, after = send(PROFILE, wrong), send(PROFILE, replace(wrong, **change))
    (switched,) = change
    kinds = {"loss": "lost", "drift": "drifted", "unknown_version": "unknown_version", "delay": ""}
    freed = {m.transaction_id for m in of(kinds[switched], before) if m.is_event}
    for kind in {"late", "lost", "duplicate", "drifted", "unknown_version", "malformed", "wrong_clock"}:
        if kind == kinds[switched]:
            assert not of(kind, after)
            continue
        then = [m.transaction_id for m in of(kind, before) if m.is_event or kind == "duplicate"]
        now = [m.transaction_id for m in of(kind, after) if m.is_event or kind == "duplicate"]
        assert sorted(set(now) - freed) == sorted(then)


def test_shares_come_out_as_asked() -> None:
    profile = MeterProfile(seed=6, events=10_000)
    wrong = Disturbances(loss=0.02, drift=0.03, unknown_version=0.01)
    sent = send(profile, wrong)
    # Five standard deviations of a binomial; drift spares what is lost.
    assert len(of("lost", sent)) == pytest.approx(200, abs=70)
    assert len(of("drifted", sent)) == pytest.approx(300, abs=86)
    assert len(of("unknown_version", sent)) == pytest.approx(100, abs=50)
    assert len([m for m in sent if m.is_event]) == 10_000


def test_a_lost_event_is_noted_and_not_sent() -> None:
    sent = send(PROFILE, Disturbances(loss=0.1))
    lost = of("lost", sent)
    assert len(lost) > 300
    assert all(m.dropped and m.fault and m.fault.expected == "absent" for m in lost)
    ids = {m.transaction_id for m in sent if not m.dropped}
    assert not ids & {m.transaction_id for m in lost}


def schema_of(stream: str) -> dict[str, Any]:
    return msgspec.json.schema({"reports": Report, "openings": Opening}[stream])


def test_broken_and_drifted_messages_are_what_they_say() -> None:
    validators = {name: jsonschema.Draft202012Validator(schema_of(name)) for name in METERS.streams}
    known = {m.transaction_id for m in send() if m.is_event}
    details: Counter[str] = Counter()
    for message in send():
        fault = message.fault
        if fault is None or fault.kind not in ("malformed", "drifted", "unknown_version"):
            continue
        details[fault.detail] += 1
        try:
            event = json.loads(message.value.decode())
        except ValueError:
            assert fault.reason == "malformed"
            with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)) as broken:
                msgspec.json.decode(message.value, type=METERS.streams[message.stream].event_type)
            assert reason_of(broken.value) == "malformed"
            continue
        valid = validators[message.stream].is_valid(event)
        assert valid == (fault.reason not in ("schema", "range"))
        if not valid:
            with pytest.raises(msgspec.ValidationError) as found:
                msgspec.json.decode(message.value, type=METERS.streams[message.stream].event_type)
            assert reason_of(found.value) == fault.reason
        if fault.expected == "dead_letter":
            assert message.transaction_id not in known
            assert dict(message.headers)["ce_id"].decode() == message.transaction_id
        else:
            assert fault.expected == "accepted"
            assert "added_in_v2" in event
        version = dict(message.headers)["schema_version"]
        assert version == (b"999" if fault.kind == "unknown_version" else b"1")
    assert {"truncated_json", "not_utf8", "wrong_root", "schema_version=999"} <= details.keys()
    assert {"wrong_type:value", "retyped:value", "added:added_in_v2", "out_of_range:at_ms"} <= details.keys()
    assert {f"missing_field:{name}" for name in Opening.__struct_fields__ if name != "note"} <= details.keys()
    assert any(detail.startswith("renamed:") for detail in details)


def test_a_wrong_clock_is_wrong_by_the_same_time_for_all_events_of_a_key() -> None:
    profile = MeterProfile(seed=4, events=2_000)
    right = {h.event.report_id: h for h in simulate_some(profile) if h.stream == "reports"}
    offsets: dict[bytes, set[int]] = {}
    for message in send(profile, Disturbances(clock_skew=0.3, clock_skew_ms=5_000)):
        if message.stream != "reports":
            continue
        offset = json.loads(message.value)["at_ms"] - right[message.transaction_id].event_time_ms
        offsets.setdefault(message.key, set()).add(offset)
        assert message.event_time_ms == json.loads(message.value)["at_ms"]
        assert (message.fault is not None) == (offset != 0)
    assert all(len(found) == 1 and abs(*found) <= 5_000 for found in offsets.values())
    assert {0} in offsets.values()
    assert any(found != {0} for found in offsets.values())


def test_the_first_fault_of_an_event_is_its_only_one() -> None:
    clocks = Clocks(PROFILE.seed, "meters", EVERYTHING.clock_skew, EVERYTHING.clock_skew_ms)
    seen = 0
    for message in send():
        if message.is_event and clocks.offset_ms(message.key.decode()):
            assert message.fault is not None
            assert message.fault.kind == "wrong_clock"
            seen += 1
    assert seen > 200


def simulate_some(profile: MeterProfile) -> list[Any]:
    return list(islice(simulate(profile), profile.events))


def test_clocks_have_their_share_and_both_signs_and_forget_nothing_that_matters() -> None:
    clocks = Clocks(1, "meters", 0.1, 60_000)
    found = [clocks.offset_ms(f"key-{n}") for n in range(5_000)]
    wrong = [offset for offset in found if offset]
    assert len(wrong) == pytest.approx(500, abs=106)
    assert max(map(abs, wrong)) <= 60_000
    # Uniform: a mean distance of half the bound (five standard errors).
    assert sum(map(abs, wrong)) / len(wrong) == pytest.approx(30_000, abs=4_000)
    assert sum(offset > 0 for offset in wrong) == pytest.approx(len(wrong) / 2, abs=60)
    assert [Clocks(1, "meters", 0.1, 60_000).offset_ms(f"key-{n}") for n in range(50)] == found[:50]


def test_a_silent_partition_sends_nothing_and_the_others_go_on() -> None:
    profile = MeterProfile(seed=4, events=4_000)
    sent = send(profile, Disturbances(idle_ms=2_000, idle_every_ms=10_000, idle_partitions=4))
    notes = of("silence", sent)
    assert len(notes) == 4
    for note in notes:
        assert note.fault is not None
        scope, end, withheld = note.fault.detail.split("; ")
        begin_ms, end_ms = note.event_time_ms, int(end.removeprefix("end_ms="))
        partition = int(scope.split()[1])
        assert end_ms - begin_ms == 2_000
        inside = [m for m in sent if not m.dropped and begin_ms <= m.happened_ms < end_ms]
        assert {partition_of(m.key, 4) for m in inside} == {0, 1, 2, 3} - {partition}
        missing = [
            h
            for h in simulate_some(profile)
            if begin_ms <= h.event_time_ms < end_ms and partition_of(h.key.encode(), 4) == partition
        ]
        assert len(missing) == int(withheld.removeprefix("withheld=")) > 0


def test_in_a_silence_nothing_happens() -> None:
    sent = send(MeterProfile(seed=4, events=4_000), Disturbances(silence_ms=1_000, silence_every_ms=10_000))
    (first, *_) = of("silence", sent)
    begin = first.event_time_ms
    assert not [m for m in sent if not m.dropped and begin <= m.happened_ms < begin + 1_000]
    assert len([m for m in sent if not m.dropped]) == 4_000 - 4 * 100


def test_windows_lie_one_in_each_period() -> None:
    found = list(islice(windows(1_000, 50, 1_000, 4, substream(1, "w")), 200))
    assert all(1_000 + n * 1_000 <= w.begin_ms and w.end_ms <= 2_000 + n * 1_000 for n, w in enumerate(found))
    assert {w.partition for w in found} == {0, 1, 2, 3}


def test_partitions_are_those_of_kafkas_clients() -> None:
    # From Kafka's own UtilsTest.
    assert _murmur2(b"21") - (1 << 32) == -973932308
    assert _murmur2(b"foobar") - (1 << 32) == -790332482
    assert _murmur2(b"a-little-bit-long-string") - (1 << 32) == -985981536


def test_order_of_sending_follows_the_delay_and_late_events_are_behind() -> None:
    sent = [m for m in send(PROFILE, Disturbances(delay="exponential(mean=100ms, max=1s)")) if not m.dropped]
    newest = 0
    for message in sent:
        behind = newest - message.happened_ms
        if message.fault is not None and message.fault.kind == "late":
            assert message.fault.lateness_ms <= behind
            assert message.fault.expected == ("late" if behind >= 2_000 else "either")
        elif message.fault is None:
            assert behind <= 1_000
        newest = max(newest, message.happened_ms)
    # Only what comes at the end may have nothing to be late against.
    undecided = [m for m in of("late", tuple(sent)) if m.fault and m.fault.expected == "either"]
    assert all(m in sent[-400:] for m in undecided)
    assert len(of("late", tuple(sent))) > 5 * len(undecided)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"loss": 1.5}, "loss is a share"),
        ({"idle_ms": 10, "idle_every_ms": 10}, "idle is shorter than its period"),
        ({"delay": "gamma"}, "--delay is one of"),
        ({"clock_skew_ms": 0}, "clock skew is 1 ms to one day"),
        ({"idle_partitions": 0}, "idle partitions is a count"),
    ],
)
def test_what_cannot_be_meant_is_named(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Disturbances(**flags)


def test_a_late_event_must_be_later_than_the_longest_delay() -> None:
    with pytest.raises(UserError, match="lateness must be more than the delay's 3000 ms"):
        deliver_domain(METERS, PROFILE, Disturbances(delay="uniform(max=3s)"))


def test_memory_is_flat_over_a_stream_without_end() -> None:
    def alive() -> int:
        return sum(isinstance(thing, Generated) for thing in gc.get_objects())

    before = alive()
    stream = deliver_domain(METERS, replace(PROFILE, events=None), EVERYTHING)
    for _ in range(3):
        assert sum(1 for _ in islice(stream, 4_000)) == 4_000
        # A second of delay at 100 events a second, and a few late ones.
        assert alive() - before < 250
