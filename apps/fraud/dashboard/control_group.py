"""The control group on the page: what passed by chance, what it was, and what that says of all blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.dashboard.data import AppData
from millrace.dashboard.views import Note, Number, Numbers, View
from millrace.experiments.shares import share_interval
from millrace.time.durations import to_ms
from millrace_apps.fraud.cases.app import FraudCasesSettings
from millrace_apps.fraud.dashboard.data import LabelFigures, labels, shorten, worth
from millrace_apps.fraud.dashboard.recent import recent
from millrace_apps.fraud.model.known import AUTHORISATION_COLUMNS, LABEL_COLUMNS, Maturity, Verdict, known

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_COLUMNS: Final = (
    "transaction_id", "event_time_ms", "action", "control_group", "reasons", "amount", "billing_amount",
    "billing_currency",
)  # fmt: skip
#: Payments that would be blocked, and declined ones, of which so many of the newest are kept.
_MOST: Final = 100_000
_MOST_DECLINED: Final = 500_000
#: A reason that no chance overrules: such payments have no part in the control group.
_BY_LIST: Final = "BLOCK_LIST"


class WouldBeBlocked(NamedTuple):
    """A payment that was blocked, or would have been without the control group."""

    transaction_id: str
    event_time_ms: int
    action: str
    control_group: bool
    amount: float


class Figures(NamedTuple):
    """What the control group says.

    Attributes:
        stopped: All that would be blocked, its own payments among them.
        let_through: Its payments.
        genuine: Of these, those known to be genuine; so for the frauds.
        frauds: Known frauds.
        fraud_amount: Their amounts, in the app's currency.
        young: Of which it cannot be known yet.
        share: Share of frauds among those that are known; ``None`` of none.
        low: Lower end of its 95 % interval.
        high: Upper end.
    """

    stopped: int
    let_through: int
    genuine: int
    frauds: int
    fraud_amount: float
    young: int
    share: float | None
    low: float | None
    high: float | None


def control_group(data: AppData, settings: FraudCasesSettings) -> View | None:
    """Return what passed by chance, and what it says of all that is blocked."""
    found = figures(data, settings)
    if found is None:
        return None
    decisions, currency = data.settings.decisions, data.settings.currency.billing
    if not found.let_through:
        if not decisions.control_share:
            return Note(
                "off: decisions.control_share is 0, so of what is blocked it is not learned what it was"
            )
        return Note(f"nothing was let through yet, of {found.stopped:,} that would be blocked")
    rest = found.let_through - found.genuine - found.frauds - found.young
    estimate = None if found.share is None else round(found.share * found.stopped, 1)
    ends = "" if found.low is None or found.high is None else (
        f"95 %: {found.low * found.stopped:,.0f} to {found.high * found.stopped:,.0f} of {found.stopped:,}"
    )  # fmt: skip
    share = "" if found.low is None or found.high is None else f"95 %: {found.low:.1%} to {found.high:.1%}"
    return Numbers(
        (
            Number(label="let through", value=found.let_through, kind="count",
                   note=f"of {found.stopped:,} that would be blocked"
                   + ("" if decisions.control_share else "; off now")),
            Number(label="became frauds", value=found.frauds, kind="count",
                   tone="bad" if found.frauds else "plain", note=f"{found.fraud_amount:,.2f} {currency}"),
            Number(label="were genuine", value=found.genuine, kind="count",
                   note=f"{found.young:,} too young to tell" + (f", {rest:,} not known" if rest else "")),
            Number(label="frauds among blocks", value=found.share, kind="share",
                   note=share or "none is old enough yet"),
            Number(label="frauds, estimated", value=estimate, kind="number", note=ends),
        )
    )  # fmt: skip


def figures(data: AppData, settings: FraudCasesSettings) -> Figures | None:
    """Return what the control group says; ``None`` before anything would have been blocked."""
    import pandas as pd

    table = data.table("transactions")
    stopped: dict[str, WouldBeBlocked] = {} if table is None else table.fold("blocks", _COLUMNS, dict, _add)
    if not stopped:
        return None
    paid = pd.DataFrame(list(stopped.values()))
    said = labels(data, settings)
    # Of a stream of the past now is where it ends.
    newest = max(_newest(data), max((label.known_ms for label in said.values()), default=0))
    now = min(data.now_ms(), newest)
    verdict = known(
        paid, _labels(said, stopped), now, _maturity(data), authorisations=_declined(data, stopped)
    )
    let = paid["control_group"].to_numpy(dtype=bool)
    of = verdict["verdict"].to_numpy()[let]
    young = int((verdict["why"].to_numpy()[let] == "young").sum())
    frauds, genuine = int((of == Verdict.FRAUD).sum()), int((of == Verdict.GENUINE).sum())
    is_fraud = let & (verdict["verdict"] == Verdict.FRAUD).to_numpy(dtype=bool)
    told = frauds + genuine
    low, high = share_interval(frauds, told) or (None, None)
    return Figures(
        len(paid), int(let.sum()), genuine, frauds, round(float(paid["amount"][is_fraud].sum()), 2), young,
        frauds / told if told else None, low, high,
    )  # fmt: skip


def _add(kept: dict[str, WouldBeBlocked], rows: pa.Table) -> dict[str, WouldBeBlocked]:
    import pyarrow.compute as pc

    chosen = pc.equal(rows["action"], "block")
    if "control_group" in rows.column_names:
        chosen = pc.or_(chosen, pc.fill_null(rows["control_group"], False))
    for row in rows.filter(chosen).to_pylist():
        if any(reason["code"] == _BY_LIST for reason in row.get("reasons") or ()):
            continue
        name = row["transaction_id"]
        let_through = bool(row.get("control_group"))
        kept[name] = WouldBeBlocked(name, row["event_time_ms"], row["action"], let_through, worth(row))
    shorten(kept, _MOST)
    return kept


def _labels(said: Mapping[str, LabelFigures], stopped: Mapping[str, WouldBeBlocked]) -> pd.DataFrame:
    """Return what is said of these payments as labels; of which source is all the same here."""
    import pandas as pd

    rows = [(name, said[name].known_ms, said[name].is_fraud, "feedback") for name in stopped if name in said]
    return pd.DataFrame(rows, columns=list(LABEL_COLUMNS))


def _declined(data: AppData, stopped: Mapping[str, WouldBeBlocked]) -> pd.DataFrame | None:
    """Return the responses that declined these payments, for whatever reason."""
    import pandas as pd

    table = data.table("authorisations")
    if table is None:
        return None
    declined: dict[str, int] = table.fold("declined", AUTHORISATION_COLUMNS, dict, _add_declined)
    rows = [(name, declined[name], "declined") for name in stopped if name in declined]
    return pd.DataFrame(rows, columns=list(AUTHORISATION_COLUMNS))


def _add_declined(kept: dict[str, int], rows: pa.Table) -> dict[str, int]:
    import pyarrow.compute as pc

    found = rows.filter(pc.equal(rows["status"], "declined"))
    kept.update(zip(found["transaction_id"].to_pylist(), found["event_time_ms"].to_pylist(), strict=True))
    shorten(kept, _MOST_DECLINED)
    return kept


def _maturity(data: AppData) -> Maturity:
    rules = data.settings.labels
    return Maturity.of(to_ms(rules.maturity_chargeback or rules.delay))


def _newest(data: AppData) -> int:
    """Return the newest event time of the newest decisions, UTC ms."""
    rows = recent(data)
    return int(rows["event_time_ms"].to_numpy().max()) if rows is not None and len(rows) else 0
