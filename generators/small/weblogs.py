"""Requests to a web shop as its server logs them, with intrusions among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import exp
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from millrace_apps.generators.engine.profile import Profile, check
from millrace_apps.generators.engine.randomness import digest, normal, substream
from millrace_apps.generators.engine.simulated import Domain, Simulated, StreamSpec, Truth
from millrace_apps.generators.small.slots import Chance, Plans, Zipf, times

BRUTE_FORCE: Final = "brute_force"
PASSWORD_SPRAY: Final = "password_spray"  # noqa: S105 - the name of an attack
SCAN: Final = "scan"
SQL_INJECTION: Final = "sql_injection"
EXFILTRATION: Final = "exfiltration"
SCENARIOS: Final = {
    BRUTE_FORCE: "20 to 40 failed logins as one user from one address within half a minute; half get in",
    PASSWORD_SPRAY: "20 to 40 failed logins from one address within half a minute, each as another user",
    SCAN: "30 to 60 paths that do not exist asked for from one address within half a minute",
    SQL_INJECTION: "5 to 12 requests with SQL in the query from one address within half a minute",
    EXFILTRATION: "8 to 16 exports of at least 20 MB each by one user within a minute",
}
LOGIN: Final = "/login"
EXPORT: Final = "/account/export"
_PAGES: Final = (
    *("/", "/search", "/cart", "/checkout", "/account", "/help"),
    *(f"/product/{number}" for number in range(494)),
)
_HIDDEN: Final = (
    *("admin", "backup", "config", "db", "env", "git"),
    *("old", "phpinfo", "setup", "shell", "test", "wp"),
)
_ENDINGS: Final = ("", ".php", ".bak", ".zip", ".sql", ".txt")
_PAYLOADS: Final = (
    "1%27%20OR%20%271%27=%271",
    "1;%20DROP%20TABLE%20users--",
    "1%20UNION%20SELECT%20null,null--",
)
_AGENTS: Final = ("firefox", "chrome", "safari", "edge")
#: Shares of ordinary answers: 404, 500, 304; the rest is 200.
_NOT_FOUND, _BROKEN, _UNCHANGED = 0.01, 0.013, 0.15
#: Share of ordinary requests that are a login, and of those that fail.
_LOGIN_SHARE, _MISTYPED_SHARE = 0.03, 0.08
_LEAST_EXPORT: Final = 20_000_000


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request, as the server logs it."""

    request_id: Annotated[str, Meta(min_length=1, description="Unique.")]
    client_ip: Annotated[str, Meta(min_length=7, description="The client's IPv4 address.")]
    user: Annotated[str | None, Meta(description="Who is, or wants to be, logged in; null: nobody.")]
    method: Annotated[Literal["GET", "POST"], Meta(description="HTTP method.")]
    path: Annotated[str, Meta(min_length=1, description="Path with query.")]
    status: Annotated[int, Meta(ge=100, le=599, description="HTTP status.")]
    bytes_sent: Annotated[int, Meta(ge=0, description="Size of the answer, bytes.")]
    duration_ms: Annotated[int, Meta(ge=0, description="How long the answer took, ms.")]
    user_agent: Annotated[str, Meta(min_length=1, description="The client's program.")]
    event_time_ms: Annotated[int, Meta(ge=0, description="Event time, milliseconds since the epoch, UTC.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class WeblogsProfile(Profile):
    """What a stream of requests is made from.

    Attributes:
        clients: Number of ordinary clients.
        client_skew: Zipf exponent of how active they are; 0: all alike.
        attack_rate: Intrusions begun per 1,000 events.
    """

    clients: int = 2_000
    client_skew: float = 0.6
    attack_rate: float = 0.5

    def __post_init__(self) -> None:
        # The two-argument form: a slotted dataclass is a second class, which super() alone does not find.
        super(WeblogsProfile, self).__post_init__()
        check(1 <= self.clients <= 1_000_000, "clients is a count between 1 and 1,000,000", self.clients)
        check(0 <= self.client_skew <= 5, "client skew is an exponent between 0 and 5", self.client_skew)
        rate = self.attack_rate
        check(0 <= rate <= 10, "attack rate is 0 to 10 per 1,000 events", rate)


class _Line(NamedTuple):
    """A request without its number and time."""

    client_ip: str
    user: str | None
    method: Literal["GET", "POST"]
    path: str
    status: int
    bytes_sent: int
    duration_ms: int
    user_agent: str


class _Planned(NamedTuple):
    line: _Line
    truth: Truth


class _Intruder:
    """Begins intrusions; each comes from an address that nothing else comes from."""

    def __init__(self, profile: WeblogsProfile, run: str, plans: Plans[_Planned]) -> None:
        self._run = run
        self._clients = profile.clients
        self._plans = plans
        self._chance = Chance(profile, profile.attack_rate, "weblogs", "attack")
        self._draw = substream(profile.seed, "weblogs", "attack", "what").random
        self._attacks = 0

    def strike(self, now_ms: int) -> None:
        """Plan an intrusion that begins now: mostly none."""
        if not self._chance.strikes():
            return
        kind = list(SCENARIOS)[int(len(SCENARIOS) * self._draw())]
        number = self._attacks
        self._attacks += 1
        # 198.18.0.0/15 is set aside for benchmarks (RFC 2544): no ordinary client has such an address.
        client_ip = f"198.{18 + (number >> 16) % 2}.{(number >> 8) % 256}.{number % 256}"
        lines, span_ms = self._lines(kind, client_ip)
        breached = lines[-1].status == 302
        detail = {"client_ip": client_ip, "size": len(lines), "breached": breached}
        truth_id = f"{self._run}-a{number:06d}"
        truth = Truth(truth_id=truth_id, kind=kind, entity=client_ip, expected="alert", detail=detail)
        moments = times(now_ms, span_ms, [self._draw() for _ in lines])
        for at_ms, line in zip(moments, lines, strict=True):
            self._plans.add(at_ms, _Planned(line, truth))

    def _lines(self, kind: str, client_ip: str) -> tuple[list[_Line], int]:
        if kind == BRUTE_FORCE:
            return self._brute_force(client_ip), 25_000
        if kind == PASSWORD_SPRAY:
            first = self._number(self._clients)
            users = [f"u{(first + i) % max(self._clients, 40):07d}" for i in range(20 + self._number(21))]
            return [_login(client_ip, user, "python", ok=False) for user in users], 25_000
        if kind == SCAN:
            # Every path once: numbers apart from each other by a step prime to their count.
            size, total = 30 + self._number(31), len(_HIDDEN) * len(_ENDINGS)
            first = self._number(total)
            return [self._probe(client_ip, (first + 5 * i) % total) for i in range(size)], 15_000
        if kind == SQL_INJECTION:
            return [self._injection(client_ip) for _ in range(5 + self._number(8))], 25_000
        user = f"u{self._number(self._clients):07d}"
        return [self._export(client_ip, user) for _ in range(8 + self._number(9))], 50_000

    def _brute_force(self, client_ip: str) -> list[_Line]:
        user = f"u{self._number(self._clients):07d}"
        lines = [_login(client_ip, user, "python", ok=False) for _ in range(20 + self._number(21))]
        if self._draw() < 0.5:
            lines.append(_login(client_ip, user, "python", ok=True))
        return lines

    def _probe(self, client_ip: str, number: int) -> _Line:
        ending, name = divmod(number, len(_HIDDEN))
        path = f"/{_HIDDEN[name]}{_ENDINGS[ending]}"
        return _Line(client_ip, None, "GET", path, 404, 153, 1 + self._number(8), "scanner")

    def _injection(self, client_ip: str) -> _Line:
        path = f"/search?q={_PAYLOADS[self._number(len(_PAYLOADS))]}"
        status = 500 if self._draw() < 0.5 else 200
        return _Line(client_ip, None, "GET", path, status, 900, 20 + self._number(900), "python")

    def _export(self, client_ip: str, user: str) -> _Line:
        size = int(_LEAST_EXPORT * (1 + 4 * self._draw()))
        return _Line(client_ip, user, "GET", EXPORT, 200, size, 500 + self._number(4000), "python")

    def _number(self, below: int) -> int:
        return int(self._draw() * below)


class _Server:
    def __init__(self, profile: WeblogsProfile) -> None:
        self._profile = profile
        self._run = digest("weblogs", profile.seed, profile.start_ms)[:10]
        self._plans: Plans[_Planned] = Plans()
        self._intruder = _Intruder(profile, self._run, self._plans)
        self._clients = Zipf(profile.clients, profile.client_skew)
        self._pages = Zipf(len(_PAGES), 0.9)
        self._client = substream(profile.seed, "weblogs", "client").random
        self._page = substream(profile.seed, "weblogs", "page").random
        self._answer = substream(profile.seed, "weblogs", "answer").random
        self._login = substream(profile.seed, "weblogs", "login").random
        self._size = substream(profile.seed, "weblogs", "size").random
        self._took = substream(profile.seed, "weblogs", "duration").random

    def request(self, sequence: int, *, is_last: bool) -> Simulated:
        """Return the request with this number."""
        at_ms = self._profile.slot_ms(sequence)
        self._intruder.strike(at_ms)
        # The last event keeps its slot, so that the stream ends where its profile says.
        due = None if is_last else self._plans.due(at_ms)
        truths: tuple[Truth, ...] = ()
        if due is None:
            line = self._ordinary()
        else:
            at_ms, (line, truth) = due
            truths = (truth,)
        request = Request(f"{self._run}-{sequence:010d}", *line, at_ms)
        return Simulated("requests", line.client_ip, request, at_ms, truths)

    def _ordinary(self) -> _Line:
        # All draws come first and always, so that no decision shifts the numbers of the next event.
        client, page, answer = (
            self._clients.draw(self._client()),
            self._pages.draw(self._page()),
            self._answer(),
        )
        login, size, took = self._login(), self._size(), self._took()
        client_ip = f"10.{client >> 16}.{(client >> 8) % 256}.{client % 256}"
        agent = _AGENTS[client % len(_AGENTS)]
        # Two clients in three are logged in.
        user = f"u{client:07d}" if client % 3 else None
        if login < _LOGIN_SHARE:
            ok = login >= _LOGIN_SHARE * _MISTYPED_SHARE
            return _login(client_ip, f"u{client:07d}", agent, ok=ok)
        duration_ms = int(40 * exp(0.7 * normal(took)))
        if answer < _NOT_FOUND:
            return _Line(client_ip, user, "GET", f"/product/{10_000 + client}", 404, 153, duration_ms, agent)
        if answer < _BROKEN:
            return _Line(client_ip, user, "GET", _PAGES[page], 500, 320, duration_ms, agent)
        if answer < _UNCHANGED:
            return _Line(client_ip, user, "GET", _PAGES[page], 304, 0, duration_ms, agent)
        bytes_sent = int(12_000 * exp(1.1 * normal(size)))
        return _Line(client_ip, user, "GET", _PAGES[page], 200, bytes_sent, duration_ms, agent)


def _login(client_ip: str, user: str, agent: str, *, ok: bool) -> _Line:
    return _Line(client_ip, user, "POST", LOGIN, 302 if ok else 401, 0 if ok else 240, 90, agent)


def simulate(profile: WeblogsProfile) -> Iterator[Simulated]:
    """Yield requests in event time, one per slot of the event rate.

    Args:
        profile: What the traffic is; equal profiles give equal requests.

    >>> next(simulate(WeblogsProfile(seed=1))).stream
    'requests'
    """
    server = _Server(profile)
    last = None if profile.events is None else profile.events - 1
    for sequence in count() if profile.events is None else range(profile.events):
        yield server.request(sequence, is_last=sequence == last)


WEBLOGS: Final = Domain(
    name="weblogs",
    description="requests to a web shop: logins forced, paths scanned, data carried off",
    streams={
        "requests": StreamSpec(
            topic="weblogs.requests", event_type=Request, id_field="request_id", time_field="event_time_ms"
        )
    },
    profile=WeblogsProfile,
    simulate=simulate,
    scenarios=SCENARIOS,
)
