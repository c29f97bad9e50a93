"""What two versions sent to a topic that no table has: held to sets over random histories of both."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from millrace.upgrading import sent
from millrace.upgrading.sent import Sample, SentTopic, is_below
from tests.cases import case_count

#: Histories by chance; more by hand.
CASES = case_count(300, "UPGRADE_SEEDS")

Said = tuple[str, bytes | None]


class Topics:
    """Topics of two partitions as a broker has them; what is appended is read by the next look."""

    def __init__(self, **records: list[list[Said]]) -> None:
        self.records: dict[str, list[list[Said]]] = dict(records)

    def read(
        self,
        topic: str,
        begins: Mapping[int, int],
        ends: Mapping[int, int] | None,
        take: Callable[[str, bytes | None], None],
    ) -> dict[int, int]:
        at = {}
        for partition, records in enumerate(self.records.get(topic, [])):
            end = len(records) if ends is None else min(len(records), ends.get(partition, 0))
            for one, value in records[begins.get(partition, 0) : end]:
                take(one, value)
            at[partition] = end
        return at


def spread(chance: random.Random, records: list[Said]) -> list[list[Said]]:
    parts: list[list[Said]] = [[], []]
    for record in records:
        chance.choice(parts).append(record)
    return parts


@pytest.mark.parametrize("seed", range(CASES))
def test_records_of_one_only_and_those_that_differ_are_those_of_a_set_based_comparison(seed: int) -> None:
    """Blue has sent before the trial, and some of the trial's before it was noted where the topic ends.

    ::

        blue   |--- before ---|-- early --|- first look -|- then -|
        green                 |-- early ---- first look --|- then -|     less lost, changed, added ones
                                          ^ since
    """
    chance = random.Random(seed)
    before = [(f"b{n}", b"old") for n in range(chance.randrange(5))]
    all_of_it = [(f"e{n}", str(chance.randrange(3)).encode()) for n in range(chance.randrange(40))]
    early, rest = all_of_it[: (cut := chance.randint(0, min(5, len(all_of_it))))], all_of_it[cut:]
    lost = {one for one, _ in rest if chance.random() < 0.1}
    changed = {one for one, _ in all_of_it if chance.random() < 0.1} - lost
    own = [(one, b"new" if one in changed else value) for one, value in all_of_it if one not in lost]
    own += [(f"n{n}", b"") for n in range(chance.choice((0, 0, 2)))]
    own += [one for one in own if chance.random() < 0.1]  # again, after a restart
    chance.shuffle(own)
    others: list[Said] = [("", b"x")] * chance.randrange(3)
    seen, seen_own = chance.randint(0, len(rest)), chance.randint(0, len(own))

    topics = Topics(t=spread(chance, before + early), **{"t.green": spread(chance, own[:seen_own])})
    since = {n: len(records) for n, records in enumerate(topics.records["t"])}
    for n, records in enumerate(spread(chance, rest[:seen] + others)):
        topics.records["t"][n] += records
    topic = SentTopic("t", ".green", since, topics.read)
    topic.look()
    for name, more in (("t", rest[seen:]), ("t.green", own[seen_own:])):
        for n, records in enumerate(spread(chance, more)):
            topics.records[name][n] += records
    topic.look()
    found = topic.difference()

    blue, green = {one for one, _ in rest[:seen]}, {one for one, _ in own[:seen_own]}
    known = {one for one, _ in all_of_it}
    assert found.only_blue == len(blue & lost)
    assert found.only_green == len(green - known)
    both = (blue | green) & known - lost
    assert (found.differ, found.same) == (len(both & changed), len(both - changed))
    assert (found.blue, found.green, found.others, found.share) == (len(blue), len(green), len(others), 1.0)
    assert found.is_same == (not blue & lost and not green - known and not both & changed)


@pytest.mark.parametrize("seed", range(20))
def test_of_more_than_may_be_held_the_same_share_of_both_is_compared(seed: int) -> None:
    """Both have sent the same but for a tenth: of what is held that tenth is lost as well."""
    chance = random.Random(seed)
    records: list[Said] = [(f"{seed}-{n}", b"1") for n in range(4_000)]
    lost = {one for one, _ in records if chance.random() < 0.1}
    own = [record for record in records if record[0] not in lost]
    chance.shuffle(own)
    topics = Topics(t=spread(chance, records), **{"t.green": spread(chance, own)})
    topic = SentTopic("t", ".green", {}, topics.read, most=500)
    topic.look()
    topic.look()
    found = topic.difference()
    held = found.same + found.only_blue
    assert 150 < held <= 500
    assert found.share == pytest.approx(held / 4_000, rel=0.3)
    assert found.only_blue == pytest.approx(held / 10, abs=0.05 * held)
    assert (found.only_green, found.differ) == (0, 0)
    assert len(found.examples["only_blue"]) == 5


def test_what_is_held_are_all_identities_below_a_line() -> None:
    few = Sample(50)
    for n in range(3_000):
        few.put(f"e{n}", b"1")
    assert len(few.said) <= 50
    assert set(few.said) == {f"e{n}" for n in range(3_000) if is_below(f"e{n}", few.line)}


def test_no_more_is_read_of_before_the_trial_than_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent, "BEFORE", 3)
    topics = Topics(t=[[(f"b{n}", b"1") for n in range(10)]], **{"t.green": [[("b8", b"1"), ("b2", b"1")]]})
    topic = SentTopic("t", ".green", {0: 10}, topics.read)
    topic.look()
    topic.look()
    found = topic.difference()
    assert (found.same, found.only_green, found.only_blue) == (1, 1, 0)
    assert found.examples == {"only_green": ["b2"]}
