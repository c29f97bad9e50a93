"""Reads the app's topics, once and up to where they end now, for an audit of what stands on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millrace.operations.reading import Stored, read_topics
from millrace.time import ms
from millrace_apps.ridesharing.contracts.events import CLOCKS, INPUTS
from millrace_apps.ridesharing.topic_audit.evidence import NEVER, OUTPUTS, Evidence

if TYPE_CHECKING:
    from millrace_apps.ridesharing.settings import RidesharingSettings

#: Records are read from so long before what is judged: where drivers were, and what they had to do, ms.
LOOK_BACK_MS: Final = 7_200_000


def read_evidence(
    settings: RidesharingSettings,
    *,
    since_ms: int | None = None,
    margin_ms: int = 200,
    control_ms: int | None = None,
) -> Evidence:
    """Read the app's topics to where they end now.

    Args:
        settings: The app's settings: broker, topics, how it dispatches, how late events may be.
        since_ms: What is judged begins then: records from two hours before are read, and of what holds in all
            regions, those of venues for example, all; UTC ms. ``None``: all.
        margin_ms: Records that came within so long may have been read in another order, ms.
        control_ms: When what holds in all regions was said, UTC ms: where events are simulated their topics
            have the simulation's times, and the control topic the broker's. ``None``: when it arrived.

    Returns:
        What was read, not closed yet.

    Raises:
        NoBroker: No answer, or none in time.
        UserError: A topic of an input does not exist, or records that are needed have been deleted.
    """
    # The ends of what the app says are looked up before those of its inputs: nothing without its cause.
    names = {getattr(settings.topics, stream): stream for stream in (*OUTPUTS, "control", *INPUTS)}
    evidence = Evidence(
        settings.dispatch_config(),
        bound_ms=ms(settings.stream.out_of_orderness),
        margin_ms=margin_ms,
        future_ms=ms(settings.stream.max_future_skew),
        begin_ms=NEVER if since_ms is None else since_ms - LOOK_BACK_MS,
    )

    def take(record: Stored) -> None:
        stream = names[record.topic]
        identity = record.event_id if stream in OUTPUTS else ""
        at_ms = control_ms if control_ms is not None and stream == "control" else record.at_ms
        evidence.read(stream, record.key, record.value, at_ms, identity)

    read_topics(
        settings.kafka,
        list(names),
        take,
        from_ms=None if since_ms is None else since_ms - LOOK_BACK_MS,
        needed=[name for name, stream in names.items() if stream in CLOCKS],
        whole=[settings.topics.control],
    )
    return evidence
