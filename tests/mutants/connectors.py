"""Mutants of the writers: one write per batch and table, the last revision of a row."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_WRITER: Final = "shared/millrace/connectors/driver_writer.py"
_MERGING: Final = "shared/millrace/connectors/merging.py"
_WAITS: Final = "tests/unit/millrace/connectors/test_merging.py"
_UPKEEP: Final = "shared/millrace/connectors/upkeep.py"
_UPSERT: Final = "tests/unit/millrace/connectors/test_upsert.py"
_RUNTIME: Final = "tests/unit/millrace/runtime"
_TYPED: Final = "tests/unit/millrace/host/test_typed_columns.py"
_CHECKS: Final = f"{_RUNTIME}/test_topic_checks.py"
_ARRIVALS: Final = "shared/millrace/runtime/arrivals.py"

MUTANTS: Final = (
    Mutant(
        "connectors: a batch that comes again is written again",
        _WRITER,
        "        if written is not None and written >= batch_id:\n            return\n",
        "",
        "each batch is in a table once",
        (f"{_UPSERT}::test_an_output_goes_to_all_its_tables_and_each_remembers_its_own_batches",),
    ),
    Mutant(
        "connectors: of a version's fields only the last one counts",
        "shared/millrace/topology/sinks.py",
        "{new} > {old} OR ({new} = {old} AND ({condition}))",
        "{condition}",
        "the newest row stays",
        (f"{_UPSERT}::test_of_several_fields_the_next_one_counts_where_those_before_are_equal",),
    ),
    Mutant(
        "connectors: every merge looks into every file",
        _MERGING,
        "            streamed_exec=False,\n",
        "",
        "a batch costs what its rows cost",
        (f"{_UPSERT}::test_a_merge_looks_into_no_file_that_can_have_none_of_its_keys",),
    ),
    Mutant(
        "connectors: of a batch's versions of a row the first one holds",
        _MERGING,
        "versions[place] >= versions[places[key]]",
        "versions[place] < versions[places[key]]",
        "a batch's last revision of a row",
        (f"{_UPSERT}::test_the_newest_version_of_a_row_stays",),
    ),
    Mutant(
        "connectors: of equal versions in a batch that which came first holds",
        _MERGING,
        "versions[place] >= versions[places[key]]",
        "versions[place] > versions[places[key]]",
        "of equal versions the one that came last",
        (_UPSERT,),
    ),
    Mutant(
        "connectors: an older version of a row replaces a newer one",
        _MERGING,
        '    newer = upsert.newer("t", "s")\n',
        "    newer = None\n",
        "the newest revision of a row holds",
        (f"{_UPSERT}::test_the_newest_version_of_a_row_stays",),
    ),
    Mutant(
        "connectors: an old deletion removes a newer row",
        _MERGING,
        'merge.when_matched_delete(gone if newer is None else f"{gone} AND ({newer})")',
        "merge.when_matched_delete(gone)",
        "a deletion is a revision like any other",
        (f"{_UPSERT}::test_an_old_deletion_does_not_remove_a_newer_row",),
    ),
    Mutant(
        "connectors: the deletion of a row that never was makes one",
        _MERGING,
        '.when_not_matched_insert_all(f"NOT ({gone})")',
        ".when_not_matched_insert_all()",
        "what is deleted is not there",
        (f"{_UPSERT}::test_a_deleted_row_goes_and_one_that_never_was_is_not_made",),
    ),
    Mutant(
        "connectors: a merged batch that comes again is merged again",
        _MERGING,
        "        if batch_id <= self._done:\n            return\n",
        "",
        "each batch is in a table once",
        (f"{_UPSERT}::test_the_same_batch_again_makes_no_commit",),
    ),
    Mutant(
        "connectors: what a killed run left is thrown away",
        _MERGING,
        "                self._merge([_as(rows, wanted)], app_id, batch_id)\n",
        "                pass\n",
        "who begins again merges what is there",
        (f"{_WAITS}::test_who_begins_again_merges_what_is_there",),
    ),
    Mutant(
        "connectors: what was merged before its file was removed is merged again",
        _MERGING,
        "            if batch_id > self._version(app_id):\n",
        "            if True:\n",
        "each batch is in a table once",
        (f"{_WAITS}::test_a_merge_whose_files_were_not_removed_is_not_done_again",),
    ),
    Mutant(
        "connectors: rows wait in memory only",
        _MERGING,
        '        _keep(self._waits / f"{batch_id:012d}.arrow", rows, self._app_id, batch_id)\n',
        "",
        "what a committed batch says is on the disk",
        (f"{_WAITS}::test_who_begins_again_merges_what_is_there",),
    ),
    Mutant(
        "connectors: a merge that failed is told to nobody",
        _MERGING,
        "        if self.failed is not None:\n            raise MergeFailed",
        "        if False:\n            raise MergeFailed",
        "the next batch fails for it",
        (f"{_WAITS}::test_a_merge_that_fails_fails_the_next_batch_and_loses_nothing",),
    ),
    Mutant(
        "connectors: what waits is left when the job ends",
        "shared/millrace/connectors/router.py",
        "        self.small.close()\n",
        "        pass\n",
        "a job that ended has its tables at its last batch",
        (f"{_WAITS}::test_the_large_writer_finds_the_tables_at_the_batch_before",),
    ),
    Mutant(
        "connectors: large batches overtake small ones",
        "shared/millrace/connectors/router.py",
        "            self.small.flush()  # the tables come to the batch before, whoever writes it\n",
        "",
        "batches are merged in their order",
        (f"{_WAITS}::test_the_large_writer_finds_the_tables_at_the_batch_before",),
    ),
    Mutant(
        "connectors: many rows wait like few",
        _MERGING,
        "        if many:\n            self.merge()\n",
        "",
        "what waits is bounded",
        (f"{_WAITS}::test_many_rows_do_not_wait",),
    ),
    Mutant(
        "connectors: a batch of dead letters is believed",
        "shared/millrace/connectors/router.py",
        "dead > total * self.ratio",
        "dead > total",
        "a bad deploy does not eat the stream",
        (
            "tests/unit/millrace/test_dead_letters.py::test_dead_letters_of_every_link_of_a_chain_are_dead_letters",
        ),
    ),
    Mutant(
        "connectors: after a savepoint records are written again",
        _WRITER,
        "pa.array([one not in already for one in rows.event_ids])",
        "pa.array([True for one in rows.event_ids])",
        "what a table has already is not written again",
        ("tests/unit/millrace/inspect/test_tables.py",),
    ),
    Mutant(
        "connectors: records have no identity in Kafka",
        "shared/millrace/connectors/producing.py",
        '[] if identity is None else [("event_id", identity)]',
        "[]",
        "readers can tell repeats",
        (
            "tests/unit/millrace/connectors/test_producing.py::test_a_record_has_the_key_of_its_process_and_its_identity",
        ),
    ),
    Mutant(
        "kafka: topics are created with the broker's default of whose time a record carries",
        "shared/millrace/kafka/admin.py",
        "config={**APPEND_TIME, **spec.config}",
        "config=dict(spec.config)",
        "a record's time is that of its arrival",
        (f"{_CHECKS}::TestCreation",),
    ),
    Mutant(
        "doctor: a fast clock makes disorder of everybody else",
        _ARRIVALS,
        "        plausible = min(event_ms, arrival_ms) if arrival_ms > 0 else event_ms\n",
        "        plausible = event_ms\n",
        "disorder is told from plausible times",
        (f"{_RUNTIME}/test_arrivals.py::test_a_fast_clock_makes_no_disorder_of_the_others",),
    ),
    Mutant(
        "doctor: the bound covers the order within a partition only",
        _ARRIVALS,
        "    return Fit(_rounded_up(max(bound, most + skew)), skew)\n",
        "    return Fit(_rounded_up(bound), skew)\n",
        "the bound covers the delays beside a fast clock",
        (f"{_RUNTIME}/test_arrivals.py",),
    ),
    Mutant(
        "doctor: labels tell what time it is",
        "shared/millrace/runtime/topic_checks.py",
        "for topic in topics if topic.clock and (of",
        "for topic in topics if (of",
        "the bound is that of the clocks",
        (f"{_CHECKS}::TestApp",),
    ),
    Mutant(
        "connectors: of a large chunk the last, short part is left out",
        "shared/millrace/host/spark_records.py",
        "parts = range(0, count, _AT_ONCE)",
        "parts = range(0, count - _AT_ONCE + 1, _AT_ONCE)",
        "a large chunk has the same rows",
        (f"{_TYPED}::test_a_large_chunk_is_the_same_rows_in_their_order",),
    ),
    Mutant(
        "connectors: parts of a large chunk overlap",
        "shared/millrace/host/spark_records.py",
        "chunk.part(at, at + _AT_ONCE)",
        "chunk.part(at, at + _AT_ONCE + 1)",
        "a large chunk has the same rows",
        (f"{_TYPED}::test_a_large_chunk_is_the_same_rows_in_their_order",),
    ),
    Mutant(
        "connectors: a query that failed is waited for again",
        "shared/millrace/runtime/job.py",
        "    except StreamingQueryException:\n        return True",
        "    except StreamingQueryException:\n        raise",
        "what ended a query is told as the job's own error",
        (f"{_RUNTIME}/test_job.py::test_what_ended_a_query_is_told_in_one_line",),
    ),
    Mutant(
        "connectors: a merge leaves its file, and nobody gathers them",
        _MERGING,
        "        self._gather(self._delta)\n",
        "",
        "what a batch costs does not grow with the batches before it",
        (f"{_UPSERT}::test_a_merge_does_not_open_a_file_for_every_batch_before_it",),
    ),
    Mutant(
        "connectors: two compact the same files at once",
        _UPKEEP,
        "        fcntl.flock(opened, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "",
        "of two compactions one does it",
        (f"{_UPSERT}::test_of_two_who_gather_the_same_files_one_does",),
    ),
    Mutant(
        "connectors: what others have compacted is compacted again",
        _UPKEEP,
        "        table.update_incremental()\n",
        "",
        "of two compactions one does it",
        (f"{_UPSERT}::test_of_two_who_gather_the_same_files_one_does",),
    ),
    Mutant(
        "connectors: large files are written anew with small ones",
        _UPKEEP,
        "LEVELS_BYTES = (1 << 20, 16 << 20, 256 << 20)",
        "LEVELS_BYTES = (16 << 20, 16 << 20, 256 << 20)",
        "gathering costs what is small",
        (f"{_UPSERT}::test_large_files_are_not_written_anew_for_a_few_small_ones",),
    ),
)
