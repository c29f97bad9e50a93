"""Protobuf: messages from event types, without a compiler, and events in the Confluent wire format.

A field's number is its place in the class: a new field goes last, and none is moved or removed
(:func:`numbering_breaks` finds it).
"""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
)
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.message import DecodeError

from millrace.contracts.codec import converted
from millrace.contracts.messages import TIMESTAMP, Shape
from millrace.contracts.registry import Registry
from millrace.contracts.schema import SchemaError, meaning
from millrace.contracts.wire import CodecError, frame, split_indexes, unframe, with_indexes
from millrace.state.specs import type_name
from millrace.type_info import type_info

T = TypeVar("T")
_I = msgspec.inspect
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCALARS: Final[dict[type, int]] = {
    _I.IntType: Field.TYPE_INT64,
    _I.FloatType: Field.TYPE_DOUBLE,
    _I.StrType: Field.TYPE_STRING,
    _I.BoolType: Field.TYPE_BOOL,
    _I.BytesType: Field.TYPE_BYTES,
    _I.UUIDType: Field.TYPE_STRING,
    _I.DateType: Field.TYPE_STRING,
}
_WORDS: Final = {
    Field.TYPE_INT64: "int64",
    Field.TYPE_DOUBLE: "double",
    Field.TYPE_STRING: "string",
    Field.TYPE_BOOL: "bool",
    Field.TYPE_BYTES: "bytes",
}


def file_descriptor(tp: Any, *, package: str = "millrace") -> descriptor_pb2.FileDescriptorProto:
    """Return the Protobuf file (proto3) of an event type, the event's message first.

    Every single field is ``optional``, so that one that was not written is told from zero: the class
    gives its default, or refuses the event.

    Args:
        tp: A msgspec struct.
        package: Of its messages.

    Raises:
        SchemaError: A field has no Protobuf type, or the type is no struct.

    Example:
        >>> class Tick(msgspec.Struct):
        ...     symbol: str
        >>> file_descriptor(Tick).message_type[0].field[0].number
        1
    """
    file: descriptor_pb2.FileDescriptorProto = _Builder(_struct_info(tp), package).file
    return file


def _struct_info(tp: Any) -> Any:
    info = type_info(tp)
    if not isinstance(info, _I.StructType):
        raise SchemaError(f"{type_name(tp)} is no struct: Protobuf events are messages")
    return info


class _Builder:
    """Makes the file of a struct.

    Attributes:
        file: The file.
        nullable: Fields that must be given and may be null: there, not written is null.
    """

    def __init__(self, info: Any, package: str) -> None:
        name = f"{package.replace('.', '/')}/{info.cls.__name__.lower()}.proto"
        self.file: Any = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
        self.nullable: set[str] = set()
        self._known: dict[type, str] = {}
        self._message(info)

    def _message(self, info: Any) -> str:
        """Return the full name of a struct's message."""
        if info.cls in self._known:
            return self._known[info.cls]
        name = info.cls.__name__
        if any(message.name == name for message in self.file.message_type):
            raise SchemaError(f"two messages are called {name}: rename one of the classes")
        self._known[info.cls] = full = f".{self.file.package}.{name}"
        message = self.file.message_type.add(name=name)
        fields = [(f.encode_name, f.type) for f in info.fields]
        if info.tag_field is not None:
            fields.insert(0, (info.tag_field, _I.StrType()))
        for field in info.fields:
            self._null(field, f"{self.file.package}.{name}")
        for number, (called, kind) in enumerate(fields, start=1):
            if not _IDENTIFIER.fullmatch(called):
                raise SchemaError(f"{name}.{called}: a Protobuf field is named with letters, digits and _")
            self._field(message, called, number, kind)
        return full

    def _null(self, field: Any, message: str) -> None:
        if not isinstance(field.type, _I.UnionType) or not field.type.includes_none:
            return
        if field.required:
            self.nullable.add(f"{message}.{field.encode_name}")
        elif field.default is not None:
            # Not written would mean both, null and the default.
            raise SchemaError(f"{message}.{field.name} may be null: give it no default, or None")

    def _field(self, message: Any, name: str, number: int, kind: Any) -> None:
        where = f"{message.name}.{name}"
        made = message.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL, json_name=name)
        if isinstance(kind, _I.ListType | _I.VarTupleType):
            made.label = Field.LABEL_REPEATED
            self._value(made, kind.item_type, f"{where}[]")
        elif isinstance(kind, _I.DictType) and isinstance(kind.key_type, _I.StrType):
            made.label = Field.LABEL_REPEATED
            made.type = Field.TYPE_MESSAGE
            entry = message.nested_type.add(name="".join(p.capitalize() for p in name.split("_")) + "Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL, type=Field.TYPE_STRING)
            value = entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL)
            self._value(value, kind.value_type, f"{where}{{}}")
            made.type_name = f".{self.file.package}.{message.name}.{entry.name}"
        else:
            if isinstance(kind, _I.UnionType):
                kinds = [part for part in kind.types if not isinstance(part, _I.NoneType)]
                kind = kinds[0] if len(kinds) == 1 else kind
            self._value(made, kind, where)
            made.proto3_optional = True
            made.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")

    def _value(self, made: Any, kind: Any, where: str) -> None:
        if isinstance(kind, _I.LiteralType | _I.EnumType):
            kind = _of_values(kind)
        if type(kind) in _SCALARS:
            made.type = _SCALARS[type(kind)]
        elif isinstance(kind, _I.DateTimeType):
            made.type, made.type_name = Field.TYPE_MESSAGE, f".{TIMESTAMP}"
            if timestamp_pb2.DESCRIPTOR.name not in self.file.dependency:
                self.file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
        elif isinstance(kind, _I.StructType):
            made.type, made.type_name = Field.TYPE_MESSAGE, self._message(kind)
        else:
            raise SchemaError(
                f"{where}: {type(kind).__name__} has no Protobuf type here; write such events as JSON"
            )


def _of_values(kind: Any) -> Any:
    """Return the type of a fixed set of values."""
    values = kind.values if isinstance(kind, _I.LiteralType) else [member.value for member in kind.cls]
    if all(isinstance(value, str) for value in values):
        return _I.StrType()
    return _I.IntType() if all(type(value) is int for value in values) else kind


def proto_text(tp: Any, *, package: str = "millrace") -> str:
    """Return the Protobuf file of an event type as text, for producers in other languages.

    Args:
        tp: A msgspec struct.
        package: Of its messages.

    Raises:
        SchemaError: A field has no Protobuf type, or the type is no struct.
    """
    file = file_descriptor(tp, package=package)
    lines = ['syntax = "proto3";', "", f"package {package};", ""]
    lines += [f'import "{name}";\n' for name in file.dependency]
    for message in file.message_type:
        lines.append(f"message {message.name} {{")
        entries = {f".{package}.{message.name}.{e.name}": e for e in message.nested_type}
        lines += [f"  {_line(field, entries)};" for field in message.field]
        lines += ["}", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _line(field: Any, entries: Mapping[str, Any]) -> str:
    tail = f"{field.name} = {field.number}"
    if field.type_name in entries:
        return f"map<string, {_word(entries[field.type_name].field[1])}> {tail}"
    label = "optional" if field.proto3_optional else "repeated"
    return f"{label} {_word(field)} {tail}"


def _word(field: Any) -> str:
    name: str = field.type_name
    if field.type != Field.TYPE_MESSAGE:
        return _WORDS[field.type]
    return name.removeprefix(".") if name == f".{TIMESTAMP}" else name.rpartition(".")[2]


def numbering_breaks(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return which fields have another Protobuf number in a new version of a contract.

    Args:
        old: JSON Schema of the earlier version.
        new: That of the later one.

    Example:
        >>> before = {"properties": {"a": {}, "b": {}}}
        >>> numbering_breaks(before, {"properties": {"b": {}, "a": {}}})
        ['a was field 1 and is 2', 'b was field 2 and is 1']
    """

    def walk(before: Any, after: Any, at: str) -> list[str]:
        if not isinstance(before, dict) or not isinstance(after, dict):
            return []
        found = []
        names = list(after.get("properties", {}))
        for number, (name, value) in enumerate(before.get("properties", {}).items(), start=1):
            if name not in names:
                found.append(f"{at}{name} was field {number} and is gone: its number would be used again")
                continue
            if (now := names.index(name) + 1) != number:
                found.append(f"{at}{name} was field {number} and is {now}")
            found += walk(value, after["properties"][name], f"{at}{name}.")
        for inside in ("items", "additionalProperties"):
            found += walk(before.get(inside), after.get(inside), at)
        pairs = zip(before.get("anyOf", ()), after.get("anyOf", ()), strict=False)
        return found + [one for a, b in pairs for one in walk(a, b, at)]

    return walk(meaning(old), meaning(new), "")


class ProtobufCodec(Generic[T]):
    """Events as Protobuf, led by the id of their schema and which message of its file they are.

    Args:
        tp: Type of the events, a msgspec struct.
        registry: Where schemas are.
        subject: Under which name the schema is registered, as a rule the topic's with ``-value``.
        package: Of the messages.

    Raises:
        SchemaError: The type has no Protobuf schema.

    Example:
        >>> codec = ProtobufCodec(Transaction, registry, "fraud.transactions-value")  # doctest: +SKIP
    """

    def __init__(self, tp: type[T], registry: Registry, subject: str, *, package: str = "millrace") -> None:
        self._type, self._registry, self._subject = tp, registry, subject
        builder = _Builder(_struct_info(tp), package)
        file = builder.file
        #: The message's class, as the Protobuf compiler would have made it.
        self.message_class: Any = _message_class(file)
        self._shape = Shape(self.message_class.DESCRIPTOR, builder.nullable)
        self._text = base64.standard_b64encode(file.SerializeToString()).decode("ascii")

    def encode(self, event: T) -> bytes:
        """Return an event as bytes.

        Raises:
            RegistryError: The registry does not answer, or refuses the schema.
        """
        message = self.message_class()
        self._shape.fill(message, msgspec.to_builtins(event, builtin_types=(bytes, datetime.datetime)))
        schema_id = self._registry.register(self._subject, self._text, "PROTOBUF")
        return frame(schema_id, with_indexes([0], message.SerializeToString()))

    def decode(self, data: bytes) -> T:
        """Return the event that bytes are.

        Raises:
            CodecError: They are none.
        """
        indexes, payload = split_indexes(unframe(data)[1])
        if indexes != [0]:
            raise CodecError("schema", f"message {indexes} of its file, and events are the first")
        try:
            message = self.message_class.FromString(payload)
        except DecodeError as error:
            raise CodecError("malformed", f"no Protobuf message: {error}") from error
        event: T = converted(self._shape.read(message), self._type)
        return event


def _message_class(file: descriptor_pb2.FileDescriptorProto) -> Any:
    # A pool of its own, so that two versions of one name do not meet.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    made = pool.AddSerializedFile(file.SerializeToString())
    found = made if made is not None else pool.FindFileByName(file.name)
    return message_factory.GetMessageClass(found.message_types_by_name[file.message_type[0].name])
