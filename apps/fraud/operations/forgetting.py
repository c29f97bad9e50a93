"""Forgetting a card: the names it stands under, what is deleted from tables, what is left and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.connectors.merging import wait_for_merges, waiting_rows
from millrace.connectors.upkeep import find_tables
from millrace.privacy.erasure import Names, count_left, count_rows, delete_letters, delete_rows
from millrace.privacy.numbers import digits_of, is_card_number
from millrace.privacy.residues import Residue, state_residues, table_residues, topics_of
from millrace_apps.fraud.operations.served import JOURNAL, TABLE
from millrace_apps.fraud.operations.tokens import key_file

if TYPE_CHECKING:
    from millrace_apps.fraud.settings import FraudSettings

#: Table → columns that name a card; what stands not here is looked through as dead letters are.
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("transactions", "alerts", "labels", "authorisations", "corrections"), ("card_id",)),
    "late": ("event.card_id",),
}
#: Folder of the case work, which has tables and state of its own.
CASES: Final = "cases"
#: How long histories keep hashes, s.
_HASHES_S: Final = 31 * 86_400
#: Tables that say who did what, which is kept.
KEPT: Final = ("rule_audit",)


@dataclass
class Found:
    """What became of a card in one table.

    Attributes:
        table: The table.
        deleted: Rows that were deleted.
        left: Rows that still name it.
        kept: Whether these are kept on purpose.
    """

    table: str
    deleted: int
    left: int
    kept: bool = False


@dataclass
class Proof:
    """What was done and what is left, without the card's name.

    Attributes:
        erasure_ids: The requests.
        confirmed: Whether the app has said that it forgot the card; ``None``: it was not asked.
        tables: Each table.
        stores: Where else it may be named, and until when.
    """

    erasure_ids: list[str]
    confirmed: bool | None
    tables: list[Found] = field(default_factory=list)
    stores: list[Residue] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left that was to be forgotten."""
        return self.confirmed is not False and not any(one.left for one in self.tables if not one.kept)


def names_of(settings: FraudSettings, card: str) -> Names:
    """Return all that a card may stand under: of a number the tokens by each key, or itself without keys.

    Args:
        settings: The app's settings.
        card: A token, another identifier, or a card number, however it is written.

    Raises:
        TokenKeyError: The keys cannot be read.
    """
    number = digits_of(card)
    if number is None or not is_card_number(number):
        return Names((card,))
    path = key_file(settings)
    if path is None:
        return Names((number,))
    from millrace.privacy.keys import read_ring

    return Names(tuple(read_ring(path).tokens(number)))


def delete(settings: FraudSettings, names: Names) -> dict[str, int]:
    """Delete a card's rows; return table → how many."""
    gone = {}
    for table in _tables(settings):
        if table.name in COLUMNS:
            gone[table.name] = delete_rows(table, COLUMNS[table.name], names)
        elif table.name not in KEPT:
            gone[table.name] = delete_letters(table, names)
    return gone


def settle(settings: FraudSettings, patience_s: float) -> None:
    """Wait until rows that were said before the card was forgotten are in their tables.

    Args:
        settings: The app's settings.
        patience_s: How long, s.
    """
    wait_for_merges(_tables(settings), patience_s=patience_s)


def find_traces(settings: FraudSettings, names: Names, deleted: dict[str, int] | None = None) -> list[Found]:
    """Return what still names a card, table by table; found another way than it is deleted.

    Rows that wait for their table count as its rows: the next run brings them in.
    """
    return [
        Found(
            table.name,
            (deleted or {}).get(table.name, 0),
            sum(count_rows(rows, names) for rows in waiting_rows(table)) + count_left(table, names),
            kept=table.name in KEPT,
        )
        for table in _tables(settings)
    ]


def vacuum(settings: FraudSettings) -> int:
    """Remove the files of all earlier versions of the tables; return how many."""
    from millrace.connectors.upkeep import vacuum as remove

    return sum(remove(table, keep_ms=0).files for table in _tables(settings))


def stores(settings: FraudSettings, now_ms: int) -> list[Residue]:
    """Return what else may name a card and is not deleted here, and until when.

    Args:
        settings: The app's settings; the broker is asked how long topics keep their records.
        now_ms: Now, UTC milliseconds.
    """
    from millrace_apps.fraud.app import topics

    of, root = topics(settings), Path(settings.storage.path())
    found = [
        *topics_of(settings.kafka, sorted({topic.name for topic in (*of.reads, *of.writes)}), now_ms),
        *table_residues(_tables(settings), "fraud"),
        *state_residues(root),
    ]
    if any(root.glob(f"{JOURNAL}/*.jsonl")):
        holds = f"what was answered by `millrace fraud serve`, until table {TABLE} has it"
        found.append(Residue("other", JOURNAL, holds, None, "remove its old files"))
    if any(root.glob(f"{JOURNAL}/outbox-*")):
        ends = "the stream has had them for 15 minutes"
        found.append(Residue("other", f"{JOURNAL}/outbox", "payments", None, ends))
    if (root / CASES).exists():
        holds = "tables and state of the case work, in which cases name their cards"
        found.append(Residue("other", CASES, holds, None, "the retention of cases"))
    holds = "histories of terminals, devices, accounts, addresses: 32 bits of a hash"
    until = datetime.fromtimestamp(now_ms / 1_000 + _HASHES_S, UTC).isoformat(timespec="seconds")
    found.append(Residue("other", "state", holds, until, "kept for 31 days of the stream's time"))
    return found


def _tables(settings: FraudSettings) -> list[Path]:
    return find_tables(Path(settings.storage.path("tables")))
