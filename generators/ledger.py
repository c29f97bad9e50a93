"""Writes the ledger of truth while a stream is sent.

:mod:`millrace_apps.generators.ledger_records` reads it back.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, cast

from millrace_apps.generators.engine.message import Episode, Generated
from millrace_apps.generators.engine.message import Fault as MadeFault
from millrace_apps.generators.ledger_file import LedgerFile
from millrace_apps.generators.ledger_records import (
    Fault,
    Ledger,
    LedgerError,
    Run,
    Summary,
    Truth,
    read_ledger,
)

__all__ = ["Ledger", "LedgerError", "LedgerWriter", "read_ledger"]


#: Stream of messages that are no events of the ledger: what becomes known of events.
BESIDE: Final = "labels"


class _OpenEpisode:
    """An episode of which not all events have been sent yet."""

    __slots__ = ("episode", "first_ms", "last_ms", "transaction_ids")

    def __init__(self, episode: Episode, at_ms: int) -> None:
        self.episode = episode
        self.first_ms = self.last_ms = at_ms
        self.transaction_ids: list[str] = []


class LedgerWriter(LedgerFile):
    """Counts what is sent, and writes its faults and truths to a file.

    Memory does not grow with the stream: only unfinished episodes are kept.

    Args:
        path: File to write, JSON lines or (``.parquet``) Parquet; None only counts.
        domain: Name of the generator.
        seed: Its seed.
        schema_version: Version of the event contract.
        parameters: Every parameter that decides the stream's bytes.
        resume: Go on with the file of a killed run.
    """

    NAMES = MappingProxyType({"kind": "scenario", "id": "episode_id", "event_id": "transaction_id"})

    def __init__(
        self,
        path: Path | None,
        *,
        domain: str,
        seed: int,
        schema_version: str,
        parameters: dict[str, Any],
        resume: bool = False,
    ) -> None:
        self.sent = self.duplicates = self.malformed = self.late = self.frauds = self.episodes = 0
        self.labels = 0
        self._amounts: dict[str, int] = {}
        self._open: dict[str, _OpenEpisode] = {}
        super().__init__(path, Run(domain, seed, schema_version, parameters), resume=resume)

    def add(self, message: Generated) -> None:
        """Take note of a message that has been handed to the sink."""
        if message.stream == BESIDE:
            self.labels += 1
            return
        self.sent += 1
        if message.fault is not None:
            self._fault(message, message.fault)
            if message.fault.kind != "late":
                return
        at = message.event_time_ms
        self._note_time(at)
        amounts, kind = self._amounts, message.kind
        amounts[kind] = amounts.get(kind, 0) + message.amount
        if message.episode is not None:
            self._fraud(message, message.episode)

    def _fault(self, message: Generated, fault: MadeFault) -> None:
        if fault.kind == "late":
            self.late += 1
        elif fault.kind == "duplicate":
            self.duplicates += 1
        else:
            self.malformed += 1
        self._write(
            Fault(
                kind=cast(Literal["late", "duplicate", "malformed"], fault.kind),
                id=f"fault-{self.late + self.duplicates + self.malformed:09d}",
                transaction_id=message.transaction_id,
                expected=cast(Literal["late", "duplicate", "dead_letter"], fault.expected),
                event_time_ms=message.event_time_ms,
                detail=fault.detail,
                reason=fault.reason,
                lateness_ms=fault.lateness_ms,
            )
        )

    def _fraud(self, message: Generated, episode: Episode) -> None:
        at = message.event_time_ms
        self.frauds += 1
        if episode.episode_id not in self._open:
            self.episodes += 1
            self._open[episode.episode_id] = _OpenEpisode(episode, at)
        entry = self._open[episode.episode_id]
        entry.transaction_ids.append(message.transaction_id)
        entry.first_ms, entry.last_ms = min(entry.first_ms, at), max(entry.last_ms, at)
        if len(entry.transaction_ids) == episode.size:
            self._close_episode(episode.episode_id)

    def _close_episode(self, episode_id: str) -> None:
        entry = self._open.pop(episode_id)
        episode = entry.episode
        self._write(
            Truth(
                scenario=episode.scenario,
                episode_id=episode_id,
                card_id=episode.card_id,
                transaction_ids=entry.transaction_ids,
                first_event_time_ms=entry.first_ms,
                last_event_time_ms=entry.last_ms,
                complete=len(entry.transaction_ids) == episode.size,
            )
        )

    def finish(self) -> Summary:
        """Write the cut-off episodes and the summary; call it once the sink has delivered everything."""
        for episode_id in list(self._open):
            self._close_episode(episode_id)
        summary = self.totals()
        self._write(summary)
        self.close()
        return summary

    def totals(self) -> Summary:
        """Return the totals so far."""
        return Summary(
            sent=self.sent,
            valid_unique=self.sent - self.duplicates - self.malformed,
            duplicates=self.duplicates,
            malformed=self.malformed,
            late=self.late,
            frauds=self.frauds,
            episodes=self.episodes,
            first_event_time_ms=self._first_ms,
            last_event_time_ms=self._last_ms,
            # A copy first: progress asks from another thread while kinds are added.
            amount_cents=dict(sorted(self._amounts.copy().items())),
            labels=self.labels,
        )
