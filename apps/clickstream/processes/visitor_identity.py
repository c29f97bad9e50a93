"""Identity of a browser: its owner, its consent, its erasure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from millrace import Context
from millrace_apps.clickstream.contracts.events import (
    Click,
    Consent,
    Customer,
    Erasure,
    Forget,
    ItemChange,
    Refund,
    ShopEvent,
)
from millrace_apps.clickstream.contracts.messages import (
    SHOP,
    ConsentSaid,
    EraseCart,
    ErasePerson,
    Link,
    Looked,
    MarketingConsent,
    Unlink,
)
from millrace_apps.clickstream.contracts.rows import Erased, Identity, OwnerChange, digest_of
from millrace_apps.clickstream.processes.visitor_placed import VisitorPlaced
from millrace_apps.clickstream.state.browser_state import SETTLED, TICK, BrowserState
from millrace_apps.clickstream.state.consent import (
    STITCH,
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
from millrace_apps.clickstream.state.marks import Owned
from millrace_apps.clickstream.state.ownership import NOBODY, Ownership
from millrace_apps.clickstream.state.sessions import Session
from millrace_apps.clickstream.state.suppression import Suppressed, is_suppressed
from millrace_apps.clickstream.state.touches import Told, touches_told

#: So many accounts that a browser was lately known to be of are remembered.
_OWNERS: Final = 4
_NOTHING: Final = BrowserState()


class VisitorIdentity(VisitorPlaced):
    """Knows a browser for a person's where that is allowed, takes answers about it, and forgets."""

    def _known_person(
        self, event: Click, known: BrowserState, campaign: str | None, ctx: Context
    ) -> str | None:
        """Take down who is there; return whose the click is, ``None``: nobody's who is known."""
        at, user = ctx.event_time, event.user_id
        logout = event.event_type == "logout" and self._rules.shared == "split"
        # A logout counts where nobody is known, too: the login before it may come after it.
        seen = bool(user or logout) and may_stitch(known.allowed(at))
        touched = campaign is not None
        before = self._touches(known, ctx) if touched or seen else {}
        if campaign is not None:
            known.touch(campaign, at, ctx.watermark)
        news = touched
        if seen and user:
            news |= (touched := self._seen(at, user, event.event_id, known, ctx) or touched)
        if seen and logout:
            news |= self._seen(at + 1, NOBODY, event.event_id, known, ctx)
        owner = (user if seen else None) or self._there(at, known)
        if news:
            self._link_again(before, owner if touched else None, known, ctx)
        return owner

    def _touches(self, known: BrowserState, ctx: Context) -> dict[str, list[Told]]:
        return touches_told(known, self._rules.shared, ctx.watermark)

    def _link_again(
        self, before: dict[str, list[Told]], owner: str | None, known: BrowserState, ctx: Context
    ) -> None:
        """Tell the accounts by what they came here where that is other than it was, and one in any case."""
        after = self._touches(known, ctx)
        for user in sorted({*before, *after, *((owner,) if owner else ())}):
            told = after.get(user, [])
            if user == owner or told != before.get(user, []):
                self._link(user, told, known, ctx)

    def _link(self, owner: str, told: list[Told], known: BrowserState, ctx: Context) -> None:
        """Tell an account that the browser is its, and by what it came there."""
        known.touch_revision += 1
        touches = [(at, by) for at, by, _, _ in told]
        spans = [(0 if since == at else since, until) for at, _, since, until in told]
        there = known.ownership
        past = self._rules.shared == "last" and there is not None and there.latest != owner
        link = Link(
            f"u:{owner}", ctx.event_time, ctx.key, touches=touches, revision=known.touch_revision,
            spans=spans if any(map(any, spans)) else [], past=past,
        )  # fmt: skip
        ctx.emit(link)

    def _there(self, at_ms: int, known: BrowserState) -> str | None:
        """Return whose what is done at a moment (UTC ms) is where it names nobody, as far as is known."""
        there = known.ownership
        if there is None:
            return known.user_id
        return (there.latest if self._rules.shared == "last" else there.owner(at_ms)) or None

    def _owner_of(self, session: Session, known: BrowserState) -> str | None:
        """Return whose a session is: of several accounts in it, the last one's; nobody's without consent."""
        if not may_stitch(known.allowed(session.end_ms)):
            return None
        there = known.ownership
        if there is None:
            return known.user_id
        if self._rules.shared == "last":
            return there.latest or None
        return there.owner_within(session.start_ms, session.end_ms) or None

    def _seen(self, at_ms: int, user: str, cause: str, known: BrowserState, ctx: Context) -> bool:
        """Take down that somebody, or nobody any more, is there; tell what is another's by that."""
        if known.ownership is None:
            name = known.user_id or NOBODY
            known.ownership = Ownership(name, latest=name)
        there, before, was = known.ownership, known.ownership.runs(), known.user_id
        if not there.see(at_ms, user, ctx.watermark):
            return False
        known.user_id = (there.latest if self._rules.shared == "last" else there.now) or None
        self._owner_changes(before, there.runs(), cause, known, ctx)
        if known.user_id != was:
            if known.user_id is not None:
                self._identity(known, known.user_id, ctx)
            elif was is not None:
                self._identity(known, was, ctx, deleted=True)
            if was is not None:
                known.owners = [*(name for name in known.owners if name != was), was][-_OWNERS:]
        if user and at_ms > ctx.watermark:
            ctx.timers.bring_forward(at_ms, SETTLED)
        elif user and (self._rules.shared == "split" or there.latest == user):
            self._comes((at_ms, user), known, ctx)  # what is late is taken as it comes
        self._own_again(known, ctx)
        return True

    def _own_again(self, known: BrowserState, ctx: Context) -> None:
        """Write the sessions again that are another's now."""
        for session in self._all_sessions(known):
            # What was before a withdrawal stays whose it was; what nobody had allowed stays nobody's.
            if not may_stitch(known.allowed(session.end_ms)):
                continue
            owner = self._owner_of(session, known)
            if owner == session.user_id or session.bot:
                continue
            session.user_id = owner
            self._owned_again(session, known, ctx)
        there = {(session.start_ms, session.client): session for session in known.book.sessions}
        unsettled = known.unsettled(ctx.watermark)
        # Those that the book has leave it before it is settled whose they are.
        now = [(s, there.get((s.start_ms, s.client))) for s in known.past]
        known.past = [
            session
            for session in (s if other is None else msgspec.structs.replace(other) for s, other in now)
            if session.user_id is None or unsettled
        ]

    @staticmethod
    def _all_sessions(known: BrowserState) -> list[Session]:
        """Return the sessions that may be told anew whose they are."""
        there = {(session.start_ms, session.client) for session in known.book.sessions}
        return [*(s for s in known.past if (s.start_ms, s.client) not in there), *known.book.sessions]

    def _owned_again(self, session: Session, known: BrowserState, ctx: Context) -> None:
        """Write a session that is another's now."""
        if session.written:
            self._write(session, known, ctx)
        if session.number:  # it is over, and stands among the funnels, by whose arm is another's now
            self._funnel_rows(session, session.start_ms, known, ctx)

    def _owner_changes(
        self, before: dict[int, str], after: dict[int, str], cause: str, known: BrowserState, ctx: Context
    ) -> None:
        """Tell since when whose the browser is, where that is not what was told."""
        for from_ms in sorted({*before, *after}):
            if before.get(from_ms) == after.get(from_ms):
                continue
            user = after.get(from_ms, before.get(from_ms)) or None
            self._owner_change(
                from_ms, user, "seen" if user else "logout", cause, known, ctx, deleted=from_ms not in after
            )

    def _owner_change(
        self,
        from_ms: int,
        user: str | None,
        why: str,
        cause: str,
        known: BrowserState,
        ctx: Context,
        *,
        deleted: bool = False,
    ) -> None:
        known.book.revision += 1
        row = OwnerChange(ctx.key, from_ms, user, why, cause, known.book.revision, deleted)
        ctx.output(self.owner_changes, row, revision=known.book.revision)

    def _identity(self, known: BrowserState, user: str, ctx: Context, *, deleted: bool = False) -> None:
        known.book.revision += 1
        row = Identity(ctx.key, user, ctx.event_time, known.book.revision, deleted)
        ctx.output(self.identities, row, revision=known.book.revision)

    def _consent(self, event: Consent, known: BrowserState, ctx: Context) -> None:
        """Take an answer; it is judged by when it was said, not by when it came."""
        identity, bits = event.consent_id, bits_of(event.purposes)
        if not event.granted and may_stitch(known.allowed(ctx.event_time)) and bits & STITCH:
            # Who did what was done before is not known any more afterwards.
            self._place(ctx.event_time, known, ctx)
        before = known.consent
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

    def _may_offer(self, first: Answer, answers: Answers, known: BrowserState, ctx: Context) -> None:
        """Tell whose the browser is or was since when something may be offered there, or may not."""
        owners = (f"u:{user}" for user in known.owners)
        persons = dict.fromkeys((f"v:{ctx.key}", self.person(known.user_id, ctx.key), *owners))
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
            consent_id=answer.consent_id,
            visitor_id=ctx.key,
            user_id=answer.user_id,
            granted=answer.granted,
            purposes=names(answer.bits),
            in_force=names(step.after),
            withdrawn=bool(step.before & ~step.after),
            at_ms=answer.at_ms,
            revision=revision,
            told=answer.told,
        )
        ctx.output(self.consents, row, revision=revision if again else 0)

    def _unlink(self, cause: str, known: BrowserState, ctx: Context) -> None:
        """From now on the browser is nobody's, and what was kept of its person on its account goes."""
        ctx.emit(ErasePerson(f"v:{ctx.key}", ctx.event_time, cause, withdrawn=True))
        self._forget_visit(cause, ctx)
        marked = self._marks.owned(known, str(ctx.key)) if self._marks else {}
        last = {known.user_id} if known.user_id is not None else set()
        lately = set(known.ownership.runs().values()) - {NOBODY} if known.ownership is not None else set()
        for user in sorted({*last, *lately}):
            ctx.emit(Unlink(f"u:{user}", ctx.event_time, ctx.key))
        # By what somebody was brought there is told to nobody who comes later.
        known.touches = [
            one
            for one in known.all_touches()
            if one[0] > ctx.event_time or not (one[2] or self._there(one[0], known))
        ]
        if known.user_id is not None:
            self._identity(known, known.user_id, ctx, deleted=True)
            self._owner_change(ctx.event_time, None, "withdrawn", cause, known, ctx)
            known.owners = [*(user for user in known.owners if user != known.user_id), known.user_id][
                -_OWNERS:
            ]
            known.user_id = None
        known.ownership, known.part, known.carts = None, None, []
        known.placed = (known.placed[0], NOBODY)
        self._part_sessions(ctx.event_time, known, ctx)
        if self._marks:
            self._unmark(marked, known, ctx)

    def _part_sessions(self, from_ms: int, known: BrowserState, ctx: Context) -> None:
        """Let sessions that go on after a withdrawal (UTC ms) be nobody's, though that is read after them."""
        for session in self._all_sessions(known):
            if session.user_id is not None and session.end_ms >= from_ms and not session.bot:
                session.user_id = None
                self._owned_again(session, known, ctx)

    def _unmark(
        self, before: Owned, known: BrowserState, ctx: Context, *, forgets: Collection[str] = ()
    ) -> None:
        """Take away from persons what they did here, but for what they did long before.

        Args:
            before: What each was told.
            known: What is known of the browser.
            ctx: The context.
            forgets: Persons who are to forget the browser's name.
        """
        at = ctx.event_time
        known.marks = [one for one in known.marks if one[0] > at and may_stitch(known.allowed(one[0]))]
        known.marks_from = max(known.marks_from, at)
        self._tell_marks(before, known, ctx, since_ms=at - self._marks.within_ms, forgets=forgets)

    def _suppressed(self, event: ShopEvent, ctx: Context) -> bool:
        """Tell whether an event is of before its browser or account was forgotten; it is dropped then."""
        erased = self.erased.value
        if erased is None or isinstance(event, Forget | Erasure | Refund | ItemChange):
            return False
        if isinstance(event, Customer):  # its key is an account; a browser may have that name
            erased = Suppressed(erased.account_ms, erased.request_id)
        if not is_suppressed(erased, ctx.event_time):
            return False
        if isinstance(event, Click):
            self._order(event, ctx)  # an order names nobody, and counts
        digest = digest_of(str(ctx.key), "account" if isinstance(event, Customer) else "browser")
        ctx.output(self.erasures, Erased(erased.request_id, digest, False, erased.at_ms, True))
        return True

    def _forget_account(self, user: str, cause: str, ctx: Context) -> None:
        """Forget an account, which is nothing to a browser of its name."""
        self.erased.value = Suppressed(-1, cause, ctx.event_time).after(self.erased.value)
        ctx.emit(ErasePerson(f"u:{user}", ctx.event_time, cause))

    def _forget(self, event: Forget, known: BrowserState | None, ctx: Context) -> None:
        """Forget what has a name: the key is one for a browser, an account and a cart that share it."""
        subject, cause, kind = str(ctx.key), event.request_id, event.kind
        # Repeats of an account's or an item's events are known under the key, too.
        had_state = known is not None and msgspec.structs.replace(known, seen={}) != _NOTHING
        had_state &= kind in (None, "browser")
        ctx.output(self.erasures, Erased(cause, digest_of(subject, kind), had_state, ctx.event_time))
        if kind == "account":
            self._forget_account(subject, cause, ctx)
        elif kind == "cart":
            ctx.output(self.carts, EraseCart(subject, ctx.event_time, cause))
        else:
            self._forget_browser(event, known, ctx)

    def _forget_browser(self, event: Forget, known: BrowserState | None, ctx: Context) -> None:
        subject, cause = str(ctx.key), event.request_id
        # What was said after the request stays said, though it was read before.
        said = None if known is None or known.answers is None else known.answers.after(ctx.event_time)
        told = 0 if known is None else known.consent & WITHDRAWN
        if known is not None:
            self._place(ctx.event_time, known, ctx)
        if known is not None and known.user_id is not None:
            self._identity(known, known.user_id, ctx, deleted=True)
        for user in sorted(self._users_of(known)):
            ctx.emit(Unlink(f"u:{user}", ctx.event_time, subject, forgotten=True))
        if known is not None and self._marks:
            marked, known.marks = self._marks.owned(known, subject), []
            users = {f"u:{user}" for user in self._users_of(known)}
            self._unmark(marked, known, ctx, forgets={*marked, *users})
        if known is not None:
            # What is of later, and was read before, is nobody's, and nothing of before goes on to anybody.
            known.consent, known.answers, known.user_id = 0, None, None
            known.ownership, known.part, known.carts = None, None, []
            self._place(None, known, ctx)
        self.known.clear()
        if said is not None:
            self.known.value = BrowserState(consent=said.in_force | told, answers=said)
        self.erased.value = Suppressed(ctx.event_time, cause).after(self.erased.value)
        ctx.timers.delete(TICK)
        ctx.timers.delete(SETTLED)
        # Of a request of an earlier version the first letters say what it is of; a browser may have any name.
        led = subject[:2] if event.kind is None else ""
        if led == "c:":
            ctx.output(self.carts, EraseCart(subject[2:], ctx.event_time, cause))
        elif led == "p:":
            ctx.emit(ErasePerson(subject[2:], ctx.event_time, cause))
        if known is not None or led not in ("c:", "p:"):
            ctx.emit(ErasePerson(f"v:{subject}", ctx.event_time, cause))
            self._forget_visit(cause, ctx)

    @staticmethod
    def _users_of(known: BrowserState | None) -> set[str]:
        """Return the accounts that a browser is, or was lately, known to be of."""
        if known is None:
            return set()
        there = set() if known.ownership is None else {known.ownership.base, *known.ownership.runs().values()}
        named = {name for _, _, name in known.touches}
        return {*there, *known.owners, *named, known.user_id or NOBODY} - {NOBODY}

    def _forget_visit(self, cause: str, ctx: Context) -> None:
        if self._rules.recommends:
            visitor = str(ctx.key)
            ctx.output(self.looks, Looked(SHOP, ctx.event_time, cause, visitor, "", forget=True))
