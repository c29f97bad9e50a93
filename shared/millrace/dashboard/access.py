"""Access to the dashboard: who may see it, and who may do something with it.

On the loopback interface everybody on this machine may look, unless the server is private; doing something
takes the token. Elsewhere looking takes it as well. The token is exchanged for a session by opening
``/?token=…`` once, or is sent by programs as ``Authorization: Bearer …``. A session is random, is known to
this server alone, and ends with it, by its age, or as its owner leaves.

Where there are operators the page's token lets look only. Doing something takes the session of an operator,
who has logged in with a token of their own; it ends with that token too, and has the role that the roster
says at each request.

What a browser can be made to send by a foreign page is refused: a name that is not ours in ``Host``
(DNS rebinding), a POST from another origin, without JSON, or without the session's second half, which is
never in a cookie: browsers send cookies to every server of this host, whatever its port, but what our page
has stored they give to our page only.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from millrace.errors import UserError
from millrace.operations.acting import NotAllowed
from millrace.operations.roster import Operator, Role, Roster, RosterError
from millrace.serving.gate import RateLimit

#: Where the token is looked for when it is not given.
TOKEN_VARIABLE = "MILLRACE_DASHBOARD_TOKEN"  # noqa: S105 - a name
COOKIE = "millrace_dashboard"
CSRF_HEADER = "x-millrace-csrf"
#: How long a session lasts, seconds.
SESSION_S = 12 * 3_600.0
#: More sessions than so many: the oldest ends.
MOST_SESSIONS = 256
_SHORTEST_TOKEN = 16
#: Where operators log in.
LOG_IN = "/api/enter"
#: Tries to log in that each address has a second, and all of them together.
_TRIES, _TRIES_OF_ALL = 1.0, 10.0

#: Sent with every answer. The page loads nothing but its own files, and nobody may put it into a frame.
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Say whether a host name or address is this machine's loopback interface.

    >>> [is_loopback(h) for h in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Request:
    """What of a request decides whether it is allowed.

    Attributes:
        method: Its method.
        headers: Its headers, names in lower case.
        cookie: Our cookie, if it came.
        scheme: http or https.
        path: What is asked for.
        address: Where it comes from.
    """

    method: str
    headers: dict[str, str]
    cookie: str
    scheme: str = "http"
    path: str = "/"
    address: str = ""


@dataclass(frozen=True)
class Session:
    """What the token is exchanged for.

    Attributes:
        cookie: Goes into a cookie that scripts cannot read: with it one may look.
        csrf: Goes to the page that was opened, outside of cookies: with both one may act.
    """

    cookie: str
    csrf: str


class _Kept(NamedTuple):
    """What is known of a session: when it ends (seconds), its second half, and whose it is."""

    ends_at: float
    csrf: str
    operator: Operator | None


class Access:
    """The rules of one server.

    Args:
        host: Where it listens.
        token: The token; ``None``: one is made, which is allowed on the loopback interface only.
        private: Whether looking takes the token on the loopback interface too.
        now: A clock that never goes back, seconds.
        operators: Gives the operators as they are now; ``None``: there are none.
        wall_ms: Now, UTC ms.

    Raises:
        UserError: The host is reachable from elsewhere and there is no token, or the token is too short.

    Example:
        >>> access = Access("127.0.0.1", None)
        >>> access.refusal(Request("GET", {"host": "127.0.0.1:8600"}, ""))
        >>> access.refusal(Request("GET", {"host": "evil.example"}, ""))
        (421, 'this server is not called evil.example')
        >>> Access("127.0.0.1", None, private=True).refusal(Request("GET", {"host": "localhost"}, ""))[0]
        401
        >>> Access("0.0.0.0", None)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        millrace.errors.UserError: 0.0.0.0 can be reached from other machines: give a token in ...
    """

    def __init__(
        self,
        host: str,
        token: str | None,
        *,
        private: bool = False,
        now: Callable[[], float] = time.monotonic,
        operators: Callable[[], Roster | None] = lambda: None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.host = host
        self.on_loopback = is_loopback(host)
        self.open_to_readers = self.on_loopback and not private
        if token is None and not self.on_loopback:
            raise UserError(
                f"{host} can be reached from other machines: give a token in {TOKEN_VARIABLE}, "
                "or stay on 127.0.0.1"
            )
        if token is not None and len(token) < _SHORTEST_TOKEN:
            raise UserError(f"the token in {TOKEN_VARIABLE} is shorter than {_SHORTEST_TOKEN} characters")
        #: Whether the token was made here: who gave it knows it, and it need not be printed.
        self.is_generated = token is None
        self.token = token or secrets.token_urlsafe(24)
        self._now = now
        self._operators = operators
        self._wall_ms = wall_ms
        # By the hash of their cookie, so that a look-up tells nothing by the time that it takes.
        self._sessions: dict[bytes, _Kept] = {}
        self._tries, self._tries_of_all = RateLimit(_TRIES, now), RateLimit(_TRIES_OF_ALL, now)
        self._one_at_a_time = threading.Lock()

    def is_token(self, text: str) -> bool:
        """Say whether a text is the token, taking the same time for every text."""
        return _same(text, self.token)

    def enter(self, token: str) -> Session | None:
        """Return a new session for the token; ``None`` for any other text."""
        return self.begin(None) if self.is_token(token) else None

    def begin(self, operator: Operator | None) -> Session:
        """Return a new session, of an operator or of whoever has the page's token."""
        now = self._now()
        self._sessions = {key: kept for key, kept in self._sessions.items() if kept.ends_at > now}
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = Session(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        self._sessions[_hash(session.cookie)] = _Kept(now + SESSION_S, session.csrf, operator)
        return session

    def leave(self, cookie: str) -> None:
        """End the session of a cookie, if there is one."""
        self._sessions.pop(_hash(cookie), None)

    def is_operated(self) -> bool:
        """Say whether there are operators; where they cannot be read there are, and nobody is one."""
        try:
            return self._operators() is not None
        except RosterError:
            return True

    def wait_s(self, address: str) -> int:
        """Return how long an address must wait before it may try to log in, s; 0: this counts as a try."""
        return math.ceil(self._tries.wait_s(address) or self._tries_of_all.wait_s(""))

    def recognised(self, token: str) -> Operator:
        """Return whose token a text is. It takes a while, for one text at a time.

        Raises:
            NotAllowed: It is nobody's, or has ended.
            RosterError: The operators cannot be read.
        """
        with self._one_at_a_time:
            roster = self._operators()
            found = None if roster is None else roster.find(token.strip(), self._wall_ms())
        if found is None:
            raise NotAllowed("this is not the token of an operator, or it has ended")
        return found

    def operator(self, request: Request) -> Operator | None:
        """Return as whom a request comes, with the role that they have now; ``None``: as nobody of them."""
        kept = self._kept(request)
        return None if kept is None else kept.operator

    def acting(self, request: Request) -> Operator | None:
        """Return who acts by a request that was let through; ``None``: there are no operators.

        Raises:
            NotAllowed: There are, and none of them has sent it.
            RosterError: They cannot be read.
        """
        if self._operators() is None:
            return None
        found = self.operator(request)
        if found is None or not self._has_both(request):
            raise NotAllowed("this takes an operator: log in with your token")
        return found

    def is_known(self, request: Request) -> bool:
        """Say whether a request comes with the token or the cookie of a session: it may look."""
        return self._kept(request) is not None or self._by_bearer(request)

    def may_act(self, request: Request) -> bool:
        """Say whether a request comes from who may act: with both halves of a session, or with the token.

        Where there are operators it is the session of one who may decide.
        """
        if self.is_operated():
            found = self.operator(request)
            return found is not None and found.role.covers(Role.decide) and self._has_both(request)
        return self._has_both(request) or self._by_bearer(request)

    def _has_both(self, request: Request) -> bool:
        kept = self._kept(request)
        return kept is not None and _same(request.headers.get(CSRF_HEADER, ""), kept.csrf)

    def _kept(self, request: Request) -> _Kept | None:
        """Return what is known of a request's session, as long as it lasts."""
        kept = self._sessions.get(_hash(request.cookie))
        if kept is None or self._now() >= kept.ends_at:
            return None
        if kept.operator is None:
            return kept
        try:
            roster = self._operators()
        except RosterError:
            return None
        now = None if roster is None else roster.still(kept.operator, self._wall_ms())
        return None if now is None else kept._replace(operator=now)

    def _by_bearer(self, request: Request) -> bool:
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.is_token(value.strip())

    def refusal(self, request: Request) -> tuple[int, str] | None:
        """Return status and reason for a request that is not allowed, ``None`` for one that is."""
        name = host_name(request.headers.get("host", ""))
        if name is None:
            return 400, "the header Host is no name of a host"
        if self.on_loopback and not (is_loopback(name) or name == self.host):
            return 421, f"this server is not called {name[:100]}"
        if request.method in ("GET", "HEAD"):
            if request.path.startswith("/api/") and not _from_our_page(request):
                return 403, "this came from another page"
            if self.open_to_readers or self.is_known(request):
                return None
            if self.is_operated():  # the page without anything in it, so that one can log in
                is_empty = request.path in ("/", "/api/session") or request.path.startswith("/static/")
                return None if is_empty else (401, "log in with your operator's token")
            return 401, "open this page once with /?token=… ; who started the dashboard has the token"
        if request.method != "POST":
            return 405, "only looking, and what the page offers"
        return self._post_refusal(request)

    def _post_refusal(self, request: Request) -> tuple[int, str] | None:
        headers = request.headers
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "JSON is expected"
        if self._by_bearer(request):
            return None  # no browser adds this header by itself
        logs_in = request.path == LOG_IN and self.is_operated()
        if not logs_in and not self.is_known(request):
            if self.is_operated():
                return 401, "this takes an operator: log in with your token"
            return 401, "this takes the token: open the page once with /?token=…"
        own = f"{request.scheme}://{headers.get('host', '')}"
        if headers.get("origin") != own or not _from_our_page(request):
            return 403, "this came from another page"
        if not logs_in and not self._has_both(request):
            return 403, "this came from another page: open the page once more with /?token=…"
        return None


def host_name(header: str) -> str | None:
    """Return the name in a ``Host`` header; ``None`` where it is none.

    >>> [host_name(h) for h in ("localhost:8600", "[::1]:80", "", "[", "a:x", "me@127.0.0.1", "a/b")]
    ['localhost', '::1', '', None, None, None, None]
    """
    try:
        parts = urlsplit(f"//{header}")
        name, _ = parts.hostname or "", parts.port
    except ValueError:
        return None
    return None if parts.username is not None or parts.netloc != header else name


def _from_our_page(request: Request) -> bool:
    """Say whether a browser, if it is one, asks by itself or for our own page."""
    return request.headers.get("sec-fetch-site", "none") in ("same-origin", "none")


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def _hash(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "replace")).digest()
