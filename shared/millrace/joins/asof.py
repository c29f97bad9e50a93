"""As-of joins: each left event meets the right event that was valid at its time.

Kept of a key are its right events as versions, and left events that wait for their result, or that may
have to be corrected. All of it goes by the watermark: nothing at or before ``watermark - grace`` is taken
any more, so what only concerns times up to there is forgotten. Space bound per key: the events of the
last ``out-of-orderness + grace``, a sweep more, and one version, which lives for ``keep``.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from millrace.joins.definition import AsOfDefinition
from millrace.joins.process import LEFT, RIGHT, JoinProcess, register
from millrace.joins.records import Column, Merge
from millrace.process import Context, Order, Timer, arrival
from millrace.state import ValueState, Version, VersionedState, value_state, versioned_state
from millrace.time import NEVER

#: Versions go when the watermark says so, by hand: a history by the times that the key has seen would
#: refuse what is out of order within the stream's bound.
_UNTIL_SWEPT: Final = 1 << 60
#: Timers of one instant fire by name: rows are made before what they are made of is swept.
_ROWS: Final = "rows"
_SWEEP: Final = "sweep"
#: How many times within the grace a key is swept, and how often at most, ms.
_SWEEPS: Final = 8
_LEAST_SWEEP_MS: Final = 1_000

_at = attrgetter("at")


class KeptLeft(msgspec.Struct, array_like=True, gc=False):
    """A left event that waits, or that may have to be corrected.

    Attributes:
        at: Its event time, ms.
        event: The event, packed.
        copy: How many equal events of its time came before it.
        revision: Of its last row; -1 before the first.
    """

    at: int
    event: bytes
    copy: int = 0
    revision: int = -1


class AsOfJoin(JoinProcess):
    """What both ways to emit share: the versions, and forgetting."""

    # At one time the version is there before whoever looks for it.
    rank = (RIGHT, LEFT)

    versions: VersionedState[Any]
    lefts: ValueState[list[KeptLeft]]
    definition: AsOfDefinition

    def __init__(self, definition: AsOfDefinition, merge: Merge) -> None:
        super().__init__(definition, merge)
        self._grace = definition.grace_ms
        self._keep = definition.keep_ms
        self._deletes = definition.deletes
        self._inner = definition.how == "inner"
        #: Events in order of time, and no grace: nobody looks back behind the newest version.
        self._newest_only = definition.emit == "final" and not definition.grace_ms
        self._sweep = max(definition.grace_ms // _SWEEPS, _LEAST_SWEEP_MS)
        self._pack, self._unpack = self._packs[LEFT].pack, self._packs[LEFT].unpack
        self._encoded = self._packs[RIGHT].pack

    @classmethod
    def declare(cls, definition: AsOfDefinition) -> dict[str, Any]:
        """Return the states of the process."""
        return {
            "versions": versioned_state(definition.right, history=_UNTIL_SWEPT),
            "lefts": value_state(list[KeptLeft], default_factory=list),
        }

    # -- events --------------------------------------------------------------------------------

    def process(self, event: Any, ctx: Context) -> None:
        """Take an event that is on time."""
        if ctx.input == LEFT:
            self.take_left(event, ctx)
        else:
            self.take_right(event, ctx)

    def on_late(self, event: Any, ctx: Context) -> None:
        """Take an event within the grace; a later one goes to the side output ``late``."""
        if ctx.event_time + self._grace > ctx.watermark:
            self.process(event, ctx)
        else:
            self.emit_late(event, ctx)

    def take_left(self, event: Any, ctx: Context) -> None:
        """Take a left event."""
        raise NotImplementedError

    def take_right(self, event: Any, ctx: Context) -> None:
        """Take a right event."""
        self.put(event, ctx)

    def put(self, event: Any, ctx: Context) -> None:
        """Keep a right event as what is valid from its time on."""
        at = ctx.event_time
        there = self.versions.get(at)
        if (
            there is not None
            and there.valid_from == at
            and self._encoded(there.value) >= self._encoded(event)
        ):
            return
        self.versions.put(event, at=at)
        if self._newest_only:
            self.versions.prune(at)
        self.wake(self._versions_due(self.versions.versions()), ctx)

    def valid(self, at: int) -> Version[Any] | None:
        """Return the version that was valid at ``at`` (ms), or ``None``."""
        version = self.versions.get(at)
        if version is None or (self._keep is not None and at - version.valid_from >= self._keep):
            return None
        if self._deletes is not None and self._deletes(version.value):
            return None
        return version

    # -- forgetting ----------------------------------------------------------------------------

    def wake(self, at: int, ctx: Context) -> None:
        """Have what nobody can ask for after ``at`` (ms) forgotten, at the next sweep of the key."""
        if at == NEVER:
            return
        ctx.timers.bring_forward(at + -at % self._sweep, _SWEEP)

    def last_due(self, latest: int) -> int:
        """Return when (ms) the last row has been made, and all that goes at some time is forgotten."""
        newest = [left.at for left in self.lefts.value[-1:]]
        newest += [version.valid_from for version in self.versions.versions()[-1:]]
        return max([latest, *newest]) + (self._keep or 0) + self._grace + self._sweep

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Forget what cannot be asked for any more."""
        # Later events are after this: lefts are looked up, and rights are put in, from here on.
        first = timer.at - self._grace + 1
        self.versions.prune(first)
        kept = self.versions.versions()
        if len(kept) == 1 and self._is_over(kept[0], first):
            self.versions.clear()
            kept = []
        due = self._versions_due(kept)
        lefts = self.lefts.value
        if lefts:
            self.forget_lefts(lefts, first)
            if lefts:
                due = min(due, self._left_due(lefts[0]))
        self.wake(due, ctx)

    def forget_lefts(self, lefts: list[KeptLeft], first: int) -> None:
        """Forget the left events before ``first`` (ms): no right event is put before them any more."""
        del lefts[: bisect_left(lefts, first, key=_at)]

    def _left_due(self, left: KeptLeft) -> int:
        return left.at + self._grace

    def _versions_due(self, kept: list[Version[Any]]) -> int:
        """Return when (ms) the first of the kept versions can go."""
        if not kept:
            return NEVER
        replaced = kept[0].valid_to
        if replaced is not None:
            return replaced - 1 + self._grace
        if self._deletes is not None and self._deletes(kept[0].value):
            return kept[0].valid_from + self._grace
        return NEVER if self._keep is None else kept[0].valid_from + self._keep - 1 + self._grace

    def _is_over(self, version: Version[Any], first: int) -> bool:
        """Return whether the only version is none for anybody from ``first`` (ms) on."""
        if self._keep is not None and version.valid_from + self._keep <= first:
            return True
        return self._deletes is not None and version.valid_from < first and self._deletes(version.value)


class CorrectingAsOfJoin(AsOfJoin):
    """Emits a row at once, and again whenever a right event comes that should have been known."""

    @classmethod
    def columns(cls, definition: AsOfDefinition) -> Sequence[Column]:
        """Return the columns: also which left event it is, and which revision of its row."""
        return [*super().columns(definition), ("left_id", str), ("revision", int)]

    def take_left(self, event: Any, ctx: Context) -> None:
        """Emit the row of a left event, and keep the event for corrections."""
        at, packed = ctx.event_time, self._pack(event)
        lefts = self.lefts.value
        place = len(lefts)
        copy = 0
        while place and lefts[place - 1].at >= at:  # most come in order: there is nothing to go back over
            if lefts[place - 1].at == at:
                copy += lefts[place - 1].event == packed
            place -= 1
        kept = KeptLeft(at, packed, copy)
        lefts.insert(bisect_right(lefts, at, lo=place, key=_at), kept)
        if lefts[0] is kept:  # the others' sweep stands
            self.wake(self._left_due(kept), ctx)
        self._emit_row(kept, event, self.valid(at), ctx, None)

    def take_right(self, event: Any, ctx: Context) -> None:
        """Keep a right event, and correct the rows of left events that it should have been in."""
        lefts = self.lefts.value
        after = lefts[bisect_left(lefts, ctx.event_time, key=_at) :] if lefts else []
        before = [self.valid(left.at) for left in after]
        self.put(event, ctx)
        for left, was in zip(after, before, strict=True):
            now = self.valid(left.at)
            if (was and was[:2]) != (now and now[:2]):
                self._emit_row(left, self._unpack(left.event), now, ctx, False)

    def _emit_row(
        self, left: KeptLeft, event: Any, version: Version[Any] | None, ctx: Context, on_time: bool | None
    ) -> None:
        if version is None and self._inner:
            return  # a row that was said is not taken back: an inner join has no deletions
        left.revision += 1
        right, right_ms = (None, None) if version is None else version[:2]
        name = _identity(ctx.key, left)
        row = self._joined(event, right, left.at, right_ms, name, left.revision)
        ctx.emit(row, on_time=on_time, revision=left.revision, identity=name)


class FinalAsOfJoin(AsOfJoin):
    """Emits one row, when the watermark has passed the left event by the grace."""

    def take_left(self, event: Any, ctx: Context) -> None:
        """Emit the row of a left event, or keep the event until its grace is over."""
        at = ctx.event_time
        if not self._grace:
            self._emit_row(event, at, ctx)  # events come in order of time: what can be known of it is
            return
        packed = self._pack(event)
        lefts = self.lefts.value
        # Sorted as if they had all been there: what order they are emitted in does not hang on batches.
        place = bisect_left(lefts, (at, packed), key=_time_and_event)
        lefts.insert(place, KeptLeft(at, packed))
        if place == 0:
            ctx.timers.at(at + self._grace, _ROWS)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Emit the rows whose grace is over, or forget what cannot be asked for any more."""
        if timer.name == _SWEEP:
            super().on_timer(timer, ctx)
            return
        lefts = self.lefts.value
        due = bisect_right(lefts, timer.at - self._grace, key=_at)
        for left in lefts[:due]:
            self._emit_row(self._unpack(left.event), left.at, ctx)
        del lefts[:due]
        if lefts:
            ctx.timers.at(lefts[0].at + self._grace, _ROWS)

    def forget_lefts(self, lefts: list[KeptLeft], first: int) -> None:
        """Keep the left events: they go with their rows."""

    def _left_due(self, left: KeptLeft) -> int:
        return NEVER

    def _emit_row(self, event: Any, at: int, ctx: Context) -> None:
        version = self.valid(at)
        # All rows of one time are made together, in one order.
        name = f"{at}" if self._grace else None
        if version is not None:
            ctx.emit(self._joined(event, version.value, at, version.valid_from), identity=name)
        elif not self._inner:
            ctx.emit(self._joined(event, None, at, None), identity=name)


def _time_and_event(left: KeptLeft) -> tuple[int, bytes]:
    return left.at, left.event


def _identity(key: Any, left: KeptLeft) -> str:
    """Return what identifies a left event however its join is run."""
    found = hashlib.blake2b(repr((key, left.at, left.copy)).encode(), digest_size=8)
    found.update(left.event)
    return found.hexdigest()


def _kind(definition: AsOfDefinition) -> tuple[type[JoinProcess], Order | str]:
    if definition.emit == "corrections":
        return CorrectingAsOfJoin, arrival(corrects=True)
    return FinalAsOfJoin, "event_time"


register(AsOfDefinition, _kind)
