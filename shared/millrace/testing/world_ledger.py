"""The records of a ledger of a domain with several streams, and how they are read back.

A file of records: ``run`` first, then ``fault``, ``silence`` and ``truth`` as they come, ``summary`` last.
Without a summary the generator did not end cleanly.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

from millrace.errors import UserError
from millrace.testing.record_file import read_records


class WorldRun(msgspec.Struct, tag_field="record", tag="run", frozen=True):
    """How the streams were made.

    Attributes:
        domain: Name of the domain.
        seed: Its seed.
        streams: Stream → topic.
        schema_versions: Stream → version of its contract.
        parameters: Every parameter that decides the bytes: those of the domain's profile, ``until_ms`` and,
            by themselves in ``disturbances``, those of :class:`Disturbances`.
    """

    domain: str
    seed: int
    streams: dict[str, str]
    schema_versions: dict[str, str]
    parameters: dict[str, Any]


class WorldFault(msgspec.Struct, tag_field="record", tag="fault", frozen=True, omit_defaults=True):
    """Something that was done to a message on purpose.

    Attributes:
        kind: What.
        id: Unique in its ledger.
        stream: Stream of the message.
        event_id: The event's id; of a message with an id of its own, that (the header ``ce_id``).
        expected: What must come of it: ``late``, ``duplicate``, ``dead_letter``, ``absent``, ``accepted``,
            ``wrong_time`` or ``either`` (late, or just in time).
        event_time_ms: Its event time as sent, ms since the epoch, UTC.
        detail: Which variant, e.g. ``renamed:amount``.
        reason: The dead letter's reason.
        lateness_ms: How far the event was behind the newest on-time event sent before it, ms; of a wrong
            clock, how far the clock was behind.
    """

    kind: str
    id: str
    stream: str
    event_id: str
    expected: str
    event_time_ms: int
    detail: str = ""
    reason: str = ""
    lateness_ms: int = 0


class WorldSilence(msgspec.Struct, tag_field="record", tag="silence", frozen=True):
    """A time in which one partition, or everything, was silent.

    Attributes:
        id: Unique in its ledger.
        event_time_ms: Its beginning, ms since the epoch, UTC.
        detail: Which partition, its end and how many messages were withheld.
    """

    id: str
    event_time_ms: int
    detail: str


class WorldTruth(msgspec.Struct, tag_field="record", tag="truth", frozen=True):
    """Something that really happened, or a piece of it: pieces of one truth have the same id.

    Attributes:
        truth_id: Unique in its run.
        kind: Its kind.
        entity: What it happened to.
        expected: What an app should make of it.
        detail: More about it.
        event_ids: Its events that were sent, in order of sending.
        disturbed: Those of its events that were late, lost or sent with a wrong time.
        first_event_time_ms: Earliest event time of them, ms.
        last_event_time_ms: Latest, ms.
    """

    truth_id: str
    kind: str
    entity: str
    expected: str
    detail: dict[str, Any]
    event_ids: list[str]
    disturbed: list[str]
    first_event_time_ms: int
    last_event_time_ms: int


class WorldSummary(msgspec.Struct, tag_field="record", tag="summary", frozen=True):
    """Totals of everything that was sent and, with a broker, acknowledged.

    Attributes:
        sent: Messages of all kinds.
        valid_unique: Distinct valid events among them, late ones included.
        streams: Stream → its distinct valid events.
        faults: Kind of fault → how many.
        truths: Kind of truth → records of it (a long one has several).
        first_event_time_ms: Earliest event time of the valid events, ms.
        last_event_time_ms: Latest, ms.
        sums: What is added up of the valid events: name → sum, e.g. cents of purchases.
    """

    sent: int
    valid_unique: int
    streams: dict[str, int]
    faults: dict[str, int]
    truths: dict[str, int]
    first_event_time_ms: int | None
    last_event_time_ms: int | None
    sums: dict[str, int] = {}


Record = WorldRun | WorldFault | WorldSilence | WorldTruth | WorldSummary


class ReadLedger(msgspec.Struct, frozen=True):
    """A complete ledger of a domain; pieces of a truth are put together.

    Attributes:
        run: How the streams were made.
        faults: All faults, in order of sending.
        silences: All silent times.
        truths: All truths, in order of their first piece.
        summary: Totals.
    """

    run: WorldRun
    faults: list[WorldFault]
    silences: list[WorldSilence]
    truths: list[WorldTruth]
    summary: WorldSummary


def read_world_ledger(path: Path) -> ReadLedger:
    """Return the ledger in a file.

    Raises:
        UserError: If it cannot be read, is no ledger, contradicts itself, or has no summary.
    """
    run: WorldRun | None = None
    summary: WorldSummary | None = None
    faults: list[WorldFault] = []
    silences: list[WorldSilence] = []
    pieces: list[WorldTruth] = []
    for number, line in enumerate(read_records(path), 1):
        record = _decode(path, number, line)
        if summary is not None or (run is None) != isinstance(record, WorldRun):
            raise UserError(f"{path}: record {number} is a {type(record).__name__} and does not belong there")
        if isinstance(record, WorldRun):
            run = record
        elif isinstance(record, WorldFault):
            faults.append(record)
        elif isinstance(record, WorldSilence):
            silences.append(record)
        elif isinstance(record, WorldTruth):
            pieces.append(record)
        else:
            summary = record
    if run is None or summary is None:
        raise UserError(f"{path} has no summary: the generator did not end cleanly; --resume goes on with it")
    counted = Counter(fault.kind for fault in faults) + Counter({"silence": len(silences)})
    if counted != Counter(summary.faults) or Counter(t.kind for t in pieces) != Counter(summary.truths):
        raise UserError(f"{path} contradicts itself: its records are not those that its summary counts")
    return ReadLedger(run, faults, silences, _whole(pieces), summary)


_DECODER: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)


def _decode(path: Path, number: int, line: bytes) -> Record:
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: record {number} is no record of a domain's ledger: {error}") from error


def _whole(pieces: list[WorldTruth]) -> list[WorldTruth]:
    found: dict[str, WorldTruth] = {}
    for piece in pieces:
        before = found.get(piece.truth_id)
        if before is not None:
            piece = msgspec.structs.replace(
                before,
                event_ids=before.event_ids + piece.event_ids,
                disturbed=before.disturbed + piece.disturbed,
                first_event_time_ms=min(before.first_event_time_ms, piece.first_event_time_ms),
                last_event_time_ms=max(before.last_event_time_ms, piece.last_event_time_ms),
            )
        found[piece.truth_id] = piece
    return list(found.values())
