"""The balance of every user after each payment: 150, then +100 makes 250, also after a restart.

The balance is a value in state. It is there when the user's next event comes, in the next batch, after a
restart, and on another machine. It is forgotten 90 days after the user's last payment.
"""

from __future__ import annotations

import sys

import msgspec

from millrace import Context, KeyedProcess, arrival, days, value_state
from millrace.playback import Playback, Restart, at, play
from millrace.topology import Input, read

TEACHES = "keyed state, time to live, restart"


class Payment(msgspec.Struct):
    """Money that comes in, or goes out."""

    user: str
    at: int
    amount: float


class Balance(msgspec.Struct):
    """What a user has."""

    user: str
    total: float


class RunningBalance(KeyedProcess[Payment, Balance]):
    """Adds up the payments of each user."""

    order = arrival(commutes=True)
    total = value_state(float, default=0.0, ttl=days(90))

    def process(self, event: Payment, ctx: Context) -> None:
        """Add a payment and tell the sum."""
        self.total.value += event.amount
        ctx.emit(Balance(ctx.key, self.total.value))


PAYMENTS = [
    Payment("ann", at("10:00:00"), 150),
    Payment("bob", at("10:00:05"), 20),
    Payment("ann", at("10:00:10"), 100),
    Restart(),
    Payment("ann", at("10:00:20"), -30),
]


balances = read(Input("payments", key="user", event_time="at")).process(RunningBalance())


def main(engine: str = "memory") -> Playback:
    """Play the payments, one a batch."""
    return play(balances, PAYMENTS, engine).show()


if __name__ == "__main__":
    main(*sys.argv[1:])
