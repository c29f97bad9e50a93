"""Scores kept to be judged by labels that come later, and the outcomes of it.

A payment that passes is counted as genuine when it is decided on, and otherwise by the label that says so:
most are never spoken of. One that is blocked is neither until a label says what it is, since nobody
complains of it (see :mod:`millrace_apps.fraud.model.known`). What is kept of one is 15 bytes under its card,
for as long as labels come.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import msgspec

from millrace.parts.lookback import link_of
from millrace_apps.fraud.contracts.events import Decision, Label
from millrace_apps.fraud.model.outcomes import STEPS, Outcome
from millrace_apps.fraud.processes.billing import billed
from millrace_apps.fraud.processes.scorer import Observed
from millrace_apps.fraud.state.labels import DAY_MS

#: Whose scores are judged, in the order in which they are kept.
ROLES: Final = ("rules", "champion", "challenger")
#: Features whose distribution is watched.
WATCHED: Final = ("amount", "zscore", "count_24h", "sum_24h", "card.count_30d", "card.gap_s")
#: A label that comes later than this after its payment judges no score, days.
JUDGED_DAYS: Final = 45
#: Most payments kept of a card.
MOST: Final = 2_000

#: Link of the transaction, day, score of each role in thousandths, flags.
_ROW: Final = struct.Struct("<IIHHHB")
_NO_SCORE: Final = 0xFFFF
#: Flags: it was alerted on; is held to be a fraud; to be neither; its card was known to be compromised.
_ALERTED, _FRAUD, _NEITHER, _OFF = 1, 2, 4, 8


class TrainedUntil(NamedTuple):
    """Event times, ms, of the newest payments that the models were trained on; 0: not known."""

    champion: int = 0
    challenger: int = 0


class Issued(msgspec.Struct, array_like=True, gc=False):
    """The scores of a card's last payments, 15 bytes each.

    Attributes:
        rows: Packed; in the order in which they were decided on.
    """

    rows: bytes = b""

    def issue(
        self, decision: Decision, observed: Observed, until: TrainedUntil, *, is_fraud: bool | None = None
    ) -> list[Outcome]:
        """Remember a decision; return its outcomes.

        Args:
            decision: The decision.
            observed: What it rests on.
            until: How old the models are.
            is_fraud: What a label has said that came before its transaction; None: nothing.
        """
        if is_fraud is None and decision.action != "block":
            is_fraud = False
        at = decision.event_time_ms
        said = decision.card_labels
        off = said is not None and said.frauds + said.frauds_high > 0
        day, alerted = at // DAY_MS, decision.action != "approve"
        scores = (decision.score, decision.model_score, decision.challenger_score)
        steps = [_NO_SCORE if s is None else min(STEPS, max(0, round(s * STEPS))) for s in scores]
        flags = (_ALERTED if alerted else 0) | (_OFF if off else 0) | _held(is_fraud)
        kept = self.rows + _ROW.pack(link_of(decision.transaction_id), day, *steps, flags)
        gone = 0
        while _ROW.unpack_from(kept, gone)[1] < day - JUDGED_DAYS:
            gone += _ROW.size
        self.rows = kept[max(gone, len(kept) - MOST * _ROW.size) :]
        bins, versions = watched(observed), ("", decision.model_version, decision.challenger_version)
        card = decision.card_id
        return [
            Outcome(
                model=role,
                event_time_ms=at,
                card=card,
                score=score,
                is_fraud=is_fraud,
                alerted=alerted,
                was=None,
                version=version or "",
                trained_until_ms=trained,
                bins=bins,
                off=off,
            )
            for role, score, version, trained in zip(ROLES, scores, versions, (0, *until), strict=True)
            if score is not None
        ]

    def say(self, label: Label) -> list[Outcome]:
        """Take the newest word on a payment; return what it changes.

        Args:
            label: The label.
        """
        at = label.transaction_time_ms
        return self._hold(label.transaction_id, at, label.card_id, is_fraud=label.is_fraud)

    def _hold(self, transaction_id: str, at: int, card_id: str, *, is_fraud: bool | None) -> list[Outcome]:
        """Hold a payment to be something; return what that changes."""
        wanted = (link_of(transaction_id), at // DAY_MS)
        for place in range(0, len(self.rows), _ROW.size):
            *found, flags = _ROW.unpack_from(self.rows, place)
            if tuple(found[:2]) != wanted:
                continue
            was = None if flags & _NEITHER else bool(flags & _FRAUD)
            if was == is_fraud:
                return []
            end = place + _ROW.size
            flags = flags & ~(_FRAUD | _NEITHER) | _held(is_fraud)
            self.rows = self.rows[: end - 1] + bytes((flags,)) + self.rows[end:]
            alerted, off = bool(flags & _ALERTED), bool(flags & _OFF)
            return [
                Outcome(role, at, card_id, step / STEPS, is_fraud, alerted, was, again=True, off=off)
                for role, step in zip(ROLES, found[2:], strict=True)
                if step != _NO_SCORE
            ]
        return []


def _held(is_fraud: bool | None) -> int:
    """Return the flag of what a payment is held to be."""
    return _NEITHER if is_fraud is None else _FRAUD if is_fraud else 0


def watched(observed: Observed) -> list[int]:
    """Return the bin of each of :data:`WATCHED`: each is twice as wide as the one before.

    Args:
        observed: What is known at a payment.
    """
    own, card = observed.own, observed.card
    values = (billed(observed.tx), own.zscore, own.count_24h, own.sum_24h, card.count_30d, card.gap_s)
    return [bin_of(value) for value in values]


def bin_of(value: float | None) -> int:
    """Return the bin of a value: 0 for none, 1 for what is below 0, then by powers of two.

    >>> bin_of(None), bin_of(-2.0), bin_of(0.5), bin_of(1), bin_of(5.9)
    (0, 1, 2, 3, 5)
    """
    if value is None:
        return 0
    return 1 if value < 0 else 2 + int(value).bit_length()
