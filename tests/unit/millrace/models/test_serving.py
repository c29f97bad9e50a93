"""A model that is exchanged while it scores: the last good one goes on, whatever is wrong with the next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from millrace.models.exports import CHALLENGER, Exports, Found, NoExports
from millrace.models.loading import LoadedModel
from millrace.models.manifest import BrokenModel, Manifest
from millrace.models.serving import ModelHolder, ServedModel
from tests.unit.millrace.models.cases import INPUTS, data, forest, made, manifest


class Always:
    """A predictor that says one thing, until it says something else."""

    def __init__(self, said: Any) -> None:
        self.said = said

    def score(self, row: Any) -> float:
        if isinstance(self.said, Exception):
            raise self.said
        return float(self.said)

    def score_many(self, rows: Any) -> npt.NDArray[np.float64]:
        return np.full(len(rows), self.score(None))


class Models:
    """A folder of exports that can fail."""

    def __init__(self) -> None:
        self.aliases: dict[str, str] = {}
        self.broken: set[str] = set()
        self.says: dict[str, Any] = {}
        self.down = False
        self.loads: list[str] = []
        self.stamp = 0

    @property
    def current(self) -> str | None:
        return self.aliases.get("champion")

    @current.setter
    def current(self, version: str | None) -> None:
        if version is None:
            self.aliases.pop("champion", None)
        else:
            self.aliases["champion"] = version

    def find(self, alias: str) -> Found | None:
        if self.down:
            raise NoExports("down")
        version = self.aliases.get(alias)
        return None if version is None else Found(manifest(int(version), b"model"), (self.stamp,))

    def load(self, manifest: Manifest) -> LoadedModel:
        version = manifest.version
        self.loads.append(version)
        if version in self.broken:
            raise BrokenModel(f"{version} is broken")
        said = self.says.setdefault(version, float(version))
        return LoadedModel(version, INPUTS, said if isinstance(said, Always) else Always(said))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def rows(inputs: tuple[str, ...], count: int = 2) -> list[list[float]]:
    return [[float(row)] * len(inputs) for row in range(count)]


@pytest.fixture
def models() -> Models:
    return Models()


def holder(models: Models, clock: Clock) -> ModelHolder:
    return ModelHolder(models, poll_s=0.5, clock=clock)


def polled(held: ModelHolder, clock: Clock) -> str | None:
    clock.now += 0.5
    held.poll()
    return held.status().version


def test_without_a_model_there_is_no_score(models: Models) -> None:
    clock = Clock()
    held = holder(models, clock)
    assert polled(held, clock) is None
    assert held.score(rows) is None


def test_a_model_is_exchanged_when_its_alias_moves(models: Models) -> None:
    clock = Clock()
    held = holder(models, clock)
    models.current = "1"
    assert polled(held, clock) == "1"
    score = held.score(rows)
    assert score == ([1.0, 1.0], "1")
    models.current = "2"
    assert polled(held, clock) == "2"
    assert held.status().swaps == 2
    assert models.loads == ["1", "2"]


def test_the_folder_is_not_looked_into_more_often_than_told(models: Models) -> None:
    clock = Clock()
    held = holder(models, clock)
    polled(held, clock)
    models.current = "1"
    clock.now += 0.4
    held.poll()
    assert held.status().version is None


def test_the_last_good_model_stays_when_the_new_one_is_broken(models: Models) -> None:
    clock = Clock()
    held = holder(models, clock)
    models.current, models.broken = "1", {"2"}
    polled(held, clock)
    models.current = "2"
    assert [polled(held, clock) for _ in range(3)] == ["1", "1", "1"]
    status = held.status()
    assert (status.failures, models.loads) == (1, ["1", "2"])
    assert "2 is broken" in status.error
    models.current = "3"
    assert polled(held, clock) == "3"
    assert held.status().error == ""


def test_the_last_good_model_stays_while_the_folder_is_gone_and_each_failure_counts(models: Models) -> None:
    clock = Clock()
    held = holder(models, clock)
    models.current = "1"
    polled(held, clock)
    models.down = True
    assert [polled(held, clock) for _ in range(3)] == ["1", "1", "1"]
    assert held.status().failures == 3
    models.down = False
    assert polled(held, clock) == "1"
    assert held.status().error == ""


def test_an_alias_that_is_taken_away_leaves_the_rules_alone(models: Models) -> None:
    clock = Clock()
    held = holder(models, clock)
    models.current = "1"
    polled(held, clock)
    models.current = None
    assert polled(held, clock) is None


def test_a_file_that_was_broken_is_tried_again_once_it_is_written_anew(models: Models) -> None:
    clock = Clock()
    held = holder(models, clock)
    models.current, models.broken = "1", {"1"}
    assert [polled(held, clock) for _ in range(3)] == [None] * 3
    models.stamp, models.broken = 1, set()
    assert polled(held, clock) == "1"
    assert models.loads == ["1", "1"]
    assert held.status().error == ""


def test_the_status_tells_what_is_wanted_and_what_is_in_force(models: Models) -> None:
    clock = Clock()
    held = holder(models, clock)
    models.current, models.broken = "1", {"2"}
    polled(held, clock)
    models.current = "2"
    polled(held, clock)
    status = held.status()
    assert (status.version, status.wanted, status.trained_until_ms) == ("1", "2", 0)


def test_a_worker_that_begins_with_a_broken_champion_takes_the_one_before(models: Models) -> None:
    clock = Clock()
    held = ModelHolder(models, fallback="previous", poll_s=0.5, clock=clock)
    models.aliases, models.broken = {"champion": "3", "previous": "2"}, {"3"}
    assert [polled(held, clock) for _ in range(3)] == ["2"] * 3
    assert "3 is broken" in held.status().error
    assert models.loads == ["3", "2"]
    models.aliases["champion"] = "4"
    assert polled(held, clock) == "4"
    assert held.status().error == ""


def test_a_challenger_that_is_broken_is_not_the_champion_before(models: Models) -> None:
    clock = Clock()
    held = ModelHolder(models, CHALLENGER, poll_s=0.5, clock=clock)
    models.aliases, models.broken = {"challenger": "3", "previous": "2"}, {"3"}
    assert polled(held, clock) is None


@pytest.mark.parametrize("said", [ValueError("no such leaf"), float("nan"), float("inf")])
@pytest.mark.parametrize("count", [1, 5])
def test_a_model_that_fails_gives_way_to_the_one_before_and_is_not_taken_again(
    models: Models, said: Any, count: int
) -> None:
    clock = Clock()
    held = holder(models, clock)
    models.current, models.says = "1", {"2": said}
    polled(held, clock)
    models.current = "2"
    assert polled(held, clock) == "2"
    assert held.score(lambda inputs: rows(inputs, count)) == ([1.0] * count, "1")
    assert [polled(held, clock) for _ in range(3)] == ["1"] * 3
    status = held.status()
    assert (status.wanted, status.failures, models.loads) == ("2", 1, ["1", "2"])
    assert status.error
    models.current = "3"
    assert polled(held, clock) == "3"
    assert held.score(rows) == ([3.0, 3.0], "3")


def test_rows_that_no_model_can_score_get_no_score_and_change_no_model(models: Models) -> None:
    clock = Clock()
    held = holder(models, clock)
    for version in ("1", "2"):
        models.current = version
        polled(held, clock)

    def odd(_: tuple[str, ...]) -> list[list[float]]:
        raise OverflowError("too large")

    assert held.score(odd) is None
    assert held.score(rows) == ([2.0, 2.0], "2")
    assert held.status().failures == 1


def test_the_only_model_fails_and_the_job_goes_on(models: Models) -> None:
    clock = Clock()
    held = holder(models, clock)
    models.current, models.says = "1", {"1": Always(RuntimeError("odd"))}
    polled(held, clock)
    assert held.score(rows) is None
    models.says["1"].said = 0.5
    assert held.score(rows) == ([0.5, 0.5], "1")


def test_no_rows_have_no_scores(models: Models) -> None:
    clock = Clock()
    held = holder(models, clock)
    models.current = "1"
    polled(held, clock)
    assert held.score(lambda _: []) == ([], "1")


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_to_the_folder_a_holder_has_the_model_that_a_plain_account_says(seed: int) -> None:
    """10,000 random events in all: aliases move, files break and are mended, the folder goes and comes."""
    random, models, clock = Random(seed), Models(), Clock()
    held = ModelHolder(models, poll_s=0.5, clock=clock)
    expected: str | None = None
    refused: set[tuple[str, int]] = set()
    for _ in range(2_500):
        event = random.randrange(7)
        if event == 0:
            models.current = str(random.randrange(1, 6))
        elif event == 1:
            models.broken ^= {str(random.randrange(1, 6))}
        elif event == 2:
            models.stamp += 1
        elif event == 3:
            models.down = random.random() < 0.3
        elif event == 4 and random.random() < 0.2:
            models.current = None
        found = polled(held, clock)
        now = models.current
        if not models.down:
            if now is None:
                expected, refused = None, set()
            elif now == expected:
                refused = set()
            elif (now, models.stamp) not in refused:
                if now in models.broken:
                    refused = {(now, models.stamp)}
                else:
                    expected, refused = now, set()
        else:
            refused = set()
        assert found == expected
        assert held.score(rows) == (None if expected is None else ([float(expected)] * 2, expected))


def test_an_alias_that_is_set_is_in_force_within_two_seconds(tmp_path: Path) -> None:
    """By the clock of the machine: a real folder, a real thread that looks into it."""
    import time

    exports = Exports(str(tmp_path), "wear")
    exports.publish("champion", *made(1))
    served = ServedModel(exports)
    scores = served.score(rows)
    assert scores is not None
    assert scores.version == "1"
    exports.publish("champion", *made(2))
    began = time.monotonic()
    while served.status().version != "2":
        assert time.monotonic() - began < 2.0
        time.sleep(0.01)
    x, _ = data(5)
    found = served.score(lambda _: x.tolist())
    assert found is not None
    np.testing.assert_allclose(
        found.values, np.clip(forest(2).predict_proba(x)[:, 1], 1e-4, 1 - 1e-4), atol=1e-9
    )
    assert served.holder() is ServedModel(Exports(str(tmp_path), "wear")).holder(), "one for a worker"


class Exchanged(Always):
    """A predictor in the middle of whose scoring another version gets the alias."""

    def __init__(self, version: str, then: Callable[[], None]) -> None:
        super().__init__(float(version))
        self._then = then

    def score(self, row: Any) -> float:
        self._then()
        return super().score(row)


def test_all_rows_of_a_call_are_scored_by_one_model_while_it_is_exchanged(models: Models) -> None:
    """10,000 times, in the middle of the call."""
    clock, random = Clock(), Random(5)
    held = holder(models, clock)

    def then() -> None:
        models.current = str(random.randrange(1, 6))
        polled(held, clock)

    models.says = {str(n): Exchanged(str(n), then) for n in range(1, 6)}
    models.current = "1"
    polled(held, clock)
    for _ in range(10_000):
        before = held.status().version
        scores = held.score(rows)
        assert scores is not None
        assert (scores.values, scores.version) == ([float(before or 0)] * 2, before)
    assert held.swaps > 5_000


def test_scores_come_with_the_model_that_gave_them_though_it_is_exchanged_between(
    models: Models, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock, left = Clock(), [2]
    held = holder(models, clock)

    def then() -> None:
        if left[0]:
            left[0] -= 1
            models.current = str(int(models.current or 0) + 1)
            polled(held, clock)

    models.says = {str(n): Exchanged(str(n), then) for n in range(1, 9)}
    models.current = "1"
    polled(held, clock)
    served = ServedModel(Exports(str(tmp_path), "exchanged"))
    monkeypatch.setattr(ServedModel, "holder", lambda _: held)
    left[0] = 1
    found = served.scored(rows)
    assert found is not None
    assert (found[0].version, found[1].version, found[0].values) == ("2", "2", [2.0, 2.0])
    left[0] = 100  # whenever it is asked: nothing is said rather than of two models
    models.says = {str(n): Exchanged(str(n), then) for n in range(1, 99)}
    assert served.scored(rows) is None


def test_a_folder_that_is_not_there_yet_is_no_model(tmp_path: Path) -> None:
    served = ServedModel(Exports(str(tmp_path / "nothing"), "wear"))
    assert served.score(rows) is None
    assert "no model has been exported" in served.status().error
    assert served.trained_until_ms() == 0
