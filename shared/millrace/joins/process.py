"""Join processes: from the definition of a join to the process, and what all of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Final

import msgspec

from millrace.defined_process import DefinedProcess, class_for
from millrace.joins.definition import JoinDefinition
from millrace.joins.records import Column, Merge
from millrace.process import Order
from millrace.state.cells import StateCorrupted
from millrace.windows.fields import or_none

LEFT, RIGHT = "left", "right"


class JoinProcess(DefinedProcess):
    """A join at work; :func:`millrace.joins.asof_join` and its siblings make them.

    It is picklable wherever its definition is: the class and its record type, which are made for the
    definition, are made anew at the other end.

    Args:
        definition: What to join.
        merge: Makes its records.
    """

    definition: JoinDefinition
    #: In which order events of one time are handled.
    rank: ClassVar[tuple[str, str]] = (LEFT, RIGHT)

    def __init__(self, definition: JoinDefinition, merge: Merge) -> None:
        self.definition = definition
        self._joined = merge.make
        self._packs = {LEFT: Packs(definition.left), RIGHT: Packs(definition.right)}

    @classmethod
    def declare(cls, definition: Any) -> dict[str, Any]:
        """Return the states of the process: name → declaration."""
        return {}

    @classmethod
    def columns(cls, definition: Any) -> Sequence[Column]:
        """Return names and types of what records have besides the events' fields."""
        how = definition.how
        return [
            ("left_ms", or_none(int) if how in ("right", "outer") else int),
            ("right_ms", or_none(int) if how in ("left", "outer") else int),
        ]

    def describe(self) -> dict[str, Any]:
        """Return the join as a checkpoint's contract has it: state of another is not its own."""
        # What stands at its default is left out: a join from before there was such a parameter is the same.
        left_out = {"left", "right", "on_merge", "record", "name"}
        left_out |= {f.name for f in fields(self.definition) if getattr(self.definition, f.name) == f.default}
        said = {name: part for name, part in _plain(self.definition).items() if name not in left_out}
        return {"join": type(self).__name__, **said}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return build, (self.definition,)


def _plain(part: Any) -> Any:
    """Return a part of a definition as plain data; nothing of it may hang on the run."""
    if is_dataclass(part) and not isinstance(part, type):
        return {field.name: _plain(getattr(part, field.name)) for field in fields(part)}
    return "function" if callable(part) else part if isinstance(part, int | None) else str(part)


class Packs:
    """Packs events of one type for as long as they are kept.

    As bytes they cost next to nothing while they only wait; most are never looked at again.

    Args:
        event_type: Type of the events.
    """

    def __init__(self, event_type: Any) -> None:
        self.pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder(order="deterministic").encode
        self._unpack = msgspec.msgpack.Decoder(event_type).decode

    def unpack(self, packed: bytes) -> Any:
        """Return the event.

        Raises:
            StateCorrupted: The bytes are not of such an event.
        """
        try:
            return self._unpack(packed)
        except msgspec.DecodeError as error:
            raise StateCorrupted(f"an event that a join has kept cannot be read: {error}") from error


def build(definition: JoinDefinition) -> JoinProcess:
    """Return the process for a definition.

    Raises:
        JoinDefinitionError: The definition does not fit the types of its events.
    """
    operator, order = _KINDS[type(definition)](definition)
    merge = Merge(
        definition.left,
        definition.right,
        definition.how,
        definition.on_merge,
        definition.record,
        operator.columns(definition),
    )
    types = {LEFT: definition.left, RIGHT: definition.right}
    cls = class_for(
        operator,
        name=definition.name,
        output_type=merge.type,
        order=order,
        inputs={side: types[side] for side in operator.rank},
        **operator.declare(definition),
    )
    process: JoinProcess = cls(definition, merge)
    return process


#: Definition of a join → the process that does it, and its order.
_KINDS: Final[dict[type, Callable[[Any], tuple[type[JoinProcess], Order | str]]]] = {}


def register(definition: type, choose: Callable[[Any], tuple[type[JoinProcess], Order | str]]) -> None:
    """Say which process does a kind of join; a new kind is a file that does, and its import.

    Args:
        definition: Type of its definition.
        choose: The process for a definition, and its order.
    """
    _KINDS[definition] = choose
