"""Forgetting a person: requests to the running app, deletion from the tables, and a look at what is left."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from apps.clickstream.events import Forget
from apps.clickstream.rows import digest_of
from apps.clickstream.settings import ClickstreamSettings
from millrace.operations.report import write
from millrace.operations.roster import Role
from millrace.operations.sending import send, who
from millrace.privacy.erasure import Names, count_left, quoted
from millrace.runtime.commands import command_settings
from millrace.time.moments import to_time_ms

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: How long the app may take to confirm, seconds.
_PATIENCE_S: Final = 120.0
#: Table → columns that name a person, and by what.
_COLUMNS: Final[dict[str, dict[str, str]]] = {
    "sessions": {"visitor_id": "visitor", "user_id": "user"},
    "funnels": {"visitor_id": "visitor"},
    "identities": {"visitor_id": "visitor", "user_id": "user"},
    "consents": {"visitor_id": "visitor", "user_id": "user"},
    "abandonments": {"visitor_id": "visitor", "user_id": "user", "cart_id": "cart"},
    "profiles": {"person": "person"},
    "offers": {"visitor_id": "visitor", "person": "person"},
    "recommendations": {"visitor_id": "visitor", "person": "person"},
    "dead_letters": {"key": "key"},
    "dead_entities": {"key": "key"},
    "dead_results": {"key": "key"},
    "dead_recommendations": {"key": "key"},
    # As earlier versions have left them.
    "late_acts": {"event['visitor']": "visitor", "event['person']": "person"},
    "late_reactions": {"event['visitor']": "visitor", "event['person']": "person"},
    "dead_acts": {"key": "key"},
    "dead_reactions": {"key": "key"},
}
#: Table with events as JSON → fields of them that name a person, and by what.
_EVENTS: Final[dict[str, dict[str, str]]] = {
    "late": {"visitor_id": "visitor", "user_id": "user", "cart_id": "cart"},
    "late_entities": {"visitor": "visitor", "person": "person", "cart_id": "cart"},
    "late_results": {"visitor": "visitor", "person": "person"},
    "late_recommendations": {"visitor": "visitor", "person": "person"},
}


@dataclass(frozen=True)
class Subject:
    """Whom it is about, by all the names that the tables know.

    Attributes:
        user: The account.
        visitors: Its browsers.
        carts: Its carts.
    """

    user: str
    visitors: tuple[str, ...]
    carts: tuple[str, ...] = ()

    def names(self, kind: str) -> list[str]:
        """Return the values by which a kind of column names it."""
        keys = [self.user, *self.visitors, *self.state_keys()]
        found = {
            "user": [self.user],
            "visitor": list(self.visitors),
            "cart": list(self.carts),
            "person": [f"u:{self.user}", *(f"v:{v}" for v in self.visitors)],
            "key": [*keys, *(f"{len(k.encode())}:{k}" for k in keys)],
        }
        return found[kind]

    def state_keys(self) -> list[str]:
        """Return what is asked to be forgotten, as subjects of requests."""
        return [f"p:u:{self.user}", *self.visitors, *(f"c:{cart}" for cart in self.carts)]

    def predicate(self, table: str) -> str:
        """Return the SQL condition for a table's rows about it."""
        parts = []
        for column, kind in _COLUMNS[table].items():
            values = self.names(kind)
            if values:
                parts.append(f"{column} IN ({quoted(values)})")
        return " OR ".join(parts)

    def is_named(self, event: str, fields: Mapping[str, str]) -> bool:
        """Return whether an event, as JSON, is about it.

        Args:
            event: The event.
            fields: Its fields that name somebody → by what.
        """
        given = msgspec.json.decode(event)
        return any(given.get(field) in self.names(kind) for field, kind in fields.items())


def app_settings(bootstrap: str | None, sets: Sequence[str]) -> ClickstreamSettings:
    """Load the app's settings as its commands do."""
    return command_settings(ClickstreamSettings, "clickstream", bootstrap=bootstrap, overrides=sets)


def open_table(settings: ClickstreamSettings, name: str) -> DeltaTable | None:
    """Open a table of the app; ``None`` where it does not exist."""
    from deltalake import DeltaTable

    path = settings.storage.path("tables", name)
    return DeltaTable(path) if DeltaTable.is_deltatable(path) else None


def subject_of(settings: ClickstreamSettings, user: str) -> Subject:
    """Return an account with the browsers and carts that the tables know of it."""
    visitors, carts = set(), set()
    for name in ("identities", "sessions", "consents", "abandonments"):
        table = open_table(settings, name)
        if table is None:
            continue
        columns = ["visitor_id", *(["cart_id"] if name == "abandonments" else [])]
        rows = table.to_pyarrow_table(columns=columns, filters=[("user_id", "=", user)]).to_pylist()
        visitors |= {row["visitor_id"] for row in rows}
        carts |= {row["cart_id"] for row in rows if "cart_id" in row}
    return Subject(user, tuple(sorted(visitors)), tuple(sorted(carts)))


def delete_rows(settings: ClickstreamSettings, subject: Subject) -> dict[str, int]:
    """Delete a person from the tables; return how many rows went from each."""
    gone = {}
    for name in _COLUMNS:
        table = open_table(settings, name)
        predicate = subject.predicate(name)
        if table is not None and predicate:
            gone[name] = int(table.delete(predicate)["num_deleted_rows"])
    for name, fields in _EVENTS.items():
        table = open_table(settings, name)
        if table is not None:
            rows = table.to_pyarrow_table(columns=["_event_id", "event"]).to_pylist()
            ids = [row["_event_id"] for row in rows if subject.is_named(row["event"], fields)]
            found = table.delete(f"_event_id IN ({quoted(ids)})") if ids else {"num_deleted_rows": 0}
            gone[name] = int(found["num_deleted_rows"])
    return gone


def left_rows(settings: ClickstreamSettings, subject: Subject) -> dict[str, int]:
    """Count what still names a person, by looking at every text of every row of every table.

    That is another way than the deletion's, so that it can find what that has missed.
    """
    root = Path(settings.storage.path("tables"))
    names = Names((subject.user, *subject.visitors, *subject.carts))
    tables = sorted(log.parent for log in root.glob("*/_delta_log"))
    return {path.name: count_left(path, names) for path in tables}


def requests(subject: Subject, request_id: str, at_ms: int) -> list[Forget]:
    """Return what the app is asked to forget."""
    return [Forget(request_id, key, at_ms) for key in subject.state_keys()]


def wait_for_audit(settings: ClickstreamSettings, request_id: str, subject: Subject) -> list[str]:
    """Wait until the app says that it has forgotten everything; return what it has not confirmed."""
    wanted = {digest_of(key): key for key in subject.state_keys()}
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        table = open_table(settings, "erasures")
        if table is not None:
            mine = [("request_id", "=", request_id)]
            rows = table.to_pyarrow_table(columns=["subject_digest"], filters=mine)
            confirmed = set(rows["subject_digest"].to_pylist())
            if confirmed >= wanted.keys():
                return []
        else:
            confirmed = set()
        if time.monotonic() > deadline:
            return [key for digest, key in wanted.items() if digest not in confirmed]
        time.sleep(0.5)


def run(
    user: str, *, bootstrap: str | None, at: str | None, sets: Sequence[str], tables_only: bool,
    out: Path | None, by: str | None = None,
) -> int:  # fmt: skip
    """Forget a person and print the proof.

    Returns:
        0 if nothing is left, 1 otherwise.

    Raises:
        UserError: Settings, time or broker are wrong.
    """
    import typer

    settings = app_settings(bootstrap, sets)
    by = who(by, settings, Role.approve)
    at_ms = _time(at, settings)
    subject = subject_of(settings, user)
    request_id = f"forget-{digest_of(user)}-{at_ms}"
    unconfirmed: list[str] = []
    if not tables_only:
        asked = [(one.subject, one) for one in requests(subject, request_id, at_ms)]
        send(settings.kafka, settings.topics.forget, Forget, asked)
        typer.echo(f"asked the app to forget {len(subject.state_keys())} keys; waiting for it")
        unconfirmed = wait_for_audit(settings, request_id, subject)
    gone = delete_rows(settings, subject)
    left = left_rows(settings, subject)
    for name in sorted(left):
        typer.echo(f"{name:<16} deleted {gone.get(name, 0):>8,}   left {left[name]:,}")
    for key in unconfirmed:
        typer.echo(f"not confirmed by the app within {_PATIENCE_S:.0f} s: {digest_of(key)}; does it run?")
    clean = not unconfirmed and not any(left.values())
    typer.echo("nothing is left" if clean else "SOMETHING IS LEFT")
    proof = {
        "request_id": request_id,
        "subject_digest": digest_of(user),
        "state_keys": len(subject.state_keys()),
        "state_confirmed": not unconfirmed and not tables_only,
        "deleted": gone,
        "left": left,
        "by": by,
    }
    write(out, proof)
    return 0 if clean else 1


def _time(at: str | None, settings: ClickstreamSettings) -> int:
    """Return the time of a request: by default that of the newest session, so that it moves no watermark."""
    if at is None:
        sessions = open_table(settings, "sessions")
        ends = [] if sessions is None else sessions.to_pyarrow_table(columns=["end_ms"])["end_ms"].to_pylist()
        return max(ends, default=int(time.time() * 1_000))
    return to_time_ms(at)
