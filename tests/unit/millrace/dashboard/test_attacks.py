"""The dashboard under attack: over sockets, by other pages and other users of the machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import selectors
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner
from uvicorn import Config, Server

from millrace.cli.dashboard import app as dashboard_command
from millrace.dashboard import serve
from millrace.dashboard.access import (
    COOKIE,
    CSRF_HEADER,
    MOST_SESSIONS,
    SECURITY_HEADERS,
    SESSION_S,
    Access,
    Request,
)
from millrace.dashboard.connections import MOST_OF_ADDRESS, Waiting, patient_protocol
from millrace.dashboard.live import LivePage
from millrace.dashboard.page import DashboardPage, Panel
from millrace.dashboard.serve import serving
from millrace.dashboard.server import MOST_UNKNOWN_LISTENERS, Site, make_app
from millrace.errors import UserError
from tests.unit.millrace.dashboard.cases import data_of, put

TOKEN = "a token of the test"  # noqa: S105
HOST = "127.0.0.1:8600"


def page_of(folder: Path) -> LivePage:
    put(folder, "sales", [{"n": 1}])
    return LivePage(data_of(folder), DashboardPage())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site({"shop": page_of(tmp_path)}, Access("127.0.0.1", TOKEN, private=True))


@pytest.fixture
def client(site: Site) -> Iterator[TestClient]:
    with TestClient(make_app(site), base_url=f"http://{HOST}", follow_redirects=False) as found:
        yield found


def enter(client: TestClient) -> str:
    """Take the way in, and return what the page alone keeps."""
    return client.get(f"/?token={TOKEN}").headers["location"].partition("#act=")[2]


# -- over sockets ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    pages = {"shop": page_of(tmp_path_factory.mktemp("shop"))}
    with serving(pages, token=TOKEN, private=True) as (url, _):
        parts = urlsplit(url)
        yield str(parts.hostname), int(parts.port or 0)


@pytest.fixture
def errors() -> Iterator[list[str]]:
    """What the server has logged as errors of its own, tracebacks among them."""
    found: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    handler = Kept(logging.ERROR)
    logging.getLogger("uvicorn.error").addHandler(handler)
    yield found
    logging.getLogger("uvicorn.error").removeHandler(handler)


def asked(address: tuple[str, int], text: bytes, timeout_s: float = 20.0) -> bytes:
    """Send bytes, and return all that comes back until the server closes."""
    with socket.create_connection(address, timeout=timeout_s) as connection:
        connection.sendall(text)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 16):
                found += part
    return found


def whole(path: str, *headers: str, method: str = "GET", host: str = "localhost") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


WITH_TOKEN = f"Authorization: Bearer {TOKEN}"


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_half_open_connections_keep_nobody_out_who_has_the_token(
    address: tuple[str, int], sent: bytes
) -> None:
    """300 connections that never end their request; who has the token does not notice."""
    with contextlib.ExitStack() as held:
        for number in range(300):
            attacker = held.enter_context(socket.create_connection(address, timeout=5))
            attacker.sendall(sent)
            if number % 50 == 49:
                began = time.monotonic()
                answer = asked(address, whole("/api/apps", WITH_TOKEN))
                assert answer.startswith(b"HTTP/1.1 200 "), answer
                assert time.monotonic() - began < 5


def test_the_oldest_of_one_addresss_waiting_connections_are_closed(address: tuple[str, int]) -> None:
    with contextlib.ExitStack() as held, selectors.DefaultSelector() as closed:
        attackers = [held.enter_context(socket.create_connection(address, timeout=5)) for _ in range(100)]
        for attacker in attackers:
            closed.register(attacker, selectors.EVENT_READ)
        gone: set[Any] = set()
        deadline = time.monotonic() + 10
        while len(gone) < 100 - MOST_OF_ADDRESS and time.monotonic() < deadline:
            gone |= {key.fileobj for key, _ in closed.select(0.2)}
        assert gone == set(attackers[: 100 - MOST_OF_ADDRESS])


def run_patiently(headers_s: float, sent: list[bytes], pause_s: float) -> tuple[bytes, float]:
    """Serve with a short deadline, send pieces with pauses, and return what came and when it was over, s."""

    async def hello(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def all_of(reader: asyncio.StreamReader) -> bytes:
        found = b""
        with contextlib.suppress(OSError):
            while part := await reader.read(1 << 16):
                found += part
        return found

    async def attack() -> tuple[bytes, float]:
        waiting = Waiting()
        protocol = patient_protocol(waiting, headers_s)
        server = Server(
            Config(hello, http=protocol, ws="none", lifespan="off", log_level="error", timeout_keep_alive=60)
        )
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            serving_it = asyncio.create_task(server.serve(sockets=[listening]))
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            began = asyncio.get_running_loop().time()
            answers = asyncio.create_task(all_of(reader))
            with contextlib.suppress(OSError):
                for piece in sent:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(pause_s)
            found = await asyncio.wait_for(answers, 20)
            took = asyncio.get_running_loop().time() - began
            writer.close()
            server.should_exit = True
            await serving_it
            assert len(waiting) == 0
            return found, took

    return asyncio.run(attack())


def test_headers_that_trickle_in_do_not_move_their_deadline() -> None:
    trickle = [b"GET / HTTP/1.1\r\n", b"Host: localhost\r\n", *[b"X: y\r\n"] * 6]
    found, took = run_patiently(0.5, trickle, 0.2)
    assert found == b""
    assert took < 5


def test_a_connection_that_was_served_once_gets_no_more_time_than_a_new_one() -> None:
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    found, took = run_patiently(0.5, [request, *[b"G"] * 8], 0.2)
    assert found.count(b"200 OK") == 1
    assert took < 5


@pytest.mark.parametrize(
    "host",
    ["[", "]", "[::1", "[x]", "localhost:x", "localhost:99999999", "me@localhost", "a/b", "a?b", "a#b"],
)
@pytest.mark.parametrize("path", ["/", "/api/apps", f"/?token={TOKEN.replace(' ', '+')}"])
def test_a_host_that_is_none_is_a_bad_request_and_nothing_worse(
    address: tuple[str, int], host: str, path: str
) -> None:
    head, _, body = asked(address, whole(path, WITH_TOKEN, host=host)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 "), head
    assert b"Traceback" not in body
    for name, value in SECURITY_HEADERS.items():
        assert f"{name}: {value}".encode() in head


def test_whatever_is_sent_is_answered_with_the_headers_and_never_with_an_error_of_ours(
    address: tuple[str, int], errors: list[str]
) -> None:
    rng = random.Random(11)
    good = whole("/api/apps/shop/detail?key=a", WITH_TOKEN, "Cookie: a=b", "Sec-Fetch-Site: none")
    for _ in range(300):
        text = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(text) - 4)
            text[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        head = asked(address, bytes(text) + b"\r\n\r\n").partition(b"\r\n\r\n")[0]
        if not head:
            continue
        status = int(head.split()[1])
        assert 200 <= status < 500, bytes(text)
        assert b"content-security-policy: default-src 'none'" in head, bytes(text)
    assert errors == []


@pytest.mark.parametrize(
    "path",
    ["/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/access.py", "/static//etc/passwd",
     "/static/%2fetc%2fpasswd", "/static/style.css%00.py", "/static/..\\server.py", "/static/index.html"],
)  # fmt: skip
def test_only_the_pages_own_files_are_served(address: tuple[str, int], path: str) -> None:
    answer = asked(address, whole(path, WITH_TOKEN))
    assert int(answer.split()[1]) == 404
    assert b"import" not in answer
    assert b"root:" not in answer


@pytest.mark.parametrize("name", ["../sales", "..%2fsales", "%2e%2e/%2e%2e/etc", "sales/../sales", "nul%00"])
def test_no_name_of_a_table_is_a_path(address: tuple[str, int], name: str) -> None:
    assert int(asked(address, whole(f"/api/apps/shop/tables/{name}", WITH_TOKEN)).split()[1]) == 404


def test_who_looks_without_the_token_leaves_room_for_those_who_have_it(tmp_path: Path) -> None:
    site = Site({"shop": page_of(tmp_path)}, Access("127.0.0.1", TOKEN))
    site.listeners = MOST_UNKNOWN_LISTENERS
    with TestClient(make_app(site), base_url=f"http://{HOST}") as client:
        path = "/api/apps/shop/events?once=true"
        assert client.get(path).status_code == 503
        assert client.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


# -- sessions --------------------------------------------------------------------------------------


def knows(access: Access, cookie: str, half: str = "") -> tuple[bool, bool]:
    asked = Request("GET", {"host": "localhost", CSRF_HEADER: half}, cookie)
    return access.is_known(asked), access.may_act(asked)


def test_a_session_is_random_and_ends_with_its_age_its_server_and_its_owner() -> None:
    now = [0.0]
    access = Access("127.0.0.1", TOKEN, now=lambda: now[0])
    one, two = access.enter(TOKEN), access.enter(TOKEN)
    assert one
    assert two
    assert len({one.cookie, one.csrf, two.cookie, two.csrf}) == 4
    assert knows(access, one.cookie, one.csrf) == (True, True)
    # The halves of two sessions are none.
    assert knows(access, one.cookie, two.csrf) == (True, False)
    # Another start of the same server with the same token does not know it.
    assert knows(Access("127.0.0.1", TOKEN), one.cookie, one.csrf) == (False, False)
    access.leave(two.cookie)
    assert knows(access, two.cookie, two.csrf) == (False, False)
    now[0] = SESSION_S - 1
    assert knows(access, one.cookie) == (True, False)
    now[0] = SESSION_S
    assert knows(access, one.cookie, one.csrf) == (False, False)


def test_sessions_take_no_more_and_no_more_room() -> None:
    access = Access("127.0.0.1", TOKEN)
    made = [access.enter(TOKEN) for _ in range(MOST_SESSIONS + 5)]
    alive = [session for session in made if session and knows(access, session.cookie)[0]]
    assert alive == made[5:]


@pytest.mark.parametrize("cookie", ["", "x", "\udcff", "ÿ" * 10_000])
def test_no_other_text_is_a_session(cookie: str) -> None:
    access = Access("127.0.0.1", TOKEN)
    access.enter(TOKEN)
    assert knows(access, cookie, "") == (False, False)


def test_with_the_cookie_alone_nothing_can_be_done_nor_what_is_missing_be_learned(
    client: TestClient,
) -> None:
    """As a server on another port of this host gets it: browsers send cookies to all of them."""
    half = enter(client)
    for path in ("/", "/api/session", "/api/apps", "/healthz", "/static/app.js"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert half not in answer.text + str(answer.headers)
    assert client.get("/api/session").json() == {"is_known": True, "may_act": False}
    sent = {"origin": f"http://{HOST}", "content-type": "application/json"}
    assert client.post("/api/leave", content="{}", headers=sent).status_code == 403
    assert client.get("/api/session", headers={CSRF_HEADER: half}).json()["may_act"]
    assert client.post("/api/leave", content="{}", headers={**sent, CSRF_HEADER: half}).status_code == 200
    client.cookies.clear()


def test_who_leaves_is_out_even_with_the_cookie_at_hand(client: TestClient) -> None:
    half = enter(client)
    cookie = client.cookies[COOKIE]
    sent = {"origin": f"http://{HOST}", "content-type": "application/json", CSRF_HEADER: half}
    answer = client.post("/api/leave", content="{}", headers=sent)
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert client.get("/api/apps", headers={"cookie": f"{COOKIE}={cookie}"}).status_code == 401


@pytest.mark.parametrize(
    ("from_where", "status"), [("same-site", 403), ("cross-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_a_foreign_page_reads_nothing_with_our_cookie(
    client: TestClient, from_where: str, status: int
) -> None:
    enter(client)
    assert client.get("/api/apps", headers={"sec-fetch-site": from_where}).status_code == status


# -- who may look ----------------------------------------------------------------------------------


def test_a_private_server_shows_nothing_to_other_users_of_the_machine(client: TestClient) -> None:
    for path in ("/", "/api/apps", "/api/session", "/static/app.js", "/api/apps/shop/events?once=true"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["connection"]) == (401, "close")
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421
    enter(client)
    assert client.get("/api/apps").status_code == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("host", [HOST, "10.1.2.3:8600"])
def test_that_the_server_lives_is_told_to_everybody_and_nothing_else(
    client: TestClient, method: str, host: str
) -> None:
    answer = client.request(method, "/healthz", headers={"host": host})
    assert (answer.status_code, answer.text) == (200, '{"status":"ok"}' if method == "GET" else "")
    assert client.post("/healthz").status_code in (401, 415, 421)


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/apps", "/api/apps/shop/events", "/healthz"])
def test_head_is_get_without_the_body(address: tuple[str, int], path: str, errors: list[str]) -> None:
    """Of a stream as well, which would go on for ever."""
    head, _, body = asked(address, whole(path, WITH_TOKEN, method="HEAD")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert body == b""
    assert b"x-frame-options: DENY" in head
    refused = asked(address, whole(path, method="HEAD"))
    assert int(refused.split()[1]) == (200 if path == "/healthz" else 401)
    assert errors == []


def test_the_token_in_a_head_request_makes_no_session(client: TestClient) -> None:
    answer = client.head(f"/?token={TOKEN}")
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


def test_an_error_that_tells_a_secret_is_shown_without_it(tmp_path: Path) -> None:
    def fail(data: Any) -> None:
        raise UserError("no answer of https://hUnter2@lake")

    def break_down(data: Any) -> None:
        raise ZeroDivisionError("AccountKey=hUnter2")

    page = LivePage(
        data_of(tmp_path), DashboardPage(panels=(Panel("a", "A", fail), Panel("b", "B", break_down)))
    )
    with TestClient(
        make_app(Site({"shop": page}, Access("127.0.0.1", TOKEN))), base_url=f"http://{HOST}"
    ) as c:
        text = c.get("/api/apps/shop/events?once=true").text
    assert text.count("********") == 2
    assert "hUnter2" not in text


# -- what is printed -------------------------------------------------------------------------------


def test_a_token_that_was_given_is_never_printed_one_that_was_made_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "alerts", [{"n": 1}])
    served: list[Access] = []

    class Served:
        def run(self, sockets: list[socket.socket]) -> None:
            sockets[0].close()

    def make_server(pages: Any, broken: Any, access: Access) -> Served:
        served.append(access)
        return Served()

    def printed(*more: str) -> str:
        words = ["fraud", "--port", "0", "--root", str(tmp_path), *more]
        result = CliRunner().invoke(dashboard_command, words)
        assert result.exit_code == 0, result.output
        return result.output

    monkeypatch.setattr(serve, "make_server", make_server)
    given = "given-token-0123456789"
    monkeypatch.setenv("MILLRACE_DASHBOARD_TOKEN", given)
    said = printed("--private")
    assert given not in said
    assert re.search(r"http://127\.0\.0\.1:\d+/ +\(\?token= as in MILLRACE_DASHBOARD_TOKEN", said)
    monkeypatch.delenv("MILLRACE_DASHBOARD_TOKEN")
    assert f"/?token={served[-1].token}" not in said
    said = printed()
    assert f"/?token={served[-1].token} " in said
    assert [access.open_to_readers for access in served] == [False, True]
    assert served[0].is_token(given)
