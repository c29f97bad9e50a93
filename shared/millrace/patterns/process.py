"""From a pattern to the process that looks for it."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec

from millrace.defined_process import DefinedProcess, class_for
from millrace.patterns.automaton import Automaton, compile_pattern
from millrace.patterns.conditions import PatternDefinitionError
from millrace.patterns.definition import Pattern
from millrace.patterns.matcher import Found, Matcher
from millrace.patterns.skip import Skip, no_skip
from millrace.process import Context, Timer
from millrace.side_outputs import OutputTag, side_output
from millrace.state import ValueState, value_state

#: Name of the one timer of a key: it stands where the time of its oldest partial match is over.
TIMER: Final = "within"
#: Stands beside it where ``select`` runs in a timer: if that raises, the timer's work is taken back and the
#: timer is gone, and this one, which runs no code of the user, ends what is over.
FORGET: Final = "within_over"

#: Columns of the records besides the key.
_COLUMNS: Final = ("matched", "start_ms", "end_ms", "deadline_ms", "dropped", "last_start_ms", "at_ms")


@dataclass(frozen=True)
class Detection:
    """What a pattern process does, as plain data; picklable if its functions are.

    Attributes:
        event_type: Type of the events.
        pattern: What to look for.
        after_match: The after-match skip strategy.
        select: Makes the record of a match, ``None``: the match itself.
        output: Type of those records.
        max_partial_matches: Most partial matches per key.
        keep_forever: Whether partial matches may be kept without an end.
        key: Names of the key's columns in the records.
        name: Name of the process.
        version: Version of the process.
    """

    event_type: Any
    pattern: Pattern
    after_match: Skip
    select: Callable[[Any], Any] | None
    output: Any
    max_partial_matches: int
    keep_forever: bool
    key: tuple[str, ...]
    name: str
    version: int = 1

    def check(self, automaton: Automaton) -> None:
        """Refuse what contradicts itself.

        Raises:
            PatternDefinitionError: It says what, and what to do.
        """
        within = self.pattern.within_ms
        if automaton.needs_deadline and within is None:
            raise PatternDefinitionError(
                "a pattern that ends with not_followed_by() is complete when its time is over: add within()"
            )
        if automaton.keeps and within is None and not automaton.ends_by_gaps and not self.keep_forever:
            raise PatternDefinitionError(
                "without within(...) a key's partial matches stay until they are matched, for ever if they"
                " never are: add within(...), or keep_forever=True if that is meant"
            )
        if (self.select is None) != (self.output is None):
            raise PatternDefinitionError("select= makes records of the type output=: give both or neither")
        if self.max_partial_matches < 1:
            raise PatternDefinitionError("max_partial_matches is at least 1")
        if self.after_match.name and self.after_match.name not in automaton.names:
            raise PatternDefinitionError(
                f"the match is to skip to '{self.after_match.name}', which is no part that takes events;"
                f" there are {', '.join(automaton.names)}"
            )
        for name in self.key:
            if not name.isidentifier() or keyword.iskeyword(name) or name in _COLUMNS:
                raise PatternDefinitionError(f"'{name}' cannot be the name of the key's column")
        if len(set(self.key)) < len(self.key) or not self.key:
            raise PatternDefinitionError(f"columns of one name: {', '.join(self.key)}")

    def record(self, suffix: str, fields: list[tuple[str, Any]]) -> Any:
        """Return a type of records."""
        name = getattr(self.event_type, "__name__", "Event")
        keys: list[tuple[str, Any]] = [(part, str) for part in self.key]
        return msgspec.defstruct(f"{name}{suffix}", keys + fields, frozen=True)


class PatternProcess(DefinedProcess):
    """Looks for a pattern in each key's events; :func:`detect` makes them.

    It is picklable wherever its definition is: the class and its record types, which are made for the
    definition, are made anew at the other end.

    Args:
        detection: What to do.
        automaton: Its pattern, compiled.
    """

    definition: Detection
    records_are: ClassVar[str] = "records"
    key_argument: ClassVar[str] = "detect(..., key=(...))"
    order = "event_time"
    partials: ValueState[Any]
    timed_out: ClassVar[OutputTag[Any]]
    overflow: ClassVar[OutputTag[Any]]
    match_type: ClassVar[Any]

    def __init__(self, detection: Detection, automaton: Automaton, matcher: Matcher) -> None:
        self.definition = detection
        self._matcher = matcher
        self._select = detection.select
        self._limit = detection.max_partial_matches
        waits = detection.after_match.kind != "no_skip" or automaton.ends_late
        self._guarded = detection.select is not None and waits

    def process(self, event: Any, ctx: Context) -> None:
        """Go on with the key's partial matches, and begin new ones."""
        before = self.partials.value
        kept, found = self._matcher.take(before, event, ctx.event_time)
        if kept is None:
            return
        for match in found:
            self._emit(match, ctx)
        if len(kept.live) > self._limit or len(kept.held) > self._limit:
            self._drop(kept, ctx)
        self._keep(kept, before is None, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """End the partial matches whose time is over."""
        kept = self.partials.value
        if kept is None:
            return
        found, timed_out = self._matcher.expire(kept, timer.at)
        if timer.name == FORGET:
            found, timed_out = [], [*found, *timed_out]
        for match in found:
            self._emit(match, ctx)
        for over in timed_out:
            record = self.timed_out.type(*self.key_parts(ctx), *over, timer.at + 1)
            ctx.output(self.timed_out, record)
        self._keep(kept, True, ctx)

    def last_due(self, latest: int) -> int:
        """Return when (ms) the time of the newest partial match is over."""
        kept = self.partials.value
        last = None if kept is None else self._matcher.deadline(kept, newest=True)
        return latest if last is None else last

    def describe(self) -> dict[str, Any]:
        """Return the pattern as a checkpoint's contract has it: partial matches of others are not its own."""
        skip = self.definition.after_match
        said = f"{skip.kind}({skip.name})" if skip.name else skip.kind
        return {"pattern": self.definition.pattern.describe(), "after_match": said}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return build, (self.definition,)

    def _keep(self, kept: Any, wake: bool, ctx: Context) -> None:
        """Keep what is left; ``wake``: no timer is pending."""
        if not kept.live:
            self.partials.clear()
            if not wake or self._guarded:
                ctx.timers.delete(TIMER)
                ctx.timers.delete(FORGET)
            return
        if wake:
            self.partials.value = kept
        if wake or self._matcher.has_gaps:
            # It is not moved when the oldest partial match goes: it fires, finds nothing, and is set anew.
            deadline, pending = self._matcher.deadline(kept), None if wake else ctx.timers.pending(TIMER)
            if deadline is not None and (pending is None or deadline < pending):
                ctx.timers.at(deadline, TIMER)
                if self._guarded:
                    ctx.timers.at(deadline, FORGET)

    def _drop(self, kept: Any, ctx: Context) -> None:
        dropped, found = self._matcher.limit(kept)
        if dropped is not None:
            ctx.output(self.overflow, self.overflow.type(*self.key_parts(ctx), *dropped, ctx.event_time))
        for match in found:
            self._emit(match, ctx)

    def _emit(self, found: Found, ctx: Context) -> None:
        match = self.match_type(*self.key_parts(ctx), *found)
        ctx.emit(match if self._select is None else self._select(match))


def build(detection: Detection) -> PatternProcess:
    """Return the process for a definition.

    Raises:
        PatternDefinitionError: The definition contradicts itself.
    """
    automaton, matcher = _compiled(detection)
    matched: Any = dict[str, list[detection.event_type]]  # type: ignore[name-defined]
    times: list[tuple[str, Any]] = [("start_ms", int), ("end_ms", int)]
    match_type = detection.record("Match", [("matched", matched), *times])
    timed_out = detection.record("TimedOut", [("matched", matched), *times, ("deadline_ms", int)])
    overflow = detection.record(
        "Overflow", [("dropped", int), ("start_ms", int), ("last_start_ms", int), ("at_ms", int)]
    )
    cls = class_for(
        PatternProcess,
        name=detection.name,
        event_type=detection.event_type,
        output_type=match_type if detection.output is None else detection.output,
        version=detection.version,
        partials=value_state(matcher.type),
        timed_out=side_output(timed_out),
        overflow=side_output(overflow),
        match_type=match_type,
    )
    process: PatternProcess = cls(detection, automaton, matcher)
    return process


def _compiled(detection: Detection) -> tuple[Automaton, Matcher]:
    automaton = compile_pattern(detection.pattern)
    detection.check(automaton)
    matcher = Matcher(
        automaton,
        detection.event_type,
        detection.after_match,
        detection.pattern.within_ms,
        detection.max_partial_matches,
    )
    return automaton, matcher


def matcher_of(
    event_type: Any,
    pattern: Pattern,
    *,
    after_match: Skip | None = None,
    max_partial_matches: int = 1_000,
    keep_forever: bool = False,
) -> Matcher:
    """Return what looks for a pattern, for a process of one's own that keeps the partial matches.

    What is kept is of the type ``matcher.type``, ``None`` for nothing. ``take`` adds an event, in order of
    event time; ``expire`` ends what time has ended, at the latest at ``deadline``; ``limit`` keeps to
    ``max_partial_matches`` and is asked after ``take``. :func:`detect` is a process around it.

    Args:
        event_type: Type of the events.
        pattern: What to look for.
        after_match: Which partial matches a match ends: ``no_skip()`` unless given.
        max_partial_matches: Most partial matches that ``limit`` leaves.
        keep_forever: Let partial matches of a pattern without ``within`` stay until they are matched.

    Raises:
        PatternDefinitionError: The pattern contradicts itself.

    Example:
        >>> import msgspec
        >>> from millrace.patterns import begin
        >>> class Login(msgspec.Struct):
        ...     ok: bool
        >>> twice = begin("failed").where(lambda e: not e.ok).times(2).within(60_000)
        >>> matcher = matcher_of(Login, twice)
        >>> kept, found = matcher.take(None, Login(False), 1_000)
        >>> found, matcher.deadline(kept)
        ([], 60999)
        >>> kept, found = matcher.take(kept, Login(False), 2_000)
        >>> [(match.start_ms, match.end_ms, len(match.matched["failed"])) for match in found]
        [(1000, 2000, 2)]
    """
    skip = after_match or no_skip()
    return _compiled(
        Detection(event_type, pattern, skip, None, None, max_partial_matches, keep_forever, ("key",), "")
    )[1]


def detect(
    event_type: Any,
    pattern: Pattern,
    *,
    after_match: Skip | None = None,
    select: Callable[[Any], Any] | None = None,
    output: Any = None,
    max_partial_matches: int = 1_000,
    keep_forever: bool = False,
    key: str | tuple[str, ...] = "key",
    name: str = "",
    version: int = 1,
) -> PatternProcess:
    """Return the process that looks for a pattern in the events of each key, in order of event time.

    A match is emitted with the event that completes it. Besides ``main`` there are the outputs ``timed_out``
    (partial matches whose time was over, at that moment) and ``overflow`` (how many were dropped).

    Args:
        event_type: Type of the events.
        pattern: What to look for.
        after_match: Which partial matches a match ends: ``no_skip()`` unless given.
        select: Makes a record of a match; it has the key, ``matched`` (part's name → events), ``start_ms``
            and ``end_ms``. Unless given, the match itself is emitted.
        output: Type of the records that ``select`` makes.
        max_partial_matches: Most partial matches per key; of more, the oldest are dropped: those whose
            first event is the earliest.
        keep_forever: Let partial matches of a pattern without ``within`` stay until they are matched.
        key: Name of the key's column in records, or a name for each of the key's parts.
        name: Name of the process in contracts and identities; made of the event and the parts unless given.
        version: Raised by hand when conditions change their meaning: the contract cannot compare code.

    Raises:
        PatternDefinitionError: The pattern contradicts itself.

    Example:
        >>> from millrace.patterns import begin
        >>> from millrace.testing import TestDriver
        >>> class Login(msgspec.Struct):
        ...     ok: bool
        >>> guessed = (
        ...     begin("failed").where(lambda e: not e.ok).times(3).consecutive()
        ...     .next("succeeded").where(lambda e: e.ok)
        ...     .within(60_000)
        ... )
        >>> driver = TestDriver(detect(Login, guessed))
        >>> driver.send_batch([("ann", 1, Login(False)), ("ann", 2, Login(False)), ("ann", 3, Login(False))])
        >>> driver.send("ann", Login(True), at=4)
        >>> driver.send("ann", Login(True), at=5)
        >>> [(m.key, len(m.matched["failed"]), m.start_ms, m.end_ms) for m in driver.values()]
        [('ann', 3, 1, 4)]
    """
    if not isinstance(pattern, Pattern):
        raise PatternDefinitionError(f"detect() takes a pattern begun with begin(), not {pattern!r}")
    label = "_".join([getattr(event_type, "__name__", "event"), *pattern.names()])
    return build(
        Detection(
            event_type=event_type,
            pattern=pattern,
            after_match=after_match or no_skip(),
            select=select,
            output=output,
            max_partial_matches=max_partial_matches,
            keep_forever=keep_forever,
            key=(key,) if isinstance(key, str) else tuple(key),
            name=name or re.sub(r"\W+", "_", label).lower()[:60],
            version=version,
        )
    )
