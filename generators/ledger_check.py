"""Compares what an app made of a stream with the ledger that says what was in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millrace.console.report import Check
from millrace.errors import UserError
from millrace.testing.world_ledger import read_world_ledger

#: So many ids are named where something does not fit.
_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, from any ledger: its kind, the event's id and stream, what is expected and why."""

    kind: str
    event_id: str
    expected: str
    stream: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Happening:
    """A truth, from any ledger; ``whole`` when all its events were sent undisturbed."""

    kind: str
    truth_id: str
    event_ids: Sequence[str]
    whole: bool


@dataclass(frozen=True, kw_only=True)
class Truths:
    """What a ledger says, the same for all kinds of ledger.

    Attributes:
        domain: Name of the domain.
        valid: Stream → distinct valid events that were sent.
        faults: All faults.
        happenings: All truths.
    """

    domain: str
    valid: Mapping[str, int]
    faults: Sequence[Fault]
    happenings: Sequence[Happening]


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What an app wrote, as ids.

    Attributes:
        events: Stream → ids of the rows of its table, as often as they are there.
        late: Ids of the events set aside as late; None: there is no such table.
        dead_letters: ``(id, reason)`` of every dead letter; None: there is no such table.
        found: Kind of truth → ids of events that an app reported for it.
    """

    events: Mapping[str, Sequence[str]] = field(default_factory=dict)
    late: Sequence[str] | None = None
    dead_letters: Sequence[tuple[str | None, str]] | None = None
    found: Mapping[str, Sequence[str]] = field(default_factory=dict)


def read_truths(path: Path) -> Truths:
    """Return what a ledger file says, whichever domain wrote it.

    Raises:
        UserError: If it is no complete ledger.
    """
    world = read_world_ledger(path)
    return Truths(
        domain=world.run.domain,
        valid=world.summary.streams,
        faults=[
            Fault(kind=f.kind, event_id=f.event_id, expected=f.expected, stream=f.stream, reason=f.reason)
            for f in world.faults
        ],
        happenings=[
            Happening(kind=t.kind, truth_id=t.truth_id, event_ids=t.event_ids, whole=not t.disturbed)
            for t in world.truths
        ],
    )


def compare(truths: Truths, outputs: Outputs) -> list[Check]:
    """Return every comparison that the given outputs allow.

    Raises:
        UserError: If an output names a stream or a kind of truth that the ledger does not have.
    """
    for stream in outputs.events:
        if stream not in truths.valid:
            raise UserError(f"the ledger has no stream {stream}, but {', '.join(truths.valid)}")
    checks = [check for stream in outputs.events for check in _stream(truths, outputs, stream)]
    if outputs.late is not None:
        allowed = {f.event_id for f in truths.faults if f.expected in ("late", "either", "wrong_time")}
        late = set(outputs.late)
        checks.append(_none("no event set aside that was on time", late - allowed, len(late)))
    if outputs.dead_letters is not None:
        checks += _dead_letters(truths, outputs.dead_letters)
    checks += [check for kind in outputs.found for check in _reported(truths, outputs, kind)]
    return checks


def _stream(truths: Truths, outputs: Outputs, stream: str) -> Iterator[Check]:
    """Compare one stream's table: each valid event once, and nothing else."""
    rows = Counter(outputs.events[stream])
    faults = [fault for fault in truths.faults if fault.stream == stream]
    late = {f.event_id for f in faults if f.expected in ("late", "either", "wrong_time")}
    aside = late & set(outputs.late or ())
    # A clock that is ahead may put an event into the dead letters: it is in the future.
    wrong = {f.event_id for f in faults if f.expected == "wrong_time"}
    aside |= wrong & {name for name, _ in outputs.dead_letters or ()}
    there = rows.keys() | aside
    # Without a table of late events those that are missing may all be late.
    missing = len(late - there) if outputs.late is None else 0
    expected = truths.valid[stream]
    holds = expected - missing <= len(there) <= expected
    name, found = f"{stream}: valid events = rows + late", len(there) + missing
    yield Check(name, f"{expected:,}", f"{found:,}", holds, compared=expected)
    yield _none(f"{stream}: no event twice", {name for name, count in rows.items() if count > 1}, len(rows))
    for kind, what in (("absent", "lost"), ("dead_letter", "broken")):
        bad = {f.event_id for f in faults if f.expected == kind}
        yield _none(f"{stream}: no {what} message among the rows", bad & rows.keys(), len(bad))
    accepted = {f.event_id for f in faults if f.expected in ("accepted", "duplicate")}
    yield _all(f"{stream}: events with a field more, or repeated, are there", accepted, there)


def _dead_letters(truths: Truths, letters: Sequence[tuple[str | None, str]]) -> Iterator[Check]:
    by_reason: dict[str, set[str]] = {}
    for name, reason in letters:
        by_reason.setdefault(reason, set()).add(name or "")
    found = {name for name, _ in letters}
    expected = [fault for fault in truths.faults if fault.expected == "dead_letter"]
    for reason in sorted({fault.reason for fault in expected}):
        wanted = {fault.event_id for fault in expected if fault.reason == reason}
        yield _all(f"dead letters: {reason}", wanted, by_reason.get(reason, set()))
    known = {fault.event_id for fault in truths.faults if fault.expected != "absent"}
    unknown = {n or "(no id)" for n in found - known}
    yield _none("dead letters: none that the ledger does not explain", unknown, len(found))


def _reported(truths: Truths, outputs: Outputs, kind: str) -> Iterator[Check]:
    happened = [h for h in truths.happenings if h.kind == kind and h.whole]
    if not any(h.kind == kind for h in truths.happenings):
        kinds = ", ".join(sorted({h.kind for h in truths.happenings})) or "none"
        raise UserError(f"the ledger has no truth of kind {kind}, but {kinds}")
    ids = set(outputs.found[kind])
    missed = {h.truth_id for h in happened if not ids & set(h.event_ids)}
    note = "those sent whole and undisturbed"
    yield Check(
        f"{kind}: found",
        f"{len(happened):,}",
        f"{len(happened) - len(missed):,}",
        not missed,
        _few(missed) or note,
        compared=len(happened),
    )


def _none(name: str, bad: set[str], of: int) -> Check:
    return Check(name, "0", f"{len(bad):,}", not bad, _few(bad), compared=of)


def _all(name: str, wanted: set[str], found: Iterator[str] | set[str]) -> Check:
    missing = wanted - set(found)
    there = f"{len(wanted) - len(missing):,}"
    return Check(name, f"{len(wanted):,}", there, not missing, _few(missing), compared=len(wanted))


def _few(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:_NAMED])
    return f"{shown}, …" if len(names) > _NAMED else shown
