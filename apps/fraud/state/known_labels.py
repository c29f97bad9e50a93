"""Labels in the live stream: what is known of a card by whom, and what that says of a terminal.

A label is in force for transactions from the time on at which it became known, whenever it comes: it waits
beside the log until the watermark has passed that time, and till then a transaction sees those that were
known at its own time. So neither labels that run ahead of the transactions nor transactions out of order
show what was not known, and a correction holds against what it corrects in whichever order the two come.

::

    transaction   t0              t1        t2
    label                   known at k (fraud)
    sees                          nothing   one fraud
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Any, Final, Literal

import msgspec

from millrace.parts.contents import digest_of
from millrace_apps.fraud.contracts.events import Authorisation, Label
from millrace_apps.fraud.handbook.windows import look_at_labels
from millrace_apps.fraud.state.labels import DAY_MS, FRAUD, GENUINE, LabelLog, LabelRisk, TerminalLabels

#: How far back a card's labels count: transactions of so many days before.
CARD_MEMORY_MS: Final = 90 * DAY_MS
#: Most labels kept of a card; the ones that became known first go before their time.
MOST_OF_CARD: Final = 200
#: Most transactions kept of a terminal; so many are removed at once.
MOST_OF_TERMINAL: Final = 4_000
_AT_ONCE: Final = 256

Taken = Literal["repeat", "conflict", "superseded", "interim", "newest"]


#: From so many purchases on it is known what is usual at a terminal.
KNOWN_FROM: Final = 5


class LabelRules(msgspec.Struct, frozen=True):
    """How labels are read.

    Attributes:
        delay_ms: How far behind the present the Handbook's risk windows end, ms.
        unlabelled_is_genuine: Take what nobody has spoken of for genuine, since only frauds and disputes are
            reported.
        maturity_ms: How long the slowest who would speak of it take, ms: silence says nothing before; 0: as
            long as ``delay_ms``.
        high_ratio: An amount is high from above so many medians of its card on, unless it is usual at its
            terminal.
        high_amount: From above this amount on it is high in any case, currency units; None: there is none.
    """

    delay_ms: int = 7 * DAY_MS
    unlabelled_is_genuine: bool = True
    maturity_ms: int = 0
    high_ratio: float = 2.5
    high_amount: float | None = None

    @property
    def mature_ms(self) -> int:
        """How long silence says nothing, ms."""
        return self.maturity_ms or self.delay_ms

    def is_high(self, amount: float, median: float | None, count: int, total: float) -> bool:
        """Return whether an amount says that a card was stolen, and nothing of the terminal.

        Args:
            amount: The amount, currency units.
            median: Median of the card's purchases; None: not known.
            count: How many purchases the terminal had in 30 days.
            total: Their sum.

        >>> rules = LabelRules()
        >>> rules.is_high(70.0, 20.0, 100, 2_500.0), rules.is_high(600.0, 20.0, 100, 50_000.0)
        (True, False)
        """
        if self.high_amount is not None and amount > self.high_amount:
            return True
        if median is None or amount <= self.high_ratio * median:
            return False
        return count < KNOWN_FROM or amount > self.high_ratio * total / count


class Word(msgspec.Struct, array_like=True, frozen=True, gc=False, order=True):
    """A label as it is kept; in order of when it became known.

    Attributes:
        known_ms: When it became known, ms.
        label_id: Its identity.
        at: Time of its transaction, ms.
        transaction_id: Its transaction.
        fraud: What it says.
        content: Digest of all that it says; 0 of those that an earlier version has taken.
        response: Of no label, but the response to a payment: 1: it was declined, 2: it was not; else 0.
    """

    known_ms: int
    label_id: str
    at: int
    transaction_id: str
    fraud: bool
    content: int = 0
    response: int = 0

    @staticmethod
    def of_response(response: Authorisation) -> Word:
        """Return what a terminal keeps of the response to a payment."""
        return Word(
            response.event_time_ms,
            response.authorisation_id,
            response.transaction_time_ms,
            response.transaction_id,
            False,
            response=1 if response.status == "declined" else 2,
        )

    @staticmethod
    def of(label: Label) -> Word:
        """Return what is kept of a label."""
        return Word(
            label.event_time_ms,
            label.label_id,
            label.transaction_time_ms,
            label.transaction_id,
            label.is_fraud,
            digest_of(label),
        )


class CardWords(msgspec.Struct, array_like=True, gc=False):
    """What has been said of a card's transactions.

    Attributes:
        words: The labels, in order of when they became known.
    """

    words: list[Word] = []

    def take(self, word: Word, watermark: int) -> Taken:
        """Take a label; say whether it changes what is known.

        Args:
            word: The label.
            watermark: Up to here nothing comes any more that was on time, ms.

        Returns:
            ``repeat``: it has come before; ``conflict``: so has its identity, which said something else.
            ``superseded``: a later word on its transaction was in force before it came. ``interim``: a later
            word has come, but is not in force yet. ``newest``: there is no later word.

        Example:
            >>> words = CardWords()
            >>> words.take(Word(20, "b", 5, "t", False), 30), words.take(Word(10, "a", 5, "t", True), 30)
            ('newest', 'superseded')
            >>> words.take(Word(20, "b", 5, "t", False), 30)
            'repeat'
        """
        for kept in self.words:
            if kept.label_id == word.label_id:
                return "repeat" if kept.content in (0, word.content) else "conflict"
        later = [kept for kept in self.words if kept.transaction_id == word.transaction_id and kept > word]
        insort(self.words, word)
        if len(self.words) > MOST_OF_CARD:
            del self.words[0]
        if not later:
            return "newest"
        return "superseded" if later[0].known_ms <= watermark else "interim"

    def verdict(self, transaction_id: str, until: int | None = None) -> bool | None:
        """Return whether the newest word on a transaction is that it is a fraud; ``None``: there is none.

        Args:
            transaction_id: The transaction.
            until: The newest that was known at this time, ms; None: of all.
        """
        return next(
            (
                w.fraud
                for w in reversed(self.words)
                if w.transaction_id == transaction_id and (until is None or w.known_ms <= until)
            ),
            None,
        )

    def risk(self, at: int) -> LabelRisk | None:
        """Return what was known at a time of the card's transactions before it; ``None`` for nothing.

        Args:
            at: Event time, ms.

        Example:
            >>> found = CardWords([Word(20, "a", 5, "t", True)]).risk(30)
            >>> found.frauds, CardWords([Word(20, "a", 5, "t", True)]).risk(19)
            (1, None)
        """
        newest = {w.transaction_id: w for w in self.words if w.known_ms <= at and w.at > at - CARD_MEMORY_MS}
        if not newest:
            return None
        log = LabelLog()
        for word in sorted(newest.values(), key=lambda w: (w.at, w.transaction_id)):
            log.add(word.at, FRAUD if word.fraud else GENUINE)
        return log.risk(at)


class TerminalLog(msgspec.Struct, array_like=True, gc=False):
    """A terminal's purchases with what is known of them, and the labels that are not in force for all yet.

    Attributes:
        log: The purchases.
        words: Labels that the watermark has not passed, in order of when they become known.
    """

    log: LabelLog = msgspec.field(default_factory=LabelLog)
    words: list[Word] = []

    def record(self, word: Word, watermark: int) -> None:
        """Take a label that is not superseded (see :meth:`CardWords.take`)."""
        insort(self.words, word)
        self.settle(watermark)

    def settle(self, watermark: int) -> None:
        """Let the labels be learned that the watermark (ms) has passed."""
        words = self.words
        if words and words[0].known_ms <= watermark:
            passed = bisect_right(words, watermark, key=_known)
            _learn(self.log, words[:passed])
            del words[:passed]

    def counts(self, at: int, rules: LabelRules) -> TerminalLabels:
        """Return what was known at a time.

        Args:
            at: Event time of a transaction, ms.
            rules: How labels are read.
        """
        log, words = self.log, self.words
        if (words and words[0].known_ms <= at) or log.last() > at:
            log = log.until(at)
            _learn(log, words[: bisect_right(words, at, key=_known)])
        windows, risk = look_at_labels(
            log, at, rules.delay_ms, unlabelled_is_genuine=rules.unlabelled_is_genuine, mature=rules.mature_ms
        )
        fields: tuple[Any, ...] = (*msgspec.structs.astuple(risk), *windows)
        return TerminalLabels(*fields)

    def add(self, at: int, *, high: bool) -> None:
        """Add a purchase.

        Args:
            at: Event time, ms.
            high: Whether its amount was high.
        """
        log = self.log
        log.add(at, high=high)
        if len(log.times) > MOST_OF_TERMINAL:
            log.forget(log.base + log.times[_AT_ONCE])


def _known(word: Word) -> int:
    return word.known_ms


def _learn(log: LabelLog, words: list[Word]) -> None:
    for word in words:
        if word.response:
            log.decline(word.at, declined=word.response == 1)
            continue
        log.learn(word.at, FRAUD if word.fraud else GENUINE)
