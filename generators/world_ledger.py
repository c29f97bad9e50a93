"""Writes the ledger of a domain with several streams; :mod:`millrace.testing.world_ledger` reads it back."""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path
from types import MappingProxyType
from typing import Final

from millrace.testing.world_ledger import (
    WorldFault,
    WorldRun,
    WorldSilence,
    WorldSummary,
    WorldTruth,
)
from millrace_apps.generators.engine.message import Generated
from millrace_apps.generators.engine.simulated import Truth
from millrace_apps.generators.ledger_file import LedgerFile

#: So many truths are kept open at once; the one that was touched longest ago is written first.
_OPEN: Final = 20_000
#: A truth of more events is written in pieces.
_PIECE: Final = 1_000


class _Open:
    """A truth of which more may come."""

    __slots__ = ("disturbed", "event_ids", "first_ms", "last_ms", "truth")

    def __init__(self, truth: Truth, at_ms: int) -> None:
        self.truth = truth
        self.event_ids: list[str] = []
        self.disturbed: list[str] = []
        self.first_ms = self.last_ms = at_ms


class WorldLedger(LedgerFile):
    """Counts what is sent, and writes faults and truths to a file; memory does not grow with the stream.

    Args:
        path: File to write, JSON lines or (``.parquet``) Parquet; None only counts.
        run: How the streams are made.
        resume: Go on with the file of a killed run.
    """

    NAMES = MappingProxyType({"id": "truth_id"})

    def __init__(self, path: Path | None, run: WorldRun, *, resume: bool = False) -> None:
        self.sent = self.valid = 0
        self._streams = dict.fromkeys(run.streams, 0)
        self._faults: Counter[str] = Counter()
        self._truths: Counter[str] = Counter()
        self._sums: dict[str, int] = {}
        #: The one that was touched longest ago is first.
        self._open: OrderedDict[str, _Open] = OrderedDict()
        super().__init__(path, run, resume=resume)

    def add(self, message: Generated) -> None:
        """Take note of a message that the sink has, or that was dropped on purpose."""
        fault = message.fault
        if not message.dropped:
            self.sent += 1
        if fault is not None:
            self._fault(message)
            if not message.is_event:
                return
        if message.truths:
            self._truth(message)
        if message.dropped:
            return
        self.valid += 1
        self._streams[message.stream] += 1
        if kind := message.kind:
            self._sums[kind] = self._sums.get(kind, 0) + message.amount
        self._note_time(message.event_time_ms)

    def _fault(self, message: Generated) -> None:
        fault = message.fault
        if fault is None:
            return
        self._faults[fault.kind] += 1
        if fault.kind == "silence":
            self._write(WorldSilence(message.transaction_id, message.event_time_ms, fault.detail))
            return
        self._write(
            WorldFault(
                kind=fault.kind,
                id=f"fault-{self._faults.total():09d}",
                stream=message.stream,
                event_id=message.transaction_id,
                expected=fault.expected,
                event_time_ms=message.event_time_ms,
                detail=fault.detail,
                reason=fault.reason,
                lateness_ms=fault.lateness_ms,
            )
        )

    def _truth(self, message: Generated) -> None:
        at, opened = message.event_time_ms, self._open
        for truth in message.truths:
            truth_id = truth.truth_id
            entry = opened.get(truth_id)
            if entry is None:
                entry = opened[truth_id] = _Open(truth, at)
            else:
                opened.move_to_end(truth_id)
            if not message.dropped:
                entry.event_ids.append(message.transaction_id)
                if at > entry.last_ms:
                    entry.last_ms = at
                elif at < entry.first_ms:
                    entry.first_ms = at
            if message.fault is not None and message.fault.expected != "accepted":
                entry.disturbed.append(message.transaction_id)
            if len(entry.event_ids) + len(entry.disturbed) >= _PIECE:
                self._close_truth(truth.truth_id)
        if len(self._open) > _OPEN:
            self._close_truth(next(iter(self._open)))

    def _close_truth(self, truth_id: str) -> None:
        entry = self._open.pop(truth_id)
        truth = entry.truth
        self._truths[truth.kind] += 1
        self._write(
            WorldTruth(
                truth_id=truth_id,
                kind=truth.kind,
                entity=truth.entity,
                expected=truth.expected,
                detail=truth.detail,
                event_ids=entry.event_ids,
                disturbed=entry.disturbed,
                first_event_time_ms=entry.first_ms,
                last_event_time_ms=entry.last_ms,
            )
        )

    def finish(self) -> WorldSummary:
        """Write the open truths and the summary; call it once the sink has delivered everything."""
        for truth_id in list(self._open):
            self._close_truth(truth_id)
        summary = self.totals()
        self._write(summary)
        self.close()
        return summary

    def totals(self) -> WorldSummary:
        """Return the totals so far."""
        return WorldSummary(
            sent=self.sent,
            valid_unique=self.valid,
            streams=dict(self._streams),
            # Copies first: progress asks from another thread while kinds are added.
            faults=dict(sorted(self._faults.copy().items())),
            truths=dict(sorted(self._truths.copy().items())),
            first_event_time_ms=self._first_ms,
            last_event_time_ms=self._last_ms,
            sums=dict(sorted(self._sums.copy().items())),
        )
