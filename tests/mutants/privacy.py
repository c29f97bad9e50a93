"""Mutants of what must not be kept: card numbers, and what is known of a card that is to be forgotten."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_PRIVACY: Final = "shared/millrace/privacy"
_NUMBERS: Final = "tests/unit/millrace/privacy/test_card_numbers.py"
_KEYS: Final = "tests/unit/millrace/privacy/test_token_keys.py"
_PACKING: Final = "tests/unit/millrace/host/test_packing.py"
_ERASURE: Final = "tests/unit/millrace/privacy/test_erasure.py"
_RESIDUES: Final = "tests/unit/millrace/privacy/test_residues.py"
_FORGET: Final = "tests/unit/apps/fraud/test_forget.py"
_TOKENS: Final = "tests/unit/apps/fraud/test_tokens.py"
_OF_10000: Final = f"{_NUMBERS}::test_of_10000_messages_all_numbers_go_and_nothing_else_changes"
_WRITTEN: Final = f"{_NUMBERS}::test_a_number_goes_however_it_is_written"

MUTANTS: Final = (
    Mutant(
        "privacy: savepoints are not named",
        "shared/millrace/privacy/residues.py",
        '    for saved in sorted((root / "savepoints").glob("*")):\n',
        "    for saved in ():\n",
        "every store is named",
        (_RESIDUES,),
    ),
    Mutant(
        "privacy: a compacted topic ends by its retention",
        "shared/millrace/privacy/residues.py",
        '    if "delete" not in policy:\n',
        '    if "delete" not in policy and keeps is None:\n',
        "every store is named with what ends it",
        (_RESIDUES,),
    ),
    Mutant(
        "privacy: rows that wait for their table are not named",
        "shared/millrace/privacy/residues.py",
        "        if waits := len(waiting_files(table)):\n",
        "        if waits := 0:\n",
        "every store is named",
        (_RESIDUES,),
    ),
    Mutant(
        "privacy: digits stand side by side",
        f"{_PRIVACY}/numbers.py",
        r"[\W_]{{0,3}}",
        "",
        "numbers with blanks and dashes are found",
        (_OF_10000, _WRITTEN),
    ),
    Mutant(
        "privacy: the check digit is not looked at",
        f"{_PRIVACY}/numbers.py",
        " and has_check_digit(digits)",
        "",
        "what only looks like a number stays",
        (f"{_NUMBERS}::test_what_is_no_card_number_stays", _OF_10000),
    ),
    Mutant(
        "privacy: the first of two readings counts",
        f"{_PRIVACY}/numbers.py",
        '" ".join(map(token, found.numbers))',
        "token(found.numbers[0])",
        "what can be read in two ways has both tokens",
        (f"{_NUMBERS}::test_what_can_be_read_in_two_ways_has_both_tokens",),
    ),
    Mutant(
        "privacy: messages with escapes are clean",
        f"{_PRIVACY}/masking.py",
        "85 if b >= 128 or b == 92 else 32",
        "85 if b >= 128 else 32",
        "a first look tells escapes",
        (_WRITTEN,),
    ),
    Mutant(
        "privacy: among many messages those with escapes are clean",
        f"{_PRIVACY}/masking.py",
        r"|[\\\x80-\xff]",
        r"|[\x80-\xff]",
        "a first look at many tells escapes",
        (_WRITTEN,),
    ),
    Mutant(
        "privacy: identities are looked through",
        f"{_PRIVACY}/masking.py",
        ' or treatment == "kept":',
        ":",
        "what identifies an event stays",
        (_OF_10000,),
    ),
    Mutant(
        "privacy: a message that is no UTF-8 ends the stream",
        f"{_PRIVACY}/masking.py",
        "        except NOT_JSON:\n",
        "        except (msgspec.DecodeError, RecursionError):\n",
        "what cannot be read is put aside",
        (f"{_NUMBERS}::test_of_10000_broken_messages_none_is_too_much_and_numbers_go",),
    ),
    Mutant(
        "privacy: escapes in messages that cannot be read are not seen through",
        f"{_PRIVACY}/masking.py",
        "            if without != plain:\n                made = without\n",
        "",
        "numbers go from what cannot be read",
        (_WRITTEN,),
    ),
    Mutant(
        "privacy: tokens are looked through",
        f"{_PRIVACY}/masking.py",
        "        if PREFIX not in text:\n",
        "        if True:\n",
        "a token stays as it is",
        (f"{_NUMBERS}::test_what_is_no_card_number_stays",),
    ),
    Mutant(
        "privacy: headers and keys of records stay as they are",
        "shared/millrace/host/packing.py",
        "                found = masks.value(found)\n",
        "                pass\n",
        "headers and keys have no numbers",
        (f"{_PACKING}::test_what_is_masked_is_in_no_chunk_neither_in_headers_nor_in_keys",),
    ),
    Mutant(
        "privacy: messages of the engine are masked",
        "shared/millrace/host/packing.py",
        "value if is_control and value.startswith(SYSTEM_PREFIX) else made",
        "made",
        "the engine's messages stay",
        (f"{_PACKING}::test_messages_of_the_engine_are_not_masked_and_what_only_looks_like_one_is",),
    ),
    Mutant(
        "privacy: a new key makes all tokens anew",
        f"{_PRIVACY}/keys.py",
        "            if _has(known, digest):\n                return key.token(digest)\n",
        "",
        "a number keeps its token",
        (f"{_KEYS}::test_of_10000_numbers_over_five_keys_each_keeps_the_token_that_it_had_first",),
    ),
    Mutant(
        "privacy: only what one table names keeps its token",
        "apps/fraud/operations/tokens_cli.py",
        'for column in ("card_id", "event"):',
        'for column in ("card_id",):',
        "late transactions keep their tokens",
        (f"{_TOKENS}::test_a_cards_history_goes_on_over_a_new_key_and_new_cards_have_tokens_of_it",),
    ),
    Mutant(
        "privacy: a merge ends a deletion",
        f"{_PRIVACY}/erasure.py",
        "return beside_others(once)",
        "return once()",
        "a deletion is tried again",
        (f"{_ERASURE}::test_a_merge_that_gets_in_the_way_of_a_deletion_is_no_end_of_it",),
    ),
    Mutant(
        "privacy: a name is found within others",
        f"{_PRIVACY}/erasure.py",
        'text[led.end() :] in known)',
        'text[led.end() :] in known) or any(one in text for one in known)',
        "names are found exactly",
        (f"{_ERASURE}::test_of_10000_rows_those_that_name_42_go_and_no_other",),
    ),
    Mutant(
        "privacy: only whole columns are looked at afterwards",
        f"{_PRIVACY}/erasure.py",
        '            return any(self.named_by(one, of) for one in value)\n',
        '            return False\n',
        "what the app forgot to say is found",
        (
            f"{_ERASURE}::test_of_10000_rows_those_that_name_42_go_and_no_other",
            f"{_FORGET}::test_what_the_app_forgot_to_say_is_found",
        ),
    ),
    Mutant(
        "privacy: a price is taken for a name",
        f"{_PRIVACY}/erasure.py",
        '        return of in self.fields and not',
        '        return of not in () and not',
        "a number is a name where it is told to be",
        (
            f"{_ERASURE}::test_of_10000_rows_those_that_name_42_go_and_no_other",
            f"{_ERASURE}::test_what_names_a_user_42",
        ),
    ),
    Mutant(
        "privacy: of two fields with one key the second hides the first",
        f"{_PRIVACY}/erasure.py",
        'object_pairs_hook=_Object',
        'object_pairs_hook=dict',
        "all of a message is looked at",
        (f"{_ERASURE}::test_what_names_a_user_42",),
    ),
    Mutant(
        "privacy: an item that is called like somebody is somebody",
        f"{_PRIVACY}/erasure.py",
        '            return of not in self.others and self._text(value, of)\n',
        '            return self._text(value, of)\n',
        "names are those of persons",
        (f"{_ERASURE}::test_of_10000_rows_those_that_name_42_go_and_no_other",),
    ),
    Mutant(
        "privacy: a browser that is called like an account is the account",
        f"{_PRIVACY}/erasure.py",
        'known = self._known.get(of, self._all)',
        'known = self._all',
        "a field has names of its own",
        (f"{_ERASURE}::test_what_names_a_user_42",),
    ),
    Mutant(
        "privacy: a message that is cut off names nobody",
        f"{_PRIVACY}/erasure.py",
        '        return bool(self.values) and self._words',
        '        return False and self._words',
        "what can be seen of a letter counts",
        (f"{_ERASURE}::test_what_names_a_user_42",),
    ),
    Mutant(
        "privacy: what waits for its table is not waited for",
        "shared/millrace/connectors/merging.py",
        '    left = {(folder.name, file) for folder in folders for file in waiting_files(folder)}\n',
        '    left: set[tuple[str, Path]] = set()\n',
        "rows do not come back behind a deletion",
        ("tests/unit/millrace/connectors/test_merging.py::test_what_waits_is_waited_for",),
    ),
    Mutant(
        "privacy: the decision stage keeps what it knows of a card that is forgotten",
        "apps/fraud/processes/cards.py",
        "        ctx.emit(Forgotten(event.card_id, none, none, none, none, none, none), on_time=False)\n",
        "        pass\n",
        "all stages forget a card",
        (f"{_FORGET}::test_all_stages_that_know_a_card_by_its_key_forget_it",),
    ),
    Mutant(
        "privacy: a timer keeps the key of a card that is forgotten",
        "apps/fraud/processes/cards.py",
        "        ctx.timers.delete(_EXPIRE)",
        "        pass",
        "nothing of a card stays",
        (f"{_FORGET}::test_all_stages_that_know_a_card_by_its_key_forget_it",),
    ),
    Mutant(
        "privacy: the card's histories outlive it",
        "apps/fraud/processes/stages.py",
        '            if state.kind != "broadcast":\n',
        '            if state.kind != "broadcast" and state.name != "history":\n',
        "a forgotten card is a new one",
        (f"{_FORGET}::test_of_10000_events_what_comes_after_an_erasure_is_as_of_a_new_card",),
    ),
    Mutant(
        "privacy: rows expire when they are as old as may be",
        "shared/millrace/connectors/upkeep.py",
        "{_TIME} < '{before.isoformat()}'",
        "{_TIME} <= '{before.isoformat()}'",
        "rows expire exactly",
        ("tests/unit/millrace/connectors/test_upkeep.py::test_rows_expire_by_their_event_time_and_others_stay",),
    ),
    Mutant(
        "privacy: a key that is gone is made anew",
        "apps/fraud/operations/tokens.py",
        "    if path.parent.is_dir():\n",
        "    if path.parent.is_file():\n",
        "histories do not end unseen",
        (f"{_TOKENS}::test_a_key_that_is_gone_is_not_replaced_by_another",),
    ),
)  # fmt: skip
