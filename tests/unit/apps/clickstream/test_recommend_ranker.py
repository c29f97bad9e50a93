"""A learned order of candidates: what it knows, when it is kept, and that it names nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace_apps.clickstream.recommend.evaluate import _clicks_in_time
from millrace_apps.clickstream.recommend.files import Session, read_sessions
from millrace_apps.clickstream.recommend.index import SessionIndex, build
from millrace_apps.clickstream.recommend.ranker import (
    CANDIDATES,
    FEATURES,
    LEAST_EXAMPLES,
    Example,
    Ranker,
    candidates,
    clicks_as_they_came,
    first_learned,
    learn_order,
)
from millrace_apps.clickstream.recommend.scoring import POLICIES, recommend
from tests.unit.apps.clickstream.test_recommend_evaluate import COLUMNS, MINUTE, clicks, run, some_clicks


def habits(seed: int, sessions: int) -> list[list[str]]:
    """Three items of many, and then the first of them again."""
    draws = random.Random(seed)
    found = []
    for _ in range(sessions):
        three = [f"i{draws.randrange(60)}" for _ in range(3)]
        found.append([*three, three[0]])
    return found


def unlike(seed: int, sessions: int) -> list[list[str]]:
    """What comes next hangs on nothing."""
    draws = random.Random(seed)
    return [[f"i{draws.randrange(8)}" for _ in range(3)] for _ in range(sessions)]


@pytest.mark.parametrize("policy", POLICIES)
def test_without_a_model_the_list_is_that_of_the_sessions_alike(policy: str) -> None:
    draws = random.Random(3)
    index = build([[f"i{draws.randrange(90)}" for _ in range(draws.randrange(1, 6))] for _ in range(300)])
    for _ in range(100):
        visit = [f"i{draws.randrange(95)}" for _ in range(draws.randrange(1, 5))]
        plain = recommend(index, visit, policy=policy)  # type: ignore[arg-type]
        ours = Ranker({}).recommend(index, visit, policy=policy)  # type: ignore[arg-type]
        assert [s.item for s in ours] == [s.item for s in plain]
        assert {s.why for s in ours} == {"unlearned"}


def test_what_is_known_of_a_candidate_by_hand() -> None:
    index = build([["shoe", "sock", "shoe"], ["sock", "lace"], ["lace"]])
    items, rows = candidates(index, ["hat", "sock", "shoe"], "resume")
    told = [dict(zip(FEATURES, row, strict=True)) for row in rows]
    known = {index.names[i]: row for i, row in zip(items, told, strict=True)}
    assert set(known) == {"shoe", "sock", "lace"}
    shoe, lace = known["shoe"], known["lace"]
    assert (shoe["age"], known["sock"]["age"], lace["age"]) == (0, 1, -1)
    assert (shoe["seen"], lace["seen"], shoe["visit"]) == (1, 0, 3)
    assert (shoe["repeats"], lace["repeats"]) == (0.5, 1.0)  # one session of two clicks; two of one each
    assert (shoe["since"], lace["since"]) == (3, 1)
    assert (known["sock"]["rule"], lace["rule"]) == (1.0, 0.0)  # after shoe came sock, and never lace
    assert lace["rule_before"] == 1.0  # after sock
    assert shoe["sessions"] == 1
    assert [row["rank"] for row in known.values()] == [0, 1, 2]


def test_an_order_that_wins_is_kept_and_puts_first_what_is_clicked() -> None:
    sessions = habits(1, 2_000)
    ranker, judged = learn_order(clicks_as_they_came(sessions, 1_000), policies=("resume",))
    assert judged["resume"].kept
    assert judged["resume"].less_unlearned["mrr20"][0] > 0.05
    index = build(sessions)
    visits = [session[:3] for session in habits(2, 200)]
    mine = sum(ranker.recommend(index, visit, policy="resume")[0].item == visit[0] for visit in visits)
    theirs = sum(recommend(index, visit, policy="resume")[0].item == visit[0] for visit in visits)
    assert mine > 150 > 50 > theirs
    assert {s.why for s in ranker.recommend(index, visits[0], policy="resume")} == {"learned"}
    assert {s.why for s in ranker.recommend(index, visits[0], policy="discover")} == {"unlearned"}


def test_where_there_is_nothing_to_learn_nothing_is_kept() -> None:
    kept = 0
    for seed in range(3):
        _, judged = learn_order(clicks_as_they_came(unlike(seed, 1_500), 100), policies=("discover",))
        kept += judged["discover"].kept
        assert judged["discover"].judged_by > 100
    assert not kept


def test_of_few_clicks_nothing_is_learned_and_that_is_said() -> None:
    ranker, judged = learn_order(clicks_as_they_came(habits(1, 100), 100))
    assert all(
        not j.kept and 0 < j.learned_from < LEAST_EXAMPLES and not j.judged_by for j in judged.values()
    )
    index = build(habits(1, 100))
    assert len(ranker.recommend(index, ["i1"], most=2)) == 2
    assert len(candidates(index, ["i1"], "resume")[0]) == CANDIDATES


def test_nothing_is_learned_from_before_it_was_known(tmp_path: Path) -> None:
    """Each click is asked of the sessions that had ended for a gap by then, and of no other."""
    sessions = read_sessions([clicks(tmp_path / "c.parquet", some_clicks(5, 300))], COLUMNS)
    gap, checked = 30 * MINUTE, 0
    of = {id(items): s for s in sessions for items in [s.items]}
    assert len(of) == len(sessions)
    for index, at in examples(sessions, gap):
        assert index == sum(s.times[-1] + gap < at for s in sessions)
        checked += 1
    assert checked > 100


def examples(sessions: list[Session], gap: int) -> Iterator[tuple[int, int]]:
    """Yield the sessions of the index and the time of each example: names tell which click it is."""
    named = [Session(s.name, [(s.name, n) for n in range(len(s.items))], s.times) for s in sessions]
    times = {(s.name, n): at for s in named for n, at in enumerate(s.times)}
    for index, (visit, target) in _clicks_in_time(named, 10, gap):
        assert times[target] >= times[visit[-1]]  # type: ignore[index]
        yield index.sessions, times[visit[-1]]  # type: ignore[index]


def test_sessions_by_age_are_asked_one_after_the_other() -> None:
    sessions = habits(4, 10)
    told: list[tuple[int, Example]] = [(i.sessions, e) for i, e in clicks_as_they_came(sessions, 5)]
    assert told == [(n, (sessions[n][:at], sessions[n][at])) for n in range(5, 10) for at in (1, 2, 3)]
    assert first_learned([]) == 0
    assert not list(clicks_as_they_came([], 5))
    assert SessionIndex(5).sessions == 0


def test_the_command_says_what_was_learned_and_whether_it_is_kept(tmp_path: Path) -> None:
    train = clicks(tmp_path / "train.parquet", some_clicks(1, 600))
    test = clicks(tmp_path / "test.parquet", some_clicks(2, 30, first=1000))
    assert run("--train", train, "--test", test, "--learn", "--out", tmp_path / "a.json") is None
    assert run("--train", train, "--test", test, "--out", tmp_path / "b.json") is None
    learned, plain = (json.loads((tmp_path / f"{name}.json").read_text()) for name in "ab")
    assert "learned" not in plain
    for policy in POLICIES:
        assert learned[policy] == plain[policy]
        mine = learned["learned"][policy]
        assert mine["queries"] == plain[policy]["queries"]
        assert mine["training"]["learned_from"] >= LEAST_EXAMPLES
        if not mine["training"]["kept"]:
            assert mine["less_unlearned"]["hr20"] == [0.0, 0.0, 0.0]
            assert mine["mrr20"] == plain[policy]["mrr20"]
    assert set(learned["learned_ms"]) == {"p50", "p90", "p99"}
