"""The dashboard's server: what it answers, whom it refuses, and that a panel cannot harm the others."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from millrace.cli.dashboard import app as dashboard_command
from millrace.dashboard.access import COOKIE, CSRF_HEADER, Access, Request
from millrace.dashboard.data import AppData, find_root
from millrace.dashboard.live import MOST_CHOICES, LivePage
from millrace.dashboard.page import (
    Action,
    ActionRefused,
    Choice,
    DashboardPage,
    Detail,
    Field,
    Panel,
    load_page,
)
from millrace.dashboard.serve import listening_socket, open_pages
from millrace.dashboard.server import STATIC, Site, make_app
from millrace.dashboard.views import Note, Number, Numbers, Titled, View
from millrace.errors import UserError
from millrace.runtime.settings import AppSettings
from tests.unit.millrace.dashboard.cases import Clock, data_of, put, put_checkpoint, shop

TOKEN = "a token of the test"  # noqa: S105
HOST = "127.0.0.1:8600"
EVERYWHERE = "0.0.0.0"  # noqa: S104
EVIL = "<img src=x onerror=alert(1)>"


def count(data: AppData) -> View | None:
    table = data.table("sales")
    return table and Numbers((Number(label="sales", value=table.rows, kind="count"),))


def broken(data: AppData) -> View | None:
    raise ZeroDivisionError("no sales\nat all")


def refuse(data: AppData, values: Mapping[str, str]) -> str:
    if values["verdict"] == "bad":
        raise ActionRefused("that is decided already")
    return f"{values['id']} is {values['verdict']}"


ACTION = Action(
    "decide", "Decide",
    (Field("id", hidden=True), Field("verdict", choices={"good": "good", "bad": "bad"}),
     Field("note", required=False)),
    refuse,
)  # fmt: skip


def ahead(data: AppData, values: Mapping[str, str]) -> View:
    return Note(f"{values['id']} would be {values['verdict'] or 'as it is'}")


SHELVE = Action(
    "shelve", "Shelve", (Field("id", hidden=True), Field("verdict")), refuse, ahead, "For a while."
)
MANY = DashboardPage(
    panels=(Panel("count", "Count", count, actions=("shelve",)),),
    actions=(ACTION, SHELVE),
    detail=Detail("Sale", lambda data, key: [], {"shop:": "Shop"}),
)
PAGE = DashboardPage(
    panels=(Panel("count", "Count", count), Panel("broken", "Broken", broken)),
    detail=Detail("Sale", lambda data, key: [Titled("it", Note(key))] if key != "none" else []),
    actions=(ACTION,),
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def page(tmp_path: Path, clock: Clock) -> LivePage:
    put(tmp_path, "sales", [{"n": 1, "text": EVIL}, {"n": 2, "text": "x"}])
    put(tmp_path, "dead_letters", [{"reason": "schema", "value": b"4111"}] * 3)
    put_checkpoint(tmp_path, {"sales": {"0": 2}}, batch=4)
    return LivePage(data_of(tmp_path, clock=clock), PAGE)


@pytest.fixture
def client(page: LivePage) -> Iterator[TestClient]:
    site = Site({"shop": page}, Access("127.0.0.1", TOKEN), broken={"gone": "cannot be loaded"})
    with TestClient(make_app(site), base_url=f"http://{HOST}", follow_redirects=False) as found:
        yield found


def panels(client: TestClient) -> dict[str, Any]:
    text = client.get("/api/apps/shop/events?once=true").text
    found = [json.loads(d) for d in re.findall(r"event: panel\ndata: (.*)\n", text)]
    return {p["id"]: p["view"] for p in found}


def enter(client: TestClient) -> str:
    """Take the token's way in, and return the value against forgery."""
    answer = client.get(f"/?token={TOKEN}")
    assert answer.status_code == 303
    place, _, half = answer.headers["location"].partition("#act=")
    assert (place, len(half)) == ("/", 43)
    return half


def act(client: TestClient, values: Mapping[str, Any], **headers: str) -> Any:
    found = {"origin": f"http://{HOST}", "content-type": "application/json"}
    found |= {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {name: value for name, value in found.items() if value}
    return client.post("/api/apps/shop/action", content=json.dumps(values), headers=sent)


# -- what is shown ---------------------------------------------------------------------------------


def test_the_apps_are_listed_those_that_cannot_be_shown_with_the_reason(client: TestClient) -> None:
    found = {a["app"]: a for a in client.get("/api/apps").json()}
    assert (found["shop"]["tables"], found["shop"]["error"]) == (2, None)
    assert found["gone"]["error"] == "cannot be loaded"


def test_a_page_says_which_panels_detail_and_action_it_has(client: TestClient) -> None:
    found = client.get("/api/apps/shop").json()
    assert [p["id"] for p in found["panels"]][:2] == ["count", "broken"]
    assert (found["detail"], found["actions"][0]["fields"][0]["hidden"]) == ("Sale", True)
    assert client.get("/api/apps/other").status_code == 409


def test_panels_come_as_server_sent_events(client: TestClient) -> None:
    answer = client.get("/api/apps/shop/events?once=true")
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = panels(client)
    assert found["count"]["items"][0]["value"] == 2
    assert [(b["label"], b["value"]) for b in found["dead-letters"]["bars"]] == [("schema", 3)]
    assert found["standing"]["items"][1]["value"] == 4
    assert {r[0]: r[1] for r in found["tables"]["rows"]} == {"dead_letters": 3, "sales": 2}
    assert "beat" in answer.text


def test_a_panel_that_fails_says_so_and_harms_no_other(client: TestClient) -> None:
    found = panels(client)["broken"]
    assert (found["type"], found["tone"]) == ("note", "bad")
    assert "ZeroDivisionError: no sales at all" in found["text"]


def test_only_panels_that_changed_are_sent_again(page: LivePage, clock: Clock, tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    page.refresh()
    assert len(page.changed(seen)) == len(page.panels)
    clock.later(page.interval_ms)
    page.refresh()
    changed = {json.loads(b)["id"] for b in page.changed(seen)}
    assert "count" not in changed
    put(tmp_path, "sales", [{"n": 3, "text": "y"}])
    clock.later(page.interval_ms)
    page.refresh()
    assert "count" in {json.loads(b)["id"] for b in page.changed(seen)}


def test_panels_are_made_once_for_all_who_look(page: LivePage, clock: Clock) -> None:
    made = []
    page.panels = (Panel("x", "X", lambda data: made.append(1) or Note("x")),)  # type: ignore[func-returns-value]
    for _ in range(5):
        page.refresh()
    assert len(made) == 1
    clock.later(page.interval_ms)
    page.refresh()
    assert len(made) == 2


def test_panels_that_can_tell_are_seen_as_of_a_moment(tmp_path: Path) -> None:
    def then(data: AppData, at_ms: int) -> View | None:
        if at_ms == 13:
            raise ZeroDivisionError("an unlucky moment")
        return Note(f"at {at_ms}") if at_ms else None

    panels = (Panel("now", "Now", count), Panel("then", "Then", count, empty="not yet", replay=then))
    put(tmp_path, "sales", [{"n": 1}])
    site = Site(
        {"shop": LivePage(data_of(tmp_path), DashboardPage(panels=panels))}, Access("127.0.0.1", TOKEN)
    )
    with TestClient(make_app(site), base_url=f"http://{HOST}") as client:
        described = client.get("/api/apps/shop").json()["panels"]
        assert {p["id"] for p in described if p["replays"]} == {"then"}
        for at, text in ((7, "at 7"), (0, "not yet"), (13, "this panel failed")):
            (found,) = client.get(f"/api/apps/shop/at?ms={at}").json()
            assert (found["id"], text in found["view"]["text"]) == ("then", True)
        for wrong in ("", "?ms=-1", "?ms=x", "?ms=253402300800000"):
            assert client.get(f"/api/apps/shop/at{wrong}").status_code == 422


def test_rows_of_a_table_and_the_detail_of_a_key(client: TestClient) -> None:
    rows = client.get("/api/apps/shop/tables/sales?rows=1").json()
    assert (rows["rows"], rows["more"]) == ([[2, "x"]], 1)
    assert client.get("/api/apps/shop/tables/dead_letters").json()["rows"][0] == ["schema", "4 bytes"]
    note = {"type": "note", "text": "a", "tone": "plain"}
    assert client.get("/api/apps/shop/detail?key=a").json() == [{"title": "it", "view": note}]
    assert client.get("/api/apps/shop/detail?key=none").json() == []


@pytest.mark.parametrize("name", ["%2e%2e", "%2e%2e%2fsales", "sales%2f..", "no", "sales%00"])
def test_a_tables_name_never_becomes_a_path(client: TestClient, name: str) -> None:
    assert client.get(f"/api/apps/shop/tables/{name}").status_code in (404, 409)
    assert client.get(f"/static/{name}").status_code == 404


def test_the_page_loads_its_own_files_only(client: TestClient) -> None:
    for name in ("index.html", "app.js", "charts.js", "style.css"):
        text = (STATIC / name).read_text()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text
        )
    assert client.get("/static/app.js").headers["content-type"].startswith("text/javascript")
    html = client.get("/").text
    assert "style=" not in html
    assert not re.search(r"<script(?![^>]*src=)", html)


def test_every_answer_has_the_headers_that_keep_foreign_things_out(client: TestClient) -> None:
    for path in ("/", "/static/app.js", "/api/apps", "/static/none", "/api/apps/none"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in policy
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert headers["cache-control"] == "no-store"


# -- several actions -------------------------------------------------------------------------------


def test_a_page_may_have_several_actions_of_which_some_can_be_looked_at_ahead(tmp_path: Path) -> None:
    put(tmp_path, "sales", [{"n": 1}])
    page = LivePage(data_of(tmp_path), MANY)
    about = page.describe()
    assert [(a["name"], a["looks"], a["about"]) for a in about["actions"]][:2] == [
        ("decide", False, ""), ("shelve", True, "For a while."),
    ]  # fmt: skip
    assert about["panels"][0]["actions"] == ("shelve",)
    assert about["kinds"] == {"shop:": "Shop"}
    assert page.act({"id": "a", "verdict": "long"}, "shelve") == "a is long"
    assert page.act({"id": "a", "verdict": "good"}, "decide") == "a is good"
    assert page.look({"id": "a"}, "shelve") == Note("a would be as it is")
    for name, said in (("", "no action ''"), ("delete", "no action 'delete'")):
        with pytest.raises(ActionRefused, match=said):
            page.act({"id": "a", "verdict": "good"}, name)
    with pytest.raises(UserError, match="cannot be shown before"):
        page.look({"id": "a", "verdict": "good"}, "decide")
    for values in ({"id": "a"}, {"id": "a", "verdict": " "}):
        with pytest.raises(ActionRefused, match="verdict is missing"):
            page.act(values, "shelve")
    with pytest.raises(ActionRefused, match="one of good, bad"):
        page.act({"id": "a", "verdict": "long"}, "decide")


def test_actions_that_do_not_fit_their_page_are_told_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="one name: decide, decide"):
        DashboardPage(actions=(ACTION, ACTION))
    with pytest.raises(ValueError, match="panel count names the action shelve"):
        DashboardPage(panels=MANY.panels, actions=(ACTION,))


@pytest.mark.parametrize("query", ["action=shelve", "action=shelve&look=true"])
def test_every_action_and_a_look_ahead_take_the_token(tmp_path: Path, query: str) -> None:
    put(tmp_path, "sales", [{"n": 1}])
    site = Site({"shop": LivePage(data_of(tmp_path), MANY)}, Access("127.0.0.1", TOKEN))
    with TestClient(make_app(site), base_url=f"http://{HOST}") as client:
        path, values = f"/api/apps/shop/action?{query}", {"id": "a", "verdict": "long"}
        assert client.post(path, json=values).status_code == 401
        by_token = {"authorization": f"Bearer {TOKEN}"}
        said = client.post(path, json=values, headers=by_token).json()
        note = {"type": "note", "text": "a would be long", "tone": "plain"}
        assert said == ({"view": note} if "look" in query else {"said": "a is long"})
        assert (
            client.post("/api/apps/shop/action?action=no", json=values, headers=by_token).status_code == 409
        )
        assert client.get(path).status_code == 405


def test_what_is_outside_of_tables_is_made_once_for_each_version(tmp_path: Path) -> None:
    data = data_of(tmp_path)
    numbers = iter(range(10))
    found = [data.once("x", version, lambda: next(numbers)) for version in (1, 1, 2, 2, 1)]
    assert found == [0, 0, 1, 1, 2]
    assert data.once("y", 1, lambda: next(numbers)) == 3


# -- who may what ----------------------------------------------------------------------------------


def test_on_loopback_everybody_may_look_and_nobody_may_act(client: TestClient) -> None:
    assert client.get("/api/apps").status_code == 200
    assert client.get("/api/session").json() == {"is_known": False, "may_act": False}
    assert act(client, {"id": "a", "verdict": "good"}).status_code == 401


def test_the_token_lets_act_with_a_cookie_that_scripts_cannot_read(client: TestClient) -> None:
    answer = client.get(f"/?token={TOKEN}")
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
    assert TOKEN not in cookie
    csrf = enter(client)
    assert csrf not in cookie
    answer = act(client, {"id": "a", "verdict": "good"}, **{CSRF_HEADER: csrf})
    assert (answer.status_code, answer.json()) == (200, {"said": "a is good"})


def test_a_wrong_token_is_no_way_in(client: TestClient) -> None:
    answer = client.get("/?token=wrong")
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({CSRF_HEADER: ""}, 403),
        ({CSRF_HEADER: "guessed"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": ""}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"host": "evil.example"}, 421),
        ({"cookie": f"{COOKIE}=guessed"}, 401),
    ],
)
def test_a_post_that_a_foreign_page_could_cause_is_refused(
    client: TestClient, change: dict[str, str], status: int
) -> None:
    good = {CSRF_HEADER: enter(client)}
    if "cookie" in change:
        client.cookies.clear()
    assert act(client, {"id": "a", "verdict": "good"}, **{**good, **change}).status_code == status


def test_a_program_acts_with_the_bearer_token(client: TestClient) -> None:
    values = {"id": "a", "verdict": "good"}
    assert act(client, values, origin="", authorization=f"Bearer {TOKEN}").status_code == 200
    assert act(client, values, origin="", authorization="Bearer wrong").status_code == 401


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"id": "a"}, "verdict is missing"),
        ({"id": "a", "verdict": "odd"}, "one of good, bad"),
        ({"id": "a", "verdict": "good", "more": "x"}, "no field 'more'"),
        ({"id": "a", "verdict": "good", "note": "x" * 501}, "longer than 500"),
        ({"id": "a", "verdict": 5}, "not what was expected"),
        (["a"], "not what was expected"),
        ({"id": "a", "verdict": "bad"}, "decided already"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(client: TestClient, values: Any, said: str) -> None:
    answer = act(client, values, **{CSRF_HEADER: enter(client)})
    assert answer.status_code == 409
    assert said in answer.json()["error"]


def test_a_body_that_is_too_long_is_not_read(client: TestClient) -> None:
    assert act(client, {"id": "x" * 20_000}, **{CSRF_HEADER: enter(client)}).status_code == 413


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_there_is_nothing_to_change_otherwise(client: TestClient, method: str) -> None:
    assert client.request(method, "/api/apps/shop/action").status_code == 405


def test_elsewhere_than_on_loopback_looking_takes_the_token(page: LivePage) -> None:
    site = Site({"shop": page}, Access(EVERYWHERE, TOKEN))
    with TestClient(make_app(site), base_url="http://dash.example", follow_redirects=False) as client:
        for path in ("/", "/api/apps", "/api/apps/shop/tables/sales", "/static/app.js", "/api/session"):
            assert client.get(path).status_code == 401
        client.get(f"/?token={TOKEN}")
        assert client.get("/api/apps").status_code == 200


def test_a_server_for_others_needs_a_token_of_some_length() -> None:
    with pytest.raises(UserError, match="MILLRACE_DASHBOARD_TOKEN"):
        Access(EVERYWHERE, None)
    with pytest.raises(UserError, match="shorter"):
        Access("127.0.0.1", "short")
    assert len(Access("::1", None).token) >= 32
    assert Access("127.0.0.1", None).token != Access("127.0.0.1", None).token


def test_a_name_that_is_not_ours_is_refused_on_loopback() -> None:
    access = Access("127.0.0.1", TOKEN)
    for host in ("localhost:8600", "127.0.0.1", "[::1]:8600"):
        assert access.refusal(Request("GET", {"host": host}, "")) is None
    for host in ("evil.example", "127.0.0.1.evil.example", ""):
        assert access.refusal(Request("GET", {"host": host}, "")) is not None


# -- what is started -------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_one_clear_line() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UserError, match="choose another with --port"):
            listening_socket("127.0.0.1", other.getsockname()[1])


def test_pages_that_cannot_be_opened_do_not_hide_the_others() -> None:
    pages, failed = open_pages(["fraud", "no-such-app"])
    assert set(pages) == {"fraud"}
    assert "no app" in failed["no-such-app"]


def test_the_root_is_what_was_named_else_where_there_are_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path / "home"))
    own, demo = tmp_path / "own", tmp_path / "home" / "demo" / "shop"
    settings = AppSettings(storage={"root": str(own)})
    assert find_root("shop", settings, None) == own
    (demo / "tables").mkdir(parents=True)
    assert find_root("shop", settings, None) == demo
    (own / "tables").mkdir(parents=True)
    assert find_root("shop", settings, None) == own
    assert find_root("shop", settings, tmp_path) == tmp_path
    with pytest.raises(UserError, match="no folder"):
        find_root("shop", settings, tmp_path / "none")


def test_a_page_that_an_app_names_wrongly_is_one_clear_line() -> None:
    assert load_page(shop()) == DashboardPage()
    for target in ("no.such.module:page", "millrace.errors:page", "millrace.errors:UserError"):
        with pytest.raises(UserError, match="dashboard of shop"):
            load_page(shop(dashboard=target))


def test_the_dashboard_never_imports_the_engine(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom millrace.dashboard.serve import open_pages\n"
        "from millrace.runtime.installed import list_apps\n"
        "pages, broken = open_pages(list_apps())\n"
        "assert len(pages) >= 4 and not broken, broken\n"
        "for page in pages.values():\n    page.refresh()\n"
        "assert not [m for m in sys.modules if m.split('.')[0] == 'pyspark'], 'pyspark'\n"
    )
    own = {**os.environ, "MILLRACE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, env=own
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--root", "."], "--root is the folder of one app"),
        (["no-such-app"], "there is no app"),
        (["fraud", "--host", EVERYWHERE], "MILLRACE_DASHBOARD_TOKEN"),
        (["fraud", "--root", "/no/such/folder"], "is no folder"),
        (["fraud", "--host", "no.such.host.invalid", "--port", "1"], "can be reached from other machines"),
        (["fraud", "--set", "kafka.bootstrap=nonsense"], "host:port"),
    ],
)
def test_the_command_refuses_what_it_cannot_do_in_one_line(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLRACE_DASHBOARD_TOKEN", raising=False)
    result = CliRunner().invoke(dashboard_command, words)
    assert isinstance(result.exception, UserError), result.output
    assert said in str(result.exception)
    assert "\n" not in str(result.exception)


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    put(tmp_path, "alerts", [{"n": 1}])
    command = [sys.executable, "-m", "millrace", "dashboard", "fraud", "--port", "0", "--root", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S{32}", line)
        try:
            assert found, line + (process.stderr.read() if process.stderr and process.poll() else "")
            base = found[0].partition("/?")[0]
            with urllib.request.urlopen(f"{base}/api/apps", timeout=20) as answer:  # noqa: S310
                assert [found["app"] for found in json.load(answer)] == ["fraud"]
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(20)
        assert code == 0


def test_one_choice_holds_for_the_panels_that_can_tell_of_it(tmp_path: Path) -> None:
    made: list[str] = []

    def of(data: AppData, value: str) -> View:
        made.append(value)
        if value == "bad":
            raise ValueError("no")
        return Note(f"of {value}")

    panels = (
        Panel("a", "A", lambda data: Note("all"), chosen=of),
        Panel("b", "B", lambda data: Note("all of b")),
    )
    clock = Clock(1_000)
    page = LivePage(
        data_of(tmp_path, clock=clock),
        DashboardPage(panels=panels, choice=Choice("Town", lambda data: ["rome", "bad"])),
    )
    site = Site({"shop": page}, Access("127.0.0.1", TOKEN))
    with TestClient(make_app(site), base_url=f"http://{HOST}") as client:
        about = client.get("/api/apps/shop").json()
        assert about["choice"] == "Town"
        assert [p["chosen"] for p in about["panels"]][:2] == [True, False]

        def ask(value: str) -> Any:
            return client.get("/api/apps/shop/chosen", params={"value": value}).json()

        assert ask("") == {"values": ["rome", "bad"], "panels": []}
        (panel,) = ask("rome")["panels"]
        assert (panel["id"], panel["view"]["text"]) == ("a", "of rome")
        ask("rome")
        assert made == ["rome"]  # once for everybody
        assert "failed" in ask("bad")["panels"][0]["view"]["text"]
        assert ask("<script>")["panels"] == []  # a name from outside reaches no panel
        for number in range(100):
            ask(f"x{number}")
        assert len(page._chosen) <= MOST_CHOICES
        assert client.get("/api/apps/shop/chosen", params={"value": "x" * 300}).status_code == 422
    plain = LivePage(data_of(tmp_path, clock=clock), DashboardPage(panels=panels))
    assert plain.chosen("rome") == {"values": [], "panels": []}
