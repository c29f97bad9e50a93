"""A schema registry over HTTP in this process, as far as clients that register and read schemas need one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LocalRegistry:
    """What the registry knows.

    Attributes:
        url: Its address.
        schemas: Schemas with their kinds; the id of one is its place, from 1.
        asked: Paths that were read.
    """

    def __init__(self) -> None:
        self.url = ""
        self.schemas: list[tuple[str, str]] = []
        self.asked: list[str] = []

    def add(self, text: str, kind: str) -> int:
        if (text, kind) not in self.schemas:
            self.schemas.append((text, kind))
        return self.schemas.index((text, kind)) + 1


@contextmanager
def local_registry() -> Iterator[LocalRegistry]:
    """Serve a registry on a free port until the end of the block."""
    registry = LocalRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(200, {"id": registry.add(body["schema"], body.get("schemaType", "AVRO"))})

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            registry.asked.append(path)
            last = path.rpartition("/")[2]
            number = int(last) if last.isdecimal() else 0
            if not 0 < number <= len(registry.schemas):
                self._answer(404, {"error_code": 40403, "message": "Schema not found"})
                return
            text, kind = registry.schemas[number - 1]
            self._answer(200, {"schema": text, "schemaType": kind})

        def _answer(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
