"""Whose a browser is, what is allowed there, and that it is forgotten."""

from __future__ import annotations

from typing import Final

from apps.clickstream.consent import (
    WITHDRAWN,
    Answer,
    Answers,
    ConsentChange,
    Step,
    bits_of,
    may_offer,
    may_stitch,
    names,
    order_of,
)
from apps.clickstream.events import Click, Consent, Erasure, Forget, Refund, ShopEvent
from apps.clickstream.known import TICK, Known
from apps.clickstream.messages import (
    SHOP,
    ConsentSaid,
    EraseCart,
    ErasePerson,
    Link,
    Looked,
    MarketingConsent,
    Unlink,
)
from apps.clickstream.rows import Erased, Identity, digest_of
from apps.clickstream.suppression import Suppressed, is_suppressed
from apps.clickstream.visitor_sessions import VisitorSessions
from millrace import Context

#: So many accounts that a browser was lately known to be of are remembered.
_OWNERS: Final = 4


class VisitorIdentity(VisitorSessions):
    """Knows a browser for a person's where that is allowed, takes answers about it, and forgets."""

    def _known_person(self, event: Click, known: Known, campaign: str | None, ctx: Context) -> None:
        at = ctx.event_time
        touched = campaign is not None and known.touch(campaign, at)
        user = event.user_id
        if user and user != known.user_id and may_stitch(known.allowed(at)):
            known.user_id = user
            touched = True
            self._identity(known, user, ctx)
            there = {(session.start_ms, session.client) for session in known.book.sessions}
            for past in (
                *(s for s in known.past if (s.start_ms, s.client) not in there),
                *known.book.sessions,
            ):
                past.user_id = user
                if past.written:
                    self._write(past, known, ctx)
                if past.number:  # it is over, and stands among the funnels, by whose arm is another's now
                    self._funnel_rows(past, past.start_ms, known, ctx)
            known.past = []
        if touched and known.user_id is not None:
            ctx.emit(
                Link(
                    f"u:{known.user_id}", at, ctx.key, known.first_ms, known.first, known.last_ms, known.last
                )
            )

    def _identity(self, known: Known, user: str, ctx: Context, *, deleted: bool = False) -> None:
        known.book.revision += 1
        row = Identity(ctx.key, user, ctx.event_time, known.book.revision, deleted)
        ctx.output(self.identities, row, revision=known.book.revision)

    def _consent(self, event: Consent, known: Known, ctx: Context) -> None:
        """Take an answer; it is judged by when it was said, not by when it came."""
        before, identity = known.consent, event.consent_id
        bits = bits_of(event.purposes)
        if event.user_id and not event.told:
            person = f"u:{event.user_id}"
            ctx.emit(ConsentSaid(person, ctx.event_time, identity, ctx.key, bits, event.granted))
        answers = known.answers or Answers(before & ~WITHDRAWN)
        said = Answer(ctx.event_time, identity, bits, event.granted, event.user_id or None, event.told)
        steps = answers.take(said, ctx.watermark - self._rules.repeats_ms)
        for step in steps:
            answers.revision += 1
            self._answered(step, answers.revision, ctx, again=step.answer is not said)
        known.answers = answers
        known.consent = after = answers.in_force | before & WITHDRAWN
        lost = any(may_offer(step.before) and not may_offer(step.after) for step in steps)
        # An answer that comes after newer ones may change what was allowed between them.
        if lost or len(steps) > 1 or (may_offer(before) and not may_offer(after)):
            known.consent = after = after | WITHDRAWN
        # Whoever is given leave for the first time has nothing that must be lifted.
        if after & WITHDRAWN:
            self._may_offer(steps[0].answer, answers, known, ctx)
        own = next(step for step in steps if step.answer is said)
        # Also where it has been given again since.
        if may_stitch(own.before) and not may_stitch(own.after):
            self._unlink(identity, known, ctx)
        self.known.value = known

    def _may_offer(self, first: Answer, answers: Answers, known: Known, ctx: Context) -> None:
        """Tell whose the browser is or was since when something may be offered there, or may not."""
        owners = (f"u:{user}" for user in known.owners)
        persons = dict.fromkeys((f"v:{ctx.key}", self.person(known, ctx.key), *owners))
        for number, step in enumerate(answers.steps() or [Step(first, 0, answers.base)]):
            if order_of(step.answer) >= order_of(first):
                at, granted = step.answer.at_ms, may_offer(step.after)
                for person in persons:
                    told = MarketingConsent(person, at, ctx.key, granted, answers.revision + number)
                    ctx.emit(told)
        answers.revision += len(answers.answers)

    def _answered(self, step: Step, revision: int, ctx: Context, *, again: bool) -> None:
        answer = step.answer
        row = ConsentChange(
            answer.consent_id, ctx.key, answer.user_id, answer.granted, names(answer.bits),
            names(step.after), bool(step.before & ~step.after), answer.at_ms, revision, answer.told,
        )  # fmt: skip
        ctx.output(self.consents, row, revision=revision if again else 0)

    def _unlink(self, cause: str, known: Known, ctx: Context) -> None:
        """From now on the browser is nobody's, and what was kept of its person on its account goes."""
        ctx.emit(ErasePerson(f"v:{ctx.key}", ctx.event_time, cause, withdrawn=True))
        self._forget_visit(cause, ctx)
        if known.user_id is not None:
            ctx.emit(Unlink(f"u:{known.user_id}", ctx.event_time, ctx.key))
            self._identity(known, known.user_id, ctx, deleted=True)
            known.owners = [*(user for user in known.owners if user != known.user_id), known.user_id][
                -_OWNERS:
            ]
            known.user_id = None

    def _suppressed(self, event: ShopEvent, ctx: Context) -> bool:
        """Tell whether an event is of before its browser or account was forgotten; it is dropped then."""
        erased = self.erased.value
        if erased is None or isinstance(event, Forget | Erasure | Refund):
            return False
        if not is_suppressed(erased, ctx.event_time):
            return False
        ctx.output(
            self.erasures, Erased(erased.request_id, digest_of(str(ctx.key)), False, erased.at_ms, True)
        )
        return True

    def _forget(self, event: Forget, known: Known | None, ctx: Context) -> None:
        subject, cause = ctx.key, event.request_id
        erased = Erased(cause, digest_of(subject), known is not None, ctx.event_time)
        ctx.output(self.erasures, erased)
        if known is not None and known.user_id is not None:
            self._identity(known, known.user_id, ctx, deleted=True)
        self.known.clear()
        self.erased.value = Suppressed(ctx.event_time, cause).after(self.erased.value)
        ctx.timers.delete(TICK)
        if subject.startswith("c:"):
            ctx.output(self.carts, EraseCart(subject[2:], ctx.event_time, cause))
        else:
            person = subject[2:] if subject.startswith("p:") else f"v:{subject}"
            ctx.emit(ErasePerson(person, ctx.event_time, cause))
            self._forget_visit(cause, ctx)

    def _forget_visit(self, cause: str, ctx: Context) -> None:
        if self._rules.recommends:
            visitor = str(ctx.key)
            ctx.output(self.looks, Looked(SHOP, ctx.event_time, cause, visitor, "", forget=True))
