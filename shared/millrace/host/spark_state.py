"""Requests to Spark's state store, several on the way before the first answer is awaited.

Spark's client sends one request and waits for its answer: two switches between processes for each. The
server handles the requests of a connection in order, so that they may as well follow each other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark.errors import PySparkRuntimeError

#: So many requests at most: their answers, and those of the smallest requests, fit the socket's buffers, so
#: that neither side ever waits for the other to read.
_ON_THE_WAY: Final = 32
#: What stands before a message: version of the protocol, length.
_FRAME: Final = struct.Struct("!ii")
_PROTOCOL: Final = 0
#: What is used of Spark's client, which is not public.
_USED: Final = ("_send_proto_message", "_receive_proto_message", "_deserialize_from_bytes", "sockfile")


class StateClient:
    """Sends the requests of states many at a time.

    Args:
        state: Any of the states of a processor: they share a connection. Where its client is not as it is
            known here, requests are sent one by one.

    Attributes:
        ahead: Whether several are sent at a time.
    """

    def __init__(self, state: Any) -> None:
        owner = getattr(state, "_mapStateClient", None)
        self._client = getattr(owner, "_stateful_processor_api_client", None)
        self.ahead = all(hasattr(self._client, name) for name in _USED)

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
        if not self.ahead or len(requests) < 2:
            return [request() for request in requests]
        found = self._client._deserialize_from_bytes  # type: ignore[union-attr]
        return [found(value) if value else None for value in self._ask(requests)]

    def _ask(self, requests: Sequence[Callable[[], object]]) -> list[bytes]:
        client: Any = self._client
        values: list[bytes] = []
        for low in range(0, len(requests), _ON_THE_WAY):
            part = requests[low : low + _ON_THE_WAY]
            # The states make their messages as ever; what they send is left in the buffer.
            client._send_proto_message, client._receive_proto_message = self._keep, _no_answer
            try:
                for request in part:
                    request()
            finally:
                del client._send_proto_message, client._receive_proto_message
            client.sockfile.flush()
            answers = [client._receive_proto_message() for _ in part]
            for status, said, value in answers:
                if status != 0:
                    raise PySparkRuntimeError(f"the state store refuses a request: {said}")
                values.append(value)
        return values

    def _keep(self, message: bytes) -> None:
        """Write a message as Spark's client does, and do not send it yet."""
        sockfile = self._client.sockfile  # type: ignore[union-attr]
        sockfile.write(_FRAME.pack(_PROTOCOL, len(message)))
        sockfile.write(message)


def _no_answer() -> tuple[int, str, bytes]:
    return 0, "", b""
