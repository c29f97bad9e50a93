"""Who may see the dashboard, and who may do something with it.

On the loopback interface everybody on this machine may look; doing something takes the token. Elsewhere
looking takes it as well. The token is exchanged for a cookie by opening ``/?token=…`` once, or is sent by
programs as ``Authorization: Bearer …``.

What a browser can be made to send by a foreign page is refused: a name that is not ours in ``Host``
(DNS rebinding), a POST from another origin, without JSON, or without the value that only our own page
can read (cross-site request forgery).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit

from millrace.errors import UserError

#: Where the token is looked for when it is not given.
TOKEN_VARIABLE = "MILLRACE_DASHBOARD_TOKEN"  # noqa: S105 - a name
COOKIE = "millrace_dashboard"
CSRF_HEADER = "x-millrace-csrf"
_SHORTEST_TOKEN = 16

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
    """

    method: str
    headers: dict[str, str]
    cookie: str
    scheme: str = "http"


class Access:
    """The rules of one server.

    Args:
        host: Where it listens.
        token: The token; ``None``: one is made, which is allowed on the loopback interface only.

    Raises:
        UserError: The host is reachable from elsewhere and there is no token, or the token is too short.

    Example:
        >>> access = Access("127.0.0.1", None)
        >>> access.refusal(Request("GET", {"host": "127.0.0.1:8600"}, ""))
        >>> access.refusal(Request("GET", {"host": "evil.example"}, ""))
        (421, 'this server is not called evil.example')
        >>> Access("0.0.0.0", None)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        millrace.errors.UserError: 0.0.0.0 can be reached from other machines: give a token in ...
    """

    def __init__(self, host: str, token: str | None) -> None:
        self.host = host
        self.open_to_readers = is_loopback(host)
        if token is None and not self.open_to_readers:
            raise UserError(
                f"{host} can be reached from other machines: give a token in {TOKEN_VARIABLE}, "
                "or stay on 127.0.0.1"
            )
        if token is not None and len(token) < _SHORTEST_TOKEN:
            raise UserError(f"the token in {TOKEN_VARIABLE} is shorter than {_SHORTEST_TOKEN} characters")
        self.token = token or secrets.token_urlsafe(24)
        self.session = self._derived("session")
        self.csrf = self._derived("csrf")

    def _derived(self, purpose: str) -> str:
        return hmac.new(self.token.encode(), purpose.encode(), hashlib.sha256).hexdigest()

    def is_token(self, text: str) -> bool:
        """Say whether a text is the token, taking the same time for every text."""
        return hmac.compare_digest(text.encode(), self.token.encode())

    def is_known(self, request: Request) -> bool:
        """Say whether a request comes with the token or the cookie."""
        return self._by_cookie(request) or self._by_bearer(request)

    def _by_cookie(self, request: Request) -> bool:
        return hmac.compare_digest(request.cookie.encode(), self.session.encode())

    def _by_bearer(self, request: Request) -> bool:
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.is_token(value.strip())

    def refusal(self, request: Request) -> tuple[int, str] | None:
        """Return status and reason for a request that is not allowed, ``None`` for one that is."""
        name = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        if self.open_to_readers and not (is_loopback(name) or name == self.host):
            return 421, f"this server is not called {name[:100]}"
        if request.method in ("GET", "HEAD"):
            if self.open_to_readers or self.is_known(request):
                return None
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
        if not self._by_cookie(request):
            return 401, "this takes the token: open the page once with /?token=…"
        own = f"{request.scheme}://{headers.get('host', '')}"
        if headers.get("origin") != own or headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return 403, "this came from another page"
        if not hmac.compare_digest(headers.get(CSRF_HEADER, "").encode(), self.csrf.encode()):
            return 403, "this came from another page: load the page again"
        return None
