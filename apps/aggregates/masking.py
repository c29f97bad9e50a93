"""Several apps' maskings, one after the other: what any of them hides is hidden."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.host.packing import Masking, Masks


@dataclass(frozen=True)
class Several:
    """Opens two maskings where records are read.

    Args:
        first: The one.
        second: The other, of what the first has left.
    """

    first: Masking
    second: Masking

    def open(self) -> Masks:
        """Return what replaces what both hide."""
        return _Both(self.first.open(), self.second.open())


@dataclass(frozen=True)
class _Both:
    first: Masks
    second: Masks

    def messages(self, values: list[bytes], column: pa.Array | None = None) -> list[bytes]:
        return self.second.messages(self.first.messages(values, column))

    def value(self, value: Any) -> Any:
        return self.second.value(self.first.value(value))
