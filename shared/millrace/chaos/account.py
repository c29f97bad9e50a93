"""The account of records by position: none may be missing, none counted twice."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from millrace.chaos.hostile import Sent
from millrace.dead_letters import position

#: What may become of a record: it is handled, in time or late, or a dead letter. One that a process puts
#: aside by its own rules is handled and a dead letter.
HANDLED: Final = 1
LATE: Final = 2
UNREAD: Final = 4
PUT_ASIDE: Final = 8
RAISED: Final = 16
#: Beside the above, of what could not be read: it breaks its contract, it is said.
REFUSED: Final = 32
_TWICE: Final = 128
#: So many examples are kept of what should not be.
_EXAMPLES: Final = 5
_CUT: Final = 160


class Row(msgspec.Struct):
    """A line of the table: the records of one input that were made of events of one type.

    Attributes:
        input: The input, ``control`` for control events.
        event: Type of the events.
        sent: How many were sent, as the sender counted.
        valid: How many of them the contract allows.
        processed: How many were handled in time.
        late: How many came behind the watermark, and were handled as such.
        dead: Reason → how many became dead letters.
        unaccounted: How many of them nobody has seen again.
    """

    input: str
    event: str
    sent: int = 0
    valid: int = 0
    processed: int = 0
    late: int = 0
    dead: dict[str, int] = {}
    unaccounted: int = 0

    @property
    def holds(self) -> bool:
        """Whether every record is accounted for, once."""
        return self.sent == self.processed + self.late + sum(self.dead.values()) and not self.unaccounted


class Fault(msgspec.Struct):
    """Something that should not be.

    Attributes:
        what: What happened.
        where: The process, or the input.
        count: How often.
        examples: What was sent, or what the error says, of some of them.
    """

    what: str
    where: str
    count: int = 0
    examples: list[str] = []


class Report(msgspec.Struct):
    """What became of a run.

    Attributes:
        app: The app.
        host: ``memory`` or ``spark``.
        seed: The seed: the same one sends the same.
        sent: How many records were sent.
        seconds: How long it took.
        rows: The table.
        faults: What should not be; empty where all is well.
        ended: Why the job ended before its input did; empty where it did not.
        cases: How many single changes were not sent: there were too few events for them.
    """

    app: str
    host: str
    seed: int
    sent: int
    seconds: float
    rows: list[Row]
    faults: list[Fault]
    ended: str = ""
    cases: int = 0

    @property
    def holds(self) -> bool:
        """Whether the job went on to the end, every record is accounted for, and nothing is at fault."""
        return not self.ended and not self.faults and all(row.holds for row in self.rows)


@dataclass
class _Partition:
    """The records of one partition, by offset."""

    rows: array[int] = field(default_factory=lambda: array("H"))
    valid: bytearray = field(default_factory=bytearray)
    flags: bytearray = field(default_factory=bytearray)
    reasons: dict[int, str] = field(default_factory=dict)

    def put(self, offset: int, row: int, *, valid: bool) -> None:
        """Take note of a record; what stands between it and the last one is none of ours."""
        missing = offset + 1 - len(self.rows)
        if missing > 0:
            self.rows.extend([0] * missing)
            self.valid += bytes(missing)
            self.flags += bytes(missing)
        self.rows[offset], self.valid[offset] = row, valid


class Account:
    """Keeps the books of a run.

    Example:
        >>> from millrace.chaos.hostile import Message
        >>> account = Account()
        >>> for offset in range(3):
        ...     account.sent(Sent(Message("t", None, b"{}", 0), "in", "Sale", "", True), 0, offset)
        >>> account.handled("t:0:0", late=False)
        >>> account.handled("t:0:1", late=True)
        >>> (row,) = account.rows()
        >>> row.sent, row.processed, row.late, row.unaccounted, row.holds
        (3, 1, 1, 1, False)
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], int] = {("", ""): 0}
        self._sent: Counter[int] = Counter()
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._labels: dict[tuple[str, int, int], str] = {}
        self._faults: dict[tuple[str, str], Fault] = {}

    def sent(self, one: Sent, partition: int, offset: int) -> None:
        """Take note of what was sent, and where it stands."""
        row = self._rows.setdefault((one.stream, one.kind), len(self._rows))
        self._sent[row] += 1
        topic = one.message.topic
        self._partitions.setdefault((topic, partition), _Partition()).put(offset, row, valid=one.is_valid)
        if one.label:
            self._labels[topic, partition, offset] = one.label[:_CUT]

    def handled(self, cause: str, *, late: bool) -> None:
        """Take note that a process has handled a record."""
        self._see(cause, LATE if late else HANDLED)

    def taken(self, causes: Iterable[str]) -> None:
        """Take note of control events that some process has taken; others may have refused them."""
        for cause in causes:
            self._see(cause, HANDLED, often=True)

    def letter(
        self, cause: str | None, reason: str, stage: str, process: str, error: str, *, first: bool = True
    ) -> None:
        """Take note of a dead letter.

        Args:
            cause: ``topic:partition:offset`` of the record; ``None``: it is of none.
            reason: Its reason.
            stage: Its stage.
            process: The process that has put it aside.
            error: What was wrong.
            first: Whether that process is the first, which reads the records.
        """
        at = position(cause)
        is_control = stage == "broadcast" and at[0] is not None
        if is_control:
            # Every process that takes control events says so of the same one.
            first = True
        if not first or at[0] is None:
            self.fault(f"{stage}: {reason}", process, error)
            return
        raised = reason == "process_error" and not is_control
        aside = stage == "process" or (is_control and reason == "process_error")
        flag = RAISED if raised else PUT_ASIDE if aside else UNREAD
        if flag == UNREAD and stage in ("decode", "broadcast") and reason != "unknown_version":
            flag |= REFUSED
        found = self._see(cause or "", flag, often=is_control)
        if found is not None:
            partition, offset = found
            partition.reasons[offset] = reason
        if raised:
            self.fault(f"{stage} raises", process, f"{error} [{self._label(at)}]")

    def rows(self) -> list[Row]:
        """Return the table."""
        names = list(self._rows)
        rows = [Row(input, event) for input, event in names]
        for number, count in self._sent.items():
            rows[number].sent = count
        for (topic, number), partition in self._partitions.items():
            for offset, (row, valid, flags) in enumerate(
                zip(partition.rows, partition.valid, partition.flags, strict=True)
            ):
                if not row:
                    continue
                self._count(rows[row], (topic, number, offset), partition, valid, flags)
        return rows[1:]

    @property
    def faults(self) -> list[Fault]:
        """What should not be, so far; complete once :meth:`rows` has been called."""
        return list(self._faults.values())

    def _count(
        self, row: Row, at: tuple[str, int, int], partition: _Partition, valid: int, flags: int
    ) -> None:
        offset = at[2]
        row.valid += valid
        if flags & (RAISED | UNREAD | PUT_ASIDE):
            reason = partition.reasons[offset]
            row.dead[reason] = row.dead.get(reason, 0) + 1
        elif flags & LATE:
            row.late += 1
        elif flags & HANDLED:
            row.processed += 1
        else:
            row.unaccounted += 1
            self.fault("lost", row.input, self._label(at))
        if _contradicts(flags):
            self.fault("accounted for twice", row.input, self._label(at))
        if valid and flags & REFUSED:
            self.fault("refused though its contract allows it", row.input, self._label(at))
        if not valid and flags & (HANDLED | LATE | PUT_ASIDE | RAISED):
            self.fault("taken though its contract refuses it", row.input, self._label(at))

    def _see(self, cause: str, flag: int, *, often: bool = False) -> tuple[_Partition, int] | None:
        topic, number, offset = position(cause)
        if topic is None or number is None or offset is None:
            self.fault("a record of an unknown place", "", cause)
            return None
        partition = self._partitions.get((topic, number))
        if partition is None or offset >= len(partition.rows) or not partition.rows[offset]:
            self.fault("a record that nobody sent", topic, cause)
            return None
        before = partition.flags[offset]
        partition.flags[offset] = before | flag | (_TWICE if before & flag and not often else 0)
        return partition, offset

    def _label(self, at: Iterable[Any]) -> str:
        topic, partition, offset = at
        label = self._labels.get((topic, partition, offset), "as the world has it")
        return f"{topic}:{partition}:{offset} {label}"

    def fault(self, what: str, where: str, example: str) -> None:
        """Take note of something that should not be."""
        fault = self._faults.setdefault((what, where), Fault(what, where))
        fault.count += 1
        if len(fault.examples) < _EXAMPLES:
            fault.examples.append(example[:300])


def _contradicts(flags: int) -> bool:
    """Return whether two things are said of a record that cannot both be."""
    if flags & _TWICE:
        return True
    ends = bool(flags & (HANDLED | LATE)) + bool(flags & UNREAD) + bool(flags & RAISED)
    return ends > 1 or (bool(flags & HANDLED) and bool(flags & LATE))
