"""Operators are told of alarms: by a webhook and a mail server that are there, and by none that is not."""

from __future__ import annotations

import json
import shlex
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from millrace.errors import UserError
from millrace.operations import sending
from millrace_apps.iot_maintenance.contracts.events import Action
from millrace_apps.iot_maintenance.operations import operating
from millrace_apps.iot_maintenance.operations.cli import app
from millrace_apps.iot_maintenance.operations.notifying import (
    Channel,
    Mail,
    NotifyError,
    due,
    notify,
    read_plan,
)

NOW = 1_767_600_000_000  # 2026-01-05 08:00 UTC, a Monday
MINUTE = 60_000
SECRET = "of the hook"  # noqa: S105 - a test's own


def row(name: str = "hot/oil", *, since: int = NOW, **rest: Any) -> dict[str, Any]:
    """A row of the table of alarms."""
    said: dict[str, Any] = {
        "alarm_id": f"m1:{name}", "entity_id": "m1", "alarm": name, "rule_id": name.partition("/")[0],
        "category": "process", "severity": "high", "active": True, "announced": True, "acked": False,
        "active_since_ms": since, "event_time_ms": since, "plant_id": "north", "line_id": "l1", "value": 81.0,
        "limit": 80.0, "title": "Oil\nhot", "reason": "", "cause": "", "consequence": "leak",
        "response": "change the seal", "respond_by_ms": since + 15 * MINUTE, "status": "Execute",
    }  # fmt: skip
    return said | rest


class Hook(BaseHTTPRequestHandler):
    """Takes what is posted, and answers as it is told."""

    got: ClassVar[list[tuple[str | None, Any]]] = []
    answer: ClassVar[tuple[int, bytes]] = (200, b"ok")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.headers["Authorization"], json.loads(body)))
        self.send_response(self.answer[0])
        self.end_headers()
        self.wfile.write(self.answer[1])

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def hook(answer: bytes = b"ok", status: int = 200) -> Iterator[tuple[str, list[tuple[str | None, Any]]]]:
    """A webhook on this machine."""
    got: list[tuple[str | None, Any]] = []
    handler = type("Own", (Hook,), {"got": got, "answer": (status, answer)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/alarms", got
    finally:
        server.shutdown()
        server.server_close()


class Smtp(socketserver.StreamRequestHandler):
    """As much of SMTP as a mail needs."""

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                said = []
                while (part := self.rfile.readline()) != b".\r\n":
                    said.append(part.decode())
                self.server.got.append("".join(said))  # type: ignore[attr-defined]
            elif word == b"QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            self.wfile.write(b"250 fine\r\n")


@contextmanager
def mail_server() -> Iterator[tuple[str, list[str]]]:
    """A mail server on this machine."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Smtp)
    server.daemon_threads = True
    got: list[str] = []
    server.got = got  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", got
    finally:
        server.shutdown()
        server.server_close()


def plan_of(folder: Path, text: str) -> Any:
    """The plan of a file."""
    file = folder / "on-call.yaml"
    file.write_text(text)
    return read_plan(file)


def test_a_webhook_is_told_once_and_what_it_answers_is_an_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_TOKEN", SECRET)
    with hook(b'{"operator": "ann", "comment": "on my way"}') as (url, got):
        plan = plan_of(tmp_path, f"channels: {{day: {{webhook: '{url}', token_env: HOOK_TOKEN}}}}\n"
                                 "routes: [{steps: [{to: [day]}]}]")  # fmt: skip
        first = notify(plan, [row()], [], NOW)
        again = notify(plan, [row()], first.told, NOW + 1)
    ((token, said),) = got
    assert token == f"Bearer {SECRET}"
    assert (said["alarm_id"], said["response"], said["respond_by_ms"]) == (
        "m1:hot/oil", "change the seal", NOW + 15 * MINUTE,
    )  # fmt: skip
    (action,) = first.actions
    assert action == Action(
        action.action_id, "m1", "hot/oil", "ack", NOW, operator="ann", comment="on my way"
    )
    assert (first.sent, again.sent, again.actions) == (1, 0, [])


@pytest.mark.parametrize("answer", [b"ok", b"{}", b'{"operator": "ann", "verb": "reset"}', b"x" * 100_000])
def test_any_other_answer_is_none(tmp_path: Path, answer: bytes) -> None:
    with hook(answer) as (url, _):
        plan = plan_of(
            tmp_path, f"channels: {{day: {{webhook: '{url}'}}}}\nroutes: [{{steps: [{{to: [day]}}]}}]"
        )
        done = notify(plan, [row()], [], NOW)
    assert (done.sent, done.actions) == (1, [])


def test_mail_goes_to_the_server_and_says_what_to_do(tmp_path: Path) -> None:
    with mail_server() as (server, got):
        mail = f"{{server: '{server}', from: a@x, to: [b@x, c@x]}}"
        plan = plan_of(tmp_path, f"channels: {{m: {{mail: {mail}}}}}\nroutes: [{{steps: [{{to: [m]}}]}}]")
        assert notify(plan, [row()], [], NOW).sent == 1
    (said,) = got
    assert "Subject: [high] Oil hot: m1" in said
    assert "To: b@x, c@x" in said
    assert "response: change the seal" in said
    (command,) = [line for line in said.splitlines() if line.startswith("millrace ")]
    words = shlex.split(command)
    assert words[:5] == ["millrace", "iot", "alarms", "ack", "m1:hot/oil"]
    # It is one that can be typed: it gets as far as asking for a broker.
    with pytest.raises(UserError, match="no broker"):
        CliRunner().invoke(app, words[2:], catch_exceptions=False)


def test_what_cannot_be_delivered_is_tried_again_and_hinders_nobody(tmp_path: Path) -> None:
    with hook(status=503) as (bad, refused), hook() as (good, got):
        plan = plan_of(tmp_path, f"channels: {{a: {{webhook: '{bad}'}}, b: {{webhook: '{good}'}}, "
                                 "c: {mail: {server: '127.0.0.1:1', from: a@x, to: [b@x]}}}\n"
                                 "routes: [{steps: [{to: [a, b, c]}]}]")  # fmt: skip
        first = notify(plan, [row()], [], NOW)
        again = notify(plan, [row()], first.told, NOW + 1)
    assert [name for name, _ in first.failed] == [name for name, _ in again.failed] == ["a", "c"]
    assert first.failed[0][1] == "HTTP 503"
    assert (len(got), len(refused)) == (1, 2)


STEPS = """
channels:
  day: {webhook: "http://day", on_call: {days: [mon], from: "06:00", to: "18:00"}}
  night: {webhook: "http://night", on_call: {from: "18:00", to: "06:00"}}
  chief: {webhook: "http://chief"}
routes:
  - {severities: [high, critical], sites: [north], steps: [{to: [day, night]}, {to: [chief], after: 10m}]}
  - {categories: [sensor], steps: [{to: [day]}]}
"""


def test_who_is_on_call_is_told_and_the_next_step_where_nobody_acknowledges(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, STEPS)

    def told(now: int, *rows: dict[str, Any]) -> list[str]:
        return [one.channel for one in due(plan, rows, [], now)]

    assert told(NOW, row()) == ["day"]
    assert told(NOW + 12 * 60 * MINUTE, row(since=NOW + 12 * 60 * MINUTE)) == ["night"]
    assert told(NOW + 10 * MINUTE, row()) == ["day", "chief"]
    assert told(NOW + 10 * MINUTE, row(acked=True)) == []
    assert told(NOW, row(announced=False), row(severity="low"), row(plant_id="south")) == []
    assert told(NOW, row("sensor-fault/oil", severity="low", category="sensor")) == ["day"]


def test_an_alarm_that_comes_again_is_told_again_and_what_is_over_is_forgotten(tmp_path: Path) -> None:
    plan, sent = plan_of(tmp_path, STEPS), []

    def send(channel: Channel, alarm: Any) -> None:
        sent.append((channel.webhook, alarm["active_since_ms"]))

    first = notify(plan, [row()], [], NOW, send)
    over = notify(plan, [row(active=False, announced=False)], first.told, NOW + 1, send)
    again = notify(plan, [row(since=NOW + 2)], over.told, NOW + 2, send)
    assert (len(first.told), over.told, len(again.told)) == (1, [], 1)
    assert sent == [("http://day", NOW), ("http://day", NOW + 2)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("routes: []", "routes"),
        ("channels: {a: {}}\nroutes: [{steps: [{to: [a]}]}]", "either a webhook or mail"),
        ("channels: {a: {webhook: 'http://a'}}\nroutes: [{steps: [{to: [b]}]}]", "no channel 'b'"),
        ("channels: {a: {webhook: 'file:///etc/passwd'}}\nroutes: [{steps: [{to: [a]}]}]", "webhook"),
        (
            "channels: {a: {webhook: 'http://a', on_call: {from: '25:00'}}}\nroutes: [{steps: [{to: [a]}]}]",
            "time",
        ),
        ("{", "on-call.yaml"),
    ],
)
def test_a_plan_that_is_none_is_refused_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(NotifyError, match=why) as refused:
        plan_of(tmp_path, text)
    assert "\n" not in str(refused.value)


def test_the_command_tells_remembers_and_sends_what_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(operating, "read_table", lambda settings, name: [row()])
    monkeypatch.setattr(sending, "send", lambda kafka, topic, contract, events: sent.append((topic, events)))
    with hook(b'{"operator": "ann"}') as (url, got):
        file = tmp_path / "plan.yaml"
        file.write_text(f"channels: {{a: {{webhook: '{url}'}}}}\nroutes: [{{steps: [{{to: [a]}}]}}]")
        for said in ("1 told, 1 answered", "0 told, 0 answered"):
            done = CliRunner().invoke(app, ["notify", str(file), "--root", str(tmp_path / "root")])
            assert (done.exit_code, said in done.output) == (0, True), done.output
    assert len(got) == 1
    assert [(topic, [(key, a.verb) for key, a in events]) for topic, events in sent] == [
        ("iot.actions", [("m1", "ack")]),
        ("iot.actions", []),
    ]
    assert (tmp_path / "root" / "notified.json").stat().st_mode & 0o777 == 0o600
    assert Mail("s", "a", ("b",)).user == ""
