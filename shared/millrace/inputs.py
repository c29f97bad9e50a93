"""Several inputs of one process: how an event keeps the input that it came by.

A process names its inputs (``inputs = {"readings": Reading, "status": Status}``). On its way to a key, and
while it waits there, an event of such a process is its JSON led by one byte that says which input it is;
no JSON text begins with it. So events of one time are sorted by input, and their bytes say how to read
them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from millrace.errors import UserError

#: The bytes that stand for inputs, in order: no JSON text begins with one, as it may with a tab.
_MARKS: Final = bytes((*range(1, 9), *range(14, 32)))
MOST_INPUTS: Final = len(_MARKS)
#: Stands for the input of an event that came by none.
NO_INPUT: Final = b"\x00"


class InputError(UserError):
    """An event came by an input that its process does not have, or by none where there are several."""


class Inputs:
    r"""The inputs of one process, in the order in which events of one time are handled.

    Args:
        declared: Input → type of its events.
        owner: Name of the process, for errors.

    Example:
        >>> inputs = Inputs({"left": int, "right": str}, "Join")
        >>> inputs.mark(b'"x"', inputs.rank("x")), inputs.name_of(inputs.mark(b"1", 0))
        (b'\x02"x"', 'left')
        >>> inputs.decode(b'\x02"x"')
        'x'
    """

    def __init__(self, declared: Mapping[str, Any], owner: str, *, strict: bool = True) -> None:
        self.names = tuple(declared)
        self.types = tuple(declared.values())
        self._owner = owner
        self._decoders = [msgspec.json.Decoder(tp, strict=strict) for tp in self.types]
        self._decode: list[Callable[[Any], Any]] = [self._refuse] * (_MARKS[-1] + 1)
        for mark, decoder in zip(_MARKS, self._decoders, strict=False):
            self._decode[mark] = decoder.decode

    def rank(self, event: Any, name: str | None = None) -> int:
        """Return the place of the input that an event comes by.

        Args:
            event: The event; its type tells, where inputs differ in it and no name is given.
            name: Name of the input.

        Raises:
            InputError: There is no such input, or the type does not tell.
        """
        if name is not None:
            if name not in self.names:
                raise InputError(f"{self._owner} has no input '{name}'; it has {', '.join(self.names)}")
            return self.names.index(name)
        fit = [i for i, tp in enumerate(self.types) if isinstance(tp, type) and isinstance(event, tp)]
        if len(fit) != 1:
            raise InputError(
                f"{self._owner} has the inputs {', '.join(self.names)}: say by which one "
                f"a {type(event).__name__} comes"
            )
        return fit[0]

    @staticmethod
    def mark(raw: bytes, rank: int) -> bytes:
        """Return an event's JSON with its input in front of it."""
        return mark_of(rank) + raw

    def name_of(self, marked: bytes) -> str:
        """Return the input of an event."""
        return self.names[_MARKS.index(marked[0])]

    def decode(self, marked: bytes) -> Any:
        """Make an event from its marked JSON.

        Raises:
            msgspec.DecodeError: It breaks its contract, or came by no input.
        """
        return self._decode[marked[0]](marked[1:])  # a view of it would take longer

    def only(self, marked: Sequence[bytes]) -> Any:
        """Return the decoder of the input by which all these events came; ``None`` if there are several."""
        marks = {raw[:1] for raw in marked}
        mark = marks.pop()
        return None if marks or mark == NO_INPUT else self._decoders[_MARKS.index(mark)]

    def _refuse(self, raw: Any) -> Any:
        raise msgspec.ValidationError(f"it came by none of the inputs {', '.join(self.names)}")


def mark_of(rank: int) -> bytes:
    """Return the byte that stands for an input."""
    return _MARKS[rank : rank + 1]


def unmarked(raw: bytes) -> bytes:
    r"""Return an event's JSON as it came, whether or not its input is in front of it.

    >>> unmarked(b"\x01{}"), unmarked(b"{}"), unmarked(b"")
    (b'{}', b'{}', b'')
    """
    return raw[1:] if raw and (raw[0] in _MARKS or raw[:1] == NO_INPUT) else raw


@functools.lru_cache(maxsize=64)
def _inputs(declared: tuple[tuple[str, Any], ...], owner: str, *, strict: bool = True) -> Inputs:
    return Inputs(dict(declared), owner, strict=strict)


def inputs_of(process: Any) -> Inputs | None:
    """Return the inputs of a process; ``None`` where it has one, without a name."""
    return _inputs(tuple(process.inputs.items()), process.name) if process.inputs else None


def event_decoder(process: Any) -> Callable[[bytes], Any]:
    """Return what makes an event of a process from its bytes as :func:`event_encoder` makes them."""
    decode, decode_lax = (_decoder(process, strict=strict) for strict in (True, False))

    def decode_event(raw: bytes) -> Any:
        try:
            return decode(raw)
        except msgspec.ValidationError:
            if not any(text in raw for text in _QUOTED.values()):
                raise
            return decode_lax(raw)

    return decode_event


def _decoder(process: Any, *, strict: bool) -> Callable[[bytes], Any]:
    if not process.inputs:
        return msgspec.json.Decoder(process.event_type, strict=strict).decode
    return _inputs(tuple(process.inputs.items()), process.name, strict=strict).decode


def event_encoder(process: Any) -> Callable[..., bytes]:
    """Return what makes the bytes that a host keeps of an event: a function of it and its input's name."""
    inputs = inputs_of(process)
    if inputs is None:
        return event_json

    def encode(event: Any, name: str | None = None) -> bytes:
        return inputs.mark(event_json(event), inputs.rank(event, name))

    return encode


#: Floats that JSON has not, by their text in Python, as Spark's ``to_json`` writes them.
_QUOTED: Final = {"nan": b'"NaN"', "inf": b'"Infinity"', "-inf": b'"-Infinity"'}


def event_json(event: Any, _name: str | None = None) -> bytes:
    """Return an event as JSON that can be read back: floats that JSON has not stand in quotes.

    The name of an input is nothing to it: where there is one input it has none.

    >>> event_json([1.0, float("nan"), None])
    b'[1.0,"NaN",null]'
    """
    raw = msgspec.json.encode(event)
    if raw.count(b"null"):  # which is what msgspec writes for them; `in` takes three times as long
        raw = msgspec.json.encode(_quoted(msgspec.to_builtins(event, str_keys=True)))
    return raw


def _quoted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _quoted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_quoted(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return msgspec.Raw(_QUOTED[str(value)])
    return value
