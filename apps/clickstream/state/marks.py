"""The marks of a browser: which steps of persons' funnels were done in it when, and by whom.

Whose a mark is follows from who was there (:mod:`millrace_apps.clickstream.state.ownership`), and may turn
out to be another's when something comes late. What nobody did is of the account that logs in next, if that is
within the time of the longest funnel; later than that it is too old for any way. So whose a mark is hangs on
the events alone, and the browser tells each person all of its marks anew whenever one comes or goes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from millrace_apps.clickstream.processes.funnels import Funnel
from millrace_apps.clickstream.processes.person_funnels import spans_of, thinned
from millrace_apps.clickstream.state.browser_state import BrowserState

#: So many marks of a browser can turn out to be another's, the last ones.
MOST_MARKS: Final = 300
#: Person → its marks in a browser: step → times, UTC ms.
Owned = dict[str, dict[str, list[int]]]


class BrowserMarks:
    """Keeps the marks of browsers.

    Args:
        funnels: The funnels of persons.
        shared: Whose a browser is that several accounts use.
    """

    def __init__(self, funnels: Sequence[Funnel], shared: Literal["split", "last"]) -> None:
        self.steps = {step for funnel in funnels for step in funnel.steps}
        #: So long after it a login makes nobody's mark an account's, ms.
        self.within_ms = max((funnel.within_ms for funnel in funnels), default=0)
        self._spans: Mapping[str, int] = spans_of(funnels)
        self._every = max(1, min((f.within_ms for f in funnels), default=0) // 100)
        self._shared = shared

    def __bool__(self) -> bool:
        return bool(self.steps)

    def take(self, known: BrowserState, at_ms: int, step: str) -> None:
        """Take down that a step was done at a moment, UTC ms."""
        mark = (at_ms, step, "")
        if at_ms <= known.marks_from or any(one[:2] == mark[:2] for one in known.marks):
            return
        insort(known.marks, mark)
        if len(known.marks) > MOST_MARKS:
            known.marks_from = max(known.marks_from, known.marks.pop(0)[0])

    @staticmethod
    def drop(known: BrowserState, at_ms: int, step: str) -> None:
        """Take a step back."""
        known.marks = [one for one in known.marks if one[:2] != (at_ms, step)]

    def owned(self, known: BrowserState, browser: str) -> Owned:
        """Return whose marks there are; nobody's are the browser's."""
        found: dict[str, list[tuple[int, str]]] = {}
        for at, step, name in known.marks:
            found.setdefault(name or self._whose(known, at, browser), []).append((at, step))
        return {person: thinned(marks, self._spans) for person, marks in found.items()}

    def _whose(self, known: BrowserState, at_ms: int, browser: str) -> str:
        there, nobody = known.ownership, f"v:{browser}"
        if there is None or self._shared == "last":
            user = known.user_id if there is None else there.latest
            return f"u:{user}" if user else nobody
        if user := there.at(at_ms):
            return f"u:{user}"
        claim = there.next_after(at_ms)
        return f"u:{claim[1]}" if claim is not None and claim[0] <= at_ms + self.within_ms else nobody

    def settle(self, known: BrowserState, settled_ms: int, horizon_ms: int, browser: str) -> None:
        """Write down whose marks are of which nothing in time says otherwise; forget those that are too old.

        Args:
            known: What is known of the browser.
            settled_ms: No event up to here can come or change its owner any more, UTC ms.
            horizon_ms: Events up to here are not taken any more.
            browser: The browser.
        """
        old = (horizon_ms - self.within_ms) // self._every * self._every - 1
        if known.marks and known.marks[0][0] <= old:
            known.marks_from = max(known.marks_from, old)
            known.marks = [one for one in known.marks if one[0] > old]
        if known.ownership is None or self._shared == "last":
            return
        named = []
        for at, step, name in known.marks:
            who = name
            # Whoever is there next may have done it, and may still come before who is known.
            if not who and at <= settled_ms and not known.ownership.waits(at, settled_ms):
                who = self._whose(known, at, browser)
            named.append((at, step, who))
        known.marks = named
