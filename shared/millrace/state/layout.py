"""How the state of one key is packed: a typed MessagePack array, built from the declarations.

An *entry* is everything that is kept for one key: the pending timers, then a slot per declared
state. It is encoded as a MessagePack array whose fields follow the order of the layout, so that a
field added at the end is filled with its default when an older entry is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.state.specs import StateDeclarationError, StateSpec, StateTypeError
from millrace.time import NEVER

#: Version of the packed form; part of the checkpoint's contract.
ENCODING_VERSION = 1


class TimerRecord(msgspec.Struct, array_like=True, gc=False):
    """A pending timer of one key.

    Attributes:
        at: Event time at which it is due, ms.
        name: Its name; a key has at most one pending timer of a name.
        on_key_time: Whether the key's own later event may fire it before the watermark does.
        origin: 64-bit hash of the event or timer that set it: tells apart two timers of one name
            and time, so that their outputs have different identities.
    """

    at: int
    name: str
    on_key_time: bool = False
    origin: int = 0


class EntryLayout:
    """Encoder, decoder and empty value of a process's entries.

    Args:
        specs: The declared value and map states in order.
        owner: Name of the process, for messages.
    """

    def __init__(self, specs: Sequence[StateSpec], *, owner: str = "a process") -> None:
        self.owner = owner
        self.specs = [s for s in specs if s.kind != "broadcast"]
        # The timers stand first, so that a state may be added at the end.
        fields: list[tuple[str, Any, Any]] = [
            ("timers_", list[TimerRecord], msgspec.field(default_factory=list))
        ]
        for spec in self.specs:
            fields.append((spec.name, *_slot(spec)))
        self.type = msgspec.defstruct("Entry", fields, array_like=True)
        try:
            self._decoder = msgspec.msgpack.Decoder(self.type)
        except TypeError as error:
            raise StateDeclarationError(
                f"a declared state has a type that cannot be kept: {error}"
            ) from error
        self._encoder = msgspec.msgpack.Encoder()
        self._expiring = [s for s in self.specs if s.ttl_ms is not None]
        self.has_ttl = bool(self._expiring)
        #: How long an expired value may stay before the sweep, ms (a 16th of the shortest life, at
        #: least a minute): the price of not visiting a page for every single value.
        self.sweep_slack_ms = max(
            60_000, min((s.ttl_ms or NEVER for s in self._expiring), default=NEVER) // 16
        )
        self.empty = self.type()

    def new(self) -> Any:
        """Return a fresh entry with every slot at its default."""
        return self.type()

    def encode(self, entry: Any) -> bytes:
        """Pack an entry.

        Raises:
            StateTypeError: A value is of a type that cannot be packed at all.
        """
        try:
            return self._encoder.encode(entry)
        except (TypeError, OverflowError, UnicodeEncodeError) as error:
            raise StateTypeError(f"{self.owner} keeps state that cannot be kept: {error}") from error

    def check(self, body: bytes, key: str) -> None:
        """Refuse a packed entry that could not be read back: kept, it would end its checkpoint.

        Raises:
            StateTypeError: A value is not of its declared type.
        """
        try:
            self._decoder.decode(body)
        except msgspec.DecodeError as error:
            names = ["timers", *(s.name for s in self.specs)]
            what = re.sub(r"\$\[(\d+)\]", lambda m: names[int(m[1])], str(error), count=1)
            raise StateTypeError(
                f"{self.owner} keeps something else than it declares for key '{key}': {what}"
            ) from error

    def decode(self, body: bytes | msgspec.Raw) -> Any:
        """Unpack an entry; raises ``msgspec.ValidationError`` where the bytes are not one."""
        return self._decoder.decode(body)

    def is_empty(self, entry: Any) -> bool:
        """Return whether nothing is kept, so that the key itself can be forgotten."""
        return bool(entry == self.empty)

    def purge(self, entry: Any, now: int) -> int:
        """Remove values that expired at ``now`` (ms); return the earliest expiry that is left."""
        earliest = NEVER
        for spec in self._expiring:
            slot = getattr(entry, spec.name)
            if spec.kind == "value":
                if slot is None:
                    continue
                if slot[0] <= now:
                    setattr(entry, spec.name, None)
                else:
                    earliest = min(earliest, slot[0])
                continue
            for key in [k for k, v in slot.items() if v[0] <= now]:
                del slot[key]
            earliest = min(earliest, min((v[0] for v in slot.values()), default=NEVER))
        return earliest


def _slot(spec: StateSpec) -> tuple[Any, Any]:
    """Return the type and default of a state's slot in the entry."""
    if spec.kind == "map":
        kept = tuple[int, spec.type] if spec.ttl_ms is not None else spec.type  # type: ignore[name-defined]
        return dict[spec.key_type, kept], msgspec.field(default_factory=dict)  # type: ignore[name-defined,valid-type]
    if spec.ttl_ms is not None:
        return tuple[int, spec.type] | None, None  # type: ignore[name-defined]
    default = spec.default()
    if default is None:
        return spec.type | None, None
    return spec.type, msgspec.field(default_factory=spec.default)


class BroadcastLayout:
    """Encoder and decoder of a group's broadcast state: one dict per declared state."""

    def __init__(self, specs: Sequence[StateSpec]) -> None:
        self.specs = [s for s in specs if s.kind == "broadcast"]
        fields: list[tuple[str, Any, Any]] = [
            (s.name, dict[s.key_type, s.type], msgspec.field(default_factory=dict))  # type: ignore[name-defined]
            for s in self.specs
        ]
        self.type = msgspec.defstruct("Broadcast", fields, array_like=True)
        self._decoder = msgspec.msgpack.Decoder(self.type)

    def decode(self, body: bytes | None) -> dict[str, dict[Any, Any]]:
        """Return name → map; empty maps where nothing was kept yet."""
        kept = self.type() if body is None else self._decoder.decode(body)
        return {s.name: getattr(kept, s.name) for s in self.specs}

    def encode(self, maps: dict[str, dict[Any, Any]]) -> bytes:
        """Pack the maps."""
        return msgspec.msgpack.encode([maps[s.name] for s in self.specs])
