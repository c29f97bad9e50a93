"""Hostile input: the events of an app's world, and among them what nobody should send.

Every value at and beyond every bound of every field of every input comes once, in random order, and then
several at a time. What is made is made of events that were sent, so that keys, machines and orders are known
to the app; events that the world does not have are put together from values of the same names.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from millrace.chaos.values import LONG, STRANGE, Value, allowed, joined, refused
from millrace.dead_letters import NOT_JSON, VERSION_HEADER
from millrace.topology import Topology
from millrace.topology.keys import structs_of

#: The stream of control events, among those of the inputs.
CONTROL: Final = "control"
#: So many records of a stream are remembered, to be changed.
_KNOWN: Final = 400
#: So many values of a name are remembered.
_VALUES: Final = 300
#: A field of the world that differs in so many events is an identity.
_DIFFER: Final = 30
#: Of the records so many are the world's, as long as it has any.
_OF_THE_WORLD: Final = 0.5
#: Of the records that are made so many are other events than what they are made of.
_ANEW: Final = 0.85
#: What is made has happened so long ago at most, ms.
_BEHIND_MS: Final = 300
_SAME: Final = "the same again"
#: Of the values of random changes so many are allowed ones.
_ALLOWED: Final = 0.8
_KEYS: Final = (None, b"", b"\xff\xfe", b"a\x00b", b" ", b"12345", "\u20ac".encode(), b"k" * 10_000)
#: What no version of a contract is called.
_UNKNOWN: Final = (b"99", b"\xff", b"")


class Message(NamedTuple):
    """A record as a producer sends it.

    Attributes:
        topic: Its topic.
        key: Its key.
        value: Its value.
        timestamp_ms: When it was sent, UTC ms.
        headers: Its headers.
    """

    topic: str
    key: bytes | None
    value: bytes
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()


class Sent(NamedTuple):
    """A record, and what the sender knows of it.

    Attributes:
        message: The record.
        stream: The input that it is of, or ``control``.
        kind: Type of the event that it is, or was made of.
        label: What was changed; empty for an event of the world.
        is_valid: Whether its contract allows it.
    """

    message: Message
    stream: str
    kind: str
    label: str
    is_valid: bool


#: Changes an event's fields (as JSON), in place, or returns other bytes; the random numbers are the sender's.
Change = Callable[[dict[str, bytes], random.Random], bytes | None]


@dataclass
class _Kind:
    """A type of events of a stream: its fields, and every change of it that is left to be tried."""

    name: str
    fields: dict[str, Any]
    tag: tuple[str, bytes] | None
    allowed: dict[str, list[Value]]
    refused: dict[str, list[Value]]
    left: list[tuple[str, Change]] = field(default_factory=list)


@dataclass
class _Stream:
    """An input: where its records go, what they are, and what was sent of it."""

    name: str
    topic: str
    decode: Callable[[bytes], Any]
    kinds: list[_Kind]
    event_time: str
    is_datetime: bool = False
    known: dict[str, deque[Message]] = field(default_factory=dict)
    #: Field of text → how many values of it were seen, the distinct ones.
    seen: dict[tuple[str, str], set[bytes]] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)


class Sender:
    """Makes the records of a run.

    Args:
        topology: The app's topology; what it reads is what is sent.
        world: Records of the app's generated world, in order of sending.
        seed: The same one makes the same records.
        controls: Whether control events are sent, too.

    Example:
        >>> from millrace.topology import Input, read
        >>> from millrace import KeyedProcess, arrival
        >>> class Sale(msgspec.Struct):
        ...     shop: str
        ...     at: int
        >>> class Sales(KeyedProcess[Sale, int]):
        ...     order = arrival(commutes=True)
        ...     def process(self, event, ctx):
        ...         ctx.emit(1)
        >>> topology = read(Input("sales", "shop", "at")).process(Sales())
        >>> world = [Message("sales", b"s1", b'{"shop":"s1","at":1700000000000}', 1700000000000)]
        >>> sent = list(Sender(topology, world, seed=1).send(500))
        >>> len(sent), sent[0].label, {one.stream for one in sent}, sum(one.is_valid for one in sent) > 100
        (500, '', {''}, True)
    """

    def __init__(
        self, topology: Topology, world: Iterable[Message], *, seed: int, controls: bool = True
    ) -> None:
        self._rng = random.Random(seed)
        self._world = iter(world)
        self._streams = _streams(topology)
        if not controls:
            self._streams = [stream for stream in self._streams if stream.name != CONTROL]
        self._of_topic: dict[str, list[_Stream]] = {}
        for stream in self._streams:
            self._of_topic.setdefault(stream.topic, []).append(stream)
        self._pool: dict[str, deque[bytes]] = {}
        self._keys: deque[bytes] = deque(maxlen=_VALUES)
        self._now_ms = 1_767_225_600_000
        self._made = 0
        for stream in self._streams:
            for kind in stream.kinds:
                kind.left = self._changes(stream, kind)
                self._rng.shuffle(kind.left)

    @property
    def cases(self) -> int:
        """How many single changes there are that were not tried yet."""
        return sum(len(kind.left) for stream in self._streams for kind in stream.kinds)

    def send(self, count: int) -> Iterator[Sent]:
        """Yield so many records."""
        rng = self._rng
        while count > 0:
            message = next(self._world, None) if rng.random() < _OF_THE_WORLD else None
            stream = rng.choice(self._streams)
            if message is not None and message.topic in self._of_topic:
                yield self._as_it_is(message)
            else:
                yield self._changed(stream)
            count -= 1

    def learn(self, payload: bytes) -> None:
        """Remember the values of something that the app has said: others may answer it."""
        try:
            fields = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
        except NOT_JSON:
            return
        for name, raw in fields.items():
            value = bytes(raw)
            if value.startswith(b'"') and len(value) < 200:
                self._remember(name, value)

    # -- the world ---------------------------------------------------------------------------------

    def _as_it_is(self, message: Message) -> Sent:
        stream = self._of_topic[message.topic][0]
        self._now_ms = max(self._now_ms, message.timestamp_ms) if self._made else message.timestamp_ms
        self._made += 1
        fields = _fields(message.value)
        kind = _kind_of(stream, fields)
        if fields is not None and kind is not None and _is_valid(stream, message):
            stream.known.setdefault(kind.name, deque(maxlen=_KNOWN)).append(message)
            self._look_at(stream, kind, fields)
        if message.key:
            self._keys.append(message.key)
        return self._sent(stream, kind, message, "")

    def _look_at(self, stream: _Stream, kind: _Kind, fields: dict[str, bytes]) -> None:
        stream.counted[kind.name] += 1
        for name, raw in fields.items():
            if name in kind.fields and len(raw) < 5_000:
                self._remember(name, raw)
                if raw.startswith(b'"') and stream.counted[kind.name] <= 10 * _DIFFER:
                    stream.seen.setdefault((kind.name, name), set()).add(raw)

    def _remember(self, name: str, raw: bytes) -> None:
        self._pool.setdefault(name, deque(maxlen=_VALUES)).append(raw)

    def _is_identity(self, stream: _Stream, kind: _Kind, name: str) -> bool:
        """Return whether a text is another in every event, as far as was seen."""
        seen = min(stream.counted[kind.name], 10 * _DIFFER)
        return seen >= _DIFFER and len(stream.seen.get((kind.name, name), ())) == seen

    # -- what nobody should send -------------------------------------------------------------------

    def _changed(self, stream: _Stream) -> Sent:
        rng = self._rng
        waiting = [kind for kind in stream.kinds if kind.left]
        kind = rng.choice(waiting or stream.kinds)
        base = self._base(stream, kind)
        fields = _fields(base.value) or {}
        label, change = kind.left.pop() if kind.left else self._at_random(stream, kind, list(fields))
        if label != _SAME and rng.random() < _ANEW:
            self._anew(stream, kind, fields)
        raw = change(fields, rng)
        message = base._replace(value=joined(fields) if raw is None else raw, timestamp_ms=self._now_ms)
        message = self._sent_wrongly(message, label)
        return self._sent(stream, kind, message, label)

    def _base(self, stream: _Stream, kind: _Kind) -> Message:
        """Return a record of a type that was sent, or one put together from values that others had."""
        known = stream.known.get(kind.name)
        if known and self._rng.random() < 0.8:
            return self._rng.choice(known)
        fields = {} if kind.tag is None else {kind.tag[0]: kind.tag[1]}
        whole = self._rng.random() < (0.3 if known else 0.8)
        for name, tp in kind.fields.items():
            raw = self._value(name, tp, kind, whole=whole)
            if raw is not None:
                fields[name] = raw
        texts = [raw[1:-1] for raw in fields.values() if raw.startswith(b'"') and raw[1:-1] in self._keys]
        key = self._rng.choice(texts or list(self._keys) or [b"k"])
        return Message(stream.topic, key, joined(fields), self._now_ms)

    def _value(self, name: str, tp: Any, kind: _Kind, *, whole: bool) -> bytes | None:
        rng = self._rng
        known = self._pool.get(name)
        if known and rng.random() < 0.8:
            raw = rng.choice(known)
            if _fits(raw, tp):
                return raw
        if kind.allowed[name] and (whole or not (_fits(b"null", tp) and rng.random() < 0.5)):
            short = [v for v in kind.allowed[name] if len(v.raw) < 200 and not (whole and v.raw == b"null")]
            return rng.choice(short or kind.allowed[name]).raw
        return None

    def _anew(self, stream: _Stream, kind: _Kind, fields: dict[str, bytes]) -> None:
        """Make another event of one: with an identity and a time of its own."""
        self._made += 1
        for name, raw in fields.items():
            if raw.startswith(b'"') and self._is_identity(stream, kind, name):
                fields[name] = f'"n{self._made}-{raw[1:-1].decode()[:60]}"'.encode()
        if stream.event_time in fields:
            at = self._now_ms - self._rng.randrange(_BEHIND_MS)
            fields[stream.event_time] = _time(at, is_datetime=stream.is_datetime)

    def _at_random(self, stream: _Stream, kind: _Kind, there: list[str]) -> tuple[str, Change]:
        rng = self._rng
        if not kind.fields or rng.random() < 0.05:
            return rng.choice(_BROKEN)
        # An event of another time is late, or of the future: mostly other things are to be seen.
        of = [name for name in kind.fields if name != stream.event_time or rng.random() < 0.1]
        if rng.random() < 0.7:
            of = [name for name in of if name in there] or of
        names = rng.sample(of, min(len(of), rng.choice((1, 2, 2, 3, 5))))
        values = {}
        for name in names:
            some = kind.allowed[name] if rng.random() < _ALLOWED else (*kind.refused[name], *STRANGE)
            value = rng.choice(some or STRANGE)
            if len(value.raw) >= LONG // 20 and rng.random() < 0.95:
                value = rng.choice(STRANGE[:10])
            values[name] = value
        label = "; ".join(f"{name}: {value.label}" for name, value in values.items())

        def change(fields: dict[str, bytes], _rng: random.Random) -> None:
            fields.update({name: value.raw for name, value in values.items()})

        return label, change

    def _sent_wrongly(self, message: Message, label: str) -> Message:
        """Return a record with another key, topic or headers, now and then, and where the label says so."""
        rng = self._rng
        if label == "record key" or rng.random() < 0.02:
            other = rng.choice(self._keys) if self._keys else b"k"
            keys = (
                None,
                b"",
                b"\xff\xfe",
                b"a\x00b",
                b" ",
                other,
                other,
                b"12345",
                "\u20ac".encode(),
                b"k" * 10_000,
            )
            message = message._replace(key=rng.choice(keys))
        if label == "other topic":
            others = [one.topic for one in self._streams if one.name != CONTROL]
            message = message._replace(topic=rng.choice(others))
        if label == "unknown version":
            message = message._replace(headers=(*message.headers[:2], (VERSION_HEADER, rng.choice(_UNKNOWN))))
        return message

    def _changes(self, stream: _Stream, kind: _Kind) -> list[tuple[str, Change]]:
        """Return every change of one value, and of the whole."""
        made: list[tuple[str, Change]] = list(_BROKEN)
        for name in kind.fields:
            for value in (*kind.allowed[name], *kind.refused[name], *STRANGE):
                made.append((f"{name}: {value.label}", _put(name, value.raw)))
            made.append((f"{name}: missing", _without(name)))
            made.append((f"{name}: twice", _twice(name)))
        for label, place in (("least", 0), ("most", 1), ("last", -1)):
            made.append((f"every field: its {label}", _all(kind, place)))
        made += [(label, _nothing) for label in ("record key",) * 10 + (_SAME,) * 3]
        if stream.name != CONTROL:
            made += [(label, _nothing) for label in ("other topic",) * 5 + ("unknown version",) * 3]
        return made

    def _sent(self, stream: _Stream, kind: _Kind | None, message: Message, label: str) -> Sent:
        if message.topic != stream.topic:
            stream = self._of_topic[message.topic][0]
            kind = None
        name = kind.name if kind is not None else stream.kinds[0].name
        return Sent(message, stream.name, name, label, _is_valid(stream, message))


def _is_valid(stream: _Stream, message: Message) -> bool:
    """Return whether a contract allows a record."""
    versions = [value for name, value in message.headers if name == VERSION_HEADER]
    if stream.name != CONTROL and versions and versions[0] in _UNKNOWN:
        return False
    try:
        stream.decode(message.value)
    except NOT_JSON:
        return False
    return True


def _streams(topology: Topology) -> list[_Stream]:
    process = topology.links[0].process
    types = process.inputs or {"": process.event_type}
    found = [
        _Stream(
            name, one.topic, msgspec.json.Decoder(types[name]).decode, _kinds(types[name]), one.event_time
        )
        for name, one in topology.inputs.items()
    ]
    for stream in found:
        infos = [msgspec.inspect.type_info(kind.fields.get(stream.event_time, int)) for kind in stream.kinds]
        stream.is_datetime = any(isinstance(info, msgspec.inspect.DateTimeType) for info in infos)
    controls = [link.process.control_type for link in topology.links if link.process.control_type is not None]
    if topology.control is not None and controls:
        decode = msgspec.json.Decoder(controls[0]).decode
        found.append(_Stream(CONTROL, topology.control, decode, _kinds(controls[0]), ""))
    return found


def _kinds(tp: Any) -> list[_Kind]:
    found = []
    for struct in structs_of(tp) or [None]:
        fields = {} if struct is None else {one.encode_name: _type_of(struct, one) for one in struct.fields}
        tag = None
        if struct is not None and struct.tag_field is not None:
            tag = (struct.tag_field, msgspec.json.encode(struct.tag))
        name = getattr(tp, "__name__", str(tp)) if struct is None else struct.cls.__name__
        values = {name: allowed(one) for name, one in fields.items()}
        found.append(_Kind(name, fields, tag, values, {name: refused(one) for name, one in fields.items()}))
    return found


def _type_of(struct: Any, one: Any) -> Any:
    (found,) = (f.type for f in msgspec.structs.fields(struct.cls) if f.encode_name == one.encode_name)
    return found


def _kind_of(stream: _Stream, fields: dict[str, bytes] | None) -> _Kind | None:
    """Return the type that an event says it is of."""
    if fields is None:
        return None
    if len(stream.kinds) == 1:
        return stream.kinds[0]
    for kind in stream.kinds:
        if kind.tag is not None and fields.get(kind.tag[0]) == kind.tag[1]:
            return kind
    return None


def _fields(value: bytes) -> dict[str, bytes] | None:
    try:
        found = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    except NOT_JSON:
        return None
    return {name: bytes(raw) for name, raw in found.items()}


def _fits(raw: bytes, tp: Any) -> bool:
    try:
        msgspec.json.decode(raw, type=tp)
    except NOT_JSON:
        return False
    return True


def _time(at_ms: int, *, is_datetime: bool) -> bytes:
    if not is_datetime:
        return str(at_ms).encode()
    return msgspec.json.encode(datetime.fromtimestamp(at_ms / 1000, UTC))


# -- changes ---------------------------------------------------------------------------------------


def _put(name: str, raw: bytes) -> Change:
    def change(fields: dict[str, bytes], _rng: random.Random) -> None:
        fields[name] = raw

    return change


def _without(name: str) -> Change:
    def change(fields: dict[str, bytes], _rng: random.Random) -> None:
        fields.pop(name, None)

    return change


def _twice(name: str) -> Change:
    def change(fields: dict[str, bytes], rng: random.Random) -> bytes:
        whole = joined(fields)
        again = joined({name: rng.choice(STRANGE[:30]).raw})
        return whole[:-1] + (b"," if fields else b"") + again[1:]

    return change


def _all(kind: _Kind, place: int) -> Change:
    def change(fields: dict[str, bytes], _rng: random.Random) -> None:
        for name, values in kind.allowed.items():
            short = [value.raw for value in values if len(value.raw) < 10_000]
            if short and name in fields and not fields[name].startswith(b'"'):
                fields[name] = short[min(place, len(short) - 1)]

    return change


def _nothing(_fields: dict[str, bytes], _rng: random.Random) -> None:
    return None


def _more(count: int) -> bytes:
    return b"".join(b',"m%d":%d' % (i, i) for i in range(count))


def _broken(label: str, make: Callable[[bytes, random.Random], bytes]) -> tuple[str, Change]:
    return f"broken: {label}", lambda fields, rng: make(joined(fields), rng)


def _flipped(raw: bytes, rng: random.Random) -> bytes:
    changed = bytearray(raw or b" ")
    for _ in range(rng.choice((1, 1, 3))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


#: What is no event, whatever it was made of.
_BROKEN: Final[Sequence[tuple[str, Change]]] = (
    _broken("cut off", lambda raw, rng: raw[: rng.randrange(len(raw))]),
    _broken("bits that have flipped", _flipped),
    _broken("bits that have flipped again", _flipped),
    _broken("nothing", lambda raw, rng: b""),
    _broken("blanks", lambda raw, rng: b" \n\t "),
    _broken("a list of it", lambda raw, rng: b"[" + raw + b"]"),
    _broken("twice", lambda raw, rng: raw + raw),
    _broken("two lines", lambda raw, rng: raw + b"\n" + raw),
    _broken("as text", lambda raw, rng: msgspec.json.encode(raw.decode(errors="replace"))),
    _broken("a byte order mark", lambda raw, rng: b"\xef\xbb\xbf" + raw),
    _broken("UTF-16", lambda raw, rng: raw.decode(errors="replace").encode("utf-16")),
    _broken("a NUL behind it", lambda raw, rng: raw + b"\x00"),
    _broken("a comma too many", lambda raw, rng: raw[:-1] + b",}"),
    _broken("single quotes", lambda raw, rng: raw.replace(b'"', b"'")),
    _broken("null", lambda raw, rng: b"null"),
    _broken("a number", lambda raw, rng: b"7"),
    _broken("no object", lambda raw, rng: b"{}"),
    _broken("binary", lambda raw, rng: rng.randbytes(300)),
    _broken("deep", lambda raw, rng: b'{"a":' * 50_000),
    _broken("1 MB of blanks", lambda raw, rng: raw + b" " * (LONG - len(raw))),
    _broken("a field more", lambda raw, rng: raw[:-1] + b',"more":{"a":[1,2,null]}}'),
    _broken("1,000 fields more", lambda raw, rng: raw[:-1] + _more(1_000) + b"}"),
)
