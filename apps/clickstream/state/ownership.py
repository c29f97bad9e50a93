"""Ownership of a browser over event time: accounts that events name, and logouts.

An event that names an account is that account's. One that names none belongs to whoever was there last before
it, and where nobody was yet, or somebody had logged out, to whoever is there next. What is said of one moment
and what comes late is sorted in, so that in the end the order in which events came makes no difference.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import groupby
from operator import itemgetter
from typing import Final

import msgspec

#: So many runs of one account, or of nobody, are kept, the last ones.
MOST_RUNS: Final = 16
#: After a logout the browser is nobody's.
NOBODY: Final = ""

#: Somebody was there (UTC ms, account); :data:`NOBODY` is the least of one moment: a click there counts.
Mark = tuple[int, str]


class Ownership(msgspec.Struct, array_like=True, gc=False):
    """The accounts that a browser was seen with.

    Attributes:
        base: Who was there before the first mark; :data:`NOBODY` for nobody.
        marks: Who was seen when, in order; of what no event in time can come between, the first and last
            mark of each run of one account.
        latest: The account that was seen last, also where it has logged out; :data:`NOBODY` for none.
    """

    base: str = NOBODY
    marks: list[Mark] = msgspec.field(default_factory=list)
    latest: str = NOBODY

    def see(self, at_ms: int, user: str, watermark_ms: int) -> bool:
        """Take down that an account was there, or that nobody was from a moment on.

        Args:
            at_ms: The moment, UTC ms.
            user: The account; :data:`NOBODY` after a logout.
            watermark_ms: How far time has come, ms: what is later is kept whole.

        Returns:
            Whether some event's owner may be another now.

        Example:
            >>> seen = Ownership()
            >>> [seen.see(at, who, 0) for at, who in ((10, "ann"), (20, "ann"), (30, NOBODY), (40, "bob"))]
            [True, False, True, True]
            >>> [seen.owner(at) for at in (5, 15, 30, 35, 40, 99)]
            ['ann', 'ann', 'bob', 'bob', 'bob', 'bob']
        """
        mark = (at_ms, user)
        place = bisect_right(self.marks, mark)
        before = self.marks[place - 1] if place else None
        if before == mark:
            return False
        news = (before[1] if before else self.base) != user
        if user and not any(name for _, name in self.marks[place:]):
            self.latest = user
        self.marks.insert(place, mark)
        if len(self.marks) > 2 and self.marks[0][0] <= watermark_ms:
            self._shorten(watermark_ms)
        return news

    def _shorten(self, watermark_ms: int) -> None:
        settled = bisect_right(self.marks, watermark_ms, key=itemgetter(0))
        runs = [list(run) for _, run in groupby(self.marks[:settled], key=itemgetter(1))]
        for gone in runs[:-MOST_RUNS]:
            self.base = gone[-1][1]
        kept = [mark for run in runs[-MOST_RUNS:] for mark in (run if len(run) < 3 else (run[0], run[-1]))]
        self.marks = kept + self.marks[settled:]

    def settle(self, horizon_ms: int) -> None:
        """Let marks up to a moment (UTC ms), before which no event is taken any more, be one."""
        gone = bisect_right(self.marks, horizon_ms, key=itemgetter(0))
        if gone:
            self.base = self.marks[gone - 1][1]
            del self.marks[:gone]

    def unsettled(self, watermark_ms: int) -> bool:
        """Tell whether what is in time may still come before the last mark."""
        return bool(self.marks) and self.marks[-1][0] > watermark_ms

    @property
    def now(self) -> str:
        """Who is there after all that is known."""
        return self.marks[-1][1] if self.marks else self.base

    def at(self, at_ms: int) -> str:
        """Return who was there last at a moment (UTC ms)."""
        place = bisect_right(self.marks, at_ms, key=itemgetter(0))
        return self.marks[place - 1][1] if place else self.base

    def owner(self, at_ms: int) -> str:
        """Return whose an event of a moment (UTC ms) is that names nobody."""
        return self.at(at_ms) or self._next(at_ms)

    def settled_owner(self, at_ms: int, settled_ms: int) -> str:
        """Return the same, where no event after ``settled_ms`` (UTC ms) can change it; else :data:`NOBODY`.

        Example:
            >>> seen = Ownership(marks=[(10, "ann"), (20, ""), (40, "bob")])
            >>> [seen.settled_owner(at, 30) for at in (5, 15, 25)], seen.settled_owner(25, 40)
            (['ann', 'ann', ''], 'bob')
        """
        return NOBODY if self.waits(at_ms, settled_ms) else self.owner(at_ms)

    def waits(self, at_ms: int, settled_ms: int) -> bool:
        """Tell whether nobody was there at a moment, and what is after ``settled_ms`` can say who is next."""
        if self.at(at_ms):
            return False
        claim = self.next_after(at_ms)
        return claim is None or claim[0] > settled_ms

    def owner_within(self, start_ms: int, end_ms: int) -> str:
        """Return whose a session is: the last account that was there in it, or else the next one.

        Args:
            start_ms: Its start, UTC ms.
            end_ms: Its end.

        Example:
            >>> seen = Ownership(marks=[(10, "ann"), (20, ""), (40, "bob")])
            >>> [seen.owner_within(*span) for span in ((0, 5), (12, 30), (20, 30), (15, 60), (50, 60))]
            ['ann', 'ann', 'bob', 'bob', 'bob']
        """
        first = bisect_right(self.marks, start_ms, key=itemgetter(0))
        last = bisect_right(self.marks, end_ms, key=itemgetter(0))
        for _, user in reversed(self.marks[first:last]):
            if user:
                return user
        return self.at(start_ms) or self._next(end_ms)

    def _next(self, at_ms: int) -> str:
        mark = self.next_after(at_ms)
        return NOBODY if mark is None else mark[1]

    def next_after(self, at_ms: int) -> Mark | None:
        """Return which account is there next after a moment (UTC ms), and when; ``None``: none is known."""
        place = bisect_right(self.marks, at_ms, key=itemgetter(0))
        return next((mark for mark in self.marks[place:] if mark[1]), None)

    def next_come(self, after: Mark) -> Mark | None:
        """Return which account comes next after a mark, and when; ``None``: none is known.

        Example:
            >>> seen = Ownership(marks=[(10, "ann"), (20, "ann"), (30, ""), (40, "ann"), (50, "bob")])
            >>> [seen.next_come(mark) for mark in ((0, ""), (10, "ann"), (40, "ann"), (50, "bob"))]
            [(10, 'ann'), (40, 'ann'), (50, 'bob'), None]
        """
        marks = self.marks
        place = bisect_right(marks, after)
        before = marks[place - 1][1] if place else self.base
        for mark in marks[place:]:
            if mark[1] and mark[1] != before:
                return mark
            before = mark[1]
        return None

    def runs(self) -> dict[int, str]:
        """Return since when (UTC ms) who was there: where one account follows another, or nobody."""
        found, before = {}, self.base
        for at_ms, user in dict(self.marks).items():  # of one moment the last
            if user != before:
                found[at_ms] = before = user
        return found
