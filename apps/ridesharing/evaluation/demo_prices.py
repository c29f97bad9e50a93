"""Checks of the prices in the demo: quotes told, kept, and counted anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.console.report import Check, equal, same
from millrace_apps.ridesharing.surge.records import Multiplier
from millrace_apps.ridesharing.surge.recount import Asking, Change, Free, in_force, multiplier_at, recounted
from millrace_apps.ridesharing.surge.report import sign_changes

if TYPE_CHECKING:
    import pandas as pd

    from millrace.testing.world_ledger import ReadLedger
    from millrace_apps.ridesharing.surge.config import SurgeConfig

#: The tables of prices.
PRICES: Final = ("quotes", "fares", "surge", "scarcity")
#: A quote that has less time left than this, ms, may be over when a request that comes late is read.
_NEARLY_OVER_MS: Final = 60_000
#: So often a multiplier may turn within an hour.
_TURNS: Final = 2
#: A rider who has been told a price has requested after so long, ms, if at all.
_DECIDED_MS: Final = 180_000

Row = dict[str, Any]


class Prices(NamedTuple):
    """The tables of prices."""

    quotes: pd.DataFrame
    fares: pd.DataFrame
    surge: pd.DataFrame
    scarcity: pd.DataFrame

    def rows(self) -> list[list[Row]]:
        """Return the rows of each table."""
        return [[] if not len(t) else t.to_dict("records") for t in self]  # type: ignore[misc]


def check_prices(tables: Prices, ledger: ReadLedger, config: SurgeConfig, last_ms: int) -> list[Check]:
    """Compare quotes, fares and multipliers with what riders know, and with those counted anew.

    Args:
        tables: What the app wrote.
        ledger: What the riders did.
        config: How prices follow scarcity.
        last_ms: What is later is not counted on, UTC ms.
    """
    quotes, fares, surge, scarcity = tables.rows()
    told = {q["quote_id"]: q["multiplier"] for q in quotes}
    changes = [Change(m["cell"], m["from_ms"], m["multiplier"]) for m in surge if m["from_ms"] <= last_ms]
    anew = recounted(
        _askings(quotes, fares),
        [Free(c["cell"], c["end_ms"], c["free"], c["taken"], c["waiting"]) for c in scarcity],
        config,
        last_ms,
        config.cap,
    )
    priced = [*quotes, *(f for f in fares if f["outcome"] not in ("locked", "booked"))]
    priced = [row for row in priced if not _is_booked(row) and row["at_ms"] <= last_ms]
    levels = in_force(anew)
    turns = sign_changes([Multiplier(**{n: m[n] for n in Multiplier.__struct_fields__}) for m in surge])
    most = max([row["multiplier"] for row in (*quotes, *fares, *surge)], default=0.0)
    return [
        *_asked(quotes, fares, ledger, last_ms),
        same("changes of multipliers = those counted anew", set(anew), set(changes)),
        equal(
            "prices that are not the multiplier counted anew",
            0,
            sum(row["multiplier"] != multiplier_at(levels, row["cell"], row["at_ms"]) for row in priced),
            of=len(priced) if levels else 0,
        ),
        *_kept(fares, told, ledger, last_ms),
        Check(
            "no multiplier above the cap",
            f"at most {config.cap:g}",
            f"{most:g}",
            most <= config.cap,
            compared=sum(row["multiplier"] > 1.0 for row in (*quotes, *fares, *surge)),
        ),
        Check(
            "turns of a cell's multiplier in an hour",
            f"at most {_TURNS}",
            f"{max(turns.values(), default=0)}",
            max(turns.values(), default=0) <= _TURNS,
            compared=len(turns),
        ),
    ]


def _is_booked(row: Row) -> bool:
    return "booked ahead" in row["why"]


def _askings(quotes: list[Row], fares: list[Row]) -> list[Asking]:
    """Return who asked for a price: a request that keeps its quote has asked before."""
    rows = [*quotes, *(f for f in fares if f["outcome"] != "locked")]
    return [Asking(row["cell"], row["at_ms"], row["rider_id"]) for row in rows if not _is_booked(row)]


def _asked(quotes: list[Row], fares: list[Row], ledger: ReadLedger, last_ms: int) -> list[Check]:
    """Return whether who asks is told a price, once, and requests if it is not too dear."""
    asked = {t.entity: t for t in ledger.truths if t.kind == "quote_asked"}
    settled = {name for name, truth in asked.items() if truth.last_event_time_ms <= last_ms}
    names = [q["quote_id"] for q in quotes]
    requested = {f["quote_id"] for f in fares}
    decided = [q for q in quotes if q["quote_id"] in asked and q["at_ms"] <= last_ms - _DECIDED_MS]
    dear = [q for q in decided if q["multiplier"] >= asked[q["quote_id"]].detail["takes_below"]]
    return [
        Check(
            "quotes told = those asked for",
            f"{len(settled):,} to {len(asked):,}",
            f"{len(set(names)):,}",
            settled <= set(names) <= asked.keys(),
            compared=len(asked),
        ),
        equal("no quote twice", 0, len(names) - len(set(names)), of=len(names)),
        equal(
            "riders who took a quote that was too dear",
            0,
            sum(q["quote_id"] in requested for q in dear),
            f"{len(dear):,} of {len(decided):,} quotes were left",
            of=len(decided),
        ),
    ]


def _kept(fares: list[Row], told: dict[str, float], ledger: ReadLedger, last_ms: int) -> list[Check]:
    """Return whether each request is charged, once, and by its quote where it came in time."""
    charged = {f["request_id"]: f for f in fares}
    taken = [
        t for t in ledger.truths
        if t.kind == "quote_taken" and t.last_event_time_ms <= last_ms
        and t.detail["left_ms"] > _NEARLY_OVER_MS
    ]  # fmt: skip
    stale = {t.entity for t in ledger.truths if t.kind == "quote_stale"}

    def is_kept(entity: str, multiplier: float) -> bool:
        fare = charged.get(entity)
        return (
            fare is not None
            and fare["outcome"] == "locked"
            and fare["multiplier"] == multiplier == told.get(fare["quote_id"])
        )

    broken = sum(not is_kept(t.entity, t.detail["multiplier"]) for t in taken)
    kept = sum(f["outcome"] == "locked" for f in fares if f["request_id"] in stale)
    return [
        equal("quotes that were taken in time and not kept", 0, broken, of=len(taken)),
        equal("quotes that were over and kept", 0, kept, of=len(fares)),
        equal("requests sent = requests charged", ledger.summary.streams.get("requests", 0), len(charged)),
        equal("no request charged twice", 0, len(fares) - len(charged), of=len(fares)),
    ]
