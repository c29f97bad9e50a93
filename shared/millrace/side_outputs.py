"""Side outputs: what a process emits beside its main output, by name and type."""

from __future__ import annotations

from dataclasses import dataclass
from types import UnionType
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


@dataclass(eq=False)
class OutputTag(Generic[T]):
    """A named side output of a process, declared with :func:`side_output`.

    Attributes:
        type: Type of its records.
        name: Its name: the attribute's, unless given.
        stored_as: The name that identities of its records are made of, where that is not its own.
    """

    type: Any
    name: str = ""
    stored_as: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    @property
    def stored_name(self) -> str:
        """The name that identities of its records are made of."""
        return self.stored_as or self.name


@overload
def side_output(tp: type[T], *, name: str = "", stored_as: str = "") -> OutputTag[T]: ...


@overload
def side_output(tp: UnionType, *, name: str = "", stored_as: str = "") -> OutputTag[Any]: ...


def side_output(tp: Any, *, name: str = "", stored_as: str = "") -> OutputTag[Any]:
    """Declare a side output for records of type ``tp``; emit with ``ctx.output(self.alerts, record)``.

    Args:
        tp: Type of the records, or a union of tagged structs.
        name: Its name, where it is not to be that of the attribute.
        stored_as: For one that was renamed: the name by which identities of its records (``event_id``) and
            checkpoints of chains go on.
    """
    return OutputTag(tp, name, stored_as)
