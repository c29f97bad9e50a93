"""Broadcast state: a map per declared state, the same in every key group, and how it is packed.

A map that stands is not changed any more. What a control event writes goes into a :class:`Draft`, and what
that leaves is the next version: a state at which the event did not look is the same map in both, and of the
others a value that it did not touch is the same object. So versions cost what changes in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from millrace.state.layout import PendingRow
from millrace.state.specs import StateSpec

#: Where control events that wait for their time stand among the states; no state is called so.
_WAITING: Final = "$waiting"


class BroadcastMap(dict[Any, Any]):
    """The entries of one broadcast state, with the view that was made of them last.

    Attributes:
        view: What was made of the entries.
        made_by: The function that made it; ``None``: no view has been made.
    """

    __slots__ = ("made_by", "view")

    def __init__(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = ()) -> None:
        super().__init__(entries)
        self.made_by: Callable[..., Any] | None = None
        self.view: Any = None


class Draft(BroadcastMap):
    """A map that a control event works on: what it looks at is a copy of its own.

    Args:
        before: The map as it stands.
        copy: Returns entries of the state, packed and unpacked again.
    """

    __slots__ = ("_copy", "touched")

    def __init__(self, before: BroadcastMap, copy: Callable[[dict[Any, Any]], dict[Any, Any]]) -> None:
        super().__init__(before)
        self._copy = copy
        #: The keys of what may differ from the map before; those that are gone, too.
        self.touched: dict[Any, None] = {}
        self.view, self.made_by = before.view, before.made_by

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value at ``key``, which may be changed in place."""
        if key in self and key not in self.touched:
            self._touch(key)
            self.update(self._copy({key: self[key]}))
        return super().get(key, default)

    def items(self) -> Any:
        """Return all entries, whose values may be changed in place."""
        rest = {key: value for key, value in super().items() if key not in self.touched}
        self._touch(*rest)
        self.update(self._copy(rest))
        return super().items()

    def put(self, key: Any, value: Any) -> None:
        """Write a value."""
        self._touch(key)
        self[key] = value

    def remove(self, key: Any) -> None:
        """Forget a key."""
        self._touch(key)
        self.pop(key, None)

    def result(self, before: BroadcastMap) -> BroadcastMap:
        """Return the map that is left, with values as they will be read back.

        Raises:
            Exception: A value that was touched could not be packed, or not be read back.
        """
        if not self.touched:
            return before
        plain = BroadcastMap(dict.items(self))
        plain.update(self._copy({key: plain[key] for key in self.touched if key in plain}))
        return plain

    def _touch(self, *keys: Any) -> None:
        self.touched.update(dict.fromkeys(keys))
        self.made_by = None


class Drafts(dict[str, Draft]):
    """The drafts of all states, each made when it is looked at first.

    Args:
        layout: How the states are packed.
        before: The maps as they stand.
    """

    def __init__(self, layout: BroadcastLayout, before: Mapping[str, BroadcastMap]) -> None:
        super().__init__()
        self._layout = layout
        self._before = before

    def __missing__(self, name: str) -> Draft:
        draft = self[name] = Draft(self._before[name], self._layout.copier(name))
        return draft

    def result(self) -> dict[str, BroadcastMap]:
        """Return the maps that are left.

        Raises:
            Exception: As :meth:`Draft.result`.
        """
        return {
            name: self[name].result(standing) if name in self else standing
            for name, standing in self._before.items()
        }


class BroadcastLayout:
    """Encoder and decoder of a group's broadcast state: a map per declared state, by name.

    There is one per group, so names cost nothing, and states come, go and move as they like. Beside the maps
    stand the control events that wait for their time.
    """

    def __init__(self, specs: Sequence[StateSpec]) -> None:
        self.specs = [s for s in specs if s.kind == "broadcast"]
        self._decoders = {
            s.name: msgspec.msgpack.Decoder(dict[s.key_type, s.type])  # type: ignore[name-defined]
            for s in self.specs
        }
        self._names = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
        self._waiting = msgspec.msgpack.Decoder(list[PendingRow])

    def decode(self, body: bytes | None) -> dict[str, BroadcastMap]:
        """Return name → map; empty maps where nothing was kept yet."""
        kept = {} if body is None else self._names.decode(body)
        maps: dict[str, BroadcastMap] = {}
        for spec in self.specs:
            packed = next((kept[name] for name in (spec.stored_name, *spec.aliases) if name in kept), None)
            maps[spec.name] = BroadcastMap(() if packed is None else self._decoders[spec.name].decode(packed))
        return maps

    def copier(self, name: str) -> Callable[[dict[Any, Any]], dict[Any, Any]]:
        """Return what packs entries of a state and unpacks them again."""
        decode = self._decoders[name].decode
        return lambda entries: decode(msgspec.msgpack.encode(entries))

    def waiting(self, body: bytes | None) -> list[PendingRow]:
        """Return the control events that wait for their time, in its order."""
        packed = None if body is None else self._names.decode(body).get(_WAITING)
        return [] if packed is None else self._waiting.decode(packed)

    def encode(self, maps: Mapping[str, BroadcastMap], waiting: Sequence[PendingRow] = ()) -> bytes:
        """Pack the maps, and the control events that wait for their time."""
        packed: dict[str, Any] = {s.stored_name: maps[s.name] for s in self.specs}
        if waiting:
            packed[_WAITING] = waiting
        return msgspec.msgpack.encode(packed)


def renamed_maps(body: bytes, names: Mapping[str, str]) -> bytes:
    """Return packed broadcast state with other names of states.

    >>> layout = BroadcastLayout([StateSpec("broadcast", int, key_type=str, name="limits")])
    >>> body = msgspec.msgpack.encode({"rules": {"low": 3}})
    >>> dict(layout.decode(renamed_maps(body, {"rules": "limits"}))["limits"])
    {'low': 3}
    """
    kept = msgspec.msgpack.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.msgpack.encode({names.get(name, name): packed for name, packed in kept.items()})
