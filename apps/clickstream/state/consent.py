"""Consent per purpose: what it allows, and the record of every change.

``analytics`` is asked for nothing here: what is counted without it names nobody. ``personalisation`` allows
stitching (knowing the browsers of a person for the same person's) and a profile; ``marketing`` on top of it
allows offers.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import msgspec

from millrace_apps.clickstream.contracts.events import PURPOSES, Purpose

BITS: Final[dict[str, int]] = {"analytics": 1, "personalisation": 2, "marketing": 4}
#: Beside the purposes: leave for offers has been withdrawn before.
WITHDRAWN: Final = 8
#: What stitching and profiles need, and what offers need.
STITCH: Final = BITS["personalisation"]
OFFER: Final = BITS["personalisation"] | BITS["marketing"]


class ConsentChange(msgspec.Struct, frozen=True, gc=False):
    """An answer to the question for consent: the audit of what was allowed when.

    Attributes:
        consent_id: The event.
        visitor_id: The browser.
        user_id: The account, if somebody was logged in.
        granted: Given, or withdrawn.
        purposes: What for.
        in_force: The purposes that are allowed from this moment on.
        withdrawn: Whether something was taken back that had been allowed.
        at_ms: When it was said, UTC ms; every later event is judged by it.
        revision: Grows with each version of the row: an earlier answer that came later changes what was in
            force after it.
        told: The browser in which the person said it, where that was another one; empty otherwise.
    """

    consent_id: str
    visitor_id: str
    user_id: str | None
    granted: bool
    purposes: list[str]
    in_force: list[str]
    withdrawn: bool
    at_ms: int
    revision: int = 0
    told: str = ""


class Answer(msgspec.Struct, array_like=True, frozen=True, gc=False, order=True):
    """An answer as it is kept; :func:`order_of` says in which order.

    Attributes:
        at_ms: When it was said, UTC ms.
        consent_id: The event.
        bits: The purposes that it names.
        granted: Given, or withdrawn.
        user_id: The account, if somebody was logged in.
        told: The browser in which it was said, where that was another one.
    """

    at_ms: int
    consent_id: str
    bits: int
    granted: bool
    user_id: str | None = None
    told: str = ""

    def after(self, consent: int) -> int:
        """Return what is allowed after it, as bits."""
        return consent | self.bits if self.granted else consent & ~self.bits


class Step(NamedTuple):
    """An answer with what was allowed before and after it, as bits."""

    answer: Answer
    before: int
    after: int


class Answers(msgspec.Struct, array_like=True, gc=False):
    """What a browser's answers allow: of each purpose what was said last, in whichever order answers come.

    Attributes:
        base: What is allowed before the first of ``answers``, as bits.
        settled: When what ``base`` has of each purpose was said, in the order of :data:`BITS`, UTC ms.
        answers: The last answers, in order of when they were said.
        revision: Counts the rows that were told of them.
        since: Since when what ``base`` has of each purpose is so, UTC ms; empty: since it was said last.
    """

    base: int = 0
    settled: list[int] = []
    answers: list[Answer] = []
    revision: int = 0
    since: list[int] = []

    @property
    def in_force(self) -> int:
        """What is allowed now, as bits."""
        return self.steps()[-1].after if self.answers else self.base

    def at(self, at_ms: int) -> int:
        """Return what was allowed at a moment (UTC ms) and was not withdrawn since, as bits.

        What is given again is given for what is done from then on.

        >>> answers = Answers()
        >>> for at, granted in ((10, True), (20, False), (30, True)):
        ...     _ = answers.take(Answer(at, "", STITCH, granted), 0)
        >>> [may_stitch(answers.at(at)) for at in (5, 15, 25, 35)]
        [False, False, False, True]
        """
        consent = self.base
        times = self.since or self.settled
        if times and max(times) > at_ms:
            for bit, since in zip(BITS.values(), times, strict=True):
                if since > at_ms:
                    consent &= ~bit
        for answer in self.answers:
            if answer.at_ms <= at_ms or not answer.granted:
                consent = answer.after(consent)
        return consent

    def steps(self) -> list[Step]:
        """Return what each of the last answers changed."""
        states = accumulate(self.answers, lambda consent, answer: answer.after(consent), initial=self.base)
        return [Step(a, *both) for a, both in zip(self.answers, pairwise(states), strict=True)]

    def take(self, answer: Answer, horizon_ms: int) -> list[Step]:
        """Take an answer; return what it changed, and the later ones of which it says otherwise now.

        Args:
            answer: The answer.
            horizon_ms: Answers up to here are not gone through again, UTC ms: they count, and what was told
                of those after them stays as it was.

        Example:
            >>> answers = Answers()
            >>> _ = answers.take(Answer(20, "b", BITS["marketing"], False), 0)
            >>> [step.answer.consent_id for step in answers.take(Answer(10, "a", 7, True), 0)]
            ['a', 'b']
            >>> names(answers.in_force)
            ['analytics', 'personalisation']
        """
        self.settle(horizon_ms)
        if answer.at_ms <= horizon_ms:
            before = self.base
            self._into_base(answer)
            return [Step(answer, before, self.base)]
        known = {step.answer: step for step in self.steps()}
        insort(self.answers, answer, key=order_of)
        return [step for step in self.steps() if known.get(step.answer) != step]

    def after(self, at_ms: int) -> Answers | None:
        """Return what was said after a moment (UTC ms), and nothing of before; None: nothing was.

        >>> answers = Answers()
        >>> for at, granted in ((10, True), (20, False)):
        ...     _ = answers.take(Answer(at, "", STITCH, granted), 0)
        >>> later = answers.after(10)
        >>> [(one.at_ms, one.granted) for one in later.answers], answers.after(20)
        ([(20, False)], None)
        """
        later = [answer for answer in self.answers if answer.at_ms > at_ms]
        settled = [said if said > at_ms else 0 for said in self.settled]
        if not later and not any(settled):
            return None
        since = [at if at > at_ms else said for at, said in zip(self.since, settled, strict=False)]
        base = sum(bit for bit, said in zip(BITS.values(), settled, strict=False) if said and self.base & bit)
        return Answers(base, settled, later, self.revision, since)

    def settle(self, horizon_ms: int) -> None:
        """Keep of the answers up to a moment (UTC ms) only what they sum up to."""
        gone = bisect_right(self.answers, horizon_ms, key=lambda answer: answer.at_ms)
        for answer in self.answers[:gone]:
            self._into_base(answer)
        self.answers = self.answers[gone:]

    def _into_base(self, answer: Answer) -> None:
        said = [*self.settled, *([0] * (len(BITS) - len(self.settled)))]
        since = [*self.since] or [*said]
        for place, bit in enumerate(BITS.values()):
            # Of one moment the withdrawal holds, whichever comes first.
            newer = answer.at_ms > said[place] or (answer.at_ms == said[place] and not answer.granted)
            if answer.bits & bit and (newer or not said[place]):
                said[place] = answer.at_ms
                if not (answer.granted and self.base & bit):
                    since[place] = answer.at_ms
                self.base = self.base | bit if answer.granted else self.base & ~bit
        self.settled, self.since = said, [] if since == said else since


def order_of(answer: Answer) -> tuple[int, bool, str]:
    """Return the order of answers: by when they were said, of one moment the withdrawals last.

    >>> order_of(Answer(1, "b", 4, True)) < order_of(Answer(1, "a", 4, False))
    True
    """
    return answer.at_ms, not answer.granted, answer.consent_id


def bits_of(purposes: Iterable[str]) -> int:
    """Return purposes as bits.

    >>> bits_of(["marketing", "analytics"])
    5
    """
    bits = 0
    for purpose in purposes:
        bits |= BITS[purpose]
    return bits


def purposes_of(consent: int) -> tuple[Purpose, ...]:
    """Return the purposes that bits stand for, as answers name them.

    >>> purposes_of(5)
    ('analytics', 'marketing')
    """
    return tuple(purpose for purpose in PURPOSES if consent & BITS[purpose])


def names(consent: int) -> list[str]:
    """Return the purposes that are allowed."""
    return [name for name, bit in BITS.items() if consent & bit]


def may_stitch(consent: int) -> bool:
    """Tell whether this browser may be known as somebody's, and a profile be kept."""
    return bool(consent & STITCH)


def may_offer(consent: int) -> bool:
    """Tell whether something may be offered on this browser."""
    return consent & OFFER == OFFER
