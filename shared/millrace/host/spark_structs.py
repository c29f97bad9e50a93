"""Structs of a script or notebook reach Spark's workers: they are pickled as what they are made of.

What a worker cannot import is pickled by value, by cloudpickle. Of a msgspec struct it would take the class
without its fields, since they stand in slots. Here a struct class becomes its name, its bases and its fields
with their types and defaults, and is made anew from them; in one process only once.
"""

from __future__ import annotations

import copyreg
import dataclasses
import inspect
import sys
import typing
import uuid
import weakref
from collections.abc import Callable
from types import MemberDescriptorType
from typing import Any, Final, NamedTuple

import msgspec

from millrace.errors import UserError

#: Class → identity of those that were pickled or made here, and the other way round.
_identities: Final[weakref.WeakKeyDictionary[type, str]] = weakref.WeakKeyDictionary()
_known: Final[weakref.WeakValueDictionary[str, type]] = weakref.WeakValueDictionary()
_StructMeta: Final[Any] = type(msgspec.Struct)
#: What :class:`msgspec.structs.StructConfig` has under the names of the class's arguments.
_CONFIG: Final = (
    "frozen", "order", "eq", "array_like", "gc", "forbid_unknown_fields", "omit_defaults",
    "repr_omit_defaults", "weakref", "dict", "cache_hash", "tag",
)  # fmt: skip
#: What msgspec keeps of an enum, dataclass, NamedTuple or TypedDict that it has seen: nothing can pickle
#: it, and it is made anew where it is missed.
_CACHE: Final = "__msgspec_cache__"
_OF_THE_CLASS: Final = ("__annotations__", "__dict__", "__slots__", "__weakref__")


#: What a constraint of a field's type says.
_OF_META: Final = (
    "gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz", "title",
    "description", "examples", "extra_json_schema", "extra",
)  # fmt: skip


class SelfReference(UserError):
    """A struct has a field that leads to its own type: it cannot be made from its fields."""


class _Made(NamedTuple):
    """What a struct class is made of."""

    name: str
    bases: tuple[type, ...]
    namespace: dict[str, Any]
    factories: dict[str, Callable[[], Any]]
    config: dict[str, Any]


def make_struct(identity: str, made: tuple[Any, ...]) -> type:
    """Return the struct class of an identity; it is made if it is not known here."""
    found = _known.get(identity)
    if found is None:
        name, bases, namespace, factories, config = made
        defaults = {field: msgspec.field(default_factory=make) for field, make in factories.items()}
        found = _StructMeta(name, bases, namespace | defaults, **config)
        _known[identity] = found
        _identities[found] = identity
    return found


def reduce_struct(cls: type[msgspec.Struct]) -> tuple[Callable[..., type], tuple[Any, ...]]:
    """Return how pickle makes a struct class anew.

    Raises:
        SelfReference: A field is of the class itself.
    """
    identity = _identities.get(cls)
    if identity is None:
        identity = _identities[cls] = uuid.uuid4().hex
        _known[identity] = cls
    return make_struct, (identity, tuple(_made_of(cls)))


def make_meta(said: dict[str, Any]) -> msgspec.Meta:
    """Return a constraint of a field's type that says this."""
    return msgspec.Meta(**said)


def _reduce_meta(meta: msgspec.Meta) -> tuple[Callable[..., msgspec.Meta], tuple[Any, ...]]:
    said = {name: getattr(meta, name) for name in _OF_META}
    return make_meta, ({name: value for name, value in said.items() if value is not None},)


def _reduce_new_type(kind: Any) -> str | tuple[Callable[..., Any], tuple[str, Any]]:
    name: str = kind.__name__
    module = sys.modules.get(kind.__module__)
    if kind.__module__ != "__main__" and getattr(module, name, None) is kind:
        return name
    return typing.NewType, (name, kind.__supertype__)


def check_struct(cls: type[msgspec.Struct]) -> None:
    """Refuse a struct that cannot be made from its fields.

    Raises:
        SelfReference: A field is of the class itself.
    """
    _made_of(cls)


def _made_of(cls: type[msgspec.Struct]) -> _Made:
    hints = typing.get_type_hints(cls, include_extras=True)
    own = {name: hints[name] for name in inspect.get_annotations(cls)}
    for name, tp in own.items():
        if _leads_to(tp, cls, set()):
            raise SelfReference(
                f"{cls.__name__}.{name} leads to {cls.__name__} again, which Spark's workers cannot import:"
                " it is defined in the script or notebook itself. Put it into a module and import that"
            )
    fields = {field.name: field for field in msgspec.structs.fields(cls)}
    namespace = {
        name: value
        for name, value in cls.__dict__.items()
        if name not in _OF_THE_CLASS and not isinstance(value, MemberDescriptorType)
    }
    factories: dict[str, Callable[[], Any]] = {}
    for field in (fields[name] for name in own if name in fields):
        if field.default_factory is not msgspec.NODEFAULT:
            factories[field.name] = field.default_factory
        elif field.default is not msgspec.NODEFAULT:
            namespace[field.name] = field.default
    config = {name: getattr(cls.__struct_config__, name) for name in _CONFIG}
    if config["tag"] is not None:
        config["tag_field"] = cls.__struct_config__.tag_field
    renamed = {name: field.encode_name for name, field in fields.items() if name != field.encode_name}
    if renamed:
        config["rename"] = renamed
    config["kw_only"] = any(name in fields and name not in cls.__match_args__ for name in own)
    return _Made(cls.__name__, cls.__bases__, namespace | {"__annotations__": own}, factories, config)


def _leads_to(tp: Any, cls: type, seen: set[type]) -> bool:
    """Whether a type has a class in it, or in the fields of the structs in it."""
    if tp is cls:
        return True
    if isinstance(tp, _StructMeta):
        if tp in seen:
            return False
        seen.add(tp)
        return any(_leads_to(field.type, cls, seen) for field in msgspec.structs.fields(tp))
    return any(_leads_to(part, cls, seen) for part in typing.get_args(tp))


def install() -> bool:
    """Let PySpark's cloudpickle take structs as they are; return whether it is the one that is known."""
    from pyspark.cloudpickle import cloudpickle

    before = getattr(cloudpickle, "_class_reduce", None)
    by_reference = getattr(cloudpickle, "_should_pickle_by_reference", None)
    if before is None or by_reference is None:
        return False
    if not getattr(before, "takes_structs", False):

        def reduce(obj: Any) -> Any:
            if isinstance(obj, _StructMeta) and not by_reference(obj):
                return reduce_struct(obj)
            if _CACHE in vars(obj) and not by_reference(obj):
                type.__delattr__(obj, _CACHE)
            return before(obj)

        copyreg.pickle(msgspec.Meta, _reduce_meta)
        copyreg.pickle(typing.NewType, _reduce_new_type)
        copyreg.pickle(type(dataclasses.MISSING), lambda _: "MISSING")  # else a worker has another one
        reduce.takes_structs = True  # type: ignore[attr-defined]
        cloudpickle._class_reduce = reduce  # noqa: SLF001 - it has no other place for it
    return True
