"""Mutants of SQL over tables, of aggregations as data, and of upkeep by schedule."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_TABLES: Final = "shared/millrace/query/tables.py"
_MERGING: Final = "shared/millrace/connectors/merging.py"
_QUERY: Final = "tests/unit/millrace/query/test_query.py"
_LIFE: Final = "apps/aggregates/life.py"
_WINDOWING: Final = "apps/aggregates/windowing.py"
_SELECTING: Final = "apps/aggregates/selecting.py"
_WINDOWS: Final = "tests/unit/apps/aggregates/test_windows.py"
_HISTORY: Final = f"{_WINDOWS}::test_any_history_of_definitions_gives_what_a_batch_gives"
_PLACES: Final = "shared/millrace/query/places.py"
_STREAMED: Final = "tests/unit/millrace/query/test_streaming.py"
_CARE: Final = "shared/millrace/connectors/maintenance.py"
_MAINTAINED: Final = "tests/unit/millrace/connectors/test_maintenance.py"

MUTANTS: Final = (
    Mutant(
        "query: what waits for a table is not asked",
        _TABLES,
        "    if not waits:\n        engine",
        "    if True:\n        engine",
        "tables are asked as they are when what waits is merged",
        (f"{_QUERY}::test_a_table_is_asked_as_it_is_when_what_waits_is_merged",),
    ),
    Mutant(
        "query: what waits wins though it is older",
        _TABLES,
        'wins = "TRUE" if newer is None else f"({_sql(newer)}) IS TRUE"',
        'wins = "TRUE"',
        "an older version changes nothing",
        (f"{_QUERY}::test_a_table_is_asked_as_it_is_when_what_waits_is_merged",),
    ),
    Mutant(
        "query: a batch that is merged counts as waiting",
        _MERGING,
        "        return done is None or batch_id > done\n",
        "        return True\n",
        "what is merged while it is read counts once",
        (f"{_QUERY}::test_what_is_merged_while_it_is_read_counts_once",),
    ),
    Mutant(
        "query: statements that are no query are done",
        _TABLES,
        '        _do(engine, f\'CREATE VIEW "{_AS_KEPT}"."asked" AS\\n{_one(text)}\', known, app)\n',
        "",
        "only queries",
        (f"{_QUERY}::test_what_is_wrong_is_said_in_a_line_and_nothing_is_written",),
    ),
    Mutant(
        "query: a demo is asked in place of what the app has written",
        "shared/millrace/runtime/demo_settings.py",
        'if has_demo and not (root / "tables").is_dir() else None',
        "if has_demo else None",
        "an app's own tables come first",
        (f"{_QUERY}::test_of_an_app_that_has_written_nothing_its_last_demo_is_asked",),
    ),
    Mutant(
        "query: a damaged table hides the others",
        "shared/millrace/cli/query.py",
        "            continue\n        for field in fields:\n",
        "            raise\n        for field in fields:\n",
        "the other tables are listed all the same",
        (f"{_QUERY}::test_a_table_that_is_being_made_or_is_damaged_is_named_and_hides_no_other",),
    ),
    Mutant(
        "query: times within values are not looked at",
        "shared/millrace/query/shown.py",
        "        return [_utc(one) for one in value]\n",
        "        return value\n",
        "rows of any kind can be shown",
        (f"{_QUERY}::test_times_of_wrong_clocks_and_within_values_come_as_text",),
    ),
    Mutant(
        "structs: what msgspec keeps of an enum is pickled",
        "shared/millrace/host/spark_structs.py",
        "                type.__delattr__(obj, _CACHE)\n",
        "                pass\n",
        "types of a script go to the workers",
        (
            "tests/unit/millrace/host/test_spark_structs.py::"
            "test_what_fields_are_made_of_comes_along_though_it_was_read_here_before",
        ),
    ),
    Mutant(
        "aggregates: first is last",
        "apps/aggregates/definition.py",
        '    "first": lambda of: first(of, type=_VALUE),\n',
        '    "first": lambda of: last(of, type=_VALUE),\n',
        "functions give what their names say",
        (f"{_WINDOWS}::test_each_function_gives_what_its_name_says",),
    ),
    Mutant(
        "aggregates: one that no event fits any more stops all",
        _SELECTING,
        "                check(aggregation, types)\n",
        "                pass\n",
        "the other aggregations go on",
        (f"{_WINDOWS}::test_where_a_field_is_gone_from_the_events_the_other_aggregations_go_on",),
    ),
    Mutant(
        "aggregates: events without an identity are one",
        _SELECTING,
        "        if told is None:\n            return False\n",
        "",
        "only what has an identity can be a repeat",
        (f"{_WINDOWS}::test_events_without_an_identity_are_no_repeats_of_each_other",),
    ),
    Mutant(
        "aggregates: a version keeps windows that begin after it",
        _WINDOWING,
        "if self.from_ms <= s < self.until_ms]",
        "if self.from_ms <= s]",
        "what is late for a version is late, whoever has the next window",
        (_HISTORY,),
    ),
    Mutant(
        "aggregates: a change ends the version before at once",
        _LIFE,
        "until_ms=min(v.until_ms, max(at, v.from_ms))",
        "until_ms=v.from_ms",
        "open windows go on as they began",
        (_HISTORY,),
    ),
    Mutant(
        "aggregates: two versions speak of a window",
        _WINDOWING,
        "            if not self.version.has(record.window_start_ms):\n",
        "            if False:\n",
        "one version speaks of each window",
        (f"{_WINDOWS}::test_of_versions_that_both_have_seen_a_window_one_speaks",),
    ),
    Mutant(
        "aggregates: an event is for windows that began before its version",
        _LIFE,
        "        return self.from_ms <= start < self.until_ms\n",
        "        return start < self.until_ms\n",
        "no window is told in part",
        (_HISTORY,),
    ),
    Mutant(
        "aggregates: repeats count",
        _SELECTING,
        "        if not wanted or self._is_repeat(event, source):\n",
        "        if not wanted:\n",
        "an event that comes again counts once",
        (_HISTORY,),
    ),
    Mutant(
        "aggregates: a late event is dropped",
        _SELECTING,
        "        self.process(event, ctx)\n",
        "        return\n",
        "late events refine",
        (_HISTORY,),
    ),
    Mutant(
        "aggregates: keys have no limit",
        _WINDOWING,
        ">= keys_per_shard(aggregation):\n",
        ">= 1 << 60:\n",
        "state is bounded in keys",
        (f"{_WINDOWS}::test_keys_beyond_the_limit_are_left_out_and_told",),
    ),
    Mutant(
        "aggregates: windows have no limit",
        _WINDOWING,
        "        if len(windows) > max(before, aggregation.max_windows):\n",
        "        if False:\n",
        "state is bounded in windows",
        (f"{_WINDOWS}::test_windows_beyond_the_limit_are_left_out_and_told",),
    ),
    Mutant(
        "aggregates: what was over stays",
        _WINDOWING,
        "        if not windows:\n            self.kept.remove(place)\n            return NEVER\n",
        "        if not windows:\n            return NEVER\n",
        "nothing is kept when windows are over",
        (_HISTORY,),
    ),
    Mutant(
        "maintenance: beside a job its tables are compacted",
        _CARE,
        "    if is_merged and is_running(root):\n",
        "    if False:\n",
        "never in the way of a merge",
        (f"{_MAINTAINED}::test_beside_a_job_a_table_that_is_merged_into_is_the_jobs",),
    ),
    Mutant(
        "maintenance: it is always quiet",
        _CARE,
        "        if idle >= care.quiet_s:\n",
        "        if True:\n",
        "in quiet moments",
        (f"{_MAINTAINED}::test_a_table_that_is_written_to_is_left_alone_until_it_is_quiet",),
    ),
    Mutant(
        "query: rows go into a Parquet folder of another query",
        _PLACES,
        '    if folder.suffix == ".parquet":\n',
        "    if False:\n",
        "nothing is left out in silence",
        (f"{_STREAMED}::test_where_rows_cannot_go_is_said_before_spark_starts",),
    ),
    Mutant(
        "query: a checkpoint is taken for any query's",
        _PLACES,
        "        if was.split() != now.split():\n",
        "        if False:\n",
        "a checkpoint knows its query",
        (f"{_STREAMED}::test_a_checkpoint_is_of_one_query_at_a_time",),
    ),
    Mutant(
        "query: quoted names are not looked at",
        "shared/millrace/query/topics.py",
        '    first, second = (part.strip("`") for part in match.groups())\n',
        "    first, second = match.groups()\n",
        "names may be quoted",
        (f"{_STREAMED}::test_names_may_be_quoted",),
    ),
    Mutant(
        "aggregates: what is counted once is given as it is",
        _SELECTING,
        "    return lambda event: digest(get(event))\n",
        "    return lambda event: get(event)\n",
        "texts are counted, too",
        (f"{_WINDOWS}::test_distinct_counts_and_quantiles_are_the_same_for_any_cut_and_as_near_as_is_said",),
    ),
    Mutant(
        "aggregates: what sketches come to is not bounded",
        "apps/aggregates/definition.py",
        "    if size > MAX_PART_BYTES:\n",
        "    if False:\n",
        "a definition that may come to more is refused",
        (f"{_WINDOWS}::test_what_contradicts_itself_is_refused",),
    ),
    Mutant(
        "aggregates: a text is kept as long as it is",
        "apps/aggregates/selecting.py",
        "else text[:MAX_TEXT]",
        "else text",
        "what is kept of a text is bounded",
        ("tests/unit/apps/aggregates/test_windows.py::test_of_a_long_text_the_beginning_is_kept",),
    ),
    Mutant(
        "aggregates: texts take no room",
        "apps/aggregates/definition.py",
        "            if call.function in _SKETCHES or (call.field in texts and call.keeps_texts)\n",
        "            if call.function in _SKETCHES\n",
        "state is bounded",
        ("tests/unit/apps/aggregates/test_windows.py::test_what_contradicts_itself_is_refused",),
    ),
)
