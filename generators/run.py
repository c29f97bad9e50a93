"""Takes a stream to its sink and keeps the ledger; the same for every domain, rate and sink."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from generators.engine.message import Generated
from generators.ledger import LedgerWriter
from generators.sinks import Sink
from millrace.testing.ledger import Summary


def run(stream: Iterable[Generated], sink: Sink, ledger: LedgerWriter, stop: threading.Event) -> Summary:
    """Send a stream until it ends or is stopped, and finish its ledger.

    Args:
        stream: Messages in their order of sending.
        sink: Where they go.
        ledger: Takes note of every message that the sink took.
        stop: Ends the run before the next message.

    Returns:
        The totals, which the ledger has as its last record once everything was delivered.

    Raises:
        SinkError: If something was not delivered; the ledger then has no summary.
    """
    write, note, stopped = sink.write, ledger.add, stop.is_set
    for message in stream:
        if stopped():
            break
        write(message)
        note(message)
    sink.flush()
    return ledger.finish()
