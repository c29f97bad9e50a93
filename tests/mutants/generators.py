"""Mutants of the generators: a stream and its ledger of truth that do not agree."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_TESTS: Final = "tests/unit/generators"
_ARRIVALS: Final = f"{_TESTS}/test_arrivals.py"

_LOOP: Final = f"{_TESTS}/test_clickstream_loop.py"

MUTANTS: Final = (
    Mutant(
        "generators: a stream of another type than the app's",
        "generators/ridesharing/__init__.py",
        '_stream("answers", Answer)',
        '_stream("answers", Progress)',
        "a domain sends what its app reads",
        (f"{_TESTS}/test_contracts.py::test_what_agents_say_is_what_the_contract_reads",),
    ),
    Mutant(
        "generators: answers about consent say that nobody has told of them",
        "apps/clickstream/contracts/events.py",
        "class Consent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):",
        "class Consent(msgspec.Struct, frozen=True, gc=False):",
        "the bytes of a seed stay what they are",
        (
            f"{_TESTS}/test_contracts.py"
            "::test_what_is_sent_is_what_the_contract_reads_and_says_nothing_that_it_does_not_know",
        ),
    ),
    Mutant(
        "generators: people do not wait for a slow app",
        "generators/engine/loop.py",
        "            began += _wait(world, inbox, mailbag, target_ms, pace, clock, stopped)\n",
        "            pass\n",
        "a demo at the machine's pace",
        (f"{_LOOP}::test_shoppers_wait_for_an_app_whose_batches_take_longer_than_they_would",),
    ),
    Mutant(
        "generators: a silent app is waited for without end",
        "generators/engine/loop.py",
        "        self._given_up |= silent_s >= self._patience_s\n",
        "",
        "a loop with an app that has stopped ends",
        (f"{_LOOP}::test_an_app_in_time_is_not_waited_for_and_a_silent_one_once",),
        hangs=True,
    ),
    Mutant(
        "generators: what is added up is not all that was sent",
        "generators/world_ledger.py",
        "            self._sums[kind] = self._sums.get(kind, 0) + message.amount\n",
        "            self._sums[kind] = message.amount\n",
        "the ledger's sums are of distinct events",
        ("tests/unit/apps/fraud/test_demo.py::test_every_check_of_the_demo_holds",),
    ),
    Mutant(
        "generators: a shop abroad bills what it asks for",
        "generators/fraud/ordinary.py",
        "        billed if money is None else max(round(cents / money.rate), 1) / 100,\n",
        "        billed,\n",
        "amounts are billed at a rate",
        (f"{_TESTS}/test_fraud.py::test_what_a_shop_abroad_asks_is_billed_at_its_rate",),
    ),
    Mutant(
        "generators: summer time begins a week early",
        "generators/fraud/ordinary.py",
        "timedelta(days=last.isoweekday() % 7)",
        "timedelta(days=last.isoweekday() % 7 + 7)",
        "local time",
        (f"{_TESTS}/test_fraud.py::test_summer_time_is_that_of_the_zone_database",),
    ),
    Mutant(
        "generators: another package's domain takes the place of ours",
        "generators/domains.py",
        "key=lambda e: (not _is_ours(e), e.name)",
        "key=lambda e: (_is_ours(e), e.name)",
        "ours keep their names",
        (f"{_TESTS}/test_domain_cli.py::test_a_domain_is_listed_and_an_absent_one_is_not",),
    ),
    Mutant(
        "generators: a declined purchase is paid all the same",
        "generators/fraud/authorisations.py",
        '            self._add(event, "a1", at_ms, "declined")\n            return\n',
        '            self._add(event, "a1", at_ms, "declined")\n',
        "what becomes of purchases",
        (f"{_TESTS}/test_fraud.py::test_authorisations_tell_what_becomes_of_a_share_of_the_purchases",),
    ),
    Mutant(
        "generators: a payment of the Handbook belongs to the first of two compromises",
        "generators/handbook/payments.py",
        "hits[bisect_right(hits, payment.TX_TIME_DAYS, key=lambda one: one.first_day) - 1]",
        "hits[0]",
        "truths of the Handbook",
        (
            f"{_TESTS}/test_handbook_stream.py::test_a_truth_names_who_was_compromised_and_covers_its_payments",
        ),
    ),
    Mutant(
        "generators: an event of a truth that was disturbed is not named",
        "generators/world_ledger.py",
        "                entry.disturbed.append(message.transaction_id)\n",
        "                pass\n",
        "truths say which of their events were disturbed",
        (f"{_TESTS}/test_world_ledger.py::test_every_truth_names_its_events_and_those_that_were_disturbed",),
    ),
    Mutant(
        "generators: what was dropped counts as sent",
        "generators/world_ledger.py",
        "        if message.dropped:\n            return\n        self.valid += 1\n",
        "        self.valid += 1\n",
        "the ledger counts what was sent",
        (f"{_TESTS}/test_world_ledger.py::test_the_summary_equals_a_recount_of_the_messages",),
    ),
    Mutant(
        "generators: late events are less late than said",
        "generators/engine/stages.py",
        "int(lateness_ms * (1 + 0.25 * chance / share))",
        "int(lateness_ms * (0.5 + 0.25 * chance / share))",
        "how late a late event is",
        (f"{_TESTS}/test_faults.py::test_a_late_event_is_at_least_its_lateness_behind_and_none_is_lost",),
    ),
    Mutant(
        "generators: a broken message takes a valid one away",
        "generators/engine/stages.py",
        "            yield corrupt(message, made, variants).beside(message)\n",
        "            yield corrupt(next(stream, message), made, variants).beside(message)\n",
        "no valid message is lost by a broken one",
        (f"{_TESTS}/test_faults.py::test_broken_messages_come_beside_valid_ones_and_have_ids_of_their_own",),
    ),
    Mutant(
        "generators: disorder goes a millisecond beyond its bound",
        "generators/engine/stages.py",
        "    draw, span = numbers.random, bound_ms + 1\n",
        "    draw, span = numbers.random, bound_ms + 2\n",
        "events come within the bound",
        (
            f"{_TESTS}/test_faults.py"
            "::test_messages_arrive_after_every_delay_up_to_the_bound_and_after_none_beyond_it",
        ),
    ),
    Mutant(
        "generators: a cart idle for exactly a quarter of an hour is of no interest",
        "generators/clickstream/carts.py",
        "then.at_ms - step.at_ms < MIN_IDLE_MS:",
        "then.at_ms - step.at_ms <= MIN_IDLE_MS:",
        "idle spells of carts",
        (f"{_TESTS}/test_clickstream_truths.py::test_an_idle_spell_lasts_15_minutes_or_longer",),
    ),
    Mutant(
        "generators: the truth of an order's last touch is its first one",
        "generators/clickstream/truths.py",
        "    last = max((d.last_touch for d in devices if d.last_touch), key=_moment, default=None)\n",
        "    last = min((d.last_touch for d in devices if d.last_touch), key=_moment, default=None)\n",
        "the truth about attribution",
        (
            f"{_TESTS}/test_clickstream_truths.py"
            "::test_attribution_is_the_first_and_last_touch_over_linked_devices",
        ),
    ),
    Mutant(
        "generators: refunds in the truth are a cent too much",
        "generators/clickstream/orders.py",
        '            "amount_cents": cents,\n',
        '            "amount_cents": cents + 1,\n',
        "the truth about refunds",
        (f"{_TESTS}/test_clickstream_truths.py::test_refunds_give_back_lines_of_an_earlier_order",),
    ),
    Mutant(
        "generators: a fraud's label says that it is genuine",
        "generators/fraud/labels.py",
        '            self._add(event, at_ms, True, "chargeback", None)\n',
        '            self._add(event, at_ms, False, "chargeback", None)\n',
        "labels say what is true",
        (f"{_TESTS}/test_fraud_labels.py",),
    ),
    Mutant(
        "generators: agents do not see that they are dispatched twice",
        "generators/ridesharing/rides.py",
        "        self.fates[fate] += 1\n",
        "        self.fates[fate] += 2\n",
        "every request has one fate",
        (f"{_TESTS}/test_ridesharing.py::test_every_request_has_one_fate_or_is_open",),
    ),
    Mutant(
        "generators: what is left at the end arrives before what was sent",
        "generators/engine/stages.py",
        "        message.due_ms = last_ms = max(last_ms, message.happened_ms)\n",
        "        message.due_ms = message.happened_ms\n",
        "messages arrive in the order of sending",
        (f"{_ARRIVALS}::test_late_messages_that_are_left_at_the_end_arrive_last",),
    ),
    Mutant(
        "generators: records carry when they are sent, not their arrival",
        "generators/sinks.py",
        "timestamp=message.arrival_ms if self._arrivals else _NOW,",
        "timestamp=_NOW,",
        "simulated arrivals",
        (f"{_ARRIVALS}::TestKafka::test_records_carry_the_simulated_arrival",),
    ),
    Mutant(
        "generators: topics for arrivals have the broker's time",
        "generators/sinks.py",
        "TopicSpec(partitions, SENT_TIME if arrivals else {})",
        "TopicSpec(partitions)",
        "simulated arrivals are kept",
        (f"{_ARRIVALS}::TestKafka::test_topics_are_created_for_the_times_that_they_get",),
    ),
)
