"""Sending dead letters again: what is sent, what is noted, and that nothing is sent twice unasked."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from millrace.dead_letters import replay as replay_module
from millrace.dead_letters.journal import Entry, Journal
from millrace.dead_letters.letters import Letter, Position
from millrace.dead_letters.replay import (
    Original,
    Outgoing,
    Plan,
    Replay,
    Summary,
    Undelivered,
    load_fix,
    shown,
)
from millrace.errors import UserError


class Taken:
    """Takes records; ``refuse`` are not delivered, and after ``dies_after`` of them it is killed."""

    def __init__(
        self, refuse: Sequence[str] = (), dies_after: int | None = None, why: str = "too large"
    ) -> None:
        self.records: list[Outgoing] = []
        self._why = why
        self._refuse, self._left = refuse, dies_after

    def send(self, records: Sequence[Outgoing]) -> Mapping[str, Undelivered]:
        for record in records:
            if self._left is not None:
                if not self._left:
                    raise KeyboardInterrupt
                self._left -= 1
            self.records.append(record)
        refused = [r.letter_id for r in records if r.letter_id in self._refuse]
        return {one: Undelivered(self._why, self._why == "no answer") for one in refused}

    @property
    def ids(self) -> list[str]:
        return [record.letter_id for record in self.records]


class Memory(Journal):
    """A journal without a table, for what does not hang on it."""

    def __init__(self) -> None:
        super().__init__("", "memory")

    def _load(self) -> None:
        """Begin with nothing."""

    def _append(self, entries: list[Entry], now_ms: int) -> None:
        """Keep nothing but what is known."""


class Shelf:
    """Events as Kafka has them."""

    def __init__(self, events: Mapping[Position, Original]) -> None:
        self.events = dict(events)

    def fetch(self, positions: Sequence[Position]) -> Mapping[Position, Original]:
        return {p: self.events[p] for p in positions if p in self.events}


def letter(number: int, **changes: Any) -> Letter:
    fields: dict[str, Any] = {
        "letter_id": f"letter-{number}",
        "written_ms": number,
        "reason": "schema",
        "stage": "decode",
        "process": "P",
        "error": "wrong",
        "key": f"{len(f'k{number}')}:k{number}",
        "position": Position("events", number % 2, number),
        "value": b'{"n":%d}' % number,
        "headers": '{"ce_id":"e","twice":["a","b"]}',
    }
    return Letter(**{**fields, **changes})


LETTERS = [letter(n) for n in range(4)]


def run(
    path: Path | None,
    letters: Sequence[Letter] = LETTERS,
    plan: Plan | None = None,
    sender: Taken | None = None,
    originals: Shelf | None = None,
    at: int = 1_000,
) -> tuple[Summary, Taken]:
    """Run a replay with the journal in a folder, or with one in memory."""
    sender = sender or Taken()
    journal = Memory() if path is None else Journal(str(path / "journal"), f"run-{at}")
    return Replay(plan or Plan(), journal, originals, now=lambda: at).run(letters, sender), sender


def lines(path: Path) -> list[tuple[str, str, int]]:
    rows = DeltaTable(str(path / "journal")).to_pyarrow_table().to_pylist()
    return sorted((row["letter_id"], row["status"], row["attempt"]) for row in rows)


def test_an_event_goes_as_kafka_has_it_to_where_it_came_by() -> None:
    headers = [("ce_id", b"\xff"), ("empty", None)]
    kept = {Position("events", 1, 1): Original(b"\x00key", b'{"n":1}', headers)}
    summary, sender = run(None, [letter(1, headers=None, key=None)], originals=Shelf(kept))
    (record,) = sender.records
    assert (record.topic, record.partition, record.key, record.value) == ("events", 1, b"\x00key", b'{"n":1}')
    assert record.headers == [*headers, ("dlq.replayed_from", b"letter-1"), ("dlq.replay_count", b"1")]
    assert (summary.sent, summary.from_kafka, summary.fixed) == (1, 1, 0)


def test_what_kafka_has_no_more_goes_as_the_letter_keeps_it() -> None:
    summary, sender = run(None, [letter(1)], originals=Shelf({}))
    (record,) = sender.records
    assert (record.key, record.value) == (b"k1", b'{"n":1}')
    assert list(record.headers)[:3] == [("ce_id", b"e"), ("twice", b"a"), ("twice", b"b")]
    assert (summary.sent, summary.from_kafka) == (1, 0)


def test_another_event_at_the_same_position_is_not_taken_for_it() -> None:
    other = {Position("events", 1, 1): Original(b"other", b"another topic of the name", [])}
    _, sender = run(None, [letter(1)], originals=Shelf(other))
    assert (sender.records[0].key, sender.records[0].value) == (b"k1", b'{"n":1}')


KEYS = [(None, None), ("2:k1", b"k1"), ("1:a2:bc", b"a|bc"), ("odd", b"odd")]


@pytest.mark.parametrize(("key", "wanted"), KEYS)
def test_the_key_of_a_letter_is_the_text_of_its_parts(key: str | None, wanted: bytes | None) -> None:
    _, sender = run(None, [letter(1, key=key)])
    assert sender.records[0].key == wanted


def test_a_letter_is_sent_once_unless_asked_again(tmp_path: Path) -> None:
    first, sender = run(tmp_path)
    assert (first.sent, sender.ids) == (4, [one.letter_id for one in LETTERS])
    second, sender = run(tmp_path, [*LETTERS, letter(9)], at=2_000)
    assert sender.ids == ["letter-9"]
    assert second.skipped == {"sent before (--again sends them once more)": 4}
    third, sender = run(tmp_path, LETTERS[:1], Plan(again=True), at=3_000)
    assert third.sent == 1
    noted = [line[1:] for line in lines(tmp_path) if line[0] == "letter-0"]
    assert noted == [("sending", 1), ("sending", 2), ("sent", 1), ("sent", 2)]


def test_a_replay_that_was_killed_leaves_doubt_and_sends_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "CHUNK", 2)
    killed = Taken(dies_after=3)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, sender=killed)
    assert killed.ids == ["letter-0", "letter-1", "letter-2"]
    after, sender = run(tmp_path, at=2_000)
    assert sender.ids == []
    assert sum(after.skipped.values()) == 4
    assert [n for why, n in after.skipped.items() if why.startswith("in doubt")] == [2]
    asked, sender = run(tmp_path, plan=Plan(in_doubt=True), at=3_000)
    assert sender.ids == ["letter-2", "letter-3"]
    assert asked.sent == 2


def test_what_was_not_delivered_is_sent_by_the_next_replay(tmp_path: Path) -> None:
    first, _ = run(tmp_path, sender=Taken(refuse=["letter-2"]))
    assert (first.sent, first.failed, first.seen) == (3, {"letter-2": "too large"}, 4)
    assert ("letter-2", "failed", 1) in lines(tmp_path)
    second, sender = run(tmp_path, at=2_000)
    assert sender.ids == ["letter-2"]
    assert ("letter-2", "sent", 2) in lines(tmp_path)
    assert second.failed == {}


def test_what_nobody_answered_for_is_in_doubt(tmp_path: Path) -> None:
    first, _ = run(tmp_path, LETTERS[:2], sender=Taken(refuse=["letter-1"], why="no answer"))
    assert first.failed == {"letter-1": "no answer"}
    assert run(tmp_path, LETTERS[:2], at=2_000)[1].ids == []
    assert run(tmp_path, LETTERS[:2], Plan(in_doubt=True), at=3_000)[1].ids == ["letter-1"]


def test_two_replays_at_once_do_not_both_send(tmp_path: Path) -> None:
    run(tmp_path, LETTERS[:1])
    first, second = (Journal(str(tmp_path / "journal"), name) for name in ("a", "b"))
    sent = Taken()
    Replay(Plan(), first, now=lambda: 1).run(LETTERS, sent)
    other = Taken()
    with pytest.raises(UserError, match="another replay writes to"):
        Replay(Plan(), second, now=lambda: 1).run(LETTERS, other)
    assert (len(sent.ids), other.ids) == (3, [])


def test_a_function_changes_leaves_out_or_fails_one_letter(tmp_path: Path) -> None:
    def fix(one: Letter) -> bytes | None:
        made: dict[str, bytes | None] = {"letter-0": b"new", "letter-1": None, "letter-3": one.value}
        return made[one.letter_id]

    summary, sender = run(tmp_path, plan=Plan(fix=fix))
    assert [(r.value, r.fixed) for r in sender.records] == [(b"new", True), (b'{"n":3}', False)]
    assert (summary.sent, summary.fixed) == (2, 1)
    assert list(summary.failed) == ["letter-2"]
    assert summary.failed["letter-2"].startswith("the fix failed: KeyError")
    assert summary.skipped == {"left out by the fix": 1}
    # What failed or was left out was not sent, so that another function may have it.
    again, sender = run(tmp_path, plan=Plan(fix=lambda _: b"x"), at=2_000)
    assert (again.sent, sender.ids) == (2, ["letter-1", "letter-2"])


def test_a_function_that_gives_no_bytes_is_told_so() -> None:
    summary, _ = run(None, LETTERS[:1], Plan(fix=lambda _: "text"))  # type: ignore[arg-type,return-value]
    assert "it gave str, not bytes or None" in summary.failed["letter-0"]


def test_what_has_no_bytes_or_no_topic_is_left_out() -> None:
    timer = letter(3, stage="timer", position=None, value=b'{"timer":"close"}')
    letters = [letter(0, value=None), letter(1, position=None), letter(2), timer]
    summary, sender = run(None, letters)
    assert sender.ids == ["letter-2"]
    assert sorted(summary.skipped.values()) == [1, 1, 1]
    summary, sender = run(None, letters, Plan(to="repaired"), at=2_000)
    assert [(r.letter_id, r.topic, r.partition, r.key) for r in sender.records] == [
        ("letter-1", "repaired", None, b"k1"),
        ("letter-2", "repaired", None, b"k2"),
    ]


def test_an_event_of_two_letters_is_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = letter(1), letter(2, position=letter(1).position, process="Q")
    assert run(None, [first, second])[1].ids == ["letter-1"]
    monkeypatch.setattr(replay_module, "CHUNK", 1)
    assert run(None, [first, second])[1].ids == ["letter-1"]
    run(tmp_path, [first])
    summary, sender = run(tmp_path, [second], at=2_000)
    assert (sender.ids, list(summary.skipped)) == ([], ["of an event of which another letter is sent"])


def test_an_event_that_comes_back_each_time_is_left_in_the_end() -> None:
    headers = '{"dlq.replay_count":"%d","dlq.replayed_from":"letter-0"}'
    summary, sender = run(None, [letter(1, headers=headers % 2), letter(2, headers=headers % 3)])
    (record,) = sender.records
    assert record.headers == [("dlq.replayed_from", b"letter-1"), ("dlq.replay_count", b"3")]
    assert summary.skipped == {"replayed 3 times already (--most sets the limit)": 1}
    assert run(None, [letter(2, headers=headers % 3)], Plan(most=9))[0].sent == 1


def test_a_dry_run_says_what_a_run_then_does_and_notes_nothing(tmp_path: Path) -> None:
    letters = [*LETTERS, letter(5, value=None)]
    journal = Journal(str(tmp_path / "journal"), "dry")
    records, told = Replay(Plan(), journal, now=lambda: 0).preview(letters)
    assert not (tmp_path / "journal").exists()
    done, sender = run(tmp_path, letters)
    assert records == sender.records
    assert told == done
    assert [r.letter_id for r in Replay(Plan(), Memory(), now=lambda: 0).preview(letters, keep=2)[0]] == [
        "letter-0",
        "letter-1",
    ]
    assert '"value": "{\\"n\\":0}"' in shown(records[0])


def test_progress_is_told_after_each_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "CHUNK", 3)
    told: list[int] = []
    replay = Replay(Plan(), Memory(), now=lambda: 0)
    replay.run(LETTERS, Taken(), lambda summary: told.append(summary.sent))
    assert told == [3, 4]


def test_of_one_attempt_its_end_counts_whatever_file_comes_first(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "j"), "r")
    journal.add([Entry("a", "sending", "t", 1), Entry("b", "sending", "t", 1)], 0)
    journal.add([Entry("a", "sent", "t", 1)], 1)
    journal.add([Entry("a", "sending", "t", 2)], 2)
    again = Journal(str(tmp_path / "j"), "s")
    assert again.known == {"a": ("sending", 2), "b": ("sending", 1)}
    assert (again.status("c"), again.attempts("c"), again.attempts("a")) == (None, 0, 2)


@pytest.mark.parametrize("target", ["nowhere", "nowhere:fix", "json:nothing", ":x", "json:"])
def test_a_fix_that_is_no_function_is_named(target: str) -> None:
    with pytest.raises(UserError, match="--fix"):
        load_fix(target)


def test_a_fix_is_found_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_dlq_fixes.py").write_text("def fix(letter):\n    return letter.value.upper()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_fix("my_dlq_fixes:fix")(letter(1)) == b'{"N":1}'
