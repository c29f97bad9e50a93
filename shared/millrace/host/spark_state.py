"""Requests to Spark's state store, sent without waiting for answers.

Spark's client sends one request and waits for its answer: two switches between processes for each. The
server handles the requests of a connection in order, so that they may as well follow each other. Who writes
goes on while the store is at work: what the connection does not take yet is kept here, and sent with what
comes next. Requests of maps of bytes, of which a batch makes hundreds, are also put together here: Spark's
client makes messages within messages and looks through every value for types of NumPy, which takes longer
than the store does.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import socket
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final, NoReturn

from pyspark.errors import PySparkRuntimeError

#: So many requests are put together before any are sent.
_AT_ONCE: Final = 32
#: So many bytes may wait here for the store; who writes more waits for it.
_MOST_UNSENT: Final = 8 << 20
#: So many bytes the connection is asked to take before the store has read them; the system may give fewer.
_SEND_BUFFER: Final = 1 << 20
_READ_AT_ONCE: Final = 256 << 10
#: What stands before a message: version of the protocol, length.
_FRAME: Final = struct.Struct("!ii")
_LENGTH: Final = struct.Struct("!i")
_PROTOCOL: Final = 0
#: What is used of Spark's client, which is not public.
_USED: Final = (
    "_send_proto_message",
    "_receive_proto_message",
    "_deserialize_from_bytes",
    "_client_socket",
)
#: A folder of temporary files whose path is longer is not used for a socket.
_MOST_OF_PATH: Final = 60
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
        makes_messages: Whether those of the map are put together here.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        owner = getattr(state, "_mapStateClient", None)
        client: Any = getattr(owner, "_stateful_processor_api_client", None)
        self._client = client
        self.ahead = all(hasattr(client, name) for name in _USED)
        self._messages = _messages_of(state, owner, client) if self.ahead else None
        self.makes_messages = self._messages is not None
        self._connection = _Connection(client._client_socket) if self.ahead else None  # noqa: SLF001

    def write(self, requests: Sequence[Callable[[], object]]) -> None:
        """Have requests done that only write, in order.

        Args:
            requests: Calls of the states' methods.

        Raises:
            PySparkRuntimeError: The state store refuses one.
        """
        if self.ahead:
            self._asked(_captured(self._client, requests))
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
        found = self._client._deserialize_from_bytes
        return [found(value) if value else None for value in self._asked(_captured(self._client, requests))]

    def get(self, keys: Sequence[Key]) -> list[bytes | None]:
        """Return the bytes that the map has under some keys, in order; ``None`` where it has none.

        Raises:
            PySparkRuntimeError: The state store refuses a request.
        """
        messages = self._messages
        if messages is None:
            found = [self._state.getValue(key) for key in keys]
            return [None if row is None else bytes(row[0]) for row in found]
        read = self._client._deserialize_from_bytes
        return [bytes(read(value)[0]) if value else None for value in self._asked(map(messages.get, keys))]

    def put(self, changes: Iterable[tuple[Key, bytes | None]], *, wait: bool = True) -> None:
        """Write bytes into the map, or remove them (``None``), in order.

        Args:
            changes: What to write where.
            wait: Whether to wait until the store has taken all of them; else it is at work on the last ones,
                and whether it does is told by a later call, at the latest by the next one that waits.

        Raises:
            PySparkRuntimeError: The state store refuses a request, be it of an earlier call.
        """
        messages, connection = self._messages, self._connection
        if messages is not None and connection is not None:
            connection.send(
                messages.remove(key) if data is None else messages.put(key, data) for key, data in changes
            )
            if wait:
                connection.wait()
            return
        for key, data in changes:
            if data is None:
                self._state.removeKey(key)
            else:
                self._state.updateValue(key, (data,))

    def _asked(self, messages: Iterable[bytes]) -> list[bytes]:
        """Send messages; return the values of their answers."""
        connection = self._connection
        assert connection is not None  # noqa: S101  (who comes here has one)
        connection.wait()
        connection.send(messages)
        return connection.wait()


class _Connection:
    """A connection to the state store, which is written to and read from as far as that needs no waiting.

    Neither side ever waits for the other to read: as long as there is something to send, answers are read,
    so that a store which reads no more, since it has refused something, can still be heard.

    Args:
        of: The connection of Spark's client, which has nothing on the way.
    """

    def __init__(self, of: socket.socket) -> None:
        self._socket = of
        with contextlib.suppress(OSError):
            of.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self._poll = select.poll()
        self._poll.register(of)
        self._unsent = bytearray()
        self._read = bytearray()
        #: How many answers are to come, and the values of those that have come since all had.
        self._awaited = 0
        self._values: list[bytes] = []
        self._refused = ""

    def send(self, messages: Iterable[bytes]) -> None:
        """Send messages, or keep what the connection does not take yet.

        Raises:
            PySparkRuntimeError: The store refuses one, be it an earlier one.
        """
        self._fail_if_refused()
        unsent = self._unsent
        left = iter(messages)
        # The next ones are made while the store is at work on those before.
        while part := list(islice(left, _AT_ONCE)):
            for message in part:
                unsent += _FRAME.pack(_PROTOCOL, len(message))
                unsent += message
            self._awaited += len(part)
            self._go_on(0)
            while len(unsent) > _MOST_UNSENT:
                self._go_on(self._patience_ms())

    def wait(self) -> list[bytes]:
        """Wait until all that was sent is answered; return the values of the answers that had not come.

        Raises:
            PySparkRuntimeError: The store refuses a message, or has ended the connection.
        """
        self._fail_if_refused()
        while self._awaited:
            self._go_on(self._patience_ms())
        values, self._values = self._values, []
        return values

    def _fail_if_refused(self) -> None:
        if self._refused:
            raise PySparkRuntimeError(self._refused)

    def _patience_ms(self) -> float | None:
        """Return how long to wait for the store to do something; ``None``: as long as it takes."""
        seconds = self._socket.gettimeout()
        return None if seconds is None else seconds * 1_000

    def _go_on(self, patience_ms: float | None) -> None:
        """Read what has come and send what can be sent, once; wait so long for either.

        Raises:
            TimeoutError: Neither was possible, and it was waited for.
        """
        wanted = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        self._poll.modify(self._socket, wanted)
        found = self._poll.poll(patience_ms)
        if not found:
            if patience_ms != 0:
                raise TimeoutError("the state store does not answer")
            return
        ((_, can),) = found
        if can & ~select.POLLOUT:
            self._receive()
        if can & select.POLLOUT:
            sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT)
            del self._unsent[:sent]

    def _receive(self) -> None:
        """Read what has come, and take the answers that are whole.

        Raises:
            PySparkRuntimeError: The store has ended the connection. It is no EOFError, which Spark takes here
                and there for the end of what there is.
        """
        part = self._socket.recv(_READ_AT_ONCE, socket.MSG_DONTWAIT)
        if not part:
            self._refuse("the state store has ended the connection")
        read = self._read
        read += part
        at, end, length = 0, len(read), _LENGTH.size
        while end - at >= length:
            (size,) = _LENGTH.unpack_from(read, at)
            if end - at < length + size:
                break
            at += length
            # An answer that only says that it is done has no bytes.
            self._values.append(self._value(bytes(read[at : at + size])) if size else b"")
            self._awaited -= 1
            at += size
        del read[:at]

    def _value(self, answer: bytes) -> bytes:
        from pyspark.sql.streaming.proto import StateMessage_pb2 as proto

        message = proto.StateResponse()
        message.ParseFromString(answer)
        if message.statusCode != 0:
            self._refuse(f"the state store refuses a request: {message.errorMessage}")
        return message.value

    def _refuse(self, said: str) -> NoReturn:
        self._refused = said
        raise PySparkRuntimeError(said)


def _captured(client: Any, requests: Sequence[Callable[[], object]]) -> list[bytes]:
    """Return the messages of requests, which the states make as ever, without sending them."""
    messages: list[bytes] = []
    client._send_proto_message, client._receive_proto_message = messages.append, _no_answer
    try:
        for request in requests:
            request()
    finally:
        del client._send_proto_message, client._receive_proto_message
    return messages


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
    theirs = _captured(
        client,
        [
            partial(state.getValue, key),
            partial(state.updateValue, key, (data,)),
            partial(state.removeKey, key),
        ],
    )
    return made if theirs == [made.get(key), made.put(key, data), made.remove(key)] else None


@lru_cache
def sends_ahead() -> bool:
    """Return whether requests can be sent many at a time with the PySpark that is installed.

    Its client is not public: where it is another one than is known here, a station would wait for the answer
    to each of its requests.
    """
    try:
        from pyspark.sql import types as t
        from pyspark.sql.streaming.map_state_client import MapStateClient
        from pyspark.sql.streaming.stateful_processor import MapState
        from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient

        key = t.StructType([t.StructField("n", t.LongType())])
        data = t.StructType([t.StructField("b", t.BinaryType())])
        # Sockets have short paths by law.
        root = tempfile.gettempdir()
        root = root if len(root) < _MOST_OF_PATH else "/tmp"  # noqa: S108  (a folder of its own in there)
        with (
            tempfile.TemporaryDirectory(prefix="millrace-", dir=root) as folder,
            _listening(f"{folder}/s") as place,
        ):
            client: Any = StatefulProcessorApiClient(place, key)
            try:
                return StateClient(MapState(MapStateClient(client, key, data), "known")).makes_messages
            finally:
                client.sockfile.close()
                client._client_socket.close()  # noqa: SLF001
    except Exception:  # whatever it is that is not as it was
        return False


@contextlib.contextmanager
def _listening(place: str) -> Iterator[str]:
    """Listen on a socket, for who only has to be connected."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(place)
        listening.listen(1)
        yield place


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
