"""Next items predicted after every click of test sessions, from the sessions that had ended before."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from millrace.operations.report import write_parquet
from millrace_apps.clickstream.evaluation.snowplow_files import BadFile
from millrace_apps.clickstream.recommend.baselines import BASELINES
from millrace_apps.clickstream.recommend.files import (
    Columns,
    Session,
    read_lists,
    read_prefixes,
    read_sessions,
)
from millrace_apps.clickstream.recommend.index import SessionIndex
from millrace_apps.clickstream.recommend.measures import MOST, paired_bootstrap, quality, rank_of
from millrace_apps.clickstream.recommend.ranker import (
    Example,
    Judged,
    Ranker,
    clicks_as_they_came,
    first_learned,
    learn_order,
)
from millrace_apps.clickstream.recommend.scoring import CHOSEN, POLICIES, Policy, ranked, recommend, score

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Query:
    """A visit up to a click, and what was looked at next."""

    session: Hashable
    step: int
    visit: Sequence[Hashable]
    target: Hashable


@dataclass(slots=True)
class Found:
    """What is kept of every query: ranks, times and lists."""

    ranks: dict[Policy, list[int]] = field(default_factory=lambda: {p: [] for p in POLICIES})
    named: dict[Policy, set[Hashable]] = field(default_factory=lambda: {p: set() for p in POLICIES})
    baselines: dict[str, dict[Policy, list[int]]] = field(
        default_factory=lambda: {name: {p: [] for p in POLICIES} for name in BASELINES}
    )
    learned: dict[Policy, list[int]] = field(default_factory=lambda: {p: [] for p in POLICIES})
    learned_ms: list[float] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    unknown: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)


def queries_of(session: Session) -> Iterator[tuple[int, Query]]:
    """Yield, for every click of a session but the last, its time (UTC ms) and its query."""
    for at in range(1, len(session.items)):
        yield session.times[at - 1], Query(session.name, at, session.items[:at], session.items[at])


def ask(
    index: SessionIndex,
    query: Query,
    found: Found,
    *,
    keep: bool,
    compare: bool,
    ranker: Ranker | None = None,
) -> None:
    """Predict under every policy; what is timed is one whole list, as a surface asks for it."""
    lists: dict[Policy, list[Hashable]] = {}
    found.unknown += query.target not in index.numbers
    cpu, wall = time.process_time(), time.perf_counter()
    first = recommend(index, query.visit, policy=POLICIES[0], most=MOST)
    found.wall_ms.append((time.perf_counter() - wall) * 1000)
    found.cpu_s += time.process_time() - cpu
    lists[POLICIES[0]] = [s.item for s in first]
    for policy in POLICIES[1:]:
        best = ranked(index, query.visit, score(index, query.visit, CHOSEN[policy], most=MOST), policy, MOST)
        lists[policy] = [index.names[i] for i, _ in best]
    for policy, items in lists.items():
        found.ranks[policy].append(rank_of(query.target, items))
        found.named[policy].update(items)
        if compare:
            for name, baseline in BASELINES.items():
                theirs = baseline(index, query.visit, policy, MOST)
                found.baselines[name][policy].append(rank_of(query.target, theirs))
    if ranker is not None:
        for policy in POLICIES:
            wall = time.perf_counter()
            learned = ranker.recommend(index, query.visit, policy=policy, most=MOST)
            found.learned_ms.append((time.perf_counter() - wall) * 1000)
            found.learned[policy].append(rank_of(query.target, [s.item for s in learned]))
    if keep:
        found.rows.append(
            {"session_id": query.session, "step": query.step, "current": query.visit[-1],
             "target": query.target,
             **{str(policy): items for policy, items in lists.items()}}
        )  # fmt: skip


def _in_time(
    index: SessionIndex, tests: Sequence[Session], update: bool, ends_after_ms: int
) -> Iterator[Query]:
    """Yield queries; with ``update`` by time, and sessions that are known to have ended let in."""
    if not update:
        yield from (query for session in tests for _, query in queries_of(session))
        return
    ended = iter(sorted(tests, key=lambda s: s.times[-1]))
    waiting = next(ended, None)
    # Of one instant: the order of the sessions, then of their clicks (a stable sort).
    timed = sorted((q for s in tests for q in queries_of(s)), key=lambda pair: pair[0])
    for at, query in timed:
        while waiting is not None and waiting.times[-1] + ends_after_ms < at:
            index.add(waiting.items)
            waiting = next(ended, None)
        yield query


def evaluate_clicks(
    train: Sequence[Path], test: Path, *, columns: Columns, update: bool, ends_after_ms: int, m: int,
    recs: Path | None = None, compare: bool = True, learn: bool = False, say: Progress = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """Predict the clicks of one file from the sessions of others.

    Args:
        train: Parquet files of clicks whose sessions the index has.
        test: Parquet file of clicks that are predicted.
        columns: What the columns of all are called.
        update: Let test sessions in as they end.
        ends_after_ms: A session has ended when more than this has passed since its last click, ms.
        m: Newest sessions that an item keeps.
        recs: Parquet file for the lists.
        compare: Predict by the simple ways, too.
        learn: Learn an order of candidates from the later half of training, and predict by it, too.
        say: Told what goes on.

    Returns:
        The report.

    Raises:
        BadFile: A file cannot be read, or there is nothing to predict.
    """
    sessions, tests = read_sessions(train, columns), read_sessions([test], columns)
    index, seconds = _built((s.items for s in sessions), m)
    say(f"{len(sessions):,} sessions of training, {len(tests):,} of test")
    clicks = sum(len(s.items) for s in sessions)
    trained = len(index.names), index.sessions
    ranker, judged = (
        learn_order(_clicks_in_time(sessions, m, ends_after_ms), say=say) if learn else (None, {})
    )
    found = _all(index, _in_time(index, tests, update, ends_after_ms), recs, compare, ranker)
    return _report(found, trained, {"train_clicks": clicks, "test_sessions": len(tests), "update": update},
                   seconds, judged)  # fmt: skip


def _clicks_in_time(
    sessions: Sequence[Session], m: int, ends_after_ms: int
) -> Iterator[tuple[SessionIndex, Example]]:
    """Yield the clicks of the later half of sessions as they came, with the index of what had ended."""
    first = first_learned([len(session.items) for session in sessions])
    index, _ = _built((session.items for session in sessions[:first]), m)
    known_ms = max((s.times[-1] + ends_after_ms for s in sessions[:first]), default=0)
    times = {s.name: s.times for s in sessions[first:]}
    for query in _in_time(index, sessions[first:], True, ends_after_ms):
        if times[query.session][query.step - 1] > known_ms:  # before that the index knew what was to come
            yield index, (query.visit, query.target)


def evaluate_lists(
    train: Path, test: Path, *, items: str, prefix: str, target: str, m: int,
    recs: Path | None = None, compare: bool = True, learn: bool = False, say: Progress = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """Predict targets after prefixes from sessions that are lists of items, the oldest first.

    Args:
        train: Parquet file, a session a row.
        test: Parquet file, a query a row.
        items: Column of the sessions' items.
        prefix: Column of the queries' items up to now.
        target: Column of what came next.
        m: As of :func:`evaluate_clicks`, as are the others.
        recs: As there.
        compare: As there.
        learn: As there.
        say: As there.

    Returns:
        The report.

    Raises:
        BadFile: A file cannot be read, or there is nothing to predict.
    """
    sessions, asked = read_lists(train, items), read_prefixes(test, prefix, target)
    index, seconds = _built(sessions, m)
    say(f"{len(sessions):,} sessions of training, {len(asked):,} queries")
    queries = (Query(n, len(visit), visit, next_) for n, (visit, next_) in enumerate(asked) if visit)
    trained = len(index.names), index.sessions
    ranker, judged = learn_order(clicks_as_they_came(sessions, m), say=say) if learn else (None, {})
    found = _all(index, queries, recs, compare, ranker)
    counts = {"train_clicks": sum(map(len, sessions)), "update": False}
    return _report(found, trained, counts, seconds, judged)


def _built(sessions: Iterable[Sequence[Hashable]], m: int) -> tuple[SessionIndex, float]:
    began = time.perf_counter()
    index = SessionIndex(m)
    for items in sessions:
        index.add(items)
    return index, time.perf_counter() - began


def _all(
    index: SessionIndex, queries: Iterable[Query], recs: Path | None, compare: bool, ranker: Ranker | None
) -> Found:
    found = Found()
    for query in queries:
        ask(index, query, found, keep=recs is not None, compare=compare, ranker=ranker)
    if not found.wall_ms:
        raise BadFile("there is nothing to predict: no test session has two clicks")
    if recs is not None:
        import pyarrow as pa

        write_parquet(recs, pa.Table.from_pylist(found.rows))
    return found


_SHARES: Final = (50, 90, 99)


def _report(
    found: Found,
    trained: tuple[int, int],
    counts: dict[str, Any],
    seconds: float,
    judged: dict[Policy, Judged],
) -> dict[str, Any]:
    import numpy as np

    times = np.percentile(found.wall_ms, _SHARES)
    items, sessions = trained
    # With sessions let in, lists may name items that training did not have: the share may then pass 1.
    report: dict[str, Any] = {}
    for policy in POLICIES:
        mine = asdict(quality(found.ranks[policy]))
        report[policy] = {**mine, "coverage": round(len(found.named[policy]) / max(items, 1), 6)}
    report["coverage"] = report[POLICIES[0]]["coverage"]
    report["scoring_ms"] = {f"p{p}": round(float(t), 4) for p, t in zip(_SHARES, times, strict=True)}
    report["scoring_cpu_ms"] = round(found.cpu_s * 1000 / len(found.wall_ms), 4)
    report["baselines"] = {
        name: {policy: asdict(quality(ranks)) for policy, ranks in theirs.items() if ranks}
        for name, theirs in found.baselines.items()
        if theirs[POLICIES[0]]
    }
    report["less_baseline"] = {
        name: {policy: paired_bootstrap(found.ranks[policy], theirs[policy]) for policy in POLICIES}
        for name, theirs in found.baselines.items()
        if theirs[POLICIES[0]]
    }
    if found.learned_ms:
        report["learned"] = {
            policy: {
                **asdict(quality(found.learned[policy])),
                "less_unlearned": paired_bootstrap(found.learned[policy], found.ranks[policy]),
                "training": asdict(judged[policy]),
            }
            for policy in POLICIES
        }
        told = np.percentile(found.learned_ms, _SHARES)
        report["learned_ms"] = {f"p{p}": round(float(t), 4) for p, t in zip(_SHARES, told, strict=True)}
    report |= {"parameters": {policy: asdict(CHOSEN[policy]) for policy in POLICIES}}
    return report | {
        "train_sessions": sessions, "train_items": items, **counts,
        "queries": len(found.wall_ms),
        # Items that no session named before: nobody can hit these.
        "unknown_targets": found.unknown, "build_seconds": round(seconds, 3),
    }  # fmt: skip
