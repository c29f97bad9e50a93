"""Outputs of a process, and the types of their records."""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.dead_letters import DeadLetter
from millrace.process import KeyedProcess, LateInput


def output_types(process: KeyedProcess[Any, Any]) -> dict[str, Any]:
    """Return the record type of every output of a process: main, side outputs, late, dead letters."""
    late: Any = LateInput
    if not process.inputs:
        late = msgspec.defstruct(
            "LateEvent", [("event", process.event_type), ("lateness_ms", int), ("watermark_ms", int)]
        )
    return {
        "main": process.output_type,
        **{tag.name: tag.type for tag in process.side_outputs},
        "late": late,
        "dead_letters": DeadLetter,
    }
