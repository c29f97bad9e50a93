"""Mutants of the fraud app's page: links, control group, case work, thresholds; actions of pages."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_APP: Final = "apps/fraud"
_TESTS: Final = "tests/unit/apps/fraud"
_LINKS: Final = f"{_TESTS}/test_dashboard_links.py"
_CONTROL: Final = f"{_TESTS}/test_dashboard_control.py"
_WORK: Final = f"{_TESTS}/test_dashboard_work.py"
_CHANGES: Final = f"{_TESTS}/test_dashboard_changes.py"
_SERVER: Final = "tests/unit/millrace/dashboard/test_server.py"

MUTANTS: Final = (
    Mutant(
        "page: what everybody uses is followed",
        f"{_APP}/dashboard/links.py",
        "if counts.cards <= MOST_CARDS]",
        "if counts.cards]",
        "hubs are counted",
        (f"{_LINKS}::test_what_many_cards_use_is_counted_and_not_followed",),
    ),
    Mutant(
        "page: alerts that are known to be genuine are red",
        f"{_APP}/dashboard/links.py",
        '["review", "block"]) & ~genuine',
        '["review", "block"])',
        "what is amiss is red",
        (f"{_LINKS}::test_a_graph_is_what_loops_over_the_payments_give",),
    ),
    Mutant(
        "page: a graph has as many nodes as there are",
        f"{_APP}/dashboard/links.py",
        "    shown = order[:MOST_NODES]\n",
        "    shown = order\n",
        "graphs are bounded",
        (f"{_LINKS}::test_a_graph_does_not_depend_on_the_order_of_rows_and_is_bounded",),
    ),
    Mutant(
        "page: lines count the payments of cards that are not drawn",
        f"{_APP}/dashboard/links.py",
        "    if len(shown) < len(order):\n",
        "    if not shown:\n",
        "a line counts the payments between what is drawn",
        (f"{_LINKS}::test_a_graph_is_what_loops_over_the_payments_give",),
    ),
    Mutant(
        "page: fewer decisions are kept than are told",
        f"{_APP}/dashboard/recent.py",
        "        while self._count - len(parts[first]) >= self._most:\n",
        "        while self._count > self._most and first < len(parts) - 1:\n",
        "the newest decisions are kept",
        (f"{_LINKS}::test_the_newest_decisions_are_kept_however_files_are_cut",),
    ),
    Mutant(
        "page: blocks by list count as what the control group stands for",
        f"{_APP}/dashboard/control_group.py",
        '_BY_LIST: Final = "BLOCK_LIST"',
        '_BY_LIST: Final = ""',
        "the control group stands for what chance could let through",
        (f"{_CONTROL}::test_the_control_group_is_what_counting_by_hand_gives",),
    ),
    Mutant(
        "page: what was declined and nobody spoke of is genuine",
        f"{_APP}/dashboard/control_group.py",
        "authorisations=_declined(data, stopped)",
        "authorisations=None",
        "silence says nothing of what was declined",
        (f"{_CONTROL}::test_the_control_group_is_what_counting_by_hand_gives",),
    ),
    Mutant(
        "page: amounts are those of any currency",
        f"{_APP}/dashboard/data.py",
        'row.get("billing_amount") if row.get("billing_currency") else row["amount"]',
        'row["amount"]',
        "amounts are in the app's currency",
        (f"{_CONTROL}::test_the_control_group_is_what_counting_by_hand_gives",),
    ),
    Mutant(
        "page: the interval of a share is around the share",
        "shared/millrace/experiments/shares.py",
        "(share + z * z / (2 * of)) / scale",
        "share / scale",
        "the interval holds the truth",
        ("tests/unit/millrace/experiments/test_shares.py",),
    ),
    Mutant(
        "page: who is missing in a day that is over is added from the cases",
        f"{_APP}/dashboard/work.py",
        "if key[:2] not in over}",
        "if key not in told}",
        "a day that is over is the stream's",
        (f"{_WORK}::test_days_that_are_over_are_those_of_the_stream_and_others_of_the_cases",),
    ),
    Mutant(
        "page: the last verdict counts, not the first",
        f"{_APP}/dashboard/work.py",
        "    for line in case.history:\n",
        "    for line in reversed(case.history):\n",
        "a decision counts once, for who made it",
        (f"{_WORK}::test_what_cases_say_of_people_is_what_the_queues_count",),
    ),
    Mutant(
        "page: a claimed case is offered to be claimed",
        f"{_APP}/dashboard/work.py",
        'claim = "release" if _is_claimed(case, now_ms) else "claim"',
        'claim = "claim"',
        "claims can be given back from the page",
        (f"{_WORK}::test_cases_are_claimed_noted_and_given_back",),
    ),
    Mutant(
        "page: a score at a threshold is below it",
        f"{_APP}/dashboard/changes.py",
        'side="left"',
        'side="right"',
        "the curve counts what would be blocked",
        (f"{_CHANGES}::test_the_curve_counts_payments_and_frauds_at_or_above_each_score",),
    ),
    Mutant(
        "page: proposals stay as they were read first",
        f"{_APP}/dashboard/changes.py",
        'data.once("control", (name, end), ',
        'data.once("control", name, ',
        "proposals are those of now",
        (f"{_CHANGES}::test_a_threshold_is_proposed_agreed_with_and_undone_from_the_page",),
    ),
    Mutant(
        "page: card numbers go out in the reasons of proposals",
        f"{_APP}/dashboard/changes.py",
        '    asked = _changes({**values, "reason": reason}, ',
        "    asked = _changes(values, ",
        "card numbers are kept nowhere",
        (f"{_CHANGES}::test_card_numbers_in_reasons_are_tokens",),
    ),
    Mutant(
        "page: a look ahead is over the folder of the settings",
        f"{_APP}/dashboard/changes.py",
        'update={"root": str(data.root)}',
        "update={}",
        "the page looks at its own folder",
        (f"{_CHANGES}::test_a_look_ahead_is_what_loops_over_the_decisions_give",),
    ),
    Mutant(
        "page: looking ahead does it",
        "shared/millrace/dashboard/server.py",
        "        if look:\n",
        "        if False:\n",
        "a look ahead does nothing",
        (f"{_SERVER}::test_every_action_and_a_look_ahead_take_the_token",),
    ),
    Mutant(
        "page: a look ahead needs every field",
        "shared/millrace/dashboard/live.py",
        "action.checked(values, complete=False)",
        "action.checked(values)",
        "one looks ahead before all is filled in",
        (f"{_SERVER}::test_a_page_may_have_several_actions_of_which_some_can_be_looked_at_ahead",),
    ),
    Mutant(
        "page: an action that is not named is the first",
        "shared/millrace/dashboard/page.py",
        "        if not name and len(self.actions) == 1:\n",
        "        if not name and self.actions:\n",
        "what is not named is not done",
        (f"{_SERVER}::test_a_page_may_have_several_actions_of_which_some_can_be_looked_at_ahead",),
    ),
)
