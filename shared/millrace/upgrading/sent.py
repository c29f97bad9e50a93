"""Differences between what two versions sent to a topic that no table has, by identity and in bounded memory.

A topic is read where it stands: what an app says carries its identity as a header, and what others say there
carries none and is left out. Of more records than may be held those are held whose identity has a hash below
a line, which goes down as more come: the same ones on both sides, so that what is held of one is held of the
other, if that has said it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from millrace.upgrading.differences import EXAMPLES

#: Records of a side and topic that are held at most.
MOST: Final = 200_000
#: Records of a partition that are read before where the trial began: the running version may have sent some
#: of its since then before it was noted where the topic ended. They are looked up, and are missed by nobody.
BEFORE: Final = 20_000
_HASHES: Final = 1 << 64

#: Reads a topic: its name, where to begin (partition → offset), where to end (``None``: where it ends now),
#: what is called with each identity (empty: none) and record; returns where it ended.
Read = Callable[
    [str, Mapping[int, int], Mapping[int, int] | None, Callable[[str, bytes | None], None]], dict[int, int]
]


class SentDifference(msgspec.Struct):
    """How what two versions sent to a topic differs.

    Attributes:
        blue: Records of the version that runs, at the first look.
        green: Records of the new version, at the first look.
        same: Records that both have sent, byte by byte.
        only_blue: Records that the new version has not sent.
        only_green: Records that only the new version has sent.
        differ: Records that both have sent, with other bytes.
        others: Records of others on the topic: they carry no identity, and are not compared.
        share: Share of all identities that is compared; 1: all.
        examples: Some identities by kind: ``only_blue``, ``only_green``, ``differ``.
    """

    blue: int = 0
    green: int = 0
    same: int = 0
    only_blue: int = 0
    only_green: int = 0
    differ: int = 0
    others: int = 0
    share: float = 1.0
    examples: dict[str, list[str]] = {}

    @property
    def is_same(self) -> bool:
        """Whether both have sent the same; a topic may have any of it more than once."""
        return not (self.only_blue or self.only_green or self.differ)

    def one(self, kind: str, identity: str) -> None:
        """Count a record of a kind; some are named."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(examples := self.examples.setdefault(kind, [])) < EXAMPLES:
            examples.append(identity)


class Sample:
    """Identities with what was said: all, or of too many those with the least hashes.

    Args:
        most: How many are held.

    Example:
        >>> few = Sample(4)
        >>> for number in range(100):
        ...     few.put(f"e{number}", b"1")
        >>> 0 < len(few.said) <= 4
        True
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        #: Hashes below it are held.
        self.line = _HASHES
        #: Identity → digest of the last record of it.
        self.said: dict[str, bytes] = {}

    def put(self, identity: str, value: bytes | None) -> None:
        """Take a record."""
        if is_below(identity, self.line):
            self.said[identity] = hashlib.blake2b(value or b"", digest_size=16).digest()
        while len(self.said) > self._most:
            self.line //= 2
            self.said = self.below(self.line)

    def below(self, line: int) -> dict[str, bytes]:
        """Return what is below a line: identity → digest."""
        return {one: digest for one, digest in self.said.items() if is_below(one, line)}


def is_below(identity: str, line: int) -> bool:
    """Return whether the hash of an identity is below a line."""
    return line == _HASHES or (
        int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big") < line
    )


class SentTopic:
    """A topic of both versions, which is looked at twice.

    Args:
        topic: Its name, of the running version.
        suffix: What that ends with of the new one.
        since: Where it ended when the new version began: partition → offset.
        read: Reads a topic.
        most: So many records of each side are held.
    """

    def __init__(
        self, topic: str, suffix: str, since: Mapping[int, int], read: Read, *, most: int = MOST
    ) -> None:
        self._blue_topic, self._green_topic = topic, f"{topic}{suffix}"
        self._read = read
        self._before, self._blue, self._green = Sample(most), Sample(most), Sample(most)
        self._blue_at: dict[int, int] = dict(since)
        self._green_at: dict[int, int] = {}
        self._first: frozenset[str] | None = None
        self._said = SentDifference()
        begins = {partition: max(0, at - BEFORE) for partition, at in since.items()}
        read(topic, begins, since, lambda one, value: self._before.put(one, value) if one else None)

    def look(self) -> None:
        """Read what has come since the last look."""
        self._blue_at = self._read(self._blue_topic, self._blue_at, None, self._of_blue)
        self._green_at = self._read(
            self._green_topic, self._green_at, None, lambda one, value: self._green.put(one, value)
        )
        if self._first is None:
            self._first = frozenset(self._blue.said) | frozenset(self._green.said)
            self._said.blue, self._said.green = len(self._blue.said), len(self._green.said)

    def _of_blue(self, identity: str, value: bytes | None) -> None:
        if identity:
            self._blue.put(identity, value)
        else:
            self._said.others += 1

    def difference(self) -> SentDifference:
        """Return how what stood there at the first look differs, by what stands there at the last one."""
        line = min(one.line for one in (self._before, self._blue, self._green))
        before, blue, green = (one.below(line) for one in (self._before, self._blue, self._green))
        found = msgspec.structs.replace(self._said, share=line / _HASHES, examples={})
        for one in sorted(self._first or ()):
            if not is_below(one, line):
                continue
            of_blue, of_green = blue.get(one, before.get(one)), green.get(one)
            if of_green is None:
                found.one("only_blue", one)
            elif of_blue is None:
                found.one("only_green", one)
            elif of_blue != of_green:
                found.one("differ", one)
            else:
                found.same += 1
        return found


def reader(kafka: Any, *, quiet_s: float = 20.0) -> Read:
    """Return what reads topics of a broker.

    Args:
        kafka: Settings of the broker (:class:`~millrace.runtime.settings.KafkaSettings`).
        quiet_s: So long nothing may come before the end is reached, seconds.
    """
    from millrace.operations.reading import read_on

    def read(
        topic: str,
        begins: Mapping[int, int],
        ends: Mapping[int, int] | None,
        take: Callable[[str, bytes | None], None],
    ) -> dict[int, int]:
        return read_on(
            kafka, topic, begins, lambda record: take(record.event_id, record.value), ends, quiet_s=quiet_s
        )

    return read
