"""Schema evolution of state: which changes of a declaration are taken, and which are refused.

A state may be added, removed, moved, or renamed by ``alias``; its time to live may change, come and go.
A type may be widened (int → float, T → T | None, one more member of a union, an enumeration or a
literal); fields of a struct may be added with a default, removed, and widened. Everything else is named
before anything has been read: by the contract of a checkpoint, and by every key group whose pages were
written under other declarations.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

from millrace.state.schema import CONSTRAINTS

#: What a description (:func:`millrace.state.schema.describe_type`) can be of.
_KINDS: Final = (
    "scalar", "struct", "within", "union", "enum", "literal", "list", "set", "frozenset", "tuple", "tuple_of",
    "dict", "custom",
)  # fmt: skip


def state_differences(kept: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what keeps the states described by ``now`` from reading those of ``kept``.

    Args:
        kept: Name → description of the states that were written.
        now: Name → description of the states that will read them.

    Returns:
        A text per difference; none where everything can be read.
    """
    found: list[str] = []
    readers: dict[str, str] = {}
    for name, described in now.items():
        before = described.get("alias", ())
        source = source_name(name, before, kept)
        if source is None:
            continue
        if source in readers:
            found.append(f"states.{name} and states.{readers[source]} both read what was '{source}'")
        readers[source] = name
        gone = [a for a in kept[source].get("alias", ()) if a not in (*before, name)]
        if gone:
            # Pages that nobody has touched since are still written under the older name.
            found.append(f"states.{name}.alias no longer has '{gone[0]}', under which older entries are kept")
        found += _state_differences(f"states.{name}", kept[source], described)
    return found


def source_name(name: str, aliases: Iterable[str], kept: Container[str]) -> str | None:
    """Return the name under which a state was kept: its own, else the first of its aliases."""
    return next((n for n in (name, *aliases) if n in kept), None)


def _state_differences(at: str, kept: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    found = [
        f"{at}.{what} was {json.dumps(kept.get(what))}, is now {json.dumps(now.get(what))}"
        for what in ("kind", "key_type")
        if kept.get(what) != now.get(what)
    ]
    if kept.get("paged") and not now.get("paged"):
        found.append(f"{at} was paged, and its items stand in parts of their own: keep `paged=True`")
    clocks = kept.get("ttl_time"), now.get("ttl_time")
    if None not in clocks and clocks[0] != clocks[1]:
        found.append(f"{at}.ttl_time was {json.dumps(clocks[0])}, is now {json.dumps(clocks[1])}")
    return found + _TypeDifferences().find(f"{at}.type", kept.get("type"), now.get("type"))


class _TypeDifferences:
    """Finds why values of one described type cannot be read as another."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._now: dict[str, Any] = {}
        self._open: set[str] = set()

    def find(self, at: str, kept: Any, now: Any) -> list[str]:
        kept, now = _resolved(kept, self._kept), _resolved(now, self._now)
        if kept == now or now == "any":
            return []
        kept_members, members = _members(kept), _members(now)
        if len(kept_members) > 1 or len(members) > 1:
            return self._find_in_union(at, kept, now)
        if _kind(kept) != _kind(now):
            widened = (_kind(kept), _kind(now)) == ("int", "float")
            return _limits(at, kept, now) if widened else [_was(at, kept, now)]
        return self._find_inside(at, kept, now)

    def _find_in_union(self, at: str, kept: Any, now: Any) -> list[str]:
        """Every member that may have been written must be read by one that there is."""
        members = _members(now)
        for member in _members(kept):
            tries = [self.find(at, member, one) for one in members]
            if all(tries):
                close = [t for t, one in zip(tries, members, strict=True) if _kind(one) == _kind(member)]
                return close[0] if len(close) == 1 else [_was(at, kept, now)]
        return []

    def _find_inside(self, at: str, kept: Any, now: Any) -> list[str]:
        if not isinstance(kept, dict) or not isinstance(now, dict):
            return _limits(at, kept, now)
        kind = _kind(kept)
        if kind == "struct":
            return self._find_in_fields(at, kept, now)
        if kind in ("enum", "literal"):
            values = "values" if kind == "enum" else "literal"
            gone = [v for v in kept[values] if v not in now[values]]
            return [f"{at} can no longer be {', '.join(map(json.dumps, gone))}"] if gone else []
        if kind in ("list", "set", "frozenset", "tuple"):
            return self.find(f"{at}[]", kept[kind], now[kind]) + _limits(at, kept, now)
        if kind == "dict":
            keys = [] if kept["dict"][0] == now["dict"][0] else [_was(at, kept, now)]
            return keys + self.find(f"{at}[]", kept["dict"][1], now["dict"][1]) + _limits(at, kept, now)
        if kind == "tuple_of" and len(kept[kind]) == len(now[kind]):
            pairs = enumerate(zip(kept[kind], now[kind], strict=True))
            return [text for i, (a, b) in pairs for text in self.find(f"{at}[{i}]", a, b)]
        return (
            _limits(at, kept, now)
            if kind in (kept.get("scalar"), now.get("scalar"))
            else [_was(at, kept, now)]
        )

    def _find_in_fields(self, at: str, kept: dict[str, Any], now: dict[str, Any]) -> list[str]:
        pair = json.dumps([kept, now], default=repr)
        if pair in self._open:
            return []  # a struct within itself: what is wrong with it is found further out
        self._open.add(pair)
        self._kept[kept["struct"]], self._now[now["struct"]] = kept, now
        try:
            return self._compare_fields(at, kept, now)
        finally:
            self._open.discard(pair)

    def _compare_fields(self, at: str, kept: dict[str, Any], now: dict[str, Any]) -> list[str]:
        if kept["form"] != now["form"]:
            return [f"{at} was packed as {kept['form']}, is now packed as {now['form']} (array_like)"]
        if kept.get("tag") != now.get("tag"):
            return [f"{at}.tag was {json.dumps(kept.get('tag'))}, is now {json.dumps(now.get('tag'))}"]
        compare = _array_fields if kept["form"] == "array" else _map_fields
        return compare(self, at, kept, now)


def _map_fields(types: _TypeDifferences, at: str, kept: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Fields by name: they may come with a default, go and move."""
    before = {f[0]: f for f in kept["fields"]}
    found: list[str] = []
    for name, tp, *default in now["fields"]:
        if name in before:
            found += types.find(f"{at}.{name}", before[name][1], tp)
            if kept.get("omit_defaults") and len(before[name]) > len([name, tp, *default]):
                found.append(
                    f"{at}.{name} has no default any more, and was left out where it was the default"
                )
        elif not default:
            found.append(f"{at}.{name} is new and has no default")
    gone = [name for name in before if name not in {f[0] for f in now["fields"]}]
    if gone and now.get("forbid_unknown_fields"):
        found.append(f"{at}.{gone[0]} is gone, and {now['struct']} forbids unknown fields")
    return found


def _array_fields(types: _TypeDifferences, at: str, kept: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Fields by position: they may come with a default, and go, at the end only."""
    found: list[str] = []
    for place, (name, tp, *default) in enumerate(now["fields"]):
        if place < len(kept["fields"]):
            before = kept["fields"][place]
            if before[0] != name:
                return [
                    f"{at} is packed by position (array_like): field {place} was '{before[0]}', is now "
                    f"'{name}'; fields may come and go at the end only"
                ]
            found += types.find(f"{at}.{name}", before[1], tp)
        elif not default:
            found.append(f"{at}.{name} is new and has no default")
    if len(kept["fields"]) > len(now["fields"]) and now.get("forbid_unknown_fields"):
        gone = kept["fields"][len(now["fields"])][0]
        found.append(f"{at}.{gone} is gone, and {now['struct']} forbids unknown fields")
    return found


def _resolved(described: Any, known: Mapping[str, Any]) -> Any:
    """Return the struct that a description within itself stands for."""
    if isinstance(described, dict) and "within" in described:
        return known.get(described["within"], described)
    return described


def _members(described: Any) -> list[Any]:
    if isinstance(described, dict) and "union" in described:
        return list(described["union"])
    return [described]


def _kind(described: Any) -> str:
    if not isinstance(described, dict):
        return str(described)
    # By name: a description that was read from a contract has its parts in another order.
    kind = next((name for name in _KINDS if name in described), "")
    return str(described["scalar"]) if kind == "scalar" else kind


def _limits(at: str, kept: Any, now: Any) -> list[str]:
    """Return the constraints that values of the kept type need not meet."""
    limits = {c: now[c] for c in CONSTRAINTS if c in now} if isinstance(now, dict) else {}
    before = kept if isinstance(kept, dict) else {}
    new = [f"{c}={v!r}" for c, v in limits.items() if before.get(c) != v]
    return [f"{at} has a new limit ({', '.join(new)}) that older values need not meet"] if new else []


def _was(at: str, kept: Any, now: Any) -> str:
    return f"{at} was {_short(kept)}, is now {_short(now)}"


def _short(described: Any) -> str:
    if isinstance(described, dict) and "struct" in described:
        return f'"{described["struct"]}"'
    return json.dumps(described, default=repr)
