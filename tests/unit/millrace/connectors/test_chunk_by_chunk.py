"""What goes to topics alone is sent a chunk after the other; what goes to tables, too, as a whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from millrace.connectors import driver_writer
from millrace.connectors.driver_writer import DriverWriter
from millrace.connectors.router import DeadLetterLimit, Outputs
from millrace.dead_letters import DeadLetter
from millrace.host.chunks import encode_emissions
from millrace.host.runner import Emission
from tests.unit.millrace.connectors.test_on_clock import Row, Total, batch, told


class Sent:
    """Stands in place of Kafka's producer: notes what it is given, call by call."""

    def __init__(self, _options: Any) -> None:
        self.calls: list[tuple[str, list[Any]]] = []
        self.flushed = 0

    def send(self, topic: str, records: Any) -> None:
        self.calls.append((topic, list(records)))

    def flush(self) -> None:
        self.flushed += 1


def totals(output: str, *numbers: int) -> Row:
    emissions = [
        Emission(output, f"{output}{n}", f"1:{n}", n, True, msgspec.json.encode(Total(n))) for n in numbers
    ]
    ((name, records, chunk),) = encode_emissions(emissions)
    return name, records, chunk


def writer(folder: Path, monkeypatch: pytest.MonkeyPatch, **heard: Any) -> DriverWriter:
    monkeypatch.setattr(driver_writer, "Delivery", Sent)
    stream: Any = SimpleNamespace(types={"main": Total, "both": Total, "dead_letters": DeadLetter})
    topics = {"main": "mains", "both": "boths", "dead_letters": "letters"}
    outputs = Outputs(stream, {"both": "table"}, topics)
    return DriverWriter(outputs, lambda table: str(folder / table), {}, "a", DeadLetterLimit(), **heard)


def test_every_record_is_sent_once_in_its_order_whatever_its_output_is_kept_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = writer(tmp_path, monkeypatch)
    rows = [totals("main", 1, 2), totals("both", 10), totals("main", 3), told(), totals("both", 11, 12)]
    counts = into.write(batch(*rows, totals("main", 4)), 0)
    assert counts == {"main": 4, "both": 3}
    sent: Any = into._delivery
    assert [(topic, [key for key, _, _ in records]) for topic, records in sent.calls] == [
        ("mains", ["1", "2"]), ("mains", ["3"]), ("mains", ["4"]), ("boths", ["10", "11", "12"]),
    ]  # fmt: skip
    assert [headers for _, records in sent.calls for *_, headers in records] == [
        [("event_id", f"{output}{n}")] for output, of in (("main", range(1, 5)), ("both", range(10, 13)))
        for n in of
    ]  # fmt: skip
    assert sent.flushed == 1
    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()
    assert sorted(found["n"].to_pylist()) == [10, 11, 12]


def test_dead_letters_are_sent_and_counted_by_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[tuple[int, dict[str, int]]] = []
    into = writer(tmp_path, monkeypatch, on_reasons=lambda number, of: reasons.append((number, dict(of))))
    letters = [
        DeadLetter(reason=reason, stage="process", process="P", error="no")
        for reason in ("schema", "process_error", "schema")
    ]
    emissions = [
        Emission("dead_letters", f"d{n}", "", 0, False, msgspec.json.encode(letter))
        for n, letter in enumerate(letters)
    ]
    into.write(batch(*encode_emissions(emissions[:1]), *encode_emissions(emissions[1:])), 3)
    sent: Any = into._delivery
    assert [(topic, len(records)) for topic, records in sent.calls] == [("letters", 3)]
    assert reasons == [(3, {"schema": 2, "process_error": 1})]
