"""Keys and times of events: which fields they are, and what they may be."""

from __future__ import annotations

import enum
import operator
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

import msgspec

from millrace.errors import UserError
from millrace.host.groups import encode_key, key_part
from millrace.state.specs import type_name
from millrace.type_info import type_info

_TEXTS: Final = (
    msgspec.inspect.StrType,
    msgspec.inspect.LiteralType,
    msgspec.inspect.EnumType,
    msgspec.inspect.UUIDType,
)


class KeyingError(UserError):
    """The key, event time or other columns that are named do not fit the events."""


@dataclass(frozen=True)
class RecordKey:
    """The key of the Kafka record, as text; an empty one is none."""

    def __str__(self) -> str:
        return "the record's key"


@dataclass(frozen=True)
class FirstOf:
    """The first of several fields that an event has, and that is not empty.

    Attributes:
        parts: Fields of the event, and the record's key.

    Example:
        >>> str(FirstOf(("driver_id", RecordKey())))
        "driver_id or the record's key"
    """

    parts: tuple[str | RecordKey, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))


@dataclass(frozen=True)
class Computed:
    """An expression of the engine's."""

    def __str__(self) -> str:
        return "an expression"


#: A part of a key: a field of the event, or where else it stands.
KeyPart = str | RecordKey | FirstOf | Computed


def parts_of(key: KeyPart | Sequence[KeyPart]) -> tuple[KeyPart, ...]:
    """Return the parts of a key.

    >>> parts_of("card"), parts_of(["shop", "item"])
    (('card',), ('shop', 'item'))
    """
    return (key,) if isinstance(key, KeyPart) else tuple(key)


def structs_of(tp: Any) -> list[Any]:
    """Return what msgspec knows of a struct, or of each member of a union of them; nothing of other types."""
    info = type_info(tp)
    found = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    return list(found) if all(isinstance(x, msgspec.inspect.StructType) for x in found) else []


def key_types(owner: str, tp: Any, fields: Sequence[str]) -> dict[str, type]:
    """Return the fields that make a key with their types.

    Args:
        owner: Whose events they are, for errors.
        tp: Type of the events: a struct, or a union of tagged ones, each of which has the fields.
        fields: The fields, as they are named in JSON.

    Raises:
        KeyingError: One of them is not there, or cannot be part of a key.

    Example:
        >>> class Ride(msgspec.Struct):
        ...     driver: str
        ...     seats: int
        >>> key_types("Rides", Ride, ["driver", "seats"])
        {'driver': <class 'str'>, 'seats': <class 'int'>}
    """
    structs = structs_of(tp)
    if not structs:
        raise KeyingError(f"{owner} is {type_name(tp)}; here it must be a msgspec struct")
    found: dict[str, type] = {}
    for struct in structs:
        there = {f.encode_name: f.type for f in struct.fields}
        for name in fields:
            if name not in there:
                whose = owner if len(structs) == 1 else f"{struct.cls.__name__} of {owner}"
                raise KeyingError(f"{whose} has no field {name} to key by; it has {', '.join(there)}")
            kind = _kind_of(there[name])
            if kind is None or found.setdefault(name, kind) is not kind:
                raise KeyingError(
                    f"the key {name} of {owner} is {_written(struct.cls, name)}; "
                    "keys are text, whole numbers or bools"
                )
    return found


def field_of(event: Any, name: str) -> Any:
    """Return a field of an event by its name in JSON; ``None`` where it has none."""
    return getattr(event, _attributes(event.__class__).get(name, name), None)


def has_fields(tp: Any, fields: Sequence[str]) -> bool:
    """Return whether events of a type have some fields, whichever they are of a union."""
    structs = structs_of(tp)
    return bool(structs) and all({*fields} <= {f.encode_name for f in struct.fields} for struct in structs)


def text_of(event: Any, key: Sequence[KeyPart]) -> str:
    """Return the text of an event's key.

    Args:
        event: The event.
        key: Its parts, none of which is the record's own key.

    Raises:
        KeyingError: The event does not have it.

    Example:
        >>> class Ride(msgspec.Struct):
        ...     driver: str
        ...     seats: int
        >>> text_of(Ride("ann", 4), ("driver", "seats"))
        '3:ann1:4'
    """
    return encode_key(tuple(_part(event, part) for part in key))


def key_reader(tp: Any, key: Sequence[str]) -> Callable[[Any], str]:
    """Return what :func:`text_of` gives for a key, as a function of the event: quick where it is one text.

    Args:
        tp: Type of the records that it is of.
        key: Fields of theirs, or of events that are read of them.
    """
    names = {_attributes(struct.cls).get(key[0], key[0]) for struct in structs_of(tp)}
    if len(key) > 1 or len(names) > 1:
        return partial(text_of, key=key)
    read = operator.attrgetter(*names)

    def text(event: Any) -> str:
        found: Any
        try:
            found = read(event)
        except AttributeError:  # the event's own class calls the field otherwise
            found = None
        return encode_key((found,)) if found.__class__ is str else text_of(event, key)

    return text


def _part(event: Any, part: KeyPart) -> str:
    for name in part.parts if isinstance(part, FirstOf) else (part,):
        if not isinstance(name, str):
            continue
        found = field_of(event, name)
        if isinstance(found, enum.Enum):
            found = found.value
        if found is not None and (found != "" or isinstance(part, str)):
            return str(found) if isinstance(found, uuid.UUID) else key_part(found)
    raise KeyingError(f"a {type(event).__name__} does not have its key, {part}, in itself: say its key")


@lru_cache(maxsize=256)
def _attributes(struct: type) -> dict[str, str]:
    """Field as it is named in JSON → as it is named in Python, where the two differ."""
    if not issubclass(struct, msgspec.Struct):
        return {}
    return {f.encode_name: f.name for f in msgspec.structs.fields(struct) if f.encode_name != f.name}


def _kind_of(info: Any) -> type | None:
    if isinstance(info, msgspec.inspect.UnionType):
        kinds = [x for x in info.types if not isinstance(x, msgspec.inspect.NoneType)]
        info = kinds[0] if len(kinds) == 1 else info
    if isinstance(info, _TEXTS):
        return str
    if isinstance(info, msgspec.inspect.IntType):
        return int
    return bool if isinstance(info, msgspec.inspect.BoolType) else None


def _written(struct: Any, name: str) -> str:
    (field,) = (f for f in msgspec.structs.fields(struct) if f.encode_name == name)
    return f"a {type_name(field.type)}"
