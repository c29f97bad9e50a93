"""Forgetting a person: requests to the running app, deletion from the tables, and a look at what is left."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec

from millrace.connectors.merging import wait_for_merges, waiting_rows
from millrace.connectors.upkeep import vacuum
from millrace.errors import UserError
from millrace.operations.report import write
from millrace.operations.roster import Role
from millrace.operations.sending import send, who
from millrace.privacy.erasure import (
    Names,
    count_left,
    count_rows,
    delete_letters,
    delete_where,
    rows_with,
)
from millrace.privacy.residues import Residue, state_residues, table_residues, topics_of
from millrace.runtime.commands import command_settings
from millrace.time.moments import to_time_ms
from millrace_apps.clickstream.app import topics
from millrace_apps.clickstream.contracts.events import MAX_NAME, Forget, SubjectKind
from millrace_apps.clickstream.contracts.rows import digest_of
from millrace_apps.clickstream.settings import ClickstreamSettings, ClickstreamTopics

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: How long the app may take to confirm, seconds.
_PATIENCE_S: Final = 120.0
#: How long rows may wait for their tables after that, seconds.
_MERGED_S: Final = 60.0
#: Table → columns that name a person, and by what.
_COLUMNS: Final[dict[str, dict[str, str]]] = {
    "sessions": {"visitor_id": "visitor", "user_id": "user"},
    "funnels": {"visitor_id": "visitor"},
    "identities": {"visitor_id": "visitor", "user_id": "user"},
    "owner_changes": {"visitor_id": "visitor", "user_id": "user"},
    "consents": {"visitor_id": "visitor", "user_id": "user"},
    "abandonments": {"visitor_id": "visitor", "user_id": "user", "cart_id": "cart"},
    "profiles": {"person": "person"},
    "person_funnels": {"person": "person"},
    "offers": {"visitor_id": "visitor", "person": "person"},
    "recommendations": {"visitor_id": "visitor", "person": "person"},
    "recommendation_examples": {"visitor_id": "visitor"},
    "recommendation_clicks": {"visitor_id": "visitor", "person": "person"},
    "cap_changes": {"visitor_id": "visitor", "person": "person"},
    # As earlier versions have left them.
    "late_acts": {"event.visitor": "visitor", "event.person": "person"},
    "late_reactions": {"event.visitor": "visitor", "event.person": "person"},
}
#: How the names of tables of dead letters begin: what they say of somebody is found by what stands in them.
_LETTERS: Final = "dead_"
#: Field that names a person → by what; and fields whose texts name something else: user 42 is not item 42.
_NAMING: Final = {
    "visitor_id": "visitor", "visitor": "visitor", "user_id": "user", "cart_id": "cart", "person": "person",
    "told": "told",
}  # fmt: skip
_OTHERS: Final = frozenset(
    {
        *("item_id", "items", "item", "category", "query", "page", "partition"),
        # An item, an order, what was searched for: who did that stands beside it. Of a request to forget the
        # key has the name.
        "subject",
        # Identities of events and of what follows from them.
        *("_event_id", "event_id", "consent_id", "change_id", "refund_id", "request_id", "cause"),
        *("order_id", "offer_id", "client_session_id", "page_view_id"),
    }
)
#: Input → the field that its keys are; of requests to forget they may be any.
_KEYED: Final = {
    "clicks": "visitor_id", "consents": "visitor_id", "refunds": "visitor_id", "customers": "user_id",
    "erasures": "user_id", "items": "item_id",
}  # fmt: skip
#: Table with events as JSON → fields of them that name a person, and by what.
_EVENTS: Final[dict[str, dict[str, str]]] = {
    "late": {"visitor_id": "visitor", "user_id": "user", "cart_id": "cart"},
    "late_entities": {"visitor": "visitor", "person": "person", "cart_id": "cart"},
    "late_results": {"visitor": "visitor", "person": "person"},
    "late_recommendations": {"visitor": "visitor", "person": "person"},
    "late_offers": {"visitor": "visitor", "person": "person"},
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

    def known_as(self, visitors: Sequence[str], carts: Sequence[str]) -> Subject:
        """Return it with further browsers and carts."""
        browsers = tuple(sorted({*self.visitors, *visitors}))
        return Subject(self.user, browsers, tuple(sorted({*self.carts, *carts})))

    def names(self, kind: str) -> list[str]:
        """Return the values by which a kind of column names it."""
        found = {
            "user": [self.user],
            "visitor": list(self.visitors),
            "cart": list(self.carts),
            "person": self._persons(),
            # Of an answer that holds elsewhere, too: in which browser it was said, or by which account.
            "told": [*self.visitors, f"u:{self.user}"],
        }
        return found[kind]

    def exactly(self, topics: ClickstreamTopics) -> Names:
        """Return all of its names, as messages are searched for them.

        Args:
            topics: The app's: of dead letters they say what their keys are of.
        """
        # A request of an earlier version, which is found among dead letters by its key, leads accounts so.
        every = (self.user, *self.visitors, *self.carts, *self._persons(), f"p:u:{self.user}")
        fields = {field: frozenset(self.names(kind)) for field, kind in _NAMING.items()}
        keyed = {getattr(topics, name): of for name, of in _KEYED.items()}
        return Names(tuple(dict.fromkeys(every)), fields=fields, others=_OTHERS, exact=True, keyed=keyed)

    def _persons(self) -> list[str]:
        return [f"u:{self.user}", *(f"v:{visitor}" for visitor in self.visitors)]

    def asked(self) -> list[tuple[SubjectKind, str]]:
        """Return what is asked to be forgotten: kinds and names, each of one of that kind alone."""
        browsers: list[tuple[SubjectKind, str]] = [("browser", visitor) for visitor in self.visitors]
        carts: list[tuple[SubjectKind, str]] = [("cart", cart) for cart in self.carts]
        return [("account", self.user), *browsers, *carts]

    def values(self, table: str) -> dict[str, list[str]]:
        """Return which columns of a table have which values in the rows about it."""
        found = {column: self.names(kind) for column, kind in _COLUMNS[table].items()}
        return {column: values for column, values in found.items() if values}

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
        rows = list(rows_with(table, "user_id", [user], columns))
        visitors |= {row["visitor_id"] for row in rows}
        carts |= {row["cart_id"] for row in rows if "cart_id" in row}
    return Subject(user, tuple(sorted(visitors)), tuple(sorted(carts)))


def delete_rows(settings: ClickstreamSettings, subject: Subject) -> dict[str, int]:
    """Delete a person from the tables; return how many rows went from each."""
    gone = {}
    for name in _COLUMNS:
        table = open_table(settings, name)
        values = subject.values(name)
        if table is not None and values:
            gone[name] = delete_where(Path(settings.storage.path("tables", name)), values)
    for name, fields in _EVENTS.items():
        table = open_table(settings, name)
        if table is not None:
            rows = table.to_pyarrow_table(columns=["_event_id", "event"]).to_pylist()
            ids = [row["_event_id"] for row in rows if subject.is_named(row["event"], fields)]
            path = Path(settings.storage.path("tables", name))
            gone[name] = delete_where(path, {"_event_id": ids})
    for path in _tables(settings):
        if path.name.startswith(_LETTERS):
            gone[path.name] = delete_letters(path, subject.exactly(settings.topics))
    return gone


def left_rows(settings: ClickstreamSettings, subject: Subject) -> dict[str, int]:
    """Count what still names a person, by looking at every text of every row of every table.

    That is another way than the deletion's, so that it can find what that has missed. Rows that wait to be
    merged into their table count as its rows; they are counted first, since they may be merged meanwhile.
    """
    names = subject.exactly(settings.topics)
    return {
        path.name: sum(count_rows(rows, names) for rows in waiting_rows(path)) + count_left(path, names)
        for path in _tables(settings)
    }


def residues(settings: ClickstreamSettings, now_ms: int) -> list[Residue]:
    """Return where earlier versions of what is forgotten may be, and until when."""
    of = topics(settings)
    names = sorted({topic.name for topic in (*of.reads, *of.writes)})
    return [
        *topics_of(settings.kafka, names, now_ms),
        *table_residues(_tables(settings), "clickstream"),
        *state_residues(Path(settings.storage.path())),
    ]


def _tables(settings: ClickstreamSettings) -> list[Path]:
    return sorted(log.parent for log in Path(settings.storage.path("tables")).glob("*/_delta_log"))


def requests(subject: Subject, request_id: str, at_ms: int) -> list[Forget]:
    """Return what the app is asked to forget."""
    return [Forget(request_id, name, at_ms, kind) for kind, name in subject.asked()]


def wait_for_audit(settings: ClickstreamSettings, request_id: str, subject: Subject) -> list[str]:
    """Wait until the app says that it has forgotten everything; return digests of what it did not confirm."""
    wanted = {digest_of(name, kind) for kind, name in subject.asked()}
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        table = open_table(settings, "erasures")
        if table is not None:
            mine = rows_with(table, "request_id", [request_id], ["subject_digest"])
            confirmed = {row["subject_digest"] for row in mine}
            if confirmed >= wanted:
                return []
        else:
            confirmed = set()
        if time.monotonic() > deadline:
            return sorted(wanted - confirmed)
        time.sleep(0.5)


def run(
    user: str, *, bootstrap: str | None, at: str | None, sets: Sequence[str], tables_only: bool,
    out: Path | None, by: str | None = None, visitors: Sequence[str] = (), carts: Sequence[str] = (),
    vacuumed: bool = False,
) -> int:  # fmt: skip
    """Forget a person and print the proof.

    Args:
        user: The account.
        bootstrap: The broker; by default the settings'.
        at: Time of the request, ISO 8601; by default that of the newest session.
        sets: Settings, ``key=value``.
        tables_only: Whether the app is not asked.
        out: Where the certificate goes, JSON.
        by: Who asks.
        visitors: Browsers of the account that the tables do not know, or not any more.
        carts: Carts of the account, likewise.
        vacuumed: Whether the files of earlier versions of the tables go as well.

    Returns:
        0 if nothing is left, 1 otherwise.

    Raises:
        UserError: Settings, time or broker are wrong, or a name is none.
    """
    import typer

    for name in (user, *visitors, *carts):
        _check(name)
    settings = app_settings(bootstrap, sets)
    by = who(by, settings, Role.approve)
    at_ms = _time(at, settings)
    subject = subject_of(settings, user).known_as(visitors, carts)
    request_id = f"forget-{uuid4().hex}"
    unconfirmed: list[str] = []
    if not tables_only:
        asked = [(one.subject, one) for one in requests(subject, request_id, at_ms)]
        send(settings.kafka, settings.topics.forget, Forget, asked)
        typer.echo(f"asked the app to forget {len(subject.asked())} keys; waiting for it")
        unconfirmed = wait_for_audit(settings, request_id, subject)
    waiting = wait_for_merges(_tables(settings), patience_s=0 if tables_only else _MERGED_S)
    gone = delete_rows(settings, subject)
    if vacuumed:
        files = sum(vacuum(path, keep_ms=0).files for path in _tables(settings))
        typer.echo(f"{files:,} files of earlier versions removed")
    left = left_rows(settings, subject)
    for name in sorted(left):
        typer.echo(f"{name:<16} deleted {gone.get(name, 0):>8,}   left {left[name]:,}")
    stores = residues(settings, int(time.time() * 1_000))
    for one in stores:
        typer.echo(f"until later: {one.line()}")
    for name in waiting:
        typer.echo(f"{name}: rows that a run left wait to be merged; run the job, then forget again")
    for digest in unconfirmed:
        typer.echo(f"not confirmed by the app within {_PATIENCE_S:.0f} s: {digest}; does it run?")
    clean = not unconfirmed and not any(left.values())
    typer.echo("nothing is left" if clean else "SOMETHING IS LEFT")
    certificate = {
        "app": "clickstream",
        "request_id": request_id,
        "requested_for": datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "subject_digest": digest_of(user, "account"),
        "state_keys": len(subject.asked()),
        "state_confirmed": not unconfirmed and not tables_only,
        "deleted": gone,
        "left": left,
        "stores": [asdict(one) for one in stores],
        "clean": clean,
        "by": by,
    }
    write(out, certificate)
    return 0 if clean else 1


def _check(name: str) -> None:
    """Refuse what nothing can be called, before anything is asked or deleted by it."""
    if not 0 < len(name) <= MAX_NAME:
        shown = "an empty text" if not name else f"a text of {len(name)} letters"
        raise UserError(f"{shown} is no name: accounts, browsers and carts have 1 to {MAX_NAME} letters")


def _time(at: str | None, settings: ClickstreamSettings) -> int:
    """Return the time of a request: by default that of the newest session, so that it moves no watermark."""
    if at is None:
        sessions = open_table(settings, "sessions")
        ends = [] if sessions is None else sessions.to_pyarrow_table(columns=["end_ms"])["end_ms"].to_pylist()
        return max(ends, default=int(time.time() * 1_000))
    return to_time_ms(at)
