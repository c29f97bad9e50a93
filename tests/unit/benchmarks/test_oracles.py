"""The oracles of the benchmarks against the plainest loops that say the same."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from millrace_apps.benchmarks import oracles
from millrace_apps.benchmarks.inputs import Events, as_json, as_table, closing_events, make_events
from millrace_apps.benchmarks.w1_job import zscore


@pytest.fixture(params=[1, 2, 3])
def events(request: pytest.FixtureRequest) -> Events:
    """Few cards and times with gaps, so that windows have edges."""
    made = make_events(400, 7, seed=request.param)
    gaps = np.random.default_rng(request.param).integers(1, 9_000, 400)
    return Events(made.card, made.cents, made.at[0] + np.cumsum(gaps))


def rows(events: Events) -> list[tuple[int, int, int]]:
    return list(zip(events.card.tolist(), events.cents.tolist(), events.at.tolist(), strict=True))


def test_scores_are_those_of_a_loop_over_the_events_to_the_last_bit(events: Events) -> None:
    state: dict[int, tuple[int, float, float]] = defaultdict(lambda: (0, 0.0, 0.0))
    wanted = []
    for card, cents, _ in rows(events):
        n, total, squares = state[card]
        wanted.append((n + 1, zscore(n, total, squares, cents)))
        state[card] = (n + 1, total + cents, squares + cents * cents)
    found = oracles.scores(events)
    assert list(zip(found.n.tolist(), found.z.tolist(), strict=True)) == wanted
    assert found.id.tolist() == list(range(len(events)))


def test_totals_of_a_batch_are_of_the_cards_in_it_and_of_all_events_so_far(events: Events) -> None:
    cuts = [0, 100, 250, 400]
    seen: dict[int, list[int]] = defaultdict(list)
    wanted = []
    for start, end in ((0, 100), (100, 250), (250, 400)):
        batch = rows(events)[start:end]
        for card, cents, _ in batch:
            seen[card].append(cents)
        for card in sorted({card for card, _, _ in batch}):
            wanted.append((card, len(seen[card]), sum(seen[card]), sum(c * c for c in seen[card])))
    found = oracles.totals_per_batch(events, cuts)
    assert list(zip(*(c.tolist() for c in found), strict=True)) == wanted


def test_tumbling_windows_are_those_of_a_loop(events: Events) -> None:
    wanted: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for card, cents, at in rows(events):
        start = at - at % 60_000
        wanted[card, start, start + 60_000].append(cents)
    found = oracles.tumbling(events, 60_000)
    assert sorted(zip(*(c.tolist() for c in found), strict=True)) == sorted(
        (*key, len(of), sum(of)) for key, of in wanted.items()
    )


def test_sessions_are_those_of_a_loop(events: Events) -> None:
    wanted = []
    for card in range(7):
        session: list[tuple[int, int]] = []
        for c, cents, at in rows(events):
            if c != card:
                continue
            if session and at - session[-1][0] > 10_000:
                wanted.append((card, session))
                session = []
            session.append((at, cents))
        if session:
            wanted.append((card, session))
    found = oracles.sessions(events, 10_000)
    assert sorted(zip(*(c.tolist() for c in found), strict=True)) == sorted(
        (card, of[0][0], of[-1][0] + 10_000, len(of), sum(cents for _, cents in of)) for card, of in wanted
    )


def test_an_event_exactly_the_gap_after_the_last_joins_its_session() -> None:
    events = Events(np.array([1, 1, 1]), np.array([1, 2, 4]), np.array([0, 10, 21]))
    found = oracles.sessions(events, 10)
    assert list(zip(*(c.tolist() for c in found), strict=True)) == [(1, 0, 20, 2, 3), (1, 21, 31, 1, 4)]


def test_lookback_is_that_of_a_loop(events: Events) -> None:
    wanted = []
    for card, _, at in rows(events):
        of = [cents for c, cents, when in rows(events) if c == card and at - 60_000 < when <= at]
        wanted.append((len(of), sum(of)))
    found = oracles.lookback(events, 60_000)
    assert list(zip(found.n.tolist(), found.total.tolist(), strict=True)) == wanted


def test_lookback_leaves_out_the_event_at_its_open_end() -> None:
    events = Events(np.array([1, 1]), np.array([3, 4]), np.array([0, 10]))
    assert oracles.lookback(events, 10).n.tolist() == [1, 1]
    assert oracles.lookback(events, 11).n.tolist() == [1, 2]


def test_events_are_the_same_for_a_seed_and_others_for_another() -> None:
    one, same, other = make_events(500, 50), make_events(500, 50), make_events(500, 50, seed=5)
    assert np.array_equal(one.card, same.card)
    assert np.array_equal(one.cents, same.cents)
    assert not np.array_equal(one.card, other.card)


def test_no_two_events_have_the_same_time_and_the_busiest_card_has_its_share() -> None:
    events = make_events(20_000, 1_000)
    assert len(np.unique(events.at)) == len(events)
    share = np.bincount(events.card).max() / len(events)
    assert share == pytest.approx(1 / sum(k**-1.1 for k in range(1, 1_001)), rel=0.1)


def test_events_without_an_exponent_have_all_cards_alike() -> None:
    counts = np.bincount(make_events(100_000, 10, exponent=0.0).card)
    assert counts.min() > 9_500


def test_sums_of_squares_are_exact_as_floats() -> None:
    events = make_events(100_000, 10)
    assert int((events.cents**2).sum()) * 40 < 2**53  # 4 million events, all of one card


def test_json_and_columns_say_the_same() -> None:
    import msgspec

    from millrace_apps.benchmarks.w1_job import Purchase

    events = make_events(20, 5)
    table = as_table(events, 100, with_json=True)
    decoded = [msgspec.json.decode(value, type=Purchase) for value in table["value"].to_pylist()]
    assert [(e.id, e.card, e.cents, e.at) for e in decoded] == list(
        zip(*(table[c].to_pylist() for c in ("id", "card", "cents", "at")), strict=True)
    )
    assert decoded[0].id == 100
    assert next(as_json(events, 100)) == table["value"][0].as_py()


def test_closing_events_are_of_a_card_of_their_own_and_a_day_later() -> None:
    events = make_events(20, 5)
    last = closing_events(events)
    assert not set(last.card.tolist()) & set(events.card.tolist())
    assert int(last.at[0]) == int(events.at[-1]) + 86_400_000
