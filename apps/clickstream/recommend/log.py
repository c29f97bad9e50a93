"""The sessions that are known, as keyed state; and the index that is made of them, kept while it fits.

The state is a log: sessions in the order in which they ended, sealed in segments. An index of it is in no
state: it is made of the log where a process begins, and follows it session by session. A token that is a
digest of all sessions tells whether an index that is at hand is the log's: after a batch that is done again
it is another one, and the index is made anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, Protocol

import msgspec

from millrace_apps.clickstream.recommend.index import SessionIndex

#: So many sessions are sealed together.
SEGMENT: Final = 256
#: Indexes that a worker keeps at hand.
_AT_HAND: Final = 4
_encode: Final = msgspec.msgpack.Encoder().encode


class SessionLog(msgspec.Struct, array_like=True):
    """The newest sessions, but for those that are sealed.

    Attributes:
        token: Digest of all sessions since the log was last cut.
        first: Number of the oldest sealed segment.
        last: Number of the next one.
        open: The sessions behind the last sealed segment.
    """

    token: str = ""
    first: int = 0
    last: int = 0
    open: list[list[str]] = []

    @property
    def sessions(self) -> int:
        """How many there are."""
        return (self.last - self.first) * SEGMENT + len(self.open)


class Segments(Protocol):
    """Where sealed segments stand: a map in keyed state."""

    def get(self, key: int, default: None = None) -> list[list[str]] | None:
        """Return a segment."""

    def put(self, key: int, value: list[list[str]]) -> None:
        """Keep a segment."""

    def remove(self, key: int) -> None:
        """Forget a segment."""


_indexes: OrderedDict[tuple[str, int], SessionIndex] = OrderedDict()


def token_after(token: str, session: Sequence[str]) -> str:
    """Return the token of a log once a session is let in.

    Args:
        token: Of the log before.
        session: Its items.
    """
    return blake2b(token.encode() + _encode(list(session)), digest_size=12).hexdigest()


def sessions_of(log: SessionLog, segments: Segments) -> Iterator[list[str]]:
    """Yield the sessions of a log, the oldest first."""
    for number in range(log.first, log.last):
        yield from segments.get(number) or ()
    yield from log.open


def index_of(log: SessionLog, segments: Segments, m: int) -> SessionIndex:
    """Return the index of a log.

    Args:
        log: The log.
        segments: Its segments.
        m: Newest sessions that an item keeps.
    """
    found = _indexes.get((log.token, m))
    if found is None:
        found = SessionIndex(m)
        for items in sessions_of(log, segments):
            found.add(items)
        _keep(log.token, m, found)
    return found


def _keep(token: str, m: int, index: SessionIndex) -> None:
    if not token:
        return  # of nothing: each log begins its own
    _indexes[token, m] = index
    _indexes.move_to_end((token, m))
    while len(_indexes) > _AT_HAND:
        _indexes.popitem(last=False)


def let_in(log: SessionLog, segments: Segments, ended: Sequence[Sequence[str]], *, m: int, keep: int) -> None:
    """Append sessions to a log, in the order in which they ended.

    Where there are a quarter more than are kept, the log is cut to the newest.

    Args:
        log: The log; changed.
        segments: Its segments; changed.
        ended: Items of each session, in the order of the clicks.
        m: Newest sessions that an item keeps.
        keep: Newest sessions that are kept.
    """
    if not ended:
        return
    index = index_of(log, segments, m)
    _indexes.pop((log.token, m), None)
    for session in ended:
        items = list(session)
        index.add(items)
        log.token = token_after(log.token, items)
        log.open.append(items)
        if len(log.open) == SEGMENT:
            segments.put(log.last, log.open)
            log.last, log.open = log.last + 1, []
    if log.sessions > keep + max(keep // 4, SEGMENT):
        while log.last > log.first and log.sessions - SEGMENT >= keep:
            segments.remove(log.first)
            log.first += 1
        log.token = blake2b(f"{log.token}/{log.first}".encode(), digest_size=12).hexdigest()
        return  # the index of what is left is made when it is asked for
    _keep(log.token, m, index)
