"""The learned order while the shop is open: as it is offline, with any model or none."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from millrace.cli import build as commands
from millrace.models import serving
from millrace.models.boosted import BOOSTED
from millrace.models.exports import CHAMPION, Exports
from millrace.models.files import sha256_of
from millrace.models.manifest import Manifest
from millrace.models.tables import CannotTrain, TrainingTables
from millrace.testing import TestDriver
from millrace_apps.clickstream.recommend import learned, learner
from millrace_apps.clickstream.recommend.index import build
from millrace_apps.clickstream.recommend.learned import (
    INPUTS,
    MODEL_NAME,
    ORDERED,
    READER,
    NextModel,
    ordered,
)
from millrace_apps.clickstream.recommend.process import Recommender, Recommending
from millrace_apps.clickstream.recommend.ranker import candidates
from millrace_apps.clickstream.recommend.records import ListExample
from millrace_apps.clickstream.recommend.scoring import recommend
from tests.unit.apps.clickstream.test_recommender import GAP, MINUTE, Event, answers, look, send


def habits(seed: int, visits: int, *, apart: int = 50_000, items: int = 60) -> list[Event]:
    """Visits of four items, the last of which is the first again; several go on at once."""
    rnd, found = random.Random(seed), []
    for n in range(visits):
        three = [f"i{min(rnd.randrange(items), rnd.randrange(items))}" for _ in range(3)]
        begin = n * apart
        found += [look(begin + k * MINUTE + n % 997, f"b{n}", i) for k, i in enumerate([*three, three[0]])]
    return sorted(found, key=lambda e: e[1])


def trees(seed: int) -> Any:
    """Some order: what it says is of no concern, but that it says the same everywhere."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    rng = np.random.default_rng(seed)
    x = rng.normal(size=(900, len(INPUTS))) * np.array([1, 10, 1, 5, 1, 1, 1, 2, 1, 3, 1, 9, 3, 50, 1])
    y = rng.random(900) < 1 / (1 + np.exp(x[:, 1] - x[:, seed % 3]))
    return HistGradientBoostingClassifier(
        max_iter=20, max_leaf_nodes=8, min_samples_leaf=5, random_state=seed
    ).fit(x, y)


def export(folder: Path, version: int, estimator: Any) -> None:
    import skops.io

    data = skops.io.dumps(estimator)
    about = Manifest(
        name=MODEL_NAME, version=str(version), inputs=INPUTS, kind="recommender", size=len(data),
        sha256=sha256_of(data), trained_until_ms=version, features_version=learned.FEATURES_VERSION,
    )  # fmt: skip
    assert READER.trusted == BOOSTED
    Exports(str(folder), MODEL_NAME).publish(CHAMPION, about, data)


@pytest.fixture(autouse=True)
def no_holders() -> Any:
    """Every test is a worker that has just begun."""
    serving._holders.clear()
    yield
    serving._holders.clear()


def driver(model: NextModel | None, **told: Any) -> TestDriver:
    return TestDriver(Recommender(Recommending(model=model, **told)))


def offline(
    estimator: Any, ended: Sequence[Sequence[str]], visit: list[str], surface: Any
) -> dict[str, float]:
    """Item → what scikit-learn itself says of it, of an index made anew."""
    index = build(ended)
    items, rows = candidates(index, visit, surface, ORDERED)
    told = np.column_stack((rows, np.full(len(rows), float(surface == "discover"))))
    return dict(zip((str(index.names[i]) for i in items), estimator.decision_function(told), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_scores_in_the_stream_are_those_of_the_model_offline(seed: int, tmp_path: Path) -> None:
    estimator, events = trees(seed), habits(seed, 90)
    export(tmp_path, 7, estimator)
    target = driver(NextModel(str(tmp_path)), most=ORDERED)
    send(target, events)
    target.advance_watermark(events[-1][1] + 1)
    visits: dict[str, list[tuple[int, str]]] = {}
    for _, at, event in events:
        visits.setdefault(event.visitor, []).append((at, event.item))
    compared = 0
    for row in answers(target)[:: 3 + seed]:
        at = row.event_time_ms
        minute = at - at % MINUTE
        over = sorted((v[-1][0], name) for name, v in visits.items() if v[-1][0] + GAP < minute)
        ended = [[item for _, item in visits[name]] for _, name in over]
        visit = [item for then, item in visits[row.visitor_id] if then <= at]
        said = offline(estimator, ended, visit, row.surface)
        assert row.model == "7"
        assert row.items == sorted(row.items, key=lambda i: -said[i] if i in said else np.inf)
        first = [(i, s) for i, s in zip(row.items, row.scores, strict=True) if i in said]
        assert [s for _, s in first] == pytest.approx([said[i] for i, _ in first], abs=1e-6)
        compared += len(first)
    assert compared > 500


def test_without_a_model_lists_are_those_of_sessions_alike(tmp_path: Path) -> None:
    events, told = habits(1, 60), []
    for model in (None, NextModel(str(tmp_path / "nothing"))):
        target = driver(model, most=5)
        send(target, events)
        target.advance_watermark(events[-1][1] + 1)
        told.append(answers(target))
    assert told[0] == told[1]
    assert {row.model for row in told[0]} == {""}


def test_a_broken_model_changes_nothing(tmp_path: Path) -> None:
    export(tmp_path, 1, trees(0))
    for file in tmp_path.rglob("*.skops"):
        file.write_bytes(file.read_bytes()[:-10])
    index = build([["x", "y"], ["x", "z"]] * 9)
    found = ordered(index, ["x"], "resume", 5, NextModel(str(tmp_path)))
    assert (found.model, found.suggestions) == ("", recommend(index, ["x"], policy="resume", most=5))


def test_the_first_of_more_are_those_of_fewer(tmp_path: Path) -> None:
    export(tmp_path, 1, trees(2))
    rnd = random.Random(5)
    index = build([[f"i{rnd.randrange(90)}" for _ in range(rnd.randrange(1, 6))] for _ in range(400)])
    for _ in range(30):
        visit = [f"i{rnd.randrange(95)}" for _ in range(rnd.randrange(1, 5))]
        for surface in ("resume", "discover"):
            all_ = ordered(index, visit, surface, 70, NextModel(str(tmp_path)))  # type: ignore[arg-type]
            few = ordered(index, visit, surface, rnd.randrange(1, 70), NextModel(str(tmp_path)))  # type: ignore[arg-type]
            assert few.suggestions == all_.suggestions[: len(few.suggestions)]
            assert few.candidates == all_.candidates
            plain = recommend(index, visit, policy=surface, most=70)  # type: ignore[arg-type]
            assert all_.suggestions[ORDERED:] == plain[ORDERED:]
            assert {(s.item, s.why) for s in all_.suggestions} == {(s.item, s.why) for s in plain}


def test_a_model_is_exchanged_over_a_restart_and_while_lists_are_made(tmp_path: Path) -> None:
    events = habits(4, 60, apart=200_000)
    export(tmp_path, 1, trees(0))
    target = driver(NextModel(str(tmp_path), poll_s=0.05), most=5)
    third = len(events) // 3
    send(target, events[:third])
    target.advance_watermark(events[third - 1][1])
    export(tmp_path, 2, trees(1))
    target.restart()
    serving._holders.clear()  # a worker that has just begun
    send(target, events[third : 2 * third])
    target.advance_watermark(events[2 * third - 1][1])
    export(tmp_path, 3, trees(2))
    (holder,) = serving._holders.values()
    deadline = time.monotonic() + 60
    while holder.model is None or holder.model.version != "3":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    send(target, events[2 * third :])
    target.advance_watermark(events[-1][1] + 1)
    rows = answers(target)
    versions = [row.model for row in rows]
    assert versions == sorted(versions)
    assert set(versions) == {"1", "2", "3"}
    plain = driver(None, most=5)
    send(plain, events)
    plain.advance_watermark(events[-1][1] + 1)
    assert [(r.cause, r.surface) for r in rows] == [(r.cause, r.surface) for r in answers(plain)]


# -- learning from what the stream has kept -----------------------------------------------------------


def kept(events: list[Event], root: Path, **told: Any) -> list[ListExample]:
    """Let the stream run, and write the table of examples."""
    target = driver(None, surfaces=("resume",), **told)
    target.send_batch(events)
    target.advance_watermark(events[-1][1] + 1)
    rows: list[ListExample] = target.values("examples")
    table = pa.Table.from_pylist([msgspec.structs.asdict(row) for row in rows])
    write_deltalake(root / "tables" / learner.TABLE, table, mode="overwrite")
    return rows


def train(root: Path) -> Any:
    arguments = ["models", "clickstream", "train", "--model", "next", "--root", str(root)]
    return CliRunner().invoke(commands(), arguments)


@pytest.mark.long
def test_what_is_learned_from_the_stream_wins_and_orders_the_stream(tmp_path: Path) -> None:
    # So few that every one is among the first 20: what is learned is their order.
    events = habits(7, 700, items=15)
    kept(events, tmp_path, examples=1.0)
    found = train(tmp_path)
    assert found.exit_code == 0, found.output
    assert "over the order of sessions alike" in found.output
    promoted = CliRunner().invoke(
        commands(), ["models", "clickstream", "promote", "1", "--root", str(tmp_path)]
    )
    assert promoted.exit_code == 0, promoted.output
    folder = next(path.parent for path in tmp_path.rglob("champion.json")).parent
    after = 50 * 24 * 60 * MINUTE
    later = [
        (k, at + after, msgspec.structs.replace(e, at_ms=at + after)) for k, at, e in habits(8, 150, items=15)
    ]
    shares = []
    for model in (None, NextModel(str(folder))):
        target = driver(model, most=1, surfaces=("resume",))
        target.send_batch([*events[:800], *later])
        target.advance_watermark(later[-1][1] + 1)
        rows = [r for r in answers(target) if r.event_time_ms >= later[0][1] and r.visit == 3]
        first = {e.visitor: e.item for _, _, e in reversed(later)}
        shares.append(sum(r.items[0] == first[r.visitor_id] for r in rows) / len(rows))
    assert shares[1] > shares[0] + 0.2


def test_nothing_is_registered_where_nothing_wins(tmp_path: Path) -> None:
    rnd = random.Random(2)
    events = [look(n * 9_000 + k, f"b{n}", f"i{rnd.randrange(8)}") for n in range(900) for k in (0, 1_000)]
    kept(sorted(events, key=lambda e: e[1]), tmp_path, examples=1.0)
    found = train(tmp_path)
    assert isinstance(found.exception, CannotTrain)
    assert "does not win" in str(found.exception)


def test_browsers_that_are_drawn_are_learned_from_and_lists_go_with_the_next_click(
    tmp_path: Path,
) -> None:
    events = habits(3, 200)
    rows = kept(events, tmp_path, examples=0.3)
    visitors = {row.visitor_id for row in rows}
    assert 30 < len(visitors) < 90
    shown = learner.read_shown(TrainingTables(tmp_path / "tables", None))
    by = {(r.visitor_id, r.visit): r for r in rows if r.surface == "resume"}
    expected = {
        (r.event_time_ms, v): r.items.index(by[v, n + 1].item) if by[v, n + 1].item in r.items else -1
        for (v, n), r in by.items()
        if (v, n + 1) in by
    }
    assert {(s.at_ms, s.visitor): s.clicked for s in shown if s.surface == "resume"} == expected
    assert len(expected) > 80


def test_without_lists_training_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CannotTrain):
        learner.read_shown(TrainingTables(tmp_path / "tables", None))
    found = train(tmp_path)
    assert isinstance(found.exception, CannotTrain)
    assert "run the app" in str(found.exception)
