"""What the app reads of the ledger of truth: what was sent, and which transactions were frauds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from millrace.errors import UserError
from millrace.testing.record_file import read_records


class Episode(msgspec.Struct, tag_field="record", tag="truth", frozen=True):
    """A fraud.

    Attributes:
        scenario: Its kind.
        transaction_ids: Its transactions that were sent.
        complete: Whether all of them were.
    """

    scenario: str
    transaction_ids: list[str]
    complete: bool


class Sent(msgspec.Struct, tag_field="record", tag="summary", frozen=True):
    """Totals of what was sent.

    Attributes:
        sent: Messages, all kinds.
        valid_unique: Distinct valid transactions, late ones included.
        duplicates: Repeats.
        malformed: Broken messages.
        late: Late transactions, part of ``valid_unique``.
        amount_cents: Sum of the amounts of the distinct valid transactions per kind, cents.
        labels: Labels on them, sent beside; not among the messages above.
    """

    sent: int
    valid_unique: int
    duplicates: int
    malformed: int
    late: int
    amount_cents: dict[str, int]
    labels: int = 0


class Fault(msgspec.Struct, tag_field="record", tag="fault", frozen=True):
    """A message that was delayed, repeated or broken on purpose.

    Attributes:
        kind: ``late``, ``duplicate`` or ``malformed``.
        transaction_id: The transaction, if the message is one.
        event_time_ms: Its time, UTC ms.
        lateness_ms: How far a late one was behind the newest that was sent before it, ms.
    """

    kind: str
    transaction_id: str | None
    event_time_ms: int
    lateness_ms: int = 0

    @property
    def sent_ms(self) -> int:
        """When it was sent, by the clock of the events, UTC ms."""
        return self.event_time_ms + self.lateness_ms


class _Run(msgspec.Struct, tag_field="record", tag="run", frozen=True):
    """How the stream was made."""


class Ledger(msgspec.Struct, frozen=True):
    """A complete ledger.

    Attributes:
        truths: All frauds, those that were cut off too.
        faults: What was done to messages, in order of sending.
        summary: Totals.
    """

    truths: list[Episode]
    faults: list[Fault]
    summary: Sent

    @property
    def episodes(self) -> list[Episode]:
        """The frauds that were sent whole: what the app can be asked to find."""
        return [truth for truth in self.truths if truth.complete]


_DECODER: Final = msgspec.json.Decoder(Episode | Sent | Fault | _Run)


def read_ledger(path: Path) -> Ledger:
    """Return the ledger in a file that ``millrace generate fraud --ledger FILE`` wrote.

    Raises:
        UserError: It cannot be read, is no ledger, or has no summary: the generator did not end cleanly.
    """
    truths: list[Episode] = []
    faults: list[Fault] = []
    for number, line in enumerate(read_records(path), 1):
        try:
            record = _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: record {number} is no record of a ledger: {error}") from error
        if isinstance(record, Sent):
            return Ledger(truths, faults, record)
        if isinstance(record, Episode):
            truths.append(record)
        elif isinstance(record, Fault):
            faults.append(record)
    raise UserError(
        f"{path} has no summary: the generator did not end cleanly, so the ledger is incomplete; "
        "generate the stream again"
    )
