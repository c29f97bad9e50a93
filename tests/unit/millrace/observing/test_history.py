"""A day of figures: what is written, put aside, read again and again; how fast counts grow."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from millrace.dashboard.overview import lags_of, rates_of
from millrace.observing.history import DAY_MS, EVERY_MS, HISTORY_FILE, HistoryReader, HistoryWriter, Moment
from millrace.observing.rates import Rates
from tests.cases import case_count
from tests.unit.millrace.observing.cases import NOW, figures


def write(root: Path, *times: int) -> None:
    writer = HistoryWriter(root)
    for at in times:
        writer.see(figures(root, at_ms=at, rows=at - NOW))


def test_a_line_every_ten_seconds_and_one_at_the_end(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path)
    for second in range(25):
        writer.see(figures(at_ms=NOW + 1_000 * second))
    writer.see(figures(at_ms=NOW + 24_500), last=True)
    found = HistoryReader(tmp_path).last_day(NOW + 30_000)
    assert [m.at_ms - NOW for m in found] == [0, 10_000, 20_000, 24_500]
    assert found[0] == Moment(NOW, 1_000, 100.0, 50, 7_000, 400, 6, 5, 5_000)


def test_a_clock_that_is_set_back_does_not_silence_it(tmp_path: Path) -> None:
    write(tmp_path, NOW, NOW - 3_600_000, NOW - 3_590_000)
    assert len(HistoryReader(tmp_path).last_day(NOW)) == 3


def test_a_clock_that_was_years_ahead_is_not_waited_for(tmp_path: Path) -> None:
    """What it wrote is put aside like what is old, and is no part of the day once the clock is right."""
    ahead = NOW + 400 * DAY_MS
    write(tmp_path, NOW, ahead, NOW + 10_000, NOW + 20_000)
    assert (tmp_path / HISTORY_FILE).read_bytes().count(b"\n") == 2
    again = HistoryReader(tmp_path)
    for _ in range(2):
        assert [m.at_ms - NOW for m in again.last_day(NOW + 20_000)] == [10_000, 20_000]
    write(tmp_path, *(NOW + 30_000 + DAY_MS + n * EVERY_MS for n in range(2)))
    assert (tmp_path / HISTORY_FILE).read_bytes().count(b"\n") == 2


def test_what_is_older_than_a_day_is_put_aside_then_goes(tmp_path: Path) -> None:
    hour = 3_600_000
    write(tmp_path, *(NOW + hour * n for n in range(80)))
    kept = (tmp_path / HISTORY_FILE).read_bytes() + (tmp_path / f"{HISTORY_FILE}.old").read_bytes()
    assert 24 <= kept.count(b"\n") <= 52
    found = HistoryReader(tmp_path).last_day(NOW + 79 * hour)
    assert [m.at_ms for m in found] == [NOW + hour * n for n in range(55, 80)], "a whole day, and no more"


def test_a_job_that_is_started_again_goes_on_in_the_same_file(tmp_path: Path) -> None:
    write(tmp_path, NOW)
    write(tmp_path, NOW + DAY_MS - 1)
    assert not (tmp_path / f"{HISTORY_FILE}.old").exists()
    write(tmp_path, NOW + DAY_MS + 1)
    assert (tmp_path / f"{HISTORY_FILE}.old").exists()


def test_a_reader_that_looks_again_and_again_sees_what_one_sees_at_the_end(tmp_path: Path) -> None:
    again = HistoryReader(tmp_path)
    assert again.last_day(NOW) == ()
    for n in range(60):
        write(tmp_path, NOW + n * 3_600_000)
        with (tmp_path / HISTORY_FILE).open("ab") as file:
            file.write(b"[17")  # half of a line, which the next look must not take for one
        seen = again.last_day(NOW + n * 3_600_000)
        with (tmp_path / HISTORY_FILE).open("r+b") as file:
            file.truncate((tmp_path / HISTORY_FILE).stat().st_size - 3)
        assert seen == HistoryReader(tmp_path).last_day(NOW + n * 3_600_000)
        assert seen[-1].at_ms == NOW + n * 3_600_000


def test_lines_that_are_none_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, NOW)
    with (tmp_path / HISTORY_FILE).open("ab") as file:
        file.write(b'{"what": 1}\n\xff\xfe\n[1,2]\n')
    assert [m.at_ms for m in HistoryReader(tmp_path).last_day(NOW)] == [NOW]


@pytest.mark.parametrize("seed", range(case_count(300)))
def test_all_steps_together_are_all_rows_that_were_read(seed: int) -> None:
    """Starts, halts and gaps at random; the oracle goes through the rows one second at a time."""
    rng = random.Random(seed)
    at, rows, moments, expected = NOW + rng.randrange(EVERY_MS), 0, [], 0
    for _ in range(rng.randrange(2, 60)):
        moments.append(Moment(at, rows, 0.0, rng.choice([None, rng.randrange(1_000)])))
        gap, more = rng.choice([EVERY_MS, EVERY_MS + 300, 9 * EVERY_MS]), rng.randrange(5_000)
        if rng.random() < 0.1:
            rows = -1  # it is started again: the count begins anew
        at += gap
        if rows >= 0 and gap <= 3 * EVERY_MS:
            expected += more
        rows = rows + more if rows >= 0 else rng.randrange(1, 50)
        if rows < moments[-1].rows:
            continue
    moments.append(Moment(at, rows, 0.0))
    expected = sum(
        b.rows - a.rows
        for a, b in zip(moments, moments[1:], strict=False)  # noqa: RUF007
        if b.rows >= a.rows and b.at_ms - a.at_ms <= 3 * EVERY_MS
    )
    step = rng.choice([EVERY_MS, 15_000, 300_000])
    got = 0.0
    for begin, rate in rates_of(moments, step):
        known = sum(  # seconds of the step in which the job ran
            max(0, min(b.at_ms, begin + step) - max(a.at_ms, begin)) / 1_000
            for a, b in zip(moments, moments[1:], strict=False)  # noqa: RUF007
            if b.rows >= a.rows and 0 < b.at_ms - a.at_ms <= 3 * EVERY_MS
        )
        assert (rate is None) == (known == 0)
        got += (rate or 0.0) * known
    assert got == pytest.approx(expected, abs=1e-3)
    lags = [m.lag for m in moments if m.lag is not None]
    assert max((v for _, v in lags_of(moments, step) if v is not None), default=None) == max(
        lags, default=None
    )


@pytest.mark.parametrize("seed", range(case_count(200)))
def test_a_rate_is_what_was_added_over_the_last_half_minute(seed: int) -> None:
    rng = random.Random(seed)
    rates, at, seen = Rates(from_zero=True), NOW, []
    counts = {"main": 0}
    for _ in range(rng.randrange(1, 90)):
        counts = {name: n + rng.randrange(50) for name, n in counts.items()}
        if rng.random() < 0.1:
            counts.setdefault("alerts", rng.randrange(5))
        rates.see(at, counts)
        seen.append((at, counts))
        at += rng.choice([0, 900, 1_000, 1_100, 4_000])
        if seen[-1][0] == at:  # two looks in one moment: the first one counts
            rates.see(at, dict.fromkeys(counts, 10**9))
            at += 1_000
    last, now = seen[-1]
    before = [s for s in seen if s[0] <= last - 30_000] or seen[:1]
    since, was = before[-1]
    if len(seen) < 2:
        assert rates.per_second() == {}
    else:
        expected = {n: (c - was.get(n, 0)) * 1_000 / (last - since) for n, c in now.items()}
        assert rates.per_second() == pytest.approx(expected)


def test_where_a_topic_stood_at_the_first_look_is_no_rate() -> None:
    rates = Rates(from_zero=False)
    rates.see(0, {})
    rates.see(1_000, {"in": 5_000_000})
    assert rates.per_second() == {}
    rates.see(3_000, {"in": 5_000_100, "late": 9})
    assert rates.per_second() == {"in": 50.0}, "since it was first seen"
    rates.see(4_000, {"in": 5_000_150, "late": 19})
    assert rates.per_second() == {"in": 50.0, "late": 10.0}
    rates = Rates(from_zero=False)
    rates.see(0, {"in": 5_000_000})
    rates.see(2_000, {"in": 5_000_100})
    assert rates.per_second() == {"in": 50.0}


def test_long_batches_have_rates_between_them_too() -> None:
    """A batch of a minute: counts stand still for longer than half a minute."""
    rates = Rates(from_zero=True)
    for second in range(200):
        rates.see(1_000 * second, {"main": 600 * (second // 60)}, batch_ms=60_000)
    assert rates.per_second()["main"] == pytest.approx(10.0, rel=0.15)
