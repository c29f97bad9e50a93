"""Stream readers of a query, each with its own limit on what one batch takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql import DataFrame


class Reader(NamedTuple):
    """What reads some of a stream's rows.

    Attributes:
        identity: The same for all streams that are parts of what it reads.
        topics: The topics that it reads; none: all that no other reader does.
        limit: The most that one batch takes; ``None``: it is not known, or there is none.
    """

    identity: str
    topics: tuple[str, ...]
    limit: int | None


@dataclass(frozen=True)
class Readers:
    """The readers of some streams, by number.

    Attributes:
        limits: The limit of each.
        of: For each stream: topic → number; ``""`` for all others.
    """

    limits: tuple[int | None, ...]
    of: tuple[dict[str, int], ...]


def readers_of(df: DataFrame, given: int | Mapping[str, int] | None, fallback: str) -> tuple[Reader, ...]:
    """Return what reads a stream.

    Several Kafka readers in one DataFrame are told apart by the topics that they subscribe; where these are
    not in the plan (a pattern), the smallest limit counts for all.

    Args:
        df: The stream.
        given: Its limit, or topics (several with commas between) → their limit; ``None``: as its plan says.
        fallback: What it is called where its plan does not tell (Spark Connect).

    Raises:
        ValueError: A topic has two limits.
    """
    leaves = _leaves(df)
    whole = "".join(leaf.output().toString() for leaf in leaves) or fallback
    if isinstance(given, Mapping):
        named = [Reader(f"{whole} {topics}", _split(topics), limit) for topics, limit in given.items()]
        _check(named)
        return (*named, Reader(whole, (), None))
    if given is not None:
        return (Reader(whole, (), given),)
    planned = [_planned(leaf) for leaf in leaves]
    read = [topic for reader in planned for topic in reader.topics]
    if len(planned) > 1 and all(r.topics for r in planned) and len(read) == len(set(read)):
        return tuple(planned)
    limits = [reader.limit for reader in planned if reader.limit is not None]
    return (Reader(whole, (), min(limits, default=None)),)


def numbered(streams: Sequence[tuple[Reader, ...]]) -> Readers:
    """Return the readers of some streams; parts of one source are read together."""
    limits: dict[str, int | None] = {}
    of = []
    for readers in streams:
        own: dict[str, int] = {}
        for reader in readers:
            known = [limit for limit in (limits.get(reader.identity), reader.limit) if limit is not None]
            limits[reader.identity] = min(known, default=None)
            number = list(limits).index(reader.identity)
            own.update(dict.fromkeys(reader.topics or ("",), number))
        own.setdefault("", next(iter(own.values())))
        of.append(own)
    return Readers(tuple(limits.values()), tuple(of))


def _split(topics: str) -> tuple[str, ...]:
    return tuple(topic.strip() for topic in topics.split(",") if topic.strip())


def _check(readers: Sequence[Reader]) -> None:
    read = [topic for reader in readers for topic in reader.topics]
    twice = sorted({topic for topic in read if read.count(topic) > 1})
    if twice or not all(reader.topics for reader in readers):
        raise ValueError(
            f"max_offsets names {', '.join(twice) or 'no topic'} {'twice' if twice else ''}".strip()
        )


def _planned(leaf: Any) -> Reader:
    identity = leaf.output().toString()
    if leaf.getClass().getSimpleName() != "StreamingRelationV2":
        return Reader(identity, (), None)
    options = leaf.extraOptions()
    limit, topics = options.get("maxOffsetsPerTrigger"), options.get("subscribe")
    return Reader(identity, _split(topics or ""), None if limit is None else int(limit))


def _leaves(df: DataFrame) -> list[Any]:
    """Return what a stream's plan reads; nothing where the plan is elsewhere (Spark Connect)."""
    if not df.isStreaming or not hasattr(df, "_jdf"):
        return []
    leaves = df._jdf.queryExecution().analyzed().collectLeaves()
    return [leaves.apply(place) for place in range(leaves.size())]
