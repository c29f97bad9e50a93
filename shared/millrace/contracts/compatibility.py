"""Whether readers of one version of a contract can read what writers of another version write.

Fields that a reader does not know are ignored (a JSON Schema is open unless it says otherwise), and fields
that it requires must be written. A name that is new in a version is taken as never used before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from millrace.contracts.schema import meaning

_ANY: Final = "any value"
#: Keyword of a lower bound → that of the same bound, exclusive; and of upper ones.
_LOWER: Final = {"minimum": "exclusiveMinimum", "minLength": "", "minItems": "", "minProperties": ""}
_UPPER: Final = {"maximum": "exclusiveMaximum", "maxLength": "", "maxItems": "", "maxProperties": ""}
_BOUNDS: Final = frozenset({*_LOWER, *_LOWER.values(), *_UPPER, *_UPPER.values()} - {""})
#: Rules of which nothing but equality says that one is the other's.
_EQUAL: Final = ("pattern", "format", "multipleOf", "contentEncoding", "uniqueItems")
#: What is compared; a difference in anything else is a break.
_KNOWN: Final = frozenset(
    {
        *("type", "enum", "anyOf", "properties", "required", "additionalProperties", "items", "prefixItems"),
        "propertyNames",
        *("default", *_LOWER, *_LOWER.values(), *_UPPER, *_UPPER.values(), *_EQUAL),
    }
)


class Mode(StrEnum):
    """Which versions must understand each other.

    ``backward``: the new version reads what the old one wrote (consumers upgrade first, replays work);
    ``forward``: the old version reads what the new one writes (producers upgrade first); ``full``: both.
    """

    backward = "backward"
    forward = "forward"
    full = "full"


@dataclass(frozen=True)
class Break:
    """A reason why two versions do not understand each other.

    Attributes:
        direction: ``backward`` or ``forward``.
        where: Path of the field, e.g. ``reasons[].weight``; empty for the event itself.
        why: The reason, in one line.
    """

    direction: Mode
    where: str
    why: str

    def __str__(self) -> str:
        return f"not {self.direction} compatible: {self.where or 'the event'}: {self.why}"


def breaks(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    mode: Mode = Mode.backward,
    *,
    names: tuple[str, str] = ("the old version", "the new version"),
) -> list[Break]:
    """Return why two versions of a contract do not understand each other; empty if they do.

    Args:
        old: JSON Schema of the earlier version.
        new: That of the later one.
        mode: Who must read whom.
        names: What the reasons call them.

    Example:
        >>> old = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        >>> new = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
        >>> breaks(old, new)
        []
        >>> [b.why for b in breaks(old, new, Mode.forward, names=("v1", "v2"))]
        ['v2 writes number, v1 reads integer']
    """
    before, after = meaning(old), meaning(new)
    found: list[Break] = []
    if mode in (Mode.backward, Mode.full):
        pairs = _Reading(reader=names[1], writer=names[0]).refusals(after, before, "")
        found += [Break(Mode.backward, where, why) for where, why in pairs]
    if mode in (Mode.forward, Mode.full):
        pairs = _Reading(reader=names[0], writer=names[1]).refusals(before, after, "")
        found += [Break(Mode.forward, where, why) for where, why in pairs]
    return found


def without_bounds(schema: Any) -> Any:
    """Return a schema that says the same but for bounds of numbers, lengths and counts.

    >>> without_bounds({"type": "integer", "minimum": 3, "maximum": 9})
    {'type': 'integer'}
    """
    if isinstance(schema, list):
        return [without_bounds(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {k: without_bounds(v) for k, v in schema.items() if k not in _BOUNDS and k != "properties"}
    if "properties" in schema:  # names, not keywords
        found["properties"] = {name: without_bounds(of) for name, of in schema["properties"].items()}
    return found


Refusals = list[tuple[str, str]]


@dataclass(frozen=True)
class _Reading:
    """One direction: what a reader refuses of what a writer may write."""

    reader: str
    writer: str

    def refusals(self, reads: Any, writes: Any, at: str) -> Refusals:
        accepted = _variants(reads)
        found: Refusals = []
        for one in _variants(writes):
            tries = [self._one(other, one, at) for other in accepted]
            if any(not refused for refused in tries):
                continue
            # Of a union's members, the reasons of the nearest; where none is of the kind, that alone.
            same = [t for t, other in zip(tries, accepted, strict=True) if _fits(other, one)]
            found += _nearest(same) if same else self._kinds(accepted, one, at)
        return found

    def _kinds(self, accepted: list[Any], one: Any, at: str) -> Refusals:
        known = " or ".join(dict.fromkeys(_kind(a) for a in accepted)) or "nothing"
        return [(at, f"{self.writer} writes {_kind(one)}, {self.reader} reads {known}")]

    def _one(self, reads: Any, writes: Any, at: str) -> Refusals:
        kind = _kind(reads)
        strange = [
            (at, f"{self.reader} has {name}, which is not compared: it must be as in {self.writer}")
            for name in reads
            if name not in _KNOWN and reads[name] != writes.get(name)
        ]
        if strange:
            return strange
        if kind == _ANY and "enum" not in reads:
            return []
        if not _fits(reads, writes):
            return self._kinds([reads], writes, at)
        found = self._values(reads, writes, at) + self._bounds(reads, writes, at)
        if kind == "array":
            found += self._items(reads, writes, at)
        if kind == "object":
            found += self._fields(reads, writes, at)
        return found

    def _values(self, reads: Any, writes: Any, at: str) -> Refusals:
        found: Refusals = []
        if "enum" in reads:
            if "enum" not in writes:
                some = ", ".join(json.dumps(v) for v in reads["enum"])
                return [(at, f"{self.writer} writes any {_kind(writes)}, {self.reader} reads only {some}")]
            gone = [json.dumps(v) for v in writes["enum"] if v not in reads["enum"]]
            if gone:
                found.append((at, f"{self.writer} writes {', '.join(gone)}, which {self.reader} refuses"))
        for rule in _EQUAL:
            wanted = reads.get(rule)
            if wanted in (None, False) or wanted == writes.get(rule):
                continue
            if rule == "pattern" and "enum" in writes and all(re.search(wanted, v) for v in writes["enum"]):
                continue
            kept = f"{rule} {writes[rule]}" if rule in writes else f"no {rule}"
            found.append((at, f"{self.writer} keeps {kept}, {self.reader} demands {rule} {wanted}"))
        return found

    def _bounds(self, reads: Any, writes: Any, at: str) -> Refusals:
        found: Refusals = []
        for bounds, sign in ((_LOWER, 1), (_UPPER, -1)):
            for closed, exclusive in bounds.items():
                wanted = _bound(reads, closed, exclusive, sign)
                if wanted is None:
                    continue
                kept = _bound(writes, closed, exclusive, sign)
                if kept is None and "enum" in writes:
                    sizes = [len(v) if isinstance(v, str) else v for v in writes["enum"]]
                    kept = (min(sign * size for size in sizes), 0)
                if kept is None or kept < wanted:
                    name = exclusive if wanted[1] else closed
                    told = "no limit" if kept is None else f"{sign * kept[0]:g}"
                    found.append(
                        (at, f"{self.writer} keeps {told}, {self.reader} demands {name} {sign * wanted[0]:g}")
                    )
        return found

    def _items(self, reads: Any, writes: Any, at: str) -> Refusals:
        wanted, kept = reads.get("prefixItems"), writes.get("prefixItems")
        if wanted or kept:
            if len(wanted or ()) != len(kept or ()):
                return [(at, f"{self.writer} writes {len(kept or ())} parts, {self.reader} reads "
                             f"{len(wanted or ())}")]  # fmt: skip
            pairs = zip(wanted, kept, strict=True)
            return [r for n, (a, b) in enumerate(pairs) for r in self.refusals(a, b, f"{at}[{n}]")]
        return self.refusals(reads.get("items", {}), writes.get("items", {}), f"{at}[]")

    def _fields(self, reads: Any, writes: Any, at: str) -> Refusals:
        found: Refusals = []
        known, written = reads.get("properties", {}), writes.get("properties", {})
        always = writes.get("required", ())
        for name in reads.get("required", ()):
            if name not in always:
                how = "may leave it out" if name in written else "does not have it"
                found.append(
                    (_path(at, name), f"{self.writer} {how}, {self.reader} requires it: give it a default")
                )
        if "propertyNames" in reads:
            names = [{"type": "string", **of.get("propertyNames", {})} for of in (reads, writes)]
            found += self.refusals(names[0], names[1], _path(at, "*"))
        rest, kept = reads.get("additionalProperties", True), writes.get("additionalProperties", True)
        for name, value in written.items():
            if name in known:
                found += self.refusals(known[name], value, _path(at, name))
            elif rest is False:
                found.append((_path(at, name), f"{self.writer} writes it, {self.reader} takes no others"))
            elif isinstance(rest, dict):
                found += self.refusals(rest, value, _path(at, name))
        if isinstance(rest, dict) and kept is not False:
            found += self.refusals(rest, kept if isinstance(kept, dict) else {}, f"{at}{{}}")
        return found


def _variants(node: Any) -> list[Any]:
    """Return the alternatives of a schema, each of one kind."""
    if isinstance(node, bool):
        return [{}] if node else []  # anything, nothing
    if "anyOf" in node:
        return [variant for part in node["anyOf"] for variant in _variants(part)]
    if isinstance(node.get("type"), list):
        return [{**node, "type": kind} for kind in node["type"]]
    if "enum" in node and "type" not in node:
        kinds: dict[str, list[Any]] = {}
        for value in node["enum"]:
            kinds.setdefault(_kind_of(value), []).append(value)
        return [{"type": kind, **node, "enum": values} for kind, values in kinds.items()]
    return [node]


def _kind(node: Any) -> str:
    return str(node.get("type", _ANY))


def _nearest(tries: list[Refusals]) -> Refusals:
    return min(tries, key=len)


def _fits(reads: Any, writes: Any) -> bool:
    return _kind(reads) == _kind(writes) or (_kind(reads), _kind(writes)) == ("number", "integer")


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def _bound(node: Any, closed: str, exclusive: str, sign: int) -> tuple[float, int] | None:
    """Return a bound so that the larger is the stricter: value times sign, and whether it is excluded."""
    found = [(sign * node[closed], 0)] if closed in node else []
    if exclusive and exclusive in node:
        found.append((sign * node[exclusive], 1))
    return max(found, default=None)


def _path(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
