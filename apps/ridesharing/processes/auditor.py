"""The auditor: reads the journal of all regions and says where an invariant does not hold.

It is keyed by driver and by request, not by region, so that it sees what no region sees: one driver
in two regions.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from millrace import BroadcastContext, Context, KeyedProcess, Timer, hours, value_state
from millrace_apps.ridesharing.contracts.events import Control
from millrace_apps.ridesharing.contracts.records import Journal, Violation
from millrace_apps.ridesharing.state.lifecycle import COMMITTED, TERMINAL, may_follow

_OFFER = "offer"


class Account(msgspec.Struct, array_like=True):
    """What the auditor remembers of a subject.

    Attributes:
        open: Of a driver: the request and attempt of the open commitment; empty: none.
        state: Of a request: its state.
        attempt: Of a request: attempts so far.
        at_ms: Time of the last step, ms.
        terminal: Of a request: how often it has ended.
    """

    open: str = ""
    state: str = ""
    attempt: int = 0
    at_ms: int = 0
    terminal: int = 0


class Auditor(KeyedProcess[Journal, Violation]):
    """Checks every step of every driver and request; what it emits is an alarm.

    Invariants, with their numbers of the README: 1 one commitment per driver; 2 offers only to drivers
    who are heard of, near and of the class; 3 no step outside the table, one end, no time backwards; 4 what
    is offered is answered, expires or is withdrawn in time; 8 attempts count up by one.
    """

    order = "event_time"
    #: Switches of the policy pass by here too, at the end of the chain.
    control_type: ClassVar[object] = Control

    account = value_state(Account, ttl=hours(12))

    def process(self, event: Journal, ctx: Context) -> None:
        """Check one step."""
        account = self.account.value or Account()
        self.account.value = account  # its time to live begins anew
        if event.at_ms < account.at_ms:
            self._alarm(ctx, event, 3, f"step {event.step} at {event.at_ms} after one at {account.at_ms}")
        account.at_ms = max(account.at_ms, event.at_ms)
        if event.subject.startswith("d:"):
            self._driver(event, account, ctx)
        else:
            self._request(event, account, ctx)

    def on_late(self, event: Journal, ctx: Context) -> None:
        """Check what a late event caused like everything else."""
        self.process(event, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Raise an alarm: an offer that should be over is not."""
        account = self.account.value
        if account is not None and account.open:
            ctx.emit(Violation(4, ctx.key, f"offer {account.open} is open after its end", timer.at))

    def process_broadcast(self, control: Control, ctx: BroadcastContext) -> None:
        """Let a switch of the policy pass: invariants hold under every policy."""

    def _driver(self, event: Journal, account: Account, ctx: Context) -> None:
        commitment = f"{event.request_id}-{event.attempt}"
        if event.step == "open":
            if account.open:
                self._alarm(ctx, event, 1, f"{commitment} opened while {account.open} is open")
            if event.age_ms > event.ttl_ms:
                self._alarm(ctx, event, 2, f"position was {event.age_ms} ms old, {event.ttl_ms} are allowed")
            if event.distance_m > event.radius_m:
                self._alarm(ctx, event, 2, f"{event.distance_m:.0f} m away, {event.radius_m:.0f} are allowed")
            if not event.fits:
                self._alarm(ctx, event, 2, "the car is of another class")
            if event.apart:
                self._alarm(ctx, event, 2, "rider and driver are never to meet")
            account.open = commitment
            if event.deadline_ms:
                ctx.timers.at(event.deadline_ms + 1, _OFFER)
            return
        ctx.timers.delete(_OFFER)
        if account.open != commitment:
            self._alarm(ctx, event, 1, f"{commitment} {event.step} while {account.open or 'nothing'} is open")
        elif event.step == "close":
            account.open = ""

    def _request(self, event: Journal, account: Account, ctx: Context) -> None:
        if account.state != event.before:
            self._alarm(
                ctx, event, 3, f"{event.state} follows {event.before}, but the state was {account.state}"
            )
        if not may_follow(event.before, event.state):
            self._alarm(ctx, event, 3, f"{event.state} follows {event.before or 'nothing'}")
        if event.state in TERMINAL:
            account.terminal += 1
            if account.terminal > 1:
                self._alarm(ctx, event, 3, f"ended {account.terminal} times, the last time {event.state}")
        begins = event.state in ("offered", "accepted") and event.before not in COMMITTED
        if begins and event.attempt != account.attempt + 1:
            self._alarm(ctx, event, 8, f"attempt {event.attempt} follows attempt {account.attempt}")
        account.state, account.attempt = event.state, event.attempt

    @staticmethod
    def _alarm(ctx: Context, event: Journal, invariant: int, detail: str) -> None:
        ctx.emit(Violation(invariant, event.subject, detail, event.at_ms))
