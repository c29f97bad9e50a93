"""The server of questions: HTTP in, JSON out, nothing else.

Answers are made in threads: reading a key takes a fraction of a millisecond, what an app asks may be more.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from millrace.checkpoints.committed import CommittedState
from millrace.checkpoints.entries import as_json
from millrace.dashboard.access import SECURITY_HEADERS
from millrace.errors import MillraceError, UserError
from millrace.runtime.redaction import redact_text
from millrace.serving.following import NotCommittedYet
from millrace.serving.gate import RateLimit, Token
from millrace.serving.questions import NotFound, Question, Refused, of_key, processes

_log = logging.getLogger("millrace.serving")

HEALTH: Final = "healthz"
#: Bytes of a request's body.
LARGEST_BODY: Final = 65_536
#: Seconds that a body may take to come.
_BODY_S: Final = 5.0
#: Most of them wait, for a broker or for each other.
_THREADS: Final = 32
#: Requests that are worked on or wait at once; more are turned away.
MOST_AT_ONCE: Final = 256

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Answer(NamedTuple):
    """An answer.

    Attributes:
        status: Its status.
        body: Plain data.
        headers: Headers beside those of every answer.
    """

    status: int
    body: Any
    headers: tuple[tuple[str, str], ...] = ()


#: What a POST does: body → answer.
Action = Callable[[bytes], Answer]


class Server:
    """An ASGI application.

    Args:
        state: Returns the state; it raises :class:`NotCommittedYet` as long as there is none.
        questions: The app's own questions, by name.
        actions: What else may be asked by POST: ``v1/decide`` → what answers it.
        token: What must come with every question but that for health.
        limit: How often an address may ask.
        health: What is told of health beside the batch.
    """

    def __init__(
        self,
        state: Callable[[], CommittedState],
        *,
        token: Token,
        questions: Mapping[str, Question] | None = None,
        actions: Mapping[str, Action] | None = None,
        limit: RateLimit | None = None,
        health: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._state = state
        self._questions = dict(questions or {})
        self._actions = dict(actions or {})
        self._token = token
        self._limit = limit or RateLimit(0)
        self._health = health
        self._threads = ThreadPoolExecutor(_THREADS, "millrace-serving")
        self._at_work = 0

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        path = [unquote(part) for part in scope["raw_path"].decode("latin-1").strip("/").split("/")]
        self._at_work += 1
        try:
            answer = await self._answer(scope, path, receive)
        finally:
            self._at_work -= 1
        await _send(send, answer, bodiless=scope["method"] == "HEAD")
        # A key may be a person: it is not told.
        what = "/".join(path[:3] if path[:2] == ["v1", "state"] else path[:2])[:80]
        taken = (time.perf_counter() - began) * 1e3
        _log.info("%s /%s %d %.1f ms", scope["method"], ascii(what)[1:-1], answer.status, taken)

    async def _answer(self, scope: Mapping[str, Any], path: list[str], receive: Receive) -> Answer:
        method = scope["method"]
        if path == [HEALTH] and method in ("GET", "HEAD"):
            return self._alive()
        address = scope["client"][0] if scope.get("client") else ""
        if (wait := self._limit.wait_s(address)) > 0:
            return _refusal(429, "too many questions", ("retry-after", str(math.ceil(wait))))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if not self._token.fits(headers.get("authorization", "")):
            how = ("www-authenticate", "Bearer")
            return _refusal(401, "this takes the token: Authorization: Bearer …", how)
        if self._at_work > MOST_AT_ONCE:
            return _refusal(503, "too much is asked at once", ("retry-after", "1"))
        action = self._actions.get("/".join(path))
        if action is not None and method != "POST":
            return _refusal(405, "this is asked by POST", ("allow", "POST"))
        if action is None and method not in ("GET", "HEAD"):
            return _refusal(405, "this is asked by GET", ("allow", "GET, HEAD"))
        body = b""
        if action is not None:
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                return _refusal(415, "JSON is expected (Content-Type: application/json)")
            try:
                body = await asyncio.wait_for(_body(receive), _BODY_S)
            except ValueError:
                return _refusal(413, f"that is longer than {LARGEST_BODY:,} bytes", ("connection", "close"))
            except (TimeoutError, ConnectionError):
                return _refusal(408, "the body did not come in time", ("connection", "close"))
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._in_thread, path, query, action, body)

    def _in_thread(
        self, path: list[str], query: Mapping[str, str], action: Action | None, body: bytes
    ) -> Answer:
        try:
            return Answer(200, self._found(path, query)) if action is None else action(body)
        except NotCommittedYet as error:
            return _refusal(503, redact_text(str(error)), ("retry-after", "1"))
        except NotFound as error:
            return _refusal(404, redact_text(str(error)))
        except Refused as error:
            return _refusal(400, redact_text(str(error)))
        except MillraceError as error:
            _log.error("%s", error)
            return _refusal(503 if isinstance(error, UserError) else 500, redact_text(str(error)))
        except Exception:
            _log.exception("a question could not be answered")
            return _refusal(500, "this could not be answered; the server's log says why")

    def _found(self, path: list[str], query: Mapping[str, str]) -> Any:
        match path:
            case ["v1", "processes"]:
                return processes(self._state())
            case ["v1", "state", process, *key] if key:
                return of_key(self._state(), process, key)
            case ["v1", "questions"]:
                return {
                    name: {"tells": q.summary, "parameters": q.parameters, "optional": q.optional}
                    for name, q in self._questions.items()
                }
            case ["v1", "ask", name]:
                if name not in self._questions:
                    known = ", ".join(self._questions) or "none"
                    raise NotFound(f"there is no question {name[:100]}; there are {known}")
                return self._questions[name].ask(self._state(), query)
        raise NotFound(
            "ask /v1/processes, /v1/state/<process>/<key>, /v1/questions, /v1/ask/<question>"
            + "".join(f", POST /{name}" for name in self._actions)
        )

    def _alive(self) -> Answer:
        try:
            batch: int | None = self._state().batch
        except NotCommittedYet:
            batch = None
        return Answer(200, {"status": "ok", "ready": batch is not None, "batch": batch, **self._health()})

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=True)


def _refusal(status: int, why: str, *headers: tuple[str, str]) -> Answer:
    return Answer(status, {"error": why}, headers)


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("gone")
        body += message.get("body", b"")
        if len(body) > LARGEST_BODY:
            raise ValueError("too long")
        if not message.get("more_body"):
            return bytes(body)


async def _send(send: Send, answer: Answer, *, bodiless: bool) -> None:
    body = as_json(answer.body).encode()
    headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
    headers += [*SECURITY_HEADERS.items(), *answer.headers]
    told = [(name.encode(), value.encode()) for name, value in headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": told})
    await send({"type": "http.response.body", "body": b"" if bodiless else body})
