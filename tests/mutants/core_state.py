"""Mutants of state: what a failed callback leaves, lives and sweeps, versions, pages, sealing, keys."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_RUNNER: Final = "shared/millrace/host/runner.py"
_CONTROLS: Final = "shared/millrace/host/controls.py"
_STATE: Final = "shared/millrace/state"
_PARTS: Final = "shared/millrace/parts"
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
        "        del self.emissions[mark:]\n        cursor, watermark",
        "        cursor, watermark",
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
        _CONTROLS,
        "            return maps, error\n",
        "            return drafts.result(), error\n",
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
        "        return max(expiry, new)\n",
        "        return new\n",
        "lives that reads renew",
        (f"{_TESTS}/state/test_ttl.py::test_a_read_never_shortens_a_life",),
    ),
    Mutant(
        "state: a write that comes out of order ends what a later one began",
        f"{_STATE}/handles.py",
        "        if found is not None and found[0] > expiry:\n",
        "        if found is not None and found[0] > NEVER:\n",
        "lives end at the larger expiry",
        (
            f"{_TESTS}/state/test_ttl.py::test_a_write_that_comes_out_of_order_does_not_end_what_a_later_one_began",
        ),
    ),
    Mutant(
        "state: a life that began before the first tick is not compared with another",
        f"{_STATE}/cursor.py",
        "                return min(expiry, new)\n",
        "                return max(expiry, new)\n",
        "lives end at the larger expiry, on ticks",
        (f"{_TESTS}/state/test_ttl.py::test_on_ticks_too_and_for_what_was_written_before_the_first",),
    ),
    Mutant(
        "state: a default that was only read gives its life to what is written",
        f"{_STATE}/handles.py",
        "        return (kept is placed and at == self._life.now()) or kept == self._pristine\n",
        "        return bool(kept == self._pristine)\n",
        "lives of values that change in place",
        (f"{_TESTS}/state/test_ttl.py::test_a_default_that_was_only_read_lends_its_life_to_nothing",),
    ),
    Mutant(
        "state: a timer set in the past goes back in time",
        _RUNNER,
        "            return timer.at + timer.behind\n",
        "            return timer.at\n",
        "what callbacks see hangs on no sweep",
        (f"{_TESTS}/host/test_past_timers.py",),
    ),
    Mutant(
        "state: a timer that is set once more is at the time of the last one that set it",
        "shared/millrace/process.py",
        "again, behind = min(timer.again, again, key=abs), min(behind, timer.behind)\n",
        "again = min(timer.again, again, key=abs)\n",
        "what callbacks see hangs on no order",
        (f"{_TESTS}/host/test_past_timers.py",),
    ),
    Mutant(
        "state: what cannot be kept is noticed at the commit only",
        _RUNNER,
        "            store.pack_entry(key, opened)\n        except (StateCorrupted",
        "            pass\n        except (StateCorrupted",
        "poison is put aside",
        (f"{_TESTS}/host/test_poison.py",),
    ),
    Mutant(
        "state: of a key that cannot be kept the records stay",
        _RUNNER,
        "            del self.emissions[mark:]\n            packing",
        "            packing",
        "a poisonous event emits nothing",
        (f"{_TESTS}/host/test_poison.py",),
    ),
    Mutant(
        "state: the callback that leaves what cannot be kept is not looked for",
        _RUNNER,
        "        self._renew()\n",
        "        super().append(_handled)\n",
        "poison is put aside",
        (f"{_TESTS}/host/test_poison.py",),
    ),
    Mutant(
        "state: an event with a number that JSON has not waits as another",
        "shared/millrace/inputs.py",
        '    if raw.count(b"null"):',
        '    if raw.count(b"NaN"):',
        "what waits is what came",
        (
            f"{_TESTS}/host/test_poison.py"
            "::test_an_event_with_a_number_that_json_has_not_waits_and_is_taken_back_like_any_other",
        ),
    ),
    Mutant(
        "state: a life may be longer than 64 bits",
        f"{_STATE}/handles.py",
        "        elif expiry > NEVER:\n            expiry = NEVER\n",
        "",
        "lives beyond all times",
        (f"{_TESTS}/host/test_bounds.py::test_no_time_and_no_number_raises_out_of_the_host",),
    ),
    Mutant(
        "state: columns that cannot be kept are",
        "shared/millrace/host/together.py",
        "            store.pack_entry(key, opened)\n",
        "",
        "poison is put aside, in columns",
        (f"{_TESTS}/host/test_poison.py::test_a_column_that_cannot_be_kept_is_handled_one_by_one",),
    ),
    Mutant(
        "state: columns go over the end of a value's life",
        "shared/millrace/host/together.py",
        "        return any(slot is not None and first < slot[0] <= last for slot in slots)\n",
        "        return any(slot is not None and first < slot[0] < last for slot in slots)\n",
        "process_batch gives what process gives",
        (
            f"{_TESTS}/test_process_batch.py"
            "::test_a_value_that_ends_between_two_events_of_a_batch_is_seen_by_the_first_alone",
        ),
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
        f"{_PARTS}/versions.py",
        "    return bisect_right(versions, at, key=_from)\n",
        "    return bisect_left(versions, at, key=_from)\n",
        "reads as of a time include that time",
        (f"{_TESTS}/state/test_versioned.py::test_puts_in_any_order_are_read_as_of_any_time",),
    ),
    Mutant(
        "state: history is forgotten a version too early",
        f"{_PARTS}/versions.py",
        "    keep = max(place_at(versions, before) - 1, 0)\n",
        "    keep = place_at(versions, before)\n",
        "what the history still reaches is kept",
        (f"{_TESTS}/state/test_versioned.py::test_reads_are_those_of_a_plain_timeline",),
    ),
    Mutant(
        "state: a key that is only looked at is written",
        f"{_STATE}/pages.py",
        "        if before is not None and body is before.body:\n            return  # as it was\n",
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
