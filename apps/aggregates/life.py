"""The life of an aggregation: published, changed, removed; which of its versions has which window.

A version has the windows that begin at or after its ``from_ms`` and before its ``until_ms``, of sessions the
events of that time. So an aggregation's change lets windows that are open go on as they began, to their end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from millrace_apps.aggregates.definition import MAX_TIME_MS, Aggregation, AggregationError, Name, Time, check

#: So many aggregations there may be, and so many versions of each that have windows yet.
MAX_AGGREGATIONS: Final = 100
MAX_VERSIONS: Final = 8

_Who = Annotated[str, Meta(min_length=1, max_length=128)]
_Why = Annotated[str, Meta(max_length=1_000)]


class PublishAggregation(msgspec.Struct, frozen=True, tag_field="kind", tag="publish_aggregation"):
    """Publishes an aggregation, or a new version of it.

    Attributes:
        aggregation: What is computed.
        version: Its number: one more than the newest.
        by: Who does it.
        at_ms: When, UTC ms.
        from_ms: Windows that begin then or later are this version's, event time, UTC ms.
        reason: Why.
    """

    aggregation: Aggregation
    version: Annotated[int, Meta(ge=1, le=1_000_000)]
    by: _Who
    at_ms: Time
    from_ms: Time
    reason: _Why = ""


class RemoveAggregation(msgspec.Struct, frozen=True, tag_field="kind", tag="remove_aggregation"):
    """Removes an aggregation: windows that begin at ``from_ms`` or later are not there any more.

    Attributes:
        name: The aggregation.
        by: Who does it.
        at_ms: When, UTC ms.
        from_ms: From when on, event time, UTC ms.
        reason: Why.
    """

    name: Name
    by: _Who
    at_ms: Time
    from_ms: Time
    reason: _Why = ""


AggregateEvent = PublishAggregation | RemoveAggregation


class Version(msgspec.Struct, frozen=True):
    """A version of an aggregation.

    Attributes:
        number: Its number.
        aggregation: What is computed.
        from_ms: Its windows begin at this event time or later, ms.
        until_ms: And before this one; of the version in force the end of time.
        by: Who has published it.
    """

    number: int
    aggregation: Aggregation
    from_ms: int
    until_ms: int
    by: str

    @property
    def is_removed(self) -> bool:
        """Whether it has an end."""
        return self.until_ms <= MAX_TIME_MS

    def has(self, start: int) -> bool:
        """Return whether a window is its, by its start (ms)."""
        return self.from_ms <= start < self.until_ms

    def is_over(self, watermark: int) -> bool:
        """Return whether none of its windows can be open any more."""
        return self.until_ms + self.aggregation.span_ms < watermark


Versions = tuple[Version, ...]


def change(
    event: AggregateEvent, kept: Mapping[str, Versions], sources: Mapping[str, Any], watermark: int
) -> Iterator[tuple[str, Versions | None]]:
    """Yield what an event makes of the aggregations: name → versions, ``None`` where none is left.

    Args:
        event: What is asked for.
        kept: The aggregations.
        sources: Topic → type of its events.
        watermark: How far time is, ms: where there are too many, those whose windows are over are forgotten.

    Raises:
        AggregationError: It is refused.
    """
    if isinstance(event, RemoveAggregation):
        versions = kept.get(event.name)
        if versions is None or versions[-1].is_removed:
            known = ", ".join(n for n, v in sorted(kept.items()) if not v[-1].is_removed) or "none"
            raise AggregationError(f"there is no aggregation '{event.name}'; there are: {known}")
        yield event.name, _ended(versions, event.from_ms)
        return
    name = event.aggregation.name
    check(event.aggregation, sources)
    others = {other: versions for other, versions in kept.items() if other != name}
    if len(others) >= MAX_AGGREGATIONS:
        over = [other for other, versions in others.items() if versions[-1].is_over(watermark)]
        if not over:
            raise AggregationError(
                f"there are {len(others)} aggregations, and there may be no more: remove one"
            )
        yield from ((other, None) for other in over)
    versions = kept.get(name, ())
    newest = versions[-1].number if versions else 0
    if event.version <= newest:
        raise AggregationError(f"aggregation '{name}': version {event.version} is not after {newest}")
    before = _ended(versions, event.from_ms)
    if len(before) >= MAX_VERSIONS:
        before = tuple(v for v in before if not v.is_over(watermark))
    if len(before) >= MAX_VERSIONS:
        raise AggregationError(
            f"aggregation '{name}': {len(before)} versions have open windows yet: wait until some are over"
        )
    made = Version(event.version, event.aggregation, event.from_ms, MAX_TIME_MS + 1, event.by)
    yield name, (*before, made)


def _ended(versions: Versions, at: int) -> Versions:
    """Return versions none of which has windows from a time (ms) on."""
    return tuple(msgspec.structs.replace(v, until_ms=min(v.until_ms, max(at, v.from_ms))) for v in versions)
