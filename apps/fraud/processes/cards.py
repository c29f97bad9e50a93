"""The card's stage: duplicates out, the card's own features, and the decision if no stage follows."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from millrace import (
    Context,
    KeyedProcess,
    Timer,
    arrival,
    broadcast_state,
    days,
    side_output,
    value_state,
)
from millrace.parts.contents import digest_of
from millrace.parts.lookback import Look
from millrace_apps.fraud.contracts.events import (
    Authorisation,
    CardErasure,
    Correction,
    Decision,
    Erased,
    Label,
    LateTransaction,
    SetRate,
    Transaction,
)
from millrace_apps.fraud.operations.governance import UnknownThreshold
from millrace_apps.fraud.processes.authorised import CardSteps, Step
from millrace_apps.fraud.processes.billing import billed, cents_of, in_currency
from millrace_apps.fraud.processes.control_group import ControlGroup
from millrace_apps.fraud.processes.currencies import Rate, put_rate
from millrace_apps.fraud.processes.fates import Fates, change_of, counts_at
from millrace_apps.fraud.processes.features import observe
from millrace_apps.fraud.processes.geo import Place
from millrace_apps.fraud.processes.rulebook import NO_WINDOWS, Windows, rules_view
from millrace_apps.fraud.processes.scorer import Observed, new_observed
from millrace_apps.fraud.processes.scoring import action_for, assess, thresholds_with
from millrace_apps.fraud.processes.stages import (
    Enriched,
    Forgotten,
    Labelled,
    Passed,
    Responded,
    Stage,
)
from millrace_apps.fraud.processes.window_functions import without_amounts
from millrace_apps.fraud.processes.windows import CardWindows
from millrace_apps.fraud.state.card import DAY_MS, Account, Recent
from millrace_apps.fraud.state.card_history import NOBODY, CardLook, card_features, counted, links_of, moved
from millrace_apps.fraud.state.history import HORIZON_MS, MAX_KEPT_OF_CARD, History
from millrace_apps.fraud.state.known_labels import CardWords, Word
from millrace_apps.fraud.state.profile import HALF_LIFE_DAYS, Change, Profile, begun, restated

__all__ = ["CardMonitor", "CardStage", "UnknownThreshold"]

_EXPIRE = "expire"

_Input = Transaction | Label | Authorisation | CardErasure


class _Cards(Stage):
    """What is kept of a card, and what is known at each of its transactions.

    A transaction that was decided on in the last 24 hours is a duplicate: it goes to the dead letters
    and changes nothing. One behind the watermark goes to ``late``: its moment to be decided on has
    passed, and it changes no feature; ``corrections`` says what it would have been.

    A label has the time of its transaction, so it never moves the clock; it is in force from the time on at
    which it became known (see :mod:`millrace_apps.fraud.state.known_labels`). So has an authorisation.
    """

    # A decision cannot wait for the watermark. The topic's key is the card, so a partition brings a
    # card's transactions in the order of their happening; what little disorder a producer adds is
    # seen by nobody else than the transactions that it concerns (see DISCUSSION.md).
    order = arrival(in_order_per_key=True)
    # Of one millisecond the transaction goes first: a label speaks of it.
    inputs: ClassVar[Mapping[str, Any]] = {
        "transactions": Transaction,
        "labels": Label,
        "authorisations": Authorisation,
        "erasures": CardErasure,
    }

    profile = value_state(Profile, ttl=days(90))
    # As earlier versions kept it: a profile begins with it.
    account = value_state(Account, ttl=days(90))
    recent = value_state(Recent)
    # Lives as long as the profile: what becomes known of a payment finds its amount here.
    history = value_state(History, ttl=days(90))
    place = value_state(Place, ttl=days(90))
    # What is said of a transaction, as late as half a year after it.
    labelled = value_state(CardWords, ttl=days(240))
    authorised = value_state(CardSteps, ttl=days(240))
    rates = broadcast_state(str, list[Rate])
    corrections = side_output(Correction)
    late_transactions = side_output(LateTransaction)
    labels = side_output(Label)
    authorisations = side_output(Authorisation)
    erased = side_output(Erased)

    _half_life: int

    def _set_rate(self, control: SetRate) -> None:
        known = self.rates.get(control.currency) or []
        self.rates.put(control.currency, put_rate(known, Rate(control.from_ms, control.rate)))

    def _billed(self, event: Transaction) -> Transaction:
        """Return a transaction with its amount in the app's currency, as far as it is known."""
        if event.currency == self.currency and event.billing_currency is None:
            return event
        return in_currency(event, self.currency, self.rates.view(dict))

    def process(self, event: _Input, ctx: Context) -> None:
        """Find out what is known of the card at one transaction, or learn what became of one."""
        if type(event) is Transaction:
            self._observe(event, ctx)
        elif type(event) is Label:
            self._learn(event, ctx)
        elif type(event) is Authorisation:
            self._settle(event, ctx)
        elif type(event) is CardErasure:
            self._erase(event, ctx)

    def _erase(self, event: CardErasure, ctx: Context) -> None:
        """Forget the card, and say so."""
        self.forget_key()
        ctx.timers.delete(_EXPIRE)  # with it the card's key would be kept
        ctx.output(self.erased, Erased(event.erasure_id, event.event_time_ms), on_time=False)
        self.forward_erasure(event, ctx)

    def forward_erasure(self, event: CardErasure, ctx: Context) -> None:
        """Hand on that a card is to be forgotten, where a later stage keeps something of it."""

    def _learn(self, label: Label, ctx: Context) -> None:
        """Take a label, once; it changes no decision that was issued."""
        words = self.labelled.value or CardWords()
        with_it = self._before(label, ctx, words=words)
        taken = words.take(Word.of(label), ctx.watermark)
        if _refused(taken, f"label {label.label_id}", ctx):
            return
        self.labelled.value = words
        ctx.output(self.labels, label, on_time=False)
        with_it()
        if taken != "superseded":
            self.forward_label(label, ctx, newest=taken == "newest")

    def _settle(self, event: Authorisation, ctx: Context) -> None:
        """Take an authorisation, once; it changes no decision that was issued."""
        steps = self.authorised.value or CardSteps()
        with_it = self._before(event, ctx, steps=steps)
        taken = steps.take(Step.of(event), ctx.watermark)
        if _refused(taken, f"authorisation {event.authorisation_id}", ctx):
            return
        self.authorised.value = steps
        ctx.output(self.authorisations, event, on_time=False)
        with_it()
        if taken == "new" and event.status in ("declined", "captured"):
            self.forward_response(event, ctx)

    def _before(
        self,
        event: Label | Authorisation,
        ctx: Context,
        *,
        words: CardWords | None = None,
        steps: CardSteps | None = None,
    ) -> Callable[[], None]:
        """Return what has the profile know an event, to be called when it has been taken."""
        change, profile = change_of(event), self._profile(ctx)
        fates = Fates(self.history.value, steps or self.authorised.value, words or self.labelled.value)
        before = fates.paid(change, ctx.watermark)

        def know() -> None:
            if not counts_at(change, ctx.watermark):
                return
            if change.known > ctx.watermark:
                profile.wait(change)
            elif fates.cents(change) is None:
                return
            else:
                fates.know(profile, change, ctx.watermark, before)
            self.profile.value = profile

        return know

    def _profile(self, ctx: Context) -> Profile:
        """Return the card's profile with what the watermark has passed; a new one where there is none."""
        profile = self.profile.value
        if profile is None or profile.half_life != self._half_life:
            profile = self._begun(profile, max(ctx.event_time, ctx.watermark))
        waiting = profile.waiting
        if waiting and waiting[0].known <= ctx.watermark:
            passed = bisect_right(waiting, ctx.watermark, key=_known_ms)
            self._fates().apply(profile, waiting[:passed])
            profile.waiting = waiting[passed:]
            self.profile.value = profile
        if profile.excluded:
            profile.forget(ctx.watermark - HORIZON_MS)
        return profile

    def _begun(self, profile: Profile | None, now: int) -> Profile:
        """Return a new profile, or the one there is by the half-life of now."""
        if profile is not None:
            return restated(profile, self._half_life, now)
        before = self.account.value
        profile = begun(self._half_life, now, before)
        if before is not None:
            self.account.clear()
            self.profile.value = profile
        return profile

    def _fates(self) -> Fates:
        return Fates(self.history.value, self.authorised.value, self.labelled.value)

    def forward_label(self, label: Label, ctx: Context, *, newest: bool) -> None:
        """Hand a label on that changes what is known, to whom it concerns."""

    def forward_response(self, response: Authorisation, ctx: Context) -> None:
        """Hand on the response to a payment, to whom it concerns."""

    def _observe(self, event: Transaction, ctx: Context) -> None:
        recent = self._recent(event, ctx)
        if recent is None:
            return
        event = self._billed(event)
        profile, known = self._profile(ctx), None
        if profile.waiting and profile.waiting[0].known <= ctx.event_time:
            known = profile.copied()
            known.arrive(ctx.event_time)
            passed = bisect_right(known.waiting, ctx.event_time, key=_known_ms)
            self._fates().apply(known, known.waiting[:passed])
        purchase = event.kind == "purchase"
        cents = cents_of(event)
        large = self.overrides.view(thresholds_with).large_ratio
        own = observe(
            profile, recent, ctx.event_time, cents, purchase=purchase, known=known, large_times=large
        )
        self.profile.value = profile  # its 90 days begin anew
        bought = cents if purchase else 0
        history, place = self.history.value, self.place.value
        look = CardLook(history, ctx.event_time, self.authorised)
        links = links_of(event) if purchase else NOBODY
        card = card_features(look, event, bought, place, links)
        asked = self.rules.view(rules_view).asked.get("card")
        windows: Windows = CardWindows({}, asked, look, event, bought) if asked else NO_WINDOWS
        if asked and purchase and not cents:
            windows = Windows({}, without_amounts(asked), look, event, 1)
        if purchase:
            history = self.history.value = counted(history, event, cents, links)
            if event.latitude is not None:
                limit = self.overrides.view(thresholds_with).travel_kmh
                now_at = moved(event, place, card, limit)
                if now_at is not None:
                    self.place.value = now_at
        elif history is not None:
            self.history.value = history
        words = self.labelled.value
        said = None if words is None else words.risk(ctx.event_time)
        self.forward(
            new_observed((event, own, card, None, None, None, None, windows, said, None, None, None)), ctx
        )
        if purchase and history is not None:
            # At last: rules look at what it removes.
            history.forget(ctx.watermark, MAX_KEPT_OF_CARD)

    def forward(self, seen: Observed, ctx: Context) -> None:
        """Decide, or hand on to the next stage."""
        raise NotImplementedError

    def on_late(self, event: _Input, ctx: Context) -> None:
        """Learn what became of a transaction that is long past; put a late transaction aside."""
        if type(event) is Label:
            self._learn(event, ctx)
        elif type(event) is Authorisation:
            self._settle(event, ctx)
        elif type(event) is Transaction:
            self._correct(event, ctx)
        elif type(event) is CardErasure:
            self._erase(event, ctx)

    def _correct(self, event: Transaction, ctx: Context) -> None:
        """Put a late transaction aside, once, with what it would have been."""
        recent = self._recent(event, ctx)
        if recent is None:
            return
        lateness = ctx.watermark - ctx.event_time
        ctx.output(self.late_transactions, LateTransaction(event, lateness, ctx.watermark))
        event = self._billed(event)
        thresholds = self.overrides.view(thresholds_with)
        # On copies: an issued decision must not change, nor the features of those to come.
        profile = copy.deepcopy(self._profile(ctx))
        purchase = event.kind == "purchase"
        own = observe(
            profile,
            copy.deepcopy(recent),
            ctx.event_time,
            cents_of(event),
            purchase=purchase,
            large_times=thresholds.large_ratio,
        )
        score, reasons = assess(own, billed(event) or 0.0, thresholds, purchase=purchase)
        look = Look(self.history.value, ctx.event_time)
        last = bisect_right(look.times, ctx.event_time + DAY_MS)
        ctx.output(
            self.corrections,
            Correction(
                transaction_id=event.transaction_id,
                card_id=event.card_id,
                event_time_ms=event.event_time_ms,
                lateness_ms=ctx.watermark - ctx.event_time,
                amount=event.amount,
                kind=event.kind,
                would_be=action_for(score, thresholds),
                score=score,
                reasons=reasons,
                decided_after=last - look.end,
                until_ms=look.times[last - 1] if last > look.end else event.event_time_ms,
            ),
        )

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Forget the last 24 hours of a card once they are over."""
        recent = self.recent.value
        if recent is not None and recent.until > timer.at:
            recent.prune(ctx.watermark)
            ctx.timers.at(recent.until, _EXPIRE)
        else:
            self.recent.clear()

    def last_due(self, latest: int) -> int:
        """Return when (ms) the last 24 hours of a card are over."""
        recent = self.recent.value
        return latest if recent is None else max(latest, recent.until)

    def _recent(self, event: Transaction, ctx: Context) -> Recent | None:
        """Return the card's last 24 hours, this transaction remembered; ``None`` for a duplicate."""
        # A late event is remembered from when it came: its own 24 hours may be over already.
        now = ctx.event_time if ctx.event_time > ctx.watermark else ctx.watermark
        recent = self.recent.value
        if recent is None:
            recent = self.recent.value = Recent()
            # Only when it fires is it seen whether there has been more: cheaper than moving it each time.
            ctx.timers.at(now + DAY_MS, _EXPIRE)
        else:
            recent.prune(ctx.watermark)
        told = recent.remember(event.transaction_id, now, digest_of(event))
        if told == "new":
            return recent
        what = f"transaction {event.transaction_id} of this card has come before"
        if told == "same":
            ctx.dead_letter("duplicate", what)
        else:
            ctx.dead_letter("conflict", f"{what}, and said something else")
        return None


def _known_ms(change: Change) -> int:
    return change.known


def _refused(taken: str, what: str, ctx: Context) -> bool:
    """Put a repeat aside; return whether it is one."""
    if taken not in ("repeat", "conflict"):
        return False
    said = f"{what} of this card has come before"
    if taken == "repeat":
        ctx.dead_letter("duplicate", said)
    else:
        ctx.dead_letter("conflict", f"{said}, and said something else")
    return True


class CardMonitor(_Cards, KeyedProcess[Transaction, Decision]):
    """Decides on every transaction of a card by the card's own history: the only stage, or none follows.

    Args:
        control_group: Who is let through though it would be blocked.
        half_life: Half-life of what is usual for a card, days.
    """

    def __init__(self, *, control_group: ControlGroup | None = None, half_life: int = HALF_LIFE_DAYS) -> None:
        super().__init__(control_group=control_group)
        self._half_life = half_life

    forward = Stage.decide_now


class CardStage(_Cards, KeyedProcess[Transaction, Passed]):
    """The first of several stages: what is known of the card goes on with the transaction.

    Args:
        tells: Whether a later stage wants labels.
        responds: Whether a later stage wants the responses to payments.
        half_life: Half-life of what is usual for a card, days.
    """

    name = "CardMonitor"
    object_reuse = True

    def __init__(
        self, *, tells: bool = False, responds: bool = False, half_life: int = HALF_LIFE_DAYS
    ) -> None:
        super().__init__()
        self._half_life = half_life
        self._tells, self._responds = tells, responds

    def forward_erasure(self, event: CardErasure, ctx: Context) -> None:
        """Hand on to the decision stage, through all others, that a card is to be forgotten."""
        none = f"-{event.card_id}"
        ctx.emit(Forgotten(event.card_id, none, none, none, none, none, none), on_time=False)

    def forward_label(self, label: Label, ctx: Context, *, newest: bool) -> None:
        """Hand a label on to the next stage."""
        if self._tells:
            card, none = label.card_id, f"-{label.card_id}"
            told = Labelled(card, none, label.terminal_id, none, none, label, newest, none, none)
            ctx.emit(told, on_time=False)

    def forward_response(self, response: Authorisation, ctx: Context) -> None:
        """Hand a response on to the terminal, if it names one."""
        if self._responds and response.terminal_id is not None:
            card, none = response.card_id, f"-{response.card_id}"
            told = Responded(card, none, response.terminal_id, none, none, response, none, none)
            ctx.emit(told, on_time=False)

    def forward(self, seen: Observed, ctx: Context) -> None:
        """Hand on to the next stage."""
        tx = seen.tx
        values = ((text, seen.windows[text]) for text in self.rules_now().asked.get("card") or ())
        windows = tuple((text, float(value)) for text, value in values if value is not None)
        none = f"-{tx.card_id}"
        said = self.labelled.value
        ctx.emit(
            Enriched(
                tx.card_id,
                tx.account_id or none,
                tx.terminal_id,
                tx.device_id or none,
                tx.ip or none,
                tx,
                seen.own,
                seen.card,
                windows,
                card_labels=seen.card_labels,
                is_fraud=None if said is None else said.verdict(tx.transaction_id),
                customer_key=tx.customer_id or none,
                merchant_key=tx.merchant_id or none,
            )
        )
