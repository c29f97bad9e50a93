"""The link graph of the page: cards, devices, addresses, terminals and merchants of the newest decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.dashboard.views import Edge, Graph, Node, Tone
from millrace_apps.fraud.dashboard.data import LabelFigures
from millrace_apps.fraud.dashboard.recent import is_one_of

if TYPE_CHECKING:
    import pyarrow as pa

#: Kind of an entity → its column; in the order in which they stand side by side.
KINDS: Final = {
    "device": "device_id",
    "ip": "ip",
    "card": "card_id",
    "terminal": "terminal_id",
    "merchant": "merchant_id",
}
NAMES: Final = {
    "device": "device",
    "ip": "address",
    "card": "card",
    "terminal": "terminal",
    "merchant": "merchant",
}
#: Most nodes.
MOST_NODES: Final = 60
#: What more cards than this have used is not followed any further: they are counted.
MOST_CARDS: Final = 12
#: Kinds between which edges go.
_PAIRS: Final = (("device", "card"), ("ip", "card"), ("card", "terminal"), ("terminal", "merchant"))

_Place = tuple[str, str]


class Counts(NamedTuple):
    """What is known of the payments of an entity, or of two together.

    Attributes:
        payments: How many.
        alerts: Those that somebody had to look at or that were blocked, and are not known to be genuine.
        frauds: Those that are known to be frauds.
        cards: How many cards have made them.
    """

    payments: int
    alerts: int
    frauds: int
    cards: int

    @property
    def tone(self) -> Tone:
        """How they are meant: amiss where anything is."""
        return "bad" if self.alerts or self.frauds else "plain"

    def text(self) -> str:
        """Return them in words.

        >>> Counts(3, 1, 0, 1).text()
        '3 payments, 1 alert'
        """
        told = [(self.payments, "payment"), (self.alerts, "alert"), (self.frauds, "fraud")]
        return ", ".join(f"{n:,} {what}{'' if n == 1 else 's'}" for n, what in told if n)


class Payments:
    """Payments, and which of them are amiss.

    Args:
        rows: Decisions, with the columns of :data:`KINDS`, ``transaction_id`` and ``action``.
        known: What is known of them.
    """

    def __init__(self, rows: pa.Table, known: Mapping[str, LabelFigures]) -> None:
        import pyarrow as pa

        fraud = is_one_of(rows["transaction_id"], [name for name, label in known.items() if label.is_fraud])
        genuine = is_one_of(rows["transaction_id"], [n for n, label in known.items() if not label.is_fraud])
        alert = is_one_of(rows["action"], ["review", "block"]) & ~genuine
        columns = {column: rows[column] for column in KINDS.values()}
        amiss = {"alert": alert.astype("int64"), "fraud": fraud.astype("int64")}
        self.rows = pa.table({**columns, "whose": rows["card_id"], **amiss})

    def of(self, kind: str, names: Iterable[str]) -> pa.Table:
        """Return the payments of some entities of a kind."""
        return self.rows.filter(is_one_of(self.rows[KINDS[kind]], names))

    def counts(self, kind: str, names: Iterable[str]) -> dict[str, Counts]:
        """Return what is known of some entities of a kind; those without a payment are left out."""
        column = KINDS[kind]
        return {key[0]: counts for key, counts in _grouped(self.of(kind, names), [column]).items()}


@dataclass
class _Chosen:
    """Entities that are drawn: kind and name → how far they are from the first."""

    steps: dict[_Place, int] = field(default_factory=dict)

    def names(self, kind: str) -> list[str]:
        return [name for of, name in self.steps if of == kind]

    def add(self, kind: str, names: Iterable[str], step: int) -> None:
        for name in names:
            self.steps.setdefault((kind, name), step)


def links(payments: Payments, kind: str, name: str) -> Graph | None:
    """Return what an entity has to do with, in two steps: by what it was used with, and what else used that.

    From a card: its devices, addresses, terminals and merchants, and the other cards that used them. From
    any other: its cards, and what else these have used. What more than :data:`MOST_CARDS` cards have used
    is not followed; what has most steps and fewest payments is left out first.

    Args:
        payments: The payments.
        kind: One of :data:`KINDS`.
        name: The entity.

    Returns:
        The graph; ``None`` where the entity has no payment.
    """
    if not payments.counts(kind, [name]):
        return None
    chosen = _Chosen({(kind, name): 0})
    own = payments.of(kind, [name])
    if kind == "card":
        for other in KINDS:
            if other != "card":
                used = _names(own, other)
                chosen.add(other, used, 1)
                few = [n for n, counts in payments.counts(other, used).items() if counts.cards <= MOST_CARDS]
                chosen.add("card", _names(payments.of(other, few), "card"), 2)
    else:
        cards = payments.counts("card", _names(own, "card"))
        first = sorted(cards, key=lambda n: (-(cards[n].frauds + cards[n].alerts), -cards[n].payments, n))
        chosen.add("card", first[:MOST_CARDS], 1)
        theirs = payments.of("card", first[:MOST_CARDS])
        for other in KINDS:
            if other != "card":
                chosen.add(other, _names(theirs, other), 2)
    return _drawn(payments, chosen, (kind, name))


def _drawn(payments: Payments, chosen: _Chosen, first: _Place) -> Graph:
    counts = {
        (kind, name): found
        for kind in KINDS
        for name, found in payments.counts(kind, chosen.names(kind)).items()
    }
    shared = _edges(payments, chosen)
    amiss = {end for ends, found in shared.items() if found.tone == "bad" for end in ends}

    def rank(place: _Place) -> tuple[int, bool, int, str, str]:
        return chosen.steps[place], place not in amiss, -counts[place].payments, *place

    order = sorted(chosen.steps, key=rank)
    shown = order[:MOST_NODES]
    edges = shared
    if len(shown) < len(order):
        edges = _edges(payments, _Chosen({place: chosen.steps[place] for place in shown}))
    kinds = [kind for kind in KINDS if any(place[0] == kind for place in shown)]
    drawn_cards = {
        place: sum(1 for ends in edges if place in ends and "card" in (ends[0][0], ends[1][0]))
        for place in shown
    }
    nodes = [
        Node(
            id=_id(place),
            label=place[1],
            column=kinds.index(place[0]),
            note=_note(counts[place], place, drawn_cards[place]),
            key=place[1] if place[0] == "card" else _id(place),
            tone="bad"
            if any(place in ends and found.tone == "bad" for ends, found in edges.items())
            else "plain",
            chosen=place == first,
        )
        for place in shown
    ]
    lines = [
        Edge(_id(a), _id(b), float(found.payments), found.text().partition(", ")[2], found.tone)
        for (a, b), found in sorted(edges.items())
    ]
    return Graph(
        columns=tuple(NAMES[kind] for kind in kinds),
        nodes=nodes,
        edges=lines,
        unit="payments",
        more=len(order) - len(shown),
    )


def _note(counts: Counts, place: _Place, drawn: int) -> str:
    others = counts.cards - drawn if place[0] in ("device", "ip", "terminal") else 0
    return counts.text() + (f", and {others:,} other cards" if others > 0 else "")


def _edges(payments: Payments, chosen: _Chosen) -> dict[tuple[_Place, _Place], Counts]:
    """Return what is known of every two entities that were used together, by one of the cards."""
    found: dict[tuple[_Place, _Place], Counts] = {}
    cards = payments.of("card", chosen.names("card"))
    for one, other in _PAIRS:
        rows = cards
        for kind in (one, other):
            rows = rows.filter(is_one_of(rows[KINDS[kind]], chosen.names(kind)))
        for (a, b), counts in _grouped(rows, [KINDS[one], KINDS[other]]).items():
            found[(one, a), (other, b)] = counts
    return found


def _names(rows: pa.Table, kind: str) -> list[str]:
    found: list[str] = rows[KINDS[kind]].drop_null().unique().to_pylist()
    return found


def _grouped(rows: pa.Table, by: Sequence[str]) -> dict[tuple[Any, ...], Counts]:
    found = rows.group_by(list(by)).aggregate(
        [("alert", "count"), ("alert", "sum"), ("fraud", "sum"), ("whose", "count_distinct")]
    )
    return {
        tuple(row[column] for column in by): Counts(
            row["alert_count"], row["alert_sum"], row["fraud_sum"], row["whose_count_distinct"]
        )
        for row in found.to_pylist()
    }


def _id(place: _Place) -> str:
    return f"{place[0]}:{place[1]}"
