"""Operators are told of alarms by webhook and mail, when they are on call, until one acknowledges.

The table of alarms is looked at again and again; what has been told stands in a file, so that a restart tells
nothing twice. What cannot be delivered is tried again the next time. A webhook may answer with what whoever
got it does: that becomes an action like any operator's.
"""

from __future__ import annotations

import json
import os
import shlex
import smtplib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.message import EmailMessage
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from millrace.dead_letters import NOT_JSON
from millrace.errors import UserError
from millrace.local.documents import read_yaml
from millrace.time.durations import to_ms
from millrace_apps.iot_maintenance.alarms.rule import Category, Severity
from millrace_apps.iot_maintenance.alarms.schedule import Schedule
from millrace_apps.iot_maintenance.contracts.events import Action

#: How long a server may take, seconds, and how much of its answer is read.
_PATIENCE_S: Final = 10.0
_MOST_BYTES: Final = 65_536
_Name = Annotated[str, Meta(min_length=1, max_length=64)]


class NotifyError(UserError):
    """The file of channels and routes is none."""


class Mail(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"sender": "from"}):
    """A mail server, and to whom it sends.

    Attributes:
        server: ``host:port``.
        sender: The address that it comes from.
        to: The addresses that it goes to.
        user: Who logs in; empty: nobody.
        password_env: Variable of the environment that has the password.
        starttls: Whether to encrypt.
    """

    server: str
    sender: str
    to: Annotated[tuple[str, ...], Meta(min_length=1)]
    user: str = ""
    password_env: str = ""
    starttls: bool = False


class Channel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way to reach somebody: a webhook or mail.

    Attributes:
        webhook: Where a message is posted to, as JSON.
        token_env: Variable of the environment with the webhook's bearer token.
        mail: Or by mail.
        on_call: When somebody is there; always unless given.
    """

    webhook: Annotated[str, Meta(pattern="^(https?://.*)?$")] = ""
    token_env: str = ""
    mail: Mail | None = None
    on_call: Schedule | None = None


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is told once an alarm has not been acknowledged for so long."""

    to: Annotated[tuple[_Name, ...], Meta(min_length=1)]
    after: str | int = 0


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which alarms go where; what is empty is not asked for."""

    steps: Annotated[tuple[Step, ...], Meta(min_length=1)]
    severities: tuple[Severity, ...] = ()
    sites: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    categories: tuple[Category, ...] = ()
    rules: tuple[str, ...] = ()

    def takes(self, row: Mapping[str, Any]) -> bool:
        """Return whether an alarm (a row of its table) goes here."""
        wanted = (
            (self.severities, row["severity"]),
            (self.sites, row["plant_id"]),
            (self.lines, row["line_id"]),
            (self.categories, row["category"]),
            (self.rules, row["rule_id"]),
        )
        return all(not among or found in among for among, found in wanted)


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Channels by name, and routes."""

    channels: dict[_Name, Channel]
    routes: Annotated[tuple[Route, ...], Meta(min_length=1)]


class Notification(NamedTuple):
    """Somebody is to be told of an alarm.

    Attributes:
        key: What has been told is known by this.
        channel: By which channel.
        row: The alarm.
    """

    key: str
    channel: str
    row: Mapping[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """What a webhook answers: what whoever got it does.

    Attributes:
        operator: Who.
        verb: What: ``ack``, or ``silence`` the horn.
        comment: Why.
    """

    operator: Annotated[str, Meta(min_length=1, max_length=128)]
    verb: Literal["ack", "silence"] = "ack"
    comment: Annotated[str, Meta(max_length=2_000)] = ""


def read_plan(path: Path) -> Plan:
    """Return the channels and routes of a YAML file.

    Raises:
        NotifyError: It cannot be read, or says something that is not understood.
    """
    found = read_yaml(path, NotifyError)
    try:
        plan = msgspec.convert(found, Plan)
    except (msgspec.ValidationError, UserError) as error:
        raise NotifyError(f"{path}: {' '.join(str(error).split())}") from None
    for name, channel in plan.channels.items():
        if bool(channel.webhook) == (channel.mail is not None):
            raise NotifyError(f"{path}: channel '{name}' has either a webhook or mail")
    for route in plan.routes:
        for step in route.steps:
            to_ms(step.after)
            if unknown := [name for name in step.to if name not in plan.channels]:
                raise NotifyError(f"{path}: there is no channel '{unknown[0]}'")
    return plan


def due(plan: Plan, alarms: Iterable[Mapping[str, Any]], told: Iterable[str], now: int) -> list[Notification]:
    """Return who is to be told of what now: of what is announced and nobody has acknowledged.

    Args:
        plan: Channels and routes.
        alarms: Rows of the table of alarms.
        told: Keys of what has been told.
        now: What time it is on the clock of the events, ms.

    Example:
        >>> plan = Plan({"day": Channel("http://a")}, (Route((Step(("day",)), Step(("day",), "10m"))),))
        >>> row = {"alarm_id": "m1:hot", "announced": True, "acked": False, "active_since_ms": 0,
        ...        "severity": "high", "plant_id": "p", "line_id": "l", "category": "process",
        ...        "rule_id": "hot"}
        >>> [len(due(plan, [row], (), now)) for now in (0, 599_999, 600_000)]
        [1, 1, 2]
        >>> due(plan, [{**row, "acked": True}], (), 0)
        []
    """
    known, found = frozenset(told), []
    for row in alarms:
        since = row["active_since_ms"]
        if not row["announced"] or row["acked"] or since is None:
            continue
        for number, route in enumerate(plan.routes):
            if not route.takes(row):
                continue
            for place, step in enumerate(route.steps):
                if now - since < to_ms(step.after):
                    continue
                for name in step.to:
                    on_call = plan.channels[name].on_call
                    key = f"{row['alarm_id']}|{since}|{number}.{place}.{name}"
                    if key not in known and (on_call is None or on_call.holds(now)):
                        found.append(Notification(key, name, row))
    return found


def still_of_use(told: Iterable[str], alarms: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return what of what has been told must be remembered: that of alarms that are still active."""
    active = {f"{row['alarm_id']}|{row['active_since_ms']}|" for row in alarms if row["active"]}
    return sorted(key for key in told if key[: key.rindex("|") + 1] in active)


#: Fields of the table that a message has.
_TOLD: Final = (
    *(
        "alarm_id",
        "entity_id",
        "alarm",
        "severity",
        "title",
        "reason",
        "value",
        "limit",
        "plant_id",
        "line_id",
    ),
    *("active_since_ms", "cause", "consequence", "response", "respond_by_ms", "status"),
)


def message(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a message says of an alarm."""
    return {name: row.get(name) for name in _TOLD}


def deliver(channel: Channel, row: Mapping[str, Any]) -> Answer | None:
    """Send a message; return what was answered, if anything.

    Raises:
        OSError: It could not be delivered.
    """
    if channel.mail is not None:
        _by_mail(channel.mail, row)
        return None
    headers = {"Content-Type": "application/json"}
    if channel.token_env:
        headers["Authorization"] = f"Bearer {os.environ.get(channel.token_env, '')}"
    body = json.dumps(message(row)).encode()
    request = urllib.request.Request(channel.webhook, body, headers)  # noqa: S310 - the plan allows http(s) alone
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as response:  # noqa: S310
            said = response.read(_MOST_BYTES)
    except urllib.error.HTTPError as error:
        raise OSError(f"HTTP {error.code}") from None
    try:
        return msgspec.json.decode(said, type=Answer)
    except msgspec.MsgspecError:
        return None


def _by_mail(mail: Mail, row: Mapping[str, Any]) -> None:
    said = EmailMessage()
    subject = f"[{row['severity']}] {row['title'] or row['alarm']}: {row['entity_id']}"
    said["Subject"] = " ".join(subject.split())
    said["From"], said["To"] = mail.sender, ", ".join(mail.to)
    lines = [f"{name}: {value}" for name, value in message(row).items() if value not in (None, "")]
    acknowledge = f"millrace iot alarms ack {shlex.quote(row['alarm_id'])} --reason '...'"
    said.set_content("\n".join([*lines, "", acknowledge]))
    host, _, port = mail.server.partition(":")
    try:
        with smtplib.SMTP(host, int(port or 25), timeout=_PATIENCE_S) as server:
            if mail.starttls:
                server.starttls()
            if mail.user:
                server.login(mail.user, os.environ.get(mail.password_env, ""))
            server.send_message(said)
    except (smtplib.SMTPException, ValueError) as error:
        raise OSError(str(error)) from None


class Round(NamedTuple):
    """What one look has done.

    Attributes:
        told: Keys of what has been told by now.
        sent: How many messages were delivered.
        failed: Channel and why, of those that were not.
        actions: What was answered.
    """

    told: list[str]
    sent: int
    failed: list[tuple[str, str]]
    actions: list[Action]


def notify(
    plan: Plan,
    alarms: Sequence[Mapping[str, Any]],
    told: Sequence[str],
    now: int,
    send: Callable[[Channel, Mapping[str, Any]], Answer | None] = deliver,
) -> Round:
    """Tell whoever is to be told now.

    Args:
        plan: Channels and routes.
        alarms: Rows of the table of alarms.
        told: Keys of what has been told.
        now: What time it is on the clock of the events, ms.
        send: Delivers a message; raises ``OSError`` where it cannot.
    """
    known, failed, actions, answered = still_of_use(told, alarms), [], [], set[str]()
    sent = 0
    for one in due(plan, alarms, known, now):
        row = one.row
        if row["alarm_id"] in answered:
            continue  # somebody has seen it a moment ago
        try:
            answer = send(plan.channels[one.channel], row)
        except OSError as error:
            failed.append((one.channel, str(error) or type(error).__name__))
            continue
        known.append(one.key)
        sent += 1
        if answer is not None:
            answered.add(row["alarm_id"])
            identity = blake2b(f"{one.key}|{answer.verb}".encode(), digest_size=16).hexdigest()
            actions.append(
                Action(
                    identity,
                    row["entity_id"],
                    row["alarm"],
                    answer.verb,
                    max(now, row["active_since_ms"]),
                    answer.operator,
                    0,
                    answer.comment,
                )
            )
    return Round(known, sent, failed, actions)


def read_told(path: Path) -> list[str]:
    """Return what has been told, as its file has it; none if there is no file.

    Raises:
        NotifyError: The file says something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[str])
    except FileNotFoundError:
        return []
    except (OSError, *NOT_JSON) as error:
        raise NotifyError(f"{path} is no list of what has been told: {error}") from None


def keep_told(path: Path, told: Sequence[str]) -> None:
    """Write what has been told, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(list(told)))
    part.replace(path)
