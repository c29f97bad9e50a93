"""The process of boards: the best of all shards, per window."""

from __future__ import annotations

from typing import Final

import msgspec

from millrace import Context, KeyedProcess, Timer, days, value_state
from millrace_apps.clickstream.contracts.messages import ShardWindow
from millrace_apps.clickstream.processes.counters import PLACES

_TELL, _DROP = "tell", "drop"
#: How long after its end a board can still be corrected, ms; counters say for how long they do.
_BOARD_LIFE_MS: Final = 2 * 3_600_000
#: Boards of items are cut to so many places, others show all they have, up to this many.
_MOST_ROWS: Final = 200


class BoardRow(msgspec.Struct, frozen=True, gc=False):
    """A place on a board; a row by ``board``, ``window_end_ms`` and ``rank``, the highest revision holds.

    Attributes:
        board: What is ranked, and the window: e.g. ``sold/1h``.
        window_start_ms: Start of the window, UTC ms.
        window_end_ms: Its end; not part of it.
        rank: The place, from 1.
        item: Item, category, device or source.
        value: Its number: events, pieces, visitors, visits or cents.
        revision: 0, and more for corrections.
        deleted: The place is empty after a correction.
    """

    board: str
    window_start_ms: int
    window_end_ms: int
    rank: int
    item: str
    value: int
    revision: int
    deleted: bool = False


class Board(msgspec.Struct, array_like=True, gc=False):
    """A board of one window.

    Attributes:
        name: What is ranked.
        start_ms: Start of the window, ms.
        end_ms: Its end.
        shards: Shard → its numbers.
        rows: How many rows were told last.
        revision: How often it was told.
    """

    name: str
    start_ms: int
    end_ms: int
    shards: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    rows: int = 0
    revision: int = 0

    def ranking(self) -> list[tuple[str, int]]:
        """Return the board, best first; of equals the lesser name is first."""
        sums: dict[str, int] = {}
        for counts in self.shards.values():
            for item, number in counts.items():
                sums[item] = sums.get(item, 0) + number
        places = PLACES if self.name.startswith(("views/", "sold/", "searches/")) else _MOST_ROWS
        return sorted(sums.items(), key=lambda e: (-e[1], e[0]))[:places]


class Boards(KeyedProcess[ShardWindow, BoardRow]):
    """Adds up what the shards have counted in a window, and ranks it."""

    name = "Boards"
    # A board is told once all shards have told theirs.
    order = "event_time"
    board = value_state(Board, ttl=days(7))

    def process(self, event: ShardWindow, ctx: Context) -> None:
        """Take down what a shard has counted."""
        board = self.board.value
        if board is None:
            board = Board(event.board, event.start_ms, event.end_ms)
            ctx.timers.at(event.end_ms + _BOARD_LIFE_MS, _DROP)
        board.shards[event.shard] = event.counts
        self.board.value = board
        ctx.timers.at(ctx.event_time, _TELL)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Tell the board once all shards have; drop it when nothing corrects it any more."""
        if timer.name == _DROP:
            self.board.clear()
            return
        board = self.board.value
        if board is None:
            return
        ranking = board.ranking()
        fixed = (board.name, board.start_ms, board.end_ms)
        revision = board.revision
        for rank, (item, value) in enumerate(ranking, 1):
            ctx.emit(BoardRow(*fixed, rank, item, value, revision), revision=revision)
        for rank in range(len(ranking) + 1, board.rows + 1):
            ctx.emit(BoardRow(*fixed, rank, "", 0, revision, True), revision=revision)
        board.rows = len(ranking)
        board.revision += 1
        self.board.value = board

    def last_due(self, latest: int) -> int:
        """Return what is later than the last correction."""
        return latest + 2 * _BOARD_LIFE_MS
