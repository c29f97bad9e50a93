"""What is kept of a browser, what is told of it, and to whom: what all parts of its process stand on."""

from __future__ import annotations

from typing import ClassVar

from apps.clickstream.consent import ConsentChange
from apps.clickstream.events import INPUTS, ShopEvent
from apps.clickstream.funnels import FunnelResult
from apps.clickstream.known import Known, VisitorRules
from apps.clickstream.messages import Looked, OrderRefunded, ToCart, ToPerson, ToShard
from apps.clickstream.rows import Erased, Identity, OwnerChange, SessionRow
from apps.clickstream.suppression import SUPPRESSED, Suppressed
from millrace import KeyedProcess, arrival, days, side_output, value_state


class VisitorBase(KeyedProcess[ShopEvent, ToPerson]):
    """The state and the outputs of :class:`apps.clickstream.visitor.Visitors`.

    Args:
        rules: What it is told; sessions must be such that order makes no difference to them.
    """

    name = "Visitors"
    # Every field of a session is a sum, a least, a greatest or a set, and a row that an event of an earlier
    # time changes is written again: what stands in the tables in the end hangs on the events alone.
    order = arrival(corrects=True)
    inputs: ClassVar = INPUTS
    known = value_state(Known, ttl=days(395))
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
    looks = side_output(Looked)

    def __init__(self, rules: VisitorRules | None = None) -> None:
        self._rules = rules or VisitorRules()
        funnels = self._rules.funnels
        later = {step for f in funnels for step in f.steps[1:]}
        self._first_steps = {f.steps[0] for f in funnels} - later
        self._steps = {step for f in funnels for step in f.steps}

    @staticmethod
    def person(user: str | None, visitor: str) -> str:
        """Return whom something concerns: the account where that is known and allowed, or the browser."""
        return f"u:{user}" if user is not None else f"v:{visitor}"
