"""A topology ahead of its query: on a chain's state as on a station's, and what it refuses."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random

import msgspec
import pytest

from millrace.chaos.hostile import Message
from millrace.checkpoints.checkpoint import Checkpoint
from millrace.checkpoints.committed import CommittedState
from millrace.errors import UserError
from millrace.host.station import BROADCAST, HEADER, SHARED, place_of
from millrace.inputs import mark_of
from millrace.runtime.settings import load_settings
from millrace.serving.ahead import Ahead, Seen
from millrace.state.envelope import unwrap, wrap
from millrace.topology import Topology
from millrace_apps.fraud.app import app
from millrace_apps.fraud.settings import FraudSettings
from tests.unit.apps.fraud.cases import transaction
from tests.unit.millrace.checkpoints.spark_files import PartitionWriter, row_of
from tests.unit.millrace.serving.memory_query import MemoryQuery

VARIABLES = {"header": 2, "pages": 3, "broadcast": 4}


def as_chain(query: MemoryQuery, topology: Topology, root: Path) -> Checkpoint:
    """Write what a station keeps as a chain keeps it: an operator for each link, copies of what is shared."""
    kept = query.kept()
    source = query.writer.checkpoint
    contract = {name: about for name, about in source.contract().items() if name != "station"}
    for name in ("offsets", "commits"):
        (root / "checkpoint" / name).mkdir(parents=True)
    (root / "contract.json").write_text(json.dumps(contract))
    last, names = source.last(), {}
    for place, link in enumerate(topology.links):
        process, operator = link.process.stored_as, len(topology.links) - 1 - place
        labels = sorted({label for of, label, _ in kept if of == place and label != SHARED})
        rows = []
        for (of, label, number), data in kept.items():
            if of != place:
                continue
            plain = unwrap(data, place_of(process, label, number), None)
            for to in labels if label == SHARED else [label]:
                rows.append((_key(to, number), row_of(wrap(plain, place_of(process, to, number), None))))
        at = root / "checkpoint" / "state" / str(operator)
        writer = PartitionWriter(at / "0", VARIABLES)
        for _ in range(last):
            writer.commit([])
        names[str(operator)] = [[writer.commit(rows)]]
        (at / "_metadata" / "v2").mkdir(parents=True)
        variables = [{"stateName": name, "stateVariableType": "ValueState"} for name in VARIABLES]
        about = {
            "operatorInfo": {"operatorId": operator, "operatorName": "transformWithStateInPySparkExec"},
            "stateStoreInfo": [{"storeName": "default", "numPartitions": 1, "stateSchemaFilePaths": []}],
            "operatorPropertiesJson": json.dumps({"stateVariables": variables}),
        }
        (at / "_metadata" / "v2" / "0").write_text("v2\n" + json.dumps(about))
    told = json.dumps({"stateUniqueIds": names})
    (root / "checkpoint" / "commits" / str(last)).write_text(f"v2\n{told}")
    (root / "checkpoint" / "offsets" / str(last)).write_text((source.folder / f"offsets/{last}").read_text())
    return Checkpoint(root, root / "checkpoint")


def _key(label: int, number: int) -> bytes:
    row, of_label = b"\0" + bytes(8), struct.pack("<i4x", label)
    if number in (HEADER, BROADCAST):
        return struct.pack("<H", VARIABLES["header" if number == HEADER else "broadcast"]) + row + of_label
    first = row + struct.pack("<ii", 16, 16) + bytes(8) + of_label
    second = row + struct.pack("<ii", 16, 16) + bytes(8) + struct.pack("<q", number)
    return struct.pack("<Hi", VARIABLES["pages"], len(first)) + first + second


def made(root: Path, *overrides: str) -> tuple[FraudSettings, Topology]:
    told = (f"storage.root={root}", "spark.key_groups=4", "features.entities=terminal,device", *overrides)
    settings = load_settings(FraudSettings, app="fraud", overrides=told)
    return settings, app.topology(settings)


def test_on_the_state_of_a_chain_it_decides_as_on_that_of_a_station(tmp_path: Path) -> None:
    settings, topology = made(tmp_path / "app")
    query = MemoryQuery(tmp_path / "app", topology, settings, "fraud.transactions")
    rng = Random(4)

    def some(number: int) -> bytes:
        card, terminal = f"c-{rng.randrange(3)}", f"m-{rng.randrange(2)}"
        tx = transaction(
            number * 60_000, rng.randrange(1, 900), id=f"t{number}", card=card, terminal=terminal
        )
        return msgspec.json.encode(tx)

    for low in (0, 40):
        query.run([Message("fraud.transactions", b"", some(n), 0) for n in range(low, low + 40)])
    chain = as_chain(query, topology, tmp_path / "chain")
    states = CommittedState(query.writer.checkpoint), CommittedState(chain)
    assert [stage.link for stage in states[1].stages] == [None] * len(topology.links)
    one, other = (Ahead(made(tmp_path / "app")[1], state) for state in states)
    mark = mark_of(list(topology.links[0].process.inputs).index("transactions"))
    decided = 0
    for number in range(75, 110):  # some have come before, some are late
        raw = some(number)
        tx = msgspec.json.decode(raw)
        key = f"{len(tx['card_id'])}:{tx['card_id']}"
        seen = Seen(key, tx["event_time_ms"], mark + raw, tx["transaction_id"])
        first, second = one.run([seen]), other.run([seen])
        assert first == second
        decided += any(e.output == "main" for e in first)
    assert decided > 20


def test_other_settings_than_those_of_the_query_are_refused(tmp_path: Path) -> None:
    settings, topology = made(tmp_path / "app")
    query = MemoryQuery(tmp_path / "app", topology, settings, "fraud.transactions")
    query.run([])
    state = CommittedState(query.writer.checkpoint)
    fewer = made(tmp_path / "app", "features.entities=terminal")[1]
    with pytest.raises(UserError, match=r"DeviceMonitor.*serve with the settings"):
        Ahead(fewer, state)
