"""What goes wrong in the fleet, and that it is true: failures, faults of sensors, silences, exceedances."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from statistics import mean, median, pstdev
from typing import Any, get_args

import pytest

from millrace_apps.generators.engine.simulated import Simulated, Truth
from millrace_apps.generators.iot import DOMAIN, IotProfile, assets, simulate
from millrace_apps.generators.iot.faults import SENSOR_FAULTS
from millrace_apps.generators.iot.laws import Draws, weibull_life
from millrace_apps.generators.iot.machines import AVERTED
from millrace_apps.generators.iot.models import CONVERSIONS, MODELS
from millrace_apps.generators.iot.regimes import FAILED, RUNNING, VOCABULARIES, Regime
from millrace_apps.generators.iot.simulation import EXCEEDANCE
from tests.unit.apps.iot_maintenance.cases import (
    CALM,
    DAY,
    MODES,
    MORNING_MS,
    WORN,
    is_faulty,
    of,
    readings_by_regime,
    truths,
)


@pytest.fixture(scope="module")
def worn() -> list[Simulated]:
    return list(simulate(WORN))


@pytest.fixture(scope="module")
def calm() -> list[Simulated]:
    return list(simulate(DAY))


# Failures


def failures(events: list[Simulated]) -> list[tuple[Truth, list[Simulated]]]:
    return [pair for pair in truths(events).values() if pair[0].kind in MODES]


def test_most_kinds_of_truth_occur_and_no_unknown_one(worn: list[Simulated]) -> None:
    kinds = Counter(truth.kind for truth, _ in truths(worn).values())
    assert set(kinds) <= set(DOMAIN.scenarios)
    assert {f"sensor_{kind}" for kind in SENSOR_FAULTS} <= set(kinds)
    assert {"gateway_outage", "machine_silence", EXCEEDANCE, AVERTED} <= set(kinds)
    assert len(set(kinds) & set(MODES)) >= 6


def test_a_failure_has_errors_then_the_status_failed_then_a_repair(worn: list[Simulated]) -> None:
    whole = 0
    for truth, events in failures(worn):
        detail = truth.detail
        assert detail["rul_at_onset_ms"] == detail["failure_ms"] - detail["onset_ms"] > 0
        errors = [event for event in events if event.stream == "errors"]
        for error in errors:
            assert detail["onset_ms"] <= error.event_time_ms < detail["failure_ms"]
            assert error.event.code == MODES[truth.kind].code
        rest = [(event.stream, event.event) for event in events if event.stream != "errors"]
        if len(rest) < 2:
            continue
        whole += 1
        (stream, failed), (last, repair) = rest
        assert (stream, last) == ("status", "maintenance")
        assert (failed.status, failed.event_time_ms) == (FAILED, detail["failure_ms"])
        assert (repair.kind, repair.component) == ("corrective", detail["component"])
        assert repair.event_time_ms > failed.event_time_ms
        assert 1 <= len(errors) <= 4
    assert whole >= 20


def test_every_failed_status_has_its_truth_and_no_failure_is_missing(worn: list[Simulated]) -> None:
    failed = [event for event in worn if event.stream == "status" and event.event.status == FAILED]
    assert failed
    assert all(len(event.truths) == 1 for event in failed)
    corrective = [e for e in worn if e.stream == "maintenance" and e.event.kind == "corrective"]
    assert all(len(event.truths) == 1 for event in corrective)
    end_ms = worn[-1].event_time_ms
    due = [truth for truth, _ in failures(worn) if truth.detail["failure_ms"] < end_ms]
    assert len(due) == len(failed)


WORKING = {"machines": 60, "event_rate": 200.0, "sensor_fault_rate": 0.0, "outage_rate": 0.0}


def test_worn_machines_degrade_within_as_long_as_their_kind_warns_ahead() -> None:
    hours = 3_600_000 / 180.0
    # Ten in the morning of a Monday: all but one plant of three work.
    base = IotProfile(
        seed=7, start_ms=1_767_607_200_000, acceleration=180.0, failure_scale=4.0, events=24_000, **WORKING
    )  # type: ignore[arg-type]
    worn = replace(base, worn=1.0, warning_scale=30.0)
    assert not [t for t, _ in truths(simulate(base)).values() if t.kind in MODES]
    ahead = {(kind.kind, c.name): c.warning_h for kind in MODELS for c in kind.components}
    kinds = {row["machine_id"]: row["kind"] for row in assets(worn)}
    found = [t for t, _ in truths(simulate(worn)).values() if t.kind in MODES]
    begun = 0
    for truth in found:
        detail = truth.detail
        warning_h = ahead[kinds[truth.entity], detail["component"]] / 30.0
        # Lognormal, sigma 0.4: within four of them, unless it waits for a shift.
        if detail["rul_at_onset_ms"] < 4 * 3_600_000:
            assert 0.2 < detail["rul_at_onset_ms"] / hours / warning_h < 5.0
        # Overload wears 2.5 times as fast, idling not at all: onsets are as soon as that, or later.
        begun += (detail["onset_ms"] - base.start_ms) / hours <= warning_h
    machines = {t.entity for t in found}
    assert len(machines) > 20
    assert begun > len(found) / 2
    half = {t.entity for t, _ in truths(simulate(replace(worn, worn=0.5))).values() if t.kind in MODES}
    assert half < machines
    assert 0.25 < len(half) / len(machines) < 0.75


def test_worn_machines_are_well_first_where_they_are_told_to_be() -> None:
    base = IotProfile(
        seed=7, start_ms=1_767_607_200_000, acceleration=180.0, failure_scale=4.0, events=12_000,
        worn=1.0, warning_scale=30.0, **WORKING,
    )  # type: ignore[arg-type]  # fmt: skip
    onsets = {t.truth_id: t.detail["onset_ms"] for t, _ in truths(simulate(base)).values() if t.kind in MODES}
    later = replace(base, worn_from=0.5)
    healthy = {
        t.truth_id: t.detail["onset_ms"] for t, _ in truths(simulate(later)).values() if t.kind in MODES
    }
    assert len(healthy) > 10
    # Overload wears 2.5 times as fast: half an operating hour takes a fifth of an hour at least.
    assert min(healthy.values()) >= base.start_ms + base.event_ms(0.5 / 2.5)
    assert min(onsets.values()) < base.start_ms + base.event_ms(0.5 / 2.5)
    both = onsets.keys() & healthy.keys()
    assert both
    assert all(healthy[name] > onsets[name] for name in both)


def test_a_truth_says_in_which_quantities_it_shows(worn: list[Simulated]) -> None:
    for truth, _ in failures(worn):
        assert truth.detail["quantities"] == sorted(MODES[truth.kind].effects)


def test_a_failure_averted_ends_in_a_service_in_time_and_never_in_a_failure() -> None:
    # Ordinary lives over most of a year: now and then a service falls between onset and failure.
    profile = replace(WORN, events=100_000, acceleration=25_000.0, failure_scale=1.0, sensor_fault_rate=0.0)
    averted = [pair for pair in truths(simulate(profile)).values() if pair[0].kind == AVERTED]
    served = 0
    for truth, events in averted:
        assert truth.detail["service_ms"] <= truth.detail["onset_ms"] + truth.detail["rul_at_onset_ms"]
        assert {event.stream for event in events} <= {"errors", "maintenance"}
        for event in events:
            if event.stream == "maintenance":
                served += 1
                assert event.event.kind == "scheduled"
                assert event.event.component == truth.detail["component"]
                assert event.event_time_ms >= truth.detail["service_ms"]
    assert served >= 3


def test_the_sensors_of_a_failing_component_show_it(worn: list[Simulated]) -> None:
    """The last tenth before a failure differs from normal running by most of the mode's full effect."""
    normal = readings_by_regime(worn)
    last: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    near = [(t.entity, t.detail["onset_ms"], t.detail["failure_ms"], t.kind) for t, _ in failures(worn)]
    running: dict[str, bool] = {}
    by_machine: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for entity, onset_ms, failure_ms, kind in near:
        by_machine[entity].append((failure_ms - (failure_ms - onset_ms) // 10, failure_ms, kind))
    for event in worn:
        if event.stream == "status":
            running[event.event.machine_id] = event.event.status == RUNNING
        elif event.stream == "readings" and running[event.event.machine_id] and event.event.value is not None:
            for begin_ms, end_ms, kind in by_machine[event.event.machine_id]:
                if begin_ms <= event.event_time_ms < end_ms and not event.truths:
                    last[kind, event.event.quantity].append(event.event.value)
    checked = 0
    for (kind, quantity), values in last.items():
        effect = MODES[kind].effects.get(quantity, 0.0)
        usual = normal[quantity, RUNNING]
        if len(values) >= 20 and abs(effect) > 3 * pstdev(usual):
            checked += 1
            assert 0.5 < (median(values) - median(usual)) / effect < 1.3
    assert checked >= 2


def test_without_wear_nothing_fails_and_without_rates_nothing_is_wrong(calm: list[Simulated]) -> None:
    assert {truth.kind for event in calm for truth in event.truths} <= {EXCEEDANCE}
    assert not any(status.status == FAILED for status in of(calm, "status"))
    assert not any(True for _ in of(calm, "errors"))


def test_components_live_by_their_weibull_law() -> None:
    draws = Draws(3)
    lives = sorted(weibull_life(draws.uniform("life", 1, i), 1_400.0, 2.2) for i in range(4_000))
    for quantile in (0.1, 0.5, 0.9):
        exact = weibull_life(quantile, 1_400.0, 2.2)
        assert abs(lives[int(quantile * 4_000)] / exact - 1) < 0.05


def test_a_used_component_that_lives_has_less_left_than_a_new_one() -> None:
    left = [weibull_life((i + 0.5) / 500, 1_000.0, 2.2, 800.0) - 800.0 for i in range(500)]
    new = [weibull_life((i + 0.5) / 500, 1_000.0, 2.2) for i in range(500)]
    assert min(left) > 0
    assert mean(left) < 0.6 * mean(new)


def test_one_component_of_a_machine_degrades_at_a_time(worn: list[Simulated]) -> None:
    spans: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for truth, events in truths(worn).values():
        if truth.kind in MODES or truth.kind == AVERTED:
            spans[truth.entity].append((truth.detail["onset_ms"], events[-1].event_time_ms))
    for of_machine in spans.values():
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(of_machine)))


# Faults


def sensor_faults(events: list[Simulated], kind: str) -> list[tuple[Truth, list[Simulated]]]:
    return [pair for pair in truths(events).values() if pair[0].kind == f"sensor_{kind}"]


def test_a_fault_lies_within_its_begin_and_end_and_has_a_reading_of_its_sensor(worn: list[Simulated]) -> None:
    for kind in SENSOR_FAULTS:
        found = sensor_faults(worn, kind)
        assert len(found) >= 3
        for truth, events in found:
            assert truth.expected == "sensor_alarm"
            assert {event.event.sensor_id for event in events} == {truth.entity}
            assert events[0].event_time_ms == truth.detail["begin_ms"]
            if kind != "gap":
                assert events[-1].event_time_ms < truth.detail["end_ms"]


def test_each_fault_looks_like_itself(worn: list[Simulated]) -> None:
    for _, events in sensor_faults(worn, "stuck"):
        assert len({event.event.value for event in events}) == 1
    for _, events in sensor_faults(worn, "spike"):
        assert len(events) == 1
    for _, events in sensor_faults(worn, "dropout"):
        assert {event.event.value for event in events} == {None}
    for truth, events in sensor_faults(worn, "wrong_unit"):
        unit = next(s.unit for m in MODELS for s in m.sensors if s.quantity == truth.detail["quantity"])
        says = {event.event.unit for event in events}
        assert says == ({CONVERSIONS[unit][0]} if truth.detail["unit_says_so"] else {unit})


def test_a_value_is_missing_only_where_a_transmitter_drops_out(worn: list[Simulated]) -> None:
    for event in worn:
        if event.stream == "readings" and event.event.value is None:
            assert any(truth.kind == "sensor_dropout" for truth in event.truths)


def test_in_a_gap_the_sensor_has_no_reading(worn: list[Simulated]) -> None:
    by_sensor: defaultdict[str, list[int]] = defaultdict(list)
    for reading in of(worn, "readings"):
        by_sensor[reading.sensor_id].append(reading.event_time_ms)
    whole = 0
    for truth, events in sensor_faults(worn, "gap"):
        begin_ms, end_ms = truth.detail["begin_ms"], truth.detail["end_ms"]
        assert not any(begin_ms < at_ms < end_ms for at_ms in by_sensor[truth.entity])
        if len(events) == 2:
            whole += 1
            assert events[1].event_time_ms >= end_ms
    assert whole >= 3


def test_a_silent_gateway_silences_its_machines_and_no_other(worn: list[Simulated]) -> None:
    outages = [pair for pair in truths(worn).values() if pair[0].kind == "gateway_outage"]
    assert len(outages) >= 3
    heard = [(e.event_time_ms, e.event.gateway_id) for e in worn if e.stream in ("readings", "heartbeats")]
    for truth, events in outages:
        begin_ms, end_ms = truth.detail["begin_ms"], truth.detail["end_ms"]
        assert end_ms - begin_ms >= 3 * 10 * WORN.tick_ms
        assert {event.event.device_id for event in events} == {truth.entity}
        during = {gateway for at_ms, gateway in heard if begin_ms < at_ms < end_ms}
        assert truth.entity not in during
        assert during


def test_a_silent_machine_says_nothing_while_its_gateway_lives(worn: list[Simulated]) -> None:
    silences = [truth for truth, _ in truths(worn).values() if truth.kind == "machine_silence"]
    assert len(silences) >= 3
    own = defaultdict(list)
    for event in worn:
        if event.stream in ("readings", "heartbeats"):
            own[event.key].append(event.event_time_ms)
    for truth in silences:
        begin_ms, end_ms = truth.detail["begin_ms"], truth.detail["end_ms"]
        assert not any(begin_ms < at_ms < end_ms for at_ms in own[truth.entity])


def test_an_exceedance_begins_beyond_the_limit_and_ends_back_inside(worn: list[Simulated]) -> None:
    limits = {(s.quantity, m.kind): s for m in MODELS for s in m.sensors}
    found = [pair for pair in truths(worn).values() if pair[0].kind == EXCEEDANCE]
    assert len(found) >= 20
    assert {truth.detail["side"] for truth, _ in found} == {"high", "low"}
    kinds = {row["sensor_id"]: row["kind"] for row in assets(WORN)}
    clear = 0
    for truth, events in found:
        assert 1 <= len(events) <= 2
        model = limits[truth.detail["quantity"], kinds[truth.entity]]
        first = events[0].event
        assert first.event_time_ms == truth.detail["begin_ms"]
        if len(events[0].truths) == 1:
            # The reading is the true value with 2 % of gain, half a noise of offset and up to 3.7 of noise.
            slack = 0.02 * abs(truth.detail["limit"]) + 4.3 * model.noise
            over = first.value - truth.detail["limit"]
            assert (over if truth.detail["side"] == "high" else -over) > -slack
            clear += 1
    assert clear > 0.8 * len(found)


def test_a_fault_that_is_switched_off_changes_no_other_reading() -> None:
    base = replace(WORN, events=20_000)

    def values(profile: IotProfile) -> dict[str, Any]:
        found = {}
        for event in simulate(profile):
            if event.stream == "readings" and not is_faulty(event):
                found[event.event.reading_id] = (event.event.value, event.event_time_ms)
        return found

    everything = values(base)
    for off in ("sensor_fault_rate", "outage_rate", "false_error_rate"):
        rate: dict[str, Any] = {off: 0.0}
        without = values(replace(base, **rate))
        shared = everything.keys() & without.keys()
        assert len(shared) > 0.9 * len(everything)
        assert all(everything[name] == without[name] for name in shared)


# Plants as plants are

#: Three plants of six machines in the afternoon, when all of them work, and what goes wrong in them.
VARIED = replace(
    WORN,
    start_ms=MORNING_MS + 5 * 3_600_000,
    events=60_000,
    machines=18,
    machines_per_line=3,
    lines_per_plant=2,
    sensor_fault_rate=40.0,
    variety=1,
)
SECOND = ".vibration.2"


@pytest.fixture(scope="module")
def varied() -> list[Simulated]:
    return list(simulate(VARIED))


def test_each_plant_has_words_of_its_own_and_the_registry_says_whose(varied: list[Simulated]) -> None:
    said: defaultdict[str, set[str]] = defaultdict(set)
    for status in of(varied, "status"):
        said[status.machine_id[:3]].add(status.status)
    told = {e.machine_id[:3]: e.attributes.get("vocabulary", "") for e in of(varied, "equipment")
            if e.kind != "gateway"}  # fmt: skip
    assert told == {"p01": "", "p02": "packml", "p03": "werk"}
    for plant, (_, words) in zip(("p01", "p02", "p03"), VOCABULARIES, strict=True):
        assert len(said[plant]) >= 5
        assert said[plant] <= set(words.values() or get_args(Regime))
    assert not said["p01"] & said["p03"]


def test_pumps_have_a_second_sensor_that_nothing_is_wrong_with(varied: list[Simulated]) -> None:
    """It goes on through faults of the first, and has no fault in the ledger."""
    kinds = {e.machine_id: e.kind for e in of(varied, "equipment")}
    points = {p.sensor_id: p.point for e in of(varied, "equipment") for p in e.points if p.point}
    by_sensor: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for reading in of(varied, "readings"):
        if reading.quantity == "vibration":
            by_sensor[reading.sensor_id][reading.event_time_ms] = reading.value
    seconds = [name for name in by_sensor if name.endswith(SECOND)]
    assert {name.removesuffix(SECOND) for name in seconds} == {m for m, k in kinds.items() if k == "pump"}
    assert {points[name] for name in seconds} == {"fan end"}
    assert {points[name.removesuffix(".2")] for name in seconds} == {"drive end"}
    gaps = faulty = 0
    for truth, _ in truths(varied).values():
        assert not (truth.kind.startswith("sensor_") and truth.entity.endswith(".2"))
        if truth.entity.endswith(".vibration") and truth.kind.startswith("sensor_"):
            faulty += 1
            begin_ms, end_ms = truth.detail["begin_ms"], truth.detail["end_ms"]
            other = by_sensor.get(f"{truth.entity}.2")
            if truth.kind == "sensor_gap" and other is not None:
                gaps += sum(begin_ms < at < end_ms for at in other)
    assert faulty > 5
    assert gaps > 0
    # It shows nine tenths of what the first one is to show.
    ratios = [
        by_sensor[name][at] / value
        for name in seconds
        for at, value in by_sensor[name.removesuffix(".2")].items()
        if at in by_sensor[name] and value and value > 1.5
    ]
    assert 0.85 < median(ratios) < 0.95


def test_limits_that_the_second_sensor_passes_are_true_of_itself() -> None:
    """By the true value, which is nine tenths of the first one's: not before it, and back sooner."""
    spans: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for truth, events in truths(simulate(replace(VARIED, sensor_fault_rate=0.0))).values():
        if truth.kind == EXCEEDANCE and truth.detail["quantity"] == "vibration":
            assert {event.event.sensor_id for event in events} == {truth.entity}
            if truth.detail["side"] == "high":
                spans[truth.entity].append((truth.detail["begin_ms"], events[-1].event_time_ms))
    own = {name: of for name, of in spans.items() if name.endswith(SECOND)}
    assert own
    for name, of_second in own.items():
        first = spans[name.removesuffix(".2")]
        for begin_ms, end_ms in of_second:
            assert any(low <= begin_ms and (end_ms == begin_ms or end_ms <= high or low == high)
                       for low, high in first)  # fmt: skip


def test_temperatures_are_in_whole_degrees_and_a_machine_that_is_off_shows_no_current() -> None:
    """In the morning, when the third plant is still closed."""
    off: dict[str, bool] = {}
    whole = nought = 0
    for event in simulate(replace(VARIED, start_ms=MORNING_MS, events=20_000)):
        if event.stream == "status":
            off[event.event.machine_id] = event.event.status in ("off", "Off", "Aus")
        if event.stream != "readings" or is_faulty(event):
            continue
        reading = event.event
        if reading.quantity.endswith("temperature") and reading.unit == "degC":
            whole += 1
            assert reading.value == round(reading.value)
        if reading.quantity == "current" and off.get(reading.machine_id):
            nought += 1
            assert reading.value == 0.0
    assert whole > 1_000
    assert nought > 100


@pytest.mark.parametrize("off", ["sensor_fault_rate", "outage_rate"])
def test_where_plants_differ_a_fault_that_is_switched_off_changes_no_other_reading_either(off: str) -> None:
    def values(profile: IotProfile) -> dict[str, Any]:
        return {e.event.reading_id: e.event.value for e in simulate(profile)
                if e.stream == "readings" and not is_faulty(e)}  # fmt: skip

    rate: dict[str, Any] = {off: 0.0}
    everything = values(replace(VARIED, events=20_000))
    without = values(replace(VARIED, events=20_000, **rate))
    shared = everything.keys() & without.keys()
    assert len(shared) > 0.9 * len(everything)
    assert all(everything[name] == without[name] for name in shared)


def test_without_wear_the_machines_that_did_not_fail_live_the_same_life() -> None:
    base = replace(WORN, events=20_000, **{**CALM, "failure_scale": 2.0})
    hit = {event.truths[0].entity for event in simulate(base) for t in event.truths if t.kind != EXCEEDANCE}
    tireless = simulate(replace(base, failure_scale=0.0))
    without = {status.status_id: status.status for status in of(tireless, "status")}
    compared = 0
    for status in of(simulate(base), "status"):
        if status.machine_id not in hit and status.status_id in without:
            compared += 1
            assert without[status.status_id] == status.status
    assert hit
    assert compared > 500
