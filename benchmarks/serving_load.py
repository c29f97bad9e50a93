"""An open-loop load generator: asks a server at a steady rate, in a process of its own."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

#: Connections that are kept open; more are opened where all are busy.
_CONNECTIONS: Final = 16
_LIMIT_S: Final = 30.0


@dataclass
class Load:
    """What is asked.

    Attributes:
        address: Of the server.
        token: Its token.
        path: What is posted to, or got.
        rate: Requests per second.
        bodies: What is posted, in order; of what is got, what stands behind the path.
        warm: So many of the first are not counted.
        method: ``POST`` or ``GET``.
    """

    address: str
    token: str
    path: str
    rate: float
    bodies: list[str]
    warm: int = 0
    method: str = "POST"


@dataclass
class Told:
    """What came of it.

    Attributes:
        latencies_ms: From when a request was due until its answer was there, of those that are counted.
        statuses: Status → how many.
    """

    latencies_ms: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)


class _Connections:
    def __init__(self, load: Load) -> None:
        parts = urlsplit(load.address)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._begin, self._gets = f"{load.method} {load.path}", load.method == "GET"
        self._head = f" HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {load.token}\r\n"
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, body: bytes) -> int:
        """Post a body, or get what it says, and return the status of the answer."""
        while self._idle:
            try:
                return await self._ask(*self._idle.pop(), body)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass  # the server has closed it meanwhile, as any does that nobody uses
        return await self._ask(*await asyncio.open_connection(self._host, self._port), body)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> int:
        if self._gets:
            writer.write(f"{self._begin}{body.decode()}{self._head}\r\n".encode())
        else:
            told = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(f"{self._begin}{self._head}{told}".encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        await reader.readexactly(length)
        if len(self._idle) < _CONNECTIONS and "connection: close" not in head:
            self._idle.append((reader, writer))
        else:
            writer.close()
        return int(head.split(" ", 2)[1])


async def run(load: Load) -> Told:
    """Post all bodies, each when it is due."""
    told, connections = Told(), _Connections(load)
    begin = time.perf_counter() + 0.1

    async def one(number: int, due: float) -> None:
        try:
            async with asyncio.timeout(_LIMIT_S):
                status = await connections.ask(load.bodies[number].encode())
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            status = 0
        if number >= load.warm:
            told.latencies_ms.append((time.perf_counter() - due) * 1e3)
            told.statuses[status] = told.statuses.get(status, 0) + 1

    async with asyncio.TaskGroup() as group:
        for number in range(len(load.bodies)):
            due = begin + number / load.rate
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            group.create_task(one(number, due))
    return told


def main() -> None:
    """Read a load from standard input and write what came of it."""
    load: Any = msgspec.json.decode(sys.stdin.buffer.read(), type=Load)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(run(load))))


if __name__ == "__main__":
    main()
