"""Codecs: round trips, evolution, broken bytes; and both ways with confluent-kafka's own serialisers."""

from __future__ import annotations

import base64
import json
import sys
import uuid
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Meta

from millrace.contracts import SchemaError, json_schema
from millrace.contracts.codec import Codec, JsonCodec
from millrace.contracts.protobuf import ProtobufCodec, file_descriptor, numbering_breaks, proto_text
from millrace.contracts.registry import PACKAGES, ConfluentRegistry, Kind, RegistryError
from millrace.contracts.wire import CodecError, frame, split_indexes, unframe, with_indexes
from millrace.errors import UserError
from millrace_apps.fraud.contracts.events import Alert, Control, Transaction
from millrace_apps.generators.fraud import FraudProfile
from tests.payments import transactions_of
from tests.unit.millrace.contracts.cases import ORDERS, Order, order


class Shelf:
    """Schemas by id, where no registry is needed to see what a codec does."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def register(self, subject: str, text: str, kind: Kind) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1

    def schema(self, schema_id: int) -> str:
        if not 0 < schema_id <= len(self.texts):
            raise CodecError("unknown_version", f"the registry knows no schema {schema_id}")
        return self.texts[schema_id - 1]


class Old(msgspec.Struct):
    a: int
    kept: str = ""


class New(msgspec.Struct):
    a: int
    kept: str = ""
    b: Annotated[float, Meta(ge=1)] = 1.5


class Renamed(msgspec.Struct):
    other: str


def make(kind: str, tp: Any, registry: Any, subject: str = "orders-value") -> Codec[Any]:
    if kind == "avro":
        pytest.importorskip("fastavro")
        from millrace.contracts.avro import AvroCodec

        name = "Reading" if tp in (Old, New, Renamed) else None
        return AvroCodec(tp, registry, subject, name=name)
    return ProtobufCodec(tp, registry, subject) if kind == "protobuf" else JsonCodec(tp, registry, subject)


KINDS = pytest.mark.parametrize("kind", ["json", "avro", "protobuf"])


@KINDS
@pytest.mark.parametrize("number", range(len(ORDERS)))
def test_an_event_comes_back_as_it_was(kind: str, number: int) -> None:
    codec = make(kind, Order, Shelf())
    data = codec.encode(ORDERS[number])
    assert data[:5] == b"\x00\x00\x00\x00\x01"
    assert codec.decode(data) == ORDERS[number]


@KINDS
def test_a_later_and_an_earlier_version_read_each_other(kind: str) -> None:
    shelf = Shelf()
    old, new = make(kind, Old, shelf), make(kind, New, shelf)
    assert new.decode(old.encode(Old(3, "x"))) == New(3, "x", 1.5)
    assert old.decode(new.encode(New(3, "x", 9.0))) == Old(3, "x")
    assert len(shelf.texts) == 2


@KINDS
def test_a_value_out_of_its_bounds_is_the_reason_range(kind: str) -> None:
    codec = make(kind, New, Shelf())
    with pytest.raises(CodecError) as caught:
        codec.decode(codec.encode(New(1, b=0.5)))
    assert caught.value.reason == "range"


@KINDS
def test_an_event_without_a_field_that_must_be_there_is_the_reason_schema(kind: str) -> None:
    shelf = Shelf()
    data = make(kind, Renamed, shelf).encode(Renamed("x"))
    with pytest.raises(CodecError) as caught:
        make(kind, Old, shelf).decode(data)
    assert caught.value.reason == "schema"


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_an_id_that_the_registry_does_not_know_is_an_unknown_version(kind: str) -> None:
    codec = make(kind, Old, Shelf())
    with pytest.raises(CodecError) as caught:
        codec.decode(frame(99, codec.encode(Old(1))[5:]))
    assert caught.value.reason == "unknown_version"


def test_a_protobuf_message_that_ends_with_a_field_is_one_without_the_later_fields() -> None:
    codec = ProtobufCodec(New, Shelf(), "x")
    whole = codec.encode(New(7, "xyz", 2.5))
    read: list[Any] = []
    for cut in range(len(whole)):
        try:
            read.append(codec.decode(whole[:cut]))
        except CodecError:
            read.append(None)
    assert [event for event in read if event] == [New(7), New(7, "xyz")]


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_bytes_that_are_cut_off_are_refused(kind: str) -> None:
    codec = make(kind, Order, Shelf())
    whole = codec.encode(order())
    for cut in range(len(whole)):
        with pytest.raises(CodecError) as caught:
            codec.decode(whole[:cut])
        assert caught.value.reason in ("malformed", "schema")


@KINDS
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.binary(max_size=60))
def test_any_bytes_are_an_event_or_refused(kind: str, data: bytes) -> None:
    shelf = Shelf()
    codec = make(kind, Transaction, shelf)
    shelf.register("x", "{}", "JSON")
    for attempt in (data, frame(1, data)):
        with pytest.raises(CodecError):
            codec.decode(attempt)


def test_plain_json_is_the_event_and_nothing_else() -> None:
    codec = JsonCodec(Transaction)
    events = list(transactions_of(FraudProfile(seed=3, events=200)))
    for event in events:
        assert codec.encode(codec.decode(event.value)) == msgspec.json.encode(codec.decode(event.value))
    for broken, reason in ((b'{"a"', "malformed"), (b"{}", "schema"), (b"\xff", "malformed")):
        with pytest.raises(CodecError) as caught:
            codec.decode(broken)
        assert caught.value.reason == reason


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**28), min_size=1, max_size=20), st.binary(max_size=5))
def test_message_indexes_come_back(indexes: list[int], payload: bytes) -> None:
    assert split_indexes(with_indexes(indexes, payload)) == (indexes, payload)


def test_a_frame_that_is_none_is_malformed() -> None:
    for data in (b"", b"\x00\x00", b"\x01\x00\x00\x00\x01x"):
        with pytest.raises(CodecError, match="zero byte"):
            unframe(data)
    for data in (b"", b"\x80", b"\xff" * 9, b"\x7f"):
        with pytest.raises(CodecError):
            split_indexes(data)


# -- Protobuf -----------------------------------------------------------------------------------


def test_a_field_that_was_not_written_is_told_from_zero() -> None:
    codec = ProtobufCodec(New, Shelf(), "x")
    empty = frame(1, with_indexes([0], b""))
    with pytest.raises(CodecError, match="missing required field `a`"):
        codec.decode(empty)
    only_a = frame(1, with_indexes([0], b"\x08\x00"))
    assert codec.decode(only_a) == New(0, "", 1.5)


def test_another_message_of_the_file_is_refused() -> None:
    codec = ProtobufCodec(Alert, Shelf(), "x")
    with pytest.raises(CodecError, match=r"message \[1\]"):
        codec.decode(frame(1, with_indexes([1], b"")))


def test_numbers_are_places_and_a_moved_field_is_found() -> None:
    assert [f.number for f in file_descriptor(New).message_type[0].field] == [1, 2, 3]
    assert numbering_breaks(json_schema(Old), json_schema(New)) == []
    assert numbering_breaks(json_schema(New), json_schema(Old)) == [
        "b was field 3 and is gone: its number would be used again"
    ]


def test_the_text_of_a_file_names_every_field() -> None:
    text = proto_text(Order)
    assert text.startswith(
        'syntax = "proto3";\n\npackage millrace;\n\nimport "google/protobuf/timestamp.proto";\n'
    )
    assert "  optional google.protobuf.Timestamp at = 5;" in text
    assert "  map<string, Part> stock = 16;" in text
    assert "  repeated Part parts = 8;" in text


@KINDS
def test_a_union_of_events_stays_json(kind: str) -> None:
    if kind == "json":
        assert make(kind, Control, None).decode(b'{"kind":"reset_threshold","name":"x"}').name == "x"
        return
    with pytest.raises(SchemaError, match="is no struct"):
        make(kind, Control, Shelf())


# -- with confluent-kafka's own serialisers and registry client -----------------------------------


@pytest.fixture
def client() -> Any:
    """Return confluent-kafka's registry in memory."""
    for package in PACKAGES:
        pytest.importorskip(package, reason=f"confluent-kafka's registry client needs {package}")
    from confluent_kafka.schema_registry import SchemaRegistryClient

    return SchemaRegistryClient.new_client({"url": f"mock://{uuid.uuid4().hex}"})


def context() -> Any:
    from confluent_kafka.serialization import MessageField, SerializationContext

    return SerializationContext("orders", MessageField.VALUE)


def plain(event: Any) -> Any:
    import datetime

    return msgspec.to_builtins(event, builtin_types=(bytes, datetime.datetime))


def check_subject(client: Any) -> None:
    assert client.get_subjects() == ["orders-value"]
    assert client.get_versions("orders-value") == [1]


@pytest.mark.parametrize("number", range(len(ORDERS)))
def test_avro_is_confluents_both_ways(client: Any, number: int) -> None:
    pytest.importorskip("fastavro")
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

    from millrace.contracts.avro import avro_schema

    ours = make("avro", Order, ConfluentRegistry(client=client))
    text = json.dumps(avro_schema(Order), separators=(",", ":"))
    theirs = AvroSerializer(client, text, lambda event, _: plain(event))
    reader = AvroDeserializer(client, text, lambda values, _: msgspec.convert(values, Order))
    event = ORDERS[number]
    data = ours.encode(event)
    assert data == theirs(event, context())
    assert reader(data, context()) == ours.decode(theirs(event, context())) == event
    check_subject(client)


@pytest.mark.parametrize("number", range(len(ORDERS)))
def test_protobuf_is_confluents_both_ways(client: Any, number: int) -> None:
    pytest.importorskip("google.type", reason="confluent-kafka's Protobuf needs googleapis-common-protos")
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

    ours = ProtobufCodec(Order, ConfluentRegistry(client=client), "orders-value")
    settings = {"use.deprecated.format": False}
    theirs = ProtobufSerializer(ours.message_class, client, settings)
    reader = ProtobufDeserializer(ours.message_class, settings, client)
    event = ORDERS[number]
    data = ours.encode(event)
    message = ours.message_class.FromString(split_indexes(unframe(data)[1])[1])
    written = theirs(message, context())
    assert unframe(written)[1][:1] == b"\x00"
    assert ours.decode(written) == event
    assert reader(data, context()) == message
    check_subject(client)


def test_json_is_confluents_both_ways(client: Any) -> None:
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer

    ours = JsonCodec(Transaction, ConfluentRegistry(client=client), "orders-value")
    text = msgspec.json.encode(json_schema(Transaction)).decode()
    theirs = JSONSerializer(text, client, lambda event, _: plain(event))
    reader = JSONDeserializer(text, lambda values, _: msgspec.convert(values, Transaction), client)
    for generated in list(transactions_of(FraudProfile(seed=3, events=20))):
        event = msgspec.json.decode(generated.value, type=Transaction)
        assert ours.decode(theirs(event, context())) == event
        assert reader(ours.encode(event), context()) == event
    check_subject(client)


def test_an_id_that_confluents_registry_does_not_know_is_an_unknown_version(client: Any) -> None:
    registry = ConfluentRegistry(client=client)
    with pytest.raises(CodecError) as caught:
        registry.schema(4711)
    assert caught.value.reason == "unknown_version"


def test_a_client_without_its_packages_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(UserError, match="pip install attrs authlib cachetools httpx2"):
        ConfluentRegistry({"url": "mock://x"})


def test_a_registry_that_fails_is_no_event_s_fault(client: Any) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryError

    def refuse(*_: Any) -> Any:
        raise SchemaRegistryError(409, 409, "incompatible")

    client.register_schema = client.get_schema = refuse
    registry = ConfluentRegistry(client=client)
    with pytest.raises(RegistryError, match="did not take the schema of orders-value"):
        make("json", Old, registry).encode(Old(1))
    with pytest.raises(RegistryError, match="did not give schema 1"):
        registry.schema(1)


def test_a_registry_that_does_not_answer_or_exist_is_told(client: Any) -> None:
    registry = ConfluentRegistry({"url": "http://127.0.0.1:1", "max.retries": 0})
    with pytest.raises(RegistryError, match="did not give schema 1"):
        registry.schema(1)
    with pytest.raises(RegistryError, match="did not take the schema of x"):
        registry.register("x", '{"type":"string"}', "AVRO")
    with pytest.raises(UserError, match="the schema registry's configuration"):
        ConfluentRegistry({"url": "nowhere://x"})


def test_a_schema_is_asked_for_once(client: Any) -> None:
    asked: list[int] = []
    get: Callable[..., Any] = client.get_schema
    client.get_schema = lambda schema_id: asked.append(schema_id) or get(schema_id)
    codec = make("json", Old, ConfluentRegistry(client=client))
    for _ in range(3):
        codec.decode(codec.encode(Old(1)))
    assert len(asked) == 1


def test_the_file_that_is_registered_is_the_descriptor(client: Any) -> None:
    codec = ProtobufCodec(Old, ConfluentRegistry(client=client), "orders-value")
    schema_id, _ = unframe(codec.encode(Old(1)))
    text = client.get_schema(schema_id).schema_str
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.standard_b64decode(text))
    assert file == file_descriptor(Old)
