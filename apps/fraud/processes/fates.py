"""Authorisations, chargebacks and labels of a card's payments, and what they change of its profile.

A payment is found among the purchases of the card's last 30 days: by its time, and of one millisecond by its
terminal and its amount as far as they are told. What becomes known is in force from then on for transactions
of that time and later; until the watermark has passed it, it waits beside the profile::

    purchase      t0             t1             t2
    declined            known at k
    sees                         as if t0 had never been; its money is back
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from millrace.parts.lookback import link_of
from millrace_apps.fraud.contracts.events import Authorisation, Label, to_cents
from millrace_apps.fraud.processes.authorised import CardSteps
from millrace_apps.fraud.state.card_history import TERMINALS
from millrace_apps.fraud.state.history import HORIZON_MS, History
from millrace_apps.fraud.state.known_labels import CardWords
from millrace_apps.fraud.state.profile import Change, Profile


def change_of(event: Label | Authorisation) -> Change:
    """Return what an event changes."""
    return Change(
        event.event_time_ms,
        event.transaction_id,
        event.transaction_time_ms,
        link_of(event.terminal_id),
        to_cents(event.amount) if isinstance(event, Authorisation) else 0,
    )


def counts_at(change: Change, watermark: int) -> bool:
    """Return whether something came in time to change anything: the payment is remembered.

    Args:
        change: What has become known.
        watermark: The watermark, ms.
    """
    return change.known - change.at <= HORIZON_MS and change.at > watermark - HORIZON_MS


class Fates:
    """What is known of the payments of a card.

    Args:
        history: The purchases of its last 30 days; None: there are none.
        steps: Its authorisations.
        words: Its labels.
    """

    __slots__ = ("_history", "_steps", "_words")

    def __init__(self, history: History | None, steps: CardSteps | None, words: CardWords | None) -> None:
        self._history, self._steps, self._words = history, steps, words

    def cents(self, change: Change) -> int | None:
        """Return the amount of a payment, cents; None: it is not among the purchases, or it is not known."""
        if self._history is None:
            return None
        columns = self._history.columns
        times, amounts = columns.times, columns.amounts
        first = bisect_left(times, change.at)
        places = range(first, bisect_right(times, change.at, first))
        if len(places) > 1:
            terminals = columns.links[TERMINALS :: columns.width]
            alike = [p for p in places if change.cents in (0, amounts[p])] or places
            places = [p for p in alike if terminals[p] == change.terminal] or alike  # type: ignore[assignment]
        return amounts[places[0]] or None if places else None

    def paid(self, change: Change, until: int) -> int:
        """Return what was paid for a payment, cents, by what was known at a time (ms); 0: it is unknown."""
        cents = self.cents(change)
        if cents is None:
            return 0
        return cents if self._steps is None else self._steps.paid(change.link, cents, until)

    def know(self, profile: Profile, change: Change, until: int, before: int) -> None:
        """Have a profile know what is known of a payment at a time.

        Args:
            profile: The profile; changed.
            change: The payment.
            until: The time, ms.
            before: What the profile holds to have been paid for it, cents.
        """
        cents = self.cents(change)
        if cents is None or self._history is None:
            return
        columns = self._history.columns
        first = bisect_left(columns.times, change.at)
        alike = columns.amounts[first : bisect_right(columns.times, change.at, first)].count(cents)
        if profile.excluded_beside(change, cents) >= alike:  # it has been told of under another identity
            return
        pays = self.paid(change, until)
        is_fraud = self._words is not None and self._words.verdict(change.transaction_id, until)
        profile.balance += before - pays
        payment = (change.at, cents, change.link)
        times = columns.times
        if 0 in columns.amounts:  # purchases whose amount is not known do not count
            times = [at for at, amount in zip(times, columns.amounts, strict=True) if amount]
        profile.count_payment(payment, times, counts=pays > 0 and not is_fraud)

    def apply(self, profile: Profile, changes: Iterable[Change]) -> None:
        """Have a profile know what became known of payments, one time after the other.

        Args:
            profile: The profile; changed.
            changes: In order of their time.
        """
        for change in changes:
            self.know(profile, change, change.known, self.paid(change, change.known - 1))
