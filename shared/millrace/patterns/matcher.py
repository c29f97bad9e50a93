"""The matcher: (buffer, event) → (buffer, matches), with no engine and no clock."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from millrace.patterns.automaton import ANY, END_AT_NEXT, RELAXED, Automaton
from millrace.patterns.buffer import FRESH, MATCHED, chain, grow, kept_type, release, store
from millrace.patterns.skip import Skip
from millrace.time import NEVER


class Found(NamedTuple):
    """A match, or a partial match whose time is over.

    Attributes:
        matched: Part's name → its events, in order; parts without events are left out.
        start_ms: Time of the first event.
        end_ms: Time of the last one.
    """

    matched: dict[str, list[Any]]
    start_ms: int
    end_ms: int


class Dropped(NamedTuple):
    """Partial matches that were dropped because there were too many.

    Attributes:
        number: How many.
        first_start_ms: Time of the first event of the oldest.
        last_start_ms: That of the newest.
    """

    number: int
    first_start_ms: int
    last_start_ms: int


class Matcher:
    """Takes a key's events one by one, in order of time.

    Args:
        automaton: The compiled pattern.
        event_type: Type of the events.
        skip: The after-match skip strategy.
        within_ms: In what time all of a match must come, ms; ``None``: any.
        most: Most partial matches per key.
    """

    def __init__(
        self, automaton: Automaton, event_type: Any, skip: Skip, within_ms: int | None, most: int
    ) -> None:
        self._positions = automaton.positions
        self._start = automaton.start
        self._names = automaton.names
        self._tests = [function for function, _ in automaton.tests]
        self._needs = [needs for _, needs in automaton.tests]
        #: What is known of an event's conditions before they are asked; that of no condition, -1, holds.
        self._unknown: list[bool | None] = [*[None] * len(automaton.tests), True]
        self._skip = skip
        self._keeps_all = skip.kind == "no_skip"
        self._within = within_ms
        #: Whether some events must come in a time after the one before.
        self.has_gaps = automaton.has_gaps
        self._most = most
        #: Type of what is kept of a key.
        self.type: Any = kept_type(event_type)

    def deadline(self, kept: Any, *, newest: bool = False) -> int | None:
        """Return the last instant (ms) before a partial match ends, or is known to be a match, by time.

        Args:
            kept: What is kept of a key.
            newest: Of the partial match that ends last, in place of the first.
        """
        if not kept.live:
            return None
        if self.has_gaps:
            over_of = self._last_over if newest else self._over
            overs = [over for number in kept.live if (over := over_of(kept, number)) != NEVER]
            return (max if newest else min)(overs, default=None)
        if self._within is None:
            return None
        start: int = kept.events[kept.nodes[kept.live[-1 if newest else 0]].start].at
        return start + self._within - 1

    def _over(self, kept: Any, number: int) -> int:
        """Return the last instant (ms) before time does something to a partial match; ``NEVER``: nothing."""
        node = kept.nodes[number]
        soonest, latest = NEVER, 0
        for edge in self._positions[node.position].edges:
            if node.alive & edge.bit:
                latest = max(latest, edge.within)
                if edge.target < 0:
                    soonest = min(soonest, edge.within)
        gap, events = min(soonest, latest), kept.events
        over = NEVER if gap == NEVER else events[node.event].at + gap - 1
        return over if self._within is None else int(min(over, events[node.start].at + self._within - 1))

    def _last_over(self, kept: Any, number: int) -> int:
        """Return what no end of it by time is later than: some of its ways on may end before others."""
        node = kept.nodes[number]
        if self._within is not None:
            return int(kept.events[node.start].at + self._within - 1)
        edges = [e for e in self._positions[node.position].edges if node.alive & e.bit]
        gaps = [e.within for e in edges if e.within != NEVER]
        return int(kept.events[node.event].at + max(gaps) - 1) if gaps else NEVER

    # -- an event --------------------------------------------------------------------------------

    def take(self, kept: Any, event: Any, at: int) -> tuple[Any, list[Found]]:
        """Handle an event.

        Args:
            kept: What is kept of the key, ``None`` for nothing; changed in place.
            event: The event.
            at: Its time, ms.

        Returns:
            What is kept now, and the matches that it completes, in order.
        """
        known = self._unknown.copy()
        begins = self._begins(event, known)
        if kept is None:
            if not begins:
                return None, []
            kept = self.type()
        stored = 0
        matches: list[int] = []
        live: list[int] = []
        children: list[int] = []
        nodes = kept.nodes
        start = 0
        for number in kept.live:
            node = nodes[number]
            if node.start != start:
                # Oldest first: by first event, then by when they came to be.
                live += children
                children = []
                start = node.start
            rest, targets = self._step(kept, number, event, at, known, matches)
            for target in targets:
                if not stored:
                    stored = store(kept, at, event)
                self._place(kept, number, stored, target, matches, children)
            if rest:
                node.alive = rest
                node.flags &= ~FRESH
                live.append(number)
            else:
                release(kept, number)
        live += children
        for target in begins:
            if not stored:
                stored = store(kept, at, event)
            self._place(kept, 0, stored, target, matches, live)
        kept.live = live
        found = self._settle(kept, matches) if matches or kept.held else []
        return kept, found

    def _place(
        self, kept: Any, parent: int, event: int, target: int, matches: list[int], live: list[int]
    ) -> None:
        """Take an event at a position after ``parent``."""
        position = self._positions[target]
        number = grow(kept, parent, event, target, position)
        node = kept.nodes[number]
        if position.accepts:
            node.flags |= MATCHED
            node.uses += 1
            matches.append(number)
        if position.mask:
            node.uses += 1
            live.append(number)

    def _begins(self, event: Any, known: list[bool | None]) -> list[int]:
        """Return the positions at which an event may be the first."""
        taken = 0
        found: list[int] = []
        for edge in self._start:
            if edge.yields & taken:
                continue
            if self._holds(edge.condition, event, known, None, 0) and not (
                edge.unless and self._any(edge.unless, event, known, None, 0)
            ):
                taken |= edge.bit
                found.append(edge.target)
        return found

    def _step(
        self, kept: Any, number: int, event: Any, at: int, known: list[bool | None], matches: list[int]
    ) -> tuple[int, list[int]]:
        """Return the edges that a partial match has left, and the positions that take the event."""
        node = kept.nodes[number]
        alive, fresh = node.alive, node.flags & FRESH
        position = self._positions[node.position]
        free = 0  # edges that nothing forbids any more
        if self.has_gaps:
            since = at - kept.events[node.event].at
            for edge in position.edges:
                if since >= edge.within:
                    alive &= ~edge.bit
                elif since >= edge.forbids:
                    free |= edge.bit
        rest = taken = 0
        targets: list[int] = []
        for edge in position.edges:
            if not alive & edge.bit or edge.yields & taken:
                continue
            if edge.killers and not free & edge.bit and self._any(edge.killers, event, known, kept, number):
                continue
            if (
                fresh
                and edge.first
                and not free & edge.bit
                and self._any(edge.first, event, known, kept, number)
            ):
                continue
            target = edge.target
            if target < 0:
                if target == END_AT_NEXT:
                    self._complete(kept, number, matches)
                else:
                    rest |= edge.bit
                continue
            fits = known[edge.condition]
            if fits is None:
                fits = self._holds(edge.condition, event, known, kept, number)
            if fits:
                if not (edge.unless and self._any(edge.unless, event, known, kept, number)):
                    taken |= edge.bit
                    if target not in targets:
                        targets.append(target)
                if edge.gap == ANY:
                    rest |= edge.bit
            elif edge.gap >= RELAXED:
                rest |= edge.bit
        return rest, targets

    @staticmethod
    def _complete(kept: Any, number: int, matches: list[int]) -> None:
        node = kept.nodes[number]
        if not node.flags & MATCHED:
            node.flags |= MATCHED
            node.uses += 1
            matches.append(number)

    def _any(
        self, conditions: Iterable[int], event: Any, known: list[bool | None], kept: Any, number: int
    ) -> bool:
        return any(self._holds(c, event, known, kept, number) for c in conditions)

    def _holds(self, condition: int, event: Any, known: list[bool | None], kept: Any, number: int) -> bool:
        """Return whether a condition holds; one of the event alone is asked once."""
        if condition >= 0 and self._needs[condition]:
            matched: dict[str, list[Any]] = {name: [] for name in self._names}
            if number:
                self._fill(matched, kept, number)
            return bool(self._tests[condition](event, matched))
        holds = known[condition]
        if holds is None:
            holds = known[condition] = bool(self._tests[condition](event))
        return holds

    # -- time ------------------------------------------------------------------------------------

    def expire(self, kept: Any, now: int) -> tuple[list[Found], list[Found]]:
        """End the partial matches whose time is over at ``now`` (ms).

        Returns:
            The matches that only this moment completes, or no longer holds back; and the partial matches
            that were none.
        """
        if self.has_gaps:
            return self._expire_gaps(kept, now)
        within = self._within
        if within is None:
            return [], []
        nodes, events = kept.nodes, kept.events
        over = 0
        matches: list[int] = []
        timed_out: list[Found] = []
        for number in kept.live:
            if events[nodes[number].start].at + within - 1 > now:
                break
            over += 1
            self._end(kept, number, nodes[number].alive, matches, timed_out)
        gone, kept.live = kept.live[:over], kept.live[over:]
        return self._gone(kept, gone, matches), timed_out

    def _expire_gaps(self, kept: Any, now: int) -> tuple[list[Found], list[Found]]:
        """As :meth:`expire`, where a partial match may lose some of its ways before others."""
        within, nodes, events = self._within, kept.nodes, kept.events
        live: list[int] = []
        gone: list[int] = []
        matches: list[int] = []
        timed_out: list[Found] = []
        for number in kept.live:
            node = nodes[number]
            over = node.alive
            if within is None or events[node.start].at + within - 1 > now:
                since = now + 1 - events[node.event].at
                edges = self._positions[node.position].edges
                over &= sum(edge.bit for edge in edges if since >= edge.within)
            if over == node.alive:
                self._end(kept, number, over, matches, timed_out)
                gone.append(number)
                continue
            if over & self._positions[node.position].ends:
                self._complete(kept, number, matches)
            node.alive &= ~over
            live.append(number)
        kept.live = live
        return self._gone(kept, gone, matches), timed_out

    def _gone(self, kept: Any, gone: list[int], matches: list[int]) -> list[Found]:
        for number in gone:
            release(kept, number)
        return self._settle(kept, matches)

    def _end(self, kept: Any, number: int, over: int, matches: list[int], timed_out: list[Found]) -> None:
        """Say what a partial match was whose last ways on are over."""
        node = kept.nodes[number]
        if over & self._positions[node.position].ends:
            self._complete(kept, number, matches)
        elif not node.flags & MATCHED:
            timed_out.append(self._found(kept, number))

    def limit(self, kept: Any) -> tuple[Dropped | None, list[Found]]:
        """Drop the oldest partial matches where there are too many.

        Returns:
            What was dropped, and the matches that were held back by it.
        """
        over = len(kept.live) - self._most
        held = len(kept.held) - self._most
        if over <= 0 and held <= 0:
            return None, []
        if held > 0:  # as many as it takes for the first to be free
            free = _start(kept, kept.held[held - 1])
            over = max(over, sum(1 for number in kept.live if _start(kept, number) < free))
        gone, kept.live = kept.live[:over], kept.live[over:]
        starts = [kept.events[_start(kept, number)].at for number in gone]
        dropped = Dropped(len(gone), starts[0], starts[-1])
        for number in gone:
            release(kept, number)
        return dropped, self._settle(kept, [])

    # -- matches ---------------------------------------------------------------------------------

    def _settle(self, kept: Any, matches: list[int]) -> list[Found]:
        """Return the matches that may be reported now, in order, and drop what they skip."""
        if len(matches) > 1:
            matches.sort(key=partial(_precedence, kept))
        if self._keeps_all:
            found = [self._found(kept, number) for number in matches]
            for number in matches:
                release(kept, number)
            return found
        kept.held = sorted([*kept.held, *matches], key=partial(_start, kept))
        found = []
        while kept.held and (not kept.live or _start(kept, kept.held[0]) <= _start(kept, kept.live[0])):
            number = kept.held.pop(0)
            found.append(self._found(kept, number))
            self._prune(kept, number)
            release(kept, number)
        return found

    def _prune(self, kept: Any, number: int) -> None:
        """Drop what a match skips."""
        before = self._boundary(kept, number)
        for name in ("live", "held"):
            numbers = getattr(kept, name)
            gone = [n for n in numbers if kept.nodes[n].start < before]
            if gone:
                setattr(kept, name, numbers[len(gone) :])
                for n in gone:
                    release(kept, n)

    def _boundary(self, kept: Any, number: int) -> int:
        """Return the first event with which what is kept after a match may begin."""
        node, kind = kept.nodes[number], self._skip.kind
        if kind == "to_next":
            return int(node.start) + 1
        if kind == "past_last":
            return int(node.event) + 1
        name = self._skip.name
        of = [n.event for n in chain(kept, number) if self._positions[n.position].name == name]
        return 0 if not of else int(of[0] if kind == "to_first" else of[-1])

    def _found(self, kept: Any, number: int) -> Found:
        matched: dict[str, list[Any]] = {}
        self._fill(matched, kept, number)
        events, node = kept.events, kept.nodes[number]
        return Found(matched, events[node.start].at, events[node.event].at)

    def _fill(self, matched: dict[str, list[Any]], kept: Any, number: int) -> None:
        events, positions = kept.events, self._positions
        for node in chain(kept, number):
            matched.setdefault(positions[node.position].name, []).append(events[node.event].event)


def _start(kept: Any, number: int) -> int:
    """Return the first event of a node."""
    return int(kept.nodes[number].start)


def _precedence(kept: Any, number: int) -> tuple[list[int], list[int]]:
    """Return what orders matches that are complete together.

    The one with the earlier events goes first, and one that goes on before what it goes on from, so that a
    run goes before its parts.
    """
    nodes = chain(kept, number)
    return [*[node.event for node in nodes], NEVER], [node.position for node in nodes]
