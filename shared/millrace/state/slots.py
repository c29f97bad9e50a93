"""The slot of one state in an entry: its packed type, its empty value, and what in it has expired.

What carries a time to live is kept as a pair (expiry, what). Values and accumulators are pairs as a
whole; maps and lists pair each of their entries. A versioned state is a list of (valid from, value)
by time; a value of nil is a deletion.
"""

from __future__ import annotations

from types import GenericAlias
from typing import Any, Final

import msgspec

from millrace.state.specs import StateSpec
from millrace.time import NEVER, NO_WATERMARK

#: Expiries above this are not times: ``NEVER - ttl`` was written before processing time was known,
#: and starts at the first tick.
UNSTARTED: Final = 2**62

#: How a slot is packed, as it stands in a layout's schema.
#: ``bare``: always a value; ``optional``: nil for none; ``expiring``: pairs, or nil for none.
BARE, OPTIONAL, EXPIRING = "bare", "optional", "expiring"


def slot_form(spec: StateSpec) -> str:
    """Return how the slot of a state is packed."""
    if spec.expires:
        return EXPIRING
    if spec.kind in ("map", "list", "versioned"):
        return BARE
    return BARE if spec.kind == "value" and spec.default() is not None else OPTIONAL


def slot_field(spec: StateSpec) -> tuple[Any, Any]:
    """Return the type and default of a state's slot."""
    nothing = empty_slot(spec)
    default = None if nothing is None else msgspec.field(default_factory=lambda: empty_slot(spec))
    return slot_type(spec, slot_form(spec)), default


def slot_type(spec: StateSpec, form: str) -> Any:
    """Return the type of the slot of a state, packed in ``form``."""
    tp: Any = spec.type
    if spec.kind == "versioned":
        tp = GenericAlias(list, (GenericAlias(tuple, (int, tp | None)),))
    if form == EXPIRING:
        tp = GenericAlias(tuple, (int, tp))
    if spec.kind == "map":
        return GenericAlias(dict, (spec.key_type, tp))
    if spec.kind == "list":
        return GenericAlias(list, (tp,))
    return tp if form == BARE else tp | None


def empty_slot(spec: StateSpec) -> Any:
    """Return the slot of a state that nothing was written to."""
    if spec.kind == "map":
        return {}
    if spec.kind == "list":
        return []
    if spec.expires:
        return None
    return [] if spec.kind == "versioned" else spec.default()


def expire_slot(spec: StateSpec, slot: Any, line: int, now: int) -> tuple[Any, int]:
    """Remove from a slot what expired at or before ``line``.

    Args:
        spec: The state.
        slot: Its slot; maps and lists are changed in place.
        line: Time on the clock of the state's time to live, ms.
        now: The same clock's present, ms: what was written before the clock was known starts here;
            ``NO_WATERMARK`` while it is not known.

    Returns:
        The slot, and the earliest expiry that is left in it (ms, ``NEVER`` without one).
    """
    if spec.kind == "map":
        for key in [k for k, v in slot.items() if v[0] <= line]:
            del slot[key]
        for key in [k for k, v in slot.items() if v[0] > UNSTARTED]:
            slot[key] = (started(slot[key][0], now), slot[key][1])
        return slot, _first([v[0] for v in slot.values()])
    if spec.kind == "list":
        slot[:] = [(started(v[0], now), v[1]) for v in slot if v[0] > line]
        return slot, _first([v[0] for v in slot])
    if slot is None or slot[0] <= line:
        return None, NEVER
    if slot[0] > UNSTARTED:
        slot = (started(slot[0], now), slot[1])
    return slot, _first([slot[0]])


def started(expiry: int, now: int) -> int:
    """Return the expiry of what was written before its clock was known, if it is known now."""
    known = now != NO_WATERMARK
    return now + (NEVER - expiry) if known and UNSTARTED < expiry < NEVER else expiry


def _first(expiries: list[int]) -> int:
    """Return the earliest expiry; what waits for its clock is to be looked at as soon as it is known."""
    if not expiries:
        return NEVER
    if any(UNSTARTED < e < NEVER for e in expiries):
        return NO_WATERMARK
    return min(expiries)


def versions_of(spec: StateSpec, slot: Any) -> list[tuple[int, Any]] | None:
    """Return the versions in the slot of a versioned state; ``None`` where there is none."""
    if not spec.expires:
        return slot  # type: ignore[no-any-return]
    return None if slot is None else slot[1]


def next_forgetting(versions: list[tuple[int, Any]], history_ms: int) -> int:
    """Return when (ms) the observed time makes the first version go, ``NEVER`` if it stays."""
    if versions and versions[0][1] is None:
        return versions[0][0] + history_ms
    return versions[1][0] + history_ms if len(versions) > 1 else NEVER
