"""What fits the delays of a sample: compared with a clock that is run over the same records."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from millrace.runtime.arrivals import Arrived, Delays, Fit, Percentiles, fit, measure, percentiles

START = 1_767_225_600_000
HOUR = 3_600_000
#: A topic: its partitions.
Topic = list[list[Arrived]]


def late_share(
    topics: Sequence[Topic], wanted: Fit, fast_ms: int | None = None, skew_ms: int | None = None
) -> float:
    """Run event time over the records in order of arrival, each for itself; return the share that is late.

    With ``fast_ms`` a device whose clock is so far ahead sends between any two of them.
    """
    skew = wanted.skew_ms if skew_ms is None else skew_ms
    records = sorted((r for topic in topics for part in topic for r in part), key=lambda r: r.arrival_ms)
    newest = watermark = -(2**62)
    late = 0
    for record in records:
        late += record.event_ms <= watermark
        newest = max(newest, min(record.event_ms, record.arrival_ms + skew))
        if fast_ms is not None:
            newest = max(newest, min(record.arrival_ms + fast_ms, record.arrival_ms + skew))
        watermark = newest - wanted.bound_ms - 1
    return late / len(records)


def world(draw: random.Random) -> tuple[list[Topic], list[Delays]]:
    """Topics of a few partitions each, whose events come with delays of their own, in real time."""
    topics = []
    for _ in range(draw.randint(1, 3)):
        least, spread = draw.choice((0, 0, 40, 3_000)), draw.choice((0, 1, 300, 20_000))
        every = draw.choice((1, 10, 700))
        parts: Topic = []
        for _ in range(draw.randint(1, 3)):
            happened = [START + number * every for number in range(draw.randint(30, 200))]
            came = [Arrived(at + least + int(draw.random() ** 3 * (spread + 1)), at) for at in happened]
            parts.append(sorted(came, key=lambda r: r.arrival_ms))
        topics.append(parts)
    measured = [found for topic in topics if (found := measure(topic)) is not None]
    return topics, measured


@pytest.mark.parametrize("seed", range(150))
def test_with_what_fits_one_in_a_hundred_is_late_at_most_also_beside_a_fast_clock(seed: int) -> None:
    topics, measured = world(random.Random(seed))
    wanted = fit(measured)
    assert wanted is not None
    assert wanted.skew_ms <= 0 <= wanted.bound_ms
    records = sum(of.events for of in measured)
    # Of every topic one in a hundred, and one more where a hundredth is no whole record.
    allowed = sum(of.events // 100 for of in measured) / records
    assert late_share(topics, wanted) <= allowed
    if not any(of.in_bulk for of in measured):
        assert late_share(topics, wanted, fast_ms=HOUR) <= allowed


def test_with_less_more_are_late() -> None:
    topics, measured = [[[Arrived(START + n * 10 + (n % 50) * 20, START + n * 10) for n in range(1_000)]]], []
    topics[0][0].sort(key=lambda r: r.arrival_ms)
    measured = [found for topic in topics if (found := measure(topic)) is not None]
    wanted = fit(measured)
    assert wanted == Fit(980, 0)
    assert late_share(topics, wanted, fast_ms=HOUR) <= 0.01
    assert late_share(topics, Fit(900, 0), fast_ms=HOUR) > 0.04


@pytest.mark.parametrize("seed", range(40))
def test_figures_are_those_of_a_plain_recount(seed: int) -> None:
    draw = random.Random(seed)
    parts = [
        [
            Arrived(draw.choice((0, -1, START + draw.randint(0, 900))), START + draw.randint(-500, 900))
            for _ in range(draw.randint(0, 60))
        ]
        for _ in range(draw.randint(1, 4))
    ]
    found = measure(parts)
    records = [record for part in parts for record in part]
    if not records:
        assert found is None
        return
    assert found is not None
    known = [r for r in records if r.arrival_ms > 0]
    assert (found.events, found.unknown) == (len(records), len(records) - len(known))
    if known:
        assert found.delay_ms is not None
        for share, value in zip((1, 50, 99), found.delay_ms, strict=True):
            up_to = sum(r.arrival_ms - r.event_ms <= value for r in known)
            below = sum(r.arrival_ms - r.event_ms < value for r in known)
            assert below * 100 < share * len(known) <= up_to * 100
    else:
        assert found.delay_ms is None
    behind = []
    for part in parts:
        for place in range(1, len(part)):
            before = [min(r.event_ms, r.arrival_ms) if r.arrival_ms > 0 else r.event_ms for r in part[:place]]
            behind.append(max(max(before) - part[place].event_ms, 0))
    up_to = sum(b <= found.disorder_ms for b in behind)
    assert up_to * 100 >= 99 * len(behind)
    assert not behind or found.disorder_ms in behind


def test_a_fast_clock_makes_no_disorder_of_the_others() -> None:
    honest = [Arrived(START + n * 10, START + n * 10 - 15) for n in range(100)]
    fast = [Arrived(r.arrival_ms, r.event_ms + HOUR) for r in honest[:99:9]]
    mixed = sorted([*honest, *fast], key=lambda r: r.arrival_ms)
    found = measure([mixed])
    assert found is not None
    assert found.disorder_ms == 5, "time has come to the fast clock's arrival, and not to its hour"
    assert not found.in_bulk


def test_a_backfill_says_nothing_of_its_senders() -> None:
    loaded = [Arrived(START + HOUR + n // 50, START + n * 1_000 - (n % 3) * 1_500) for n in range(1_000)]
    found = measure([loaded])
    assert found is not None
    assert found.in_bulk
    assert fit([found]) == Fit(1_000, 0)


def test_clocks_that_are_ahead_leave_the_skew_at_nothing() -> None:
    ahead = Delays(500, 0, Percentiles(-400, -200, -100), 0, in_bulk=False)
    assert fit([ahead]) == Fit(0, 0), "they wait until time has come to them"
    steady = Delays(500, 0, Percentiles(900, 1_000, 1_100), 20, in_bulk=False)
    assert fit([steady]) == Fit(200, -900)
    assert fit([ahead, steady]) == Fit(1_100, 0)


def test_without_records_nothing_fits() -> None:
    assert measure([]) is None
    assert measure([[], []]) is None
    assert fit([]) is None


def test_unknown_arrivals_leave_the_order() -> None:
    unknown = measure([[Arrived(0, 100), Arrived(-1, 40), Arrived(0, 130)]])
    assert unknown == Delays(3, 3, None, 60, in_bulk=False)
    assert fit([unknown]) == Fit(60, 0)


def test_percentiles_are_values() -> None:
    assert percentiles([7]) == Percentiles(7, 7, 7)
    assert percentiles([1, 2]) == Percentiles(1, 1, 2)
    assert percentiles(range(1_000)) == Percentiles(9, 499, 989)
