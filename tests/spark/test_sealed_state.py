"""State in Spark's state store is encrypted when keys are configured; wrong keys stop a query unharmed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace import BroadcastContext, Context, KeyedProcess, arrival, broadcast_state, keyed, value_state
from millrace.host.spark import ProcessedStream
from millrace.host.spark_sink import write_to
from millrace.runtime.contract import CONTRACT_FILE, ContractMismatch
from millrace.state.envelope import Place, key_of, unwrap
from millrace.state.keyring import (
    KEY_FILE_CONF,
    KEYS_VARIABLE,
    StateKeyError,
    generate_key,
    read_ring,
    rotate_key_file,
    write_key_file,
)
from tests.spark.conftest import Emitted, Stream, StreamFactory

START = 1_700_000_000_000
SCHEMA = "value string, control boolean"
ROOT = Path(__file__).resolve().parents[2]


class Payment(msgspec.Struct):
    user: str
    at: int
    amount: int


class Balance(msgspec.Struct):
    user: str
    at: int
    total: int


class Fee(msgspec.Struct):
    amount: int


class Balances(KeyedProcess[Payment, Balance]):
    order = arrival(commutes=True)
    control_type = Fee
    total = value_state(int, default=0)
    fees = broadcast_state(str, int)

    def process(self, event: Payment, ctx: Context) -> None:
        self.total.value += event.amount - (self.fees.get("fee") or 0)
        ctx.emit(Balance(event.user, event.at, self.total.value))

    def process_broadcast(self, control: Fee, ctx: BroadcastContext) -> None:
        self.fees.put("fee", control.amount)


class Renamed(Balances):
    name = "Accounts"


class Counts(KeyedProcess[Balance, int]):
    order = arrival(commutes=True)
    n = value_state(int, default=0)

    def process(self, event: Balance, ctx: Context) -> None:
        self.n.value += 1
        ctx.emit(self.n.value)


def stream_of(df: DataFrame, process: Balances | None = None) -> ProcessedStream:
    return keyed(
        df, by="user", event_time="at", value="value", control=F.col("control"), key_groups=2
    ).process(process or Balances())


def payment(user: str, at: int, amount: int) -> dict[str, Any]:
    return {"value": msgspec.json.encode(Payment(user, START + at, amount)).decode(), "control": False}


def fee(amount: int) -> dict[str, Any]:
    return {"value": msgspec.json.encode(Fee(amount)).decode(), "control": True}


def totals(rows: list[Emitted]) -> list[tuple[str, int]]:
    return [(e.payload["user"], e.payload["total"]) for e in rows if e.output == "main"]


def digests(folder: Path) -> dict[str, str]:
    """Every file below a folder and what is in it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def is_as_it_was(folder: Path, before: dict[str, str]) -> bool:
    """Whether all files are there unchanged, and no batch was committed since."""
    after = digests(folder)
    new = [name for name in after.keys() - before.keys() if "commits/" in name]
    return {name: after.get(name) for name in before} == before and new == []


def forms_of(text: str) -> list[bytes]:
    """The forms in which a key could stand in a file."""
    encoded = text.removeprefix("millrace-key:")
    raw = base64.urlsafe_b64decode(encoded + "=")
    return [raw, encoded.encode(), raw.hex().encode(), base64.b64encode(raw), repr(raw)[2:-1].encode()]


@pytest.fixture
def keys(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A file with a key, which the session is told of."""
    path = tmp_path / "state.keys"
    write_key_file(path)
    spark.conf.set(KEY_FILE_CONF, str(path))
    yield path
    spark.conf.unset(KEY_FILE_CONF)


def values(stream: Stream, variable: str) -> list[tuple[int, int, bytes]]:
    """The stored values of a state variable: key group, page and bytes."""
    found = []
    for row in stream.state(variable):
        made = row.asDict(recursive=True)
        data = made["user_map_value"]["data"] if variable == "pages" else made["value"]["data"]
        page = made["user_map_key"]["page"] if variable == "pages" else 0
        found.append((next(iter(made["key"].values())), page, bytes(data)))
    return found


class Contracted:
    """A query with a contract, over batches that are files."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._input, self.checkpoint = spark, folder / "in", folder / "state"
        self._input.mkdir()
        self._batches = 0
        self.rows: list[tuple[str, int]] = []

    def run(self, *rows: dict[str, Any]) -> list[tuple[str, int]]:
        """Run a batch, and return what it emitted."""
        lines = b"\n".join(msgspec.json.encode(row) for row in rows)
        (self._input / f"{self._batches:05}.json").write_bytes(lines)
        self._batches += 1
        df = self._spark.readStream.schema(SCHEMA).json(str(self._input))
        self.rows = []
        query = write_to(stream_of(df), {"main": self._keep}, self.checkpoint, trigger={"availableNow": True})
        try:
            assert query.awaitTermination(120), "the query does not end"
        finally:
            query.stop()
        return self.rows

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.rows += [(row.user, row.total) for row in frame.collect()]

    def keys(self) -> Any:
        contract = json.loads((self.checkpoint / CONTRACT_FILE).read_text())
        return contract.get("encryption", {}).get("keys")


def test_encrypted_state_goes_on_after_a_restart_and_every_value_of_it_is_encrypted(
    stream: StreamFactory, keys: Path
) -> None:
    made = stream(SCHEMA, stream_of)
    made.add([fee(1), payment("Ada", 1, 150), payment("Bob", 2, 30)])
    made.run()
    made.add([payment("Ada", 3, 100), payment("Ada", 4, 7)])
    made.run()
    assert totals(made.emitted) == [("Ada", 149), ("Bob", 29), ("Ada", 248), ("Ada", 254)]
    ring = read_ring(keys)
    kept = {name: values(made, name) for name in ("header", "pages", "broadcast")}
    assert {name: len(found) > 0 for name, found in kept.items()} == dict.fromkeys(kept, True)
    stored = [data for found in kept.values() for _, _, data in found]
    assert {key_of(data) for data in stored} == set(ring.ids)
    opened = b"".join(
        unwrap(data, Place("Balances", group, "header"), ring) for group, _, data in kept["header"]
    )
    assert b"3:Ada" in opened
    assert not any(b"3:Ada" in data for data in stored)


def test_keys_are_in_no_file_of_the_checkpoint(spark: SparkSession, keys: Path, tmp_path: Path) -> None:
    query = Contracted(spark, tmp_path)
    query.run(fee(1), payment("Ada", 1, 150))
    forms = forms_of(keys.read_text().strip())
    files = [path for path in query.checkpoint.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [p for p in files if any(form in p.read_bytes() for form in forms)] == []
    assert query.keys() == list(read_ring(keys).ids)


def test_wrong_keys_are_refused_at_the_start_and_the_checkpoint_stays_as_it_was(
    spark: SparkSession, keys: Path, tmp_path: Path
) -> None:
    query = Contracted(spark, tmp_path)
    query.run(payment("Ada", 1, 150))
    before = digests(query.checkpoint)
    right = keys.read_text()
    (current,) = read_ring(keys).ids
    keys.write_text(generate_key())
    with pytest.raises(ContractMismatch, match=f"encrypted with key {current}, and the configured keys are"):
        query.run(payment("Ada", 2, 100))
    keys.write_text("hunter2")
    with pytest.raises(StateKeyError, match=f"line 1 of {keys} is not a key"):
        query.run()
    keys.unlink()
    with pytest.raises(StateKeyError, match=f"{keys} cannot be read: No such file"):
        query.run()
    spark.conf.unset(KEY_FILE_CONF)
    with pytest.raises(ContractMismatch, match=f"encrypted with key {current}: configure it"):
        query.run()
    assert is_as_it_was(query.checkpoint, before)
    keys.write_text(right)
    spark.conf.set(KEY_FILE_CONF, str(keys))
    assert query.run(payment("Ada", 3, 1)) == [("Ada", 250), ("Ada", 251)]


def test_a_key_for_state_that_was_begun_in_clear_is_refused(
    spark: SparkSession, keys: Path, tmp_path: Path
) -> None:
    spark.conf.unset(KEY_FILE_CONF)
    query = Contracted(spark, tmp_path)
    query.run(payment("Ada", 1, 150))
    before = digests(query.checkpoint)
    spark.conf.set(KEY_FILE_CONF, str(keys))
    with pytest.raises(ContractMismatch, match="is not encrypted, and state keys are configured"):
        query.run(payment("Ada", 2, 100))
    assert is_as_it_was(query.checkpoint, before)
    spark.conf.unset(KEY_FILE_CONF)
    assert query.run() == [("Ada", 250)]


def test_a_new_key_writes_from_the_next_start_and_the_old_one_still_reads(
    spark: SparkSession, stream: StreamFactory, keys: Path, tmp_path: Path
) -> None:
    query = Contracted(spark, tmp_path)
    query.run(payment("Ada", 1, 150), payment("Cyd", 1, 5))  # two key groups
    (old,) = read_ring(keys).ids
    rotate_key_file(keys)
    new, _ = read_ring(keys).ids
    assert query.run(payment("Ada", 2, 100)) == [("Ada", 250)]
    assert query.keys() == [new, old]
    reader = spark.read.format("statestore").option("path", str(query.checkpoint / "checkpoint"))
    headers = [bytes(row.value.data) for row in reader.option("stateVarName", "header").load().collect()]
    assert {key_of(data) for data in headers} == {new, old}
    keys.write_text(keys.read_text().splitlines()[0])
    with pytest.raises(
        ContractMismatch, match=f"encrypted with key {old}, and the configured keys are {new}"
    ):
        query.run()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        pytest.param("key", "is encrypted with key", marks=pytest.mark.matrix),
        pytest.param("name", "changed or moved", marks=pytest.mark.matrix),
        pytest.param("clear", "set state.encryption", marks=pytest.mark.matrix),
    ],
)
def test_without_a_contract_the_worker_stops_before_anything_is_overwritten(
    spark: SparkSession, stream: StreamFactory, keys: Path, change: str, error: str
) -> None:
    process = Balances()
    made = stream(SCHEMA, lambda df: stream_of(df, process))
    made.add([payment("Ada", 1, 150)])
    made.run()
    right = keys.read_text()
    before = digests(made.checkpoint)
    made.add([payment("Ada", 2, 100)])
    if change == "key":
        keys.write_text(generate_key())
    elif change == "name":
        process = Renamed()
    else:
        spark.conf.unset(KEY_FILE_CONF)
    with pytest.raises(StreamingQueryException) as caught:
        made.run()
    assert error in str(caught.value)
    # Whichever group is looked at first: one without keys has a clock alone.
    assert re.search("the (header|clock) of key group", str(caught.value))
    assert is_as_it_was(made.checkpoint, before)
    keys.write_text(right)
    spark.conf.set(KEY_FILE_CONF, str(keys))
    process = Balances()
    made.run()
    assert totals(made.emitted) == [("Ada", 150), ("Ada", 250)]


@pytest.mark.matrix
def test_keys_that_only_the_driver_has_are_refused_before_anything_is_written(
    stream: StreamFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stream(SCHEMA, stream_of)
    made.add([payment("Ada", 1, 150)])
    made.run()
    before = digests(made.checkpoint)
    made.add([payment("Ada", 2, 100)])
    monkeypatch.setenv(KEYS_VARIABLE, generate_key())  # the session was started without
    with pytest.raises(StreamingQueryException, match=f"{KEYS_VARIABLE} is not set on this machine"):
        made.run()
    assert is_as_it_was(made.checkpoint, before)


def test_every_process_of_a_chain_is_encrypted(
    spark: SparkSession, stream: StreamFactory, keys: Path
) -> None:
    made = stream(SCHEMA, lambda df: stream_of(df).key_by("user").process(Counts()))
    made.add([payment("Ada", 1, 150), payment("Ada", 2, 150)])
    made.run()
    assert [e.payload for e in made.emitted if e.output == "main"] == [1, 2]
    for operator in ("0", "1"):
        reader = spark.read.format("statestore").option("path", str(made.checkpoint))
        rows = reader.option("operatorId", operator).option("stateVarName", "header").load().collect()
        assert [key_of(bytes(row.value.data)) for row in rows] == [read_ring(keys).ids[0]]


def test_a_chain_has_the_keys_of_when_it_was_begun(spark: SparkSession, keys: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    first = stream_of(spark.readStream.schema(SCHEMA).json(str(tmp_path / "in")))
    second = first.key_by("user").process(Counts())
    spark.conf.unset(KEY_FILE_CONF)
    assert first.state_keys is not None
    assert second.state_keys == first.state_keys
    assert second.contract()["encryption"]["keys"] == [read_ring(keys).ids[0]]


_IN_A_SESSION_OF_ITS_OWN = """
import sys
from pathlib import Path
from millrace.runtime.session import spark_session
from tests.spark.test_sealed_state import Contracted, payment
folder = Path(sys.argv[1])
how = {"master": "local[1]", "quick_start": True, "log_file": folder / "spark.log"}
logs = {"enabled": "true", "dir": str(folder / "events"), "compress": "false"}
conf = {f"spark.eventLog.{name}": value for name, value in logs.items()}
with spark_session("sealed", conf=conf, **how) as spark:
    query = Contracted(spark, folder)
    print(query.run(payment("Ada", 1, 150)), query.run(payment("Ada", 2, 100)), query.keys())
"""


@pytest.mark.matrix
def test_keys_of_the_environment_reach_the_workers_and_no_log(tmp_path: Path) -> None:
    text = generate_key()
    (tmp_path / "events").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_SESSION_OF_ITS_OWN, str(tmp_path)],
        env={**os.environ, KEYS_VARIABLE: text},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert done.stdout.startswith("[('Ada', 150)] [('Ada', 250)] ['")
    forms = forms_of(text)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("events" in str(path.relative_to(tmp_path)) and path.stat().st_size > 1_000 for path in files)
    assert [path for path in files if any(form in path.read_bytes() for form in forms)] == []
    assert not any(form.decode("latin-1") in done.stdout + done.stderr for form in forms)
