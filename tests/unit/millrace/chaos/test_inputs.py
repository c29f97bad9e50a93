"""Hostile input through small apps: what is right holds, and every way of being wrong is seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from millrace import BroadcastContext, Context, KeyedProcess, Timer, arrival, broadcast_state, value_state
from millrace.batch import Batch
from millrace.chaos import inputs as inputs_module
from millrace.chaos.account import Account, Report
from millrace.chaos.hostile import Message, Sender, Sent
from millrace.chaos.inputs import input_in_memory
from millrace.chaos.witness import HANDLED_OUTPUT, Taken, with_witness
from millrace.cli import build
from millrace.errors import ChecksFailed, UserError
from millrace.host.memory_chain import MemoryChain
from millrace.host.runner import Runner
from millrace.process import ProcessDefinitionError
from millrace.runtime.apps import App, Topic, Topics, input_versions
from millrace.runtime.settings import AppSettings
from millrace.topology import Input, Topology, read

START = 1_767_225_600_000


class Sale(msgspec.Struct):
    sale_id: Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
    shop: Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
    at: Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
    cents: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class Unbounded(Sale, tag=False):
    cents: int


class Limit(msgspec.Struct):
    most: Annotated[int, msgspec.Meta(ge=0, le=100)]


class Total(msgspec.Struct):
    shop: str
    cents: int


class Sales(KeyedProcess[Sale, Total]):
    name = "Sales"
    order = arrival(commutes=True)
    control_type: ClassVar[Any] = Limit
    total = value_state(int, default=0)
    limits = broadcast_state(str, int)

    def process(self, event: Sale, ctx: Context) -> None:
        self.total.value = (self.total.value + event.cents) % 10**12
        ctx.emit(Total(event.shop, self.total.value))

    def process_broadcast(self, control: Limit, ctx: BroadcastContext) -> None:
        if control.most == 0:
            raise UserError("a limit of nothing")
        self.limits.put("most", control.most)


class InTime(Sales):
    name = "Sales"
    order = "event_time"


class ByKey(Sales):
    name = "Sales"

    def process_key(self, events: Iterator[Sale], ctx: Context) -> None:
        for event in events:
            self.process(event, ctx)


class ByBatch(Sales):
    name = "Sales"

    def process_batch(self, batch: Batch[Sale]) -> None:
        raise AssertionError("events of a witness go one by one")


class HandlesLate(Sales):
    name = "Sales"

    def on_late(self, event: Sale, ctx: Context) -> None:
        self.process(event, ctx)


class PutsAside(Sales):
    name = "Sales"

    def process(self, event: Sale, ctx: Context) -> None:
        if event.cents % 2:
            ctx.dead_letter("duplicate", "odd")
        else:
            super().process(event, ctx)


class Sums(KeyedProcess[Total, Total]):
    order = arrival(commutes=True)
    total = value_state(int, default=0)

    def process(self, event: Total, ctx: Context) -> None:
        self.total.value = event.cents
        ctx.emit(event)


def app_of(process: KeyedProcess[Any, Any], *, behind: KeyedProcess[Any, Any] | None = None) -> App:
    def topology(settings: AppSettings) -> Topology:
        made = read(Input("sales", "shop", "at"), control="control").process(process)
        return made if behind is None else made.key_by("shop").process(behind)

    def topics(settings: AppSettings) -> Topics:
        return Topics(reads=(Topic("sales", event_time="at"), Topic("control", 1)), control="control")

    contracts = {"sale.v1": Sale, "sale.v3": process.event_type}
    return App("shop", "", AppSettings, topology, topics, contracts=contracts)


def world(count: int = 2_000) -> Iterator[Message]:
    for n in range(count):
        at = START + 100 * n
        event = Sale(f"s{n}", f"shop-{n % 7}", at, n % 5_000)
        yield Message("sales", event.shop.encode(), msgspec.json.encode(event), at)


def run(app: App, events: int = 2_000, seed: int = 1) -> Report:
    return input_in_memory(app, AppSettings(), world(), events=events, seed=seed)


def faults(report: Report) -> set[tuple[str, str]]:
    return {(fault.what, fault.where) for fault in report.faults}


@pytest.mark.parametrize("process", [Sales(), InTime(), ByKey(), ByBatch(), HandlesLate(), PutsAside()])
def test_an_app_that_is_right_has_every_record_accounted_for(process: Sales) -> None:
    report = run(app_of(process, behind=Sums()))
    assert report.holds, report
    assert report.sent == 2_000 == sum(row.sent for row in report.rows)
    (sales,) = (row for row in report.rows if row.input == "")
    (limits,) = (row for row in report.rows if row.input == "control")
    assert sales.sent > 1_300
    assert sales.processed > 600
    assert sales.late > 5
    assert {"malformed", "schema", "range", "future", "unknown_version"} <= sales.dead.keys()
    assert limits.processed > 50
    assert {"malformed", "schema", "range", "process_error"} <= limits.dead.keys()
    assert ("duplicate" in sales.dead) == isinstance(process, PutsAside)


def test_the_same_seed_sends_the_same_and_another_another() -> None:
    def sent(seed: int) -> list[Sent]:
        topology = app_of(Sales()).topology(AppSettings())
        return list(Sender(topology, world(), seed=seed).send(300))

    assert sent(3) == sent(3) != sent(4)


def test_every_single_change_is_sent_once_there_are_events_enough() -> None:
    topology = app_of(Sales()).topology(AppSettings())
    sender = Sender(topology, world(), seed=1)
    cases = sender.cases
    labels = [one.label for one in sender.send(cases * 3) if one.label]
    assert sender.cases == 0
    assert {"cents: its most", "cents: above its most", "sale_id: too long", "at: missing",
            "cents: text: 1 MB", "shop: text: a lone surrogate, escaped", "record key",
            "broken: cut off", "every field: its most"} <= set(labels)  # fmt: skip


def test_what_its_contract_allows_and_a_process_does_not_keep_is_told() -> None:
    class Sums64(Sales):
        name = "Sales"

        def process(self, event: Sale, ctx: Context) -> None:
            self.total.value = event.cents
            ctx.emit(Total(event.shop, 0))

    class Wide(Sums64, KeyedProcess[Unbounded, Total]):  # type: ignore[type-var]
        name = "Sales"
        order = Sales.order
        control_type = Limit
        event_type = Unbounded

    report = run(app_of(Wide()))
    assert ("process raises", "Sales") in faults(report)
    (raised,) = (fault for fault in report.faults if fault.what == "process raises")
    assert "cents:" in raised.examples[0]
    assert not report.holds
    assert all(row.holds for row in report.rows)


def test_what_fails_behind_the_first_process_is_told() -> None:
    class Fails(Sums):
        name = "Sums"

        def process(self, event: Total, ctx: Context) -> None:
            if event.cents % 3 == 0:
                raise ValueError("three")
            super().process(event, ctx)

    class Late(Sums):
        name = "Sums"

        def process(self, event: Total, ctx: Context) -> None:
            ctx.timers.after(5)

        def on_timer(self, timer: Timer, ctx: Context) -> None:
            raise ValueError("timer")

    assert faults(run(app_of(Sales(), behind=Fails()))) == {("process: process_error", "Sums")}
    assert faults(run(app_of(Sales(), behind=Late()))) == {("timer: process_error", "Sums")}


def test_a_control_event_that_fails_and_is_not_refused_is_told() -> None:
    class Fails(Sales):
        name = "Sales"

        def process_broadcast(self, control: Limit, ctx: BroadcastContext) -> None:
            raise KeyError(control.most)

    assert faults(run(app_of(Fails()))) == {("broadcast raises", "control")}


def test_a_control_event_that_one_process_takes_is_nobodys_dead_letter_behind_it() -> None:
    """The last of a chain, which takes none, has put aside every one that the first had taken."""
    report = run(app_of(Sales(), behind=Sums()))
    assert report.faults == []
    (limits,) = (row for row in report.rows if row.input == "control")
    assert limits.processed > 50


def test_a_job_that_ends_is_told() -> None:
    class Ends(Sales):
        name = "Sales"

        def process(self, event: Sale, ctx: Context) -> None:
            if event.cents == 1_000_000:
                raise ProcessDefinitionError("which no host takes for an event's fault")
            super().process(event, ctx)

    report = run(app_of(Ends()))
    assert "no host takes" in report.ended
    assert not report.holds


def test_an_event_that_is_lost_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Runner._run_arriving

    def loses(self: Any, guard: Any, rows: Any, *more: Any) -> None:
        whole(self, guard, [row for row in rows if row.event_time % 900], *more)

    monkeypatch.setattr(Runner, "_run_arriving", loses)
    report = run(app_of(Sales()))
    assert ("lost", "") in faults(report)
    assert sum(row.unaccounted for row in report.rows) > 20


def test_an_event_that_is_handled_twice_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Runner._run_arriving

    def doubles(self: Any, guard: Any, rows: Any, *more: Any) -> None:
        whole(self, guard, [*rows, *rows[:1]], *more)

    monkeypatch.setattr(Runner, "_run_arriving", doubles)
    assert ("accounted for twice", "") in faults(run(app_of(Sales())))


def test_a_dead_letter_with_other_bytes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Runner.dead_letter

    def cuts(self: Any, reason: Any, stage: Any, error: Any, raw: bytes, *more: Any, **named: Any) -> None:
        whole(self, reason, stage, error, raw[1:], *more, **named)

    monkeypatch.setattr(Runner, "dead_letter", cuts)
    assert ("a dead letter with other bytes", "Sales") in faults(run(app_of(Sales())))


def test_an_event_that_is_taken_or_refused_against_its_contract_is_told() -> None:
    class Loose(msgspec.Struct):
        sale_id: str
        shop: str
        at: int
        cents: float

    def account_of(valid: bool) -> Account:
        account = Account()
        account.sent(Sent(Message("t", None, b"", 0), "in", "Sale", "changed", valid), 0, 0)
        return account

    taken = account_of(False)
    taken.handled("t:0:0", late=False)
    taken.rows()
    assert [f.what for f in taken.faults] == ["taken though its contract refuses it"]
    refused = account_of(True)
    refused.letter("t:0:0", "range", "decode", "P", "")
    refused.rows()
    assert [f.what for f in refused.faults] == ["refused though its contract allows it"]
    keyless = account_of(True)
    keyless.letter("t:0:0", "schema", "time", "P", "")
    (row,) = keyless.rows()
    assert (keyless.faults, row.dead, row.holds) == ([], {"schema": 1}, True)
    unknown = account_of(True)
    unknown.handled("t:0:7", late=False)
    unknown.letter("t:0:0", "process_error", "process", "P", "KeyError: 1")
    unknown.handled("t:0:0", late=False)
    unknown.rows()
    assert {f.what for f in unknown.faults} == {
        "a record that nobody sent", "process raises", "accounted for twice",
    }  # fmt: skip


def test_a_witness_changes_nothing_and_says_what_was_handled() -> None:
    topology = app_of(Sales(), behind=Sums()).topology(AppSettings())
    plain, watched = MemoryChain(topology), MemoryChain(with_witness(topology, Taken()))
    events = [(m.key.decode(), m.timestamp_ms, msgspec.json.decode(m.value, type=Sale)) for m in world(50)]
    first, second = plain.run_batch(events), watched.run_batch(events)
    handled = [e for e in second if e.output.endswith(HANDLED_OUTPUT)]
    assert [e for e in second if e not in handled] == first
    assert sorted(msgspec.json.decode(e.payload)["cause"] for e in handled) == sorted(
        f"memory:0:{n}" for n in range(50)
    )


def test_all_versions_up_to_the_newest_contract_are_read() -> None:
    app = app_of(Sales())
    assert input_versions(app, app.topology(AppSettings())) == ("1", "2", "3")


# -- the command -------------------------------------------------------------------------------------


def records(path: Path, count: int = 400) -> Path:
    rows = [
        {
            "key": m.key, "value": m.value, "topic": "fraud.transactions", "timestamp": m.timestamp_ms,
            "headers": [{"key": "schema_version", "value": b"1"}],
        }
        for m in world(count)
    ]  # fmt: skip
    schema = pa.schema([
        ("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ])  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return path


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(build(), ["chaos", "input", *arguments])


def test_the_command_prints_the_table_and_writes_the_report(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    world_file = str(records(tmp_path / "world.parquet"))
    done = invoke("--app", "fraud", "--events", "600", "--world", world_file, "--out", str(out))
    assert (done.exit_code, "every record is accounted for, once" in done.output) == (0, True), done.output
    report = msgspec.json.decode(out.read_bytes(), type=Report)
    assert (report.sent, report.seed, report.holds) == (600, 1, True)
    again = invoke("--app", "fraud", "--events", "600", "--world", world_file, "--format", "json")
    assert msgspec.json.decode(again.stdout, type=Report).rows == report.rows


def test_the_command_ends_with_1_where_something_is_not_as_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = inputs_module.input_in_memory

    def ends(*arguments: Any, **named: Any) -> Report:
        return msgspec.structs.replace(whole(*arguments, **named), ended="at last")

    monkeypatch.setattr(inputs_module, "input_in_memory", ends)
    world_file = str(records(tmp_path / "world.parquet"))
    done = invoke("--app", "fraud", "--events", "50", "--world", world_file)
    assert isinstance(done.exception, ChecksFailed)
    assert "the job ended at last" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(("--app", "nobody"), "there is no app"), (("--app", "fraud", "--world", "{file}"), "has no records")],
)
def test_what_the_user_can_put_right_is_one_line(tmp_path: Path, arguments: Any, told: str) -> None:
    (tmp_path / "x").write_text("no parquet")
    done = invoke(*(one.format(file=tmp_path / "x") for one in arguments))
    assert isinstance(done.exception, UserError)
    assert told in str(done.exception)
