"""What is in no registry: told by event time, however input is cut and whichever input is read first."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millrace_apps.iot_maintenance.contracts.events import (
    Equipment,
    Heartbeat,
    MeasuringPoint,
    Reading,
    Status,
)
from millrace_apps.iot_maintenance.evaluation.stream import Sent, run, settings_for, written
from millrace_apps.iot_maintenance.state.assets import subject_of
from tests.cases import case_count

CASES = case_count(15)
SECOND = 1_000
START = 1_767_600_000_000
WAIT = 60
END = 300
WORDS = {"own": {"dreht": "producing"}}
Row = tuple[str, str, str, str, int]


def plant(rnd: random.Random) -> tuple[list[Sent], list[Sent]]:
    """Readings, statuses and heartbeats of a few minutes in order; and what the registry says."""
    sent: list[Sent] = []
    for machine in ("m1", "m2", "m3"):
        points = rnd.sample(["", "de", "nde", "top"], rnd.randrange(1, 4))
        begun = {point: rnd.randrange(120) for point in points}
        for point, since in begun.items():
            for at in range(since, END, rnd.randrange(5, 30)):
                name = f"{machine}{point}{at}"
                event = Reading(name, f"{machine}.{point}", machine, "gw", "oil", 5.0 + at, "bar",
                                START + at * SECOND + 1, point=point)  # fmt: skip
                sent.append(Sent("readings", event))
        for number in range(rnd.randrange(3)):
            word, at = rnd.choice(("running", "dreht", "Spült")), rnd.randrange(END)
            sent.append(Sent("status", Status(f"{machine}s{number}", machine, word, START + at * SECOND + 2)))
    for device in rnd.sample(["gw", "m1", "m2", "m9"], rnd.randrange(1, 4)):
        for at in range(rnd.randrange(120), END, 20):
            kind: Any = "gateway" if device == "gw" else "machine"
            event = Heartbeat(f"{device}{at}", device, kind, "gw", START + at * SECOND + 3)
            sent.append(Sent("heartbeats", event))
    registry = []
    for asset in ("m1", "m2", "m3", "gw"):
        at = rnd.choice((-10_000, -5, *(rnd.randrange(200) for _ in range(4))))
        known = {
            n: [MeasuringPoint("oil", point) for point in rnd.sample(["", "de", "nde"], n)] for n in (0, 1, 2)
        }
        registered = Equipment(
            asset,
            START + at * SECOND,
            "pump",
            {"vocabulary": "own"} if rnd.random() < 0.5 else {},
            "north",
            "l1",
            known[rnd.randrange(3)] if asset != "gw" else [],
            rnd.sample(["gw", "m1", "m2"], rnd.randrange(3)) if asset == "gw" else [],
        )
        if rnd.random() < 0.8:
            registry.append(Sent("equipment", registered))
    sent.sort(key=lambda one: one.event.event_time_ms)
    return sent, registry


def expected(sent: list[Sent], registry: list[Sent]) -> dict[tuple[str, str, str], tuple[int, int | None]]:
    """Asset, kind and name → of when it is told, and of when that it is over, s: by the times alone."""
    of = {one.event.machine_id: one.event for one in registry}
    met: dict[tuple[str, str, str], int] = {}
    for one in sent:
        event, at = one.event, one.event.event_time_ms
        if one.topic == "readings":
            met.setdefault((event.machine_id, "unknown_asset", ""), at)
            met.setdefault((event.machine_id, "unknown_point", subject_of("oil", event.point)), at)
        elif one.topic == "heartbeats":
            met.setdefault(("gw", "unknown_asset", ""), at)
            met.setdefault(("gw", "unknown_device", event.device_id), at)
        else:
            known = of.get(event.machine_id)
            own = known is not None and known.event_time_ms <= at and "vocabulary" in known.attributes
            if event.status == "Spült" or (event.status == "dreht" and not own):
                met.setdefault((event.machine_id, "unknown_status", event.status), at)
    found: dict[tuple[str, str, str], tuple[int, int | None]] = {}
    for (asset, what, name), at in met.items():
        said = of.get(asset)
        since = None if said is None else said.event_time_ms
        if what == "unknown_status":
            found[asset, what, name] = at + WAIT * SECOND, None
        elif what == "unknown_asset":
            due = at + WAIT * SECOND
            if since is None or since > due:
                found[asset, what, name] = due, since
        elif said is not None and since is not None:
            there = [subject_of(p.quantity, p.point) for p in said.points] or list(said.devices)
            if there and name not in there:
                found[asset, what, name] = max(at, since) + WAIT * SECOND, None
    return found


def told(arrived: list[Sent], batch: int) -> list[Row]:
    with written([], vocabularies=WORDS) as fleet:
        settings = settings_for(
            [f"monitor.fleet_file={fleet}", "monitor.judge=false", "monitor.sensor_least=30d"]
        )
        rows = run(arrived, settings, ["notices"], engine="memory", batch=batch).rows["notices"]
    return [(r["asset_id"], r["what"], r["subject"], r["state"], r["event_time_ms"]) for r in rows]


def in_time(rnd: random.Random, sent: list[Sent], registry: list[Sent]) -> list[Sent]:
    """All events in an order of arrival in which the registry is read before what is met then is told."""
    dues = [one.event.event_time_ms + WAIT * SECOND for one in sent]
    placed = [(one.event.event_time_ms, 1, one) for one in sent]
    for one in registry:
        at = one.event.event_time_ms
        # In its place, before everything where it is older than that (in memory what is dated ahead takes
        # the clock along), or up to when the next thing may be told.
        due = next((due for due in dues if due >= at), at)
        late = max(at, START) + int(
            rnd.random() * max(0, min(due - max(at, START), 40 * SECOND) - 2 * SECOND)
        )
        placed.append((rnd.choice((at, START - 1 if at < START else at, late)), rnd.choice((0, 2)), one))
    placed.sort(key=lambda one: one[:2])
    return [one for _, _, one in placed]


@pytest.mark.parametrize("seed", range(CASES))
def test_notices_are_those_of_the_times_alone_whichever_input_is_read_first(seed: int) -> None:
    rnd = random.Random(seed)
    sent, registry = plant(rnd)
    wanted = expected(sent, registry)
    rows = {(*key, "open", at) for key, (at, _) in wanted.items()}
    rows |= {(*key, "over", end) for key, (_, end) in wanted.items() if end is not None}
    for batch in (1, 7, rnd.randrange(20, 400), 100_000):
        assert sorted(told(in_time(rnd, sent, registry), batch)) == sorted(rows)


@pytest.mark.parametrize("seed", range(CASES))
def test_what_is_read_much_later_ends_notices_and_leaves_none_open_that_should_not_be(seed: int) -> None:
    rnd = random.Random(1_000 + seed)
    sent, registry = plant(rnd)
    registry = [one for one in registry if one.event.event_time_ms <= START]
    wanted = {key for key, (_, end) in expected(sent, registry).items() if end is None}
    for batch in (3, rnd.randrange(20, 400)):
        arrived = list(sent)
        for one in registry:
            arrived.insert(rnd.randrange(len(arrived) + 1), one)
        newest: dict[tuple[str, str, str], tuple[int, str]] = {}
        for asset, what, name, state, at in told(arrived, batch):
            # The table keeps the newest of each.
            assert at > newest.get((asset, what, name), (0, ""))[0]
            newest[asset, what, name] = at, state
        assert {key for key, (_, state) in newest.items() if state == "open"} == wanted


def reading(at: int, point: str = "de") -> Sent:
    event = Reading(f"{point}{at}", f"m1.{point}", "m1", "gw", "oil", 5.0, "bar", START + at * SECOND,
                    point=point)  # fmt: skip
    return Sent("readings", event)


def beat(at: int, device: str) -> Sent:
    return Sent("heartbeats", Heartbeat(f"{device}{at}", device, "machine", "gw", START + at * SECOND))


def says(at: int, asset: str = "m1", points: tuple[str, ...] = (), devices: tuple[str, ...] = ()) -> Sent:
    named = [MeasuringPoint("oil", point) for point in points]
    event = Equipment(asset, START + at * SECOND, "pump", {}, "north", "l1", named, list(devices))
    return Sent("equipment", event)


def of(arrived: list[Sent], what: str, batch: int = 7) -> list[tuple[str, str, int]]:
    rows = sorted(told(arrived, batch), key=lambda row: (row[4], row[2]))
    return [(row[2], row[3], (row[4] - START) // SECOND) for row in rows if row[1] == what]


def test_a_registry_that_is_sent_again_and_again_puts_no_notice_off() -> None:
    sent = [reading(at) for at in range(5, END, 10)] + [beat(at, "x") for at in range(6, END, 10)]
    sent += [says(at, points=("nde",)) for at in range(0, END, 30)]
    sent += [says(at, "gw", devices=("gw",)) for at in range(0, END, 30)]
    sent.sort(key=lambda one: one.event.event_time_ms)
    for batch in (1, 7, 1_000):
        assert of(sent, "unknown_point", batch) == [("oil@de", "open", 65)]
        assert of(sent, "unknown_device", batch) == [("x", "open", 66)]


def test_what_the_registry_says_nothing_of_any_more_is_over_and_is_told_when_it_does_again() -> None:
    sent = [says(0, points=("nde",)), says(0, "gw", devices=("gw",))]
    sent += [reading(at) for at in range(5, END, 10)] + [beat(at, "x") for at in range(5, END, 10)]
    sent += [says(100), says(100, "gw"), says(150, points=("nde",)), says(150, "gw", devices=("gw",))]
    sent.sort(key=lambda one: one.event.event_time_ms)
    expected = [("open", 65), ("over", 100), ("open", 210)]
    assert of(sent, "unknown_point") == [("oil@de", *one) for one in expected]
    assert of(sent, "unknown_device") == [("x", *one) for one in expected]


def test_of_many_devices_those_that_nobody_registered_are_told_however_late_that_is_read() -> None:
    known = tuple(f"d{n}" for n in range(100))
    beats = [beat(at, device) for at in (5, 45, 65) for device in (*known, "x")]
    first, last = [says(0, "gw", devices=known), *beats], [*beats, says(0, "gw", devices=known)]
    more = [beat(99, device) for device in known]
    for arrived in first, last:
        assert of([*arrived, *more], "unknown_device") == [("x", "open", 65)]


def test_more_things_than_are_told_of_one_asset_are_the_first_however_late_the_registry_is_read() -> None:
    beats = [beat(at, f"x{(at * 37) % 100}") for at in range(5, 105)]
    registry = says(0, "gw", devices=("gw",))
    wanted = [(f"x{(at * 37) % 100}", "open", at + WAIT) for at in range(5, 5 + 64)]
    for place in (0, 40, len(beats)):
        arrived = [*beats[:place], registry, *beats[place:]]
        assert of(arrived, "unknown_device", 20) == wanted


def test_a_second_sensor_has_the_name_that_it_has_where_the_registry_is_read_first() -> None:
    def heard(at: int, sensor: str) -> Sent:
        event = Reading(f"{sensor}{at}", sensor, "m1", "gw", "oil", 5.0, "bar", START + at * SECOND)
        return Sent("readings", event)

    point = MeasuringPoint("oil", "de", sensor_id="s1")
    registry = Sent("equipment", Equipment("m1", START, "pump", {}, "north", "l1", [point], []))
    sensors = "s1", "s2", "s3"
    sent = [heard(at + n, sensor) for at in range(5, END, 10) for n, sensor in enumerate(sensors)]
    wanted = [("oil", "open", 6 + WAIT), ("oil@s3", "open", 7 + WAIT)]
    for place in (0, 1, 2, 4, 9, 12):
        assert of([*sent[:place], registry, *sent[place:]], "unknown_point", 1) == wanted
