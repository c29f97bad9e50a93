"""Authorisations of purchases after the decision: approved or declined, then paid, or not at all."""

from __future__ import annotations

from typing import Final

from millrace_apps.fraud.contracts.events import Authorisation, AuthorisationStatus, Transaction
from millrace_apps.generators.engine.randomness import substream
from millrace_apps.generators.engine.simulated import Simulated
from millrace_apps.generators.fraud.labels import Coming, Delay
from millrace_apps.generators.fraud.ordinary import billed_cents
from millrace_apps.generators.fraud.world import NUMBERS

#: Of the purchases that are told of, those that are declined, and of the others those that are never paid.
DECLINED: Final = 0.03
REVERSED: Final = 0.01
#: Those paid in part, since not everything was delivered.
PARTLY: Final = 0.05
#: A response takes so long, ms, whatever the scale.
_RESPONSE_MS: Final = (200, 2_000)
#: Merchants are paid within days.
CAPTURE: Final = Delay(24 * 3_600_000, 0.8, 3_600_000, 5 * 24 * 3_600_000)
_IDS: Final = 1 << 48


class Authorisations:
    """The authorisations of some purchases; the same ones whatever else there is.

    Args:
        seed: The run's seed.
        share: Share of purchases that are told of.
        scale: Factor on how long it takes until merchants are paid.
        coming: Where they wait.
    """

    def __init__(self, seed: int, share: float, scale: float, coming: Coming) -> None:
        self._seed, self._scale, self._coming = seed, scale, coming
        self._below = round(share * _IDS)

    def tell(self, event: Transaction) -> None:
        """Plan what becomes of a purchase, if it is told of: its identity, which is scattered, decides."""
        name = event.transaction_id
        if int(name[-12:], 16) >= self._below:
            return
        draw = substream(self._seed, NUMBERS, "authorisation", name).random
        low, high = _RESPONSE_MS
        at_ms = event.event_time_ms + low + int(draw() * (high - low))
        fate, outcome, partly, delay = draw(), draw(), draw(), draw()
        if fate < DECLINED:
            self._add(event, "a1", at_ms, "declined")
            return
        self._add(event, "a1", at_ms, "approved")
        at_ms += CAPTURE.at(delay, self._scale)
        if outcome < REVERSED:
            self._add(event, "a2", at_ms, "reversed")
            return
        cents = billed_cents(event)
        part = max(1, round(cents * (0.3 + 0.6 * partly / PARTLY))) if partly < PARTLY else None
        self._add(event, "a2", at_ms, "captured", part)

    def _add(
        self,
        event: Transaction,
        which: str,
        at_ms: int,
        status: AuthorisationStatus,
        settled: int | None = None,
    ) -> None:
        told = Authorisation(
            f"{event.transaction_id}-{which}",
            at_ms,
            event.transaction_id,
            event.event_time_ms,
            event.card_id,
            status,
            billed_cents(event) / 100,
            None if settled is None else settled / 100,
            event.terminal_id,
        )
        self._coming.add(told.authorisation_id, Simulated("authorisations", event.card_id, told, at_ms))
