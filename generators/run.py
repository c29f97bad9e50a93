"""Takes a stream to its sink and keeps the ledger; the same for every domain, rate and sink."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol, TypeVar

from millrace_apps.generators.engine.message import Generated
from millrace_apps.generators.resume import Keeper
from millrace_apps.generators.sinks import Sink

S = TypeVar("S", covariant=True)


class LedgerOf(Protocol[S]):
    """A ledger that ends with totals of type ``S``."""

    def add(self, message: Generated) -> None:
        """Take note of a message that the sink took, or that was dropped on purpose."""

    def finish(self) -> S:
        """Write the totals, close the file and return them."""


def run(
    stream: Iterable[Generated],
    sink: Sink,
    ledger: LedgerOf[S],
    stop: threading.Event,
    keeper: Keeper | None = None,
) -> S:
    """Send a stream until it ends or is stopped, and finish its ledger.

    Args:
        stream: Messages in their order of sending.
        sink: Where they go.
        ledger: Takes note of every message that the sink took.
        stop: Ends the run before the next message.
        keeper: Remembers how far the run got.

    Returns:
        The totals, which the ledger has as its last record once everything was delivered.

    Raises:
        SinkError: If something was not delivered; the ledger then has no summary.
    """
    write, note, stopped = sink.write, ledger.add, stop.is_set
    sent = first = keeper.sent if keeper is not None else 0
    for message in stream:
        if stopped():
            break
        if message.dropped:
            note(message)
            continue
        write(message)
        note(message)
        sent += 1
        if keeper is not None:
            keeper.sent = sent
            if not (sent - first) & 255:
                keeper.keep()
    sink.flush()
    summary = ledger.finish()
    if keeper is not None:
        keeper.remove()
    return summary
