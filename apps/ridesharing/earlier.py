"""What an earlier version of the dispatcher left waiting, brought into the form of now.

It was told everything by one input, as records of one type that named their stream.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from apps.ridesharing.events import INPUTS
from millrace.inputs import mark_of
from millrace.state.conversion import Conversion, EarlierEntry
from millrace.state.layout import PendingRow

_RANKS: Final = {name: rank for rank, name in enumerate(sorted(INPUTS))}
#: What handovers did not say where it was nothing.
_UNSAID: Final = {
    "driver_id": "", "from_region": "", "until_ms": 0, "free_since_ms": 0, "seen_ms": 0, "blocked_ms": 0,
    "request_id": "",
}  # fmt: skip


def _dispatcher(entry: EarlierEntry) -> None:
    """Bring what waits in a region over."""
    for row in entry.waiting:
        row.raw = _typed(row)


def _typed(row: PendingRow) -> bytes:
    fields: dict[str, Any] = msgspec.json.decode(row.raw)
    stream = fields.pop("stream")
    if stream == "handovers":
        fields = _UNSAID | fields
    try:
        text = msgspec.json.encode(msgspec.convert(fields, INPUTS[stream]))
    except msgspec.ValidationError:  # beyond bounds that there were not: it will be a dead letter
        text = row.raw
    return mark_of(_RANKS[stream]) + text


DISPATCHER: Final = Conversion(rewrite=_dispatcher)
