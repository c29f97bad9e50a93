"""Settlement of a card's payments by their authorisations, whatever comes first.

A payment takes its amount from the balance when it is made (a hold). From then on::

    paid = what the newest of "declined" (0) and "captured" (its amount) says, else the hold
           less all that was "reversed", and never below 0

The newest is that of the latest time; of one time the one whose identity has the larger digest. Neither the
order in which authorisations come nor a repeat changes that.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Final, Literal, NamedTuple

import msgspec

from millrace.parts.contents import digest_of
from millrace.parts.lookback import link_of
from millrace_apps.fraud.contracts.events import Authorisation, AuthorisationStatus, to_cents

DAY_MS: Final = 86_400_000
#: An authorisation is remembered for so long after it happened, and so many of a card at most.
KEPT_MS: Final = 45 * DAY_MS
MOST_OF_CARD: Final = 1_000

_STATUS: Final[tuple[AuthorisationStatus, ...]] = ("approved", "declined", "captured", "reversed")
_APPROVED, _DECLINED, _CAPTURED, _REVERSED = range(4)
#: Digest of its identity and of its content, link of its payment, time and status, cents and one more.
_ROW: Final = Struct("<QIIQQ")

Taken = Literal["repeat", "conflict", "superseded", "new"]


class Step(NamedTuple):
    """An authorisation as it is kept.

    Attributes:
        identity: Digest of its identity.
        content: Digest of all that it says.
        link: Its payment (see :func:`millrace.parts.lookback.link_of`).
        time: When it happened, ms.
        status: Index of its status.
        cents: Its ``settled_amount``, cents; None: all of it.
    """

    identity: int
    content: int
    link: int
    time: int
    status: int
    cents: int | None

    @staticmethod
    def of(event: Authorisation) -> Step:
        """Return what is kept of an authorisation."""
        digest = blake2b(event.authorisation_id.encode(), digest_size=8).digest()
        settled = event.settled_amount
        return Step(
            int.from_bytes(digest, "little"),
            digest_of(event) >> 32,
            link_of(event.transaction_id),
            event.event_time_ms,
            _STATUS.index(event.status),
            None if settled is None else to_cents(settled),
        )

    def row(self) -> bytes:
        """Return it packed."""
        cents = 0 if self.cents is None else self.cents + 1
        return _ROW.pack(self.identity, self.content, self.link, self.time << 2 | self.status, cents)


class CardSteps(msgspec.Struct, array_like=True, gc=False):
    """The authorisations of a card, 32 bytes each.

    Attributes:
        rows: Packed, in order of their time.
    """

    rows: bytes = b""

    def take(self, step: Step, watermark: int) -> Taken:
        """Take an authorisation; say whether it changes anything.

        Args:
            step: The authorisation.
            watermark: Up to here nothing comes any more that was on time, ms.

        Returns:
            ``repeat``: it has come before; ``conflict``: so has its identity, which said something else.
            ``superseded``: a later response was in force before it came. ``new``: it counts.
        """
        at, later = 0, False
        steps = [_step(row) for row in _ROW.iter_unpack(self.rows)]
        for place, kept in enumerate(steps):
            if kept.identity == step.identity:
                return "repeat" if kept.content == step.content else "conflict"
            if kept[3:0:-1] < step[3:0:-1]:
                at = place + 1
            elif _responds(step) and kept.link == step.link and _responds(kept):
                later = later or kept.time <= watermark
        gone = sum(1 for kept in steps[:at] if kept.time <= watermark - KEPT_MS)
        rows = self.rows[: at * _ROW.size] + step.row() + self.rows[at * _ROW.size :]
        self.rows = rows[max(gone, len(steps) + 1 - MOST_OF_CARD) * _ROW.size :]
        return "superseded" if later else "new"

    def paid(self, link: int, cents: int, until: int) -> int:
        """Return what was paid for a payment, cents, by what had happened at a time.

        Args:
            link: The payment.
            cents: Its amount, cents.
            until: The time, ms.

        Example:
            >>> steps = CardSteps()
            >>> steps.take(Step(1, 0, 7, 10, 2, 800), 0), steps.take(Step(2, 0, 7, 20, 3, 300), 0)
            ('new', 'new')
            >>> [steps.paid(7, 1_000, until) for until in (9, 10, 20)]
            [1000, 800, 500]
        """
        due, back = cents, 0
        for row in _ROW.iter_unpack(self.rows):
            if row[2] != link:
                continue
            step = _step(row)
            if step.time > until or step.status == _APPROVED:
                continue
            if step.status == _REVERSED:
                back += MAX_CENTS if step.cents is None else step.cents
            elif step.status == _DECLINED:
                due = 0
            else:
                due = cents if step.cents is None else step.cents
        return max(0, due - back)

    def declined(self, after: int, until: int) -> int:
        """Return how many payments were declined in a stretch of time.

        Args:
            after: Its start, ms, which is not in it.
            until: Its end, ms, which is.

        >>> steps = CardSteps()
        >>> [steps.take(Step(at, 0, at, at, 1, None), 0) for at in (10, 20, 30)]
        ['new', 'new', 'new']
        >>> steps.declined(10, 30)
        2
        """
        found = {
            row[2]
            for row in _ROW.iter_unpack(self.rows)
            if row[3] & 3 == _DECLINED and after < row[3] >> 2 <= until
        }
        return len(found)


#: More than any payment.
MAX_CENTS: Final = 1 << 60


def _step(row: tuple[int, ...]) -> Step:
    identity, content, link, time, cents = row
    return Step(identity, content, link, time >> 2, time & 3, cents - 1 if cents else None)


def _responds(step: Step) -> bool:
    return step.status in (_DECLINED, _CAPTURED)
