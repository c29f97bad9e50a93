"""Requests to Spark's state store, several on the way before the first answer is awaited.

Spark's client sends one request and waits for its answer: two switches between processes for each. The
server handles the requests of a connection in order, so that they may as well follow each other. Requests of
maps of bytes, of which a batch makes hundreds, are also put together here: Spark's client makes messages
within messages and looks through every value for types of NumPy, which takes longer than the store does.
"""

from __future__ import annotations

import pickle
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NoReturn

from pyspark.errors import PySparkRuntimeError

#: So many requests are sent at once, and so many are on the way before answers are read: these, and the
#: smallest requests, fit the socket's buffers, so that neither side ever waits for the other to read.
_AT_ONCE: Final = 32
_ON_THE_WAY: Final = 64
#: So many bytes are on the way before answers are read: they fit the socket's buffers, too, so that a store
#: which reads no more, since it has refused something, can still be heard.
_BYTES_ON_THE_WAY: Final = 64 << 10
#: What stands before a message: version of the protocol, length.
_FRAME: Final = struct.Struct("!ii")
_LENGTH: Final = struct.Struct("!i")
_PROTOCOL: Final = 0
#: What is used of Spark's client, which is not public.
_USED: Final = ("_send_proto_message", "_receive_proto_message", "_deserialize_from_bytes", "sockfile")
#: Keys whose bytes are remembered.
_REMEMBERED: Final = 100_000
#: The key of a value in a map: integers.
Key = tuple[int, ...]


class StateClient:
    """Sends the requests of states many at a time.

    Args:
        state: A map state of a processor: they share a connection. Where its client is not as it is
            known here, requests are sent one by one.

    What the store refuses ends the connection: Spark's server answers nothing after an error. So it is told
    at once, whatever else is on the way, and again by every later call.

    Attributes:
        ahead: Whether several are sent at a time.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        owner = getattr(state, "_mapStateClient", None)
        self._client = getattr(owner, "_stateful_processor_api_client", None)
        self.ahead = all(hasattr(self._client, name) for name in _USED)
        self._messages = _messages_of(state, owner, self._client) if self.ahead else None
        #: How many requests were sent together whose answers are not read yet, and their bytes, the
        #: earliest first.
        self._sent: deque[tuple[int, int]] = deque()
        self._refused = ""

    def write(self, requests: Sequence[Callable[[], object]]) -> None:
        """Have requests done that only write, in order.

        Args:
            requests: Calls of the states' methods.

        Raises:
            PySparkRuntimeError: The state store refuses one.
        """
        if self.ahead:
            self._ask(requests)
        else:
            for request in requests:
                request()

    def read(self, requests: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return what requests for a value find, in order; ``None`` where there is none.

        Args:
            requests: Calls of the states' methods.

        Raises:
            PySparkRuntimeError: The state store refuses one.
        """
        if not self.ahead:
            return [request() for request in requests]
        found = self._client._deserialize_from_bytes  # type: ignore[union-attr]
        return [found(value) if value else None for value in self._ask(requests)]

    def get(self, keys: Sequence[Key]) -> list[bytes | None]:
        """Return the bytes that the map has under some keys, in order; ``None`` where it has none.

        Raises:
            PySparkRuntimeError: The state store refuses a request.
        """
        messages = self._messages
        if messages is None:
            found = [self._state.getValue(key) for key in keys]
            return [None if row is None else bytes(row[0]) for row in found]
        read = self._client._deserialize_from_bytes  # type: ignore[union-attr]
        self._send(())
        return [bytes(read(value)[0]) if value else None for value in self._send(map(messages.get, keys))]

    def put(self, changes: Iterable[tuple[Key, bytes | None]], *, wait: bool = True) -> None:
        """Write bytes into the map, or remove them (``None``), in order.

        Args:
            changes: What to write where.
            wait: Whether to wait until the store has taken all of them; else it is at work on the last ones,
                and whether it does is told by the next call that waits.

        Raises:
            PySparkRuntimeError: The state store refuses a request, be it of an earlier call.
        """
        messages = self._messages
        if messages is not None:
            self._send(
                (messages.remove(key) if data is None else messages.put(key, data) for key, data in changes),
                wait=wait,
            )
            return
        for key, data in changes:
            if data is None:
                self._state.removeKey(key)
            else:
                self._state.updateValue(key, (data,))

    def _send(self, requests: Iterable[bytes], *, wait: bool = True) -> list[bytes]:
        """Send messages; return the values of the answers that are read, of all where it is waited for."""
        if self._refused:
            raise PySparkRuntimeError(self._refused)
        file = self._client.sockfile  # type: ignore[union-attr]
        values: list[bytes] = []
        left = iter(requests)
        # The next ones are made and sent while the store is at work on those before.
        while part := list(islice(left, _AT_ONCE)):
            for count, size in _parts(list(map(len, part))):
                while self._sent and self._is_much(count, size):
                    values += self._receive()
                for message in part[:count]:
                    file.write(_FRAME.pack(_PROTOCOL, len(message)))
                    file.write(message)
                file.flush()
                del part[:count]
                self._sent.append((count, size))
        while wait and self._sent:
            values += self._receive()
        return values

    def _is_much(self, count: int, size: int) -> bool:
        """Return whether with so many requests more, and their bytes, too many would be on the way."""
        counts = sum(sent for sent, _ in self._sent)
        sizes = sum(sent for _, sent in self._sent)
        return counts + count > _ON_THE_WAY or sizes + size > _BYTES_ON_THE_WAY

    def _receive(self) -> list[bytes]:
        """Return the values of the answers to the requests that were sent together before all others."""
        file = self._client.sockfile  # type: ignore[union-attr]
        count, _ = self._sent.popleft()
        answers = _answers(file, count)
        return [self._value(answer) if answer else b"" for answer in answers]

    def _value(self, answer: bytes) -> bytes:
        from pyspark.sql.streaming.proto import StateMessage_pb2 as proto

        message = proto.StateResponse()
        message.ParseFromString(answer)
        if message.statusCode != 0:
            self._refuse(message.errorMessage)
        return message.value

    def _refuse(self, said: str) -> NoReturn:
        self._refused = f"the state store refuses a request: {said}"
        raise PySparkRuntimeError(self._refused)

    def _ask(self, requests: Sequence[Callable[[], object]]) -> list[bytes]:
        client: Any = self._client
        values: list[bytes] = []
        self._send(())
        for low in range(0, len(requests), _AT_ONCE):
            part = requests[low : low + _AT_ONCE]
            # The states make their messages as ever; what they send is left in the buffer.
            client._send_proto_message, client._receive_proto_message = self._keep, _no_answer
            try:
                for request in part:
                    request()
            finally:
                del client._send_proto_message, client._receive_proto_message
            client.sockfile.flush()
            for _ in part:
                status, said, value = client._receive_proto_message()
                if status != 0:
                    self._refuse(said)
                values.append(value)
        return values

    def _keep(self, message: bytes) -> None:
        """Write a message as Spark's client does, and do not send it yet."""
        sockfile = self._client.sockfile  # type: ignore[union-attr]
        sockfile.write(_FRAME.pack(_PROTOCOL, len(message)))
        sockfile.write(message)


def _parts(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield how many requests go together, and their bytes: no more than may be on the way, or one.

    >>> list(_parts([30_000, 30_000, 30_000, 100_000, 1]))
    [(2, 60000), (1, 30000), (1, 100000), (1, 1)]
    """
    count = whole = 0
    for size in sizes:
        if count and whole + size > _BYTES_ON_THE_WAY:
            yield count, whole
            count = whole = 0
        count, whole = count + 1, whole + size
    if count:
        yield count, whole


def _answers(file: Any, count: int) -> Iterator[bytes]:
    """Yield answers as they come, no more of them read than there are; one that is only done has no bytes.

    Raises:
        PySparkRuntimeError: The store has ended the connection. It is no EOFError, which Spark takes here and
            there for the end of what there is.
    """
    read = bytearray()

    def come_to(size: int, more: int) -> None:
        """Have so many bytes been read; behind these so many more are sure to come."""
        while len(read) < size:
            if not (part := file.read1(size + more - len(read))):
                raise PySparkRuntimeError("the state store has ended the connection")
            read.extend(part)

    while count:
        come_to(_LENGTH.size, _LENGTH.size * (count - 1))
        if not any(read):
            done = len(read) // _LENGTH.size
            del read[: done * _LENGTH.size]
            count -= done
            yield from [b""] * done
            continue
        count -= 1
        (size,) = _LENGTH.unpack_from(read)
        end = _LENGTH.size + size
        come_to(end, _LENGTH.size * count)
        answer = bytes(read[_LENGTH.size : end])
        del read[:end]
        yield answer


def _no_answer() -> tuple[int, str, bytes]:
    return 0, "", b""


class _Messages:
    """Makes the messages of a map of bytes as Spark's client makes them.

    Args:
        name: Name of the state.
        protocol: Version of pickle's format.
    """

    def __init__(self, name: str, protocol: int) -> None:
        from pyspark.sql.streaming.proto import StateMessage_pb2 as proto

        def number(message: Any, field: str) -> bytes:
            return _varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | 2)

        self._protocol = protocol
        self._request = number(proto.StateRequest, "stateVariableRequest")
        self._map = number(proto.StateVariableRequest, "mapStateCall")
        self._name = number(proto.MapStateCall, "stateName") + _led(name.encode())
        self._get = number(proto.MapStateCall, "getValue"), number(proto.GetValue, "userKey")
        self._remove = number(proto.MapStateCall, "removeKey"), number(proto.RemoveKey, "userKey")
        self._put = number(proto.MapStateCall, "updateValue"), number(proto.UpdateValue, "userKey")
        self._data = number(proto.UpdateValue, "value")
        self._keys: dict[Key, bytes] = {}

    def get(self, key: Key) -> bytes:
        """Return a request for a value."""
        return self._about(self._get, self._key(key))

    def remove(self, key: Key) -> bytes:
        """Return a request to remove a value."""
        return self._about(self._remove, self._key(key))

    def put(self, key: Key, data: bytes) -> bytes:
        """Return a request to write a value."""
        packed = pickle.dumps((data,), self._protocol)
        return self._about(self._put, self._key(key), self._data + _varint(len(packed)), packed)

    def _key(self, key: Key) -> bytes:
        known = self._keys.get(key)
        if known is None:
            if len(self._keys) >= _REMEMBERED:
                self._keys.clear()
            known = self._keys[key] = _led(pickle.dumps(tuple(key), self._protocol))
        return known

    def _about(self, call: tuple[bytes, bytes], *body: bytes) -> bytes:
        """Return a request: messages within messages, each led by its length, put together once."""
        method, key = call
        size = len(key) + sum(map(len, body))
        called = _varint(size)
        inner = len(self._name) + len(method) + len(called) + size
        of_map = _varint(inner)
        whole = _varint(len(self._map) + len(of_map) + inner)
        return b"".join((self._request, whole, self._map, of_map, self._name, method, called, key, *body))


#: What makes the messages of maps, by name and number of their keys' fields; ``None``: Spark's client does.
_known: dict[tuple[str, int], _Messages | None] = {}


def _messages_of(state: Any, owner: Any, client: Any) -> _Messages | None:
    """Return what makes a map's messages; ``None`` where they are not those of this PySpark."""
    name, schema = getattr(state, "_stateName", None), getattr(owner, "user_key_schema", None)
    if name is None or schema is None:
        return None
    place = name, len(schema.fields)
    if place not in _known:
        _known[place] = _checked(state, client, *place)
    return _known[place]


def _checked(state: Any, client: Any, name: str, fields: int) -> _Messages | None:
    """Return what makes a map's messages, if Spark's client makes the same."""
    try:
        from pyspark.serializers import pickle_protocol

        made = _Messages(name, pickle_protocol)
    except (ImportError, AttributeError, KeyError):
        return None
    key, data = tuple(range(300, 300 + fields)), bytes(300)
    theirs: list[bytes] = []
    client._send_proto_message, client._receive_proto_message = theirs.append, _no_answer
    try:
        state.getValue(key)
        state.updateValue(key, (data,))
        state.removeKey(key)
    finally:
        del client._send_proto_message, client._receive_proto_message
    return made if theirs == [made.get(key), made.put(key, data), made.remove(key)] else None


def _led(data: bytes) -> bytes:
    """Return bytes led by their length."""
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Return a number as protocol buffers have it.

    >>> _varint(300).hex()
    'ac02'
    """
    if number < 0x80:
        return bytes((number,))
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
