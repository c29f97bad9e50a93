"""Constructors of joins: a function of each kind, which gives its process."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Literal

from millrace.joins.definition import (
    AsOfDefinition,
    Emit,
    Interval,
    IntervalDefinition,
    WindowJoinDefinition,
)
from millrace.joins.process import JoinProcess, build
from millrace.joins.records import How, JoinDefinitionError, OnMerge
from millrace.time import ms
from millrace.windows.assigners import Assigner, CalendarDays, Hopping, Session

Duration = timedelta | int

#: As ``keep``: a version stays valid until the next one, however long that takes.
FOREVER: Final = "forever"


def asof_join(
    *,
    left: Any,
    right: Any,
    keep: Duration | Literal["forever"] | None = None,
    grace: Duration = 0,
    how: Literal["inner", "left"] = "left",
    on_merge: OnMerge = "keep-left",
    record: Any = None,
    emit: Emit = "corrections",
    deletes: Callable[[Any], bool] | None = None,
    name: str = "",
) -> JoinProcess:
    """Join each left event to the right event that was valid at its time: the latest one up to then.

    Args:
        left: Type of the left events.
        right: Type of the right events, each a new version of what is known of its key. Of several of
            one time the one with the greatest encoding is taken.
        keep: How long a version is valid if no other follows (``timedelta`` or ms), and so how long it
            is kept of a key that has fallen silent; ``FOREVER``: state grows with every key there ever
            was. It must be said.
        grace: How far behind the watermark (``timedelta`` or ms) events of either side are still taken;
            what is later goes to the side output ``late``.
        how: ``"left"``: left events without a version have a row too; ``"inner"``: they have none.
        on_merge: Where both have a field of a name: ``"keep-left"``, ``"keep-right"``, ``"raise"`` (an
            error, at once), or a function of both events (and, if it takes a third argument, of a
            :class:`Match`) that makes the record.
        record: Type of the records that the function makes.
        emit: ``"corrections"``: a row at once, and again, with the same ``left_id``, a higher
            ``revision`` and not on time, whenever a right event comes that should have been known;
            ``"final"``: one row, when the watermark has passed the left event by ``grace``.
        deletes: Says of a right event that from its time on nothing is valid.
        name: Name of the process in contracts and identities.

    Raises:
        JoinDefinitionError: Something is missing, contradicts itself, or does not fit the types.

    Example:
        >>> import msgspec
        >>> from millrace.testing import TestDriver
        >>> class Reading(msgspec.Struct):
        ...     machine: str
        ...     celsius: float
        >>> class Status(msgspec.Struct):
        ...     status: str
        >>> driver = TestDriver(asof_join(left=Reading, right=Status, keep=60_000), out_of_orderness_ms=5_000)
        >>> driver.send("m1", Reading("m1", 20.5), at=2_000)
        >>> driver.send("m1", Status("heating"), at=1_000)
        >>> for row in driver.values():
        ...     print(row.celsius, row.status, row.left_ms, row.right_ms, row.revision)
        20.5 None 2000 None 0
        20.5 heating 2000 1000 1
    """
    if keep is None:
        raise JoinDefinitionError(
            "asof_join keeps the latest right event of every key: say with keep=days(7), for example, how "
            "long it is valid, or keep=FOREVER if keys do not come and go"
        )
    if how not in ("inner", "left"):
        raise JoinDefinitionError(f"how of an as-of join is 'inner' or 'left', not {how!r}")
    if emit not in ("corrections", "final"):
        raise JoinDefinitionError(f"emit is 'corrections' or 'final', not {emit!r}")
    if deletes is not None and emit == "corrections" and how == "inner":
        raise JoinDefinitionError(
            "an inner join cannot correct a row to none when its version is deleted: use how='left', which "
            "says so with a row without a version, or emit='final'"
        )
    keep_ms = None if keep == FOREVER else length_ms(keep, "keep", least=1)
    grace_ms = length_ms(grace, "grace")
    named = name or _name(left, "asof", right)
    return build(
        AsOfDefinition(
            left=left,
            right=right,
            how=how,
            on_merge=on_merge,
            record=record,
            name=named,
            keep_ms=keep_ms,
            grace_ms=grace_ms,
            emit=emit,
            deletes=deletes,
        )
    )


def table_join(
    *,
    stream: Any,
    table: Any,
    keep: Duration | Literal["forever"] = FOREVER,
    grace: Duration = 0,
    how: Literal["inner", "left"] = "inner",
    on_merge: OnMerge = "keep-left",
    record: Any = None,
    emit: Emit = "final",
    deletes: Callable[[Any], bool] | None = None,
    name: str = "",
) -> JoinProcess:
    """Join a stream (input ``left``) to a table (input ``right``) that comes as its changes.

    It is an as-of join: a stream event meets the row of the table as it was at the event's time, not as
    it happens to be when the event comes. Rows of a table do not expire unless ``keep`` says so: state
    is as large as the table.

    Args:
        stream: Type of the stream's events.
        table: Type of the table's changes; an event is a key's new row.
        keep: See :func:`asof_join`; ``FOREVER`` unless given.
        grace: How far behind the watermark changes and events are still taken. With ``emit="final"``
            stream events wait in state for so long.
        how: ``"inner"``, or ``"left"`` for rows of events without one in the table too.
        on_merge: See :func:`asof_join`.
        record: See :func:`asof_join`.
        emit: ``"final"``: one row, when the watermark has passed the event by ``grace``; ``"corrections"``:
            at once by what is known of the table, corrected where that changes.
        deletes: Says of a change that it deletes the key's row, e.g. ``lambda change: change.deleted``.
        name: Name of the process in contracts and identities.

    Raises:
        JoinDefinitionError: See :func:`asof_join`.
    """
    return asof_join(
        left=stream,
        right=table,
        keep=keep,
        grace=grace,
        how=how,
        on_merge=on_merge,
        record=record,
        emit=emit,
        deletes=deletes,
        name=name or _name(stream, "table", table),
    )


def interval(*, backward: Duration = 0, forward: Duration = 0) -> Interval:
    """Say how far a right event may be from the left one; both ends are included.

    Args:
        backward: How long before it (``timedelta`` or ms).
        forward: How long after it.

    Example:
        >>> interval(backward=3_000, forward=timedelta(minutes=1))
        Interval(backward_ms=3000, forward_ms=60000)
    """
    return Interval(length_ms(backward, "backward"), length_ms(forward, "forward"))


def interval_join(
    *,
    left: Any,
    right: Any,
    within: Interval,
    grace: Duration = 0,
    how: How = "inner",
    on_merge: OnMerge = "keep-left",
    record: Any = None,
    name: str = "",
) -> JoinProcess:
    """Join every left to every right event of its key whose time is in an interval around the left's.

    Events are handled in order of event time. A pair has a row when the later of the two is handled, an
    event without a partner when the watermark has passed everything that could be one by the grace.

    Args:
        left: Type of the left events.
        right: Type of the right events.
        within: The interval: ``interval(backward=..., forward=...)``.
        grace: How far behind the watermark (``timedelta`` or ms) events of either side are still joined,
            in rows that are not on time; what is later goes to the side output ``late``.
        how: ``"inner"``: pairs; ``"left"``, ``"right"``, ``"outer"``: also the events of that side (of
            both) without a partner, once.
        on_merge: See :func:`asof_join`.
        record: See :func:`asof_join`.
        name: Name of the process in contracts and identities.

    Raises:
        JoinDefinitionError: Something contradicts itself, or does not fit the types.

    Example:
        >>> import msgspec
        >>> from millrace.testing import TestDriver
        >>> class Order(msgspec.Struct):
        ...     order: str
        >>> class Payment(msgspec.Struct):
        ...     cents: int
        >>> paid = interval_join(left=Order, right=Payment, within=interval(forward=60_000), how="left")
        >>> driver = TestDriver(paid)
        >>> driver.send("o1", Order("o1"), at=1_000)
        >>> driver.send("o2", Order("o2"), at=2_000)
        >>> driver.send("o1", Payment(500), at=9_000)
        >>> driver.drain()
        >>> [(row.order, row.cents, row.right_ms) for row in driver.values()]
        [('o1', 500, 9000), ('o2', None, None)]
    """
    if not isinstance(within, Interval):
        raise JoinDefinitionError(f"within is interval(backward=..., forward=...), not {within!r}")
    _check_how(how)
    named = name or _name(left, "interval", right)
    grace_ms = length_ms(grace, "grace")
    return build(IntervalDefinition(left, right, how, on_merge, record, named, within, grace_ms))


def window_join(
    *,
    left: Any,
    right: Any,
    assigner: Assigner,
    grace: Duration = 0,
    how: How = "inner",
    on_merge: OnMerge = "keep-left",
    record: Any = None,
    name: str = "",
) -> JoinProcess:
    """Join every left to every right event of its key in the same window, when the window is complete.

    With a grace, pairs of what comes until it is over follow, in rows that are not on time, and events
    without a partner have their rows when it is over. A session may grow until then, and has all its
    rows then.

    Args:
        left: Type of the left events.
        right: Type of the right events.
        assigner: The windows: ``tumbling(...)``, ``hopping(...)`` or ``session(...)``; a session is made
            of the events of both sides.
        grace: How long after its end, by the watermark, a window still takes events (``timedelta`` or
            ms); what is later for all its windows goes to the side output ``late``.
        how: ``"inner"``: pairs; ``"left"``, ``"right"``, ``"outer"``: also the events of that side (of
            both) in windows where the other has none.
        on_merge: See :func:`asof_join`.
        record: See :func:`asof_join`.
        name: Name of the process in contracts and identities.

    Raises:
        JoinDefinitionError: Something contradicts itself, or does not fit the types.
    """
    if not isinstance(assigner, Hopping | CalendarDays | Session):
        raise JoinDefinitionError(
            f"a window join is over tumbling(...), hopping(...) or session(...), not {assigner!r}"
        )
    if isinstance(assigner, Session) and (assigner.max_length_ms or assigner.cut_every_ms):
        raise JoinDefinitionError("a window join takes sessions without max_length and cut_every")
    _check_how(how)
    named = name or _name(left, "window", right)
    grace_ms = length_ms(grace, "grace")
    return build(WindowJoinDefinition(left, right, how, on_merge, record, named, assigner, grace_ms))


def length_ms(duration: Duration, what: str, *, least: int = 0) -> int:
    """Return a duration in ms; ``least`` is the shortest that there may be."""
    if isinstance(duration, bool) or not isinstance(duration, timedelta | int):
        raise JoinDefinitionError(f"{what} is a timedelta or whole milliseconds, not {duration!r}")
    value = ms(duration)
    if value < least:
        raise JoinDefinitionError(f"{what} must be at least {least} ms, not {duration!r}")
    return value


def _check_how(how: str) -> None:
    if how not in ("inner", "left", "right", "outer"):
        raise JoinDefinitionError(f"how is 'inner', 'left', 'right' or 'outer', not {how!r}")


def _name(left: Any, kind: str, right: Any) -> str:
    parts = (getattr(left, "__name__", "left"), kind, getattr(right, "__name__", "right"))
    return re.sub(r"\W+", "_", "_".join(parts)).lower()
