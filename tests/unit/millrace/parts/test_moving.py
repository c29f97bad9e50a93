"""Moving statistics say what pandas and a plain list of all values say."""

from __future__ import annotations

import math
from random import Random

import msgspec
import numpy as np
import pandas as pd
import pytest

from millrace.parts.moving import MovingStatistics, Weighted
from tests.cases import case_count

MINUTE = 60_000


class Short(MovingStatistics, array_like=True):
    last_n, panes, pane_ms, alpha, learn = 3, 4, 1_000, 0.3, 2


def restored(kept: MovingStatistics) -> MovingStatistics:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=type(kept))


@pytest.mark.parametrize("kind", [MovingStatistics, Short])
def test_statistics_are_those_of_pandas(kind: type[MovingStatistics]) -> None:
    random = Random(8)
    times = sorted(random.sample(range(40 * kind.pane_ms), 600))
    values = [random.gauss(5, 2) for _ in times]
    kept = kind()
    series = pd.Series(values)
    ewm = series.ewm(alpha=kind.alpha, adjust=False)
    mean, variance = ewm.mean(), ewm.var(bias=True)
    for i, (at, value) in enumerate(zip(times, values, strict=True)):
        zscore = kept.add(at, value)
        assert kept.average == pytest.approx(series[max(0, i - kind.last_n + 1) : i + 1].mean())
        assert (kept.low, kept.high) == (min(values[: i + 1]), max(values[: i + 1]))
        assert (kept.mean, kept.variance) == (pytest.approx(mean[i]), pytest.approx(variance[i]))
        if i >= kind.learn:
            assert zscore == pytest.approx((value - mean[i - 1]) / variance[i - 1] ** 0.5)
        else:
            assert zscore is None


@pytest.mark.parametrize("kind", [MovingStatistics, Short])
def test_the_trend_is_a_weighted_line_through_the_panes(kind: type[MovingStatistics]) -> None:
    random = Random(9)
    kept, size = kind(), kind.pane_ms
    times = sorted(random.sample(range(kind.panes * size), 300))
    values = [2.0 * at / 3_600_000 + random.gauss(0, 0.00001) for at in times]
    for at, value in zip(times, values, strict=True):
        kept.add(at, value)
    kept.add(kind.panes * size, 1.0)  # a pane begins: the line through those before it is drawn
    frame = pd.DataFrame({"pane": [at // size for at in times], "value": values})
    means = frame.groupby("pane")["value"].agg(["mean", "size"])
    line = np.polyfit(means.index, means["mean"], 1, w=np.sqrt(means["size"]))
    assert kept.trend == pytest.approx(line[0] * 3_600_000 / size)
    assert kept.trend == pytest.approx(2.0, rel=0.05)


def test_a_silence_longer_than_the_panes_begins_them_anew() -> None:
    kept = MovingStatistics()
    kept.add(0, 1.0)
    kept.add(100 * MINUTE, 3.0)
    assert (kept.average_by_time, kept.trend, kept.average) == (3.0, None, 2.0)


def run(seed: int) -> None:
    """One random series beside a list of all its values: late ones, silences, restarts, what is pruned."""
    random = Random(seed)
    kind = random.choice([Short, MovingStatistics])
    kept, now = kind(), random.choice([-5_000_000, 0, 1_767_369_600_000])
    values: list[float] = []
    panes: dict[int, list[float]] = {}
    since = 0
    newest: int | None = None
    for _ in range(random.choice([5, 60])):
        now += random.choice([0, 1, 300, kind.pane_ms, 3 * kind.pane_ms, 20 * kind.pane_ms])
        step = random.random()
        if step < 0.8:
            at = now - random.choice([0, 0, 0, kind.pane_ms, 9 * kind.pane_ms])
            value = random.choice([0.0, 1.5, -2.25, random.gauss(0, 3)])
            pane = at // kind.pane_ms
            if newest is None or not panes or pane > newest:
                newest = pane
                panes[pane] = []
                panes = {p: of for p, of in panes.items() if p > pane - kind.panes}
                first = min(panes)
                for between in range(first, pane):
                    panes.setdefault(between, [])
            if pane in panes:
                panes[pane].append(value)
            values.append(value)
            kept.add(at, value)
        elif step < 0.9:
            until = now - random.choice([-kind.pane_ms, 0, 1, kind.pane_ms, 2 * kind.pane_ms])
            kept.prune(until)
            panes = {p: of for p, of in panes.items() if (p + 1) * kind.pane_ms > until}
        elif step < 0.95:
            kept.begin_extremes()
            since = len(values)
        else:
            kept = restored(kept)
        counted = [value for pane in sorted(panes) for value in panes[pane]]
        assert kept.average_by_time == (pytest.approx(math.fsum(counted) / len(counted), abs=1e-9)
                                        if counted else None)  # fmt: skip
        last = values[-kind.last_n :]
        assert kept.average == (pytest.approx(sum(last) / len(last), abs=1e-9) if last else None)
        extremes = values[since:]
        assert (kept.low, kept.high) == ((min(extremes), max(extremes)) if extremes else (None, None))
        assert (kept.count, kept.counts) == (len(values), [len(panes[p]) for p in sorted(panes)])


@pytest.mark.parametrize("seed", range(case_count(100)))
def test_what_is_told_is_that_of_a_plain_list(seed: int) -> None:
    run(seed)


def test_weights_are_those_of_pandas() -> None:
    random = Random(3)
    values = [random.gauss(2, 1) for _ in range(50)]
    kept, ewm = Weighted(), pd.Series(values).ewm(alpha=0.25)
    for i, value in enumerate(values):
        kept.add(value, i, 0.75, 1.0)
        assert kept.mean == pytest.approx(ewm.mean()[i])
        if i:
            assert kept.variance() == pytest.approx(ewm.var()[i])
