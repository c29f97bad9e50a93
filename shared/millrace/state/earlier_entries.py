"""Entries of earlier generations: read under the declarations that they were written under.

An older entry is decoded by a type of its own, with the slots where they were and the types that the
states have now, as far as they still exist; then its slots move to where they belong. The pages that
are read are written anew, so every entry comes this way once.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from millrace.errors import UserError
from millrace.state.cells import StateCorrupted
from millrace.state.evolution import source_name, state_differences
from millrace.state.layout import ENGINE_SLOTS, EntryLayout
from millrace.state.schema import describe_state
from millrace.state.slots import BARE, EXPIRING, OPTIONAL, empty_slot, slot_form, slot_type
from millrace.state.specs import StateSpec
from millrace.time import NEVER, NO_WATERMARK


class StateSchemaMismatch(UserError):
    """The kept state was written under declarations that these cannot read."""


class OlderLayout:
    """Reader of entries of one older schema.

    Args:
        layout: How entries are packed now.
        schema: What the slots were (:func:`millrace.state.schema.schema_of`).

    Raises:
        StateSchemaMismatch: A state cannot be read as it is declared now; the message names all.
        StateCorrupted: The schema is not one.
    """

    def __init__(self, layout: EntryLayout, schema: bytes) -> None:
        self._layout = layout
        try:
            slots = [(name, form, dict(state)) for name, form, state in json.loads(schema)]
        except (ValueError, TypeError) as error:
            raise StateCorrupted(f"a schema of the kept state cannot be read: {error}") from error
        kept = {name: state for name, _, state in slots}
        differences = state_differences(kept, {s.stored_name: describe_state(s) for s in layout.specs})
        if differences:
            raise StateSchemaMismatch(
                f"{layout.owner} cannot read the state that was kept: {'; '.join(differences)}. "
                "Go back to the declarations that wrote it, or give the state a new name"
            )
        forms = {name: form for name, form, _ in slots}
        sources = {s.name: source_name(s.stored_name, s.aliases, kept) for s in layout.specs}
        #: State → the name it was kept under, and the form it was packed in.
        self._moves = [(s, old, forms[old]) for s in layout.specs if (old := sources[s.name]) is not None]
        #: Whether a state lives for a limited time now and did not: then also what nobody touches
        #: must be brought over.
        self.begins_lives = any(form != EXPIRING and s.expires for s, _, form in self._moves)
        readers = {old: slot_type(s, form) for s, old, form in self._moves}
        fields: list[Any] = list(ENGINE_SLOTS)
        # What no state claims is stepped over unread.
        fields += [(f"s{i}", readers.get(name, msgspec.Raw)) for i, (name, _, _) in enumerate(slots)]
        self._places = {name: f"s{i}" for i, (name, _, _) in enumerate(slots)}
        self._decoder = msgspec.msgpack.Decoder(msgspec.defstruct("Older", fields, array_like=True))

    def decode(self, body: bytes | msgspec.Raw, now: int, processing_now: int) -> Any:
        """Return the entry as it stands now.

        Args:
            body: The packed entry.
            now: The watermark, ms: a life that is new to a state begins here.
            processing_now: The last tick of processing time, ms.
        """
        older = self._decoder.decode(body)
        entry = self._layout.new()
        for name, _ in ENGINE_SLOTS:
            setattr(entry, name, getattr(older, name))
        for spec, old, form in self._moves:
            slot = getattr(older, self._places[old])
            time = processing_now if spec.on_processing_time else now
            setattr(entry, spec.name, _move(spec, slot, form, time))
        return entry


def _move(spec: StateSpec, slot: Any, was: str, now: int) -> Any:
    """Return a slot that was packed in the form ``was`` in the form that its state has now."""
    form = slot_form(spec)
    if was == form:
        return slot
    if spec.kind in ("map", "list"):
        return _move_items(spec, slot, form, now)
    if was == EXPIRING:  # an expiry goes
        slot = None if slot is None or slot[0] <= now else slot[1]
    nothing = slot is None or (spec.kind == "versioned" and not slot)
    if nothing:
        return empty_slot(spec)
    if form == EXPIRING:
        return _begun(spec, now), slot
    assert form in (BARE, OPTIONAL), form  # noqa: S101
    return slot


def _move_items(spec: StateSpec, slot: Any, form: str, now: int) -> Any:
    if form == EXPIRING:
        begun = _begun(spec, now)
        if spec.kind == "map":
            return {key: (begun, value) for key, value in slot.items()}
        return [(begun, value) for value in slot]
    if spec.kind == "map":
        return {key: value for key, (expiry, value) in slot.items() if expiry > now}
    return [value for expiry, value in slot if expiry > now]


def _begun(spec: StateSpec, now: int) -> int:
    """Return when what had no life so far expires: it begins now, or with the first tick.

    Without any watermark yet, event time says nothing; then the next write begins it.
    """
    if spec.ttl_ms is None:
        return NEVER
    if now == NO_WATERMARK:
        return NEVER - spec.ttl_ms if spec.on_processing_time else NEVER
    return now + spec.ttl_ms
