"""What `millrace fraud serve` is made of, by the app's settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from apps.fraud.app import app, masking
from apps.fraud.served import JOURNAL
from apps.fraud.serving import INPUT, Decider, WhenDown
from apps.fraud.settings import FraudSettings
from millrace.errors import UserError
from millrace.inspect.committed import CommittedState
from millrace.runtime.plans import settled
from millrace.serving.ahead import AheadOfQuery
from millrace.serving.handing import HandingOn
from millrace.serving.journal import Journal
from millrace.serving.running import checkpoint_of
from millrace.time.durations import to_ms
from millrace.topology import Topology

#: How long a payment is sent again where answers do not wait for the broker, seconds.
_KEEP_TRYING_S = 900.0


def ahead_of(settings: FraudSettings, key_file: Path | None = None) -> AheadOfQuery:
    """Return the app's topology, ahead of the query that runs with these settings."""
    find = checkpoint_of(settings)

    def make() -> Topology:
        # What hangs on the plan is settled by the checkpoint, which may not be there yet.
        made: Topology = app.topology(settled(app, settings))
        return made

    def open_state() -> CommittedState:
        return CommittedState(find(), key_file=None if key_file is None else str(key_file))

    return AheadOfQuery(make, open_state, INPUT, forget_s=_KEEP_TRYING_S + 60)


@contextlib.contextmanager
def decider_of(
    settings: FraudSettings,
    *,
    key_file: Path | None = None,
    ack_s: float = 1.0,
    when_down: WhenDown = "refuse",
    handing: Callable[[], HandingOn] | None = None,
) -> Iterator[tuple[Decider, AheadOfQuery]]:
    """Return what decides, and the topology that it asks.

    Args:
        settings: The settings that the app runs with.
        key_file: The file of keys, if state is encrypted.
        ack_s: How long an answer waits for the broker, seconds.
        when_down: What is done where it has not taken a payment by then.
        handing: Makes what hands payments on; a client of the broker unless given.

    Raises:
        UserError: There is no broker in the settings, or no folder for the state.
    """
    root = settings.storage.local_root
    if root is None:
        raise UserError(f"storage.root is {settings.storage.root}: serving reads a local or mounted folder")
    ahead = ahead_of(settings, key_file)
    hand_on = _to_broker(settings, ack_s, when_down) if handing is None else handing()
    journal = Journal(root / JOURNAL)
    try:
        yield (
            Decider(
                ahead,
                hand_on,
                journal,
                ack_s=ack_s,
                when_down=when_down,
                future_ms=to_ms(settings.stream.max_future_skew),
                tokens=_tokens(settings),
            ),
            ahead,
        )
    finally:
        hand_on.close()
        journal.close()


def _to_broker(settings: FraudSettings, ack_s: float, when_down: WhenDown) -> HandingOn:
    from millrace.kafka.admin import client_config

    kafka = settings.kafka
    if kafka.bootstrap is None:
        raise UserError("payments go on to the stream: name its broker with -s kafka.bootstrap=host:port")
    return HandingOn(
        settings.topics.transactions,
        client_config(kafka.bootstrap, dict(kafka.options)),
        keep_trying_s=ack_s if when_down == "refuse" else _KEEP_TRYING_S,
    )


def _tokens(settings: FraudSettings) -> Callable[[bytes], bytes]:
    """Return what replaces card numbers, as the stream does."""
    numbers = masking(settings)
    return bytes if numbers is None else numbers.open().message
