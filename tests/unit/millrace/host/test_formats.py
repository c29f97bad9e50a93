"""Events of a stream as Avro, Protobuf and JSON with a schema: read in front of the shuffle as JSON is."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from msgspec import Meta

from millrace import Context, KeyedProcess, arrival, value_state
from millrace.contracts.formats import Formatted, format_of, unreadable, why_unreadable
from millrace.contracts.protobuf import ProtobufCodec
from millrace.contracts.registry import ConfluentRegistry, RegistryError
from millrace.contracts.wire import CodecError
from millrace.dead_letters import DeadLetter
from millrace.errors import UserError
from millrace.host.chunks import decode_output
from millrace.host.intake import JsonEvents
from millrace.host.key_times import KeyFields
from millrace.host.packing import Packer
from millrace.host.spark_worker import BoundedGroups
from millrace.inputs import NO_INPUT, mark_of
from tests.unit.millrace.contracts.local_registry import LocalRegistry, local_registry

START = 1_767_225_600_000
KINDS = ("json", "avro", "protobuf")
WEIRD = ("", "ö…", 'say "x"\n', "0" * 300)


class Reading(msgspec.Struct, frozen=True):
    device: str
    at: int
    number: Annotated[int, Meta(ge=0)]
    value: float
    note: str | None = None
    tags: list[str] = []


class Sum(msgspec.Struct):
    device: str
    number: int
    total: float
    note: str | None
    tags: list[str]


class Sums(KeyedProcess[Reading, Sum]):
    order = arrival(in_order_per_key=True)
    total = value_state(float, default=0.0)

    def process(self, event: Reading, ctx: Context) -> None:
        self.total.value += event.value
        ctx.emit(Sum(event.device, event.number, self.total.value, event.note, event.tags))


@pytest.fixture(scope="module")
def registry() -> Iterator[LocalRegistry]:
    with local_registry() as made:
        yield made


def writer(kind: str, tp: Any, registry: LocalRegistry) -> Callable[[Any], bytes]:
    """Return what makes bytes of an event: confluent-kafka's own serialiser."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.serialization import MessageField, SerializationContext

    client = SchemaRegistryClient({"url": registry.url})
    context = SerializationContext(f"readings.{tp.__name__}", MessageField.VALUE)
    if kind == "avro":
        from confluent_kafka.schema_registry.avro import AvroSerializer

        from millrace.contracts.avro import avro_schema

        avro = AvroSerializer(
            client, json.dumps(avro_schema(tp)), lambda event, _: msgspec.to_builtins(event)
        )
        return lambda event: avro(event, context)
    if kind == "protobuf":
        from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

        message = ProtobufCodec(tp, ConfluentRegistry({"url": registry.url}), "").message_class
        protobuf = ProtobufSerializer(message, client, {"use.deprecated.format": False})
        return lambda event: protobuf(
            message(**{k: v for k, v in msgspec.to_builtins(event).items() if v is not None}), context
        )
    from confluent_kafka.schema_registry.json_schema import JSONSerializer

    schema = json.dumps({"title": tp.__name__, "type": "object"})
    plain = JSONSerializer(schema, client, lambda event, _: msgspec.to_builtins(event))
    return lambda event: plain(event, context)


def run(
    batches: list[list[bytes]], formats: tuple[Formatted | None, ...]
) -> tuple[list[Any], list[DeadLetter]]:
    """Pack and run batches as one after the other on a worker; return what came out and the dead letters."""
    packer = Packer((KeyFields((("device", str),), ("at", int)),), labels=(7,), formats=formats)
    tables, first = [], 0
    for values in batches:
        causes = [f"readings:0:{first + n}" for n in range(len(values))]
        first += len(values)
        columns = [pa.array(values, pa.binary()), pa.array(causes, pa.string())]
        batch = pa.RecordBatch.from_arrays(columns, names=["_value", "_source_id"])
        tables.append(pa.Table.from_batches(packer(iter([batch]))).select(["_group", "_chunk"]))
    events = JsonEvents(Reading, None, strict=not any(formats), formatted=[""] if any(formats) else ())
    groups = BoundedGroups(Sums(), events, speaker=7, bound_ms=0)
    found = groups((pa.scalar(7),), pa.concat_tables(tables)).to_pylist()
    out: dict[str, list[bytes]] = {"main": [], "dead_letters": []}
    for row in found:
        out.setdefault(row["output"], []).extend(decode_output(row["chunk"]).payloads)
    letters = [msgspec.json.decode(one, type=DeadLetter) for one in out["dead_letters"]]
    return [msgspec.json.decode(one) for one in out["main"]], letters


def reading(draws: random.Random, number: int) -> Reading:
    return Reading(
        f"d{draws.randrange(5)}",
        START + number,
        draws.choice((0, 1, 2**53 + 1, 2**63 - 1)),
        draws.choice((0.0, -1.5, 1e-9, 0.1)),
        draws.choice((None, *WEIRD)),
        [draws.choice(WEIRD) for _ in range(draws.randrange(3))],
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_what_confluents_serialisers_write_is_read_as_the_same_events_in_json_and_nothing_else(
    kind: Any, seed: int, registry: LocalRegistry
) -> None:
    """Any cut into batches, any mixture of events with bytes that are none; the oracle reads JSON."""
    draws, write = random.Random(f"{kind}-{seed}"), writer(kind, Reading, registry)
    sent: list[bytes] = []
    wanted: list[bytes] = []
    broken: dict[int, tuple[bytes, str]] = {}

    def breaks(event: Reading) -> tuple[bytes, str]:
        good = write(event)
        return draws.choice(
            [
                (b"", "malformed"),
                (msgspec.json.encode(event), "malformed"),  # plain JSON is no event of this topic
                (b"\x00" + good[:4][1:], "malformed"),
                (
                    b"\x00" + struct.pack(">I", 4_000) + good[5:],
                    "unknown_version" if kind != "protobuf" else "",
                ),
                (good[:5] if kind != "protobuf" else good[:5] + b"\x00\xff", "malformed"),
                (write(msgspec.structs.replace(event, number=-3)), "range"),
            ]
        )

    for number in range(400):
        event = reading(draws, number)
        if draws.random() < 0.2:
            value, reason = breaks(event)
            sent.append(value)
            if reason:
                broken[number] = (value, reason)
                continue
        else:
            sent.append(write(event))
        wanted.append(msgspec.json.encode(event))
    cuts = sorted(draws.sample(range(1, 400), 5))
    batches = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, 400], strict=True)]
    found, letters = run(batches, (Formatted(kind, Reading, {"url": registry.url}),))
    plain, none = run([wanted], (None,))
    assert not none
    assert found == plain
    assert {one.offset: (one.value or b"", one.reason) for one in letters} == broken
    assert len(broken) > 40
    assert {reason for _, reason in broken.values()} >= {"malformed", "range"}


def test_a_number_that_json_has_not_comes_through(registry: LocalRegistry) -> None:
    write = writer("avro", Reading, registry)
    events = [Reading("d", START, 1, float("inf")), Reading("d", START + 1, 2, float("nan"), "n")]
    found, letters = run([[write(e) for e in events]], (Formatted("avro", Reading, {"url": registry.url}),))
    assert not letters
    assert [(row["number"], row["total"], row["note"]) for row in found] == [(1, None, None), (2, None, "n")]


def test_an_earlier_and_a_later_writer_are_read_by_one_reader(registry: LocalRegistry) -> None:
    class Newer(msgspec.Struct):
        device: str
        at: int
        number: int
        value: float
        note: str | None = None
        tags: list[str] = []
        unit: str = "K"

    class Older(msgspec.Struct):
        device: str
        at: int
        number: int
        value: float

    Newer.__name__ = Older.__name__ = "Reading"
    for kind in ("avro", "protobuf"):
        newer, older = writer(kind, Newer, registry), writer(kind, Older, registry)
        sent = [older(Older("d", START, 1, 0.5)), newer(Newer("d", START + 1, 2, 1.0, "x", ["t"], "C"))]
        found, letters = run([sent], (format_of("", kind, registry.url, Reading),))
        assert not letters
        assert [(row["total"], row["note"], row["tags"]) for row in found] == [
            (0.5, None, []),
            (1.5, "x", ["t"]),
        ]


def test_of_several_inputs_each_has_its_own_format_and_control_events_are_json(
    registry: LocalRegistry,
) -> None:
    """Rows by input: 0 Avro, 1 JSON and nothing else, none; and a control event of each."""
    write = writer("avro", Reading, registry)
    event = Reading("d", START, 1, 0.5)
    plain, bad = msgspec.json.encode(event), write(event)[:-1]
    rows = [
        (write(event), 0, False, False),
        (plain, 1, False, False),
        (bad, 0, False, False),
        (plain, 0, True, False),
        (write(event), None, False, False),
        (write(event), 0, False, True),
    ]
    values, inputs, control, unknown = zip(*rows, strict=True)
    keys = (
        KeyFields((("device", str),), ("at", int), mark_of(0)),
        KeyFields((("device", str),), ("at", int), mark_of(1)),
    )
    packer = Packer(keys, labels=(7,), formats=(Formatted("avro", Reading, {"url": registry.url}), None))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array(inputs, pa.int32()), pa.array(control), pa.array(unknown)],
        names=["_value", "_input", "_control", "_unknown_version"],
    )
    from millrace.host.chunks import decode_input

    (out,) = packer(iter([batch]))
    raws = [raw for chunk in out["_chunk"].to_pylist() for raw in decode_input(chunk)[5]]
    told = why_unreadable(raws[2][1:])
    assert told is not None
    assert told[0] == "malformed"
    assert told[2] == bad
    assert raws[0] == mark_of(0) + plain
    assert raws[1] == mark_of(1) + plain
    assert raws[3] == plain
    assert raws[4] == NO_INPUT + write(event)
    assert raws[5] == mark_of(0) + write(event), "an unknown version is not read"
    events = JsonEvents(None, None, inputs={"a": Reading, "b": Reading}, formatted=["a"])
    events.open()
    assert events.why(raws[2], ValueError("no"))[0] == "malformed"
    assert events.why(raws[2], ValueError("no"))[2] == mark_of(0) + bad
    error = msgspec.DecodeError("no")
    for raw in (mark_of(1) + b'\x00["x"', NO_INPUT + bad):
        assert events.why(raw, error) == ("malformed", error, raw), (
            "bytes of inputs that are JSON tell nothing"
        )


def test_why_an_event_cannot_be_read_survives_any_bytes() -> None:
    draws = random.Random(5)
    for _ in range(500):
        data = draws.randbytes(draws.randrange(40))
        message = "".join(chr(draws.choice((0, 34, 92, 255, 8_230))) for _ in range(draws.randrange(900)))
        wrapped = unreadable(CodecError("schema", message), data)
        told = f"CodecError: {message}".strip()
        cut = told if len(told) <= 500 else told[:497] + "..."
        assert why_unreadable(wrapped) == ("schema", cut, data)
        with pytest.raises(msgspec.DecodeError):
            msgspec.json.decode(wrapped)


def test_a_registry_is_asked_for_a_schema_once_and_its_silence_is_no_events_fault(
    registry: LocalRegistry,
) -> None:
    write = writer("avro", Reading, registry)
    sent = [write(Reading("d", START + n, n, 1.0)) for n in range(50)]
    before = len(registry.asked)
    run([sent[:20], sent[20:]], (Formatted("avro", Reading, {"url": registry.url}),))
    assert len(registry.asked) - before <= 2, "once a task"
    with pytest.raises(RegistryError, match="did not give schema"):
        run([sent], (Formatted("avro", Reading, {"url": "http://127.0.0.1:1", "max.retries": 0}),))


@pytest.mark.parametrize(
    ("kind", "registry", "says"),
    [
        ("xml", "http://x", "the format of Sums's events is one of json, avro, protobuf, not 'xml'"),
        ("avro", None, "avro needs `registry`, the address of the schema registry"),
        ("protobuf", "nowhere://x", "the schema registry's configuration"),
        ("avro", {"url": "http://x", "no.such": 1}, "the schema registry's configuration"),
    ],
)
def test_a_format_that_cannot_be_is_refused_before_anything_runs(kind: Any, registry: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        format_of("Sums's events", kind, registry, Reading)


def test_a_type_without_a_schema_is_refused_before_anything_runs() -> None:
    class Mixed(msgspec.Struct):
        either: int | str

    with pytest.raises(UserError, match="no Avro type"):
        format_of("x", "avro", "http://x", Mixed)


def test_the_registrys_password_is_in_no_text_of_a_format() -> None:
    made = format_of("x", "json", {"url": "http://x", "basic.auth.user.info": "u:secret"}, Reading)
    assert "secret" not in repr(made)
    assert format_of("x", "json", None, Reading) is None
