"""What is kept of a key can be asked of every app: all that its processes keep is read, and is JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from millrace.chaos.hostile import Message
from millrace.checkpoints.committed import CommittedState
from millrace.checkpoints.entries import as_json
from millrace.checkpoints.reading import opened
from millrace.host.groups import decode_key
from millrace.host.station import SHARED
from millrace.runtime.apps import input_versions
from millrace.serving.questions import of_key, processes
from millrace.state.cells import CLOCK_PAGE
from millrace.state.paged import owner_of
from millrace.testing.app_contract import AppWorld
from tests.unit.apps.clickstream.test_world import ClickstreamWorld
from tests.unit.apps.fraud.test_world import FraudWorld
from tests.unit.apps.iot_maintenance.test_world import IotWorld
from tests.unit.apps.ridesharing.test_world import RidesWorld
from tests.unit.millrace.serving.memory_query import MemoryQuery

EVENTS = 300


@pytest.mark.parametrize("world", [ClickstreamWorld, FraudWorld, IotWorld, RidesWorld])
def test_all_that_an_app_keeps_can_be_asked_for(world: type[AppWorld], tmp_path: Path) -> None:
    at = world()
    topology = at.topology()
    (topic, *_) = [one.topic for one in topology.inputs.values()]
    query = MemoryQuery(tmp_path / "app", topology, at.settings, topic, input_versions(at.app, topology))
    messages = [
        Message(
            topology.inputs[h.input or topology.input_of(h.event)].topic,
            h.key.encode(),
            msgspec.json.encode(h.event),
            h.came_ms,
        )
        for h, _ in zip(at.world(), range(EVENTS), strict=False)
    ]
    for low in range(0, len(messages), 100):
        query.run(messages[low : low + 100])
        if low == 100:
            query.writer.partition.snapshot(parts=2)
    state = CommittedState(query.writer.checkpoint)
    kept = query.kept()
    names = [link.process.stored_as for link in topology.links]
    assert [one["name"] for one in processes(state)["processes"]] == names
    asked = 0
    for place, name in enumerate(names):
        expected = {
            label: opened(name, label, rows, None)
            for label in {label for link, label, _ in kept if link == place and label != SHARED}
            if (
                rows := {
                    n: d for (i, of, n), d in kept.items() if (i, of) == (place, label) and n != CLOCK_PAGE
                }
            )
        }
        found = {label: group for _, label, group in state.groups(name)}
        assert found == expected
        keys = [
            decode_key(text)
            for group in found.values()
            for _, cells, _ in group.cells()
            for text in cells
            if owner_of(text)[1] is None  # parts of large states belong to a key
        ]
        for key in keys[:20]:
            if len(key) == len(state.stage(name).key):  # parts of large states have keys of their own
                told = msgspec.json.decode(as_json(of_key(state, name, key)))
                assert told["states"] or told["timers"] or told["waiting"] or told["processing_timers"]
                asked += 1
    assert asked > 10
