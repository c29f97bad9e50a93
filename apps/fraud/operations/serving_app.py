"""Assembly of `millrace fraud serve`, by the app's settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from millrace.checkpoints.committed import CommittedState
from millrace.errors import UserError
from millrace.runtime.plans import settled
from millrace.serving.ahead import AheadOfQuery
from millrace.serving.handing import AtOnce, HandingOn
from millrace.serving.journal import Journal
from millrace.serving.outbox import Outbox
from millrace.serving.running import checkpoint_of
from millrace.time.durations import to_ms
from millrace.topology import Topology
from millrace_apps.fraud.app import app, masking
from millrace_apps.fraud.operations.served import JOURNAL
from millrace_apps.fraud.operations.serving import INPUT, Decider, WhenDown
from millrace_apps.fraud.settings import FraudSettings

#: How long a payment is sent again where answers do not wait for the broker, seconds.
_KEEP_TRYING_S = 900.0

#: Where a payment is safe: in the outbox on this machine's disk, or with the broker.
Safe = Literal["outbox", "broker"]


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
    safe: Safe = "outbox",
    handing: Callable[[], HandingOn] | None = None,
) -> Iterator[tuple[Decider, AheadOfQuery]]:
    """Return what decides, and the topology that it asks.

    Args:
        settings: The settings that the app runs with.
        key_file: The file of keys, if state is encrypted.
        ack_s: How long an answer waits for its payment to be safe, seconds; with ``safe="outbox"`` also how
            long the broker may take nothing before it counts as away.
        when_down: What is done where the broker is away.
        safe: Where a payment is safe, so that its decision is answered.
        handing: Makes what hands payments on; a client of the broker unless given.

    Raises:
        UserError: There is no broker in the settings, or no folder for the state.
    """
    root = settings.storage.local_root
    if root is None:
        raise UserError(f"storage.root is {settings.storage.root}: serving reads a local or mounted folder")
    ahead = ahead_of(settings, key_file)
    refuses = when_down == "refuse"
    keep_trying_s = ack_s if refuses and safe == "broker" else _KEEP_TRYING_S
    make = handing or (lambda: to_broker(settings, keep_trying_s))
    with contextlib.ExitStack() as stack:
        way: AtOnce | Outbox
        if safe == "outbox":
            way = outbox = Outbox(
                root / JOURNAL,
                settings.topics.transactions,
                make,
                refuse_after_s=ack_s if refuses else None,
                committed=lambda: ahead.offsets,
            )
            stack.callback(outbox.close)
        else:
            forward = make()
            stack.callback(forward.close)
            way = AtOnce(forward)
        journal = Journal(root / JOURNAL)
        stack.callback(journal.close)
        decider = Decider(
            ahead,
            way,
            journal,
            ack_s=ack_s,
            when_down=when_down,
            future_ms=to_ms(settings.stream.max_future_skew),
            tokens=_tokens(settings),
        )
        if isinstance(way, Outbox):
            decider.go_on_from(way.found)
        yield decider, ahead


def to_broker(settings: FraudSettings, keep_trying_s: float = _KEEP_TRYING_S) -> HandingOn:
    """Return what hands payments to the broker of the settings.

    Args:
        settings: The settings of the app.
        keep_trying_s: How long a payment is sent again where no broker takes it, seconds.

    Raises:
        UserError: There is none.
    """
    from millrace.kafka.admin import client_config

    kafka = settings.kafka
    if kafka.bootstrap is None:
        raise UserError("payments go on to the stream: name its broker with -s kafka.bootstrap=host:port")
    return HandingOn(
        settings.topics.transactions,
        client_config(kafka.bootstrap, dict(kafka.options)),
        keep_trying_s=keep_trying_s,
    )


def _tokens(settings: FraudSettings) -> Callable[[bytes], bytes]:
    """Return what replaces card numbers, as the stream does."""
    numbers = masking(settings)
    return bytes if numbers is None else numbers.open().message
