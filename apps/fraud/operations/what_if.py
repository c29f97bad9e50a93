"""What-if of other thresholds and lists, over all decisions of a time.

Each decision is made anew of what its row says: its score, what its rules and its model said, which lists it
is on. Where a threshold of the reasons is another one, the score is computed anew of the features of the row.
Decisions are compared with what would be decided now, not with what was: the difference is that of the
changes alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from millrace_apps.fraud.contracts.control_events import Change
from millrace_apps.fraud.operations.backtest import read_table
from millrace_apps.fraud.operations.governance import Kept, try_changes
from millrace_apps.fraud.processes.billing import worths
from millrace_apps.fraud.processes.decision import ALLOWED, BLOCKED, FEATURES_VERSION
from millrace_apps.fraud.processes.features import Features
from millrace_apps.fraud.processes.reasons import entity_reasons, score_of
from millrace_apps.fraud.processes.scoring import Thresholds, own_reasons, thresholds_with

if TYPE_CHECKING:
    import pyarrow as pa

Codes = npt.NDArray[np.int8]
Lists = Mapping[str, Mapping[str, int]]
_DAY_MS: Final = 86_400_000
_CODES: Final = {"approve": 0, "review": 1, "block": 2}
#: Thresholds over scores: all others change the scores themselves.
_OF_SCORES: Final = ("review_score", "block_score", "model_review", "model_block")
#: Kind of a list's value → column.
_KINDS: Final = {
    "card": "card_id",
    "terminal": "terminal_id",
    "device": "device_id",
    "ip": "ip",
    "account": "account_id",
}
_RECORDS: Final = ("card", "terminal", "device")
COLUMNS: Final = (
    "score",
    "model_score",
    "challenger_score",
    "rules",
    "rule_action",
    "control_group",
    "features_version",
)


class Counts(msgspec.Struct, frozen=True):
    """What is done with the payments of a time.

    Attributes:
        blocks: Payments that are blocked.
        reviews: Payments that somebody must look at.
        block_amount: Sum of those that are blocked, currency units.
        review_amount: Sum of those that are looked at.
        frauds_blocked: Known frauds among those that are blocked; so for the others.
        frauds_reviewed: Among those that are looked at.
        frauds_passed: Among those that pass.
    """

    blocks: int
    reviews: int
    block_amount: float
    review_amount: float
    frauds_blocked: int
    frauds_reviewed: int
    frauds_passed: int


class Difference(msgspec.Struct, frozen=True):
    """What changes would have done.

    Attributes:
        decisions: Decisions looked at.
        from_ms: The first, UTC ms.
        until_ms: The last.
        now: By what holds now.
        then: By what would hold.
        recomputed: Whether scores were computed anew, since thresholds of reasons would change.
        left_out: Decisions whose score cannot be computed anew: of features of another version.
    """

    decisions: int
    from_ms: int
    until_ms: int
    now: Counts
    then: Counts
    recomputed: bool
    left_out: int

    @property
    def days(self) -> float:
        """How long that time is, days; at least one."""
        return max(1.0, (self.until_ms - self.from_ms) / _DAY_MS)


def what_if(
    changes: Sequence[Change],
    kept: Kept,
    table: Path | str,
    frauds: Collection[str] = (),
    *,
    approving: Collection[str] = (),
    last_ms: int | None = None,
) -> Difference:
    """Return what changes would have done.

    Args:
        changes: Of thresholds and lists.
        kept: What holds now.
        table: The Delta table of decisions.
        frauds: Transactions that are known to be frauds.
        approving: Rules (``id@version``) whose action is ``approve``: they take back what scores say.
        last_ms: Only the last so many ms of event time; None: all of it.

    Raises:
        UserError: A change cannot be made, or there are no decisions.
    """
    then = try_changes(changes, kept)
    old, new = _thresholds(kept), _thresholds(then)
    anew = any(a != b for name, a, b in _each(old, new) if name not in _OF_SCORES)
    records = [*Features.__struct_fields__, *_RECORDS] if anew else []
    rows = read_table(table, [*COLUMNS, *records], from_ms=_begin(table, last_ms), until_ms=None)
    left_out = 0
    if anew:
        same = np.array([v == FEATURES_VERSION for v in column(rows, "features_version")], np.bool_)
        left_out = int((~same).sum())
        rows = rows.filter(same)
    decided = Decided(rows, approving)
    fraud = (
        np.isin(np.array(column(rows, "transaction_id"), object), list(frauds)) if len(rows) else np.array([])
    )
    scores = [scores_by(rows, t) if anew else decided.score for t in (old, new)]
    counts = [
        _count(decided, decided.actions(t, _lists(k), s), fraud)
        for t, k, s in zip((old, new), (kept, then), scores, strict=True)
    ]
    times = decided.time_ms
    first, last = (int(times.min()), int(times.max())) if len(times) else (0, 0)
    return Difference(len(rows), first, last, counts[0], counts[1], anew, left_out)


class Decided:
    """Decisions as columns: what does not hang on thresholds and lists is worked out once.

    Args:
        rows: Rows of the table of decisions, with :data:`COLUMNS`.
        approving: Rules (``id@version``) whose action is ``approve``.

    Attributes:
        time_ms: When, UTC ms.
        amount: Amount in the app's currency; 0: it is not known.
        score: Of the built-in reasons.
        purchase: Whether it is a purchase: nothing else is suspicious.
    """

    def __init__(self, rows: pa.Table, approving: Collection[str] = ()) -> None:
        self._rows = rows
        self.time_ms = np.array(column(rows, "event_time_ms"), np.int64)
        self.amount = _amounts(rows)
        self.score = np.array([s or 0.0 for s in column(rows, "score")], np.float64)
        self.purchase = np.array([k == "purchase" for k in column(rows, "kind")], np.bool_)
        self._model = np.array([np.nan if s is None else s for s in column(rows, "model_score")], np.float64)
        by_rule = column(rows, "rule_action")
        self._rule = np.array([_CODES.get(a or "", 0) for a in by_rule], np.int8)
        self._taken_back = np.array(
            [
                bool(held) and (by == "approve" or any(name in approving for name in held))
                for held, by in zip(column(rows, "rules"), by_rule, strict=True)
            ],
            np.bool_,
        )

    def actions(self, thresholds: Thresholds, lists: Lists, score: npt.NDArray[np.float64]) -> Codes:
        """Return what is decided: 0 approve, 1 review, 2 block.

        Args:
            thresholds: Those in force.
            lists: Those in force, as if they had been all the time.
            score: Of the built-in reasons.
        """
        built_in = _by(score, thresholds.review_score, thresholds.block_score)
        built_in[~self.purchase | self._taken_back | (score <= 0)] = 0
        with np.errstate(invalid="ignore"):
            model = _by(self._model, thresholds.model_review, thresholds.model_block)
        model[~self.purchase] = 0
        found = np.maximum(np.maximum(built_in, self._rule), model)
        found[self._on(lists.get(ALLOWED))] = 0
        found[self._on(lists.get(BLOCKED))] = 2
        return found

    def _on(self, entries: Mapping[str, int] | None) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(self.time_ms), np.bool_)
        by_kind: dict[str, dict[str, int]] = {}
        for value, until in (entries or {}).items():
            kind, _, name = value.partition(":")
            by_kind.setdefault(kind, {})[name] = until
        for kind, names in by_kind.items():
            if kind in _KINDS:
                ends = np.array([names.get(v, 0) for v in column(self._rows, _KINDS[kind])], np.int64)
                found |= ends > self.time_ms
        return found


def column(rows: pa.Table, name: str) -> list[Any]:
    """Return a column; ``None`` everywhere where the table does not have it."""
    return rows.column(name).to_pylist() if name in rows.column_names else [None] * len(rows)


def _amounts(rows: pa.Table) -> npt.NDArray[np.float64]:
    return worths(lambda name: column(rows, name), rows.column_names)


def scores_by(rows: pa.Table, thresholds: Thresholds) -> npt.NDArray[np.float64]:
    """Return the scores of the built-in reasons by thresholds, of the features that rows carry.

    Args:
        rows: Rows of the table of decisions with the features of cards, terminals and devices.
        thresholds: The thresholds.
    """
    names = Features.__struct_fields__
    found = np.zeros(len(rows), np.float64)
    own = zip(*(column(rows, name) for name in names), strict=True)
    rest = zip(
        column(rows, "kind"), _amounts(rows).tolist(), *(column(rows, name) for name in _RECORDS), strict=True
    )
    for place, (values, (kind, amount, card, terminal, device)) in enumerate(zip(own, rest, strict=True)):
        if kind != "purchase":
            continue
        told: list[Any] = [v if v is not None else d for v, d in zip(values, _ABSENT, strict=True)]
        features = Features(*told)
        reasons = own_reasons(features, amount, thresholds)
        reasons += entity_reasons(
            SimpleNamespace(amount=amount, billing_currency=None),  # type: ignore[arg-type] # all that they read of a purchase
            features,
            SimpleNamespace(**card),  # type: ignore[arg-type] # the fields of the record, by their names
            None if terminal is None else SimpleNamespace(**terminal),  # type: ignore[arg-type]
            None if device is None else SimpleNamespace(**device),  # type: ignore[arg-type]
            thresholds,
        )
        if reasons:
            # Within one weight reasons come in any order: the score is of their product.
            found[place] = score_of(sorted(reasons, key=lambda r: -r.weight))
    return found


#: What stands for a feature that a row does not have: an older table has no excluded purchases.
_ABSENT: Final = tuple(0 if name.startswith("excluded") else None for name in Features.__struct_fields__)


def _thresholds(kept: Kept) -> Thresholds:
    return thresholds_with(
        (name, value)
        for name in Thresholds.__struct_fields__
        if (value := kept.overrides.get(name)) is not None
    )


def _each(old: Thresholds, new: Thresholds) -> Iterable[tuple[str, float, float]]:
    return [(name, getattr(old, name), getattr(new, name)) for name in Thresholds.__struct_fields__]


def _lists(kept: Kept) -> dict[str, Mapping[str, int]]:
    return {name: kept.lists.get(name) or {} for name in (BLOCKED, ALLOWED)}


def _by(score: npt.NDArray[np.float64], review_from: float, block_from: float) -> Codes:
    return np.where(score >= block_from, 2, np.where(score >= review_from, 1, 0)).astype(np.int8)


def _begin(table: Path | str, last_ms: int | None) -> int | None:
    if last_ms is None:
        return None
    times = read_table(table, [], from_ms=None, until_ms=None).column("event_time_ms")
    newest: int = times[len(times) - 1].as_py() if len(times) else 0
    return newest - last_ms + 1


def _count(decided: Decided, actions: Codes, fraud: npt.NDArray[np.bool_]) -> Counts:
    blocked, reviewed = actions == 2, actions == 1
    return Counts(
        int(blocked.sum()),
        int(reviewed.sum()),
        round(float(decided.amount[blocked].sum()), 2),
        round(float(decided.amount[reviewed].sum()), 2),
        int((blocked & fraud).sum()),
        int((reviewed & fraud).sum()),
        int((fraud & (actions == 0)).sum()),
    )
