"""Requests that have not ended, and what their riders do: ask, wait, change their minds, leave."""

from __future__ import annotations

from collections import Counter
from typing import Final

from millrace_apps.generators.engine.simulated import Truth
from millrace_apps.generators.ridesharing.draws import chance
from millrace_apps.generators.ridesharing.emitter import Emitter, Truths, quote_of
from millrace_apps.generators.ridesharing.messages import CancelReason, Quote
from millrace_apps.generators.ridesharing.profile import RidesProfile
from millrace_apps.generators.ridesharing.riders import NO_DOOR, Demand, Ride
from millrace_apps.generators.ridesharing.timers import Due, Timers

#: A rider waits so long for a quote, then requests without one, ms.
QUOTE_PATIENCE_MS: Final = 180_000
#: A rider thinks a quote over for so long, ms; who dawdles requests so long after its end.
_THINKS_MS: Final = (2_000, 20_000)
_DAWDLES_MS: Final = 30_000


class Rides:
    """Every open request with its rider; one that has ended is forgotten.

    Args:
        profile: How riders take quotes.
        demand: Who asks next.
        prefix: What request ids begin with.
        emitter: Takes what riders do.
        timers: Wakes them.

    Attributes:
        fates: How many requests ended how.
    """

    def __init__(
        self, profile: RidesProfile, demand: Demand, prefix: str, emitter: Emitter, timers: Timers
    ) -> None:
        self._profile = profile
        # Who has asked for a quote and not requested yet, by the quote: the ride, and the quote that came.
        self._asking: dict[str, tuple[Ride, Quote | None]] = {}
        self._demand = demand
        self._prefix = prefix
        self._emit = emitter
        self._timers = timers
        self._open: dict[str, Ride] = {}
        self.fates: Counter[str] = Counter()
        self._next = demand.next_ride()
        timers.set(self._next.at_ms, Due.REQUEST, 0, 0)

    def __len__(self) -> int:
        return len(self._open)

    def get(self, request_id: str) -> Ride | None:
        """Return the open request of this id."""
        return self._open.get(request_id)

    def be_assigned(self, ride: Ride, driver: int, at_ms: int) -> None:
        """A driver is coming: the rider's patience begins anew."""
        ride.driver, ride.stage = driver, "assigned"
        self._be_patient(ride, max(at_ms, ride.pickup_at_ms) + ride.wait_ms)

    def reopen(self, ride: Ride, at_ms: int) -> None:
        """The driver is not coming after all."""
        ride.driver, ride.stage = -1, "open"
        self._be_patient(ride, max(at_ms, ride.pickup_at_ms) + ride.search_ms)

    def close(self, ride: Ride, fate: str) -> None:
        """End a request."""
        self.fates[fate] += 1
        del self._open[ride.request_id]

    def fate(self, ride: Ride, fate: str) -> Truth:
        """Return the truth about a request's end."""
        return self._emit.truth(fate, ride.request_id, "fate", fate)

    # Handlers of timers: number of the ride, token, time in ms.

    def ask(self, _number: int, _token: int, _at: int) -> None:
        """A request comes in."""
        ride, self._next = self._next, self._demand.next_ride()
        if not ride.takes_below:
            self._request(ride, ride.at_ms)
        else:
            self._asking[quote_of(ride.request_id)] = (ride, None)
            self._emit.quote(ride)
            self._timers.set(ride.at_ms + QUOTE_PATIENCE_MS, Due.UNQUOTED, ride.number, 0)
        self._timers.set(self._next.at_ms, Due.REQUEST, 0, 0)

    def hear_quote(self, quote: Quote, at: int) -> bool:
        """A rider hears a quote, and takes it or leaves; return whether anybody waited for it."""
        ride, heard = self._asking.get(quote.quote_id, (None, None))
        if ride is None or heard is not None:
            return False
        if quote.multiplier >= ride.takes_below:
            del self._asking[quote.quote_id]
            self.fates["left"] += 1
            return True
        self._asking[quote.quote_id] = (ride, quote)
        seed = self._profile.seed
        least, most = _THINKS_MS
        ready = at + least + int((most - least) * chance(seed, "thinks", ride.number))
        if chance(seed, "dawdles", ride.number) < self._profile.stale_quotes:
            ready = max(ready, quote.until_ms + _DAWDLES_MS)
        self._timers.set(ready, Due.TAKE, ride.number, 0)
        return True

    def go_unquoted(self, number: int, _token: int, at: int) -> None:
        """No quote has come: the rider requests without one."""
        name = quote_of(self._name(number))
        ride, quote = self._asking.get(name, (None, None))
        if ride is not None and quote is None:
            del self._asking[name]
            self._request(ride, at)

    def take(self, number: int, _token: int, at: int) -> None:
        """The rider requests by the quote."""
        name = quote_of(self._name(number))
        ride, quote = self._asking.pop(name)
        if quote is not None:
            ride.quote_id = name
            kind, expected = ("quote_taken", "locked") if at <= quote.until_ms else ("quote_stale", "expired")
            said = {"multiplier": quote.multiplier, "quote": name, "left_ms": quote.until_ms - at}
            self._request(ride, at, (self._emit.truth(kind, ride.request_id, "", expected, **said),))

    def _request(self, ride: Ride, at: int, truths: Truths = ()) -> None:
        """A rider asks for the ride; plans go on from here."""
        later = at - ride.at_ms
        ride.at_ms, ride.pickup_at_ms = at, max(ride.pickup_at_ms, at)
        self._open[ride.request_id] = ride
        if ride.from_airport:
            truths = (*truths, self._emit.truth("at_airport", ride.request_id, "", "in_turn"))
        if ride.pickup_point:
            expected = "unknown" if ride.pickup_point == NO_DOOR else "there"
            told = self._emit.truth("named_point", ride.request_id, "", expected, point=ride.pickup_point)
            truths = (*truths, told)
        self._emit.request(ride, at, truths)
        self._be_patient(ride, ride.pickup_at_ms + ride.search_ms)
        if ride.mind_ms:
            ride.mind_ms += later
            self._timers.set(ride.mind_ms, Due.MIND, ride.number, 0)

    def lose_patience(self, number: int, token: int, at: int) -> None:
        """The rider has waited long enough."""
        ride = self._of(number)
        if ride is not None and ride.token == token:
            self._leave(ride, "no_driver" if ride.stage == "open" else "too_long", at)

    def change_mind(self, number: int, _token: int, at: int) -> None:
        """The rider does not want the ride any more."""
        ride = self._of(number)
        if ride is not None and ride.stage in ("open", "assigned"):
            self._leave(ride, "changed_mind", at)

    def race(self, number: int, _driver: int, at: int) -> None:
        """The rider cancels just when a driver accepts."""
        ride = self._of(number)
        if ride is not None and ride.stage in ("open", "assigned"):
            truth = self._emit.truth("cancel_race", ride.request_id, "", "one_outcome")
            self._leave(ride, "changed_mind", at, (truth,))

    def _be_patient(self, ride: Ride, until_ms: int) -> None:
        ride.token += 1
        ride.patience_ms = until_ms
        self._timers.set(until_ms, Due.PATIENCE, ride.number, ride.token)

    def _leave(self, ride: Ride, reason: CancelReason, at: int, truths: Truths = ()) -> None:
        fate = "no_driver" if reason == "no_driver" else "cancelled"
        self._emit.cancel(ride, None, reason, at, (self.fate(ride, fate), *truths))
        self.close(ride, fate)

    def _of(self, number: int) -> Ride | None:
        return self._open.get(self._name(number))

    def _name(self, number: int) -> str:
        return f"{self._prefix}{number:08d}"
