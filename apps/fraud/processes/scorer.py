"""The interface to a learned model: what a decision asks for a score."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.fraud.contracts.feature_types import CardFeatures, EntityFeatures
from millrace_apps.fraud.processes.features import Features
from millrace_apps.fraud.state.labels import LabelRisk, TerminalLabels


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
        card_labels: What was known of the card's transactions by labels; None: nothing.
        terminal_labels: The same of the terminal's, if that stage runs.
        customer: The customer, if that stage runs and the transaction names one.
        merchant: The merchant.
    """

    tx: Transaction
    own: Features
    card: CardFeatures
    account: EntityFeatures | None
    terminal: EntityFeatures | None
    device: EntityFeatures | None
    address: EntityFeatures | None
    windows: Mapping[str, float | None]
    card_labels: LabelRisk | None = None
    terminal_labels: TerminalLabels | None = None
    customer: EntityFeatures | None = None
    merchant: EntityFeatures | None = None


# As Observed(...), which goes through a function in Python: one is made for every transaction.
new_observed: Final[Callable[[tuple[Any, ...]], Observed]] = functools.partial(tuple.__new__, Observed)


class Scorer(Protocol):
    """A model in the stream, asked once for many transactions. It is pickled to the workers: load there."""

    def score(self, observed: Sequence[Observed]) -> Sequence[tuple[float, str] | None]:
        """Return probability of fraud (0 to 1) and model version of each; None: no model, rules only.

        Equal input gives equal output while the model is the same. It must not raise for a model that is
        broken or not there: it goes on with the last good one, or says None.
        """


@runtime_checkable
class Dated(Protocol):
    """A scorer that can tell how old its model is."""

    def trained_until_ms(self) -> int:
        """Return the event time, ms, of the newest payment that its model was trained on; 0 without one."""


def trained_until(scorer: Scorer | None) -> int:
    """Return the event time of the newest payment that a scorer's model was trained on, ms; 0: not known."""
    return scorer.trained_until_ms() if isinstance(scorer, Dated) else 0
