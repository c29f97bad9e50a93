"""Declines for our own blocks, where the issuer has no feed of authorisations.

A decision is no response: only who answers the customer knows what the answer was. Where that is always what
was decided, the alerts say it, and this writes it to the topic of authorisations, under identities that are
the same whenever it is done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import UserError
from millrace_apps.fraud.contracts.events import Authorisation

if TYPE_CHECKING:
    from millrace_apps.fraud.settings import FraudSettings

#: What the identities of these authorisations begin with.
OURS: Final = "blocked-"
_COLUMNS: Final = ("transaction_id", "card_id", "terminal_id", "event_time_ms", "amount", "action",
                   "billing_amount")  # fmt: skip


def declines(alerts: Iterable[Mapping[str, Any]], told: set[str]) -> list[Authorisation]:
    """Return the declines of what was blocked and has not been told of.

    Args:
        alerts: Rows of the table ``alerts``.
        told: Identities of the authorisations that there are.

    Example:
        >>> alert = {"transaction_id": "t", "card_id": "c", "terminal_id": "m", "event_time_ms": 7}
        >>> alert |= {"amount": 9.5, "action": "block"}
        >>> [(a.authorisation_id, a.status) for a in declines([alert, {**alert, "action": "review"}], set())]
        [('blocked-t', 'declined')]
        >>> declines([alert], {"blocked-t"})
        []
    """
    found = {
        OURS + row["transaction_id"]: Authorisation(
            OURS + row["transaction_id"],
            row["event_time_ms"],
            row["transaction_id"],
            row["event_time_ms"],
            row["card_id"],
            "declined",
            row.get("billing_amount") or row["amount"],
            terminal_id=row["terminal_id"],
        )
        for row in alerts
        if row["action"] == "block"
    }
    return [event for identity, event in found.items() if identity not in told]


def respond(settings: FraudSettings) -> int:
    """Send the declines of all that was blocked and has not been told of; return how many.

    Args:
        settings: Where the tables are, the broker, and the topic's name.

    Raises:
        UserError: There is no table of alerts yet, or the broker did not take them.
    """
    from millrace.operations.sending import send

    alerts = _rows(settings.storage.path("tables", "alerts"), _COLUMNS)
    if alerts is None:
        raise UserError(
            f"{settings.storage.path('tables')} has no table of alerts yet: is --root the folder of the job?"
        )
    known = _rows(settings.storage.path("tables", "authorisations"), ("authorisation_id",)) or []
    events = declines(alerts, {row["authorisation_id"] for row in known})
    send(settings.kafka, settings.topics.authorisations, Authorisation, [(e.card_id, e) for e in events])
    return len(events)


def _rows(path: str, columns: Sequence[str]) -> list[dict[str, Any]] | None:
    """Return rows of a table; ``None`` where there is none."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        data = DeltaTable(path).to_pyarrow_dataset()
    except TableNotFoundError:
        return None
    table = data.to_table(columns=[name for name in columns if name in data.schema.names])
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
