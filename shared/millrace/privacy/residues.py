"""Residues of an erasure: stores that may still hold something, and until when.

What is deleted from state and tables leaves earlier versions behind: in the topics that it came by, the files
of earlier versions of tables, the versions of state that a checkpoint keeps, savepoints. Each is named here
with the time at which its residue ends by itself, or with what ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from millrace.errors import MillraceError
from millrace.time.durations import format_duration

if TYPE_CHECKING:
    from millrace.runtime.settings import KafkaSettings

Kind = Literal["topic", "table", "checkpoint", "savepoint", "other"]
#: Kafka's own, where a topic does not say: how long a segment is written to, ms.
_SEGMENT_MS: Final = 604_800_000


@dataclass(frozen=True)
class Residue:
    """What may still name somebody in one store.

    Attributes:
        kind: What the store is.
        name: Its name.
        holds: What may be there.
        until: When it is gone by itself at the latest, ISO 8601; ``None``: not by itself.
        ends: What ends it.
    """

    kind: Kind
    name: str
    holds: str
    until: str | None
    ends: str

    def line(self) -> str:
        """Return it in a line.

        >>> Residue("savepoint", "monday", "state", None, "remove it").line()
        'savepoint monday: state; remove it'
        """
        until = f", gone by {self.until}" if self.until else ""
        return f"{self.kind} {self.name}: {self.holds}; {self.ends}{until}"


def topic_residues(configs: Mapping[str, Mapping[str, str]], now_ms: int) -> list[Residue]:
    """Return what topics still hold.

    Args:
        configs: Topic → its settings, as far as the broker says.
        now_ms: Now, UTC milliseconds.

    Example:
        >>> configs = {"clicks": {"retention.ms": "3600000", "segment.ms": "3600000"}}
        >>> topic_residues(configs, 0)[0].until
        '1970-01-01T02:00:00+00:00'
    """
    return [_of_topic(name, of, now_ms) for name, of in sorted(configs.items())]


def _of_topic(name: str, of: Mapping[str, str], now_ms: int) -> Residue:
    policy = of.get("cleanup.policy", "delete")
    keeps = of.get("retention.ms")
    if "delete" not in policy:
        return Residue(
            "topic",
            name,
            "records under their keys",
            None,
            "a record without value (tombstone) under each key",
        )
    if keeps is None:
        return Residue(
            "topic", name, "records", None, "the topic's retention.ms, which the broker did not tell"
        )
    if keeps.startswith("-"):
        return Residue("topic", name, "records", None, "its retention is for ever: set retention.ms")
    # A segment goes when its last record is old enough, and is written to for a while.
    whole = int(keeps) + int(of.get("segment.ms", _SEGMENT_MS))
    kept = f"kept for {format_duration(int(keeps))}, and as long as their segment is written to"
    return Residue("topic", name, "records", _time(now_ms + whole), kept)


def topics_of(kafka: KafkaSettings, names: Iterable[str], now_ms: int) -> list[Residue]:
    """Return what the topics of an app still hold; the broker is asked how long, if there is one.

    Args:
        kafka: Where they are.
        names: Their names.
        now_ms: Now, UTC milliseconds.
    """
    from millrace.kafka.admin import topic_configs

    names = list(names)
    configs: dict[str, dict[str, str]] = {}
    if kafka.bootstrap is not None:
        try:
            configs = topic_configs(kafka.bootstrap, names, options=kafka.options)
        except MillraceError:
            configs = {}
    return topic_residues({name: configs.get(name, {}) for name in names}, now_ms)


def table_residues(tables: Sequence[Path], app: str) -> list[Residue]:
    """Return which tables have files of earlier versions, and rows that wait for them.

    Args:
        tables: Their folders.
        app: Name of the app, for the command.
    """
    from millrace.connectors.merging import waiting_files
    from millrace.connectors.upkeep import vacuum

    found = []
    for table in tables:
        if old := vacuum(table, keep_ms=0, dry_run=True).files:
            holds = f"{old:,} files of earlier versions"
            found.append(Residue("table", table.name, holds, None, f"`millrace tables vacuum {app}`"))
        if waits := len(waiting_files(table)):
            holds = f"{waits:,} files of rows that a run left for it"
            found.append(Residue("table", table.name, holds, None, "the next run, or the job that runs"))
    return found


def state_residues(root: Path) -> list[Residue]:
    """Return what checkpoint and savepoints of an app still hold.

    Args:
        root: Folder of the app, ``storage.root``.
    """
    found = []
    if any((root / "checkpoint" / "state").glob("*")):
        ends = "the engine removes them with the batches that come (spark.sql.streaming.minBatchesToRetain)"
        found.append(Residue("checkpoint", "checkpoint", "earlier versions of state", None, ends))
    for saved in sorted((root / "savepoints").glob("*")):
        ends = f"remove it, or forget again after a restore (made {_time(_made_ms(saved))})"
        found.append(Residue("savepoint", saved.name, "state as it was", None, ends))
    return found


def _made_ms(folder: Path) -> int:
    return int(folder.stat().st_mtime * 1_000)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="seconds")
