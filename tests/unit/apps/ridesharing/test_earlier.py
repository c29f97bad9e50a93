"""What the dispatcher's first version left waiting is what it is told now, in the order of then."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millrace.dead_letters import reason_of
from millrace.inputs import event_decoder, event_encoder, inputs_of
from millrace.state.conversion import EarlierEntry
from millrace.state.layout import PendingRow
from millrace_apps.ridesharing.contracts.events import MAX_TIME_MS, Event, Handover, key_of, stream_of
from millrace_apps.ridesharing.processes.dispatcher import Dispatcher
from millrace_apps.ridesharing.state.earlier import DISPATCHER
from tests.unit.apps.ridesharing.cases import (
    ZONE,
    answer,
    cancel,
    command,
    ms,
    position,
    progress,
    request,
    status,
)

#: All of one moment.
EVENTS: tuple[Event, ...] = (
    position("d1", 1),
    position("d2", 1),
    status("d1", 1, "online"),
    request("r1", 1),
    answer("r1", "d1", 1),
    answer("r1", "d2", 1, "reject", reason="busy"),
    cancel("r1", 1),
    progress("r1", "d1", 1, "arrived"),
    command("block", 1, driver_id="d1", until_ms=ms(2)),
    command("assign", 1, request_id="r1", driver_id="d1", zone=ZONE),
    Handover("h1", "d1", "r0-0", "r0-1", "standard", 37.8, -122.42, 0, ms(1), ms(0), ms(1), 0, ""),
    Handover("h2", "", "r0-0", "r0-1", "xl", 37.8, -122.42, 0, ms(1), 0, 0, 0, "r1"),
)


def as_then(event: Event) -> bytes:
    """The bytes of then: of one type, with stream and key in front, and without what says nothing."""
    fields = {name: value for name, value in msgspec.to_builtins(event).items() if value not in ("", 0)}
    lead = {"event_time_ms": fields.pop("event_time_ms"), "stream": stream_of(event), "entity": key_of(event)}
    return msgspec.json.encode({**lead, **fields})


def converted(*raws: bytes) -> list[bytes]:
    assert DISPATCHER.rewrite is not None
    entry = EarlierEntry(("all",), 0, waiting=[PendingRow(ms(1), f"c{n}", raw) for n, raw in enumerate(raws)])
    DISPATCHER.rewrite(entry)
    assert [row.cause for row in entry.waiting] == [f"c{n}" for n in range(len(raws))]
    return [row.raw for row in entry.waiting]


def test_what_waits_is_what_the_gate_would_tell_now_in_the_order_of_then() -> None:
    events = [e if isinstance(e, Handover) else msgspec.structs.replace(e, region="all") for e in EVENTS]
    then = sorted(map(as_then, events))
    now = converted(*then)
    assert now == sorted(now)
    encode, decode = event_encoder(Dispatcher()), event_decoder(Dispatcher())
    assert sorted(now) == sorted(map(encode, events))
    inputs = inputs_of(Dispatcher())
    assert inputs is not None
    assert [inputs.name_of(raw) for raw in now] == [stream_of(decode(raw)) for raw in now]


@pytest.mark.parametrize(
    ("stream", "beyond"), [("requests", {"pickup_at_ms": MAX_TIME_MS + 1}), ("handovers", {"lat": 91.0})]
)
def test_what_is_beyond_bounds_of_now_waits_to_be_a_dead_letter(stream: str, beyond: dict[str, Any]) -> None:
    event = next(e for e in EVENTS if stream_of(e) == stream)
    (raw,) = converted(as_then(msgspec.structs.replace(event, **beyond)))
    with pytest.raises(msgspec.ValidationError) as error:
        event_decoder(Dispatcher())(raw)
    assert reason_of(error.value) == "range"
