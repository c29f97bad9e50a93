"""Access checks in front of the pages: who is let in, security headers, HEAD requests."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qs

from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.dashboard.access import COOKIE, SECURITY_HEADERS, Access, Request, Session

#: Says that the server is alive and nothing else, so it is answered to everybody.
HEALTH = "/healthz"
_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


class Guard:
    """Lets requests through to an application, or refuses them; every answer has the headers of security.

    Args:
        app: The application.
        access: Who may do what.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(receive, send, bodiless=scope["method"] == "HEAD")
        about = request_of(scope)
        answer = self._answer(about, scope["query_string"])
        if answer is None:
            scope = {**scope, "method": "GET" if about.method == "HEAD" else about.method}
            scope["state"] = {**scope.get("state", {}), "asked": about}
            await self._app(scope, exchange.receive, exchange.send)
        else:
            await answer(scope, exchange.receive, exchange.send)

    def _answer(self, about: Request, query: bytes) -> Response | None:
        """Return what is to be answered at once: a refusal, the way in, whether we live."""
        if about.path == HEALTH and about.method in ("GET", "HEAD"):
            return JSONResponse({"status": "ok"})
        refusal = self._access.refusal(about)
        token = parse_qs(query.decode("latin-1")).get("token") if about.path == "/" else None
        if token and about.method == "GET" and (refusal is None or refusal[0] == 401):
            return self._enter(token[0], secure=about.scheme == "https")
        return None if refusal is None else _refused(refusal[1], refusal[0])

    def _enter(self, token: str, *, secure: bool) -> Response:
        """Exchange the token for a session, and take it out of the address.

        The half of it that lets act goes behind the ``#``, which browsers send to no server: the page keeps
        it.
        """
        session = self._access.enter(token)
        if session is None:
            return _refused("this is not the token", 401)
        answer = RedirectResponse(f"/#act={session.csrf}", status_code=303)
        give_session(answer, session, secure=secure)
        return answer


def give_session(answer: Response, session: Session, *, secure: bool) -> None:
    """Add the half of a session to an answer that goes into a cookie.

    Args:
        answer: The answer.
        session: The session.
        secure: Whether the answer goes over https, and the cookie shall go over nothing else.
    """
    answer.set_cookie(COOKIE, session.cookie, httponly=True, samesite="strict", secure=secure, path="/")


def request_of(scope: Scope) -> Request:
    """Return what decides of a request, whatever its headers hold."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE) or ""
    scheme = headers.get("x-forwarded-proto", str(scope["scheme"]))
    address = str((scope.get("client") or ("",))[0])
    return Request(scope["method"], headers, cookie, scheme, scope["path"], address)


def _refused(reason: str, status: int) -> Response:
    # Whoever is not let in shall not keep the connection either.
    return PlainTextResponse(reason + "\n", status_code=status, headers={"connection": "close"})


class _Exchange:
    """One request's messages: headers are added to what is sent, and a body is left out where none is due."""

    def __init__(self, receive: Receive, send: Send, *, bodiless: bool) -> None:
        self._receive = receive
        self._send = send
        self._bodiless = bodiless
        self._is_over = False

    async def receive(self) -> Message:
        """Return the next message; once headers alone were sent, that the client is gone: so streams end."""
        return {"type": "http.disconnect"} if self._is_over else await self._receive()

    async def send(self, message: Message) -> None:
        """Send a message."""
        if self._is_over:
            return
        if message["type"] == "http.response.start":
            message = {**message, "headers": _with_ours(message.get("headers", ()))}
        await self._send(message)
        if self._bodiless and message["type"] == "http.response.start":
            self._is_over = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _with_ours(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    ours = {name for name, _ in _HEADERS}
    return [*((name, value) for name, value in headers if name.lower() not in ours), *_HEADERS]
