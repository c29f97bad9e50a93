"""Prices on the page: what is dear now, how many take a quote, and the cap and the policy that can be set."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from millrace.dashboard.data import AppData
from millrace.dashboard.page import Action, ActionRefused, Field, Panel
from millrace.dashboard.values import bounded, mean, ratio
from millrace.dashboard.views import Cell, Column, Number, Numbers, View
from millrace_apps.ridesharing.dashboard.city import city
from millrace_apps.ridesharing.processes.matching import POLICIES

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The newest quotes and fares that are looked at.
_NEWEST: Final = 5_000
_SHOWN: Final = 25
SET_CAP: Final = "set-cap"
SET_POLICY: Final = "set-policy"


def prices(data: AppData) -> View | None:
    """Return the figures of prices."""
    quotes, fares = data.table("quotes"), data.table("fares")
    if quotes is None or not quotes.rows:
        return None
    told = quotes.latest(_NEWEST).to_pylist()
    charged = [] if fares is None else fares.latest(_NEWEST).to_pylist()
    outcomes = Counter(row["outcome"] for row in charged)
    carried = {row["quote_id"] for row in charged}
    over = [q for q in told if q["until_ms"] < told[-1]["at_ms"]]
    taken = ratio(sum(q["quote_id"] in carried for q in over), len(over))
    found = city(data)
    dear = [] if found is None else [c for c in found.moment().cells.values() if c.multiplier is not None]
    multipliers = [row["multiplier"] for row in told]
    lost = sum(n for name, n in outcomes.items() if name not in ("locked", "none", "booked"))
    return Numbers(
        (
            Number(label="cap", value=_cap(data), unit="×", note="the largest multiplier"),
            Number(label="dear cells", value=len(dear), kind="count", note="above the usual price now"),
            Number(label="dearest", value=max((c.multiplier or 1.0 for c in dear), default=1.0), unit="×"),
            Number(label="mean of quotes", value=_rounded(mean(multipliers)), unit="×",
                   note=f"of the newest {len(told):,}"),
            Number(label="quotes taken", value=taken, kind="share", note=f"of {len(over):,} that are over"),
            Number(label="quotes kept", value=outcomes["locked"], kind="count", note="by requests in time"),
            Number(label="quotes not kept", value=lost, kind="count",
                   note="over, used, or of another rider or place", tone="warn" if lost else "plain"),
        )
    )  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _cap(data: AppData) -> float:
    """Return the newest cap that is known of: an operator's, that of a change, else that of the settings."""
    known = [(0, float(data.settings.surge.cap))]
    operations, surge = data.table("operations"), data.table("surge")
    if operations is not None:
        rows = operations.recent("action", "surge_cap", limit=_SHOWN).to_pylist()
        known += [(row["at_ms"], float(row["detail"])) for row in rows if row["outcome"] == "done"]
    if surge is not None:
        known += [(row["from_ms"], row["cap"]) for row in surge.latest(1).to_pylist()]
    return max(known)[1]


def dearest(data: AppData, at_ms: int | None = None) -> View | None:
    """Return the cells whose price is above the usual one, the dearest first."""
    found = city(data)
    moment = None if found is None else found.moment(at_ms)
    cells = [] if moment is None else [(n, c) for n, c in moment.cells.items() if c.multiplier is not None]
    cells.sort(key=lambda pair: (-(pair[1].multiplier or 0.0), pair[0]))
    columns = (Column("cell"), Column("multiplier", "number"), Column("requests", "count"),
               Column("waiting", "count"), Column("free cars", "count"))  # fmt: skip
    rows: list[list[Cell]] = [[name, c.multiplier, c.asked, c.waiting, c.free] for name, c in cells]
    return bounded(columns, rows, ["plain"] * len(rows), most=_SHOWN)


# -- what can be done ------------------------------------------------------------------------------


def do_set_cap(data: AppData, values: Mapping[str, str]) -> str:
    """Set the largest multiplier of all regions, as the command does."""
    from millrace_apps.ridesharing.operations.commanding import cap_of, send_control

    try:
        cap = float(values["cap"])
    except ValueError:
        cap = 0.0
    if not 1.0 <= cap <= 10.0:
        raise ActionRefused("the cap is a number from 1 to 10")
    _need_broker(data)
    send_control(data.settings, cap_of(cap, values["by"], values["reason"]))
    return f"a cap of {cap:g} is sent, by {values['by']}; it will stand under 'By hand'"


def do_set_policy(data: AppData, values: Mapping[str, str]) -> str:
    """Switch the policy of all regions, as the command does."""
    from millrace_apps.ridesharing.operations.commanding import policy_of, send_control

    if values["policy"] not in POLICIES:
        raise ActionRefused(f"the policy is one of {', '.join(POLICIES)}")
    _need_broker(data)
    send_control(data.settings, policy_of(values["policy"], values["by"], values["reason"]))
    return f"policy {values['policy']} is sent, by {values['by']}; it will stand under 'By hand'"


def _need_broker(data: AppData) -> None:
    if data.broker is None:
        raise ActionRefused("no broker is named: start the dashboard with --bootstrap to change anything")


_WHO: Final = (Field("reason", "Why"), Field("by", "Your name"))
PRICE_ACTIONS: Final = (
    Action(
        SET_CAP,
        "Set the cap",
        (Field("cap", "Largest multiplier", hint="1 to 10; 1: the usual price"), *_WHO),
        do_set_cap,
        about="No multiplier of any region is larger from now on; quotes that were told are kept.",
    ),
    Action(
        SET_POLICY,
        "Set the policy",
        (Field("policy", "Policy", choices={name: name for name in POLICIES}), *_WHO),
        do_set_policy,
        about="Windows of all regions are decided by it from now on.",
    ),
)
PRICE_PANELS: Final = (
    Panel("prices", "Prices", prices, empty="nobody has asked for a price yet", actions=(SET_CAP, SET_POLICY),
          about="Of the newest 5,000 quotes. Who sets cap or policy, and why, stands under 'By hand'."),
    Panel("dearest", "Dearest cells", dearest, empty="every cell has the usual price", replay=dearest,
          about="Cells (H3, resolution 8) where prices are above the usual one, with what is in them."),
)  # fmt: skip
