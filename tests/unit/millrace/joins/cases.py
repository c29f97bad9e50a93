"""What the tests of joins share: two events, ways to bring them, and oracles written in pandas."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import pandas as pd
from hypothesis import strategies as st

from millrace.joins import JoinProcess
from millrace.testing import TestDriver
from tests.unit.millrace.windows.cases import BY_HAND, FAR, Restarting

__all__ = ["BY_HAND", "CUTS", "EVENTS", "FAR", "At", "Lt", "Restarting", "Rt"]


class Lt(msgspec.Struct, frozen=True):
    """A left event."""

    key: str
    l: int = 0  # noqa: E741


class Rt(msgspec.Struct, frozen=True):
    """A right event."""

    key: str
    r: int = 0


class At(NamedTuple):
    """An event in its place."""

    at: int
    event: Lt | Rt

    @property
    def key(self) -> str:
        return self.event.key


#: Left and right events of two keys, in no order; some of one time, some the same.
EVENTS = st.lists(
    st.builds(
        At,
        st.integers(-20, 60),
        st.builds(Lt, st.sampled_from(["k1", "k2"]), st.integers(0, 3))
        | st.builds(Rt, st.sampled_from(["k1", "k2"]), st.integers(-1, 3)),
    ),
    max_size=24,
)
CUTS = st.lists(st.integers(1, 23), max_size=5)


def read(text: str, key: str = "k") -> list[At]:
    """Read events as people write them: ``"r7 l10"`` is a right one at 7 and a left one at 10.

    Their numbers are their times, or what follows a colon: ``"r8:81"``.
    """
    found = []
    for word in text.split():
        at, _, number = word[1:].partition(":")
        kind = Lt if word[0] == "l" else Rt
        found.append(At(int(at), kind(key, int(number or at))))
    return found


def send(driver: TestDriver, text: str, key: str = "k") -> None:
    """Send events one by one."""
    for e in read(text, key):
        driver.send(e.key, e.event, at=e.at)


def play(
    process: JoinProcess,
    events: Iterable[At],
    *,
    cuts: Sequence[int] = (),
    restarts: bool = False,
    bound: int = BY_HAND,
) -> TestDriver:
    """Run events in batches that end at ``cuts``, and on to where nothing may be left."""
    driver = (Restarting if restarts else TestDriver)(process, out_of_orderness_ms=bound)
    todo = list(events)
    edges = [0, *sorted(c for c in set(cuts) if 0 < c < len(todo)), len(todo)]
    for low, high in itertools.pairwise(edges):
        driver.send_batch([(e.key, e.at, e.event) for e in todo[low:high]])
    driver.advance_watermark(FAR)
    assert driver.values("dead_letters") == []  # they would hide what went wrong in the process
    assert driver.is_empty()
    return driver


def delayed(events: list[At], delays: Sequence[int]) -> list[At]:
    """Return events in an order in which none comes more than its delay behind another."""
    pairs = zip(events, delays, strict=False)
    return [e for e, _ in sorted(pairs, key=lambda p: p[0].at + p[1])]


def rows(driver: TestDriver, *columns: str) -> list[tuple[Any, ...]]:
    """Return these columns of the main output, in order of emission."""
    return [tuple(getattr(r, c) for c in columns) for r in driver.values()]


def frame(events: Iterable[At], kind: type, number: str, time: str) -> pd.DataFrame:
    """Return the events of one side as a table, in order of time; ties by what they say."""
    found = [(e.key, getattr(e.event, number), e.at) for e in events if isinstance(e.event, kind)]
    in_order = sorted(found, key=lambda f: (f[2], msgspec.msgpack.encode(f[1])))
    return pd.DataFrame(in_order, columns=["key", number, time]).astype({number: "int64", time: "int64"})


def tuples(table: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return a table's rows, sorted, with ``None`` for what is missing."""
    found = [
        tuple(None if pd.isna(v) else v if isinstance(v, str) else int(v) for v in row)
        for row in table[list(columns)].itertuples(index=False)
    ]
    return sorted(found, key=repr)


def as_of(events: list[At], keep: int | None, *, inner: bool, deletes: bool) -> list[tuple[Any, ...]]:
    """Return (key, l, r, left_ms, right_ms) of an as-of join, by pandas."""
    left = frame(events, Lt, "l", "left_ms")
    right = frame(events, Rt, "r", "right_ms")
    made = pd.merge_asof(
        left,
        right.assign(there=1),
        left_on="left_ms",
        right_on="right_ms",
        by="key",
        tolerance=None if keep is None else keep - 1,
    )
    gone = made["there"].isna() | (deletes & (made["r"] < 0))
    made[["r", "right_ms"]] = made[["r", "right_ms"]].astype("Int64").mask(gone)
    return tuples(made[~gone] if inner else made, "key", "l", "r", "left_ms", "right_ms")


def in_interval(events: list[At], backward: int, forward: int, how: str) -> list[tuple[Any, ...]]:
    """Return (key, l, r, left_ms, right_ms) of an interval join: all pairs, less those too far apart."""
    left = frame(events, Lt, "l", "left_ms").reset_index(names="left")
    right = frame(events, Rt, "r", "right_ms").reset_index(names="right")
    pairs = left.merge(right, on="key")
    apart = pairs["right_ms"] - pairs["left_ms"]
    return with_outer(pairs[(apart >= -backward) & (apart <= forward)], left, right, how)


def with_outer(
    pairs: pd.DataFrame, left: pd.DataFrame, right: pd.DataFrame, how: str, *more: str
) -> list[tuple[Any, ...]]:
    """Return the rows of a join: its pairs, and those of either side (numbered) that are in none."""
    found = [pairs]
    if how in ("left", "outer"):
        found.append(left[~left["left"].isin(pairs["left"])])
    if how in ("right", "outer"):
        found.append(right[~right["right"].isin(pairs["right"])])
    columns = ["key", *more, "l", "r", "left_ms", "right_ms"]
    return tuples(pd.concat([f.reindex(columns=columns).astype(object) for f in found]), *columns)
