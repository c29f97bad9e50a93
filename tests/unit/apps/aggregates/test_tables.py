"""Results as rows of their table: numbers, texts and lists, also in a table that had numbers only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import DeltaTable

from millrace.connectors.driver_writer import DriverWriter
from millrace.connectors.router import DeadLetterLimit, Outputs
from millrace.host.chunks import encode_emissions
from millrace.host.runner import Emission
from millrace_apps.aggregates.windowing import Result

#: A result as the version before had it.
Before: Any = msgspec.defstruct(
    "Result",
    [
        (field.name, field.type)
        for field in msgspec.structs.fields(Result)
        if field.name not in ("texts", "lists")
    ],
)


def write(folder: Path, kind: Any, batch_id: int, *said: Any) -> None:
    emissions = [
        Emission("main", f"{batch_id}-{n}", "1:a", 1, True, msgspec.json.encode(one))
        for n, one in enumerate(said)
    ]
    outputs, counts, chunks = zip(*encode_emissions(emissions), strict=True)
    batch: Any = SimpleNamespace(
        toArrow=lambda: pa.table(
            {"output": outputs, "records": counts, "chunk": pa.array(chunks, pa.binary())}
        )
    )
    stream: Any = SimpleNamespace(types={"main": kind})
    into = DriverWriter(
        Outputs(stream, {"main": "results"}), lambda table: str(folder / table), {}, "a", DeadLetterLimit()
    )
    into.prepare()
    into.write(batch, batch_id)
    into.close()


def test_texts_and_lists_stand_in_the_table_beside_numbers(tmp_path: Path) -> None:
    told: dict[str, Any] = {
        "name": "n", "version": 1, "key": {"card": "c", "shop": None}, "window_start_ms": 0,
        "window_end_ms": 10, "values": {"n": 2.0, "none": None}, "revision": 0, "event_time_ms": 9,
    }  # fmt: skip
    write(tmp_path, Before, 0, Before(**told))
    write(
        tmp_path,
        Result,
        1,
        Result(**told),
        Result(**told, texts={"a": "x"}, lists={"all": ["x", "y"], "no": []}),
    )
    rows = DeltaTable(str(tmp_path / "results")).to_pyarrow_table().to_pylist(maps_as_pydicts="strict")
    found = {row["_event_id"]: (row["values"], row["texts"], row["lists"]) for row in rows}
    numbers = {"n": 2.0, "none": None}
    assert found == {
        "0-0": (numbers, None, None),
        "1-0": (numbers, {}, {}),
        "1-1": (numbers, {"a": "x"}, {"all": ["x", "y"], "no": []}),
    }
