"""A device, an address, a terminal, a merchant: its cards, its payments, and what it has to do with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millrace.dashboard.data import AppData
from millrace.dashboard.values import bounded
from millrace.dashboard.views import Cell, Column, Number, Numbers, Table, Titled
from millrace_apps.fraud.cases.app import FraudCasesSettings
from millrace_apps.fraud.dashboard.data import labels
from millrace_apps.fraud.dashboard.links import KINDS, NAMES, Payments, links
from millrace_apps.fraud.dashboard.recent import is_one_of, recent

if TYPE_CHECKING:
    import pyarrow as pa

_MOST: Final = 50
#: Beginning of a key → what such a key is called.
PREFIXES: Final = {f"{kind}:": name.capitalize() for kind, name in NAMES.items()} | {"case-": "Case"}
_COLUMNS: Final = (
    ("time", "event_time_ms"), ("card", "card_id"), ("terminal", "terminal_id"), ("device", "device_id"),
    ("address", "ip"), ("score", "score"), ("action", "action"),
)  # fmt: skip


def picture(data: AppData, kind: str, name: str, settings: FraudCasesSettings) -> list[Titled]:
    """Return what an entity has to do with, as a graph; nothing where none of the newest decisions is its.

    Args:
        data: The app's data.
        kind: One of :data:`~millrace_apps.fraud.dashboard.links.KINDS`.
        name: The entity.
        settings: The settings of the case work.
    """
    rows = recent(data)
    if rows is None or not len(rows):
        return []
    graph = links(Payments(rows, labels(data, settings)), kind, name)
    return [] if graph is None else [Titled("Used together, by the newest decisions", graph)]


def entity(data: AppData, kind: str, name: str, settings: FraudCasesSettings) -> list[Titled]:
    """Return what is shown of a device, an address, a terminal or a merchant; empty where there is none.

    Args:
        data: The app's data.
        kind: One of :data:`~millrace_apps.fraud.dashboard.links.KINDS`, not ``card``.
        name: The entity.
        settings: The settings of the case work.
    """
    rows = recent(data)
    own = None if rows is None else rows.filter(is_one_of(rows[KINDS[kind]], [name]))
    if own is None or not len(own):
        return []
    payments = Payments(own, labels(data, settings))
    counts = payments.counts(kind, [name])[name]
    figures = Numbers(
        (
            Number(label="payments", value=counts.payments, kind="count", note="of the newest decisions"),
            Number(label="cards", value=counts.cards, kind="count"),
            Number(label="alerts", value=counts.alerts, kind="count", note="not known to be genuine",
                   tone="warn" if counts.alerts else "plain"),
            Number(label="known frauds", value=counts.frauds, kind="count",
                   tone="bad" if counts.frauds else "plain"),
        )
    )  # fmt: skip
    return [
        Titled("Now", figures),
        *picture(data, kind, name, settings),
        Titled("Cards", _cards(payments, own)),
        Titled("Latest payments", _latest(own)),
    ]


def _cards(payments: Payments, own: pa.Table) -> Table:
    found = payments.counts("card", own["card_id"].unique().to_pylist())
    order = sorted(
        found, key=lambda card: (-found[card].frauds, -found[card].alerts, -found[card].payments, card)
    )
    rows: list[list[Cell]] = [
        [card, found[card].payments, found[card].alerts, found[card].frauds] for card in order
    ]
    columns = (
        Column("card", "key"), Column("payments", "count"), Column("alerts", "count"),
        Column("known frauds", "count"),
    )  # fmt: skip
    tones = [found[card].tone for card in order]
    view = bounded(columns, rows, tones, most=_MOST)
    return view or Table(columns=columns, rows=())


def _latest(own: pa.Table) -> Table:
    rows = own.slice(max(0, len(own) - _MOST)).to_pylist()
    rows.sort(key=lambda row: (row["event_time_ms"], row["transaction_id"]), reverse=True)
    kinds: dict[str, Any] = {"time": "time", "card": "key"}
    cells: list[list[Cell]] = [[row[name] for _, name in _COLUMNS] for row in rows]
    return Table(
        columns=tuple(Column(title, kinds.get(title, "text")) for title, _ in _COLUMNS),
        rows=cells,
        tones=["plain" if row["action"] == "approve" else "warn" for row in rows],
        more=max(0, len(own) - _MOST),
    )
