"""Values at and beyond every bound of a type, as JSON.

They come from what msgspec knows of the type, its contract, so any app has them. Most are what a hasty
producer may well send; some are no JSON at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect as types

from millrace.type_info import type_info

#: Length of the longest texts, characters: what Kafka takes in one message by default, less the rest of it.
LONG: Final = 1_000_000
#: How many items a list or map has that has no bound.
_MANY: Final = 2_000
#: Nested types are followed so deep.
_DEPTH: Final = 4


class Value(NamedTuple):
    """A value of a field.

    Attributes:
        label: What it is, for whoever reads of it.
        raw: Its JSON, or what stands in its place.
    """

    label: str
    raw: bytes


def _text(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()


def _number(value: float) -> bytes:
    return (repr(value) if isinstance(value, float) else str(value)).encode()


#: Whole numbers at which something or other ends: bits, what a double holds, years, digits.
WHOLE: Final = (
    0, 1, -1, 2**31 - 1, 2**31, -(2**31) - 1, 2**53, 2**53 + 1, -(2**53), 2**63 - 1, 2**63, -(2**63) - 1,
    2**64 - 1, 2**64, 10**21, -(10**21), 99_999_999_999_999_999, 10**400,
)  # fmt: skip
_FLOAT_MAX: Final = 1.7976931348623157e308
_BROKEN_FLOATS: Final = (0.1, -0.0, 5e-324, 1.7976931348623157e308, -1.7976931348623157e308, 1e21, 1e-12)
_TEXTS: Final = {
    "empty": "",
    "a space": " ",
    "a number as text": "12345678901234567890",
    "a float as text": "1e21",
    "NaN as text": "NaN",
    "a NUL": "a\x00b",
    "control characters": "\x01\x1e\x1f\x7f\u0085\u2028",
    "right to left, joined, outside the first plane": "\u202e\u05d0e\u0301\u200d\U0001f468\u200d\U0001f469",
    "no character": "\ufffe\uffff",
    "quotes and escapes": "\"'\\\n\t{}[]$|:;,",
    "a path and a wildcard": "../*?%00",
    "hyphen and number": "r1-o99",
    "129 characters": "x" * 129,
    "100 kB": "x" * 100_000,
}
#: What may stand in place of any value.
STRANGE: Final[tuple[Value, ...]] = (
    *(Value(f"the number {n}" if n < 10**30 else "a number of 401 digits", _number(n)) for n in WHOLE),
    *(Value(f"the number {x!r}", _number(x)) for x in _BROKEN_FLOATS),
    Value("the number 1e400", b"1e400"),
    Value("the number 1e21", b"1e21"),
    Value("NaN", b"NaN"),
    Value("-Infinity", b"-Infinity"),
    *(Value(f"text: {label}", _text(text)) for label, text in _TEXTS.items()),
    Value("text: a lone surrogate, escaped", b'"\\ud800"'),
    Value("text: a pair of surrogates the wrong way round", b'"\\udc00\\ud800"'),
    Value("text: a lone surrogate as bytes", b'"\xed\xa0\x80"'),
    Value("text: no UTF-8", b'"\xff\xfe"'),
    Value("text: 1 MB", b'"' + b"x" * LONG + b'"'),
    Value("text: 1 MB of three bytes each", b'"' + "\u20ac".encode() * (LONG // 3) + b'"'),
    Value("null", b"null"),
    Value("true", b"true"),
    Value("an empty list", b"[]"),
    Value("an empty object", b"{}"),
    Value("a list in a list", b"[[1,null,{}]]"),
    Value("500 lists in each other", b"[" * 500 + b"]" * 500),
    Value("100,000 lists in each other", b"[" * 100_000 + b"]" * 100_000),
    Value("nothing", b""),
)


def allowed(tp: Any) -> list[Value]:
    """Return values that a type allows, the outermost among them; others may slip in, and be refused.

    Args:
        tp: The type, or what :func:`msgspec.inspect.type_info` says of it.

    Example:
        >>> from typing import Annotated
        >>> found = allowed(Annotated[int, msgspec.Meta(ge=3, le=9)])
        >>> [(value.label, value.raw) for value in found]
        [('its least', b'3'), ('its most', b'9')]
    """
    return list(_allowed(_info(tp), 0))


def refused(tp: Any) -> list[Value]:
    """Return values just beyond the bounds of a type; some types have none.

    Example:
        >>> from typing import Annotated
        >>> [value.raw for value in refused(Annotated[int, msgspec.Meta(ge=3, le=9)])]
        [b'2', b'10']
    """
    return list(_refused(_info(tp), 0))


def _info(tp: Any) -> types.Type:
    return tp if isinstance(tp, types.Type) else type_info(tp)


def _allowed(info: types.Type, depth: int) -> Iterator[Value]:
    if isinstance(info, types.Metadata):
        yield from _allowed(info.type, depth)
    elif isinstance(info, types.UnionType):
        for one in info.types:
            yield from _allowed(one, depth)
    elif isinstance(info, types.NoneType):
        yield Value("null", b"null")
    elif isinstance(info, types.BoolType):
        yield from (Value("true", b"true"), Value("false", b"false"))
    elif isinstance(info, types.LiteralType | types.EnumType):
        yield from (Value(f"{value!r}", msgspec.json.encode(value)) for value in _members(info))
    elif isinstance(info, types.IntType | types.FloatType):
        yield from _numbers(info)
    elif isinstance(info, types.StrType):
        yield from _strings(info)
    elif isinstance(info, types.DateTimeType):
        yield from (
            Value(text, _text(text))
            for text in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z", "1970-01-01T00:00:00+00:00")
        )
    elif depth < _DEPTH:
        yield from _containers(info, depth)
    else:
        yield Value("anything", b"1")


def _members(info: types.LiteralType | types.EnumType) -> list[Any]:
    if isinstance(info, types.LiteralType):
        return list(info.values)
    return [member.value for member in info.cls]


def _numbers(info: types.IntType | types.FloatType) -> Iterator[Value]:
    is_float = isinstance(info, types.FloatType)
    least, most = _ends(info, is_float)
    if least is not None:
        yield Value("its least", _number(least))
    if most is not None:
        yield Value("its most", _number(most))
    if least is not None and most is not None:
        if is_float:
            yield Value("in its middle", _number((least + most) / 2))
        return
    for n in (*WHOLE, *(_BROKEN_FLOATS if is_float else ())):
        if is_float and abs(n) > _FLOAT_MAX:
            continue
        if (least is None or n >= least) and (most is None or n <= most):
            yield Value(f"the number {n}" if abs(n) < 10**30 else "a huge number", _number(n))


def _ends(info: types.IntType | types.FloatType, is_float: bool) -> tuple[float | None, float | None]:
    """Return the least and the most that a number may be; ``None`` where there is no bound."""
    least: float | None = info.ge
    most: float | None = info.le
    if info.gt is not None:
        least = math.nextafter(info.gt, math.inf) if is_float else int(info.gt) + 1
    if info.lt is not None:
        most = math.nextafter(info.lt, -math.inf) if is_float else int(info.lt) - 1
    of = info.multiple_of
    if of:
        least = None if least is None else math.ceil(least / of) * of
        most = None if most is None else math.floor(most / of) * of
    return least, most


def _strings(info: types.StrType) -> Iterator[Value]:
    if info.pattern is not None:
        yield from (Value("by its pattern", _text(text)) for text in _by_pattern(info.pattern))
        return
    least, most = info.min_length or 0, info.max_length
    yield Value("its shortest", _text("x" * least))
    if most is not None:
        yield Value("its longest", _text("x" * most))
        yield Value("its longest, of four bytes a character", _text("\U0001f600" * most))
    for label, text in _TEXTS.items():
        if least <= len(text) <= (len(text) if most is None else most):
            yield Value(label, _text(text))
    if most is None or most >= LONG:
        yield Value("1 MB", b'"' + b"x" * LONG + b'"')


def _by_pattern(pattern: str) -> list[str]:
    """Return some texts of a pattern, as far as it is simple: classes with counts, letters."""
    import re

    made = re.sub(r"\[([^\]^]).*?\]", r"\1", pattern.strip("^$"))
    made = re.sub(r"(.)\{(\d+)(,\d*)?\}", lambda m: m[1] * int(m[2]), made)
    made = re.sub(r"(.)[+*]", r"\1", made)
    return [made] if re.search(pattern, made) else []


def _containers(info: types.Type, depth: int) -> Iterator[Value]:
    if isinstance(info, types.StructType):
        yield from _structs(info, depth)
    elif isinstance(info, types.ListType | types.SetType | types.FrozenSetType | types.VarTupleType):
        least, most = info.min_length or 0, info.max_length
        if not least:
            yield Value("an empty list", b"[]")
        items = list(_allowed(info.item_type, depth + 1))
        for item in items:
            yield Value(f"items: {item.label}", _list([item.raw] * max(least, 1)))
        short = [item.raw for item in items if len(item.raw) < LONG // _MANY] or [b"null"]
        count = _MANY if most is None else most
        if depth == 0:
            yield Value(f"{count} items", _list([short[i % len(short)] for i in range(count)]))
            yield Value(f"{count} of its first items", _list([short[0]] * count))
    elif isinstance(info, types.TupleType):
        parts = [next(_allowed(one, depth + 1)).raw for one in info.item_types]
        yield Value("a tuple", _list(parts))
    elif isinstance(info, types.DictType):
        values = [item for item in _allowed(info.value_type, depth + 1) if len(item.raw) < 10_000]
        keys = [item for item in _allowed(info.key_type, depth + 1) if len(item.raw) < 10_000]
        if not info.min_length:
            yield Value("an empty map", b"{}")
        for item in values:
            yield Value(f"values: {item.label}", b'{"a":' + item.raw + b"}")
        for key in keys:
            name = key.raw if key.raw.startswith(b'"') else _text(key.raw.decode())
            yield Value(f"keys: {key.label}", b"{" + name + b":" + values[0].raw + b"}")
        if depth == 0:
            count = _MANY if info.max_length is None else info.max_length
            entries = (_text(f"k{i}") + b":" + values[i % len(values)].raw for i in range(count))
            yield Value(f"{count} entries", b"{" + b",".join(entries) + b"}")
    else:
        yield from (Value("a text", b'"x"'), Value("a number", b"1"), Value("an object", b"{}"))


def _structs(info: types.StructType, depth: int) -> Iterator[Value]:
    """Yield objects: one for each outermost value of each field, the others being the first that go."""
    fields = {field.encode_name: list(_allowed(field.type, depth + 1)) for field in info.fields}
    usual = {name: values[min(2, len(values) - 1)].raw for name, values in fields.items() if values}
    tag = {} if info.tag_field is None else {info.tag_field: msgspec.json.encode(info.tag)}
    for name, values in fields.items():
        for value in values:
            if len(value.raw) < LONG // 4:
                yield Value(f"{name}: {value.label}", joined({**tag, **usual, name: value.raw}))


def _list(items: list[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"


def joined(fields: dict[str, bytes]) -> bytes:
    """Return an object of JSON of fields that are JSON.

    >>> joined({"a": b"1", "b": b"[]"})
    b'{"a":1,"b":[]}'
    """
    return b"{" + b",".join(_text(name) + b":" + raw for name, raw in fields.items()) + b"}"


def _refused(info: types.Type, depth: int) -> Iterator[Value]:
    if isinstance(info, types.Metadata):
        yield from _refused(info.type, depth)
    elif isinstance(info, types.UnionType):
        for one in info.types:
            yield from _refused(one, depth)
    elif isinstance(info, types.LiteralType | types.EnumType):
        yield from (Value("unknown", b'"no such thing"'), Value("in capitals", b'"NO_SUCH"'))
    elif isinstance(info, types.IntType | types.FloatType):
        least, most = _ends(info, isinstance(info, types.FloatType))
        if least is not None:
            yield Value("below its least", _number(least - 1 if least % 1 == 0 else least * 2 - 1))
        if most is not None:
            yield Value("above its most", _number(most + 1 if most % 1 == 0 else most * 2 + 1))
    elif isinstance(info, types.StrType):
        if info.min_length:
            yield Value("too short", _text("x" * (info.min_length - 1)))
        if info.max_length is not None:
            yield Value("too long", _text("x" * (info.max_length + 1)))
        if info.pattern is not None:
            yield Value("not by its pattern", _text("\u00e9\n!"))
    elif isinstance(info, types.ListType | types.VarTupleType | types.SetType | types.FrozenSetType):
        first = next(_allowed(info.item_type, depth + 1)).raw
        if info.min_length:
            yield Value("too few items", _list([first] * (info.min_length - 1)))
        if info.max_length is not None:
            yield Value("too many items", _list([first] * (info.max_length + 1)))
        if depth < _DEPTH:
            for item in _refused(info.item_type, depth + 1):
                yield Value(f"an item {item.label}", _list([item.raw]))
    elif isinstance(info, types.StructType) and depth < _DEPTH:
        fields = {field.encode_name: field.type for field in info.fields}
        usual = {name: next(_allowed(tp, depth + 1)).raw for name, tp in fields.items()}
        for name, tp in fields.items():
            for value in _refused(tp, depth + 1):
                yield Value(f"{name}: {value.label}", joined({**usual, name: value.raw}))
