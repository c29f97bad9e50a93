"""Mutants of operators: who a token belongs to, what a role allows, and that nothing goes past them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_OPERATIONS: Final = "shared/millrace/operations"
_DASHBOARD: Final = "shared/millrace/dashboard"
_ROSTER: Final = "tests/unit/millrace/operations/test_roster.py"
_ACTING: Final = "tests/unit/millrace/operations/test_acting.py"
_PAGE: Final = "tests/unit/millrace/dashboard/test_operators.py"
_COMMANDS: Final = "tests/unit/apps/test_operators.py"
_HISTORY: Final = f"{_ROSTER}::test_after_any_history_a_token_is_whose_it_was_given_to_last"
_REFUSED: Final = f"{_COMMANDS}::test_with_operators_it_is_refused_without_a_token_or_a_role_that_does"
_BROKEN: Final = f"{_ROSTER}::test_a_broken_one_lets_nobody_act_and_is_not_written_over"
_ENDS: Final = f"{_PAGE}::test_a_session_ends_with_its_token"

MUTANTS: Final = (
    Mutant(
        "operators: any secret does for an id",
        f"{_OPERATIONS}/roster.py",
        "return found if same and found is not None",
        "return found if found is not None",
        "a token is proved by its secret",
        (_HISTORY,),
    ),
    Mutant(
        "operators: an unknown token is found to be one in no time",
        f"{_OPERATIONS}/roster.py",
        'return _made("", Role.look, 0, None, COST)[0]',
        'return _made("", Role.look, 0, None, Cost(2, 1, 1))[0]',
        "the time tells nothing of a token",
        (f"{_ROSTER}::test_an_unknown_token_costs_what_a_known_one_does",),
    ),
    Mutant(
        "operators: a token has no end",
        f"{_OPERATIONS}/roster.py",
        "self.until_ms is not None and now_ms >= self.until_ms",
        "self.until_ms is not None and self.until_ms < 0",
        "tokens end",
        (_HISTORY,),
    ),
    Mutant(
        "operators: roles are all one",
        f"{_OPERATIONS}/roster.py",
        "return steps.index(self) >= steps.index(needed)",
        "return self in steps and needed in steps",
        "roles are steps",
        (f"{_ROSTER}::test_roles_are_steps",),
    ),
    Mutant(
        "operators: two whose names differ in case only",
        f"{_OPERATIONS}/roster.py",
        "one.name.casefold() == name.casefold() for",
        "one.name == name for",
        "names are of one person each",
        (_HISTORY,),
    ),
    Mutant(
        "operators: a broken file is none",
        f"{_OPERATIONS}/roster.py",
        '            raise RosterError(f"{self.path} is no roster of operators: {error}") from None\n',
        "            return Roster()\n",
        "a broken file lets nobody act",
        (_BROKEN,),
    ),
    Mutant(
        "operators: what is no roster of ours is taken",
        f"{_OPERATIONS}/roster.py",
        "if wrong := _wrong(found):",
        "if (wrong := _wrong(found)) and not found.operators:",
        "a broken file lets nobody act",
        (_BROKEN,),
    ),
    Mutant(
        "operators: others may write the file",
        f"{_OPERATIONS}/roster.py",
        "if status.st_mode & (stat.S_IWGRP | stat.S_IRWXO):",
        "if status.st_mode & stat.S_IROTH:",
        "only its owner says who is an operator",
        (f"{_ROSTER}::test_one_that_others_can_reach_lets_nobody_act",),
    ),
    Mutant(
        "operators: a file that was named and is gone lets everybody act",
        f"{_OPERATIONS}/roster.py",
        "if self.required or self.path.is_symlink():",
        "if self.path.is_symlink():",
        "no roster where one was named is an error",
        (f"{_ROSTER}::test_without_a_file_there_are_no_operators_unless_somebody_has_named_it",),
    ),
    Mutant(
        "operators: two who change the file at once",
        f"{_OPERATIONS}/roster.py",
        "        fcntl.flock(descriptor, fcntl.LOCK_EX)\n",
        "",
        "no operator is lost",
        (f"{_ROSTER}::test_of_many_who_change_it_at_once_none_is_lost",),
    ),
    Mutant(
        "operators: any name goes with a token",
        f"{_OPERATIONS}/sending.py",
        "if by is not None and by.strip() != operator.name:",
        "if by is not None and not by.strip():",
        "the name is that of the token",
        (_ACTING,),
    ),
    Mutant(
        "operators: the role is not asked",
        f"{_OPERATIONS}/acting.py",
        "if not operator.role.covers(role):",
        "if not operator.role:",
        "what one may not do is refused",
        (_ACTING,),
    ),
    Mutant(
        "operators: who may decide may approve a rule",
        "shared/millrace/cli/rules.py",
        "who(by, settings, Role.approve)",
        "who(by, settings)",
        "approving takes who may approve",
        (_REFUSED,),
    ),
    Mutant(
        "operators: everybody may promote a model",
        "shared/millrace/models/commands.py",
        "    acting_on(shop.learner.app, Role.approve)\n",
        "    assert acting_on and Role.approve\n",
        "promoting takes who may approve",
        (_REFUSED,),
    ),
    Mutant(
        "operators: an alarm is acknowledged by any name",
        "apps/iot_maintenance/operations/cli.py",
        "operator=who(by, settings)",
        'operator=by or "somebody"',
        "commands ask who acts",
        (_REFUSED,),
    ),
    Mutant(
        "operators: a policy is switched by anybody",
        "apps/ridesharing/operations/cli.py",
        "    who(by, settings)\n",
        "    assert who\n",
        "commands ask who acts",
        (_REFUSED,),
    ),
    Mutant(
        "operators: the page takes the name that is sent",
        f"{_DASHBOARD}/page.py",
        'if values.get(BY) not in (None, "", operator.name):',
        "if values.get(BY):\n            return values\n        if False:",
        "on the page the name is that of the token",
        (f"{_PAGE}::test_an_operator_logs_in_and_acts_by_the_name_of_the_token",),
    ),
    Mutant(
        "operators: the page does not ask the role",
        f"{_DASHBOARD}/page.py",
        "        may(operator, self.role)\n",
        "        assert may\n",
        "on the page what one may not do is refused",
        (f"{_PAGE}::test_acting_takes_the_role_that_the_action_says",),
    ),
    Mutant(
        "operators: the page's token acts",
        f"{_DASHBOARD}/access.py",
        "        if found is None or not self._has_both(request):\n",
        "        if found is None and (self.is_known(request) or self._by_bearer(request)):\n"
        "            return None\n"
        "        if found is None or not self._has_both(request):\n",
        "acting takes an operator",
        (f"{_PAGE}::test_the_pages_token_lets_look_and_not_act",),
    ),
    Mutant(
        "operators: a session outlives its token",
        f"{_DASHBOARD}/access.py",
        "return None if now is None else kept._replace(operator=now)",
        "return kept if now is None else kept._replace(operator=now)",
        "a session ends with its token",
        (_ENDS,),
    ),
    Mutant(
        "operators: a session has the role that it began with",
        f"{_DASHBOARD}/access.py",
        "return None if now is None else kept._replace(operator=now)",
        "return None if now is None else kept",
        "a role is that of the moment",
        (f"{_PAGE}::test_a_role_is_that_of_the_moment",),
    ),
    Mutant(
        "operators: one may try as often as one likes",
        f"{_DASHBOARD}/access.py",
        'return math.ceil(self._tries.wait_s(address) or self._tries_of_all.wait_s(""))',
        'return math.ceil(self._tries_of_all.wait_s(""))',
        "tries to log in are few",
        (f"{_PAGE}::test_wrong_tokens_are_refused_and_tries_are_few",),
    ),
    Mutant(
        "operators: many addresses may try as often as they like",
        f"{_DASHBOARD}/access.py",
        'return math.ceil(self._tries.wait_s(address) or self._tries_of_all.wait_s(""))',
        "return math.ceil(self._tries.wait_s(address))",
        "tries to log in are few",
        (f"{_PAGE}::test_all_addresses_together_have_few_tries_too",),
    ),
    Mutant(
        "operators: another page logs somebody in",
        f"{_DASHBOARD}/access.py",
        '        if headers.get("origin") != own or not _from_our_page(request):\n',
        '        if not logs_in and (headers.get("origin") != own or not _from_our_page(request)):\n',
        "a foreign page cannot log anybody in",
        (f"{_PAGE}::test_another_page_cannot_log_anybody_in",),
    ),
    Mutant(
        "operators: with operators all of a closed page is open",
        f"{_DASHBOARD}/access.py",
        'is_empty = request.path in ("/", "/api/session") or request.path.startswith("/static/")',
        'is_empty = request.path.startswith("/")',
        "before one has logged in there is nothing to see",
        (f"{_PAGE}::test_where_looking_takes_a_token_too_an_operators_does_and_the_form_is_there",),
    ),
)
