"""Next items: the index and the scores against plain dictionaries, over random sessions."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict

import pytest

from millrace_apps.clickstream.recommend.followers import Followers
from millrace_apps.clickstream.recommend.index import SessionIndex, build
from millrace_apps.clickstream.recommend.measures import paired_bootstrap, quality, rank_of
from millrace_apps.clickstream.recommend.scoring import (
    POLICIES,
    Parameters,
    Policy,
    Suggestion,
    ranked,
    reason_of,
    recommend,
    score,
)
from tests.cases import case_count


def expected_scores(
    sessions: list[list[str]], visit: list[str], m: int, with_: Parameters
) -> dict[str, float]:
    """Return scores as the papers say them, session by session, from nothing but the list of sessions."""
    known = {i for s in sessions for i in s}
    # The visit's items by their last position, newest first; unknown ones keep their place in the count.
    distinct = list(dict.fromkeys(reversed(visit)))[: with_.last]
    own = [(age, i) for age, i in enumerate(distinct) if i in known]
    length = max((age for age, _ in own), default=0) + 1
    alike: dict[int, float] = defaultdict(float)
    nearest: dict[int, int] = {}
    for age, item in own:
        having = [n for n in range(len(sessions) - 1, -1, -1) if item in sessions[n]][:m]
        for n in having:
            alike[n] += (length - age) / length if with_.decay == "linear" else 1 / (age + 1)
            nearest.setdefault(n, age)
    best = sorted(alike, key=lambda n: (-round(alike[n], 12), -n))[: with_.k]
    scores: dict[str, float] = defaultdict(float)
    for n in best:
        for item in set(sessions[n]):
            scores[item] += alike[n] * max(1 - with_.match_decay * nearest[n], 0)
    for item in scores:
        seen = sum(item in s for s in sessions)
        scores[item] *= 1 + with_.idf * math.log(len(sessions) / seen)
    top = max(scores.values(), default=0) or 1
    scores = defaultdict(float, {i: value / top for i, value in scores.items()})
    rules: dict[str, float] = Counter()
    for s in sessions:
        for at, item in enumerate(s):
            for back in range(1, min(10, at) + 1):
                if s[at - back] == visit[-1] != item:
                    rules[item] += 1 / back
    for item, value in rules.items():
        scores[item] += with_.rules * value / max(rules.values())
    for age, item in own:
        scores[item] += with_.own * with_.own_decay**age
    return scores


def random_case(seed: int) -> tuple[random.Random, list[list[str]], list[str]]:
    of = random.Random(seed)
    items = [f"i{n}" for n in range(of.choice((3, 8, 25)))]
    sessions = [of.choices(items, k=of.randint(1, 14)) for _ in range(of.randint(1, 40))]
    return of, sessions, of.choices([*items, "new"], k=of.randint(1, 14))


@pytest.mark.parametrize("seed", range(case_count(300)))
def test_scores_are_those_of_plain_dictionaries(seed: int) -> None:
    of, sessions, visit = random_case(seed)
    m = of.choice((1, 2, 5, 100))
    with_ = Parameters(
        of.choice((1, 3, 9)), of.choice((1, 4, 100)), of.choice(("linear", "inverse")),
        of.choice((0.0, 0.1, 0.6)), of.choice((0.0, 1.0)), of.choice((0.0, 0.3)), of.choice((0.0, 1.5)), 0.5,
    )  # fmt: skip
    index = build(sessions, m)
    items, found = score(index, visit, with_)
    named = {index.names[i]: value for i, value in zip(items.tolist(), found.tolist(), strict=True)}
    expected = expected_scores(sessions, visit, m, with_)
    # A candidate with nothing for it is none: weights of 0 leave it out.
    assert {i: v for i, v in named.items() if v} == pytest.approx(
        {i: v for i, v in expected.items() if v}, abs=1e-9
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(case_count(60)))
def test_a_list_is_the_best_that_the_policy_allows(seed: int, policy: str) -> None:
    of, sessions, visit = random_case(seed)
    index, most = build(sessions, 50), of.choice((1, 5, 20))
    found = ranked(index, visit, score(index, visit, Parameters()), policy, most)  # type: ignore[arg-type]
    names = [index.names[i] for i, _ in found]
    barred = {"resume": set(), "not_current": {visit[-1]}, "discover": set(visit)}[policy]
    known = {i for s in sessions for i in s}
    assert len(names) == len(set(names)) == min(most, len(known - barred))
    assert not barred & set(names)
    expected = {
        i: v for i, v in expected_scores(sessions, visit, 50, Parameters()).items() if i not in barred
    }
    best = sorted(expected.values(), reverse=True)[:most]
    assert [s for _, s in found][: len(best)] == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("seed", range(case_count(40)))
def test_an_index_that_grew_equals_one_that_was_built_at_once(seed: int) -> None:
    of, sessions, visit = random_case(seed)
    grown, m = SessionIndex(3), 3
    for n, items in enumerate(sessions, 1):
        grown.add(items)
        whole = build(sessions[:n], m)
        if of.random() < 0.3:  # asked in between, as a stream is
            assert recommend(grown, visit) == recommend(whole, visit)
    assert recommend(grown, visit, policy="discover") == recommend(
        build(sessions, m), visit, policy="discover"
    )


def test_an_empty_index_and_an_unknown_item_end_in_what_there_is() -> None:
    assert recommend(SessionIndex(), ["a"]) == []
    index = build([["a", "b"], ["b", "c"]])
    assert [(s.item, s.why) for s in recommend(index, ["new"])] == [
        ("b", "popular"), ("a", "popular"), ("c", "popular"),
    ]  # fmt: skip


def test_each_suggestion_says_what_spoke_for_it() -> None:
    index = build([["a", "b"], ["a", "b"], ["x", "y"], ["z"]])
    found = {s.item: s.why for s in recommend(index, ["a"])}
    assert found == {"a": "visit", "b": "sessions", "x": "popular", "y": "popular", "z": "popular"}


def test_a_session_counts_its_items_once_and_rules_count_their_distance() -> None:
    index = build([["a", "b", "a", "c"]])
    assert index.items_of(0) == [0, 1, 2]
    rules = index.rules(0)
    assert (len(rules), rules.get(1), rules.get(2)) == (2, 1.0, pytest.approx(1 + 1 / 3))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(case_count(15)))
def test_of_what_follows_a_popular_item_as_much_is_asked_as_can_be_in_a_list(
    seed: int, policy: Policy
) -> None:
    """Lists are those of all that ever followed, though most of it is left out."""
    of = random.Random(seed)
    items = of.choice((60, 300, 1_500))
    sessions = [
        ["hot", *(f"i{of.randrange(items)}" for _ in range(of.randrange(1, 5)))] for _ in range(1_500)
    ]
    index, left_out = build(sessions, of.choice((3, 40))), 0
    for _ in range(8):
        visit = [f"i{of.randrange(items)}" for _ in range(of.randrange(3))] + ["hot"]
        most, with_ = (
            of.choice((1, 5, 20)),
            Parameters(last=3, k=of.choice((2, 10)), rules=of.choice((0.3, 3.0))),
        )
        all_, some = score(index, visit, with_), score(index, visit, with_, most=most)
        left_out += len(all_[0]) - len(some[0])
        found = ranked(index, visit, all_, policy, most)
        assert recommend(index, visit, policy=policy, most=most, with_=with_) == [
            Suggestion(index.names[i], value, reason_of(index, visit, all_)(i)) for i, value in found
        ]
    assert left_out > 100 or items == 60


@pytest.mark.parametrize("seed", range(case_count(20)))
def test_followers_are_asked_for_as_a_dictionary_would_be(seed: int) -> None:
    of, followers, plain = random.Random(seed), Followers(), dict[int, float]()
    for _ in range(of.randrange(1, 400)):
        item, weight = of.randrange(90), 1.0 / of.randrange(1, 4)
        followers.add(item, weight)
        plain[item] = plain.get(item, 0.0) + weight
    in_order = sorted(plain, key=lambda i: (-plain[i], i))
    most = of.randrange(1, 100)
    assert followers.best(most) == in_order[:most]
    chosen = dict(zip(*(x.tolist() for x in followers.top(most)), strict=True))
    assert set(in_order[:most]) <= set(chosen)
    assert all(plain[i] == pytest.approx(v) for i, v in chosen.items())
    assert (len(followers), followers.strongest) == (len(plain), max(plain.values()))
    assert [followers.get(i) for i in range(100)] == [plain.get(i, 0.0) for i in range(100)]
    assert [i in followers for i in range(100)] == [i in plain for i in range(100)]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_clicked_most_is_in_order_and_of_equals_the_first(seed: int) -> None:
    of = random.Random(seed)
    sessions = [[f"i{of.randrange(700)}"] for _ in range(3_000)]
    index, first = build(sessions), {name: n for n, name in enumerate(dict.fromkeys(s[0] for s in sessions))}
    clicks = Counter(s[0] for s in sessions)
    wanted = sorted(first, key=lambda name: (-clicks[name], first[name]))
    for most in (5, 300, 2_000):
        assert [index.names[i] for i in index.popular(most)] == wanted[:most]


@pytest.mark.parametrize("m", [0, -1])
def test_an_item_keeps_at_least_one_session(m: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        SessionIndex(m)


def test_only_the_first_twenty_count() -> None:
    found = [f"i{n}" for n in range(30)]
    assert (rank_of("i19", found), rank_of("i20", found)) == (20, 0)
    assert quality([20, 0]).mrr20 == 0.025


def test_the_bootstrap_pairs_queries() -> None:
    mine, theirs = [1, 2, 0, 4] * 50, [1, 2, 0, 0] * 50
    found = paired_bootstrap(mine, theirs)
    assert found["hr20"][0] == 0.25
    assert 0.15 < found["hr20"][1] < 0.25 < found["hr20"][2] < 0.35
    with pytest.raises(ValueError, match="paired"):
        paired_bootstrap([1], [1, 2])


@pytest.mark.parametrize("seed", range(case_count(60)))
def test_sessions_that_no_item_keeps_are_dropped_and_no_list_is_another(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, _, _ = random_case(seed)
    items, m = [f"i{n}" for n in range(6)], of.choice((1, 2, 4))
    sessions = [of.choices(items, k=of.randint(1, 6)) for _ in range(120)]
    monkeypatch.setattr("millrace_apps.clickstream.recommend.index._LEAST_GONE", 1 << 40)
    whole = SessionIndex(m)
    monkeypatch.setattr("millrace_apps.clickstream.recommend.index._LEAST_GONE", of.choice((0, 5)))
    small = SessionIndex(m)
    for number, own in enumerate(sessions):
        small.add(own)
        with monkeypatch.context() as patch:
            patch.setattr("millrace_apps.clickstream.recommend.index._LEAST_GONE", 1 << 40)
            whole.add(own)
        if number % 9 == 0:
            visit = of.choices([*items, "new"], k=3)
            for policy in POLICIES:
                assert recommend(small, visit, policy=policy) == recommend(whole, visit, policy=policy)
    kept = {s for item in range(6) for s in small.newest(item).tolist()}
    assert small.sessions == whole.sessions == 120
    assert [small.items_of(s) for s in kept] == [whole.items_of(s) for s in kept]
    assert whole.entries == sum(len(set(own)) for own in sessions)
    needed = sum(len(whole.items_of(s)) for s in kept)
    assert needed <= small.entries <= 2 * needed + 20
    assert small.entries < whole.entries / 2


def test_an_item_keeps_its_strongest_followers() -> None:
    draws, few, all_ = random.Random(5), Followers(20), Followers(1 << 40)
    for n in range(3_000):
        # Ten follow often, each of many others once.
        item = draws.randrange(10) if n % 2 else 100 + n
        few.add(item, 1.0)
        all_.add(item, 1.0)
    assert len(few) <= 40 < len(all_)
    assert few.best(10) == all_.best(10)
    assert [few.get(item) for item in range(10)] == [all_.get(item) for item in range(10)]
    assert few.strongest == all_.strongest
