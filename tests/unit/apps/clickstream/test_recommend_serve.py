"""Next items over HTTP: of committed batches, by an index that follows them; as one made anew would say."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.chaos.hostile import Message
from millrace.checkpoints.committed import CommittedState
from millrace.runtime.settings import load_settings
from millrace.serving.questions import NotFound, Refused, questions_of
from millrace.topology import Input, read
from millrace_apps.clickstream.app import app
from millrace_apps.clickstream.recommend import process as recommending
from millrace_apps.clickstream.recommend.learned import NextModel
from millrace_apps.clickstream.recommend.log import SEGMENT
from millrace_apps.clickstream.recommend.process import Recommender, Recommending
from millrace_apps.clickstream.recommend.serve import Follower, next_items
from millrace_apps.clickstream.settings import ClickstreamSettings
from tests.unit.apps.clickstream.test_recommend_learned import export, no_holders, trees
from tests.unit.apps.clickstream.test_recommender import HOUR, MINUTE, Event, look, made
from tests.unit.millrace.serving.memory_query import MemoryQuery

assert no_holders


def query_of(root: Path, **told: Any) -> MemoryQuery:
    sets = ("spark.key_groups=4", "stream.out_of_orderness=0s")
    settings = load_settings(ClickstreamSettings, app="clickstream", overrides=sets, env={})
    looks = read(Input("looks", key="shop", event_time="at_ms"), control="control")
    topology = looks.process(Recommender(Recommending(**told)))
    return MemoryQuery(root / "app", topology, settings, "looks")


def run(query: MemoryQuery, events: list[Event]) -> list[dict[str, Any]]:
    rows = [Message("looks", None, msgspec.json.encode(e), 0) for _, _, e in events]
    return [row for output, row in query.run(rows) if output == "main"]


def asked(state: CommittedState, follower: Follower, visitor: str, **more: str) -> dict[str, Any]:
    found: dict[str, Any] = next_items(state, {"visitor": visitor, **more}, follower)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_the_learned_order_is_that_of_the_stream_in_the_arms_that_have_it(seed: int, tmp_path: Path) -> None:
    export(tmp_path, 7, trees(seed))
    model = NextModel(str(tmp_path))
    query = query_of(tmp_path, most=5, model=model, control=0.2, unlearned=0.3)
    events, rnd = [e for e in made(seed, number=180, visitors=12) if not e[2].bought], random.Random(seed)
    state, follower, compared = None, Follower(), set()
    while events:
        part, events = events[: (n := rnd.randrange(1, 12))], events[n:]
        told = {(r["visitor_id"], r["surface"]): r for r in run(query, part)}
        if state is None:
            state = CommittedState(query.writer.checkpoint)
        state.move_to()
        for (visitor, surface), row in told.items():
            answer = next_items(state, {"visitor": visitor, "surface": surface}, follower, model, 5)
            if (row["sessions"], row["visit"]) == (answer["sessions"], answer["visit"]):
                compared.add(row["arm"])
                found = [(one["item"], one["why"], one["score"]) for one in answer["items"]]
                assert found == list(zip(row["items"], row["why"], row["scores"], strict=True))
                assert answer["model"] == row["model"] == ("7" if row["arm"] == "learned" else "")
    assert compared == {"learned", "unlearned", "popular"}


@pytest.mark.parametrize("seed", range(6))
def test_what_follows_the_batches_says_what_the_stream_and_an_index_made_anew_say(
    seed: int, tmp_path: Path
) -> None:
    query = query_of(tmp_path, most=5)
    # What is bought after a list was made is in the answer's list no more.
    events, rnd = [e for e in made(seed, number=150) if not e[2].bought], random.Random(seed)
    state, follower, compared = None, Follower(), 0
    while events:
        part, events = events[: (n := rnd.randrange(1, 12))], events[n:]
        told = {(r["visitor_id"], r["surface"]): r for r in run(query, part)}
        if state is None:
            state = CommittedState(query.writer.checkpoint)
        state.move_to()
        for visitor in ("b0", "b3", "nobody"):
            for surface in ("resume", "discover"):
                answer = asked(state, follower, visitor, surface=surface, most="5")
                assert answer == asked(state, Follower(), visitor, surface=surface, most="5")
                row = told.get((visitor, surface))
                # Visits may have ended after it, or a request to forget it may have come.
                if row is not None and (row["sessions"], row["visit"]) == (
                    answer["sessions"],
                    answer["visit"],
                ):
                    compared += 1
                    assert [one["item"] for one in answer["items"]] == row["items"]
                    assert [one["why"] for one in answer["items"]] == row["why"]
    assert compared > 10


def test_segments_and_a_log_that_was_cut_are_followed(tmp_path: Path) -> None:
    query = query_of(tmp_path, keep=2 * SEGMENT)
    rnd, state, follower = random.Random(1), None, Follower()
    sizes = []
    for batch in range(14):
        begin = batch * 3 * HOUR
        part = []
        for n in range(80):
            name = f"{batch}.{n}"
            part += [look(begin + n * 1000 + k, name, f"i{rnd.randrange(30)}") for k in (0, 500)]
        run(query, [*part, look(begin + 2 * HOUR, f"last{batch}", "i0")])
        if state is None:
            state = CommittedState(query.writer.checkpoint)
        state.move_to()
        answer = asked(state, follower, f"last{batch}")
        assert answer == asked(state, Follower(), f"last{batch}")
        sizes.append(answer["sessions"])
    assert max(sizes) > 2 * SEGMENT
    assert sizes[-1] < max(sizes)


def test_a_log_that_goes_on_otherwise_from_a_savepoint_is_not_taken_for_the_same(tmp_path: Path) -> None:
    """Up to the third visit both say the same; then the one is as long as the other, or longer."""
    follower = Follower()
    for number, (last, count) in enumerate((("y", 5), ("z", 5), ("y", 7))):
        query = query_of(tmp_path / str(number), most=3)
        visits = [(f"a{n}", "x" if n < 3 else last) for n in range(count)]
        run(query, [look(n * 1000, name, item) for n, (name, item) in enumerate(visits)])
        run(query, [look(2 * HOUR, "b", "x")])
        state = CommittedState(query.writer.checkpoint)
        answer = asked(state, follower, "b")
        assert answer["sessions"] == count
        assert answer == asked(state, Follower(), "b")
        assert {one["item"] for one in answer["items"]} == {"x", last}


def test_of_a_long_visit_the_newest_items_count_as_in_the_stream(tmp_path: Path) -> None:
    query = query_of(tmp_path, most=3)
    run(query, [look(n * 1000, f"a{n}", item) for n, item in enumerate("xxyyz")])
    looks = ["x", *(f"i{n}" for n in range(99)), "y"]
    run(query, [look(HOUR + n * 1000, "b", item) for n, item in enumerate(looks[:-1])])
    run(query, [look(HOUR + 99_500, "c", "x")])  # time goes on, so that all before it is known
    answer = asked(CommittedState(query.writer.checkpoint), Follower(), "b", item="y", surface="discover")
    rows = run(query, [look(HOUR + 100_000, "b", "y"), look(HOUR + 101_000, "c", "x")])
    row = next(r for r in rows if (r["item"], r["surface"], r["visit"]) == ("y", "discover", 100))
    assert (answer["visit"], [one["item"] for one in answer["items"]]) == (100, row["items"])
    assert "x" in row["items"]


def test_who_is_not_known_gets_what_is_popular_and_the_item_is_not_used(tmp_path: Path) -> None:
    query = query_of(tmp_path)
    run(query, [look(n * 1000, f"a{n}", item) for n, item in enumerate("xxyxz")])
    run(query, [look(HOUR, "b", "y"), look(HOUR + 1, "c", "y")])
    state = CommittedState(query.writer.checkpoint)
    answer = asked(state, Follower(), "nobody", item="z")
    assert [(one["item"], one["why"]) for one in answer["items"]] == [
        ("x", "popular"), ("y", "popular"), ("z", "popular"),
    ]  # fmt: skip
    known = asked(state, Follower(), "b", item="z", surface="discover")
    assert (known["visit"], [one["item"] for one in known["items"]]) == (2, ["x"])


@pytest.mark.parametrize(
    ("told", "why"),
    [({"surface": "wall"}, "surface is one of"), ({"most": "0"}, "from 1 to"), ({"most": "x"}, "from 1")],
)
def test_what_cannot_be_asked_is_said(told: dict[str, str], why: str, tmp_path: Path) -> None:
    query = query_of(tmp_path)
    run(query, [look(0, "a", "x")])
    with pytest.raises(Refused, match=why):
        asked(CommittedState(query.writer.checkpoint), Follower(), "a", **told)


def test_an_app_without_next_items_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = query_of(tmp_path)
    run(query, [look(0, "a", "x"), look(MINUTE, "b", "y")])
    state = CommittedState(query.writer.checkpoint)
    assert recommending.SWEEP
    monkeypatch.setattr("millrace_apps.clickstream.recommend.serve._PROCESS", "Another")
    with pytest.raises(NotFound, match=r"recommend\.on"):
        asked(state, Follower(), "a")


def test_the_app_has_the_question() -> None:
    settings = load_settings(ClickstreamSettings, app="clickstream", overrides=(), env={})
    assert set(questions_of(app, settings)) == {"next_items"}
