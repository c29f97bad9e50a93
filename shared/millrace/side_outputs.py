"""Side outputs: what a process emits beside its main output, by name and type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class OutputTag(Generic[T]):
    """A named side output of a process, declared with :func:`side_output`."""

    type: Any
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name


def side_output(tp: type[T], *, name: str = "") -> OutputTag[T]:
    """Declare a side output for records of type ``tp``; emit with ``ctx.output(self.alerts, record)``."""
    return OutputTag(tp, name)
