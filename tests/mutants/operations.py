"""Mutants of what operators stand on: what is sent, who approves, what is written."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_SENDING: Final = "shared/millrace/operations/sending.py"
_TOPIC: Final = "shared/millrace/operations/control_topic.py"
_RULES: Final = "shared/millrace/cli/rules.py"
_SHOWN: Final = "shared/millrace/cli/rules_shown.py"
_REPORT: Final = "shared/millrace/operations/report.py"
_BACKTEST: Final = "apps/iot_maintenance/operations/backtest.py"
_TESTS: Final = "tests/unit/millrace/operations"
_TEST_SENDING: Final = f"{_TESTS}/test_sending.py"
_TEST_RULES: Final = f"{_TESTS}/test_rules.py"
_TEST_REPORT: Final = f"{_TESTS}/test_report.py"
_TEST_BACKTEST: Final = "tests/unit/apps/iot_maintenance/test_backtest.py"

MUTANTS: Final = (
    Mutant(
        "demo: what comes last on a topic is not read",
        "shared/millrace/demo.py",
        "(_behind(read, ends) and time.monotonic() < deadline)",
        "(_behind(read, ends) and time.monotonic() > deadline)",
        "a demo reads its topic to the end",
        (
            "tests/unit/millrace/test_alert_tail.py::test_what_was_written_before_the_end_is_read_however_late_it_comes",
        ),
    ),
    Mutant(
        "demo: the end of a topic is that of its last message",
        "shared/millrace/demo.py",
        "                        read[message.partition()] = message.offset()\n",
        "                        pass\n",
        "marks of transactions do not hold a demo's end up",
        ("tests/unit/millrace/test_alert_tail.py::test_an_end_that_no_message_stands_before_is_one",),
    ),
    Mutant(
        "operations: what was not acknowledged is done",
        _SENDING,
        "    if left or len(places) < len(values):\n",
        "    if failures:\n",
        "a command is done when the broker has what it sent",
        (f"{_TEST_SENDING}::test_what_the_broker_has_not_acknowledged_is_not_done",),
    ),
    Mutant(
        "operations: nobody waits for the broker",
        _SENDING,
        "    left = producer.flush(timeout_s + 2)\n    if left or len(places) < len(values):\n",
        "    left = producer.flush(0)\n    if failures:\n",
        "a command is done when the broker has what it sent",
        (_TEST_SENDING,),
    ),
    Mutant(
        "operations: an event that does not keep the contract is sent",
        _SENDING,
        "        msgspec.json.decode(value, type=contract)\n",
        "        msgspec.json.decode(value)\n",
        "what is sent is typed",
        (
            f"{_TEST_SENDING}::test_nothing_is_sent_where_one_event_does_not_keep_the_contract",
            f"{_TEST_RULES}::test_what_does_not_keep_the_contract_is_not_sent",
        ),
    ),
    Mutant(
        "operations: a broker that is away is one that refuses",
        _SENDING,
        "    bootstrap = reachable(kafka, min(_ANSWER_S, timeout_s))\n",
        "    bootstrap = bootstrap_of(kafka)\n",
        "no broker is told in one form",
        (f"{_TEST_SENDING}::test_no_broker_is_told_with_its_address_in_one_line",),
    ),
    Mutant(
        "operations: who is named does not count",
        _SENDING,
        "        return by.strip()\n",
        "        return getpass.getuser()\n",
        "events say who sent them",
        (
            f"{_TEST_SENDING}::test_who_acts_is_who_is_named_else_who_has_logged_in",
            f"{_TEST_RULES}::test_a_proposal_has_author_and_reason_and_a_second_person_approves_it",
        ),
    ),
    Mutant(
        "operations: blanks make a second person",
        _SENDING,
        "        return by.strip()\n",
        "        return by\n",
        "a second person is another one",
        (f"{_TEST_RULES}::test_a_proposal_has_author_and_reason_and_a_second_person_approves_it",),
    ),
    Mutant(
        "operations: a proposal is approved by its proposer",
        "shared/millrace/rules/book.py",
        "for other in (version.asked_by, version.rule.owner)):\n",
        "for other in (version.rule.owner,)):\n",
        "a second person approves",
        (
            f"{_TEST_RULES}::test_who_sets_a_rule_active_is_its_proposer",
            f"{_TEST_RULES}::test_random_lives_of_rules_have_no_active_block_without_a_second_person",
        ),
    ),
    Mutant(
        "operations: a rule is approved by its owner",
        "shared/millrace/rules/book.py",
        "for other in (version.asked_by, version.rule.owner)):\n",
        "for other in (version.asked_by,)):\n",
        "a second person approves",
        (
            f"{_TEST_RULES}::test_who_sets_a_rule_active_is_its_proposer",
            f"{_TEST_RULES}::test_random_lives_of_rules_have_no_active_block_without_a_second_person",
        ),
    ),
    Mutant(
        "operations: alarm rules need nobody's approval",
        "apps/iot_maintenance/operations/app_rules.py",
        "alarm_language(two_person=settings.monitor.two_person)",
        "alarm_language()",
        "alarm rules have a second person where a setting asks for it",
        (f"{_TEST_RULES}::test_alarm_rules_have_a_second_person_where_a_setting_asks_for_it",),
    ),
    Mutant(
        "operations: the stream needs nobody's approval of alarm rules",
        "apps/iot_maintenance/processes/monitor.py",
        "alarm_language(two_person=self._m.two_person)",
        "alarm_language()",
        "alarm rules have a second person where a setting asks for it",
        ("tests/unit/apps/iot_maintenance/test_alarms.py::test_a_published_rule_waits_for_a_second_person",),
    ),
    Mutant(
        "operations: a reason is lost",
        _RULES,
        "        return PublishRule(rule, version, name, when, state.value, begins, reason)\n",
        "        return PublishRule(rule, version, name, when, state.value, begins)\n",
        "a proposal has a reason",
        (f"{_TEST_RULES}::test_a_proposal_has_author_and_reason_and_a_second_person_approves_it",),
    ),
    Mutant(
        "operations: an old name sends another state",
        "apps/fraud/operations/rules_cli.py",
        "StateName.paused",
        "StateName.shadow",
        "old names do what the new ones do",
        (f"{_TEST_RULES}::test_old_names_send_the_bytes_that_the_new_ones_send",),
    ),
    Mutant(
        "operations: what the stream would refuse is sent",
        _TOPIC,
        "        for event in events:\n            book.apply(event)\n",
        "",
        "what would be refused is not sent",
        (f"{_TEST_RULES}::test_a_topic_takes_no_event_that_the_stream_would_refuse",),
    ),
    Mutant(
        "operations: nobody looks whether somebody was faster",
        _TOPIC,
        "            if said.refused and said.offset in sent:\n",
        "            if said.refused and said.offset in sent and not events:\n",
        "what changed nothing is told",
        (f"{_TEST_RULES}::test_what_somebody_else_was_faster_with_is_told",),
    ),
    Mutant(
        "operations: nothing is written into the audit",
        _TOPIC,
        "        self._record(events)\n        return",
        "        return",
        "the audit has what was sent",
        (f"{_TEST_RULES}::test_the_audit_is_the_table_of_what_was_sent",),
    ),
    Mutant(
        "operations: who approves is not shown what it would do",
        _SHOWN,
        "        show_what_if(tried(of, rules, settings, History(last_ms=last_ms, most=most)))\n",
        "        tried(of, rules, settings, History(last_ms=last_ms, most=most))\n",
        "a proposal is shown with what it would have done",
        (f"{_TEST_RULES}::test_a_proposal_is_shown_with_what_it_would_have_done",),
    ),
    Mutant(
        "operations: a report is written in place",
        _REPORT,
        "            write(part)\n",
        "            write(part)\n            write(place)\n",
        "a report is there whole or not at all",
        (f"{_TEST_REPORT}::test_what_fails_leaves_the_report_before_it_and_no_part",),
    ),
    Mutant(
        "operations: a report's part is left behind",
        _REPORT,
        "            part.unlink(missing_ok=True)\n",
        "            pass\n",
        "a report that fails leaves nothing",
        (f"{_TEST_REPORT}::test_what_fails_leaves_the_report_before_it_and_no_part",),
    ),
    Mutant(
        "operations: folders of a report are not made",
        _REPORT,
        "        place.parent.mkdir(parents=True, exist_ok=True)\n",
        "",
        "a report's folders are made",
        (f"{_TEST_REPORT}::test_folders_are_made_and_markdown_stands_beside",),
    ),
    Mutant(
        "operations: alarms are tried without what held for their machines",
        _BACKTEST,
        "    facts = sorted(_facts(_rows(table)), key=_time)\n",
        "    facts: list[Any] = []\n",
        "a back-test finds what the stream found",
        (
            f"{_TEST_BACKTEST}::test_what_a_machine_was_and_when_it_was_mended_is_told_as_the_readings_saw_it",
            f"{_TEST_BACKTEST}::test_delays_dead_bands_and_suppression_are_those_of_the_rule",
        ),
    ),
    Mutant(
        "operations: corrections and late rows are tried as well",
        _BACKTEST,
        '    as_they_came = (pc.field("revision") == 0) & ~pc.field("late")\n',
        '    as_they_came = pc.field("revision") >= 0\n',
        "a back-test finds what the stream found",
        (f"{_TEST_BACKTEST}::test_late_rows_and_corrections_were_in_no_alarm",),
    ),
    Mutant(
        "operations: an alarm that stands is counted with every change",
        _BACKTEST,
        'event.announced and (event.alarm_id not in self._counted or event.change == "re_alarm"):\n',
        "event.announced:\n",
        "alarms are counted as operators are told of them",
        (f"{_TEST_BACKTEST}::test_an_alarm_that_rises_is_one_and_one_that_is_told_again_is_counted_again",),
    ),
    Mutant(
        "operations: a flood begins far later",
        _BACKTEST,
        "count > FLOOD for count",
        "count > FLOOD + 100 for count",
        "floods are counted",
        (f"{_TEST_BACKTEST}::test_floods_are_those_of_the_plants_figures",),
    ),
    Mutant(
        "operations: who acts on a ride is not sent",
        "apps/ridesharing/operations/commanding.py",
        "        operator=operator,\n",
        '        operator="operator",\n',
        "commands over rides say who sent them",
        ("tests/unit/apps/ridesharing/test_settings.py",),
    ),
)
