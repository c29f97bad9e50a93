"""Control charts against scikit-learn and plain matrices, and what their limits promise."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from sklearn.decomposition import PCA

from millrace.errors import UserError
from millrace.operators import control_chart, cusum, fit_chart
from millrace.operators.control import Chart
from millrace.testing import TestDriver
from millrace.testing.properties import invariant, leaks
from tests.unit.millrace.operators.cases import DAY

SENSORS = ("flow", "power", "current", "pressure")


class Row(msgspec.Struct, frozen=True):
    """What four sensors say."""

    values: tuple[float | None, ...]
    mode: str = ""


def plant(n: int, seed: int = 1, gain: float = 1.0) -> np.ndarray:
    """Two causes behind four sensors, and noise."""
    rng = np.random.default_rng(seed)
    causes = rng.normal(size=(n, 2))
    mixed = causes @ np.array([[3.0, 40.0, 2.0, 0.1], [0.0, 10.0, -2.0, 0.4]]) * gain
    return mixed + rng.normal(size=(n, 4)) * np.array([0.2, 3.0, 0.2, 0.03]) + np.array([10, 500, 20, 3])


def test_statistics_are_those_of_the_covariance_matrix_and_of_scikit_learn() -> None:
    normal, others = plant(500), plant(200, seed=2) * 1.1
    chart = fit_chart({"": normal.tolist()}, SENSORS)
    z = (normal - normal.mean(axis=0)) / normal.std(axis=0)
    pca = PCA(n_components=0.85, svd_solver="full").fit(z)
    inverse = np.linalg.inv(np.atleast_2d(np.cov(pca.transform(z).T)))
    rest = np.eye(4) - pca.components_.T @ pca.components_
    for x in others:
        found = chart.read("", x.tolist())
        assert found is not None
        row = (x - normal.mean(axis=0)) / normal.std(axis=0)
        along = pca.transform(row[None])[0]
        assert found.t2 == pytest.approx(along @ inverse @ along, rel=1e-9)
        assert found.q == pytest.approx(row @ rest @ row, rel=1e-9)
        assert sum(found.contributions) == pytest.approx(1)
        known = chart.regimes[""]
        assert found.t2_share == pytest.approx(found.t2 / known.t2_limit)
        assert found.q_share == pytest.approx(found.q / known.q_limit)
        assert found.share == max(found.t2_share, found.q_share)


@pytest.mark.parametrize(("confidence", "most"), [(0.99, 0.03), (0.999, 0.008)])
def test_few_normal_rows_are_beyond_the_limits(confidence: float, most: float) -> None:
    chart = fit_chart({"": plant(3_000).tolist()}, SENSORS, confidence=confidence)
    beyond = [chart.read("", x) for x in plant(5_000, seed=9).tolist()]
    for which in ("t2_share", "q_share"):
        share = np.mean([getattr(found, which) > 1 for found in beyond])
        assert 0.2 * (1 - confidence) < share < most


def test_a_combination_that_never_was_is_found_by_q_and_its_sensor_named() -> None:
    """Each value has been there before; flow without power has not."""
    chart = fit_chart({"": plant(1_000).tolist()}, SENSORS)
    found = chart.read("", (13.0, 460.0, 22.0, 3.1))
    assert found is not None
    assert (found.statistic, found.q_share > 5) == ("q", True)
    most = max(range(4), key=found.contributions.__getitem__)
    assert SENSORS[most] == "power"
    far = chart.read("", tuple(np.array([10, 500, 20, 3]) + 8 * np.array([3.0, 40.0, 2.0, 0.1])))
    assert far is not None
    assert (far.statistic, far.t2_share > 1) == ("t2", True)


def test_each_regime_has_its_own_normal_and_an_unknown_one_none() -> None:
    chart = fit_chart({"slow": plant(400).tolist(), "fast": (3 * plant(400)).tolist()}, SENSORS)
    row = plant(1, seed=5)[0]
    slow, fast = chart.read("slow", row), chart.read("fast", row)
    assert slow is not None
    assert fast is not None
    assert slow.share < 1 < fast.share
    assert chart.read("off", row) is None
    with pytest.raises(ValueError, match="3 values for 4 sensors"):
        chart.read("slow", row[:3])


def test_a_chart_survives_being_written_and_read() -> None:
    chart = fit_chart({"": plant(100).tolist()}, SENSORS)
    assert msgspec.json.decode(msgspec.json.encode(chart), type=Chart) == chart


def test_a_sensor_that_never_moved_is_told_when_it_does() -> None:
    rows = plant(400)
    rows[:, 3] = 3.0
    chart = fit_chart({"": rows.tolist()}, SENSORS)
    row = rows[7].copy()
    assert chart.read("", row).share < 1.5  # type: ignore[union-attr]
    row[3] = 9.0
    found = chart.read("", row)
    assert found is not None
    assert (found.statistic, found.contributions.index(max(found.contributions))) == ("q", 3)
    assert found.share > 1


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([[1.0, 2.0, 3.0, 4.0]] * 9, "needs 10 rows"),
        ([[1.0, 2.0, 3.0]] * 20, "4 finite values"),
        ([[1.0, 2.0, 3.0, math.nan]] * 20, "4 finite values"),
        ([[1.0, 2.0, 3.0, 4.0]] * 20, "no sensor ever changes"),
        ([[1.0, 2.0], [1.0]] * 20, "fit_chart"),
    ],
)
def test_rows_that_say_nothing_are_refused(rows: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        fit_chart({"": rows}, SENSORS)


# -- as a process -----------------------------------------------------------------------------------

CHART = fit_chart({"on": plant(400).tolist()}, SENSORS)


def process(smooth: int = 3) -> Any:
    return control_chart(
        Row, "values", CHART, regime="mode", smooth=smooth, idle=DAY, key="machine",
        detector=cusum(learn=30, threshold=8.0),
    )  # fmt: skip


def rows(n: int = 120) -> list[tuple[str, int, Row]]:
    normal = plant(n, seed=6)
    normal[n * 3 // 4 :, 0] += 4.0
    return [("m1", i * 1_000, Row(tuple(x), "on")) for i, x in enumerate(normal.tolist())]


def test_a_process_tells_medians_contributions_and_the_change() -> None:
    driver = TestDriver(process())
    events = rows()
    for key, at, row in events:
        driver.send(key, row, at=at)
    driver.send("m1", Row((1.0, None, 2.0, 3.0), "on"), at=500_000)
    driver.send("m1", Row((1.0, 1.0, 2.0, 3.0), "off"), at=500_001)
    driver.drain()
    told = driver.values()
    assert len(told) == len(events)
    shares = [CHART.read("on", row.values) for _, _, row in events]  # type: ignore[arg-type]
    for i, record in enumerate(told):
        last = [s for s in shares[max(i - 2, 0) : i + 1] if s is not None]
        t2, q = (float(np.median([getattr(s, n) for s in last])) for n in ("t2_share", "q_share"))
        assert record.t2 == pytest.approx(t2 * record.t2_limit)
        assert record.q == pytest.approx(q * record.q_limit)
        assert record.score == pytest.approx(max(t2, q) / (1 + max(t2, q)))
        assert record.contributions[record.sensor] == max(record.contributions.values())
        assert record.machine == "m1"
    assert max(record.score for record in told[:85]) < 0.5 < min(record.score for record in told[95:])
    changes = [i for i, record in enumerate(told) if record.change == "up"]
    assert changes
    assert 90 <= changes[0] <= 95
    assert {record.sensor for record in told[95:]} == {"flow"}


def test_charts_do_not_hang_on_cuts_and_nothing_is_left() -> None:
    invariant(process(), rows(60), bound_ms=20_000, runs=4)
    assert leaks(process(), rows(60), bound_ms=20_000) == []


def test_what_is_no_chart_is_refused() -> None:
    with pytest.raises(UserError, match="needs a chart"):
        control_chart(Row, "values", "chart", detector=cusum(), idle=DAY)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs a detector"):
        control_chart(Row, "values", CHART, detector="cusum", idle=DAY)  # type: ignore[arg-type]
