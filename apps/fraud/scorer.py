"""The seam to a model: what a decision asks for a learned score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from apps.fraud.events import Transaction
from apps.fraud.feature_types import CardFeatures, EntityFeatures
from apps.fraud.features import Features


class Observed(NamedTuple):
    """All that is known at a transaction; what a model may use.

    Attributes:
        tx: The transaction.
        own: The card's totals and last 24 hours.
        card: The card's last 30 days.
        account: The account, if that stage runs and the transaction has one; so for the others.
        terminal: The terminal.
        device: The device.
        address: The IP address.
        windows: What the rules' window functions gave, as far as a stage before this one computed them.
    """

    tx: Transaction
    own: Features
    card: CardFeatures
    account: EntityFeatures | None
    terminal: EntityFeatures | None
    device: EntityFeatures | None
    address: EntityFeatures | None
    windows: Mapping[str, float | None]


class Scorer(Protocol):
    """A model in the stream, asked once for many transactions. It is pickled to the workers: load there."""

    def score(self, observed: Sequence[Observed]) -> Sequence[tuple[float, str] | None]:
        """Return probability of fraud (0 to 1) and model version of each; None: no model, rules only.

        Equal input gives equal output while the model is the same. It must not raise for a model that is
        broken or not there: it goes on with the last good one, or says None.
        """
