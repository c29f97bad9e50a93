"""What the tests of patterns share: events that are letters, and a matcher that knows no automaton.

The oracle is written from the meaning of a pattern (docs/patterns.md): it chooses events for one part after
the other in every possible way and looks at what lies between them in the whole list. Nothing is kept from
event to event, and skip strategies are applied at the end, to all matches at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from millrace.patterns import Pattern, Skip, detect
from millrace.testing import TestDriver


class Ev(msgspec.Struct, frozen=True, order=True):
    """An event: what it is called, a letter first, and a number to tell it from others."""

    name: str
    n: int = 0


def read(text: str) -> list[tuple[int, Ev]]:
    """Return times and events of ``"a1 b2 x3@7"``: a name ends with its number; times go 1, 2, 3, ...

    The number is the event's ``n``; ``@`` gives the time.
    """
    found: list[tuple[int, Ev]] = []
    at = 0
    for word in text.split():
        name, _, time = word.partition("@")
        at = int(time) if time else at + 1
        digits = "".join(c for c in name if c.isdigit())
        found.append((at, Ev(name, int(digits or 0))))
    return found


def run(pattern: Pattern, text: str, **options: Any) -> TestDriver:
    """Return a driver after the events and the end of the input."""
    driver = TestDriver(detect(Ev, pattern, **options))
    for at, event in read(text):
        driver.send("k", event, at=at)
    driver.drain()
    return driver


def names(matched: dict[str, list[Ev]]) -> str:
    """Return the events of a match in order of parts: ``"a1 b1 b2"``."""
    return " ".join(e.name for events in matched.values() for e in events)


def matches(pattern: Pattern, text: str, *, keep_forever: bool = True, **options: Any) -> list[str]:
    """Return the matches in a text, in order of emission; the pattern need have no ``within``."""
    driver = run(pattern, text, keep_forever=keep_forever, **options)
    return [names(m.matched) for m in driver.values()]


#: More than any time and any place.
FAR = 1 << 60

#: Part's name and place of the event, for each event taken.
Taken = tuple[tuple[str, int], ...]


# -- the oracle ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """One way to take events: (part's name, place of the event), and when it is known to be a match.

    ``known`` is the time and place of the event that completes it, or the moment some time is over, which
    stands after the events of its instant.
    """

    taken: Taken
    known: tuple[float, float]

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(place for _, place in self.taken)


class Oracle:
    """All matches of a pattern without groups in a list of events, from its meaning."""

    def __init__(self, pattern: Pattern, events: Sequence[tuple[int, Ev]]) -> None:
        self.parts = pattern.parts
        self.within = pattern.within_ms
        self.gaps = [FAR if (gap := p.gap_ms or pattern.gap_ms) is None else gap for p in self.parts]
        self.times = [at for at, _ in events]
        self.events = [event for _, event in events]
        self.names = pattern.names()

    def holds(self, condition: Any, place: int, taken: Taken) -> bool:
        if condition is None:
            return True
        if condition.kind == "and":
            return all(self.holds(c, place, taken) for c in condition.of)
        if condition.kind == "or":
            return any(self.holds(c, place, taken) for c in condition.of)
        if condition.kind == "type":
            return isinstance(self.events[place], condition.of)
        matched = {n: [self.events[p] for name, p in taken if name == n] for n in self.names}
        try:
            return bool(condition.of(self.events[place], matched))
        except TypeError:
            return bool(condition.of(self.events[place]))

    def ways(self) -> set[Way]:
        """Return all matches, no strategy applied."""
        found = set()
        for count in self._counts():
            for taken in self._assign(count, ()) if any(count) else ():
                known = self._known(taken)
                if known is not None:
                    found.add(Way(taken, known))
        # The same events for the same parts are one match, known as soon as one reading of it is.
        first: dict[Taken, tuple[float, float]] = {}
        for way in found:
            first[way.taken] = min(way.known, first.get(way.taken, way.known))
        return {Way(taken, known) for taken, known in first.items()}

    def _counts(self) -> Iterator[tuple[int, ...]]:
        """Yield how often each part may come: 0 where it is missing or must not come."""
        n = len(self.events)
        choices = []
        for part in self.parts:
            if part.negated:
                choices.append([0])
                continue
            most = n if part.most is None else min(part.most, n)
            choices.append([0] * part.is_optional + list(range(part.least, most + 1)))
        yield from itertools.product(*choices)

    def _assign(self, counts: tuple[int, ...], taken: Taken) -> Iterator[Taken]:
        """Yield the ways to take events so often for each part."""
        slots = [index for index, count in enumerate(counts) for _ in range(count)]
        if len(taken) == len(slots):
            yield taken
            return
        for place in self._in_time(taken):
            if self._fits(taken, slots[len(taken)], place):
                yield from self._assign(counts, (*taken, (self.parts[slots[len(taken)]].name, place)))

    def _in_time(self, taken: Taken) -> list[int]:
        """Return the events after those taken that come while there is time."""
        first = taken[-1][1] + 1 if taken else 0
        if self.within is None or not taken:
            return list(range(first, len(self.events)))
        end = self.times[taken[0][1]] + self.within
        return [place for place in range(first, len(self.events)) if self.times[place] < end]

    def _fits(self, taken: Taken, index: int, place: int) -> bool:
        """Whether the part ``index`` may take the event at ``place`` after those taken."""
        part = self.parts[index]
        if taken and self.times[place] - self.times[taken[-1][1]] >= self.gaps[index]:
            return False
        if not self.holds(part.condition, place, taken):
            return False
        if part.stop is not None and self.holds(part.stop, place, taken):
            return False
        if not taken:
            return not any(p.is_greedy and self._fits((), i, place) for i, p in enumerate(self.parts[:index]))
        before = self._index(taken)
        gap = range(taken[-1][1] + 1, place)
        kind = (part.inner or "followed_by") if before == index else part.contiguity
        if kind == "next" and gap:
            return False
        if kind == "followed_by" and any(self.holds(part.condition, p, taken) for p in gap):
            return False
        touched = [*gap, place]
        if before != index:
            return not self._forbidden(taken, index, touched) and not any(
                self._taken_by_greedy(taken, index, p) for p in touched
            )
        # Among the repetitions of a part: neither what ends them nor what must not follow the part.
        after = itertools.takewhile(lambda p: p.contiguity == "not_followed_by", self.parts[index + 1 :])
        stops = [part.stop] if part.stop is not None else []
        stops += [p.condition for p in after]
        return not any(self.holds(stop, p, taken) for stop in stops for p in touched)

    def _index(self, taken: Taken) -> int:
        return [part.name for part in self.parts].index(taken[-1][0])

    def _forbidden(self, taken: Taken, until: int, touched: Sequence[int]) -> bool:
        """Whether what must not come before the part ``until`` is among events after the last taken."""
        for part in self.parts[self._index(taken) + 1 : until]:
            looked_at = touched[:1] if part.contiguity == "not_next" else touched
            if part.negated and any(self.holds(part.condition, p, taken) for p in looked_at):
                return True
        return False

    def _taken_by_greedy(self, taken: Taken, until: int, place: int) -> bool:
        """Whether a greedy part before ``until``, going on or beginning, could take an event."""
        before = self._index(taken)
        own = self.parts[before]
        count = sum(1 for name, _ in taken if name == own.name)
        if own.is_greedy and (own.most is None or count < own.most) and self._fits(taken, before, place):
            return True
        return any(self.parts[i].is_greedy and self._fits(taken, i, place) for i in range(before + 1, until))

    def _known(self, taken: Taken) -> tuple[float, float] | None:
        """Return when a way is known to be a match; ``None`` if it is none."""
        before, last = self._index(taken), taken[-1][1]
        # What must not come counts at the end only if nothing optional follows it.
        trailing = list(itertools.takewhile(lambda p: p.negated, reversed(self.parts[before + 1 :])))
        own = self.parts[before]
        count = sum(1 for name, _ in taken if name == own.name)
        greedy = [before] if own.is_greedy and (own.most is None or count < own.most) else []
        greedy += [i for i in range(before + 1, len(self.parts)) if self.parts[i].is_greedy]
        if not trailing and not greedy:
            return self.times[last], last
        to_the_end = any(p.contiguity == "not_followed_by" for p in trailing)
        # For so long after the last event something must not come, or could be taken.
        forbidden = self.gaps[-1] if trailing else 0
        over = max([forbidden, *(self.gaps[i] for i in greedy)])
        end = self.times[last] + over - 1
        if self.within is not None:
            end = min(end, self.times[taken[0][1]] + self.within - 1)
        rest = [place for place in range(last + 1, len(self.events)) if self.times[place] <= end]
        for number, place in enumerate(rest if to_the_end else rest[:1]):
            if self.times[place] - self.times[last] < forbidden:
                looked_at = [p for p in trailing if p.contiguity == "not_followed_by" or not number]
                if any(self.holds(part.condition, place, taken) for part in looked_at):
                    return None
            if self._taken_by_greedy(taken, len(self.parts), place):
                return None
        return (end, FAR) if to_the_end or not rest else (self.times[rest[0]], rest[0])

    # -- strategies --------------------------------------------------------------------------------

    def matches(self, skip: Skip) -> list[Taken]:
        """Return the matches that a strategy leaves: start after start, of one start as they are known."""
        ways = sorted(
            self.ways(), key=lambda w: (w.places[0], w.known, (*w.places, len(self.events)), self._order(w))
        )
        if skip.kind == "no_skip":
            return [w.taken for w in ways]
        found = []
        line = 0  # matches that begin before this event are skipped
        for way in ways:
            if way.places[0] < line:
                continue
            found.append(way.taken)
            if skip.kind == "to_next":
                line = max(line, way.places[0] + 1)
            elif skip.kind == "past_last":
                line = max(line, way.places[-1] + 1)
            else:
                of = [place for name, place in way.taken if name == skip.name]
                line = max(line, of[0 if skip.kind == "to_first" else -1]) if of else line
        return found

    def _order(self, way: Way) -> list[int]:
        return [self.names.index(name) for name, _ in way.taken]


def oracle(pattern: Pattern, events: Sequence[tuple[int, Ev]], skip: Skip) -> list[dict[str, list[Ev]]]:
    """Return the matches of a pattern in a list of events, part → events."""
    found = []
    for taken in Oracle(pattern, events).matches(skip):
        matched: dict[str, list[Ev]] = {}
        for name, place in taken:
            matched.setdefault(name, []).append(events[place][1])
        found.append(matched)
    return found
