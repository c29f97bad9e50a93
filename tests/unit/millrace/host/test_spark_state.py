"""Requests to Spark's state store: PySpark's own client against a store that speaks its protocol."""

from __future__ import annotations

import contextlib
import pickle
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as t
from pyspark.sql.streaming.map_state_client import MapStateClient
from pyspark.sql.streaming.stateful_processor import MapState
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient

from millrace.host.spark_state import StateClient, sends_ahead
from millrace.host.spark_worker import _Backend
from tests.cases import case_count

KEY, VALUE = (
    t.StructType([t.StructField("n", t.LongType())]),
    t.StructType([t.StructField("b", t.BinaryType())]),
)


class Store:
    """A state store of one map and one value: it answers when so many requests are there.

    Whoever waits for an answer before the next request waits forever.
    """

    def __init__(self, path: str) -> None:
        self.pages: dict[int, bytes] = {}
        self.header: bytes | None = None
        self.together = 1
        self.arrived = 0
        self.seen: list[str] = []
        self.refused = ""
        self._has_refused = False
        #: Cleared, it reads nothing.
        self.reads = threading.Event()
        self.reads.set()
        self.over = threading.Event()
        #: What becomes of the connection when something was refused: Spark's server answers nothing more, and
        #: leaves it open; or it is closed.
        self.closes = False
        self._listens = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listens.bind(path)
        self._listens.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            connection, _ = self._listens.accept()
        except OSError:
            return  # closed before anybody came
        # Whoever asked may have gone.
        with contextlib.suppress(ConnectionError), connection, connection.makefile("rwb") as file:
            waiting: list[Any] = []
            while self.reads.wait(20) and (head := file.read(8)):
                version, length = struct.unpack("!ii", head)
                assert version == 0
                waiting.append(file.read(length))
                self.arrived += 1
                if len(waiting) == self.together:
                    for message in waiting:
                        answer = self._answer(message)
                        if not (answer and self.closes and self._has_refused):
                            file.write(struct.pack("!i", len(answer)) + answer)
                        file.flush()
                        if self._has_refused:
                            break
                    waiting = []
                if self._has_refused:
                    assert self.closes or self.over.wait(20)
                    return

    def _answer(self, message: bytes) -> bytes:
        from pyspark.sql.streaming.proto import StateMessage_pb2 as proto

        request = proto.StateRequest()
        request.ParseFromString(message)
        variable = request.stateVariableRequest
        call = variable.mapStateCall if variable.HasField("mapStateCall") else variable.valueStateCall
        kind = call.WhichOneof("method")
        self.seen.append(kind)
        value = b""
        if kind == self.refused:
            self._has_refused = True
            return proto.StateResponse(statusCode=1, errorMessage="no room").SerializeToString()  # type: ignore[no-any-return]
        if kind == "getValue":
            number = _field(call.getValue.userKey)
            if number in self.pages:
                value = pickle.dumps((self.pages[number],))
        elif kind == "updateValue":
            self.pages[_field(call.updateValue.userKey)] = _field(call.updateValue.value)
        elif kind == "removeKey":
            self.pages.pop(_field(call.removeKey.userKey), None)
        return proto.StateResponse(statusCode=0, value=value).SerializeToString()  # type: ignore[no-any-return]

    def close(self) -> None:
        self.over.set()
        self._listens.close()
        self._thread.join(5)


def _field(row: bytes) -> Any:
    (found,) = pickle.loads(row)  # noqa: S301 - what the client has just made
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(str(tmp_path / "s"))
    yield made
    made.close()


@pytest.fixture
def pages(store: Store, tmp_path: Path) -> Iterator[MapState]:
    client = StatefulProcessorApiClient(str(tmp_path / "s"), KEY)
    client._client_socket.settimeout(20)
    yield MapState(MapStateClient(client, KEY, VALUE), "pages")
    client.sockfile.close()
    client._client_socket.close()


def backend(pages: MapState) -> _Backend:
    return _Backend(StateClient(pages), None, pages)


def test_the_client_of_this_pyspark_is_as_it_is_known(pages: MapState) -> None:
    client = StateClient(pages)
    assert client.ahead
    assert client._messages is not None


@pytest.mark.parametrize("key", [0, 1, 255, 256, 65_536, 2**40, -3])
@pytest.mark.parametrize("size", [0, 1, 127, 128, 300, 70_000])
def test_messages_are_those_of_the_client_of_this_pyspark(pages: MapState, key: int, size: int) -> None:
    own = StateClient(pages)._messages
    assert own is not None
    theirs: list[bytes] = []
    client = pages._mapStateClient._stateful_processor_api_client
    client._send_proto_message = theirs.append  # type: ignore[method-assign]
    client._receive_proto_message = lambda: (0, "", b"")  # type: ignore[method-assign]
    pages.getValue((key,))
    pages.updateValue((key,), (bytes(size),))
    pages.removeKey((key,))
    assert theirs == [own.get((key,)), own.put((key,), bytes(size)), own.remove((key,))]


def test_requests_follow_each_other_without_waiting_for_answers(store: Store, pages: MapState) -> None:
    store.pages = {n: bytes([n]) * 20_000 for n in range(7)}
    store.together = 7
    assert backend(pages).get_pages(range(7)) == [bytes([n]) * 20_000 for n in range(7)]
    kept = backend(pages)
    for n in range(6):
        kept.put_page(n, b"new %d" % n)
    kept.delete_page(6)
    assert store.seen[7:] == []  # not sent before the end of the batch
    kept.flush()
    assert store.seen[7:] == ["updateValue"] * 6 + ["removeKey"]
    assert store.pages == {n: b"new %d" % n for n in range(6)}


def test_more_requests_than_are_let_on_the_way_all_come_in_order(store: Store, pages: MapState) -> None:
    kept = backend(pages)
    for n in range(100):
        kept.put_page(n, b"%d" % n * 3_000)
    kept.flush()
    assert list(store.pages) == list(range(100))
    assert kept.get_pages(range(99, -1, -1)) == [b"%d" % n * 3_000 for n in range(99, -1, -1)]


def test_the_next_requests_are_sent_before_the_first_answers_are_read(store: Store, pages: MapState) -> None:
    store.together = 64  # whoever sends 32 and waits for their answers waits forever
    client = StateClient(pages)
    client.put([((n,), b"%d" % n) for n in range(192)])
    assert client.get([(n,) for n in range(64)]) == [b"%d" % n for n in range(64)]


def test_a_store_that_has_stopped_answering_is_waited_for_as_long_as_the_connection_says(
    store: Store, pages: MapState
) -> None:
    store.together = 1_000
    pages._mapStateClient._stateful_processor_api_client._client_socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        StateClient(pages).put([((n,), b"x") for n in range(999)])


def test_who_writes_goes_on_though_the_store_reads_nothing_yet(store: Store, pages: MapState) -> None:
    store.reads.clear()
    pages._mapStateClient._stateful_processor_api_client._client_socket.settimeout(0.2)
    client = StateClient(pages)
    for n in range(100):
        client.put([((n,), bytes([n]) * 60_000)], wait=False)  # 6 MB: more than a connection holds
    store.reads.set()
    assert client.get([(0,), (99,)]) == [bytes(60_000), bytes([99]) * 60_000]
    assert list(store.pages) == list(range(100))


def test_no_more_than_some_megabytes_wait_for_a_store_that_reads_nothing(
    store: Store, pages: MapState
) -> None:
    store.reads.clear()
    pages._mapStateClient._stateful_processor_api_client._client_socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        StateClient(pages).put([((n,), bytes(60_000)) for n in range(400)], wait=False)
    store.reads.set()


def test_who_does_not_wait_goes_on_while_the_store_is_at_work(store: Store, pages: MapState) -> None:
    store.together = 5  # nothing is answered before the fifth
    client = StateClient(pages)
    client.put([((n,), b"%d" % n) for n in range(2)], wait=False)
    client.put([((2,), b"2")], wait=False)
    client.put([((0,), None), ((2,), b"new")])
    assert store.seen == ["updateValue"] * 3 + ["removeKey", "updateValue"]
    store.together = 1
    client.put([((9,), b"9")], wait=False)
    assert client.get([(0,), (1,), (2,), (9,)]) == [None, b"1", b"new", b"9"]
    client.put([((9,), None)], wait=False)
    assert client.read([partial(pages.getValue, (9,))]) == [None]


def test_what_was_refused_of_those_who_did_not_wait_is_told_to_the_next_who_does(
    store: Store, pages: MapState
) -> None:
    client = StateClient(pages)
    store.refused = "removeKey"
    with contextlib.suppress(PySparkRuntimeError):  # by who does not, where it has come already
        client.put([((1,), None), ((1,), b"x")], wait=False)
        client.put([((2,), b"x")] * 10, wait=False)
    for again in (client.put, client.get, client.put):
        with pytest.raises(PySparkRuntimeError, match="no room"):
            again([])
    assert store.pages == {}  # a batch whose state is not whole goes on with nothing


def test_what_is_written_is_read_back_within_the_batch(store: Store, pages: MapState) -> None:
    kept = backend(pages)
    kept.put_page(3, b"x")
    assert kept.get_page(3) == b"x"
    assert kept.get_pages([3, 4]) == [b"x", b""]  # none is told from a page that is there by its bytes


@pytest.mark.parametrize("count", [1, 3, 40, 200])
@pytest.mark.parametrize("size", [1, 3_000, 100_000])
def test_a_refusal_is_told_though_the_store_neither_reads_nor_answers_any_more(
    store: Store, pages: MapState, count: int, size: int
) -> None:
    """So Spark's server does. Whoever waits for the other answers, or has more to send, waits forever."""
    client = StateClient(pages)
    pages._mapStateClient._stateful_processor_api_client._client_socket.settimeout(2)
    client.put([((n,), bytes(size)) for n in range(7)])
    store.refused = "removeKey"
    with pytest.raises(PySparkRuntimeError, match="no room"):
        client.put([((n,), None if n == 0 else bytes(size)) for n in range(count)])
    with pytest.raises(PySparkRuntimeError, match="no room"):
        client.get([(5,)])


def test_a_refusal_of_what_the_client_of_this_pyspark_asks_is_told(store: Store, pages: MapState) -> None:
    client = StateClient(pages)
    pages._mapStateClient._stateful_processor_api_client._client_socket.settimeout(2)
    store.refused = "updateValue"
    with pytest.raises(PySparkRuntimeError, match="no room"):
        client.write([partial(pages.updateValue, (n,), (b"x",)) for n in range(3)])
    with pytest.raises(PySparkRuntimeError, match="no room"):
        client.write([partial(pages.updateValue, (1,), (b"x",))])


@pytest.mark.parametrize("asks", ["get", "put"])
def test_a_connection_that_ends_is_not_taken_for_a_store_that_has_nothing(
    store: Store, pages: MapState, asks: str
) -> None:
    client = StateClient(pages)
    client.put([((n,), b"x") for n in range(3)])
    store.refused, store.closes = "removeKey", True
    client.put([((1,), None)], wait=False)
    with pytest.raises((PySparkRuntimeError, ConnectionError)):
        client.get([(0,), (2,)]) if asks == "get" else client.put([])


@pytest.mark.parametrize("seed", range(case_count(30)))
def test_of_any_requests_each_gets_its_own_answer(store: Store, pages: MapState, seed: int) -> None:
    """The oracle is a dictionary; sizes are around those at which what is sent comes in several parts."""
    chance = random.Random(seed)
    client, wanted = StateClient(pages), dict[int, bytes]()
    for _ in range(12):
        keys = [chance.randrange(40) for _ in range(chance.choice((0, 1, 31, 32, 33, 64, 65, 100)))]
        if chance.random() < 0.4:
            assert client.get([(key,) for key in keys]) == [wanted.get(key) for key in keys]
            continue
        size = chance.choice((0, 1, 127, 2_000, 9_000))
        changes = [
            (key, None if chance.random() < 0.2 else chance.randbytes(size + chance.randrange(3)))
            for key in keys
        ]
        client.put([((key,), data) for key, data in changes], wait=chance.random() < 0.5)
        for key, data in changes:
            if data is None:
                wanted.pop(key, None)
            else:
                wanted[key] = data
    client.put([])
    assert store.pages == wanted


def test_the_client_is_known_wherever_temporary_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (far := tmp_path / ("x" * 90)).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(far))
    sends_ahead.cache_clear()
    assert sends_ahead()
    assert [*far.iterdir()] == []


def test_a_client_that_is_not_known_is_asked_one_by_one() -> None:
    asked: list[int] = []

    def request(n: int) -> Callable[[], int]:
        return lambda: asked.append(n) or n

    client = StateClient(object())
    assert not client.ahead
    client.write([request(1), request(2)])
    assert client.read([request(3), request(4)]) == [3, 4]
    assert asked == [1, 2, 3, 4]


def test_a_map_that_is_not_known_is_asked_by_its_own_methods() -> None:
    class Map:
        kept: ClassVar[dict[tuple[int, ...], tuple[bytes]]] = {}

        def getValue(self, key: tuple[int, ...]) -> tuple[bytes] | None:
            return self.kept.get(key)

        def updateValue(self, key: tuple[int, ...], value: tuple[bytes]) -> None:
            self.kept[key] = value

        def removeKey(self, key: tuple[int, ...]) -> None:
            del self.kept[key]

    client = StateClient(Map())
    client.put([((1,), b"a"), ((2,), b"b"), ((1,), None)])
    assert client.get([(1,), (2,)]) == [None, b"b"]
