"""Funnels of persons: ways through the shop over all sessions and browsers, and the cohort each began in.

A session's funnel asks how far one visit came; a person's asks what became of somebody, who may look on the
phone today and buy on the laptop on Sunday. What a person did is a set of marks (a step, a time), by browser;
the ways are a function of that set alone, so order, cuts and repeats make no difference.

**What a row is.** A way begins with the first step that is done while no way goes on. For ``within`` after it
every further first step may begin anew, and the earliest one that leads furthest counts. The way is over when
its last step is done, or else when its time is; the next first step after that begins the next way, with the
next number. So who buys again has a second row, and who comes back too late, too; a row is never made of two
purchases. The cohort of all rows of a person is when its first way began.

What is over and can change no more is a number and a time: the marks of it are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from millrace_apps.clickstream.processes.funnels import Funnel, walk_from
from millrace_apps.clickstream.state.sessions import FIRST_MARKS, LAST_MARKS

#: Step → its times, UTC ms, ascending.
Marks = Mapping[str, Sequence[int]]
#: Of so small a part of a funnel's time the first mark of its first step stands for all.
PARTS: Final = 100
#: Marks of so many browsers of a person are told apart.
MOST_BROWSERS: Final = 16
_FAR: Final = -(1 << 62)


class Way(NamedTuple):
    """A way through a funnel.

    Attributes:
        begin_ms: The first step that began it, UTC ms.
        done: When its steps were done, of the beginning that led furthest.
        end_ms: From when on another way may begin: its last step, or the end of its time.
    """

    begin_ms: int
    done: list[int]
    end_ms: int


class PersonFunnel(msgspec.Struct, frozen=True, gc=False):
    """A way of a person; a row by ``funnel``, ``person`` and ``way``, the highest ``revision`` holds.

    Attributes:
        funnel: The funnel.
        person: ``u:`` and the account, or ``v:`` and a browser that nobody is known by.
        way: Which one of the person, from 1.
        arm: Arm of the experiment that the person is in.
        cohort_ms: When the person's first way began, UTC ms.
        begin_ms: When this one did.
        end_ms: When it is over: with its last step, or at the end of its time.
        reached: How many steps were done; 1 is the first.
        steps: How many there are.
        reached_step: The last one done.
        dropped_at: The first one not done; ``None``: all were.
        step_ms: How long after the step before each was done, ms; without the first.
        browsers: In how many browsers.
        revision: Grows with every row of the person.
        deleted: There is no such way any more.
    """

    funnel: str
    person: str
    way: int
    arm: str
    cohort_ms: int
    begin_ms: int
    end_ms: int
    reached: int
    steps: int
    reached_step: str
    dropped_at: str | None
    step_ms: list[int]
    browsers: int
    revision: int
    deleted: bool = False


class Over(msgspec.Struct, array_like=True, gc=False):
    """What is kept of the ways of a funnel that nothing can change any more.

    Attributes:
        number: How many they are.
        end_ms: End of the last one, UTC ms.
        first_ms: When the first one began.
    """

    number: int = 0
    end_ms: int = _FAR
    first_ms: int = 0


class KeptWays(msgspec.Struct, array_like=True, gc=False):
    """What is kept of a person's ways.

    Attributes:
        by: Browser → revision of what it told, and its marks; ``""``: of browsers that cannot be told apart
            any more.
        over: Funnel → its ways that are over for good.
        after_ms: Of what was done up to here nothing may be known, UTC ms.
        revision: How often rows were written.
    """

    by: dict[str, tuple[int, dict[str, list[int]]]] = msgspec.field(default_factory=dict)
    over: dict[str, Over] = msgspec.field(default_factory=dict)
    after_ms: int = _FAR
    revision: int = 0

    def take(self, visitor: str, revision: int, since_ms: int, marks: Marks) -> None:
        """Let the marks of a browser after a moment be those that it tells; older ones stay.

        Args:
            visitor: The browser.
            revision: Of several tellings the highest holds.
            since_ms: The moment, UTC ms.
            marks: Its marks after that.
        """
        before, kept = self.by.get(visitor, (0, {}))
        if revision <= before:
            return
        steps = {*kept, *marks}
        own = {s: [*(t for t in kept.get(s, ()) if t <= since_ms), *marks.get(s, ())] for s in steps}
        self.by[visitor] = (revision, {step: times for step, times in own.items() if times})
        if len(self.by) > MOST_BROWSERS:
            self._join()

    def forget_browser(self, visitor: str) -> None:
        """Keep no name of a browser that is forgotten; what was done there long before stays."""
        if visitor in self.by:
            self._join(visitor)

    def _join(self, visitor: str = "") -> None:
        named = [name for name in self.by if name]
        oldest = visitor or min(
            named, key=lambda name: (max((m[-1] for m in self.by[name][1].values()), default=0), name)
        )
        _, marks = self.by.pop(oldest)
        if not marks:
            return
        _, joined = self.by.get("", (0, {}))
        steps = {*marks, *joined}
        self.by[""] = (0, {s: sorted([*joined.get(s, ()), *marks.get(s, ())]) for s in steps})

    def forget_until(self, at_ms: int) -> None:
        """Keep nothing of what was done up to a moment, UTC ms, and no ways over that began then."""
        self.after_ms = max(self.after_ms, at_ms)
        # A withdrawal may be told of again, or very late: ways that began after it are not of it.
        self.over = {name: over for name, over in self.over.items() if over.first_ms > at_ms}
        self.drop(self.after_ms)

    def marks(self) -> dict[str, list[int]]:
        """Return the marks of all browsers."""
        found: dict[str, set[int]] = {}
        for _, marks in self.by.values():
            for step, times in marks.items():
                found.setdefault(step, set()).update(times)
        return {step: sorted(t for t in times if t > self.after_ms) for step, times in found.items()}

    def settle(self, funnels: Sequence[Funnel], until_ms: int, allowed: Marks) -> None:
        """Keep of ways that are over for good a number, and nothing of their marks.

        Args:
            funnels: The funnels.
            until_ms: No mark of before can come or go any more, UTC ms.
            allowed: The marks of all browsers that may be known.
        """
        needed = [until_ms]
        for funnel in funnels:
            over = self.over.get(funnel.name) or Over()
            for way in ways(funnel, allowed, over.end_ms):
                if way.begin_ms + 2 * funnel.within_ms > until_ms:
                    needed.append(way.begin_ms - 1)
                    break
                first = over.first_ms if over.number else way.begin_ms
                over = self.over[funnel.name] = Over(over.number + 1, way.end_ms, first)
        self.drop(min(needed))

    def drop(self, until_ms: int) -> None:
        """Drop the marks up to a moment, UTC ms."""
        if all(t > until_ms for _, marks in self.by.values() for times in marks.values() for t in times[:1]):
            return
        self.by = {
            visitor: (
                revision,
                {s: later for s, times in marks.items() if (later := [t for t in times if t > until_ms])},
            )
            for visitor, (revision, marks) in self.by.items()
        }

    @property
    def empty(self) -> bool:
        """Whether nothing is known."""
        return not self.over and not any(marks for _, marks in self.by.values())


def ways(funnel: Funnel, marks: Marks, after_ms: int = _FAR) -> list[Way]:
    """Return the ways through a funnel, in order of time.

    Args:
        funnel: The funnel.
        marks: What was done when.
        after_ms: The first way begins after this moment, UTC ms.

    Example:
        >>> funnel = Funnel("f", ("item", "purchase"), 1_000)
        >>> [way.done for way in ways(funnel, {"item": [0, 700, 900, 5_000], "purchase": [1_500, 1_600]})]
        [[700, 1500], [5000]]
        >>> [way.done for way in ways(funnel, {"item": [0, 700, 1_550], "purchase": [600, 1_500, 1_600]})]
        [[0, 600], [700, 1500], [1550, 1600]]
    """
    found: list[Way] = []
    while True:
        firsts = [t for t in marks.get(funnel.steps[0], ()) if t > after_ms]
        if not firsts:
            return found
        begin = firsts[0]
        best: list[int] = []
        for first in firsts:
            if first > begin + funnel.within_ms:
                break
            done = walk_from(funnel, marks, first)
            if len(done) > len(best):
                best = done
            if len(done) == len(funnel.steps):
                break
        whole = len(best) == len(funnel.steps)
        after_ms = best[-1] if whole else max(begin + funnel.within_ms, best[-1])
        found.append(Way(begin, best, after_ms))


def thinned(marks: Iterable[tuple[int, str]], firsts: Mapping[str, int]) -> dict[str, list[int]]:
    """Return what a person is told of the marks of a browser: many of one step are not all needed.

    Args:
        marks: When (UTC ms) which step was done, in order of time.
        firsts: Step that only begins funnels → of how much time, ms, its first mark stands for all.

    Example:
        >>> thinned([(1, "item"), (2, "item"), (3, "cart"), (11, "item")], {"item": 10})
        {'item': [1, 11], 'cart': [3]}
    """
    found: dict[str, list[int]] = {}
    for at, step in marks:
        every = firsts.get(step)
        times = found.setdefault(step, [])
        if every is None or not times or times[-1] // every < at // every:
            times.append(at)
    for step, times in found.items():
        if step not in firsts:
            del times[FIRST_MARKS:-LAST_MARKS]
    return found


def spans_of(funnels: Sequence[Funnel]) -> dict[str, int]:
    """Return of how much time (ms) the first mark stands for all, of steps that only begin funnels.

    It is the same for all of them, so that what is forgotten ends between two such times.
    """
    later = {step for funnel in funnels for step in funnel.steps[1:]}
    span = max(1, min((funnel.within_ms for funnel in funnels), default=0) // PARTS)
    return dict.fromkeys({funnel.steps[0] for funnel in funnels} - later, span)


def gone_row(funnel: str, person: str, way: int) -> PersonFunnel:
    """Return the row of a way that there is not any more; without a revision."""
    return PersonFunnel(
        funnel=funnel,
        person=person,
        way=way,
        arm="",
        cohort_ms=0,
        begin_ms=0,
        end_ms=0,
        reached=0,
        steps=0,
        reached_step="",
        dropped_at=None,
        step_ms=[],
        browsers=0,
        revision=0,
        deleted=True,
    )


def rows_of(funnel: Funnel, kept: KeptWays, marks: Marks, person: str, arm: str) -> dict[int, PersonFunnel]:
    """Return the rows of the ways of a person that may still change, by number; without a revision.

    Args:
        funnel: The funnel.
        kept: What is kept of the person's ways.
        marks: The marks of all its browsers that may be known.
        person: Who.
        arm: Arm of the experiment.
    """
    over = kept.over.get(funnel.name) or Over()
    found = ways(funnel, marks, over.end_ms)
    cohort = over.first_ms if over.number else (found[0].begin_ms if found else 0)
    rows = {}
    for number, way in enumerate(found, over.number + 1):
        reached = len(way.done)
        where = {
            visitor
            for visitor, (_, own) in kept.by.items()
            for step, at in zip(funnel.steps, way.done, strict=False)
            if at in own.get(step, ())
        }
        rows[number] = PersonFunnel(
            funnel=funnel.name,
            person=person,
            way=number,
            arm=arm,
            cohort_ms=cohort,
            begin_ms=way.begin_ms,
            end_ms=way.end_ms,
            reached=reached,
            steps=len(funnel.steps),
            reached_step=funnel.steps[reached - 1],
            dropped_at=funnel.steps[reached] if reached < len(funnel.steps) else None,
            step_ms=[b - a for a, b in pairwise(way.done)],
            browsers=len(where),
            revision=0,
        )
    return rows
