"""The dashboard where there are operators: who may act on it, and as whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from millrace.dashboard.access import COOKIE, CSRF_HEADER, SESSION_S, Access
from millrace.dashboard.data import AppData
from millrace.dashboard.live import LivePage
from millrace.dashboard.page import Action, DashboardPage, Field
from millrace.dashboard.serve import operators_of
from millrace.dashboard.server import Site, make_app
from millrace.errors import UserError
from millrace.operations.roster import Cost, Role, RosterFile
from millrace.runtime.settings import AppSettings
from tests.unit.millrace.dashboard.cases import data_of, put

TOKEN = "a token of the test"  # noqa: S105
HOST = "127.0.0.1:8600"
CHEAP = Cost(2, 1, 1)


class World:
    """A server with a roster, and clocks that stand."""

    def __init__(self, folder: Path, role: Role = Role.decide, **access: Any) -> None:
        self.now_s, self.now_ms = 1_000.0, 5_000
        self.done: list[Mapping[str, str]] = []
        self.file = RosterFile(folder / "operators.json")
        self.tokens = {one: self.add(one.value, one) for one in Role}
        put(folder, "sales", [{"n": 1}])
        fields = (Field("id", hidden=True), Field("by", "Your name"))
        action = Action("decide", "Decide", fields, self.run, role=role)
        self.access = Access(
            access.pop("host", "127.0.0.1"), TOKEN, now=lambda: self.now_s, operators=self.file.read,
            wall_ms=lambda: self.now_ms, **access,
        )  # fmt: skip
        self.site = Site({"shop": LivePage(data_of(folder), DashboardPage(actions=(action,)))}, self.access)

    def add(self, name: str, role: Role, until_ms: int | None = None) -> str:
        return self.file.change(lambda r: r.add(name, role, 0, until_ms, CHEAP))

    def run(self, data: AppData, values: Mapping[str, str]) -> str:
        self.done.append(values)
        return f"done by {values['by']}"

    def log_in(self, client: TestClient, token: str, **headers: str) -> Any:
        self.now_s += 1  # one try a second
        return client.post(
            "/api/enter", json={"token": token}, headers={"origin": f"http://{HOST}"} | headers
        )

    def act(self, client: TestClient, half: str | None, **more: str) -> Any:
        headers = {"origin": f"http://{HOST}"} | ({} if half is None else {CSRF_HEADER: half})
        return client.post("/api/apps/shop/action", json={"id": "1", **more}, headers=headers)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def client_of() -> Iterator[Callable[[World], TestClient]]:
    opened: list[TestClient] = []

    def made(world: World) -> TestClient:
        found = TestClient(make_app(world.site), base_url=f"http://{HOST}", follow_redirects=False)
        opened.append(found)
        return found

    yield made
    for one in opened:
        one.close()


@pytest.fixture
def client(world: World, client_of: Callable[[World], TestClient]) -> TestClient:
    return client_of(world)


def test_an_operator_logs_in_and_acts_by_the_name_of_the_token(world: World, client: TestClient) -> None:
    answer = world.log_in(client, world.tokens[Role.decide])
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    half = answer.json()["act"]
    said = client.get("/api/session", headers={CSRF_HEADER: half}).json()
    assert said == {
        "is_known": True,
        "may_act": True,
        "operators": True,
        "operator": "decide",
        "role": "decide",
    }
    assert world.act(client, half).json() == {"said": "done by decide"}
    assert world.act(client, half, by="decide").json() == {"said": "done by decide"}
    other = world.act(client, half, by="ann")
    assert (other.status_code, other.json()["error"]) == (
        403,
        "you have logged in as decide, and can say so only",
    )
    assert [values["by"] for values in world.done] == ["decide", "decide"]


def test_the_pages_token_lets_look_and_not_act(world: World, client: TestClient) -> None:
    half = client.get(f"/?token={TOKEN}").headers["location"].partition("#act=")[2]
    said = client.get("/api/session", headers={CSRF_HEADER: half}).json()
    assert said == {"is_known": True, "may_act": False, "operators": True, "operator": None, "role": None}
    assert world.act(client, half, by="ann").status_code == 403
    client.cookies.clear()
    bearer = {"authorization": f"Bearer {TOKEN}"}
    answer = client.post("/api/apps/shop/action", json={"id": "1", "by": "ann"}, headers=bearer)
    assert (answer.status_code, answer.json()["error"]) == (
        403,
        "this takes an operator: log in with your token",
    )
    assert world.done == []


def test_an_operators_token_is_taken_by_the_form_only(world: World, client: TestClient) -> None:
    token = world.tokens[Role.approve]
    assert client.get(f"/?token={token}").status_code == 401
    bearer = {"authorization": f"Bearer {token}"}
    assert client.post("/api/apps/shop/action", json={"id": "1"}, headers=bearer).status_code == 401
    assert world.done == []


@pytest.mark.parametrize("needed", list(Role))
@pytest.mark.parametrize("has", list(Role))
def test_acting_takes_the_role_that_the_action_says(
    has: Role, needed: Role, tmp_path: Path, client_of: Callable[[World], TestClient]
) -> None:
    world = World(tmp_path, needed)
    client = client_of(world)
    half = world.log_in(client, world.tokens[has]).json()["act"]
    assert world.act(client, half).status_code == (200 if has.covers(needed) else 403)
    assert bool(world.done) == has.covers(needed)
    assert client.get("/api/session", headers={CSRF_HEADER: half}).json()["may_act"] == has.covers(
        Role.decide
    )


def test_both_halves_of_the_session_are_needed(world: World, client: TestClient) -> None:
    half = world.log_in(client, world.tokens[Role.approve]).json()["act"]
    for wrong in (None, "", "x" * 43):
        assert world.act(client, wrong).status_code == 403
    foreign = client.post(
        "/api/apps/shop/action",
        json={"id": "1"},
        headers={"origin": "http://evil.example", CSRF_HEADER: half},
    )
    assert foreign.status_code == 403
    client.cookies.clear()
    assert world.act(client, half).status_code == 401
    assert world.done == []


@pytest.mark.parametrize("how", ["renewed", "removed", "ended", "no file", "broken", "aged"])
def test_a_session_ends_with_its_token(how: str, world: World, client: TestClient) -> None:
    token = world.add("ann", Role.approve, until_ms=9_000)
    half = world.log_in(client, token).json()["act"]
    assert world.act(client, half).status_code == 200
    if how == "renewed":
        world.file.change(lambda r: r.renew("ann", 0, None, CHEAP))
    elif how == "removed":
        world.file.change(lambda r: (r.without("ann"), None))
    elif how == "ended":
        world.now_ms = 9_000
    elif how == "no file":
        world.file.path.unlink()
    elif how == "broken":
        world.file.path.write_text("{}}")
    else:
        world.now_s += SESSION_S
    assert world.act(client, half).status_code == 401
    assert len(world.done) == 1


def test_a_role_is_that_of_the_moment(world: World, client: TestClient) -> None:
    half = world.log_in(client, world.tokens[Role.decide]).json()["act"]
    world.file.change(lambda r: (r.with_role("decide", Role.look), None))
    assert world.act(client, half).status_code == 403
    world.file.change(lambda r: (r.with_role("decide", Role.approve), None))
    assert world.act(client, half).status_code == 200


def test_operators_that_come_to_be_while_it_serves_count_at_once(world: World) -> None:
    kept = world.file.path.read_bytes()
    world.file.path.unlink()
    with TestClient(make_app(world.site), base_url=f"http://{HOST}", follow_redirects=False) as found:
        half = found.get(f"/?token={TOKEN}").headers["location"].partition("#act=")[2]
        assert found.get("/api/session", headers={CSRF_HEADER: half}).json() == {
            "is_known": True,
            "may_act": True,
        }
        assert world.act(found, half, by="anybody").status_code == 200
        assert world.log_in(found, "x").status_code != 200
        world.file.path.touch(0o600)
        world.file.path.write_bytes(kept)
        assert world.act(found, half, by="anybody").status_code == 403
        world.file.path.write_bytes(b"broken")
        assert world.act(found, half, by="anybody").status_code in (403, 409)
    assert len(world.done) == 1


def test_wrong_tokens_are_refused_and_tries_are_few(world: World, client: TestClient) -> None:
    for wrong in ("", "x", "mr-0123456789abcdef-" + "A" * 43, world.tokens[Role.decide] + "x", TOKEN):
        answer = world.log_in(client, wrong)
        assert (answer.status_code, "not the token" in answer.json()["error"]) == (403, True)
        assert COOKIE not in answer.cookies
    world.now_s += 0.5
    soon = client.post(
        "/api/enter", json={"token": world.tokens[Role.decide]}, headers={"origin": f"http://{HOST}"}
    )
    assert (soon.status_code, soon.headers["retry-after"]) == (429, "1")
    assert world.log_in(client, world.tokens[Role.decide]).status_code == 200


def test_all_addresses_together_have_few_tries_too(world: World) -> None:
    waits = [world.access.wait_s(f"127.0.0.{n}") for n in range(1, 40)]
    assert waits[:10] == [0] * 10
    assert all(waits[10:])
    world.now_s += 10
    assert world.access.wait_s("127.0.0.1") == 0


def test_another_page_cannot_log_anybody_in(world: World, client: TestClient) -> None:
    token = world.tokens[Role.decide]
    assert world.log_in(client, token, origin="http://evil.example").status_code == 403
    assert world.log_in(client, token, **{"sec-fetch-site": "cross-site"}).status_code == 403
    assert world.log_in(client, token, **{"content-type": "text/plain"}).status_code == 415
    assert world.log_in(client, token, host="evil.example").status_code == 421
    assert client.post("/api/enter", json={"token": token}).status_code == 403
    assert client.post("/api/enter", content=b"x" * 20_000, headers={
        "origin": f"http://{HOST}", "content-type": "application/json"}).status_code == 413  # fmt: skip


def test_where_looking_takes_a_token_too_an_operators_does_and_the_form_is_there(
    tmp_path: Path, client_of: Callable[[World], TestClient]
) -> None:
    world = World(tmp_path, private=True)
    client = client_of(world)
    assert [client.get(path).status_code for path in ("/", "/static/app.js", "/static/operators.js")] == [
        200
    ] * 3
    assert client.get("/api/session").json()["operator"] is None
    closed = ("/api/apps", "/api/apps/shop", "/api/apps/shop/events?once=true", "/api/apps/shop/tables/sales")
    assert {path: client.get(path).status_code for path in closed} == dict.fromkeys(closed, 401)
    half = world.log_in(client, world.tokens[Role.look]).json()["act"]
    assert {path: client.get(path).status_code for path in closed} == dict.fromkeys(closed, 200)
    leave = client.post("/api/leave", json={}, headers={"origin": f"http://{HOST}", CSRF_HEADER: half})
    assert leave.status_code == 200
    assert client.get("/api/apps").status_code == 401


def test_without_operators_a_closed_page_stays_closed(tmp_path: Path) -> None:
    site = Site({}, Access("127.0.0.1", TOKEN, private=True))
    with TestClient(make_app(site), base_url=f"http://{HOST}") as client:
        assert {client.get(path).status_code for path in ("/", "/api/session", "/static/app.js")} == {401}


def test_operators_are_those_of_the_pages_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path))
    put(tmp_path, "sales", [{"n": 1}])

    def page(file: Path | None) -> LivePage:
        data = data_of(tmp_path)
        data.settings = AppSettings(operators={"file": file})  # type: ignore[arg-type]
        return LivePage(data, DashboardPage())

    assert operators_of({})() is None
    assert operators_of({"a": page(None), "b": page(None)})() is None
    RosterFile(tmp_path / "own.json").change(lambda r: r.add("ann", Role.look, 0, None, CHEAP))
    found = operators_of({"a": page(tmp_path / "own.json")})()
    assert found is not None
    assert [one.name for one in found.operators] == ["ann"]
    with pytest.raises(UserError, match="show one app alone"):
        operators_of({"a": page(None), "b": page(tmp_path / "own.json")})
