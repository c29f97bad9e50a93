"""Messages of the engine among the control events: ticks of the clocks, and the end of the input.

They travel through the control topic, so that a replay has them again, in the place where they were.
A control event that begins with ``{"$millrace":`` is one of them.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: How a message of the engine begins, and no control event of an app.
SYSTEM_PREFIX: Final = b'{"$millrace":'


#: How the one begins that moves event time: its watermark is found before it is decoded.
IDLE_PREFIX: Final = b'{"$millrace":"idle"'


class Tick(msgspec.Struct, frozen=True, tag_field="$millrace", tag="tick"):
    """Processing time has come to ``at`` (ms)."""

    at: int


class Idle(msgspec.Struct, frozen=True, tag_field="$millrace", tag="idle"):
    """Nothing has come for a while, and nothing is waiting: event time has come to ``at`` (ms)."""

    at: int


class Drain(msgspec.Struct, frozen=True, tag_field="$millrace", tag="drain"):
    """The input has ended: the watermark moves to the end of time."""


SystemMessage = Tick | Idle | Drain

_decode = msgspec.json.Decoder(SystemMessage).decode


def encode_system(message: SystemMessage) -> bytes:
    """Return a message as it stands in a control topic.

    >>> encode_system(Tick(5))
    b'{"$millrace":"tick","at":5}'
    """
    return msgspec.json.encode(message)


def decode_system(raw: bytes) -> SystemMessage | None:
    """Return the message of the engine in a control event; ``None`` where it is an app's.

    Raises:
        msgspec.DecodeError: It begins like one and is none.

    >>> decode_system(b'{"limit": 3}') is None
    True
    """
    return _decode(raw) if raw.startswith(SYSTEM_PREFIX) else None
