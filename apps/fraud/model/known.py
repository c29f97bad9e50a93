"""Labelled payments: genuine, fraud or unknown, why, and with what weight.

A decision changes what can become known. A blocked fraud hurts nobody, so nobody complains: its silence says
nothing, while the silence of a payment that passed says that it was genuine, once whoever would have spoken
has had the time. So of a payment that was stopped only an answer counts, and without one it is unknown:
neither genuine nor a fraud, left out of training, of measures and of what thresholds cost.

::

    passed ──► silence for maturity.chargeback_ms ──► genuine
           └─► the holder complains, an investigator answers ──► what the newest word says
    stopped ─► silence ──► unknown
            └► an investigator answers ──► what the newest word says
    control ─► would have been stopped and passed: as passed, and stands for those that were stopped

A payment is known only once it is old enough for the slowest who would speak of it, even where somebody has
spoken already: frauds are spoken of and genuine payments are not, so of young payments the frauds alone would
be known. An investigator answers in both ways; such an answer counts after ``maturity.feedback_ms``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from millrace.errors import UserError

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

#: Columns of the table of labels that are read.
LABEL_COLUMNS: Final = ("transaction_id", "event_time_ms", "is_fraud", "source")
#: Columns of the table of authorisations that are read.
AUTHORISATION_COLUMNS: Final = ("transaction_id", "event_time_ms", "status")
#: Responses of an authorisation that say whether a payment passed; a reversal does not unsay that it did.
_PASSED: Final = {"approved": True, "captured": True, "declined": False}


class Verdict(StrEnum):
    """What a payment is held to be."""

    GENUINE = "genuine"
    FRAUD = "fraud"
    UNKNOWN = "unknown"


class Why(StrEnum):
    """Why a payment is held to be what it is.

    Attributes:
        FEEDBACK: The newest word is an investigator's; so for the two that follow.
        CHARGEBACK: The holder's.
        CORRECTION: The correction of either.
        SILENCE: It passed, and nobody has complained in time: genuine.
        YOUNG: Who would speak of it may still do so: unknown.
        STOPPED: It was blocked or declined, and nobody has looked at it: unknown.
    """

    FEEDBACK = "feedback"
    CHARGEBACK = "chargeback"
    CORRECTION = "correction"
    SILENCE = "silence"
    YOUNG = "young"
    STOPPED = "stopped"


class Maturity(NamedTuple):
    """How long who would speak of a payment takes to do so.

    Attributes:
        chargeback_ms: Holders: after this the silence on a payment that passed says that it was genuine.
        feedback_ms: Investigators, corrections of what they said at first included.
    """

    chargeback_ms: int
    feedback_ms: int

    @staticmethod
    def of(chargeback_ms: int, feedback_ms: int | None = None) -> Maturity:
        """Return the maturity of both; of investigators as of holders unless told.

        Raises:
            UserError: A time is below 0, or investigators take longer than holders.

        >>> Maturity.of(7)
        Maturity(chargeback_ms=7, feedback_ms=7)
        """
        feedback = chargeback_ms if feedback_ms is None else feedback_ms
        if not 0 <= feedback <= chargeback_ms:
            raise UserError("labels mature after 0 ms or more, and feedback no later than chargebacks")
        return Maturity(chargeback_ms, feedback)


def known(
    payments: pd.DataFrame,
    labels: pd.DataFrame,
    as_of_ms: int,
    maturity: Maturity,
    *,
    authorisations: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return what is known of payments at a time: a row for each, in their order and with their index.

    Args:
        payments: Decisions with ``transaction_id``, ``event_time_ms``, ``action`` and ``control_group``: rows
            of ``transactions``, blocked and unlabelled ones among them. Without the last two columns all
            passed, or nobody was in that group.
        labels: :data:`LABEL_COLUMNS` of the table ``labels``; those that became known after ``as_of_ms``
            are not seen, and of several on one payment the newest counts.
        as_of_ms: The time, UTC ms.
        maturity: How long labels take.
        authorisations: :data:`AUTHORISATION_COLUMNS` of that table: what a payment's customer was told counts
            before what was decided. ``None``: a payment was stopped if it was blocked.

    Returns:
        Columns ``verdict`` (:class:`Verdict`), ``why`` (:class:`Why`) and ``weight``: how many payments it
        stands for in a sum, a share or a mean over those that are known. That is 1 of what passed. The
        control group is a random part of what would have been blocked and stands for all of it, so each
        of its payments weighs as many as there are for one of it, and blocked ones that somebody looked
        at, no random part, weigh 0. Without a control group these weigh 1: there is nothing better.

    Example:
        >>> import pandas as pd
        >>> paid = pd.DataFrame({
        ...     "transaction_id": ["a", "b", "c", "d"], "event_time_ms": [0, 0, 0, 9],
        ...     "action": ["approve", "block", "block", "approve"],
        ... })
        >>> said = pd.DataFrame({
        ...     "transaction_id": ["c"], "event_time_ms": [2], "is_fraud": [True], "source": ["feedback"],
        ... })
        >>> found = known(paid, said, 10, Maturity.of(7))
        >>> list(zip(paid["transaction_id"], found["verdict"], found["why"]))
        ... # doctest: +NORMALIZE_WHITESPACE
        [('a', 'genuine', 'silence'), ('b', 'unknown', 'stopped'), ('c', 'fraud', 'feedback'),
         ('d', 'unknown', 'young')]
    """
    import pandas as pd

    ids, age = payments["transaction_id"], as_of_ms - payments["event_time_ms"].to_numpy(dtype=np.int64)
    blocked, control = would_be_blocked(payments)
    stopped = blocked & ~control
    if authorisations is not None:
        passed = ids.map(_responses(authorisations, as_of_ms))
        stopped = np.where(passed.isna(), stopped, passed == False)  # noqa: E712 - of objects
    seen = known_by(labels, as_of_ms)
    newest = seen.drop_duplicates("transaction_id", keep="last").set_index("transaction_id")
    word, source = ids.map(newest["is_fraud"]), ids.map(newest["source"]).to_numpy(dtype=object)
    said = word.notna().to_numpy()
    answered = ids.isin(seen.loc[seen["source"] == Why.FEEDBACK, "transaction_id"]).to_numpy()
    mature = (age >= maturity.chargeback_ms) | (answered & (age >= maturity.feedback_ms))
    fraud = said & (word == True).to_numpy(dtype=bool)  # noqa: E712 - of objects
    verdict = np.select(
        [~mature, fraud, said | ~stopped],
        [Verdict.UNKNOWN.value, Verdict.FRAUD.value, Verdict.GENUINE.value],
        Verdict.UNKNOWN.value,
    )
    why = np.where(said, source, np.where(stopped, Why.STOPPED.value, Why.SILENCE.value))
    why[~mature & (said | ~stopped)] = Why.YOUNG.value
    weight = weights(blocked, control)
    return pd.DataFrame({"verdict": verdict, "why": why, "weight": weight}, index=payments.index)


def known_by(labels: pd.DataFrame, as_of_ms: int) -> pd.DataFrame:
    """Return the labels that were known at a time (ms), in the order in which they became so."""
    return labels[labels["event_time_ms"] <= as_of_ms].sort_values("event_time_ms", kind="stable")


def would_be_blocked(payments: pd.DataFrame) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which payments would be blocked if there were no control group, and which are in that group."""
    none = np.zeros(len(payments), dtype=bool)
    if "action" not in payments:
        return none, none
    control = none
    if "control_group" in payments:
        control = (payments["control_group"] == True).to_numpy(dtype=bool)  # noqa: E712 - null is no
    return (payments["action"] == "block").to_numpy(dtype=bool) | control, control


def weights(blocked: npt.NDArray[np.bool_], control: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return for how many payments each stands, as :func:`known` tells it.

    Args:
        blocked: Which would be blocked if there were no control group.
        control: Which of these are in it.

    >>> weights(np.array([False, True, True, True]), np.array([False, True, False, False])).tolist()
    [1.0, 3.0, 0.0, 0.0]
    >>> weights(np.array([False, True]), np.array([False, False])).tolist()
    [1.0, 1.0]
    """
    found = np.ones(len(blocked))
    if let_through := int(control.sum()):
        found[blocked] = 0.0
        found[control] = int(blocked.sum()) / let_through
    return found


def _responses(authorisations: pd.DataFrame, as_of_ms: int) -> pd.Series:
    """Return whether payments passed, by the newest response that was known at a time."""
    seen = known_by(authorisations, as_of_ms)
    seen = seen[seen["status"].isin(list(_PASSED))]
    newest = seen.drop_duplicates("transaction_id", keep="last").set_index("transaction_id")
    return newest["status"].map(_PASSED).astype(object)
