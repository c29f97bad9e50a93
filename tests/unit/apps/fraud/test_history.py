"""What the fraud app keeps unpacked while a batch runs says the same as what is packed."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.parts.lookback import Look
from millrace.rules import Use
from millrace_apps.fraud.contracts.events import Decision, Transaction
from millrace_apps.fraud.processes.decision import _OWN_FIRST, _TOLD_FIRST, _TOLD_LAST
from millrace_apps.fraud.processes.features import Features
from millrace_apps.fraud.processes.rulebook import NO_WINDOWS, Windows
from millrace_apps.fraud.processes.window_functions import asked
from millrace_apps.fraud.state.card_history import CardLook, card_features, counted, links_of
from millrace_apps.fraud.state.history import History
from tests.unit.apps.fraud.cases import DAY, HOUR, MINUTE, transaction


def restored(history: History) -> History:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(history), type=History)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3 * HOUR), min_size=1, max_size=12), st.integers(0, 3 * HOUR))
def test_a_look_stays_the_same_when_its_own_purchase_is_added(times: list[int], now: int) -> None:
    """Also where the purchase comes out of order: what a rule asks for afterwards is what was before."""
    uses = [
        Use("count", ("card", HOUR)),
        Use("sum", ("amount", "card", HOUR)),
        Use("mean", ("amount", "card", HOUR)),
        Use("largest", ("amount", "card", HOUR)),
        Use("smallest", ("amount", "card", HOUR)),
        Use("distinct", ("terminal", "card", HOUR)),
        Use("sum", ("amount", "card_terminal", HOUR)),
    ]
    history: History | None = None
    for place, time in enumerate(times):
        before = transaction(time, place + 1, terminal=f"t-{place % 3}")
        history = counted(history, before, 100 * (place + 1), links_of(before))
    assert history is not None
    tx = transaction(now, 70, terminal="t-1")
    look = CardLook(history, tx.event_time_ms)
    wanted = [asked(use)(look, tx, 7000) for use in uses]
    features = card_features(look, tx, 7000, None, links_of(tx))
    counted(history, tx, 7000, links_of(tx))
    assert [asked(use)(look, tx, 7000) for use in uses] == wanted
    assert card_features(look, tx, 7000, None, links_of(tx)) == features
    assert look.links(0) == restored(history).columns.links[: look.end * 3]


def test_a_card_without_purchases_of_30_days_still_has_its_usual_gap() -> None:
    history: History | None = None
    for hour in range(4):
        before = transaction(hour * HOUR, 10)
        history = counted(history, before, 1000, links_of(before))
    tx = transaction(40 * DAY, 10)
    features = card_features(CardLook(history, tx.event_time_ms), tx, 1000, None, links_of(tx))
    assert (features.gap_s, features.gap_median_s, features.count_30d) == (None, 3600.0, 1)
    assert (features.max_30d, features.terminals_30d, features.terminal_before) == (None, 1, 0)


def test_the_smallest_of_the_minute_before_is_told_only_while_it_lasts() -> None:
    before = transaction(0, 0.5)
    history = counted(None, before, 50, links_of(before))
    for wait, wanted in ((MINUTE - 1, 0.5), (MINUTE, None)):
        tx = transaction(wait, 10)
        features = card_features(CardLook(history, tx.event_time_ms), tx, 1000, None, links_of(tx))
        assert (features.min_1m, features.count_10m) == (wanted, 2)


def test_a_decision_has_the_fields_that_it_takes_over_in_their_order() -> None:
    billing = ("billing_amount", "billing_currency", "billing_rate")  # at the end of both
    of_transaction, names = Transaction.__struct_fields__, Decision.__struct_fields__
    first, last = _TOLD_FIRST, _TOLD_LAST
    of_transaction = tuple(name for name in of_transaction if name not in billing)
    assert names[-3:] == billing
    names = names[:-3]
    assert names[:first] == of_transaction[:first]
    own = Features.__struct_fields__
    assert names[first : first + _OWN_FIRST] == own[:_OWN_FIRST]
    after = first + _OWN_FIRST + len(("score", "action", "reasons"))
    assert names[after : after + last - first] == of_transaction[first:last]
    rest = ("card_labels", "terminal_labels", "control_group", *own[_OWN_FIRST:], *of_transaction[last:])
    assert names[-len(rest) - 2 :] == (*rest, "customer", "merchant")


def test_windows_that_nobody_computes_are_missing_and_leave_nothing() -> None:
    assert NO_WINDOWS["count(card, 1)"] is None
    assert dict(NO_WINDOWS) == {}
    tx = transaction(0, 10)
    windows = Windows({"known": 2.0}, {"made": lambda look, tx, cents: cents}, Look(None, 0), tx, 7)
    assert (windows["known"], windows["made"], windows["other"]) == (2.0, 7.0, None)
    assert dict(windows) == {"known": 2.0, "made": 7.0}
