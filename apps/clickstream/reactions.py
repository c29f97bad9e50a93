"""The last process: offers to persons, boards of the best, attributed orders."""

from __future__ import annotations

from typing import Final

import msgspec

from apps.clickstream.acts import Act
from apps.clickstream.counters import PLACES
from apps.clickstream.offer_rules import DEFAULT_RULES, OfferRule
from apps.clickstream.offers import KeptOffers, Offer, OfferBook, OfferOutcome
from millrace import Context, KeyedProcess, Timer, days, side_output, value_state

_TELL, _DROP, _TIDY = "tell", "drop", "tidy"
#: How long after its end a board can still be corrected, ms; counters say for how long they do.
_BOARD_LIFE_MS: Final = 2 * 3_600_000
#: Longer than an offer is waited for or capped, ms.
_END_MS: Final = 366 * 86_400_000
_ORDER_TTL = days(60)
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
        places = PLACES if self.name.startswith(("views/", "sold/")) else _MOST_ROWS
        return sorted(sums.items(), key=lambda e: (-e[1], e[0]))[:places]


class Attribution(msgspec.Struct, frozen=True, gc=False):
    """Where an order came from; a row by ``order_id``, the highest ``revision`` holds.

    Attributes:
        order_id: The order.
        at_ms: When it was made, UTC ms.
        first_touch: Source, medium and campaign that the person first came by; ``direct`` for none.
        last_touch: Those it came by last before the order.
        amount_cents: Its value.
        refunded_cents: What was paid back.
        net_cents: What is left.
        revision: 0, and one more for every refund.
    """

    order_id: str
    at_ms: int
    first_touch: str
    last_touch: str
    amount_cents: int
    refunded_cents: int
    net_cents: int
    revision: int


class Order(msgspec.Struct, array_like=True, gc=False):
    """An order and what came back of it; a refund may be known before the order."""

    at_ms: int = 0
    first: str = ""
    last: str = ""
    cents: int = 0
    refunds: dict[str, int] = msgspec.field(default_factory=dict)
    known: bool = False
    revision: int = 0


class Reactions(KeyedProcess[Act, Offer]):
    """Makes offers, ranks, and says what brought an order.

    Args:
        rules: Rules of offers.
    """

    name = "Reactions"
    # Patterns, caps and withdrawn consent hang on the order of events.
    order = "event_time"
    person = value_state(KeptOffers, ttl=days(30))
    board = value_state(Board, ttl=days(7))
    bought = value_state(Order, ttl=_ORDER_TTL)
    outcomes = side_output(OfferOutcome)
    boards = side_output(BoardRow)
    attributions = side_output(Attribution)

    def __init__(self, rules: tuple[OfferRule, ...] = DEFAULT_RULES) -> None:
        self._rules = rules
        self._book = OfferBook(rules)

    def __reduce__(self) -> tuple[type[Reactions], tuple[tuple[OfferRule, ...]]]:
        # What the rules are compiled to has functions and types that cannot travel: it is made anew.
        return Reactions, (self._rules,)

    def process(self, event: Act, ctx: Context) -> None:
        """Handle an act by what its key is of."""
        kind = event.key[:2]
        if kind == "b:":
            self._board(event, ctx)
        elif kind == "o:":
            self._order(event, ctx)
        else:
            self._person(event, ctx)

    def on_late(self, event: Act, ctx: Context) -> None:
        """Orders and erasures are never too late; an offer is."""
        if event.key[:2] == "o:" or event.kind in ("erase", "consent"):
            self.process(event, ctx)
        elif event.key[:2] == "p:" and event.kind == "purchase":
            self._outcome(event, ctx)
            self.emit_late(event, ctx)
        else:
            self.emit_late(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Tell a board once all shards have; drop what is over."""
        if timer.name == _TELL:
            self._tell(ctx)
        elif timer.name == _DROP:
            self.board.clear()
        else:
            state = self.person.value
            if state is not None:
                for outcome in self._book.over(state, timer.at):
                    ctx.output(self.outcomes, outcome)
                self._tidy(state, timer.at, ctx)

    def last_due(self, latest: int) -> int:
        """Return what is later than all that follows: offers, caps and outcomes end by themselves."""
        return latest + _END_MS

    # -- boards ----------------------------------------------------------------------------------

    def _board(self, act: Act, ctx: Context) -> None:
        board = self.board.value
        if board is None:
            board = Board(act.subject, act.lo_ms, act.hi_ms)
            ctx.timers.at(act.hi_ms + _BOARD_LIFE_MS, _DROP)
        board.shards[act.visitor] = act.counts
        self.board.value = board
        ctx.timers.at(ctx.event_time, _TELL)

    def _tell(self, ctx: Context) -> None:
        board = self.board.value
        if board is None:
            return
        ranking = board.ranking()
        fixed = (board.name, board.start_ms, board.end_ms)
        revision = board.revision
        for rank, (item, value) in enumerate(ranking, 1):
            ctx.output(self.boards, BoardRow(*fixed, rank, item, value, revision), revision=revision)
        for rank in range(len(ranking) + 1, board.rows + 1):
            ctx.output(self.boards, BoardRow(*fixed, rank, "", 0, revision, True), revision=revision)
        board.rows = len(ranking)
        board.revision += 1
        self.board.value = board

    # -- orders ----------------------------------------------------------------------------------

    def _order(self, act: Act, ctx: Context) -> None:
        order = self.bought.value or Order()
        if act.kind == "attributed":
            order.known, order.at_ms, order.cents = True, act.at_ms, act.cents
            order.first, order.last = act.first or "direct", act.last or "direct"
        elif act.subject in order.refunds:
            return
        else:
            order.refunds[act.subject] = act.cents
        if order.known:
            back = sum(order.refunds.values())
            row = Attribution(
                act.key[2:], order.at_ms, order.first, order.last, order.cents, back, order.cents - back,
                order.revision,
            )  # fmt: skip
            ctx.output(self.attributions, row, revision=order.revision)
            order.revision += 1
        self.bought.value = order

    # -- offers ----------------------------------------------------------------------------------

    def _person(self, act: Act, ctx: Context) -> None:
        if act.kind == "erase":
            self.person.clear()
            ctx.timers.delete(_TIDY)
            return
        state = self.person.value or KeptOffers()
        if act.kind == "consent":
            if act.stage == "withdrawn":
                state.withdrawn[act.visitor] = act.at_ms
                state.partials.clear()
            else:
                state.withdrawn.pop(act.visitor, None)
            self.person.value = state
            return
        if state.withdrawn.get(act.visitor, act.at_ms + 1) <= act.at_ms:
            return
        if act.kind == "purchase":
            self._outcome(act, ctx, state)
        offer = self._book.take(state, act)
        if offer is not None:
            ctx.emit(offer)
        self._tidy(state, act.at_ms, ctx)

    def _outcome(self, act: Act, ctx: Context, state: KeptOffers | None = None) -> None:
        state = self.person.value if state is None else state
        if state is not None:
            for outcome in self._book.bought(state, act):
                ctx.output(self.outcomes, outcome)
            self.person.value = state

    def _tidy(self, state: KeptOffers, now_ms: int, ctx: Context) -> None:
        due = self._book.tidy(state, now_ms)
        if due is None and not state.withdrawn and not state.before:
            self.person.clear()
            ctx.timers.delete(_TIDY)
            return
        self.person.value = state
        if due is not None:
            ctx.timers.at(max(due, now_ms + 1), _TIDY)
