"""Processes that are made from a definition as plain data: windows, joins, patterns, operators.

Their class and record types are made for the definition, so they are pickled as the definition and made
anew at the other end (``__reduce__`` of each kind says how).
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from millrace.process import Context, KeyedProcess, ProcessDefinitionError


class DefinedProcess(KeyedProcess[Any, Any]):
    """A process at work for its ``definition``, which is plain data."""

    definition: Any
    #: For errors: what the process calls its records, and the argument that names a key's columns.
    records_are: ClassVar[str] = "results"
    key_argument: ClassVar[str] = "key=(...)"

    def __copy__(self) -> Self:
        # Without it a copy would be made as unpickling makes one: by building the process anew.
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def key_parts(self, ctx: Context) -> tuple[str, ...]:
        """Return the current key's parts as they stand in results.

        Raises:
            ProcessDefinitionError: The definition names more parts, or fewer.
        """
        key = ctx.key
        parts = (key,) if isinstance(key, str) else key
        named = len(self.definition.key)
        if len(parts) != named:
            raise ProcessDefinitionError(
                f"{self.name}: the key has {len(parts)} parts and {self.records_are} name {named}: "
                f"give {self.key_argument} a name for each"
            )
        return parts


def class_for(kind: type[DefinedProcess], *, name: str, **members: Any) -> Any:
    """Return a class of its own for a definition.

    Args:
        kind: What it does.
        name: Name of the process.
        members: What else the class declares: order, states, side outputs, types.
    """
    namespace = {"__module__": kind.__module__, "__doc__": kind.__doc__, "name": name}
    # Set afterwards: a class takes them from its generic base, here KeyedProcess[Any, Any], while it is made.
    types = {part: members.pop(part) for part in ("event_type", "output_type") if part in members}
    cls: Any = type(kind.__name__, (kind,), {**namespace, **members})
    for part, tp in types.items():
        setattr(cls, part, tp)
    return cls
