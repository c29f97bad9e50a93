"""From a domain's events to messages: bytes, headers, topic, and the wrong clocks of some devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

import msgspec

from millrace_apps.generators.engine.disturb import Disturbances
from millrace_apps.generators.engine.message import Fault, Generated, Headers
from millrace_apps.generators.engine.randomness import digest
from millrace_apps.generators.engine.simulated import Domain, Simulated, StreamSpec
from millrace_apps.generators.engine.stages import Stream

_ENCODER: Final = msgspec.json.Encoder()
#: What a time ends in, by its milliseconds.
_MILLIS: Final = tuple(f".{milli:03d}Z".encode() for milli in range(1000))
#: Keys whose clock has been looked up; dropped when there are more, so that memory stays flat.
_CLOCKS: Final = 1 << 16


def event_type(domain: str, stream: str) -> str:
    """Return the CloudEvents type of a stream's events.

    >>> event_type("iot", "readings")
    'millrace.iot.readings'
    """
    return f"millrace.{domain}.{stream}"


class Clocks:
    """Which keys' clocks are wrong, and by how much; the same in every process.

    Args:
        seed: The run's seed.
        domain: Names the random numbers.
        share: Share of keys whose clock is wrong.
        bound_ms: How far at most, ms.
    """

    def __init__(self, seed: int, domain: str, share: float, bound_ms: int) -> None:
        self._of = (seed, domain, "clock")
        self._share, self._bound_ms = share, bound_ms
        self._known: dict[str, int] = {}

    def offset_ms(self, key: str) -> int:
        """Return how far the clock of a key is ahead (or, below 0, behind), ms."""
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _CLOCKS:
                self._known.clear()
            known = self._known[key] = self._draw(key)
        return known

    def _draw(self, key: str) -> int:
        # From the key alone and not in order of appearance, so that it may be forgotten.
        number = int(digest(*self._of, key), 16)
        if number % (1 << 53) >= self._share * (1 << 53):
            return 0
        distance = 1 + (number >> 64) * self._bound_ms // (1 << 64)
        return distance if number >> 60 & 1 else -distance


@dataclass(slots=True)
class _Route:
    """What is the same for all messages of a stream."""

    topic: str
    event_id: Callable[[Any], Any]
    time_field: str
    fixed: Headers
    sums: Callable[[Any], tuple[str, int]] | None


def encoded(domain: Domain, simulation: Iterable[Simulated], disturbances: Disturbances, seed: int) -> Stream:
    """Yield the messages of a simulation's events, in its order."""
    routes = {name: _route(domain.name, name, spec) for name, spec in domain.streams.items()}
    skew = disturbances.clock_skew
    clocks = Clocks(seed, domain.name, skew, disturbances.clock_skew_ms) if skew else None
    encode, current, time = _ENCODER.encode, -1, b""
    for happened in simulation:
        route = routes[happened.stream]
        event, at_ms, offset = happened.event, happened.event_time_ms, 0
        if clocks is not None and (offset := clocks.offset_ms(happened.key)):
            at_ms += offset
            is_ms = not isinstance(getattr(event, route.time_field), datetime)
            at = at_ms if is_ms else datetime.fromtimestamp(at_ms / 1000, UTC)
            event = msgspec.structs.replace(event, **{route.time_field: at})
        second = at_ms // 1000
        if second != current:
            current, time = second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
        event_id = str(route.event_id(event))
        version, kind, source, content, schema = route.fixed
        headers = [
            version,
            ("ce_id", event_id.encode()),
            kind,
            source,
            ("ce_time", time + _MILLIS[at_ms % 1000]),
            content,
            schema,
        ]
        name, amount = ("", 0) if route.sums is None else route.sums(event)
        message = Generated(event_id, happened.key.encode(), encode(event), headers, at_ms, name, amount)
        message.stream, message.topic = happened.stream, route.topic
        message.happened_ms = happened.event_time_ms
        message.truths = happened.truths
        if offset:
            message.fault = Fault("wrong_clock", "wrong_time", detail=f"{offset:+d} ms", lateness_ms=-offset)
        yield message


def _route(domain: str, stream: str, spec: StreamSpec) -> _Route:
    fixed: Headers = [
        ("ce_specversion", b"1.0"),
        ("ce_type", event_type(domain, stream).encode()),
        ("ce_source", f"millrace/generators/{domain}".encode()),
        ("content-type", b"application/json"),
        ("schema_version", spec.schema_version.encode()),
    ]
    return _Route(spec.topic, attrgetter(spec.id_field), spec.time_field, fixed, spec.sums)
