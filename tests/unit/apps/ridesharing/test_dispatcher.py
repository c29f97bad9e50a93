from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millrace.testing import TestDriver
from millrace_apps.ridesharing.contracts.events import LAST_ATTEMPT, Event, SetPolicy, SetShadows
from millrace_apps.ridesharing.contracts.records import Trip
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.processes.geo import CIRCUITY, SPEED_M_PER_MS
from millrace_apps.ridesharing.processes.matching import Rules
from millrace_apps.ridesharing.state.lifecycle import TERMINAL, TRANSITIONS
from tests.unit.apps.ridesharing.cases import (
    CONFIG,
    HOUR,
    MINUTE,
    REGION,
    ZONE,
    answer,
    bring,
    cancel,
    command,
    dispatcher,
    ms,
    position,
    progress,
    request,
    states,
    status,
)


def releases(driver: TestDriver) -> list[tuple[str, str, str, float]]:
    return [
        (r.request_id, r.driver_id, r.reason, (r.event_time_ms - ms(0)) / 1000)
        for r in driver.values("releases")
    ]


def offers(driver: TestDriver) -> list[tuple[str, str, int, float]]:
    return [
        (o.request_id, o.driver_id, o.attempt, (o.event_time_ms - ms(0)) / 1000)
        for o in driver.values("offers")
    ]


def last_attempt(driver: TestDriver, name: str, number: int = 1) -> str:
    return str(
        [a.state for a in driver.values("attempts") if (a.request_id, a.attempt) == (name, number)][-1]
    )


def test_a_ride_from_the_request_to_the_drop_off() -> None:
    """The driver is offered the ride at the end of the window.

    ::

        driver    |idle-----|offered|approach----|wait|on trip-------|idle
        rider        |r1
                  0  3      10      12           60   70             400
    """
    driver = dispatcher()
    bring(driver, position("d1", 0, 0.5), request("r1", 3), until=9.9)
    assert offers(driver) == []
    driver.advance_watermark(ms(10))
    assert offers(driver) == [("r1", "d1", 1, 10.0)]
    bring(
        driver,
        answer("r1", "d1", 12),
        progress("r1", "d1", 60, "arrived"),
        progress("r1", "d1", 70, "started"),
        progress("r1", "d1", 400, "finished", km=2),
        position("d1", 401, 2),
        until=401,
    )
    assert states(driver, "r1") == [
        "processing",
        "offered",
        "accepted",
        "arrived",
        "in_progress",
        "completed",
    ]
    (assignment,) = driver.values("assignments")
    assert (assignment.driver_id, assignment.attempt, assignment.event_time_ms) == ("d1", 1, ms(12))
    assert driver.values("trips")[-1].wait_ms == 67_000
    assert [t.revision for t in driver.values("trips")] == list(range(6))
    assert last_attempt(driver, "r1") == "completed"
    assert driver.values("dead_letters") == []
    assert releases(driver) == []
    bring(driver, request("r2", 405, 2.1), until=410)
    assert offers(driver)[-1] == ("r2", "d1", 1, 410.0)


def test_an_offer_expires_by_its_timer_and_the_next_driver_is_asked() -> None:
    driver = dispatcher()
    bring(driver, position("d1", 0, 0.1), position("d2", 1, 0.5), request("r1", 2), until=24.9)
    assert offers(driver) == [("r1", "d1", 1, 10.0)]
    driver.advance_watermark(ms(25))
    assert releases(driver) == [("r1", "d1", "expired", 25.0)]
    driver.advance_watermark(ms(30))
    assert offers(driver)[1:] == [("r1", "d2", 2, 30.0)]
    assert last_attempt(driver, "r1") == "expired"


def test_an_answer_at_the_very_end_of_an_offer_counts() -> None:
    driver = dispatcher()
    bring(driver, position("d1", 0), request("r1", 2), answer("r1", "d1", 25), until=26)
    assert states(driver, "r1")[-1] == "accepted"


def test_of_one_moment_answers_go_first_and_what_operators_want_of_drivers_before_what_of_requests() -> None:
    """Whatever came first: the accept, the cancellation; the block, the request, the assignment."""
    driver = dispatcher()
    bring(driver, position("d1", 0), request("r1", 2), until=11)
    driver.send_batch([(REGION, ms(12), e) for e in (cancel("r1", 12), answer("r1", "d1", 12))])
    driver.advance_watermark(ms(12))
    assert states(driver, "r1") == ["processing", "offered", "accepted", "rider_cancelled"]
    assert len(driver.values("assignments")) == 1
    block = command("block", 14, driver_id="d1", until_ms=ms(99))
    assign = command("assign", 14, request_id="r2", driver_id="d1", zone=ZONE)
    bring(driver, request("r2", 13))
    driver.send_batch([(REGION, ms(14), e) for e in (assign, block)])
    driver.advance_watermark(ms(14))
    assert [(o.action, o.detail) for o in driver.values("operations")] == [
        ("block", ""), ("assign", "the driver is blocked"),
    ]  # fmt: skip


def test_an_accept_after_the_end_is_told_that_it_came_to_nothing_once() -> None:
    driver = dispatcher()
    late = answer("r1", "d1", 27)
    bring(driver, position("d1", 0), request("r1", 2), late, late, until=29)
    assert releases(driver) == [("r1", "d1", "expired", 25.0), ("r1", "d1", "expired", 27.0)]
    assert [(i.why, i.compensated) for i in driver.values("ignored")] == [
        ("the offer is over", True),
        ("has been answered already", False),
    ]


@pytest.mark.parametrize("number", ["1", "63", "64", "99", "9999", "0", "-1", "²", "٣", "1e3", "", "x" * 100])
def test_an_answer_to_an_offer_of_any_number_is_kept(number: str) -> None:
    driver = dispatcher()
    odd = answer("r1", "d1", 5, offer_id=f"r1-o{number}")
    bring(driver, position("d1", 0), request("r1", 2), odd, until=29)
    driver.restart()
    bring(driver, answer("r1", "d1", 31), until=40)
    assert driver.values("dead_letters") == []
    assert driver.values("ignored")[0].why == "the offer is over"


def test_a_ride_is_assigned_no_more_often_than_its_answers_have_bits() -> None:
    config = msgspec.structs.replace(CONFIG, attempts=60, offer_ms=1_000_000, patience_ms=10_000_000)
    driver = dispatcher(config)
    bring(driver, position("d1", 0), request("r1", 1), until=2)
    for turn in range(70):
        at = 3 + 3 * turn
        again = [command("assign", at, request_id="r1", driver_id="d1", zone=ZONE), position("d1", at)]
        gone = cancel("r1", at + 1, "driver", "d1", "flat")
        bring(driver, *again, gone, until=at + 2)
    assert driver.values("dead_letters") == []
    refused = [o.detail for o in driver.values("operations") if o.outcome == "refused"]
    assert "the request has had too many attempts" in refused or "the request is over or unknown" in refused


def test_an_accept_of_an_earlier_offer_is_none_of_the_one_that_is_open_now() -> None:
    """The same driver is asked twice: from 10 to 25, and from 30 on; the first yes comes at 31."""
    driver = dispatcher(msgspec.structs.replace(CONFIG, cool_down_ms=0))
    bring(driver, position("d1", 0), request("r1", 2), answer("r1", "d1", 31), until=32)
    assert states(driver, "r1") == ["processing", "offered", "processing", "offered"]
    bring(driver, answer("r1", "d1", 33, attempt=2), until=34)
    assert states(driver, "r1")[-1] == "accepted"


def test_a_reject_frees_the_driver_for_others_but_not_for_the_same_request_again() -> None:
    driver = dispatcher()
    bring(
        driver,
        position("d1", 0),
        request("r1", 2),
        answer("r1", "d1", 12, "reject"),
        request("r2", 13),
        until=20,
    )
    assert offers(driver)[1:] == [("r2", "d1", 1, 20.0)]
    assert last_attempt(driver, "r1") == "rejected"


def test_after_so_many_attempts_there_is_no_driver() -> None:
    config = msgspec.structs.replace(CONFIG, attempts=2)
    driver = dispatcher(config)
    cars = [position(f"d{n}", n / 10, n / 10) for n in range(4)]
    bring(
        driver,
        *cars,
        request("r1", 2),
        answer("r1", "d0", 12, "reject"),
        answer("r1", "d1", 22, "reject", 2),
        until=60,
    )
    assert states(driver, "r1")[-1] == "no_drivers_available"
    assert releases(driver) == [("r1", "", "no_driver", 22.0)]
    assert len(offers(driver)) == 2


def test_nobody_found_in_time() -> None:
    driver = dispatcher()
    bring(driver, position("d1", 0, 3.5), request("r1", 2), until=301.9)
    assert states(driver, "r1") == ["processing"]
    driver.advance_watermark(ms(302))
    assert states(driver, "r1") == ["processing", "no_drivers_available"]
    assert releases(driver) == [("r1", "", "no_driver", 302.0)]


@pytest.mark.parametrize("first", ["accept", "cancel"])
def test_cancel_and_accept_race_and_one_of_them_wins(first: str) -> None:
    """Whichever has the earlier event time wins; the driver is told in both cases."""
    driver = dispatcher()
    accept_s, cancel_s = (12.0, 12.1) if first == "accept" else (12.1, 12.0)
    bring(
        driver,
        position("d1", 0),
        request("r1", 2),
        answer("r1", "d1", accept_s),
        cancel("r1", cancel_s),
        until=13,
    )
    assert states(driver, "r1")[-1] == "rider_cancelled"
    assert len(driver.values("assignments")) == (1 if first == "accept" else 0)
    told = [r for r in releases(driver) if r[1] == "d1"]
    assert {r[2] for r in told} == {"rider_cancelled"}
    assert len(told) == (1 if first == "accept" else 2)
    bring(driver, request("r2", 14), until=20)
    assert offers(driver)[-1][:2] == ("r2", "d1")


@pytest.mark.parametrize(
    ("before", "ends"),
    [([], "rider_cancelled"), (["arrived"], "rider_cancelled"), (["arrived", "started"], "in_progress")],
)
def test_a_cancellation_frees_the_driver_once_until_the_trip_has_begun(before: list[str], ends: str) -> None:
    driver = dispatcher()
    steps = [progress("r1", "d1", 20 + n, stage) for n, stage in enumerate(before)]
    bring(
        driver,
        position("d1", 0),
        request("r1", 2),
        answer("r1", "d1", 12),
        *steps,
        cancel("r1", 30),
        cancel("r1", 31),
        until=32,
    )
    assert states(driver, "r1")[-1] == ends
    freed = [r for r in releases(driver) if r[1] == "d1"]
    assert len(freed) == (1 if ends == "rider_cancelled" else 0)
    assert len(driver.values("ignored")) == (1 if ends == "rider_cancelled" else 2)


def test_a_rider_who_does_not_come_to_the_pick_up() -> None:
    driver = dispatcher()
    bring(
        driver,
        position("d1", 0),
        request("r1", 2),
        answer("r1", "d1", 12),
        progress("r1", "d1", 60, "arrived"),
        until=359,
    )
    assert states(driver, "r1")[-1] == "arrived"
    driver.advance_watermark(ms(360))
    assert states(driver, "r1")[-1] == "no_show"
    assert releases(driver) == [("r1", "d1", "no_show", 360.0)]


def test_a_driver_who_does_not_come_nearer_is_replaced() -> None:
    driver = dispatcher()
    standing = [position("d1", s, 2.0, state="approaching") for s in range(20, 140, 10)]
    bring(
        driver,
        position("d1", 0, 2.0),
        request("r1", 2),
        answer("r1", "d1", 12),
        *standing,
        position("d2", 125, 1),
        until=140,
    )
    assert releases(driver) == [("r1", "d1", "replaced", 132.0)]
    assert offers(driver)[1:] == [("r1", "d2", 2, 140.0)]
    assert last_attempt(driver, "r1") == "replaced"


def test_a_driver_who_comes_nearer_or_is_not_heard_of_for_a_while_is_not_replaced() -> None:
    for heard in (range(20, 300, 10), [20]):
        driver = dispatcher()
        coming = [position("d1", s, 2.0 - s / 200, state="approaching") for s in heard]
        bring(driver, position("d1", 0, 2.0), request("r1", 2), answer("r1", "d1", 12), *coming, until=299)
        assert states(driver, "r1")[-1] == "accepted"


def test_a_driver_who_is_never_heard_of_again_is_replaced_at_last() -> None:
    driver = dispatcher()
    bring(driver, position("d1", 0, 2.0), request("r1", 2), answer("r1", "d1", 12), until=15 * 60)
    assert ("r1", "d1", "replaced") in [r[:3] for r in releases(driver)]


def test_a_breakdown_on_the_way_looks_for_another_driver() -> None:
    driver = dispatcher()
    bring(
        driver,
        position("d1", 0),
        position("d2", 1, 1),
        request("r1", 2),
        answer("r1", "d1", 12),
        cancel("r1", 31, "driver", "d1", "breakdown"),
        status("d1", 31.001, "offline"),
        until=40,
    )
    assert offers(driver)[1:] == [("r1", "d2", 2, 40.0)]
    assert releases(driver) == [("r1", "d1", "replaced", 31.0)]
    assert last_attempt(driver, "r1") == "driver_cancelled"


def test_going_off_line_in_a_trip_does_not_end_the_trip() -> None:
    driver = dispatcher()
    bring(
        driver,
        position("d1", 0),
        request("r1", 2),
        answer("r1", "d1", 12),
        progress("r1", "d1", 60, "started"),
        status("d1", 100, "offline"),
        until=1_000,
    )
    assert states(driver, "r1")[-1] == "in_progress"
    bring(driver, progress("r1", "d1", 1_200, "finished"), request("r2", 1_201), until=1_260)
    assert states(driver, "r1")[-1] == "completed"
    assert len(offers(driver)) == 1, "off line, so no further offer"


def test_heartbeats_lost_in_a_trip_do_not_matter_and_lost_while_free_make_the_driver_stale() -> None:
    driver = dispatcher()
    bring(driver, position("d1", 0), position("d2", 0, 1), request("r1", 2), answer("r1", "d1", 12), until=13)
    bring(driver, progress("r1", "d1", 60, "started"), request("r2", 125, 1), until=140)
    assert [o[:2] for o in offers(driver)] == [("r1", "d1")], "d2 was last heard of 120 s before"
    assert [(d.driver_id, d.change) for d in driver.values("drivers")][-1] == ("d2", "stale")
    bring(driver, progress("r1", "d1", 900, "finished"), until=900)
    assert states(driver, "r1")[-1] == "completed"


def test_a_stale_driver_expires_with_no_further_event() -> None:
    driver = dispatcher()
    bring(driver, position("d1", 0), until=119.999)
    assert not driver.is_empty()
    driver.advance_watermark(ms(120))
    assert driver.is_empty()


def test_a_booked_ride_is_searched_for_ten_minutes_before_its_time() -> None:
    driver = dispatcher()
    beats = [position("d1", s) for s in range(0, 1_201, 60)]
    bring(driver, *beats, request("r1", 5, ahead=1_800), until=1_204)
    assert states(driver, "r1") == ["booked"]
    driver.advance_watermark(ms(1_210))
    assert states(driver, "r1") == ["booked", "processing", "offered"]
    bring(
        driver,
        answer("r1", "d1", 1_211),
        progress("r1", "d1", 1_250, "arrived"),
        position("d1", 1_800),
        until=2_104,
    )
    assert states(driver, "r1")[-1] == "arrived", "the rider wants to leave at 1,805 s"
    driver.advance_watermark(ms(2_105))
    assert states(driver, "r1")[-1] == "no_show"


def test_events_out_of_order_and_twice_change_nothing_twice() -> None:
    driver = dispatcher()
    finished = progress("r1", "d1", 300, "finished")
    bring(
        driver,
        position("d1", 0),
        request("r1", 2),
        request("r1", 3),
        answer("r1", "d1", 12),
        answer("r1", "d1", 12.5),
        finished,
        progress("r1", "d1", 301, "started"),
        finished,
        cancel("r1", 302),
        until=303,
    )
    assert states(driver, "r1") == ["processing", "offered", "accepted", "completed"]
    assert len(driver.values("ignored")) == 5
    assert releases(driver) == []


def test_what_comes_behind_the_watermark_counts_from_when_it_comes() -> None:
    driver = dispatcher()
    bring(driver, position("d1", 0), position("d1", 90), until=100)
    driver.send(REGION, request("r1", 50), at=ms(50))
    assert driver.values("trips")[-1].at_ms == ms(100)
    driver.advance_watermark(ms(110))
    assert offers(driver) == [("r1", "d1", 1, 110.0)]
    driver.advance_watermark(ms(130))
    driver.send(REGION, answer("r1", "d1", 112), at=ms(112))
    assert releases(driver)[-1] == ("r1", "d1", "expired", 130.0), "125 s was the end of the offer"


@pytest.mark.parametrize("state", ["booked", "processing", "offered"])
def test_an_operator_assigns_by_hand(state: str) -> None:
    driver = dispatcher()
    events: list[Event] = [position("d1", 0), position("d2", 0.5, 4)]
    at = 12
    if state == "booked":
        events.append(request("r1", 2, ahead=3_600))
    elif state == "processing":
        at = 9
        events.append(request("r1", 2))
    else:
        events.append(request("r1", 2))
    by_hand = command("assign", at, request_id="r1", driver_id="d2", zone=ZONE)
    bring(driver, *events, by_hand, until=at + 0.5)
    assert states(driver, "r1")[-1] == "accepted"
    assert driver.values("assignments")[-1].driver_id == "d2"
    assert [a.policy for a in driver.values("attempts")][-1] == "manual"
    (done,) = driver.values("operations")
    assert (done.outcome, done.operator, done.driver_id, done.at_ms) == ("done", "ann", "d2", ms(at))
    assert releases(driver) == ([("r1", "d1", "replaced", 12.0)] if state == "offered" else [])


def test_what_an_operator_cannot_do_is_refused_with_a_reason_and_leaves_a_trail() -> None:
    driver = dispatcher()
    bring(
        driver,
        position("d1", 0),
        request("r1", 2),
        answer("r1", "d1", 12),
        request("r2", 13),
        command("assign", 14, request_id="r2", driver_id="d1", zone=ZONE),
        command("assign", 15, request_id="r1", driver_id="d1", zone=ZONE),
        command("assign", 16, request_id="r9", driver_id="d1", zone=ZONE),
        command("assign", 17, request_id="r2", driver_id="d9", zone=ZONE),
        command("block", 18, driver_id="d1", until_ms=ms(10)),
        command("unblock", 19, driver_id="d1"),
        command("lift", 19.5, zone=ZONE),
        until=20,
    )
    details = [(o.outcome, o.detail) for o in driver.values("operations")]
    assert [outcome for outcome, _ in details] == ["refused"] * 7
    assert [d for _, d in details][:4] == [
        "the driver has request r1",
        "the request is accepted",
        "the request is over or unknown",
        "the driver is not on line in this region",
    ]
    assert len(driver.values("assignments")) == 1


def test_an_operator_can_assign_only_so_often() -> None:
    """Each attempt is a bit of a whole number of 64, and the driver of each breaks down."""
    driver = dispatcher(msgspec.structs.replace(CONFIG, attempts=1_000))
    bring(driver, position("d1", 0), request("r1", 1))
    for n in range(LAST_ATTEMPT + 1):
        again = command("assign", 2 + n / 20, request_id="r1", driver_id="d1", zone=ZONE)
        bring(driver, again, cancel("r1", 2.01 + n / 20, "driver", "d1", "breakdown"))
    driver.advance_watermark(ms(9))
    outcomes = [(o.outcome, o.detail) for o in driver.values("operations")]
    assert outcomes[:-1] == [("done", "")] * LAST_ATTEMPT
    assert outcomes[-1] == ("refused", "the request has had too many attempts")
    assert driver.values("dead_letters") == []


def test_an_operator_cancels_but_not_a_trip_with_the_rider_aboard() -> None:
    driver = dispatcher()
    bring(
        driver,
        position("d1", 0),
        request("r1", 2),
        answer("r1", "d1", 12),
        command("cancel", 13, request_id="r1", zone=ZONE),
        request("r2", 14),
        answer("r2", "d1", 21),
        progress("r2", "d1", 30, "started"),
        command("cancel", 31, request_id="r2", zone=ZONE),
        until=32,
    )
    assert states(driver, "r1")[-1] == "operator_cancelled"
    assert releases(driver)[0] == ("r1", "d1", "cancelled", 13.0)
    assert states(driver, "r2")[-1] == "in_progress"
    assert [o.outcome for o in driver.values("operations")] == ["done", "refused"]


def test_a_blocked_driver_gets_no_offer_until_the_block_is_over() -> None:
    driver = dispatcher()
    beats = [position("d1", s) for s in range(0, 59, 20)]
    bring(driver, *beats, command("block", 1, driver_id="d1", until_ms=ms(55)), request("r1", 2), until=59)
    assert offers(driver) == []
    driver.advance_watermark(ms(60))
    assert offers(driver) == [("r1", "d1", 1, 60.0)]
    assert [d.change for d in driver.values("drivers")] == ["entered", "blocked", "unblocked"]


def test_in_a_zone_that_is_blacked_out_nobody_is_picked_up() -> None:
    driver = dispatcher()
    beats = [position("d1", s) for s in range(0, 30, 20)]
    dark = command("blackout", 1, zone=ZONE, until_ms=ms(500))
    bring(driver, *beats, dark, request("r1", 2), until=30)
    assert offers(driver) == []
    bring(driver, command("lift", 31, zone=ZONE), until=40)
    assert offers(driver) == [("r1", "d1", 1, 40.0)]


def test_the_policy_is_switched_from_a_time_on_and_shadows_say_what_the_other_would_cost() -> None:
    driver = dispatcher()
    driver.broadcast(SetPolicy("fifo", from_ms=ms(20)), SetShadows(["fifo", "nearest", "optimal"]))
    for start in (1, 11):
        cars = [position(f"d{start}", start, 0.0), position(f"e{start}", start, 0.3)]
        asks = [request(f"far{start}", start + 1, 1.0), request(f"near{start}", start + 2, 0.1)]
        bring(driver, *cars, *asks, until=start + 9)
    reports = driver.values("windows")
    assert [r.policy for r in reports] == ["optimal", "fifo"]
    for r, start in zip(reports, (1, 11), strict=True):
        assert r.shadow_optimal_ms <= min(r.shadow_fifo_ms, r.shadow_nearest_ms)
        assert r.objective_ms == (r.shadow_optimal_ms if r.policy == "optimal" else r.shadow_fifo_ms)
        own = "optimal" if r.policy == "optimal" else "fifo"
        assert r.matched == getattr(r, f"shadow_{own}_matched") == 2
        assert r.wait_ms == getattr(r, f"shadow_{own}_wait_ms")
        # By hand: two riders who asked one and two seconds after the cars came, and the ways to them.
        waited = 2 * r.window_end_ms - ms(start + 1) - ms(start + 2)
        assert r.wait_ms == pytest.approx(waited + r.pickup_m * CIRCUITY / SPEED_M_PER_MS, abs=2)
        assert r.shadow_optimal_wait_ms <= r.shadow_fifo_wait_ms


def test_of_policies_that_are_over_the_last_is_kept() -> None:
    sizes = []
    driver = dispatcher()
    for n in range(1, 301):
        driver.broadcast(SetPolicy("fifo" if n % 2 else "nearest"))
        bring(driver, position("d1", n * 10, 0.0), until=n * 10 + 5)
        if n in (20, 300):
            sizes.append(len(driver.snapshot()))
    assert sizes[1] <= sizes[0] + 50
    bring(driver, request("r1", 3_006), until=3_015)
    assert [r.policy for r in driver.values("windows")] == ["nearest"]


def test_under_overload_those_go_first_who_have_waited_longest() -> None:
    config = msgspec.structs.replace(CONFIG, most_riders=2)
    driver = dispatcher(config)
    cars = [position(f"d{n}", n / 10) for n in range(3)]
    asks = [request(f"r{n}", 2 + n) for n in range(3)]
    bring(driver, *cars, *asks, until=10)
    assert [o[0] for o in offers(driver)] == ["r0", "r1"]
    assert driver.values("windows")[0].deferred == 1
    driver.advance_watermark(ms(20))
    assert offers(driver)[2][0] == "r2"


def test_classes_do_not_mix_and_the_radius_holds() -> None:
    driver = dispatcher(msgspec.structs.replace(CONFIG, rules=Rules(radius_m=1_000)))
    bring(
        driver,
        position("d1", 0, vehicle_class="xl"),
        position("d2", 0, 1.2),
        position("d3", 0, 0.5, state="approaching"),
        request("r1", 2),
        until=20,
    )
    assert offers(driver) == []


def test_the_book_of_a_window_counts_every_driver_once() -> None:
    driver = dispatcher()
    cars = [position(f"d{n}", n / 10, n / 10) for n in range(5)]
    bring(
        driver,
        *cars,
        request("r1", 2),
        request("r2", 3),
        answer("r1", "d0", 11),
        request("r3", 12, 2.5),
        request("r4", 13, 2.6),
        until=20,
    )
    for r in driver.values("windows"):
        assert r.drivers_online == r.drivers_free + r.drivers_offered + r.drivers_busy


@pytest.mark.parametrize("last", ["online", "offline"])
def test_a_status_that_comes_late_undoes_none_that_was_said_after_it(last: str) -> None:
    driver = dispatcher()
    first = "offline" if last == "online" else "online"
    bring(driver, position("d1", 1), status("d1", 8, last), until=9)
    driver.send(REGION, status("d1", 5, first), at=ms(5))
    bring(driver, position("d1", 10), request("r1", 11), until=30)
    assert [offer.driver_id for offer in driver.values("offers")] == (["d1"] if last == "online" else [])


def test_who_says_yes_to_an_offer_and_has_been_given_the_ride_by_hand_is_not_told_that_it_is_over() -> None:
    driver = dispatcher()
    bring(driver, position("d1", 1), request("r1", 2), until=10)
    hand = command("assign", 12, request_id="r1", driver_id="d1", zone=ZONE)
    bring(driver, hand, answer("r1", "d1", 13), until=20)
    assert states(driver, "r1")[-1] == "accepted"
    assert driver.values("releases") == []
    assert [row.compensated for row in driver.values("ignored")] == [False]


@pytest.mark.parametrize("late", ["block", "lift", "unblock", "blackout"])
def test_of_orders_about_a_driver_or_a_zone_the_last_that_was_given_holds(late: str) -> None:
    """What was ordered before and comes later undoes nothing.

    ::

        ordered: the one at 5 s, the other at 8 s     read: the other at 8 s, the one at 9 s     rider at 11 s
    """
    driver = dispatcher()
    about: dict[str, dict[str, Any]] = {
        "block": {"driver_id": "d1", "until_ms": ms(500)}, "unblock": {"driver_id": "d1"},
        "blackout": {"zone": ZONE, "until_ms": ms(500)}, "lift": {"zone": ZONE},
    }  # fmt: skip
    then = {"block": "unblock", "unblock": "block", "blackout": "lift", "lift": "blackout"}[late]
    bring(driver, position("d1", 1), command(then, 8, **about[then]), until=9)
    driver.send(REGION, command(late, 5, **about[late]), at=ms(5))
    bring(driver, request("r1", 11), until=30)
    assert [offer.driver_id for offer in driver.values("offers")] == (["d1"] if late.startswith("bl") else [])
    told = {row.action: (row.outcome, row.detail) for row in driver.values("operations")}
    assert told[late] == ("refused", "a later order has been carried out")


def test_when_all_is_over_nothing_is_kept() -> None:
    driver = dispatcher()
    bring(
        driver,
        *[position(f"d{n}", n, n / 2) for n in range(4)],
        request("r1", 5),
        request("r2", 6, ahead=1_800),
        command("block", 7, driver_id="d3", until_ms=ms(9_000)),
        command("blackout", 8, zone="87283082bffffff", until_ms=ms(9_500)),
        answer("r1", "d0", 12),
        progress("r1", "d0", 50, "started"),
    )
    driver.restart()
    driver.advance_watermark(ms(0) + 9 * HOUR)
    assert states(driver, "r1")[-1] == "lost", "a trip of which nothing is heard any more"
    assert states(driver, "r2")[-1] == "no_drivers_available"
    assert driver.is_empty()


def test_a_driver_takes_less_than_100_bytes_in_the_book() -> None:
    driver = dispatcher()
    cars = [position(f"driver-{n:08}", n / 1_000, (n % 100) / 50) for n in range(2_000)]
    driver.send_batch([(REGION, s.event_time_ms, s) for s in cars])
    driver.advance_watermark(ms(3))
    cells = driver.host.store.cells
    assert len(cells) > 30  # in parts
    assert sum(len(key) + len(bytes(cell.body)) for key, cell in cells.items()) / 2_000 < 100


def test_every_state_can_be_reached_and_ends() -> None:
    reached, before = {""}, set()
    while reached != before:
        before = set(reached)
        reached |= {after for state in before for after in TRANSITIONS[state]}
    assert reached == TRANSITIONS.keys()
    for state in TRANSITIONS:
        ends, seen = False, {state}
        while not ends and len(seen) < len(TRANSITIONS):
            ends = bool(seen & TERMINAL)
            seen |= {after for s in seen for after in TRANSITIONS[s]}
        assert seen & TERMINAL
    assert set(msgspec.structs.fields(Trip)[7].type.__args__) == TRANSITIONS.keys() - {""}


def test_the_dispatcher_can_be_sent_to_workers() -> None:
    import pickle

    copy = pickle.loads(pickle.dumps(Dispatcher(CONFIG)))  # noqa: S301
    assert copy.config == CONFIG
    assert MINUTE == 60_000
