"""The audit from the topics: an evening that went well holds, and each of its reasons can be found."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from typing import Any

import h3
import msgspec
import pandas as pd
import pytest
from rich.console import Console

from millrace_apps.ridesharing.config import DispatchConfig
from millrace_apps.ridesharing.contracts.events import INPUTS
from millrace_apps.ridesharing.evaluation.replay import Faults
from millrace_apps.ridesharing.processes.regions import Regions
from millrace_apps.ridesharing.state.lifecycle import COMMITTED, TERMINAL
from millrace_apps.ridesharing.topic_audit.evidence import Evidence
from millrace_apps.ridesharing.topic_audit.findings import REASONS
from millrace_apps.ridesharing.topic_audit.report import audit_topics
from millrace_apps.ridesharing.topic_audit.text import show
from tests.broken import (
    Break,
    Row,
    Rows,
    added,
    breaks,
    check_listed,
    doubled,
    dropped,
    shifted,
    stuck,
    where,
)
from tests.unit.apps.ridesharing import test_audit
from tests.unit.apps.ridesharing.cases import HOUR, START
from tests.unit.apps.ridesharing.evenings import CAME, CLOCK, STEP_MS, evening

Change = Callable[[Rows], Rows]
TOPICS = evening(5, operators=0.3, faults=Faults(duplicates=0.1, restarts=5, seed=5))


def rows(stream: str, **like: Any) -> Rows:
    """Messages of a topic that say so."""
    return [row for row in TOPICS.rows[stream] if all(row.get(n) == v for n, v in like.items())]


def first(stream: str, **like: Any) -> Row:
    return rows(stream, **like)[0]


def only(row: Row, change: Change) -> Change:
    """Change one message."""
    return where(lambda other: other == row, change)


def of(name: str, value: str, change: Change) -> Change:
    """Change what is about a driver or request."""
    return where(lambda row: row.get(name) == value, change)


def came(at: int) -> int:
    """When what happened at a time came, ms."""
    start = TOPICS.rows[CLOCK][0][CAME]
    return int(start + -(-(at - start) // STEP_MS) * STEP_MS)


#: An offer whose driver was heard of before.
OFFER = TOPICS.rows["offers"][10]
DRIVER, RIDE = OFFER["driver_id"], OFFER["request_id"]
#: Where the driver was then, and where nobody is.
SEEN = [row for row in TOPICS.rows["locations"]
        if row["driver_id"] == DRIVER and row["event_time_ms"] < OFFER["event_time_ms"]][-1]  # fmt: skip
FAR = {"lat": SEEN["lat"] + 1.0, "lon": SEEN["lon"]}
BEFORE = OFFER["event_time_ms"] - 1_000
LATEST = max(row["event_time_ms"] for row in TOPICS.rows["locations"])
ZONE = first("requests", request_id=RIDE)["zone"]
RIDER = first("requests", request_id=RIDE)["rider_id"]
#: A request that was offered twice, and who had it first.
AGAIN = first("trips", state="offered", attempt=2)
LOST = first("trips", state="offered", attempt=1, request_id=AGAIN["request_id"])
ENDED = next(row for row in TOPICS.rows["trips"] if row["state"] in TERMINAL)
ACCEPTED = first("trips", state="accepted", before="offered")
ABOARD = first("trips", state="in_progress")


def about_driver(**more: Any) -> dict[str, Change]:
    """Change what a driver's phone says."""
    changes: dict[str, Change] = {}
    for stream, needs in (("locations", more), ("status", {k: v for k, v in more.items() if k != "state"})):
        if any(row["driver_id"] == DRIVER for row in TOPICS.rows[stream]):
            changes[stream] = of(
                "driver_id", DRIVER, lambda found, needs=needs: [{**r, **needs} for r in found]
            )
    return changes


def command(action: str, **more: Any) -> Row:
    return {
        "event_time_ms": BEFORE, "command_id": "late-one", "action": action, "operator": "ann", "reason": "t",
        "until_ms": BEFORE + HOUR, "request_id": "", "driver_id": "", "zone": "", "region": "",
        CAME: came(BEFORE), **more,
    }  # fmt: skip


def venue(pen: Row, zone: Row, rings: int) -> Row:
    """A venue from the beginning on, with a pen of so many rings around a place."""
    where = h3.latlng_to_cell(*_place(zone), 9)
    cells = h3.grid_disk(h3.latlng_to_cell(*_place(pen), 8), rings)
    return {
        "kind": "set_venue", "name": "v", "zone": [where], "pen": cells,
        "points": [], "command_id": "v", "operator": "ann", "reason": "t", "from_ms": START,
        CAME: TOPICS.rows[CLOCK][0][CAME],
    }  # fmt: skip


def _place(row: Row) -> tuple[float, float]:
    return (row["pickup_lat"], row["pickup_lon"]) if "pickup_lat" in row else (row["lat"], row["lon"])


def northward(found: Rows) -> Rows:
    return [{**row, "lat": row["lat"] + 0.1} for row in found]


def ride_of_another(found: Rows) -> Rows:
    """The driver of a ride has another ride, too: who was offered one while the first was open."""
    span = _span(ACCEPTED)
    other = next(
        row for row in found
        if row["state"] == "offered" and row["driver_id"] != ACCEPTED["driver_id"]
        and row["request_id"] != ACCEPTED["request_id"] and span[0] < row["at_ms"] < span[1]
    )  # fmt: skip
    same = (other["request_id"], other["attempt"], other["driver_id"])
    return [
        {**row, "driver_id": ACCEPTED["driver_id"]}
        if (row["request_id"], row["attempt"], row["driver_id"]) == same else row
        for row in found
    ]  # fmt: skip


def _span(step: Row) -> tuple[int, int]:
    """From when a driver accepted to the end of it, ms."""
    later = [
        row["at_ms"] for row in rows("trips", request_id=step["request_id"])
        if row["revision"] > step["revision"] and row["state"] not in COMMITTED
    ]  # fmt: skip
    return step["at_ms"], min(later, default=LATEST)


def lost_driver_again(found: Rows) -> Rows:
    """The second offer of a request goes to who had lost it."""
    return [
        {**row, "driver_id": LOST["driver_id"]}
        if row["request_id"] == AGAIN["request_id"] and row["attempt"] == 2 and row["driver_id"] else row
        for row in found
    ]  # fmt: skip


def ended_again(found: Rows) -> Rows:
    return [*found, {**ENDED, "before": ENDED["state"], "revision": ENDED["revision"] + 1}]


def searched_earlier(found: Rows) -> Rows:
    """A search began ten minutes before it did."""
    name = ACCEPTED["request_id"]
    begun = next(row for row in found if row["request_id"] == name and row["state"] == "processing")
    return [{**row, "at_ms": row["at_ms"] - 600_000} if row == begun else row for row in found]


def last_of(state: str) -> Change:
    """The last step of a request, by which it came to a state, is never said."""
    row = rows("trips", state=state)[0]
    return only(row, dropped)


def hours_later(found: Rows) -> Rows:
    """A driver is heard of ten hours later, and nobody else."""
    row = {**found[-1], "event_time_ms": LATEST + 10 * HOUR, "event_id": "later", CAME: LATEST + 10 * HOUR}
    return [*found, row]


def released(found: Rows) -> Rows:
    """Who has just accepted is told that it is over."""
    row = {"request_id": ACCEPTED["request_id"], "driver_id": ACCEPTED["driver_id"],
           "event_time_ms": ACCEPTED["at_ms"] + 1}  # fmt: skip
    return [*found, {**found[0], **row}]


def cause(state: str, stream: str) -> dict[str, Change]:
    """What made a request come to a state never came."""
    name = first("trips", state=state)["request_id"]
    return {stream: of("request_id", name, dropped)}


PHONE = tuple(about_driver())
BREAKS = (
    *breaks("two_commitments", a_driver_with_two_rides={"trips": ride_of_another}),
    *breaks(
        "silent",
        never_heard_of={s: of("driver_id", DRIVER, dropped) for s in PHONE},
        an_hour_ago={"locations": of("driver_id", DRIVER, shifted("event_time_ms", -HOUR)),
                     "status": of("driver_id", DRIVER, shifted("event_time_ms", -HOUR))},
    ),
    *breaks(
        "off_line",
        before_the_offer={"status": added({**first("status", driver_id=DRIVER), "status": "offline",
                                           "event_time_ms": BEFORE, "event_id": "off", CAME: came(BEFORE)})},
    ),
    *breaks("not_free", on_a_trip=about_driver(state="on_trip")),
    *breaks("too_far", eleven_kilometres_away={s: of("driver_id", DRIVER, northward) for s in PHONE}),
    *breaks("distance", told_wrong={"offers": only(OFFER, shifted("distance_m", 100))}),
    *breaks("class", another_car=about_driver(vehicle_class="premium")),
    *breaks("blocked", blocked_before={"commands": added(command("block", driver_id=DRIVER))}),
    *breaks("apart", kept_apart_before={"control": added(
        {"kind": "set_pair", "rider_id": RIDER, "driver_id": DRIVER, "stands": "block", "command_id": "p",
         "operator": "ann", "reason": "t", "from_ms": 0, CAME: came(BEFORE)})}),
    *breaks("blacked_out", closed_before={"commands": added(command("blackout", zone=ZONE))}),
    *breaks("cooling", the_same_driver_again={"trips": lost_driver_again, "offers": lost_driver_again}),
    *breaks("pick_up", elsewhere={"offers": only(OFFER, shifted("pickup_lat", 0.01))}),
    *breaks("out_of_turn", everybody_waits={"control": added(venue(OFFER, OFFER, 3))}),
    *breaks("taken_from_line", a_pen_where_the_driver_stands={"control": added(venue(SEEN, FAR, 1))}),
    *breaks(
        "forbidden_step",
        a_step_dropped={"trips": only(ACCEPTED, dropped)},
        backwards={"trips": only(ACCEPTED, shifted("at_ms", -60_000))},
        another_state_before={"trips": only(ACCEPTED, stuck("before", "arrived"))},
    ),
    *breaks(
        "no_cause",
        nobody_accepted={"answers": of("request_id", ACCEPTED["request_id"], dropped)},
        nobody_cancelled=cause("rider_cancelled", "cancellations"),
        nobody_arrived=cause("arrived", "progress"),
        nobody_finished=cause("completed", "progress"),
        no_operator=cause("operator_cancelled", "commands"),
    ),
    *breaks("two_ends", ended_again={"trips": ended_again}),
    *breaks(
        "no_effect",
        finished_and_goes_on={"trips": last_of("completed")},
        cancelled_and_searched_for={"trips": last_of("rider_cancelled")},
    ),
    *breaks("overtime", open_for_hours={"locations": hours_later}),
    *breaks("expiry", a_second_longer={"offers": only(OFFER, shifted("expires_ms", 1_000))}),
    *breaks("not_told", nobody_told={"releases": dropped}),
    *breaks("told_wrongly", told_in_the_midst={"releases": released}),
    *breaks("unheard", no_steps={"trips": of("request_id", RIDE, dropped)}),
    *breaks("no_request", never_asked={"requests": of("request_id", RIDE, dropped)}),
    *breaks(
        "not_as_asked",
        another_rider={"trips": of("request_id", RIDE, stuck("rider_id", "somebody"))},
        another_time={"trips": of("request_id", RIDE, shifted("pickup_at_ms", 1_000))},
    ),
    *breaks("waited", searched_for_longer={"trips": searched_earlier}),
    *breaks("offer_alone", told_twice={"offers": only(OFFER, doubled)},
            of_no_step={"offers": only(OFFER, stuck("attempt", 50))}),
    *breaks("offer_missing", not_told={"offers": only(OFFER, dropped)}),
    *breaks("assignment_alone", told_twice={"assignments": doubled}),
    *breaks("assignment_missing", never_told={"assignments": dropped}),
    *breaks("attempts", one_left_out={"trips": only(ACCEPTED, shifted("attempt", 1))}),
    *breaks("wait", a_second_longer={"trips": only(ABOARD, shifted("wait_ms", 1_000))}),
    *breaks("two_requests", one_rider_for_all={"trips": stuck("rider_id"), "requests": stuck("rider_id")}),
)  # fmt: skip


def test_an_evening_that_went_well_has_no_violations_and_says_what_it_is_sure_of() -> None:
    audited = TOPICS.audited()
    assert audited.rows == []
    assert audited.offers.offers == len(TOPICS.rows["offers"]) > 50
    assert audited.offers.sure > 0.8 * audited.offers.offers


@pytest.mark.parametrize("one", BREAKS, ids=str)
def test_every_reason_is_found_where_it_is_one(one: Break) -> None:
    audited = TOPICS.audited(one.applied(TOPICS.rows))
    assert one.check in audited.by_reason(), audited.by_reason()
    assert all(row.invariant == REASONS[row.reason][0] for row in audited.rows)


def test_every_reason_is_listed_with_what_breaks_it() -> None:
    check_listed("`millrace ridesharing audit-topics`", REASONS, BREAKS)


# No violation, whatever goes wrong on the way.


@pytest.mark.parametrize("seed", [2, 3, 7, 11])
def test_repeats_delays_restarts_and_operators_violate_nothing(seed: int) -> None:
    faults = Faults(duplicates=0.1, late=(0.05, 0.3)[seed % 2], restarts=10, seed=seed)
    audited = evening(seed, steps=120, operators=0.3, faults=faults).audited()
    assert audited.rows == []
    assert 0 < audited.offers.sure < audited.offers.offers


@pytest.mark.parametrize(("seed", "regions"), [(1, 1), (2, 2), (3, 4), (4, 1)])
def test_a_replay_violates_nothing(seed: int, regions: int) -> None:
    faults = Faults(duplicates=0.2, late=0.2, restarts=10, seed=seed)
    _, done = test_audit.run(faults=faults, regions=regions, evidence=True)
    assert done.evidence is not None
    audited = audit_topics(done.evidence)
    assert audited.rows == []
    assert audited.ledger.ends.total() == 60
    assert audited.ledger.open == {}


def test_a_replay_keeps_no_evidence_unless_it_is_told_to() -> None:
    assert test_audit.run()[1].evidence is None


def test_a_block_of_a_driver_of_whom_nobody_has_heard_is_none() -> None:
    early = {"event_time_ms": START - 1_000, CAME: START}
    unheard = command("block", driver_id=DRIVER, **early)
    assert TOPICS.audited({**TOPICS.rows, "commands": [*TOPICS.rows["commands"], unheard]}).rows == []


# Only what is asked for is judged.


def test_what_was_asked_for_before_is_not_judged() -> None:
    since = OFFER["event_time_ms"] + 60_000
    later = {
        name: [row for row in found if row[CAME] >= since - 3 * STEP_MS]
        for name, found in TOPICS.rows.items()
    }
    # Read from the middle on, half of what is there has no begin.
    assert TOPICS.audited(later).count > 10
    audited = TOPICS.audited(later, since_ms=since + HOUR // 30)
    assert audited.rows == []
    assert 0 < audited.offers.offers < len(TOPICS.rows["offers"])


def test_what_happened_just_before_the_end_may_be_on_its_way() -> None:
    """The app's last half a minute has not come yet."""
    cut = {
        name: [row for row in found if name in INPUTS or row[CAME] <= LATEST - 30_000]
        for name, found in TOPICS.rows.items()
    }
    assert {"unheard", "no_effect"} & set(TOPICS.audited(cut).by_reason())
    assert TOPICS.audited(cut, settle_ms=60_000).rows == []


def test_what_no_gate_lets_pass_is_counted_and_is_no_evidence() -> None:
    evidence = Evidence(future_ms=1_000)
    evidence.read("locations", "d1", b"{", 0)
    place = {name: v for name, v in first("locations").items() if name != CAME}
    value, at = msgspec.json.encode(place), place["event_time_ms"]
    evidence.read("locations", "another", value, at)  # the key is another driver's
    evidence.read("locations", place["driver_id"], value, at - 2_000)  # it has not happened yet
    evidence.read("locations", place["driver_id"], value, at)
    asked = {name: v for name, v in first("requests").items() if name != CAME}
    nowhere = msgspec.json.encode({**asked, "zone": "nowhere"})
    evidence.read("requests", "r", nowhere, asked["event_time_ms"])
    assert (dict(evidence.unreadable), dict(evidence.counts)) == (
        {"locations": 3, "requests": 1},
        {"locations": 1},
    )


@pytest.mark.parametrize("word", ["{0}-oX", "{0}-o", "{0}-o01", "{0}-o1", "{0}-o９", "-o1", "1", "{0}-o64"])
def test_an_answer_to_what_no_offer_is_called_is_none_to_the_audit(word: str) -> None:
    """It comes while the driver has an offer, and says yes: the app ignores it."""
    (offered,) = rows("trips", request_id=AGAIN["request_id"], state="offered", attempt=2)
    said = first("answers")
    at = offered["at_ms"] + 1
    more = {"request_id": AGAIN["request_id"], "driver_id": offered["driver_id"], "zone": AGAIN["zone"]}
    more |= {"event_id": "strange", "answer": "accept", "event_time_ms": at, CAME: came(at), "reason": ""}
    strange = {**said, **more, "offer_id": word.format(AGAIN["request_id"])}
    assert TOPICS.audited({**TOPICS.rows, "answers": [*TOPICS.rows["answers"], strange]}).rows == []


def test_a_zone_is_the_same_however_it_is_written() -> None:
    loud = [{**row, "zone": row["zone"].upper()} for row in TOPICS.rows["requests"]]
    assert TOPICS.audited({**TOPICS.rows, "requests": loud}).rows == []
    dark = [*TOPICS.rows["commands"], command("blackout", zone=ZONE.upper())]
    assert "blacked_out" in TOPICS.audited({**TOPICS.rows, "commands": dark}).by_reason()


def test_what_comes_twice_counts_once() -> None:
    evidence = Evidence()
    offer = msgspec.json.encode({name: v for name, v in OFFER.items() if name != CAME})
    for identity in ("e1", "e1", "e2"):
        evidence.read("offers", "all", offer, 0, identity)
    assert evidence.counts["offers"] == 2


# What is told besides.


def test_each_request_has_one_end_and_each_driver_one_state() -> None:
    audited = TOPICS.audited()
    last = {row["request_id"]: row for row in TOPICS.rows["trips"]}
    ends = Counter(row["state"] if row["state"] in TERMINAL else "open" for row in last.values())
    assert audited.ledger.ends == ends
    known = {row["driver_id"] for name in ("locations", "status") for row in TOPICS.rows[name]}
    assert sum(audited.drivers.values()) == len(known)
    bound = {row["driver_id"] for row in last.values() if row["state"] in COMMITTED}
    assert audited.drivers["bound"] == len(bound)


def test_what_is_open_is_as_old_as_its_last_step() -> None:
    audited = TOPICS.audited()
    last = {row["request_id"]: row for row in TOPICS.rows["trips"]}
    assert audited.ledger.open.keys() == {r["state"] for r in last.values()} - TERMINAL
    for state, kept in audited.ledger.open.items():
        ages = {audited.end_ms - row["at_ms"]: name for name, row in last.items() if row["state"] == state}
        assert (kept.count, kept.oldest_ms) == (
            sum(row["state"] == state for row in last.values()), max(ages)
        )  # fmt: skip
        assert kept.oldest == ages[max(ages)]


def test_waits_and_rides_by_cell_are_those_of_its_requests() -> None:
    """Held against a group-by of pandas over the rows of the topics."""
    audited = TOPICS.audited()
    asked = pd.DataFrame(TOPICS.rows["requests"]).drop_duplicates("request_id")
    asked["cell"] = [
        h3.latlng_to_cell(a, b, 7) for a, b in zip(asked.pickup_lat, asked.pickup_lon, strict=True)
    ]
    trips = pd.DataFrame(TOPICS.rows["trips"])
    asked["end"] = asked.request_id.map(trips[trips.state.isin(TERMINAL)].set_index("request_id").state)
    asked["wait_s"] = (
        asked.request_id.map(trips[trips.state == "in_progress"].set_index("request_id").wait_ms) / 1_000
    )
    judged = asked[asked.end.notna() & ~asked.end.isin(["rider_cancelled", "refused"])]
    requests, served = judged.groupby("cell").size(), judged[judged.end == "completed"].groupby("cell").size()
    waits = asked.dropna(subset="wait_s").groupby("cell").wait_s
    means, longest = waits.mean(), waits.quantile(0.95)
    assert {cell.cell for cell in audited.cells} == set(asked.cell)
    for cell in audited.cells:
        assert cell.requests == requests.get(cell.cell, 0)
        assert cell.served == served.get(cell.cell, 0)
        assert cell.mean_wait_s == pytest.approx(means.get(cell.cell, 0.0), abs=1e-6)
        assert cell.p95_wait_s == pytest.approx(longest.get(cell.cell, 0.0), abs=1e-6)
    assert audited.fairness.requests == len(judged)
    shares = [cell.served_share for cell in audited.cells]
    assert shares == sorted(shares)


def test_a_report_is_told_in_words_and_as_json() -> None:
    console = Console(file=io.StringIO(), width=200)
    audited = TOPICS.audited({**TOPICS.rows, "releases": []})
    show(audited, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "not_told" in text
    assert audited.rows[0].request_id in text
    assert f"{len(TOPICS.rows['offers'])} offers" in text
    assert "and" in text
    told = msgspec.json.decode(msgspec.json.encode(audited.to_json(examples=3)))
    assert told["violations"] == audited.count == told["by_reason"]["not_told"]
    assert len(told["examples"]) == 3
    console = Console(file=io.StringIO(), width=200)
    show(TOPICS.audited(), console)
    assert "no violations" in console.file.getvalue()  # type: ignore[attr-defined]


def test_who_lost_an_offer_to_an_operator_may_be_asked_again() -> None:
    """An operator gives a request to somebody else, who does not come: the first has refused nothing."""
    whole = evening(163, steps=60, operators=0.3, faults=Faults(0.3, 0.3, 20, 163))
    assert whole.audited().by_reason() == {}
    taken = [
        row for row in whole.rows["trips"]
        if row["state"] == "processing" and row["cause"] == "offer withdrawn by an operator"
    ]  # fmt: skip
    assert taken


@pytest.mark.parametrize(
    ("seed", "steps", "operators", "late", "restarts", "parent"),
    [
        pytest.param(3167, 60, 0.0, 0.6, 20, -1, id="asked for at the watermark itself"),
        pytest.param(3169, 60, 0.7, 0.3, 20, -1, id="came on line before going off, and is read after it"),
        pytest.param(3251, 120, 0.3, 0.3, 20, -1, id="a trip is ended by hand, late"),
        pytest.param(3269, 90, 0.7, 0.1, 5, -1, id="a no to an offer that an operator has withdrawn"),
        pytest.param(4048, 60, 0.7, 0.6, 20, 6, id="a yes to an offer that an operator has made a ride"),
    ],
)
def test_evenings_that_once_were_wrong_or_called_so(
    seed: int, steps: int, operators: float, late: float, restarts: int, parent: int
) -> None:
    faults = Faults(duplicates=0.1 if parent >= 0 or seed == 3169 else 0.0, late=late, restarts=restarts)
    config = DispatchConfig(regions=Regions(parent=parent))
    whole = evening(seed, steps=steps, operators=operators, faults=faults, config=config)
    assert whole.audited().rows == []
