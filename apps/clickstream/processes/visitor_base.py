"""The base of the visitor process: its state and its outputs, which all its parts stand on."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from millrace import Context, KeyedProcess, arrival, days, side_output, value_state
from millrace_apps.clickstream.contracts.events import INPUTS, Click, ShopEvent, order_of, to_cents
from millrace_apps.clickstream.contracts.messages import (
    Looked,
    Marked,
    OrderRefunded,
    OrderTold,
    ToCart,
    ToPerson,
    ToShard,
)
from millrace_apps.clickstream.contracts.rows import Erased, Identity, OwnerChange, SessionRow
from millrace_apps.clickstream.processes.bots import is_crawler
from millrace_apps.clickstream.processes.funnels import FunnelResult
from millrace_apps.clickstream.state.browser_state import BrowserState, VisitorRules
from millrace_apps.clickstream.state.consent import ConsentChange
from millrace_apps.clickstream.state.marks import BrowserMarks, Owned
from millrace_apps.clickstream.state.order_money import KeptLine
from millrace_apps.clickstream.state.suppression import SUPPRESSED, Suppressed


class VisitorBase(KeyedProcess[ShopEvent, ToPerson]):
    """The state and the outputs of :class:`millrace_apps.clickstream.processes.visitor.Visitors`.

    Args:
        rules: What it is told; sessions must be such that order makes no difference to them.
    """

    name = "Visitors"
    # Every field of a session is a sum, a least, a greatest or a set, and a row that an event of an earlier
    # time changes is written again: what stands in the tables in the end hangs on the events alone.
    order = arrival(corrects=True)
    object_reuse = True
    inputs: ClassVar = INPUTS
    known = value_state(BrowserState, ttl=days(395))
    erased = value_state(Suppressed, ttl=SUPPRESSED)
    sessions = side_output(SessionRow)
    funnels = side_output(FunnelResult)
    consents = side_output(ConsentChange)
    identities = side_output(Identity)
    owner_changes = side_output(OwnerChange)
    erasures = side_output(Erased)
    carts = side_output(ToCart)
    counts = side_output(ToShard)
    refunds = side_output(OrderRefunded)
    orders = side_output(OrderTold)
    looks = side_output(Looked)

    def __init__(self, rules: VisitorRules | None = None) -> None:
        self._rules = rules or VisitorRules()
        funnels = self._rules.funnels
        later = {step for f in funnels for step in f.steps[1:]}
        # Whichever time of the first step brings somebody furthest begins the funnel's time: of a twelfth of
        # it the first one stands for all.
        self._begins = {
            step: min(f.within_ms for f in funnels if f.steps[0] == step) // 12
            for step in {f.steps[0] for f in funnels} - later
        }
        self._steps = {step for f in funnels for step in f.steps}
        self._marks = BrowserMarks(self._rules.ways, self._rules.shared)

    @staticmethod
    def person(user: str | None, visitor: str) -> str:
        """Return whom something concerns: the account where that is known and allowed, or the browser."""
        return f"u:{user}" if user is not None else f"v:{visitor}"

    def _tell_marks(
        self,
        before: Owned,
        known: BrowserState,
        ctx: Context,
        *,
        since_ms: int | None = None,
        forgets: Collection[str] = (),
    ) -> None:
        """Tell persons what they have done in the browser, where that is other than it was.

        Args:
            before: What each was told.
            known: What is known of the browser.
            ctx: The context.
            since_ms: Of what was done up to here nothing is said; None: of what is not known any more.
            forgets: Persons who are to forget the browser, also where nothing is other than it was.
        """
        browser = str(ctx.key)
        now = self._marks.owned(known, browser)
        changed = [who for who in sorted({*before, *now}) if before.get(who) != now.get(who)]
        changed += sorted({*forgets} - {*changed})
        if not changed:
            return
        # What was known may be forgotten, and the browser still be there: it grows all the same.
        known.mark_revision = max(known.mark_revision + 1, ctx.event_time)
        since = known.marks_from if since_ms is None else since_ms
        for person in changed:
            told = Marked(
                person, ctx.event_time, browser, now.get(person, {}), since, known.mark_revision,
                person in forgets,
            )  # fmt: skip
            ctx.emit(told)

    def _order(self, event: Click, ctx: Context) -> None:
        """Tell of the order, if the event does; whoever asks knows it by its identity."""
        if event.event_type != "purchase" or is_crawler(event.user_agent):
            return
        lines = [
            KeptLine(line.item_id, line.category, to_cents(line.price), line.quantity,
                     None if line.cost is None else to_cents(line.cost))
            for line in event.lines
        ]  # fmt: skip
        ctx.output(
            self.orders,
            OrderTold(order_of(event), event.event_time_ms, event.event_id, event.currency or "",
                      to_cents(event.amount or 0.0), None if event.tax is None else to_cents(event.tax),
                      to_cents(event.shipping or 0.0), lines),
        )  # fmt: skip
