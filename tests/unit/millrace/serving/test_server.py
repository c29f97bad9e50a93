"""What may be asked over HTTP, by whom, how often; and what is said where there is no answer."""

from __future__ import annotations

import gc
import http.client
import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from typer.testing import CliRunner

from millrace import Context, KeyedProcess, arrival, value_state
from millrace.chaos.hostile import Message
from millrace.checkpoints.committed import CommittedState
from millrace.cli.serve import app as serve_command
from millrace.dashboard.serve import listening_socket
from millrace.errors import UserError
from millrace.runtime.settings import AppSettings, load_settings
from millrace.serving import running
from millrace.serving.following import Following, keeping_up
from millrace.serving.gate import RateLimit, Token, read_token
from millrace.serving.questions import Question
from millrace.serving.running import serving
from millrace.serving.server import LARGEST_BODY, Answer, Server
from millrace.topology import Input, Topology, read
from tests.unit.millrace.serving.memory_query import MemoryQuery

TOKEN = "0123456789abcdef-of-a-test"  # noqa: S105
START = 1_700_000_000_000


class Sale(msgspec.Struct):
    shop: str
    card: str
    at: int
    cents: int


class Totals(KeyedProcess[Sale, Sale]):
    order = arrival(commutes=True)
    cents = value_state(int, default=0)

    def process(self, event: Sale, ctx: Context) -> None:
        self.cents.value += event.cents
        ctx.emit(event)


class Shops(Totals):
    pass


def topology() -> Topology:
    made = read(Input("sales", key=("shop", "card"), event_time="at")).process(Totals())
    return made.key_by("shop").process(Shops())


@pytest.fixture
def query(tmp_path: Path) -> MemoryQuery:
    settings = load_settings(AppSettings, app="test", overrides=("spark.key_groups=4",))
    return MemoryQuery(tmp_path / "app", topology(), settings, "sales")


def sell(query: MemoryQuery, *sales: tuple[str, str, int]) -> None:
    messages = [
        Message("sales", None, msgspec.json.encode(Sale(shop, card, START + n, cents)), 0)
        for n, (shop, card, cents) in enumerate(sales)
    ]
    query.run(messages)


class Client:
    def __init__(self, address: str) -> None:
        self._host = address.removeprefix("http://")

    def __call__(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, Any, Mapping[str, str]]:
        connection = http.client.HTTPConnection(self._host, timeout=10)
        told = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, told)
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, json.loads(data) if data else None, dict(answer.getheaders())
        finally:
            connection.close()


@contextmanager
def asked(state: Callable[[], CommittedState], **how: Any) -> Iterator[Client]:
    with serving(Server(state, token=Token(TOKEN), **how)) as address:
        yield Client(address)


def test_all_that_is_kept_of_a_key_with_the_batch_it_is_from(query: MemoryQuery) -> None:
    sell(query, ("oslo", "c/1", 5), ("oslo", "c/1", 7), ("rome", "é", 1))
    following = Following(lambda: query.writer.checkpoint)
    with keeping_up(following.look, 0.01), asked(lambda: following.state) as ask:
        status, told, headers = ask(f"/v1/state/Totals/oslo/{quote('c/1', safe='')}")
        assert (status, told["states"], told["batch"]) == (200, {"cents": 12}, 0)
        assert (told["key"], told["process"]) == (["oslo", "c/1"], "Totals")
        assert 0 <= told["age_ms"] < 60_000
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert ask(f"/v1/state/Totals/rome/{quote('é')}")[1]["states"] == {"cents": 1}
        assert ask("/v1/state/Shops/oslo")[1]["states"] == {"cents": 12}
        assert [p["name"] for p in ask("/v1/processes")[1]["processes"]] == ["Totals", "Shops"]
        sell(query, ("oslo", "c/1", 100))
        deadline = threading.Event()
        while ask("/v1/state/Shops/oslo")[1]["batch"] == 0:
            deadline.wait(0.01)
        assert ask("/v1/state/Shops/oslo")[1]["states"] == {"cents": 112}
        assert ask("/v1/state/Shops/oslo", "HEAD")[:2] == (200, None)


def test_what_has_no_answer_says_why(query: MemoryQuery) -> None:
    following = Following(lambda: query.writer.checkpoint)
    with keeping_up(following.look, 0.01), asked(lambda: following.state) as ask:
        status, told, headers = ask("/v1/state/Totals/oslo/c1")
        assert (status, headers["retry-after"]) == (503, "1")
        assert "no batch yet" in told["error"]
        assert ask("/healthz", Authorization="")[1] == {"status": "ok", "ready": False, "batch": None}
        sell(query, ("oslo", "c1", 5))
        deadline = threading.Event()
        while not ask("/healthz")[1]["ready"]:
            deadline.wait(0.01)
        for path, status, why in (
            ("/v1/state/Totls/a/b", 404, "did you mean Totals?"),
            ("/v1/state/Totals/oslo/c2", 404, "keeps nothing"),
            ("/v1/state/Totals/oslo", 400, "2 parts (shop/card)"),
            ("/v1/state/Totals/oslo//", 400, "2 parts"),
            ("/v1/else", 404, "/v1/state"),
            ("/v1/ask/what", 404, "there are none"),
        ):
            found = ask(path)
            assert found[0] == status, path
            assert why in found[1]["error"]
        assert ask("/v1/processes", "DELETE")[0] == 405


def test_the_token_is_asked_for_everywhere_and_limits_hold_before_it(query: MemoryQuery) -> None:
    sell(query, ("oslo", "c1", 5))
    state = CommittedState(query.writer.checkpoint)
    with asked(lambda: state) as ask:
        for told in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"):
            status, body, headers = ask("/v1/processes", Authorization=told)
            assert (status, headers["www-authenticate"]) == (401, "Bearer"), told
            assert TOKEN not in json.dumps(body)
    now = [0.0]
    with asked(lambda: state, limit=RateLimit(5, lambda: now[0])) as ask:
        assert [ask("/v1/processes", Authorization="")[0] for _ in range(6)] == [401] * 5 + [429]
        status, _, headers = ask("/v1/processes")
        assert (status, headers["retry-after"]) == (429, "1")
        assert ask("/healthz")[0] == 200
        now[0] = 0.21
        assert ask("/v1/processes")[0] == 200
        assert ask("/v1/processes")[0] == 429


def test_questions_and_actions_of_an_app(query: MemoryQuery) -> None:
    sell(query, ("oslo", "c1", 5))
    state = CommittedState(query.writer.checkpoint)

    def total(state: CommittedState, told: Mapping[str, str]) -> Any:
        found = state.entry("Shops", (told["shop"],))
        return {"cents": None if found is None else found[0].states["cents"].value}

    def fails(state: CommittedState, told: Mapping[str, str]) -> Any:
        raise ZeroDivisionError("a secret of the app")

    questions = {"total": Question("What a shop has sold.", total, ("shop",)), "fails": Question("-", fails)}
    actions = {"v1/echo": lambda body: Answer(200, {"length": len(body)})}
    with asked(lambda: state, questions=questions, actions=actions) as ask:
        assert ask("/v1/ask/total?shop=oslo")[:2] == (200, {"cents": 5})
        assert ask("/v1/questions")[1]["total"]["parameters"] == ["shop"]
        assert ask("/v1/ask/total")[0] == ask("/v1/ask/total?shop=oslo&x=1")[0] == 400
        status, body, _ = ask("/v1/ask/fails")
        assert status == 500
        assert "secret" not in body["error"]
        assert ask("/v1/echo", "POST", b"{}")[:2] == (200, {"length": 2})
        assert ask("/v1/echo", "POST", b"{}", Content_Type="text/plain")[0] == 415
        assert ask("/v1/echo")[0] == 405
        assert ask("/v1/echo", "POST", b" " * (LARGEST_BODY + 1))[0] == 413
        assert ask("/v1/echo", "POST", b" " * LARGEST_BODY)[0] == 200


def test_the_log_tells_of_requests_and_not_of_keys(
    query: MemoryQuery, caplog: pytest.LogCaptureFixture
) -> None:
    sell(query, ("oslo", "c1", 5))
    state = CommittedState(query.writer.checkpoint)
    with caplog.at_level(logging.INFO, "millrace.serving"), asked(lambda: state) as ask:
        ask("/v1/state/Totals/oslo/c1?x=secret")
        ask("/v1/a%0Ab")
    lines = [r.getMessage() for r in caplog.records]
    assert [line.rpartition(" 200 ")[0] for line in lines[:1]] == ["GET /v1/state/Totals"]
    assert not any(word in line for line in lines for word in ("oslo", "c1", "secret", TOKEN, "\n"))


def test_a_checkpoint_that_goes_away_leaves_what_was_read(query: MemoryQuery, tmp_path: Path) -> None:
    sell(query, ("oslo", "c1", 5))
    following = Following(lambda: query.writer.checkpoint)
    with keeping_up(following.look, 0.01):
        query.writer.checkpoint.folder.rename(tmp_path / "elsewhere")
        threading.Event().wait(0.1)
        found = following.state.entry("Shops", ("oslo",))
        assert found is not None
        (tmp_path / "elsewhere").rename(query.writer.checkpoint.folder)
        sell(query, ("oslo", "c1", 5))
        deadline = threading.Event()
        while following.state.batch == 0:
            deadline.wait(0.01)


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """An answer has two parts; with Nagle's algorithm the second waits 40 ms for the other side."""
    with closing(listening_socket("127.0.0.1", 0)) as listening:
        assert listening.proto == socket.IPPROTO_TCP  # what asyncio goes by


def test_tokens_are_long_and_in_files_that_others_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="shorter than 16"):
        Token("short")
    assert Token().is_made
    assert Token().text != Token().text
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        read_token(path)
    path.chmod(0o600)
    assert read_token(path) == TOKEN
    with pytest.raises(UserError, match="cannot be read"):
        read_token(tmp_path / "none")


def test_readers_and_the_one_who_goes_on_never_see_half_a_batch(query: MemoryQuery) -> None:
    """Both processes have the same sum in every batch; threads read while the state goes on."""
    sell(query, ("oslo", "c1", 1))
    state = CommittedState(query.writer.checkpoint)
    wrong, ended = [], threading.Event()

    def look() -> None:
        while not ended.is_set():
            with state.held():
                one, other = state.entry("Totals", ("oslo", "c1")), state.entry("Shops", ("oslo",))
            if one is None or other is None or one[0].states["cents"].value != other[0].states["cents"].value:
                wrong.append((one, other))

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(60):
        sell(query, ("oslo", "c1", number))
        if number % 7 == 0:
            query.writer.partition.snapshot()
        state.move_to()
    ended.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    found = state.entry("Shops", ("oslo",))
    assert found is not None
    assert found[0].states["cents"].value == 1 + sum(range(60))


def test_what_was_loaded_before_serving_holds_no_answer_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collections leave out what is there when serving begins: going through all of it takes 80 ms."""
    frozen: list[int] = []

    class Uvicorn:
        def run(self, sockets: list[socket.socket]) -> None:
            assert len(sockets) == 1
            frozen.append(gc.get_freeze_count())

    def not_committed() -> CommittedState:
        raise AssertionError("nobody asks")

    before = sys.getswitchinterval()
    monkeypatch.setattr(running, "uvicorn_of", lambda _server: Uvicorn())
    try:
        token = Token(TOKEN)
        running.run(Server(not_committed, token=token), token, "127.0.0.1", 0, lambda _line: None)
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()
    assert frozen[0] > 10_000


class Given(Exception):
    """A server gave way, and so much."""


@pytest.mark.parametrize(("words", "by"), [([], 10), (["--nice", "0"], 0), (["--nice", "19"], 19)])
def test_a_server_of_state_gives_way_to_the_job_before_it_has_threads(
    words: list[str], by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nice(much: int) -> int:
        raise Given(much)

    before = threading.active_count()
    monkeypatch.setattr("os.nice", nice)
    done = CliRunner().invoke(serve_command, ["fraud", *words])
    assert isinstance(done.exception, Given)
    assert done.exception.args == (by,)
    assert threading.active_count() == before
