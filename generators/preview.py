"""Previews of a run: single messages, or its shape and size."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from millrace_apps.generators.engine.disturb import Disturbances
from millrace_apps.generators.engine.message import Generated
from millrace_apps.generators.timing import Timing

#: So many messages show what a run would send.
_DRY: Final = 10_000
_USUAL: Final = Disturbances().parameters()


def show_sample(stream: Iterator[Generated], size: int) -> None:
    """Print the first messages of a stream as JSON, with key, headers and what is true about them.

    A payload is shown as the object that it is; one that is none, as text.
    """
    for message in itertools.islice(stream, size):
        shown = {
            **({"topic": message.topic} if message.topic else {}),
            **({"sent": False} if message.dropped else {}),
            "key": message.key.decode(),
            "headers": {name: text.decode() for name, text in message.headers},
            "value": _value(message.value),
            "truth": _truth(message),
        }
        print(json.dumps(shown, indent=2, ensure_ascii=False))


def _value(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value.decode(errors="backslashreplace")


def _truth(message: Generated) -> dict[str, Any]:
    truths = [{"truth_id": truth.truth_id, "kind": truth.kind} for truth in message.truths]
    return {"truths": truths, "fault": message.fault.kind if message.fault else None}


def dry_run(
    title: str, stream: Iterator[Generated], parameters: Mapping[str, Any], topic: str, timing: Timing
) -> None:
    """Print what a run would send, from its first messages; nothing is sent and no file is made.

    Args:
        title: What would be sent where.
        stream: The messages.
        parameters: Every parameter that decides the bytes.
        topic: Topic of messages that name none.
        timing: When it would be sent.
    """
    topics: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    events, size, last_ms = 0, 0, timing.start_ms
    for message in itertools.islice(stream, _DRY):
        events += message.is_event
        if message.fault is not None:
            faults[message.fault.kind] += 1
        if not message.dropped:
            topics[message.topic or topic] += 1
            size += len(message.value)
            last_ms = max(last_ms, message.due_ms)
    sent, seconds = topics.total(), (last_ms - timing.start_ms) / 1000
    print(f"{title}: nothing was sent")
    for name, value in _parameters(parameters):
        print(f"  {name} = {value}")
    print(f"the first {sent:,} messages: {size / max(sent, 1):.0f} bytes each, "
          f"over {seconds:,.1f} s of event time")  # fmt: skip
    for title, counts in (("topic", topics), ("fault", faults)):
        for name, count in sorted(counts.items()):
            print(f"  {title} {name}: {count:,}")
    if sent and seconds:
        print(_in_all(timing, sent / seconds, sent / max(events, 1), size / sent))


def _parameters(parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what decides the bytes, by name; times as times, and of the disturbances those that are on."""
    for name, value in parameters.items():
        if name == "disturbances":
            yield from ((of, on) for of, on in value.items() if on != _USUAL.get(of))
        elif name in ("start_ms", "until_ms"):
            if value is not None:
                yield name.removesuffix("_ms"), datetime.fromtimestamp(value / 1000, UTC).isoformat()
        elif value is not None:
            yield name, value


def _in_all(timing: Timing, per_second: float, per_event: float, size: float) -> str:
    """Return how much a whole run would be.

    Args:
        timing: When it would be sent.
        per_second: Messages per second of event time.
        per_event: Messages per valid event.
        size: Bytes per message.
    """
    ends = [] if timing.events is None else [timing.events * per_event]
    if timing.until_ms is not None:
        ends.append((timing.until_ms - timing.start_ms) / 1000 * per_second)
    if ends:
        return f"in all: about {min(ends):,.0f} messages, {_bytes(min(ends) * size)}"
    if timing.speed is None:
        return "in all: no end, as fast as possible"
    paced = per_second * timing.speed
    return f"no end: about {paced:,.0f} messages/s, {_bytes(paced * size)}/s, {_bytes(paced * size * 3600)}/h"


def _bytes(size: float) -> str:
    """Return a number of bytes for people.

    >>> _bytes(950), _bytes(2_500_000)
    ('950 bytes', '2.5 MB')
    """
    for unit, of in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= of:
            return f"{size / of:.1f} {unit}"
    return f"{size:.0f} bytes"
