"""The automaton (NFA) of a pattern: what may be taken next after each place in it.

A *position* is a place at which an event is taken: a part, or the n-th repetition of one. A partial match
stands at the position of its last event. An *edge* leads to a position that may take a later event, and
says what may lie between: nothing (strict), nothing that the position would take (relaxed), or anything; and
what must not. So one partial match stands for one way to take events, however it may go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from millrace.patterns.conditions import Condition, PatternDefinitionError, Test
from millrace.patterns.definition import Part, Pattern
from millrace.time import NEVER

#: What may lie between two events.
STRICT: Final = 0
RELAXED: Final = 1
ANY: Final = 2
_GAPS: Final = {"next": STRICT, "followed_by": RELAXED, "followed_by_any": ANY}

#: Target of an edge that ends the pattern with the event that follows, unless that forbids it.
END_AT_NEXT: Final = -1
#: Target of an edge that ends the pattern when its time is over, unless an event has forbidden it.
END_AT_DEADLINE: Final = -2
#: Where no event has been taken yet.
START: Final = -1

#: A partial match keeps the edges that it still has as the bits of a number.
_MOST_EDGES: Final = 60
_MOST_POSITIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Edge:
    """A way on.

    Attributes:
        bit: Its bit.
        target: The position that it leads to, or ``END_AT_NEXT``, ``END_AT_DEADLINE``.
        gap: What may lie between.
        condition: Number of the condition of the target, -1 for none.
        unless: Conditions of events that it does not take.
        killers: Conditions of events that end it, whether they would be taken or passed over.
        first: The same for the first event only.
        yields: Bits of the edges that go before it: if one of them takes an event, this one ends.
        within: In what time after the event of its position it takes one, ms; one that ends the pattern: when
            it does so of itself. ``NEVER``: any.
        forbids: Of one that ends the pattern: for how long ``killers`` and ``first`` end it, ms.
    """

    bit: int
    target: int
    gap: int
    condition: int
    unless: tuple[int, ...] = ()
    killers: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    yields: int = 0
    within: int = NEVER
    forbids: int = NEVER


@dataclass(frozen=True, slots=True)
class Position:
    """A place at which an event is taken.

    Attributes:
        name: The part's name.
        edges: The ways on; one that yields to another comes after it.
        accepts: Whether the pattern is complete here.
        mask: The bits of all edges.
        ends: The bits of those that end the pattern.
    """

    name: str
    edges: tuple[Edge, ...]
    accepts: bool
    mask: int
    ends: int


@dataclass(frozen=True)
class Automaton:
    """A compiled pattern.

    Attributes:
        positions: All positions.
        start: The ways to begin.
        tests: The conditions, and whether each needs the matched events.
        names: The parts that take events, in order.
    """

    positions: tuple[Position, ...]
    start: tuple[Edge, ...]
    tests: tuple[tuple[Test, bool], ...]
    names: tuple[str, ...]

    @property
    def keeps(self) -> bool:
        """Whether a partial match may have to be kept."""
        return any(position.edges for position in self.positions)

    @property
    def ends_late(self) -> bool:
        """Whether a match may come after its last event."""
        return any(position.ends for position in self.positions)

    @property
    def needs_deadline(self) -> bool:
        """Whether a match may come only when the time of the whole is over."""
        return any(e.target == END_AT_DEADLINE and e.within == NEVER for p in self.positions for e in p.edges)

    @property
    def has_gaps(self) -> bool:
        """Whether some events must come in a time after the one before."""
        return any(min(e.within, e.forbids) != NEVER for p in self.positions for e in p.edges)

    @property
    def ends_by_gaps(self) -> bool:
        """Whether no partial match stays for ever when no more events come."""
        return all(e.within != NEVER for p in self.positions for e in p.edges)


@dataclass(frozen=True)
class _Exit:
    """A place that the pattern goes on from, and what was passed since its event.

    Attributes:
        source: The position.
        nots: What must not come until the next event that is taken.
        first: What must not come directly after.
        ends: The same two, as far as they hold at the pattern's end: what an optional part follows does not.
        yields: Positions of greedy parts that go before whatever follows.
    """

    source: int
    nots: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    ends: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    yields: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Link:
    """An edge before it has a bit."""

    source: int
    target: int
    gap: int
    unless: tuple[int, ...]
    killers: tuple[int, ...]
    first: tuple[int, ...]
    yields: frozenset[int]
    within: int = NEVER
    forbids: int = NEVER


@dataclass
class _Compiler:
    #: In what time events follow each other, of parts that do not say, ms.
    gap_ms: int | None = None
    conditions: list[Condition] = field(default_factory=list)
    #: Name and condition of each position.
    places: list[tuple[str, int]] = field(default_factory=list)
    links: list[_Link] = field(default_factory=list)
    #: Of the groups around: their first position, and what ends them.
    stops: list[tuple[int, int]] = field(default_factory=list)
    probes: int = START

    def condition(self, condition: Condition | None) -> int:
        if condition is None:
            return -1
        for number, known in enumerate(self.conditions):
            if known is condition:
                return number
        self.conditions.append(condition)
        return len(self.conditions) - 1

    def place(self, name: str, condition: int) -> int:
        if len(self.places) == _MOST_POSITIONS:
            raise PatternDefinitionError(
                f"the pattern repeats its parts over {_MOST_POSITIONS:,} times in all: lower times(...)"
            )
        self.places.append((name, condition))
        return len(self.places) - 1

    def within(self, part: Part) -> int:
        """Return in what time after the one before them the events of a part come, ms."""
        limit = part.gap_ms or self.gap_ms
        return NEVER if limit is None else limit

    def link(
        self, leave: _Exit, target: int, gap: int, stop: tuple[int, ...], within: int, *, inside: bool
    ) -> None:
        """Lead from an exit to a position.

        Args:
            leave: Where from.
            target: Where to.
            gap: What may lie between.
            stop: What ends the repetitions of the target's part.
            within: In what time, ms.
            inside: Whether this is one of its repetitions.
        """
        unless = () if inside else stop
        killers = (*leave.nots, *(stop if inside else ()))
        for base, condition in self.stops:
            if leave.source >= base:
                killers = (*killers, condition)
            else:
                unless = (*unless, condition)
        said = (unless, killers, leave.first, leave.yields, within)
        self.links.append(_Link(leave.source, target, gap, *said))

    # -- parts -----------------------------------------------------------------------------------

    def sequence(self, parts: tuple[Part, ...], exits: list[_Exit], gap: int | None = None) -> list[_Exit]:
        """Compile parts one after the other; return where the pattern goes on from.

        Args:
            parts: The parts.
            exits: What is before them.
            gap: How the first one follows, instead of as it says itself.
        """
        for index, part in enumerate(parts):
            if part.negated:
                exits = [self._forbid(part, leave) for leave in exits]
                continue
            how = _GAPS[part.contiguity] if index or gap is None else gap
            if part.group:
                exits = self._group(part, exits, how)
            else:
                exits = self._repeat(part, parts[index + 1 :], exits, how)
            exits = list(dict.fromkeys(exits))
        return exits

    def _forbid(self, part: Part, leave: _Exit) -> _Exit:
        if leave.source == START:
            raise PatternDefinitionError(
                f"{part.label} follows parts that are all optional: there may be no event that it is after"
            )
        condition = self.condition(part.condition)
        nots, first = leave.ends
        if part.contiguity == "not_next":
            return replace(leave, first=(*leave.first, condition), ends=(nots, (*first, condition)))
        return replace(leave, nots=(*leave.nots, condition), ends=((*nots, condition), first))

    def _repeat(self, part: Part, later: tuple[Part, ...], exits: list[_Exit], gap: int) -> list[_Exit]:
        """Compile a single part, which the parts ``later`` follow, with its repetitions."""
        condition = self.condition(part.condition)
        stop = () if part.stop is None else (self.condition(part.stop),)
        # What must not follow a repeated part must not come among its events either.
        among = []
        for follower in later:
            if follower.contiguity != "not_followed_by":
                break
            among.append(self.condition(follower.condition))
        copies = [self.place(part.name, condition) for _ in range(part.most or part.least)]
        within = self.within(part)
        for leave in exits:
            self.link(leave, copies[0], gap, stop, within, inside=False)
        inner = _GAPS[part.inner or "followed_by"]
        made = []
        for number, copy in enumerate(copies, 1):
            further = copies[number] if number < len(copies) else copy if part.most is None else None
            if further is not None:
                self.link(_Exit(copy, tuple(among)), further, inner, stop, within, inside=True)
            if number >= part.least:
                waits = part.is_greedy and further is not None
                made.append(_Exit(copy, yields=frozenset([further] if waits and further is not None else [])))
        return made + self._passed(part, exits, copies[0])

    def _passed(self, part: Part, exits: list[_Exit], entry: int) -> list[_Exit]:
        """Return the exits that pass over an optional part."""
        if not part.is_optional:
            return []
        before = frozenset([entry] if part.is_greedy else [])
        return [replace(leave, ends=((), ()), yields=leave.yields | before) for leave in exits]

    def _group(self, part: Part, exits: list[_Exit], gap: int) -> list[_Exit]:
        """Compile a group with its repetitions."""
        inner = _GAPS[part.inner or "followed_by"]
        if part.stop is not None:
            self.stops.append((len(self.places), self.condition(part.stop)))
        made: list[_Exit] = []
        inside = exits
        count = part.most or part.least
        for number in range(1, count + 1):
            loops = part.most is None and number == count
            self.probes -= 1
            probe = self.probes
            entering = [*inside, _Exit(probe)] if loops else inside
            inside = self.sequence(part.group, entering, gap if number == 1 else inner)
            if loops:
                inside = self._loop(probe, inside, inner)
            if number >= part.least:
                made += inside
        if part.stop is not None:
            self.stops.pop()
        return made + self._passed(part, exits, -1)

    def _loop(self, probe: int, exits: list[_Exit], inner: int) -> list[_Exit]:
        """Lead from the exits of a group back to its entries: those that a probe before it has found."""
        entries = [link for link in self.links if link.source == probe]
        self.links = [link for link in self.links if link.source != probe]
        exits = [leave for leave in exits if leave.source != probe]
        first = min((link.target for link in entries), default=0)
        stops = {condition for base, condition in self.stops if base <= first}
        for leave in exits:
            if leave.source < first:
                continue  # it has passed over the whole group
            for entry in entries:
                unless = tuple(c for c in entry.unless if c not in stops)
                killers = (*leave.nots, *entry.killers, *(c for c in entry.unless if c in stops))
                # Its first part follows as repetitions do, one behind optional parts as it says itself.
                gap = inner if entry.target == first else entry.gap
                met, yields = (*leave.first, *entry.first), leave.yields | entry.yields
                said = (unless, killers, met, yields, entry.within)
                self.links.append(_Link(leave.source, entry.target, gap, *said))
        return exits

    # -- the whole -------------------------------------------------------------------------------

    def finish(self, pattern: Pattern, exits: list[_Exit]) -> Automaton:
        if any(leave.source == START for leave in exits):
            raise PatternDefinitionError("all parts are optional: the pattern would match nothing at all")
        ends: dict[int, list[_Exit]] = {}
        for leave in exits:
            ends.setdefault(leave.source, []).append(leave)
        positions = []
        for number, (name, _) in enumerate(self.places):
            edges, accepts = self._edges(number, ends.get(number, []), self.within(pattern.parts[-1]))
            mask = sum(edge.bit for edge in edges)
            last = sum(edge.bit for edge in edges if edge.target < 0)
            positions.append(Position(name, edges, accepts, mask, last))
        start, _ = self._edges(START, [], NEVER)
        tests = tuple(condition.compile() for condition in self.conditions)
        return Automaton(tuple(positions), start, tests, tuple(pattern.names()))

    def _edges(self, source: int, ends: list[_Exit], forbids: int) -> tuple[tuple[Edge, ...], bool]:
        """Return the edges of a position, and whether the pattern is complete there.

        Args:
            source: The position.
            ends: Where the pattern may end after it.
            forbids: For how long something must not come at the end, ms.
        """
        links = [link for link in self.links if link.source == source]
        accepts = any(not any(leave.ends) and not leave.yields for leave in ends)
        if not accepts:
            for leave in ends:
                (nots, first), target = leave.ends, END_AT_DEADLINE if leave.ends[0] else END_AT_NEXT
                # It is known when nothing may forbid it any more, nor go before it.
                over = [link.within for link in links if link.target in leave.yields]
                over += [forbids] if nots or first else []
                times = (max(over), forbids)
                links.append(_Link(source, target, ANY, (), nots, first, leave.yields, *times))
        # One that yields has passed the greedy part, so it yields to all that this one yields to.
        links.sort(key=lambda link: len(link.yields))
        if len(links) > _MOST_EDGES:
            raise PatternDefinitionError(
                f"after '{self.places[source][0] if source >= 0 else 'the start'}' over {_MOST_EDGES} parts"
                " may come next: fewer optional ones"
            )
        edges = []
        for number, link in enumerate(links):
            before = sum(1 << i for i, other in enumerate(links[:number]) if other.target in link.yields)
            condition = self.places[link.target][1] if link.target >= 0 else -1
            said = (link.unless, link.killers, link.first, before, link.within, link.forbids)
            edges.append(Edge(1 << number, link.target, link.gap, condition, *said))
        return tuple(edges), accepts


def compile_pattern(pattern: Pattern) -> Automaton:
    """Return the automaton of a pattern.

    Raises:
        PatternDefinitionError: The pattern contradicts itself.
    """
    pattern.check()
    compiler = _Compiler(pattern.gap_ms)
    exits = compiler.sequence(pattern.parts, [_Exit(START)])
    return compiler.finish(pattern, exits)
