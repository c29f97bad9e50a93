"""Event and output types as Spark schemas: msgspec types in, ``StructType`` out."""

from __future__ import annotations

from typing import Any

import msgspec
from pyspark.sql import types as t

from millrace.errors import UserError
from millrace.state.specs import type_name
from millrace.type_info import type_info

_SCALARS: dict[type, t.DataType] = {
    msgspec.inspect.IntType: t.LongType(),
    msgspec.inspect.FloatType: t.DoubleType(),
    msgspec.inspect.StrType: t.StringType(),
    msgspec.inspect.BoolType: t.BooleanType(),
    msgspec.inspect.BytesType: t.BinaryType(),
    msgspec.inspect.DateTimeType: t.TimestampType(),
    msgspec.inspect.DateType: t.DateType(),
    msgspec.inspect.LiteralType: t.StringType(),
    msgspec.inspect.EnumType: t.StringType(),
    msgspec.inspect.UUIDType: t.StringType(),
}


#: Columns that follow the record's own in every output: identity, time of its cause, whether on time.
META_FIELDS = (
    t.StructField("_event_id", t.StringType()),
    t.StructField("_event_time", t.TimestampType()),
    t.StructField("_on_time", t.BooleanType()),
)


class UnsupportedType(UserError):
    """An event or output type has no Spark counterpart."""


def struct_type(tp: Any) -> t.StructType:
    """Return the Spark schema of a msgspec struct; of any other type, one column ``value``.

    Args:
        tp: A msgspec struct class, or a scalar or container type.

    Raises:
        UnsupportedType: A field's type has no Spark counterpart.

    Example:
        >>> class Balance(msgspec.Struct):
        ...     user: str
        ...     amount: float | None = None
        >>> struct_type(Balance).simpleString()
        'struct<user:string,amount:double>'

    A union of tagged structs has a column for the tag, and the columns of all of them.
    """
    spark = _spark_type(type_info(tp), type_name(tp))
    if isinstance(spark, t.StructType):
        return spark
    return t.StructType([t.StructField("value", spark)])


def is_record(tp: Any) -> bool:
    """Return whether a type has columns of its own, and not the one column ``value``."""
    return isinstance(_spark_type(type_info(tp), type_name(tp)), t.StructType)


def _spark_type(info: Any, where: str) -> t.DataType:
    scalar = _SCALARS.get(type(info))
    if scalar is not None:
        return scalar
    if isinstance(info, msgspec.inspect.StructType):
        return t.StructType(
            [
                t.StructField(f.encode_name, _spark_type(f.type, f"{where}.{f.name}"), nullable=True)
                for f in info.fields
            ]
        )
    if isinstance(info, msgspec.inspect.UnionType):
        kinds = [x for x in info.types if not isinstance(x, msgspec.inspect.NoneType)]
        if len(kinds) == 1:
            return _spark_type(kinds[0], where)
        if all(isinstance(kind, msgspec.inspect.StructType) for kind in kinds):
            return _merged(kinds, where)
    if isinstance(info, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
        return t.ArrayType(_spark_type(info.item_type, f"{where}[]"))
    if isinstance(info, msgspec.inspect.DictType) and isinstance(info.key_type, msgspec.inspect.StrType):
        return t.MapType(t.StringType(), _spark_type(info.value_type, f"{where}[]"))
    raise UnsupportedType(f"{where}: {type(info).__name__} has no Spark type; use str, int, float, bool, "
                          "bytes, datetime, structs, lists or string-keyed dicts of them")  # fmt: skip


def _merged(structs: list[Any], where: str) -> t.StructType:
    """Return the columns of a tagged union: its tag, and every field that one of its structs has."""
    tag = structs[0]
    found: dict[str, t.DataType] = {
        tag.tag_field: t.LongType() if isinstance(tag.tag, int) else t.StringType()
    }
    for struct in structs:
        for f in struct.fields:
            kind = _spark_type(f.type, f"{where}.{f.name}")
            if found.setdefault(f.encode_name, kind) != kind:
                raise UnsupportedType(
                    f"{where}: {f.encode_name} is {found[f.encode_name].simpleString()} in one struct and "
                    f"{kind.simpleString()} in {struct.cls.__name__}: the table has one column for both"
                )
    return t.StructType([t.StructField(name, kind, nullable=True) for name, kind in found.items()])


def structs_in(tp: Any) -> list[type]:
    """Return the structs that a type is made of, itself among them.

    >>> class Point(msgspec.Struct):
    ...     x: int
    >>> structs_in(list[Point]) == [Point]
    True
    """
    found: list[type] = []

    def walk(info: Any) -> None:
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in found:
                return
            found.append(info.cls)
        for name in getattr(info, "__struct_fields__", ()):
            value = getattr(info, name)
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field):
                    walk(part)

    if tp is not None:
        walk(type_info(tp))
    return found


__all__ = ["META_FIELDS", "UnsupportedType", "is_record", "struct_type"]
