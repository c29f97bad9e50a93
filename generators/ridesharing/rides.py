"""Requests that have not ended, and what their riders do: ask, wait, change their minds, leave."""

from __future__ import annotations

from collections import Counter

from generators.engine.simulated import Truth
from generators.ridesharing.emitter import Emitter, Truths
from generators.ridesharing.events import CancelReason
from generators.ridesharing.riders import Demand, Ride
from generators.ridesharing.timers import Due, Timers


class Rides:
    """Every open request with its rider; one that has ended is forgotten.

    Args:
        demand: Who asks next.
        prefix: What request ids begin with.
        emitter: Takes what riders do.
        timers: Wakes them.

    Attributes:
        fates: How many requests ended how.
    """

    def __init__(self, demand: Demand, prefix: str, emitter: Emitter, timers: Timers) -> None:
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
        self._open[ride.request_id] = ride
        self._emit.request(ride)
        self._be_patient(ride, ride.pickup_at_ms + ride.search_ms)
        if ride.mind_ms:
            self._timers.set(ride.mind_ms, Due.MIND, ride.number, 0)
        self._timers.set(self._next.at_ms, Due.REQUEST, 0, 0)

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
        return self._open.get(f"{self._prefix}{number:08d}")
