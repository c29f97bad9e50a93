"""Offers in a loop: the interval of ``uplift`` holds what offers add, and misses it where nobody answers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from millrace.errors import ChecksFailed
from millrace_apps.benchmarks import uplift
from millrace_apps.benchmarks.cli import app
from millrace_apps.benchmarks.uplift import Played, Shop, evaluate, play
from millrace_apps.generators.clickstream.visits import Visits

SHOP = Shop(days=28, event_rate=0.012, offer_uplift=0.75)


@pytest.fixture(scope="module")
def played() -> Played:
    return play(4, SHOP)


@pytest.mark.long
def test_the_interval_holds_what_offers_truly_add(played: Played) -> None:
    assert played.holds
    assert played.exposed > 80
    assert played.answered > 20
    assert played.truth > 0.5
    assert played.low is not None
    assert played.low > 0


@pytest.mark.long
def test_it_misses_the_truth_where_the_shoppers_answers_do_not_reach_the_app(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The truth says that they would have bought; nobody does."""
    monkeypatch.setattr(Visits, "come_back", lambda self, returns, *, shared: None)
    found = play(4, SHOP)
    assert found.truth > 0.5
    assert found.high is not None  # there is an interval, and it ends below
    assert found.high < found.truth
    assert not found.holds


def _played(seed: int, shop: Shop) -> Played:
    return Played(seed, 90, 0.3, 0.2, 0.1, 0.25 if seed == 2 else 0.4, seed != 2, 99, 50, 20, True)


class _Here:
    """Plays in this process."""

    def __init__(self, jobs: int, mp_context: object) -> None:
        assert jobs == 2

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None: ...

    map = staticmethod(map)


def test_the_report_counts_and_the_command_fails_where_too_few_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(uplift, "play", _played)
    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", _Here)
    said: list[str] = []
    report = evaluate([1, 2, 3], Shop(), jobs=2, say=said.append)
    assert (report["seeds"], report["told"], report["held"], report["above_nothing"]) == (3, 3, 2, 3)
    assert report["coverage"] == pytest.approx(2 / 3)
    assert said[1].startswith("2 played, 1 held")
    out = tmp_path / "r.json"
    done = CliRunner().invoke(app, ["uplift", "--seeds", "10", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert msgspec.json.decode(out.read_bytes())["held"] == 9
    done = CliRunner().invoke(app, ["uplift", "--seeds", "3", "--out", str(out)])
    assert isinstance(done.exception, ChecksFailed)
