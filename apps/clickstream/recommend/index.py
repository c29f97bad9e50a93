"""The index of ended sessions that is asked: per item its newest sessions, per session its items."""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from millrace_apps.clickstream.recommend.followers import Followers

Ints = NDArray[np.int64]

#: A rule counts pairs of items at most so many clicks apart.
RULE_STEPS: Final = 10
#: Below so many items of sessions that nothing is found by, they are not dropped.
_LEAST_GONE: Final = 1_000


class SessionIndex:
    """Sessions in the order in which they ended; a new one is let in without building anything again.

    What a session is found by is the list of its items' newest ``m`` sessions, as in VMIS-kNN (Kersbergen,
    Sprangers, Schelter: Serenade, SIGMOD 2022). Beside it stand what the fall-backs need: clicks per item and
    sequential rules (Ludewig, Jannach, UMUAI 2018), both of all sessions. A session that no item keeps any
    more is found by nothing: its items are dropped, its number and what it counted for stay.

    Args:
        m: Newest sessions that an item keeps.

    Example:
        >>> index = SessionIndex(m=2)
        >>> index.add(["shoe", "sock"])
        >>> index.add(["shoe", "lace"])
        >>> index.sessions, [index.names[i] for i in index.items_of(1)]
        (2, ['shoe', 'lace'])
    """

    def __init__(self, m: int = 1000) -> None:
        if m < 1:
            raise ValueError(f"an item keeps at least one session, not {m}")
        self.m = m
        #: Items by number, in the order in which they were first seen.
        self.names: list[Hashable] = []
        #: An item's number.
        self.numbers: dict[Hashable, int] = {}
        self._newest: list[array[int]] = []
        self._flat: array[int] = array("q")
        self._starts: array[int] = array("q", [0])
        self._in_sessions: array[int] = array("q")
        #: How many items keep each session; and how many entries of ``_flat`` are of sessions that none does.
        self._keepers: array[int] = array("i")
        self._gone = 0
        self._clicks: array[int] = array("q")
        self._rules: list[Followers] = []
        self._popular: tuple[int, Ints] = (-1, np.empty(0, np.int64))

    @property
    def sessions(self) -> int:
        """Sessions let in."""
        return len(self._starts) - 1

    def add(self, items: Sequence[Hashable]) -> None:
        """Let in a session that ended after all before.

        Args:
            items: Its items in the order of the clicks, repeats included.
        """
        if not items:
            return
        session = self.sessions
        clicked = [self._number(item) for item in items]
        each = dict.fromkeys(clicked)
        self._keepers.append(len(each))
        for item in each:
            self._flat.append(item)
            self._in_sessions[item] += 1
            newest = self._newest[item]
            newest.append(session)
            if len(newest) > self.m:
                self._let_go(newest[-self.m - 1])
            if len(newest) > 2 * self.m:
                del newest[: -self.m]
        self._starts.append(len(self._flat))
        if self._gone > max(_LEAST_GONE, len(self._flat) // 2):
            self._compact()
        for at, item in enumerate(clicked):
            self._clicks[item] += 1
            for back in range(1, min(RULE_STEPS, at) + 1):
                before = clicked[at - back]
                if before != item:
                    self._rules[before].add(item, 1.0 / back)

    def _let_go(self, session: int) -> None:
        """Take down that an item keeps a session no more."""
        self._keepers[session] -= 1
        if not self._keepers[session]:
            self._gone += self._starts[session + 1] - self._starts[session]

    def _compact(self) -> None:
        """Drop the items of sessions that no item keeps; numbers of sessions stay."""
        starts = np.array(self._starts, np.int64)
        kept = np.array(self._keepers, np.int64) > 0
        lengths = np.diff(starts)
        flat = np.array(self._flat, np.int64)[np.repeat(kept, lengths)]
        self._flat = array("q", flat.tobytes())
        ends = np.concatenate(([0], np.cumsum(np.where(kept, lengths, 0))))
        self._starts = array("q", ends.astype(np.int64).tobytes())
        self._gone = 0

    @property
    def entries(self) -> int:
        """Items of sessions that are in memory."""
        return len(self._flat)

    def _number(self, item: Hashable) -> int:
        number = self.numbers.get(item)
        if number is None:
            number = self.numbers[item] = len(self.names)
            self.names.append(item)
            self._newest.append(array("q"))
            self._in_sessions.append(0)
            self._clicks.append(0)
            self._rules.append(Followers())
        return number

    def newest(self, item: int) -> Ints:
        """Return the numbers of an item's newest ``m`` sessions, oldest first."""
        return np.array(self._newest[item][-self.m :], np.int64)

    def counts(self, items: Sequence[int]) -> tuple[Ints, Ints, Ints]:
        """Return items' clicks, in how many sessions they were, and the numbers of the newest of these."""
        at = np.array(items, np.int64)
        newest = np.array([self._newest[item][-1] for item in items], np.int64)
        return (
            np.frombuffer(self._clicks, np.int64)[at],
            np.frombuffer(self._in_sessions, np.int64)[at],
            newest,
        )

    def items_of(self, session: int) -> list[int]:
        """Return a session's items by number, each once."""
        return list(self._flat[self._starts[session] : self._starts[session + 1]])

    def gather(self, sessions: Ints) -> tuple[Ints, Ints]:
        """Return the items of several sessions, one behind the other, and how many each has."""
        # Views, for as long as this call lasts: an array with a view on it cannot grow.
        starts = np.frombuffer(self._starts, np.int64)
        first = starts[sessions]
        lengths = starts[sessions + 1] - first
        ends = np.cumsum(lengths)
        at = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - lengths), lengths)
        return np.frombuffer(self._flat, np.int64)[at] if len(at) else np.empty(0, np.int64), lengths

    def idf(self, items: Ints) -> NDArray[np.float64]:
        """Return ``log(sessions / sessions with the item)`` of items by number."""
        found: NDArray[np.float64] = np.log(self.sessions / np.frombuffer(self._in_sessions, np.int64)[items])
        return found

    def rules(self, item: int) -> Followers:
        """Return what followed an item: item to the sum of 1 / clicks between them."""
        return self._rules[item]

    def popular(self, most: int) -> Ints:
        """Return the items clicked most, by number; of equal ones the one seen first comes first."""
        if self._popular[0] != self.sessions or len(self._popular[1]) < min(most, len(self.names)):
            self._popular = (self.sessions, self._most_clicked(max(most, 200)))
        return self._popular[1][:most]

    def _most_clicked(self, most: int) -> Ints:
        clicks = np.array(self._clicks, np.int64)
        items = np.arange(len(clicks))
        if len(clicks) > most:
            items = np.flatnonzero(clicks >= np.partition(clicks, len(clicks) - most)[len(clicks) - most])
        return items[np.argsort(-clicks[items], kind="stable")][:most]


def build(sessions: Iterable[Sequence[Hashable]], m: int = 1000) -> SessionIndex:
    """Return an index of sessions given in the order in which they ended.

    Example:
        >>> build([["a", "b"], ["b", "c"]]).sessions
        2
    """
    index = SessionIndex(m)
    for items in sessions:
        index.add(items)
    return index


def log_base_2(rank: int) -> float:
    """Return what a hit at a rank (from 1) is worth in NDCG with one relevant item: ``1 / log2(rank + 1)``.

    Example:
        >>> log_base_2(1), log_base_2(3)
        (1.0, 0.5)
    """
    return 1.0 / math.log2(rank + 1)
