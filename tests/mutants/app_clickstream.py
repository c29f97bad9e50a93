"""Mutants of the clickstream app: sessions, carts, offers, attribution, consent, its demo's checks."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_APP: Final = "apps/clickstream"
_TESTS: Final = "tests/unit/apps/clickstream"
_DUE: Final = f"{_TESTS}/test_due.py"
#: The checks of demo and evaluation over the whole app in memory.
_CHECKS: Final = f"{_TESTS}/test_checks.py::test_every_check_of_the_demo_holds"
_CHECKS_FAIL: Final = (
    f"{_TESTS}/test_checks.py::test_a_check_against_the_ledger_fails_where_its_feature_is_broken"
)

MUTANTS: Final = (
    Mutant(
        "clickstream: a browser's timer is never brought forward",
        f"{_APP}/visitor.py",
        "        ctx.timers.bring_forward(due, TICK)\n",
        "        if ctx.timers.pending(TICK) is None:\n            ctx.timers.at(due, TICK)\n",
        "sessions end when their pause is over",
        (_DUE,),
    ),
    Mutant(
        "clickstream: the funnels keep the arm of a browser whose person is known now",
        f"{_APP}/visitor_identity.py",
        "                if past.number:",
        "                if False:",
        "rows of the funnels hang on events alone",
        (
            f"{_TESTS}/test_world.py::TestContract",
            f"{_TESTS}/test_visitor.py",
        ),
    ),
    Mutant(
        "clickstream: a session that was merged comes back with a login",
        f"{_APP}/visitor_sessions.py",
        "        known.past = [past for past in known.past if past.start_ms != session.written_ms]\n",
        "",
        "no row of a session that is none any more",
        (f"{_TESTS}/test_visitor.py",),
    ),
    Mutant(
        "clickstream: a browser's timer does not follow its sessions at all",
        f"{_APP}/visitor.py",
        "        self._wake(known, ctx)\n",
        "",
        "sessions end when their pause is over",
        (_DUE,),
    ),
    Mutant(
        "clickstream: the timer of bare clicks is never brought forward",
        f"{_APP}/sessionize.py",
        "        if due is not None:\n            ctx.timers.bring_forward",
        "        if due is not None and ctx.timers.pending(_CLOSE) is None:\n            ctx.timers.at",
        "sessions of bare clicks end when their pause is over",
        (f"{_DUE}::test_a_timer_of_bare_clicks_is_never_later_than_what_is_due",),
    ),
    Mutant(
        "clickstream: bare clicks that merge sessions leave the rows of both",
        f"{_APP}/sessionize.py",
        "            if gone.written:\n                self._withdraw(book, gone, ctx)\n",
        "            if gone.written:\n                pass\n",
        "sessions that are part of another are taken back",
        (f"{_TESTS}/test_sessions.py",),
    ),
    Mutant(
        "clickstream: what was sent days late is of a session",
        f"{_APP}/snowplow.py",
        "    if late is not None and event.sent_ms - event.created_ms > late:\n",
        "    if late is None and event.sent_ms - event.created_ms > 0:\n",
        "the tracker's rules",
        (f"{_TESTS}/test_tracked.py", f"{_TESTS}/test_snowplow.py"),
    ),
    Mutant(
        "clickstream: a tracker's session that was quarantined begins anew",
        f"{_APP}/sessions.py",
        "        return None if name_of(client) in self.gone else self._open(at_ms, client)\n",
        "        return self._open(at_ms, client)\n",
        "the tracker's rules",
        (f"{_TESTS}/test_tracked.py",),
    ),
    Mutant(
        "clickstream: a page left open makes state that grows",
        f"{_APP}/sessions.py",
        "            del self.buckets[MOST_BEATS:], self.ping_pages[MOST_BEATS:]\n",
        "",
        "sessions are bounded",
        (f"{_TESTS}/test_tracked.py",),
    ),
    Mutant(
        "clickstream: heartbeats of several pages are one",
        f"{_APP}/sessions.py",
        "    return bucket << 32 | page\n",
        "    return bucket << 32\n",
        "attention",
        (f"{_TESTS}/test_tracked.py",),
    ),
    Mutant(
        "clickstream: sessions are never final",
        f"{_APP}/visitor_sessions.py",
        '"merged" if deleted else session.closed, bool(session.closed) and not deleted,',
        '"merged" if deleted else session.closed, False,',
        "sessions that are over are told as final",
        (_CHECKS,),
    ),
    Mutant(
        "clickstream: a pause of exactly the gap ends a session",
        f"{_APP}/sessions.py",
        "        sessions, gap = self.sessions, rules.gap_ms or 0\n",
        "        sessions, gap = self.sessions, (rules.gap_ms or 1) - 1\n",
        "sessions merge at exactly the gap",
        (
            f"{_TESTS}/test_sessions.py::test_v15_a_pause_of_exactly_the_gap_merges",
            f"{_TESTS}/test_sessions.py::test_the_same_sessions_as_pandas_in_any_order_within_the_bound",
        ),
    ),
    Mutant(
        "clickstream: a session that ends now waits a millisecond",
        f"{_APP}/sessions.py",
        "            if not session.closed and over <= watermark:\n",
        "            if not session.closed and over < watermark:\n",
        "sessions end when their pause is over",
        (
            f"{_DUE}::test_a_returning_visitors_session_ends_when_its_pause_is_over_and_its_visit_is_of_that_hour",
        ),
    ),
    Mutant(
        "clickstream: merged sessions lose their events",
        f"{_APP}/sessions.py",
        "        self.events += later.events\n",
        "",
        "a merged session has the events of all",
        (
            f"{_TESTS}/test_sessions.py::test_v14_an_event_between_two_sessions_makes_one_of_them",
            f"{_TESTS}/test_visitor.py::test_a_late_event_joins_two_final_sessions_and_takes_back_the_second",
        ),
    ),
    Mutant(
        "clickstream: an event too late for its session is lost",
        f"{_APP}/visitor.py",
        "            self.known.value = fresh\n            self.emit_late(event, ctx)\n",
        "            self.known.value = fresh\n",
        "what comes too late is put aside",
        (f"{_TESTS}/test_visitor.py::test_an_event_too_late_for_its_session_is_put_aside",),
    ),
    Mutant(
        "clickstream: a repeat counts again",
        f"{_APP}/visitor.py",
        "            mark = seen.get(identity)\n",
        "            mark = None\n",
        "repeats change nothing",
        (
            f"{_TESTS}/test_visitor.py"
            "::test_a_repeat_goes_to_the_dead_letters_and_changes_nothing_in_whatever_batch_it_comes",
        ),
    ),
    Mutant(
        "clickstream: whatever has a known id is a repeat",
        f"{_APP}/known.py",
        "    return not known or known == content % _CONTENTS + 1\n",
        "    return True\n",
        "something else under a known id is told",
        (
            f"{_TESTS}/test_visitor.py"
            "::test_something_else_under_a_known_id_is_told_from_a_repeat_and_changes_nothing_either",
        ),
    ),
    Mutant(
        "clickstream: a person as fast as the limit is a bot",
        f"{_APP}/visitor.py",
        "        return times[-1] - times[0] < self._rules.rate_ms\n",
        "        return times[-1] - times[0] <= self._rules.rate_ms\n",
        "bots are told from people",
        (f"{_TESTS}/test_bots.py",),
    ),
    Mutant(
        "clickstream: bots are people",
        f"{_APP}/visitor.py",
        '            session.bot = "user_agent" if crawler else known.bot\n',
        '            session.bot = ""\n',
        "bots are found",
        (_CHECKS,),
    ),
    Mutant(
        "clickstream: a browser that is forgotten stays",
        f"{_APP}/visitor_identity.py",
        "        self.known.clear()\n        ctx.timers.delete(TICK)\n        if subject",
        "        ctx.timers.delete(TICK)\n        if subject",
        "erasure leaves no state",
        (f"{_TESTS}/test_visitor.py::test_forgetting_a_browser_leaves_no_state_and_no_name",),
    ),
    Mutant(
        "clickstream: a withdrawal stands in the audit as a consent",
        f"{_APP}/visitor_identity.py",
        "answer.consent_id, ctx.key, answer.user_id, answer.granted, names(answer.bits),",
        "answer.consent_id, ctx.key, answer.user_id, True, names(answer.bits),",
        "withdrawals are audited",
        (_CHECKS,),
    ),
    Mutant(
        "clickstream: of two answers the one that came last holds",
        f"{_APP}/consent.py",
        "        insort(self.answers, answer, key=order_of)\n",
        "        self.answers.append(answer)\n",
        "what was said last holds",
        (f"{_TESTS}/test_consent.py::test_what_was_said_last_holds_in_whichever_order_answers_come",),
    ),
    Mutant(
        "clickstream: an answer of long ago takes back a newer one",
        f"{_APP}/consent.py",
        "if answer.bits & bit and (newer or not said[place]):",
        "if answer.bits & bit:",
        "also of answers that are not kept any more",
        (f"{_TESTS}/test_consent.py::test_what_was_said_last_holds_in_whichever_order_answers_come",),
    ),
    Mutant(
        "clickstream: rows of consent stay as they were first told",
        f"{_APP}/consent.py",
        "return [step for step in self.steps() if known.get(step.answer) != step]",
        "return [step for step in self.steps() if step.answer is answer]",
        "rows hang on the answers alone",
        (f"{_TESTS}/test_consent.py::test_rows_hang_on_the_answers_alone",),
    ),
    Mutant(
        "clickstream: a click and an answer with one id are taken for one",
        f"{_APP}/visitor.py",
        '            identity = f"consent {identity}"  # a click may have the same, and is something else\n',
        "            pass\n",
        "a withdrawal counts whatever its id",
        (f"{_TESTS}/test_consent.py::test_a_withdrawal_with_the_id_of_a_click_counts",),
    ),
    Mutant(
        "clickstream: carts are never left",
        f"{_APP}/carts.py",
        "            idle = after is None or after - step.at_ms > timeout_ms\n",
        "            idle = after is not None and after < step.at_ms\n",
        "carts that are left are told",
        (_CHECKS,),
    ),
    Mutant(
        "clickstream: a pause of exactly the timeout leaves a cart",
        f"{_APP}/carts.py",
        "            idle = after is None or after - step.at_ms > timeout_ms\n",
        "            idle = after is None or after - step.at_ms >= timeout_ms\n",
        "when a cart is left",
        (f"{_TESTS}/test_entities.py::test_a_pause_of_exactly_the_timeout_is_none",),
    ),
    Mutant(
        "clickstream: a cart is left after it was bought",
        f"{_APP}/carts.py",
        "            bought = self.bought_ms and step.at_ms >= self.bought_ms\n",
        "            bought = False\n",
        "nothing is said of a cart after its purchase",
        (f"{_TESTS}/test_carts.py",),
    ),
    Mutant(
        "clickstream: refunds are ignored",
        f"{_APP}/orders.py",
        "            order.refunds[event.refund_id] = event.cents\n",
        "            order.refunds[event.refund_id] = 0\n",
        "refunds are taken off",
        (f"{_TESTS}/test_entities.py::test_refunds_are_taken_off_once_each_whatever_comes_first",),
    ),
    Mutant(
        "clickstream: an order is attributed to what came after it",
        f"{_APP}/profiles.py",
        "        last = max((t for t in lasts if t.at_ms <= at), default=None)\n",
        "        last = max(lasts, default=None)\n",
        "the last touch before an order",
        (
            f"{_TESTS}/test_entities.py"
            "::test_a_purchase_is_attributed_over_all_devices_by_what_was_before_it",
            _CHECKS,
        ),
    ),
    Mutant(
        "clickstream: an erased profile stays",
        f"{_APP}/persons.py",
        "profile_row(ctx.key, person, deleted=True)",
        "profile_row(ctx.key, person)",
        "erasure takes the profile",
        (f"{_TESTS}/test_entities.py::test_a_profile_counts_what_is_done_and_goes_with_an_erasure",),
    ),
    Mutant(
        "clickstream: of equals on a board any may be first",
        f"{_APP}/boards.py",
        "key=lambda e: (-e[1], e[0]))[:places]",
        "key=lambda e: -e[1])[:places]",
        "boards hang on their events alone",
        (
            f"{_TESTS}/test_reactions.py"
            "::test_of_equals_the_lesser_name_is_first_whichever_shard_it_comes_from",
        ),
    ),
    Mutant(
        "clickstream: caps of offers are ignored",
        f"{_APP}/offers.py",
        "        return len(times) < one.rule.cap\n",
        "        return len(times) >= 0\n",
        "offers are capped",
        (f"{_TESTS}/test_offers.py::test_a_rule_is_capped_and_rules_cool_down",),
    ),
    Mutant(
        "clickstream: every offer is sent fifty times",
        f"{_APP}/offering.py",
        "            ctx.emit(offer)\n",
        "            for _ in range(50):\n                ctx.emit(offer)\n",
        "offers are made once",
        (_CHECKS,),
    ),
    Mutant(
        "clickstream: offers are made after consent was withdrawn",
        f"{_APP}/offering.py",
        "        if any(at is not None and at <= event.at_ms for at in since):\n            return\n",
        "",
        "consent",
        (
            f"{_TESTS}/test_reactions.py"
            "::test_what_comes_of_a_browser_after_its_consent_was_withdrawn_makes_no_offer",
        ),
    ),
    Mutant(
        "clickstream: the control arm gets the offer",
        f"{_APP}/offers.py",
        "        arm = one.experiment.arm(event.person)\n",
        '        arm = "offer"\n',
        "what an offer does can be seen",
        (f"{_TESTS}/test_offers.py::test_the_control_arm_gets_a_record_and_stays_the_same",),
    ),
    Mutant(
        "clickstream: a board of sources shows one shard",
        f"{_APP}/counters.py",
        'yield from _told(name, f"sources.{number}/1h", counts, end, _HOUR)',
        'yield from _told(number, f"sources.{number}/1h", counts, end, _HOUR)',
        "boards add up all shards",
        (
            f"{_TESTS}/test_entities.py"
            "::test_visits_of_a_source_are_added_up_over_the_shards_in_every_board_of_sources",
        ),
    ),
    Mutant(
        "clickstream: of one instant what was done counts before whose browser it is",
        f"{_APP}/messages.py",
        'tag="does")',
        'tag="activity")',
        "what a profile is made of does not hang on names",
        (
            f"{_TESTS}/test_entities.py"
            "::test_of_one_instant_a_browser_is_linked_before_what_was_done_there_counts_and_erased_last",
        ),
    ),
    Mutant(
        "clickstream: a cart that is to be forgotten is taken for a browser",
        f"{_APP}/visitor_identity.py",
        '        if subject.startswith("c:"):\n',
        '        if subject.startswith("cart:"):\n',
        "carts are forgotten",
        (f"{_TESTS}/test_visitor.py::test_forgetting_a_cart_goes_to_the_cart_alone",),
    ),
    Mutant(
        "clickstream: late events that name a person stay",
        f"{_APP}/forget.py",
        'if subject.is_named(row["event"], fields)]',
        'if not subject.is_named(row["event"], fields)]',
        "late events are forgotten with their person",
        (f"{_TESTS}/test_forget.py::test_its_rows_go_and_all_others_stay",),
    ),
    Mutant(
        "clickstream: who is in the hold-out gets offers",
        f"{_APP}/offers.py",
        "experiment_of(rule, holdout))",
        "experiment_of(rule, 0.0 * holdout))",
        "the hold-out is offered nothing",
        (
            f"{_TESTS}/test_offers.py"
            "::test_who_is_in_the_hold_out_is_offered_nothing_by_any_rule_and_is_no_control_arm",
        ),
    ),
    # -- the checks of the demo
    Mutant(
        "clickstream's checks: sessions are compared with themselves",
        f"{_APP}/ledger_checks.py",
        'same("sessions that are over", whole, found,',
        'same("sessions that are over", found, found,',
        "the demo sees that sessions are missing",
        (_CHECKS_FAIL,),
    ),
    Mutant(
        "clickstream's checks: carts are compared with themselves",
        f"{_APP}/ledger_checks.py",
        'same("carts that were left", expected, found,',
        'same("carts that were left", expected, expected,',
        "the demo sees that carts are missing",
        (_CHECKS_FAIL,),
    ),
    Mutant(
        "clickstream's checks: orders that are missing are left out",
        f"{_APP}/ledger_checks.py",
        'same("conversions: orders and their value", expected, found)',
        'same("conversions: orders and their value", expected & found, found)',
        "the demo sees that orders are missing",
        (_CHECKS_FAIL,),
    ),
    Mutant(
        "clickstream's checks: no offer is made at all",
        f"{_APP}/offers.py",
        "            if found and made is None and self._allowed(one, state, event.at_ms):\n",
        "            if found and made is not None and self._allowed(one, state, event.at_ms):\n",
        "offers are made",
        (_CHECKS,),
    ),
    Mutant(
        "clickstream's checks: caps and cool-downs are ignored",
        f"{_APP}/offers.py",
        "        if state.last_ms and at_ms - state.last_ms < one.cool_ms:\n            return False\n",
        "        if at_ms:\n            return True\n",
        "offers are capped",
        (_CHECKS,),
    ),
    Mutant(
        "clickstream's checks: refunds are not taken off",
        f"{_APP}/orders.py",
        "            back = sum(order.refunds.values())\n",
        "            back = 0 * sum(order.refunds.values())\n",
        "refunds are taken off",
        (_CHECKS,),
    ),
    Mutant(
        "clickstream's checks: outcomes of offers are never told",
        f"{_APP}/offering.py",
        "            for outcome in self._book.bought(state, bought):\n",
        "            for outcome in self._book.bought(state, bought)[:0]:\n",
        "what came of an offer",
        (_CHECKS,),
    ),
)
