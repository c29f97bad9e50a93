"""The ledger of payments: what the generator put into the stream, read back to check what an app made of it.

A ledger is a JSONL file. Its first record says how the stream was made (``run``), then come what was broken
on purpose (``fault``) and what really happened (``truth``), and the last is the ``summary``. Without a
summary the generator did not end cleanly, and the file proves nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from millrace.errors import UserError

__all__ = ["Fault", "Ledger", "LedgerError", "Run", "Summary", "Truth", "read_ledger"]


class LedgerError(UserError):
    """A ledger that cannot be read or proves nothing."""


class Run(msgspec.Struct, tag_field="record", tag="run", frozen=True):
    """How the stream was made.

    Attributes:
        domain: Name of the generator, e.g. ``fraud``.
        seed: Its seed.
        schema_version: Version of the event contract.
        parameters: Every parameter that decides the stream's bytes.
    """

    domain: str
    seed: int
    schema_version: str
    parameters: dict[str, Any]


class Fault(msgspec.Struct, tag_field="record", tag="fault", frozen=True, omit_defaults=True):
    """A message that was delayed, repeated or broken on purpose.

    Attributes:
        kind: What was done.
        id: Unique in its ledger.
        transaction_id: The event's id; of a malformed message the header ``ce_id`` (it has an id of its own).
        expected: What an app must do with it: side output ``late``, drop as ``duplicate``, ``dead_letter``.
        event_time_ms: Event time, ms since the epoch, UTC.
        detail: Which variant of malformed, e.g. ``missing_field:amount``.
        reason: The dead letter's reason: ``malformed`` (no JSON), ``schema`` (JSON against the contract) or
            ``range`` (a value outside of the contract's bounds).
        lateness_ms: How far a late event was behind the newest event sent before it, ms.
    """

    kind: Literal["late", "duplicate", "malformed"]
    id: str
    transaction_id: str | None
    expected: Literal["late", "duplicate", "dead_letter"]
    event_time_ms: int
    detail: str = ""
    reason: str = ""
    lateness_ms: int = 0


class Truth(msgspec.Struct, tag_field="record", tag="truth", frozen=True):
    """Something that really happened in the stream, e.g. one fraud.

    Attributes:
        scenario: Its kind.
        episode_id: Unique in its ledger.
        card_id: The entity it happened to.
        transaction_ids: Its events that were sent, in order of sending.
        first_event_time_ms: Earliest event time of them, ms.
        last_event_time_ms: Latest, ms.
        complete: False when the stream ended before all its events were sent.
    """

    scenario: str
    episode_id: str
    card_id: str
    transaction_ids: list[str]
    first_event_time_ms: int
    last_event_time_ms: int
    complete: bool


class Summary(msgspec.Struct, tag_field="record", tag="summary", frozen=True):
    """Totals of everything that was sent and, with a broker, acknowledged.

    Attributes:
        sent: Messages, all kinds: ``valid_unique + duplicates + malformed``.
        valid_unique: Distinct valid events, late ones included.
        duplicates: Repeats.
        malformed: Broken messages.
        late: Late events, part of ``valid_unique``.
        frauds: Events that belong to an episode, repeats not counted.
        episodes: Episodes with at least one event sent.
        first_event_time_ms: Earliest event time of the valid events, ms; None when there were none.
        last_event_time_ms: Latest, ms.
        amount_cents: Sum of the amounts of the distinct valid events per kind, cents.
        labels: Labels on them, sent beside; not among the messages above.
    """

    sent: int
    valid_unique: int
    duplicates: int
    malformed: int
    late: int
    frauds: int
    episodes: int
    first_event_time_ms: int | None
    last_event_time_ms: int | None
    amount_cents: dict[str, int]
    labels: int = 0


class Ledger(msgspec.Struct, frozen=True):
    """A complete ledger.

    Attributes:
        run: How the stream was made.
        faults: All faults, in order of sending.
        truths: All truths, cut-off ones included.
        summary: Totals.
    """

    run: Run
    faults: list[Fault]
    truths: list[Truth]
    summary: Summary

    @property
    def episodes(self) -> list[Truth]:
        """The truths that were sent whole: what an app can be asked to find."""
        return [truth for truth in self.truths if truth.complete]

    def faults_of(self, kind: Literal["late", "duplicate", "malformed"]) -> list[Fault]:
        """Return the faults of one kind."""
        return [fault for fault in self.faults if fault.kind == kind]


_DECODER: msgspec.json.Decoder[Run | Fault | Truth | Summary] = msgspec.json.Decoder(
    Run | Fault | Truth | Summary
)


def read_ledger(path: str | Path) -> Ledger:
    """Return the ledger in a file.

    Args:
        path: A JSONL file that ``millrace generate … --ledger FILE`` wrote.

    Raises:
        LedgerError: If the file is missing, is no ledger, contradicts itself, or has no summary because
            the generator did not end cleanly.
    """
    run: Run | None = None
    faults: list[Fault] = []
    truths: list[Truth] = []
    summary: Summary | None = None
    try:
        with Path(path).open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break  # torn by a crash, so there is no summary either
                record = _record(path, number, line)
                if summary is not None or (run is None) != isinstance(record, Run):
                    raise LedgerError(
                        f"{path}:{number}: no ledger: a {type(record).__name__} does not belong here"
                    )
                if isinstance(record, Run):
                    run = record
                elif isinstance(record, Fault):
                    faults.append(record)
                elif isinstance(record, Truth):
                    truths.append(record)
                else:
                    summary = record
    except OSError as error:
        raise LedgerError(f"cannot read the ledger {path}: {error.strerror}") from error
    if run is None or summary is None:
        raise LedgerError(
            f"{path} has no summary: the generator did not end cleanly, so the ledger is incomplete; "
            "generate the stream again"
        )
    ledger = Ledger(run, faults, truths, summary)
    _check_totals(path, ledger)
    return ledger


def _record(path: str | Path, number: int, line: bytes) -> Run | Fault | Truth | Summary:
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LedgerError(f"{path}:{number}: no ledger record: {error}") from error


def _check_totals(path: str | Path, ledger: Ledger) -> None:
    summary = ledger.summary
    counted = {
        "duplicates": len(ledger.faults_of("duplicate")),
        "malformed": len(ledger.faults_of("malformed")),
        "late": len(ledger.faults_of("late")),
        "episodes": len(ledger.truths),
        "frauds": sum(len(truth.transaction_ids) for truth in ledger.truths),
        "sent": summary.valid_unique + summary.duplicates + summary.malformed,
    }
    for name, count in counted.items():
        if getattr(summary, name) != count:
            raise LedgerError(
                f"{path} contradicts itself: {name} is {getattr(summary, name)}, its records give {count}"
            )
