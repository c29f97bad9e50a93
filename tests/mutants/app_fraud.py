"""Mutants of the fraud app: windows, alerts, repeats, late transactions, labels, its demo's checks."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_APP: Final = "apps/fraud"
_TESTS: Final = "tests/unit/apps/fraud"
_AUTHORISATIONS: Final = f"{_TESTS}/test_authorisations.py"
#: The checks of the demo over the stages in memory.
_CHECKS: Final = f"{_TESTS}/test_demo.py::test_every_check_of_the_demo_holds"
_CHECKS_FAIL: Final = f"{_TESTS}/test_demo.py::test_a_check_of_the_demo_fails_where_its_feature_is_broken"

MUTANTS: Final = (
    Mutant(
        "fraud: an alert is written only of what is blocked",
        f"{_APP}/desk.py",
        '    return decision, None if action == "approve" else _alert(decision, thresholds)\n',
        '    return decision, None if action != "block" else _alert(decision, thresholds)\n',
        "alerts are written",
        (_CHECKS, f"{_TESTS}/test_process.py"),
    ),
    Mutant(
        "fraud: a transaction exactly an hour old is in the window of an hour",
        f"{_APP}/features.py",
        "            start_1h = bisect_right(times, time - HOUR_MS, start_24h, end)\n",
        "            start_1h = bisect_right(times, time - HOUR_MS - 1, start_24h, end)\n",
        "exact look-back windows",
        (f"{_TESTS}/test_features.py::test_an_event_exactly_one_width_old_is_outside_the_window",),
    ),
    Mutant(
        "fraud: refunds are ignored",
        f"{_APP}/features.py",
        "        recent.add_credit(time, cents)\n        profile.balance += cents\n",
        "        recent.add_credit(time, cents)\n",
        "refunds and top-ups move the balance",
        (f"{_TESTS}/test_features.py::test_refunds_and_top_ups_move_the_balance_and_count_in_no_window",),
    ),
    Mutant(
        "fraud: a repeat is decided on again",
        f"{_APP}/card.py",
        "            if known > now:\n",
        "            if known > now and not seen:\n",
        "repeats change nothing",
        (_CHECKS,),
    ),
    Mutant(
        "fraud: an identity is remembered for a day and a millisecond",
        f"{_APP}/card.py",
        "            if known > now:\n",
        "            if known >= now:\n",
        "how long a repeat is known",
        (f"{_TESTS}/test_process.py::test_an_id_is_remembered_for_24_hours_and_not_longer",),
    ),
    Mutant(
        "fraud: another transaction under a known id is a repeat",
        f"{_APP}/card.py",
        'return "same" if place < 0 or self.said[place : place + DIGEST_BYTES] == digest else "other"',
        'return "same"',
        "conflicts are told from repeats",
        (f"{_TESTS}/test_process.py::test_another_transaction_under_a_known_id_is_told_from_a_repeat",),
    ),
    Mutant(
        "fraud: what an earlier version remembers is a conflict",
        f"{_APP}/card.py",
        'return "same" if place < 0 or self.said',
        'return "same" if self.said',
        "an entry without a digest is a repeat",
        (f"{_TESTS}/test_process.py::test_what_an_earlier_version_remembers_is_a_repeat_whatever_it_said",),
    ),
    Mutant(
        "fraud: another label under a known id is a repeat",
        f"{_APP}/known_labels.py",
        'return "repeat" if kept.content in (0, word.content) else "conflict"',
        'return "repeat"',
        "conflicts are told from repeats",
        (f"{_TESTS}/test_live_labels.py::test_another_label_under_a_known_id_is_told_from_a_repeat",),
    ),
    Mutant(
        "fraud: a late transaction is lost",
        f"{_APP}/process.py",
        "        ctx.output(self.late_transactions, LateTransaction(event, lateness, ctx.watermark))\n",
        "",
        "late transactions are put aside",
        (_CHECKS,),
    ),
    Mutant(
        "fraud: a late transaction changes the features of those to come",
        f"{_APP}/process.py",
        "            profile, copy.deepcopy(recent), ctx.event_time,",
        "            profile, recent, ctx.event_time,",
        "issued decisions stand",
        (f"{_TESTS}/test_process.py::test_a_late_transaction_goes_to_late_once_and_changes_no_feature",),
    ),
    Mutant(
        "fraud: labels are lost",
        f"{_APP}/process.py",
        "        ctx.output(self.labels, label, on_time=False)\n",
        "",
        "labels are kept",
        (_CHECKS,),
    ),
    Mutant(
        "fraud: a label counts before it is known",
        f"{_APP}/known_labels.py",
        "if w.known_ms <= at and w.at > at - CARD_MEMORY_MS}",
        "if w.at > at - CARD_MEMORY_MS}",
        "no feature knows the future",
        (
            f"{_TESTS}/test_live_labels.py::test_a_label_that_comes_early_waits_for_its_time",
            f"{_TESTS}/test_live_labels.py"
            "::test_any_cut_and_any_restart_give_what_a_search_through_all_that_was_said_gives",
        ),
    ),
    Mutant(
        "fraud: a rule in shadow is in force",
        f"{_APP}/desk.py",
        "    return [m for m in found if not m.shadow], [m for m in found if m.shadow]\n",
        "    return list(found), [m for m in found if m.shadow]\n",
        "rules are tried before they count",
        (f"{_TESTS}/test_stages.py::test_a_rule_in_shadow_is_recorded_and_has_no_effect",),
    ),
    Mutant(
        "fraud: card testing is not looked for",
        f"{_APP}/scoring.py",
        "    if f.small_count_1m >= t.testing_count:\n",
        "    if f.small_count_1m >= 100 * t.testing_count:\n",
        "frauds are caught",
        (_CHECKS,),
    ),
    Mutant(
        "fraud: everything is looked at by somebody",
        f"{_APP}/scoring.py",
        '    return "review" if score >= thresholds.review_score else "approve"\n',
        '    return "review"\n',
        "few false alarms",
        (f"{_TESTS}/test_process.py::test_block_and_review_follow_the_thresholds",),
    ),
    # -- decisions that have effects
    Mutant(
        "fraud: what is declined is paid all the same",
        f"{_APP}/authorised.py",
        "            elif step.status == _DECLINED:\n                due = 0\n",
        "            elif step.status == _DECLINED:\n                due = cents\n",
        "the balance is what was paid",
        (f"{_AUTHORISATIONS}::test_the_balance_is_what_was_paid_whatever_comes_first",),
    ),
    Mutant(
        "fraud: purchases that were declined or frauds say what is usual",
        f"{_APP}/fates.py",
        "counts=pays > 0 and not is_fraud)",
        "counts=True)",
        "what is usual leaves out what was declined and frauds",
        (
            f"{_AUTHORISATIONS}::test_a_card_that_was_attacked_is_still_measured_against_its_own_purchases",
            f"{_AUTHORISATIONS}::test_what_labels_say_is_a_fraud_leaves_what_is_usual_as_if_it_had_never_been",
        ),
    ),
    Mutant(
        "fraud: what becomes known of a payment is known before",
        f"{_APP}/fates.py",
        "self.know(profile, change, change.known, self",
        "self.know(profile, change, change.known + 10**12, self",
        "no feature knows the future",
        (f"{_AUTHORISATIONS}::test_decisions_equal_the_batch_computation_whatever_comes_when",),
    ),
    Mutant(
        "fraud: an authorisation that comes again counts again",
        f"{_APP}/authorised.py",
        "            if kept.identity == step.identity:\n",
        "            if kept.identity == step.identity and kept.content != step.content:\n",
        "repeats change nothing",
        (f"{_AUTHORISATIONS}::test_an_authorisation_is_taken_once_and_stands_in_its_table",),
    ),
    Mutant(
        "fraud: one extreme purchase says what is usual",
        f"{_APP}/profile.py",
        "        extreme = sum(self.buckets[beyond:]) if len(self.buckets) > beyond else 0\n",
        "        extreme = 0\n",
        "what is usual is robust",
        (f"{_AUTHORISATIONS}::test_one_extreme_purchase_hardly_moves_what_is_usual",),
    ),
    Mutant(
        "fraud: what was bought months ago counts as what was today",
        f"{_APP}/decay.py",
        "round(ONE * 2 ** (day / days))",
        "round(ONE * 2 ** (0 / days))",
        "what is usual decays by days",
        (f"{_AUTHORISATIONS}::test_decisions_equal_the_batch_computation_whatever_comes_when",),
    ),
    Mutant(
        "fraud: purchases of long ago count for ever",
        f"{_APP}/profile.py",
        "                self.merge(self.older[SPANS - 2], -1, 1)\n",
        "                pass\n",
        "what is usual has an end",
        (f"{_AUTHORISATIONS}::test_decisions_equal_the_batch_computation_whatever_comes_when",),
    ),
    Mutant(
        "fraud: what was declined is taken for genuine by silence",
        f"{_APP}/labels.py",
        "was, now = (PENDING, DECLINED) if declined else (DECLINED, PENDING)",
        "was, now = (PENDING, PENDING) if declined else (DECLINED, PENDING)",
        "of what was declined silence says nothing",
        (f"{_AUTHORISATIONS}::test_of_a_declined_payment_silence_says_nothing",),
    ),
    Mutant(
        "fraud: what was blocked is judged as genuine",
        f"{_APP}/judging.py",
        'if is_fraud is None and decision.action != "block":',
        "if is_fraud is None:",
        "of what was blocked silence says nothing",
        (
            f"{_TESTS}/test_judging.py::test_the_metrics_of_a_stream_in_any_cut_are_scikit_learns_over_the_last_words",
        ),
    ),
    Mutant(
        "fraud: whom a list blocks may be let through",
        f"{_APP}/desk.py",
        " and not listed and control.has(",
        " and control.has(",
        "the list blocked blocks",
        (f"{_TESTS}/test_control_group.py::test_nobody_on_the_list_blocked_is_let_through",),
    ),
    Mutant(
        "fraud: nobody is let through",
        f"{_APP}/control_group.py",
        "return assign(transaction_id, self._experiment) == _THROUGH",
        "return False and assign(transaction_id, self._experiment) == _THROUGH",
        "a control group",
        (
            f"{_TESTS}/test_control_group.py::test_a_share_of_the_blocks_is_let_through_by_chance_and_recorded",
        ),
    ),
    # -- the checks of the demo
    Mutant(
        "fraud's checks: transactions that stand twice are not seen",
        f"{_APP}/demo.py",
        "len(ids) - len(set(ids))",
        "len(set(ids)) - len(set(ids))",
        "the demo sees that a transaction is there twice",
        (_CHECKS_FAIL,),
    ),
    Mutant(
        "fraud's checks: a kind of fraud need not be caught",
        f"{_APP}/demo.py",
        "        enough = caught >= _CAUGHT * len(episodes)\n",
        "        enough = caught >= 0 * len(episodes)\n",
        "the demo sees that frauds are missed",
        (_CHECKS_FAIL,),
    ),
    Mutant(
        "fraud's checks: any share of false alarms will do",
        f"{_APP}/demo.py",
        "            share <= _FALSE,\n",
        "            share <= 1.0,\n",
        "the demo sees false alarms",
        (_CHECKS_FAIL,),
    ),
    Mutant(
        "fraud's checks: alerts that stand twice are not seen",
        f"{_APP}/demo.py",
        "len(alerts) - len(alerted), of",
        "len(alerted) - len(alerted), of",
        "the demo sees that an alert is there twice",
        (_CHECKS_FAIL,),
    ),
    Mutant(
        "fraud's checks: late transactions are decided on like all others",
        f"{_APP}/process.py",
        "        elif type(event) is Transaction:\n            self._correct(event, ctx)\n",
        "        elif type(event) is Transaction:\n            self._observe(event, ctx)\n",
        "late transactions are put aside",
        (_CHECKS,),
    ),
)
