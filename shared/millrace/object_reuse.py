"""Records that go from one process to the next as they are, without JSON between them.

A chain writes what a link emits as JSON, and the next link reads it: it gets a record of its own, with the
values that JSON has. In a station both are in one place, so that the same object may go on (Flink calls that
*object reuse*), where nobody can tell the difference: the record cannot be changed, and its JSON would be
read as the same record. The first is seen from its type, the second is held against every record that an
in-memory host emits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import inspect

from millrace.process import ProcessDefinitionError
from millrace.type_info import type_info

_ATOMS: Final = (
    inspect.NoneType, inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.StrType,
    inspect.BytesType,
    inspect.DecimalType, inspect.UUIDType, inspect.DateTimeType, inspect.DateType, inspect.TimeType,
    inspect.TimeDeltaType, inspect.EnumType, inspect.LiteralType,
)  # fmt: skip


class ObjectReuseError(ProcessDefinitionError):
    """A record is not what its JSON would be read as: it cannot go on as it is."""


def changeable_in(tp: Any) -> str:
    """Return where values of a type could be changed; empty where they cannot.

    Args:
        tp: A type that msgspec knows.

    Example:
        >>> class Line(msgspec.Struct, frozen=True):
        ...     item: str
        >>> class Order(msgspec.Struct, frozen=True):
        ...     lines: tuple[Line, ...]
        ...     notes: list[str]
        >>> changeable_in(Line), changeable_in(Order)
        ('', 'Order.notes is a list')
    """
    return _changeable(type_info(tp), "it", set())


def _changeable(info: inspect.Type, where: str, seen: set[Any]) -> str:
    if isinstance(info, inspect.Metadata):
        return _changeable(info.type, where, seen)
    if isinstance(info, _ATOMS):
        return ""
    if isinstance(info, inspect.UnionType):
        return _first(_changeable(one, where, seen) for one in info.types)
    if isinstance(info, inspect.TupleType):
        return _first(_changeable(one, where, seen) for one in info.item_types)
    if isinstance(info, inspect.VarTupleType | inspect.FrozenSetType):
        return _changeable(info.item_type, where, seen)
    if isinstance(info, inspect.StructType):
        if info.cls in seen:
            return ""
        seen.add(info.cls)
        if not info.cls.__struct_config__.frozen:
            return f"{info.cls.__name__} is not frozen"
        return _first(_changeable(f.type, f"{info.cls.__name__}.{f.name}", seen) for f in info.fields)
    return f"{where} is a {type(info).__name__.removesuffix('Type').lower()}"


def _first(found: Any) -> str:
    return next(filter(None, found), "")


def checked_encoder(owner: str) -> Callable[[Any], bytes]:
    """Return what writes a record as JSON, and refuses one whose JSON would be read as another.

    Args:
        owner: Name of the process that emits.

    Raises:
        ObjectReuseError: By what is returned: the record is none that may go on as it is.

    Example:
        >>> class Total(msgspec.Struct, frozen=True):
        ...     sum: float
        >>> encode = checked_encoder("Sums")
        >>> encode(Total(1.0))
        b'{"sum":1.0}'
        >>> encode(Total(1))
        Traceback (most recent call last):
        ...
        millrace.object_reuse.ObjectReuseError: Sums has object_reuse, but {"sum":1} is read as {"sum":1.0}
    """
    decoders: dict[type, Any] = {}

    def encode(record: Any) -> bytes:
        raw = msgspec.json.encode(record)
        kind = record.__class__
        decoder = decoders.get(kind)
        if decoder is None:
            decoder = decoders[kind] = msgspec.json.Decoder(kind)
        try:
            again = decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ObjectReuseError(
                f"{owner} has object_reuse, and emits a {kind.__name__} whose JSON cannot be read: {error}"
            ) from error
        if (found := msgspec.json.encode(again)) != raw or again != record:
            raise ObjectReuseError(
                f"{owner} has object_reuse, but {raw.decode()} is read as {found.decode()}"
            )
        return raw

    return encode
