"""Avro: schemas from event types, and events in the Confluent wire format."""

from __future__ import annotations

import datetime
import importlib
import io
import json
from typing import Any, Final, Generic, TypeVar

import msgspec

from millrace.contracts.codec import converted
from millrace.contracts.registry import Registry
from millrace.contracts.schema import SchemaError
from millrace.contracts.wire import CodecError, frame, unframe
from millrace.errors import UserError
from millrace.state.specs import type_name
from millrace.type_info import type_info

T = TypeVar("T")
_I = msgspec.inspect
_SCALARS: Final[dict[type, Any]] = {
    _I.IntType: "long",
    _I.FloatType: "double",
    _I.StrType: "string",
    _I.BoolType: "boolean",
    _I.BytesType: "bytes",
    _I.UUIDType: "string",
    _I.DateTimeType: {"type": "long", "logicalType": "timestamp-micros"},
    _I.DateType: {"type": "int", "logicalType": "date"},
}


def avro_schema(tp: Any, *, name: str | None = None, namespace: str = "millrace") -> dict[str, Any]:
    """Return the Avro schema of an event type.

    Texts of a fixed set become ``string``: an Avro enum refuses a value that is new in the writer's version.
    Bounds and patterns have no place in Avro; :class:`AvroCodec` checks them when it reads.

    Args:
        tp: A msgspec struct.
        name: Of the event's record, which must be the same in all versions; default the class's.
        namespace: Of its records.

    Raises:
        SchemaError: A field's type has no Avro type, or the type is no struct.

    Example:
        >>> class Tick(msgspec.Struct):
        ...     symbol: str
        ...     price: float | None = None
        >>> [field["type"] for field in avro_schema(Tick)["fields"]]
        ['string', ['null', 'double']]
    """
    info = type_info(tp)
    if not isinstance(info, _I.StructType):
        raise SchemaError(f"{type_name(tp)} is no struct: Avro events are records")
    made: dict[str, Any] = _record(info, namespace, {}, name)
    return made


def _record(info: Any, namespace: str, seen: dict[type, str], given: str | None = None) -> Any:
    if info.cls in seen:
        return seen[info.cls]  # a record is defined once, and then named
    name = given or info.cls.__name__
    if f"{namespace}.{name}" in seen.values():
        raise SchemaError(f"two records are called {name}: rename one of the classes")
    seen[info.cls] = f"{namespace}.{name}"
    fields = []
    if info.tag_field is not None:
        fields.append({"name": info.tag_field, "type": "string", "default": str(info.tag)})
    for field in info.fields:
        fields.append(_field(field, f"{name}.{field.name}", namespace, seen))
    return {"type": "record", "name": name, "namespace": namespace, "fields": fields}


def _field(field: Any, where: str, namespace: str, seen: dict[type, str]) -> dict[str, Any]:
    made: dict[str, Any] = {"name": field.encode_name, "type": _type(field.type, where, namespace, seen)}
    if not field.required:
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        made["default"] = msgspec.to_builtins(default)
        if default is not None and isinstance(made["type"], list):
            # The default is of the union's first type.
            made["type"] = [part for part in made["type"] if part != "null"] + ["null"]
    return made


def _type(info: Any, where: str, namespace: str, seen: dict[type, str]) -> Any:
    if (scalar := _SCALARS.get(type(info))) is not None:
        return scalar
    if isinstance(info, _I.LiteralType | _I.EnumType):
        values = info.values if isinstance(info, _I.LiteralType) else [member.value for member in info.cls]
        if all(isinstance(value, str) for value in values):
            return "string"
        if all(type(value) is int for value in values):
            return "long"
    if isinstance(info, _I.StructType):
        return _record(info, namespace, seen)
    if isinstance(info, _I.ListType | _I.VarTupleType):
        return {"type": "array", "items": _type(info.item_type, f"{where}[]", namespace, seen)}
    if isinstance(info, _I.DictType) and isinstance(info.key_type, _I.StrType):
        return {"type": "map", "values": _type(info.value_type, f"{where}{{}}", namespace, seen)}
    if isinstance(info, _I.UnionType):
        kinds = [part for part in info.types if not isinstance(part, _I.NoneType)]
        if len(kinds) == 1:
            return ["null", _type(kinds[0], where, namespace, seen)]
    raise SchemaError(f"{where}: {type(info).__name__} has no Avro type; write such events as JSON")


class AvroCodec(Generic[T]):
    """Events as Avro, led by the id of the writer's schema.

    A reader resolves the writer's schema, which it asks the registry for once, against that of its own class;
    so it reads what earlier and later versions wrote, as far as Avro's rules and the class allow.

    Args:
        tp: Type of the events, a msgspec struct.
        registry: Where schemas are.
        subject: Under which name the schema is registered, as a rule the topic's with ``-value``.
        name: Of the event's record, which must be the same in all versions; default the class's.
        namespace: Of the records.

    Raises:
        UserError: fastavro is not installed.
        SchemaError: The type has no Avro schema.

    Example:
        >>> codec = AvroCodec(Transaction, registry, "fraud.transactions-value")  # doctest: +SKIP
    """

    def __init__(
        self,
        tp: type[T],
        registry: Registry,
        subject: str,
        *,
        name: str | None = None,
        namespace: str = "millrace",
    ) -> None:
        try:
            fastavro: Any = importlib.import_module("fastavro")
        except ImportError as error:
            raise UserError("Avro needs one more package: pip install fastavro") from error
        self._type, self._registry, self._subject = tp, registry, subject
        schema = avro_schema(tp, name=name, namespace=namespace)
        self._text = json.dumps(schema, separators=(",", ":"))
        self._fastavro = fastavro
        self._schema = fastavro.parse_schema(schema)
        self._writers: dict[int, tuple[Any, Any]] = {}

    def encode(self, event: T) -> bytes:
        """Return an event as bytes.

        Raises:
            RegistryError: The registry does not answer, or refuses the schema.
        """
        kept = (bytes, datetime.datetime, datetime.date)
        out = io.BytesIO()
        self._fastavro.schemaless_writer(out, self._schema, msgspec.to_builtins(event, builtin_types=kept))
        return frame(self._registry.register(self._subject, self._text, "AVRO"), out.getvalue())

    def decode(self, data: bytes) -> T:
        """Return the event that bytes are.

        Raises:
            CodecError: They are none.
            RegistryError: The registry does not answer.
        """
        schema_id, payload = unframe(data)
        writer = self._writers.get(schema_id) or self._writer(schema_id)  # and ours, unless they are equal
        source = io.BytesIO(payload)
        try:
            values = self._fastavro.schemaless_reader(source, *writer)
        except self._fastavro.read.SchemaResolutionError as error:
            raise CodecError("schema", f"schema {schema_id} cannot be read: {error}") from error
        except Exception as error:  # whatever a cut or foreign payload makes of the reader
            told = f"{type(error).__name__}: {error}"
            raise CodecError("malformed", f"no event of schema {schema_id}: {told}") from error
        if source.read(1):
            raise CodecError("malformed", f"bytes are left after an event of schema {schema_id}")
        event: T = converted(values, self._type)
        return event

    def _writer(self, schema_id: int) -> tuple[Any, Any]:
        text = self._registry.schema(schema_id)
        try:
            found = self._fastavro.parse_schema(json.loads(text))
        except Exception as error:  # one of many kinds: the schema is of another format
            told = f"{type(error).__name__}: {error}"
            raise CodecError("schema", f"schema {schema_id} is no Avro schema: {told}") from error
        # Where both are equal there is nothing to resolve, which takes half the time.
        both = found, None if text == self._text else self._schema
        self._writers[schema_id] = both
        return both
