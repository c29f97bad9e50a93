"""Entries of keys as wholes, for who gives them other keys: maps and lists in parts are one thing again.

What stands in parts is written back into the entry of its key, where the next callback of the key finds it
and puts it into parts, as it does with what an earlier version has kept there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from millrace.host.groups import decode_key, encode_key
from millrace.state.layout import EntryLayout
from millrace.state.paged import EXTENT, owner_of

#: Parts of the key → its entry: a struct with a field for each state, its timers and what waits.
Entries: TypeAlias = dict[tuple[str, ...], Any]


def gathered(layout: EntryLayout, cells: Iterable[tuple[str, bytes | msgspec.Raw]]) -> Entries:
    """Return the entries of a process by key.

    Args:
        layout: How they are packed.
        cells: Text of the key, or of a part of it, and the packed entry, in any order.
    """
    found: Entries = {}
    parts: list[tuple[str, str, int, Any]] = []
    for text, body in cells:
        owner, part = owner_of(text)
        if part is None:
            found[decode_key(text)] = layout.decode(body)
        else:
            parts.append((owner, *part, layout.decode(body)))
    names = {spec.stored_name: spec.name for spec in layout.specs}
    for owner, state, _, of_part in sorted(parts, key=lambda p: p[:3]):
        slot, items = (getattr(e, names[state]) for e in (found[decode_key(owner)], of_part))
        if isinstance(slot, dict):
            slot.update(items)
        else:
            slot.extend(items)
    for entry in found.values():
        for name in names.values():
            if name.endswith(EXTENT):
                setattr(entry, name, None)
    return found


def scattered(layout: EntryLayout, entries: Mapping[tuple[str, ...], Any]) -> Iterator[tuple[str, Any]]:
    """Yield the texts of the keys and their entries, but for those in which nothing is kept."""
    for key, entry in entries.items():
        if not layout.is_empty(entry):
            yield encode_key(key), entry
