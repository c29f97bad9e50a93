"""Answers /metrics, /healthz and /readyz of a job."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from millrace.errors import UserError
from millrace.observing.exposition import Bounds, health_of, readiness_of, registry_of
from millrace.observing.figures import Figures

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

#: Who says nothing for so long is sent away, seconds.
_PATIENCE_S = 5.0


class Endpoint(ThreadingHTTPServer):
    """The server of a job; it listens as soon as it is made, and answers in :meth:`serving`.

    Args:
        host: Address to listen on.
        port: Port; 0: a free one.

    Raises:
        UserError: The address cannot be had.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.figures: Callable[[], Figures] | None = None
        self.registry: CollectorRegistry | None = None
        self.bounds = Bounds(0, 0, 0)
        self.spent: Callable[[float], None] = lambda cpu_s: None
        try:
            import prometheus_client  # noqa: F401  better missed before Spark starts
        except ImportError as error:
            raise UserError("metrics.port needs prometheus_client: pip install 'millrace[apps]'") from error
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"metrics: cannot listen on {host}:{port} ({error}): set another metrics.port"
            ) from error
        own, number = self.server_address[:2]
        self.address = f"http://{own!s}:{number}"

    @contextmanager
    def serving(
        self, figures: Callable[[], Figures], bounds: Bounds, spent: Callable[[float], None] | None = None
    ) -> Iterator[None]:
        """Answer while the block runs.

        Args:
            figures: Gives the job's figures.
            bounds: What it is judged by.
            spent: Told the CPU time of each answer, seconds.
        """
        self.spent = spent or self.spent
        self.figures, self.bounds = figures, bounds
        self.registry = registry_of(figures)
        thread = threading.Thread(target=self.serve_forever, name="millrace-metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join(5)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of who hangs up."""


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint
    timeout = _PATIENCE_S
    server_version, sys_version = "millrace", ""

    def do_GET(self) -> None:
        """Answer; the thread is this connection's own."""
        began = time.thread_time()
        try:
            self._told()
        finally:
            self.server.spent(time.thread_time() - began)

    def _told(self) -> None:
        figures, registry = self.server.figures, self.server.registry
        assert figures is not None  # noqa: S101  (it answers in `serving`)
        assert registry is not None  # noqa: S101
        path = self.path.partition("?")[0]
        if path == "/metrics":
            from prometheus_client.exposition import choose_encoder

            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, kind, encode(registry))
        elif path in ("/healthz", "/readyz"):
            judge = health_of if path == "/healthz" else readiness_of
            wrong = judge(figures(), time.time_ns() // 1_000_000, self.server.bounds)
            body = {"ok": not wrong, "wrong": wrong}
            self._answer(503 if wrong else 200, "application/json", json.dumps(body).encode() + b"\n")
        else:
            self._answer(404, "text/plain; charset=utf-8", b"/metrics, /healthz, /readyz\n")

    do_HEAD = do_GET

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep no log of who looks."""
