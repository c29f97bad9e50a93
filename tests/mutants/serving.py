"""Mutants of serving: files of a state store, what was seen since, who may ask."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_CHECKPOINTS: Final = "shared/millrace/checkpoints"
_SERVING: Final = "shared/millrace/serving"
_FRAUD: Final = "apps/fraud"
_FILES: Final = "tests/unit/millrace/checkpoints/test_partition.py"
_VERSIONS: Final = f"{_FILES}::test_what_is_read_is_what_was_written_at_every_version"
_TABLES: Final = f"{_FILES}::test_a_table_finds_every_key_and_no_other_and_one_that_is_torn_is_refused"
_TORN: Final = f"{_FILES}::test_a_changelog_that_is_not_whole_is_refused_and_never_half_read"
_SERVER: Final = "tests/unit/millrace/serving/test_server.py"
_DECISIONS: Final = "tests/unit/apps/fraud/test_serving.py"
_BOX: Final = "tests/unit/millrace/serving/test_outbox.py"
_ANEW: Final = f"{_DECISIONS}::test_with_an_outbox_a_server_that_begins_anew_decides_as_if_it_had_not_ended"
_ALIKE: Final = f"{_DECISIONS}::test_what_is_answered_is_what_the_stream_decides_wherever_batches_are_cut"

_GIVES_WAY: Final = "test_a_server_of_state_gives_way_to_the_job_before_it_has_threads"

MUTANTS: Final = (
    Mutant(
        "serve: a reader of state takes as much as the job",
        "shared/millrace/cli/serve.py",
        "    os.nice(nice)",
        "    os.nice(0)",
        "a server of state gives way to the job",
        (f"tests/unit/millrace/serving/test_server.py::{_GIVES_WAY}",),
    ),
    Mutant(
        "serving: of two tables the older value holds",
        f"{_CHECKPOINTS}/partition.py",
        "found.sequence > newest.sequence",
        "found.sequence < newest.sequence",
        "reading a snapshot: the newest entry of a key",
        (_VERSIONS,),
    ),
    Mutant(
        "serving: what was removed since the snapshot is there",
        f"{_CHECKPOINTS}/partition.py",
        "            if value is None:\n                places[key] = None\n                continue\n",
        "            if value is None:\n                continue\n",
        "reading changelogs: removals",
        (_VERSIONS,),
    ),
    Mutant(
        "serving: of several changelogs the oldest holds",
        f"{_CHECKPOINTS}/partition.py",
        "            found = own | found\n",
        "            found = found | own\n",
        "reading changelogs: their order",
        (_VERSIONS,),
    ),
    Mutant(
        "serving: a reader goes on from a version that is not below",
        f"{_CHECKPOINTS}/partition.py",
        "            since = before[before.index(self.version) + 1 :]\n",
        "            since = []\n",
        "following: all batches between",
        (_VERSIONS,),
    ),
    Mutant(
        "serving: a changelog without its end is taken",
        f"{_CHECKPOINTS}/changelogs.py",
        '        raise StateCorrupted(f"a changelog is not whole: {error}") from error\n',
        "        return\n",
        "torn changelogs are refused",
        (_TORN,),
    ),
    Mutant(
        "serving: the block before is looked into",
        f"{_CHECKPOINTS}/sorted_table.py",
        "            if self._separator(self._restarts[middle]) < key:\n",
        "            if self._separator(self._restarts[middle]) <= key:\n",
        "finding the block of a key",
        (_TABLES,),
    ),
    Mutant(
        "serving: values stay remembered when they have changed",
        f"{_CHECKPOINTS}/committed.py",
        '                    self._kept -= len(self._values.pop((operator, number, key), b""))\n',
        "                    pass\n",
        "following: what is remembered is of the batch",
        (f"{_SERVER}::test_all_that_is_kept_of_a_key_with_the_batch_it_is_from",),
        hangs=True,
    ),
    Mutant(
        "serving: what was seen since is forgotten with every batch",
        f"{_SERVING}/ahead.py",
        "            new.run(one for one in since if id(one) not in old)\n",
        "            new.run(())\n",
        "decisions know what was seen since the batch",
        (_ALIKE,),
    ),
    Mutant(
        "serving: what came while a station was made is left out",
        f"{_SERVING}/ahead.py",
        "                self._seen = [one for one in self._seen if id(one) not in old]\n",
        "                self._seen = []\n",
        "decisions know what was seen since the batch",
        (_ALIKE,),
    ),
    Mutant(
        "serving: what the stream has read is waited for",
        f"{_SERVING}/ahead.py",
        "            return offset < offsets.get(partition, 0)\n",
        "            return offset < offsets.get(partition, 0) - 1\n",
        "what was seen is dropped when the batch has it",
        (_ALIKE,),
    ),
    Mutant(
        "serving: answers wait for acknowledgements",
        "shared/millrace/dashboard/serve.py",
        "socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)",
        "socket.socket(family, socket.SOCK_STREAM)",
        "answers are not held back by 40 ms",
        (f"{_SERVER}::test_answers_do_not_wait_for_acknowledgements",),
    ),
    Mutant(
        "serving: any token will do",
        f"{_SERVING}/gate.py",
        '        return same and scheme.lower() == "bearer"\n',
        '        return scheme.lower() == "bearer"\n',
        "the token",
        (f"{_SERVER}::test_the_token_is_asked_for_everywhere_and_limits_hold_before_it",),
    ),
    Mutant(
        "serving: nobody has to wait",
        f"{_SERVING}/gate.py",
        "        if late > 1e-9:\n",
        "        if late > 1e9:\n",
        "so many questions a second",
        (f"{_SERVER}::test_the_token_is_asked_for_everywhere_and_limits_hold_before_it",),
    ),
    Mutant(
        "serving: a reader may see one process of this batch and one of the next",
        f"{_CHECKPOINTS}/committed.py",
        "        return self._lock\n",
        "        return threading.RLock()\n",
        "reads that belong together are of one batch",
        (f"{_SERVER}::test_readers_and_the_one_who_goes_on_never_see_half_a_batch",),
    ),
    Mutant(
        "serving: a payment that is asked again is decided again",
        f"{_FRAUD}/operations/serving.py",
        "            if asked.told is None:\n",
        "            if True:\n",
        "a repeat gets the same answer",
        (f"{_DECISIONS}::test_a_payment_that_is_asked_again_gets_the_same_answer_and_goes_on_once",),
    ),
    Mutant(
        "serving: without a broker a payment is answered as if it were in the stream",
        f"{_FRAUD}/operations/serving.py",
        '        refused = not asked.is_safe and self._when_down == "refuse"\n',
        "        refused = False\n",
        "what is not in the stream is not answered",
        (f"{_DECISIONS}::test_where_the_broker_is_away_nothing_is_taken_for_handed_on",),
    ),
    Mutant(
        "serving: what stands in the outbox of a server that ended is not sent",
        f"{_SERVING}/outbox.py",
        "        self._to_send += self._waiting.values()\n",
        "",
        "an event that was safe arrives",
        (f"{_BOX}::test_a_server_that_is_killed_loses_nothing_that_was_safe",),
    ),
    Mutant(
        "serving: events are sent before they are on the disk",
        f"{_SERVING}/outbox.py",
        "            self._new.append(kept)\n",
        "            self._new.append(kept)\n            kept.sent.safe.set_result(None)\n",
        "what the disk does not take is not safe",
        (f"{_BOX}::test_what_the_disk_does_not_take_is_not_safe_and_is_not_sent",),
        hangs=True,
    ),
    Mutant(
        "serving: later events overtake one that the broker refused",
        f"{_SERVING}/outbox.py",
        "            if self._refused:\n                if self._in_flight",
        "            if self._refused and not self._to_send:\n                if self._in_flight",
        "the order of the outbox",
        (f"{_BOX}::test_a_broker_that_goes_and_comes_does_not_let_later_events_overtake", _ANEW),
        hangs=True,
    ),
    Mutant(
        "serving: what the server before had seen is not known",
        f"{_FRAUD}/operations/serving.py",
        "        self._ahead.seen_before(seen)\n",
        "",
        "a server goes on from the outbox",
        (_ANEW,),
    ),
    Mutant(
        "serving: answers of the server before are not given again",
        f"{_FRAUD}/operations/serving.py",
        "            asked, _ = self._ask(tx, kept.value)\n",
        "            asked = _Asked(kept.value, threading.Lock())\n",
        "a server goes on from the outbox",
        (_ANEW,),
    ),
    Mutant(
        "serving: the outbox keeps what was committed",
        f"{_SERVING}/outbox.py",
        "offset < ? AND at_ms < ?",
        "offset < ? AND at_ms < ? AND 0",
        "the outbox is tidied",
        (f"{_BOX}::test_what_the_stream_has_committed_is_removed_after_a_while",),
    ),
)
