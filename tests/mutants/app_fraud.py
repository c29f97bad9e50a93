"""Mutants of the fraud app: windows, alerts, repeats, late transactions, labels, its demo's checks."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_APP: Final = "apps/fraud"
_TESTS: Final = "tests/unit/apps/fraud"
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
        "        recent.add_credit(time, cents)\n        account.balance += cents\n",
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
        "observe(account, copy.deepcopy(recent), ctx.event_time,",
        "observe(account, recent, ctx.event_time,",
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
    Mutant(
        "fraud: rates hold for all times",
        f"{_APP}/currencies.py",
        "    return rates[place - 1].rate if place else None\n",
        "    return rates[-1].rate if rates else None\n",
        "a rate holds from a time on",
        (f"{_TESTS}/test_currencies.py::test_a_rate_holds_for_payments_of_its_time",),
    ),
    Mutant(
        "fraud: amounts of other currencies are taken for the app's",
        f"{_APP}/process.py",
        "        return in_currency(event, self.currency, self.rates.view(dict))\n",
        "        return event\n",
        "features go by the billed amount",
        (f"{_TESTS}/test_currencies.py",),
    ),
    Mutant(
        "fraud: what the issuer has billed is not looked at",
        f"{_APP}/billing.py",
        "    if tx.billing_currency != currency:\n",
        "    if True:\n",
        "the issuer's amount comes before rates",
        (
            f"{_TESTS}/test_currencies.py::test_what_the_issuer_says_comes_before_rates_and_what_nobody_says_is_not_known",
        ),
    ),
    Mutant(
        "fraud: an amount that is not known is the smallest",
        f"{_APP}/card_history.py",
        "min(filter(None, amounts[start_1m:end]), default=None)",
        "min(amounts[start_1m:end], default=None)",
        "what is not known is no amount",
        (f"{_TESTS}/test_currencies.py",),
    ),
    Mutant(
        "fraud: an amount that is not known enters the mean",
        f"{_APP}/features.py",
        "        if cents:\n            account.add_purchase(time, cents)\n",
        "        account.add_purchase(time, cents)\n",
        "what is not known changes no amount",
        (f"{_TESTS}/test_currencies.py::test_what_is_not_known_counts_as_a_purchase_and_changes_no_amount",),
    ),
    Mutant(
        "fraud: rules see sums of what is not known",
        f"{_APP}/rulebook.py",
        'if text.startswith(("count(", "distinct("))}',
        "}",
        "amounts are missing where they are not known",
        (
            f"{_TESTS}/test_currencies.py::test_rules_and_reasons_that_need_no_amount_hold_where_none_is_known",
        ),
    ),
    Mutant(
        "fraud: decimals of all currencies are two",
        f"{_APP}/currencies.py",
        "scale = 100 if currency not in _DECIMALS else 10 ** _DECIMALS[currency]",
        "scale = 100",
        "a currency has its decimals",
        (f"{_TESTS}/test_events.py::test_an_amount_that_its_currency_does_not_have_is_refused",),
    ),
)
