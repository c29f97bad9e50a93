"""Laws and shapes as people write them: ``name(argument=value, …)``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from millrace.errors import UserError
from millrace.time.durations import to_ms

_TERM: Final = re.compile(r"\s*([a-z][a-z_]*)\s*(?:\((.*)\))?\s*", re.DOTALL)


class Term(NamedTuple):
    """A name with its arguments, as text."""

    name: str
    arguments: dict[str, str]

    def duration_ms(self, name: str, default: float | None = None) -> float:
        """Return an argument that is a duration above 0, ms; ``default`` where it is left out."""
        if name not in self.arguments and default is not None:
            return default
        found = to_ms(self._text(name))
        if found <= 0:
            raise UserError(f"{name} of {self.name}(…) is above 0, got {self.arguments[name]}")
        return found

    def number(self, name: str, default: float, *, low: float, high: float) -> float:
        """Return an argument that is a number in ``[low, high]``."""
        text = self.arguments.get(name)
        try:
            found = default if text is None else float(text)
        except ValueError:
            found = math.nan
        if not low <= found <= high:
            raise UserError(f"{name} of {self.name}(…) is a number from {low:g} to {high:g}, got {text}")
        return found

    def _text(self, name: str) -> str:
        if name not in self.arguments:
            raise UserError(f"{self.name}(…) needs {name}, e.g. {self.name}({name}=10s)")
        return self.arguments[name]


def parse_term(text: str, known: Mapping[str, tuple[str, ...]], what: str) -> Term:
    """Return the term that a text writes.

    Args:
        text: E.g. ``sine(period=1h, depth=0.5)``.
        known: Names with their arguments.
        what: What errors call it, e.g. ``--shape``.

    Raises:
        UserError: If it is no such term, or has a name or an argument that is not known.

    >>> parse_term("uniform(max=2s)", {"uniform": ("max",)}, "--delay")
    Term(name='uniform', arguments={'max': '2s'})
    """
    found = _TERM.fullmatch(text)
    if found is None or found[1] not in known:
        forms = ", ".join(f"{name}({', '.join(args)})" if args else name for name, args in known.items())
        raise UserError(f"{what} is one of {forms}; got {text}")
    arguments: dict[str, str] = {}
    for part in filter(str.strip, (found[2] or "").split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in known[found[1]] or name in arguments:
            raise UserError(
                f"{what}: {found[1]} takes {', '.join(known[found[1]])}, each once; got {part.strip()}"
            )
        arguments[name] = value
    return Term(found[1], arguments)
