"""Mutants of state: what a failed callback leaves, lives and sweeps, versions, pages, sealing, keys."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_RUNNER: Final = "shared/millrace/host/runner.py"
_STATE: Final = "shared/millrace/state"
_TESTS: Final = "tests/unit/millrace"

MUTANTS: Final = (
    Mutant(
        "state: a failed callback keeps what it wrote",
        _RUNNER,
        "        guard.restore(cursor)\n",
        "",
        "atomic callbacks: state is taken back",
        (f"{_TESTS}/host/test_runner.py::test_a_callback_that_raises_leaves_no_trace_but_a_dead_letter",),
    ),
    Mutant(
        "state: a failed callback keeps what it emitted",
        _RUNNER,
        "        del self.emissions[mark:]\n",
        "",
        "atomic callbacks: outputs are taken back",
        (f"{_TESTS}/host/test_runner.py::test_a_callback_that_raises_leaves_no_trace_but_a_dead_letter",),
    ),
    Mutant(
        "state: taking back forgets the callbacks that had succeeded",
        _RUNNER,
        "            for done in guard.log:\n",
        "            for done in guard.log[:0]:\n",
        "atomic callbacks: only the failed one is undone",
        (
            f"{_TESTS}/host/test_runner.py::test_a_callback_that_raises_leaves_no_trace_but_a_dead_letter",
            f"{_TESTS}/host/test_runner.py::test_results_are_those_of_the_input_without_the_failing_events",
        ),
    ),
    Mutant(
        "state: a batch that fails together keeps what it changed in place",
        "shared/millrace/host/together.py",
        "            opened.entry = type(opened.entry)() if before is None else store.decode(before.body)\n",
        "            opened.before = before\n",
        "process_batch is atomic as a whole",
        (f"{_TESTS}/test_process_batch.py",),
    ),
    Mutant(
        "state: a control event that fails keeps what it wrote",
        _RUNNER,
        "                cursor.broadcast = self.broadcast_layout.decode(before)\n",
        "                cursor.broadcast = cursor.broadcast\n",
        "broadcast state is taken back",
        (
            f"{_TESTS}/host/test_runner.py::test_a_control_event_that_fails_is_taken_back_and_the_next_one_counts",
        ),
    ),
    Mutant(
        "state: a value is read at the very end of its life",
        f"{_STATE}/handles.py",
        "found is None or found[0] <= cursor.now",
        "found is None or found[0] < cursor.now",
        "visibility by time to live",
        (f"{_TESTS}/test_process.py::test_a_value_is_visible_until_its_time_to_live_and_not_at_it",),
    ),
    Mutant(
        "state: an element of a map is read at the very end of its life",
        f"{_STATE}/handles.py",
        "        if found[0] <= life.now():\n            return default\n",
        "        if found[0] < life.now():\n            return default\n",
        "visibility by time to live, in maps",
        (
            f"{_TESTS}/state/test_ttl.py::test_what_is_written_is_visible_until_its_life_ends_and_not_at_its_end",
        ),
    ),
    Mutant(
        "state: a read shortens a life",
        f"{_STATE}/cursor.py",
        "        return max(expiry, self.until())\n",
        "        return self.until()\n",
        "lives that reads renew",
        (f"{_TESTS}/state/test_ttl.py::test_a_read_never_shortens_a_life",),
    ),
    Mutant(
        "state: nothing is swept",
        f"{_STATE}/pages.py",
        "        self._sweep()\n",
        "",
        "keys that are never touched again are forgotten",
        (
            f"{_TESTS}/test_process.py::test_the_sweep_forgets_keys_that_are_never_touched_again",
            f"{_TESTS}/state/test_ttl.py::test_time_alone_empties_the_store_within_life_and_sweep",
        ),
    ),
    Mutant(
        "state: what ends at a line of the sweep is left to the next one",
        f"{_STATE}/slots.py",
        "for k, v in slot.items() if v[0] <= line]:",
        "for k, v in slot.items() if v[0] < line]:",
        "a sweep takes all that has expired by its line",
        (f"{_TESTS}/state/test_ttl.py", f"{_TESTS}/state/test_pages.py"),
    ),
    Mutant(
        "state: a sweep wakes its group one line late",
        f"{_STATE}/sweep.py",
        "        return expiry + (self.offset_ms - expiry) % self.step_ms\n",
        "        return expiry + (self.offset_ms - expiry) % self.step_ms + self.step_ms\n",
        "what has expired is gone within a step of the grid",
        (f"{_TESTS}/state/test_ttl.py::test_sweep_lines_are_a_step_apart_and_take_everything_within_one",),
    ),
    Mutant(
        "state: a version is valid only after its own instant",
        f"{_STATE}/versions.py",
        "        place = bisect_right(versions, at, key=_valid_from) - 1\n",
        "        place = bisect_left(versions, at, key=_valid_from) - 1\n",
        "reads as of a time include that time",
        (f"{_TESTS}/state/test_versioned.py::test_puts_in_any_order_are_read_as_of_any_time",),
    ),
    Mutant(
        "state: history is forgotten a version too early",
        f"{_STATE}/slots.py",
        "    while keep + 1 < len(versions) and versions[keep + 1][0] <= horizon:\n",
        "    while keep + 1 < len(versions) and versions[keep][0] <= horizon:\n",
        "what the history still reaches is kept",
        (f"{_TESTS}/state/test_versioned.py::test_reads_are_those_of_a_plain_timeline",),
    ),
    Mutant(
        "state: a key that is only looked at is written",
        f"{_STATE}/pages.py",
        "        if before is not None and before.body == msgspec.Raw(body):\n            return\n",
        "",
        "a batch writes what it touches",
        (f"{_TESTS}/state/test_pages.py::test_looking_at_a_key_writes_nothing",),
    ),
    Mutant(
        "state: a page with a timer of this instant is not looked at",
        f"{_STATE}/pages.py",
        "p for p in self._header.pages if p.timer is not None and p.timer <= watermark",
        "p for p in self._header.pages if p.timer is not None and p.timer < watermark",
        "timers are found by the header",
        (f"{_TESTS}/state/test_pages.py::test_a_timer_is_due_at_its_time_and_not_before",),
    ),
    Mutant(
        "state: a row that waits wakes nobody",
        f"{_STATE}/layout.py",
        "            first = row if first is None or row < first else first\n",
        "            first = first if first is not None else None\n",
        "waiting rows are due as timers are",
        (f"{_TESTS}/state/test_store.py::test_a_row_that_waits_is_due_as_a_timer_is",),
    ),
    Mutant(
        "state: a sealed value opens in any place",
        f"{_STATE}/sealing.py",
        "    return form + msgspec.msgpack.encode(tuple(place))\n",
        "    return form\n",
        "what is encrypted is bound to its process, group and page",
        (f"{_TESTS}/state/test_sealing.py::TestEncrypted::test_a_value_from_another_place_is_refused",),
    ),
    Mutant(
        "state: with keys a value in clear is believed",
        f"{_STATE}/sealing.py",
        "    if ring is not None:\n        raise StateCorrupted(",
        "    if ring is None and stored is None:\n        raise StateCorrupted(",
        "nobody can write state without the key",
        (
            f"{_TESTS}/state/test_sealing.py::TestEncrypted"
            "::test_with_keys_a_value_in_clear_is_refused_as_anyone_can_write_one",
        ),
    ),
    Mutant(
        "state: the length of a key's part is counted in characters",
        "shared/millrace/host/groups.py",
        '    return "".join(f"{len(part.encode())}:{part}" for part in parts)\n',
        '    return "".join(f"{len(part)}:{part}" for part in parts)\n',
        "one text and one hash per key, here and in the JVM",
        (f"{_TESTS}/host/test_groups.py::test_lengths_count_bytes_and_not_characters",),
    ),
    Mutant(
        "packing: events go to a group that is not their key's",
        "shared/millrace/host/key_times.py",
        "        place = self._known[key] = (text, zlib.crc32(text.encode()) % self.groups)\n",
        "        place = self._known[key] = (text, zlib.adler32(text.encode()) % self.groups)\n",
        "a key's events meet its state",
        (f"{_TESTS}/host/test_packing.py::test_every_event_reaches_the_group_of_its_key_in_its_order",),
    ),
    Mutant(
        "packing: events of a key change their order",
        "shared/millrace/host/packing.py",
        '    order = np.argsort(at, kind="stable")\n',
        '    order = np.argsort(at, kind="stable")[::-1]\n',
        "a key's events stay in the order of their source",
        (f"{_TESTS}/host/test_packing.py::test_every_event_reaches_the_group_of_its_key_in_its_order",),
    ),
)
