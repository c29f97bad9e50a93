"""Connections that ask for nothing: closed after a while, and the oldest of them first where they are many.

A connection that sends no request, or half of one, costs its sender nothing, and the server one of the places
that it has. Who sends a whole request at once is never among the oldest, however many wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from millrace.dashboard.access import SECURITY_HEADERS

#: How long a connection may take for the headers of a request, from its beginning or the last answer, s.
HEADERS_S = 10.0
#: Most connections that wait, of one address and of all.
MOST_OF_ADDRESS = 32
MOST_WAITING = 96


class Waiting:
    """The connections that have not sent a whole request, in the order in which they began to wait.

    Args:
        of_address: Most of one address.
        of_all: Most of all addresses together.
    """

    def __init__(self, of_address: int = MOST_OF_ADDRESS, of_all: int = MOST_WAITING) -> None:
        self._of_address = of_address
        self._of_all = of_all
        self._waiting: dict[Any, str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: Any, address: str) -> list[Any]:
        """Take a connection in, and return those that are too many by now."""
        self.remove(connection)
        self._waiting[connection] = address
        self._counts[address] += 1
        gone = []
        if self._counts[address] > self._of_address:
            gone.append(next(c for c, a in self._waiting.items() if a == address))
        elif len(self._waiting) > self._of_all:
            gone.append(next(iter(self._waiting)))
        for one in gone:
            self.remove(one)
        return gone

    def remove(self, connection: Any) -> None:
        """Forget a connection: it has sent its request, or is gone."""
        address = self._waiting.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]


def patient_protocol(waiting: Waiting, headers_s: float = HEADERS_S) -> type[H11Protocol]:
    """Return uvicorn's protocol with a deadline for the headers of each request.

    Args:
        waiting: Where the server's connections wait.
        headers_s: How long headers may take, seconds.
    """

    class Patient(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_request()

        def handle_events(self) -> None:
            super().handle_events()
            if self.conn.their_state is not h11.IDLE:
                self._end_waiting()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                self._await_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_waiting()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """Answer what is no HTTP; as uvicorn does, and with the headers of every other answer."""
            body = msg.encode("ascii", "replace")
            headers = [("content-type", "text/plain; charset=utf-8"), ("connection", "close")]
            headers += [*SECURITY_HEADERS.items(), ("content-length", str(len(body)))]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body)):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
            self.transport.close()

        def _await_request(self) -> None:
            self._end_waiting()
            self._deadline = self.loop.call_later(headers_s, self._give_up)
            address = self.client[0] if self.client else ""
            for other in waiting.add(self, address):
                other.transport.abort()

        def _give_up(self) -> None:
            self._end_waiting()
            self.transport.abort()

        def _end_waiting(self) -> None:
            waiting.remove(self)
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Patient
