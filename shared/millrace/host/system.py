"""Messages of the engine among the control events: ticks of the clocks, and the end of the input.

They travel through the control topic, so that a replay has them again, in the place where they were; each
says whom it concerns. A control event that begins with ``{"$millrace":`` is one of them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from millrace.time.clock import Idle

__all__ = ["Drain", "Idle", "SystemMessage", "Tick", "Wake", "decode_system", "encode_system"]

#: How a message of the engine begins, and no control event of an app.
SYSTEM_PREFIX: Final = b'{"$millrace":'


class Tick(msgspec.Struct, frozen=True, tag_field="$millrace", tag="tick"):
    """Processing time has come to ``at`` (ms)."""

    at: int


class Drain(msgspec.Struct, frozen=True, tag_field="$millrace", tag="drain"):
    """The input of one checkpoint has ended: its watermark moves to the end of time.

    Attributes:
        incarnation: Identity of that checkpoint; all others ignore the message.
    """

    incarnation: str = ""


class Wake(msgspec.Struct, frozen=True, tag_field="$millrace", tag="wake"):
    """Nothing is said: the batch that brings it tells how far the clock is, after a restart into silence."""


SystemMessage = Tick | Idle | Drain | Wake

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
