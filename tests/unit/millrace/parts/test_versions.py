"""Versions say what held, as a plain timeline does, in whatever order they came and whatever was pruned."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from millrace.parts.versions import Versions, forget_versions
from millrace.time import NEVER

Said = dict[int, str]


def restored(kept: Versions[str]) -> Versions[str]:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=Versions[str])


def held(said: Said, at: int) -> tuple[int, str] | None:
    """What held at a time, by a look at everything that was ever said."""
    best = None
    for since, value in said.items():
        if since <= at and (best is None or since > best[0]):
            best = since, value
    return best


def run(seed: int) -> None:
    """One random history: late and repeated words, corrections of a time, merges, prunes, restarts."""
    random = Random(seed)
    kept: Versions[str] = Versions()
    said: Said = {}
    pruned = -(10**18)
    for _ in range(random.choice([4, 40])):
        at, value, step = random.randrange(-5, 30), random.choice("abcd"), random.random()
        if step < 0.6:
            assert kept.add(at, value) is (value > said.get(at, ""))
            said[at] = max(value, said.get(at, value))
        elif step < 0.7:
            kept.put(at, value)
            said[at] = value
        elif step < 0.8:
            other: Versions[str] = Versions()
            for _ in range(random.randrange(4)):
                one, what = random.randrange(-5, 30), random.choice("abcd")
                other.put(one, what)
            before = msgspec.msgpack.encode(other)
            kept.merge(other)
            assert msgspec.msgpack.encode(other) == before
            for one, what in other.kept:
                said[one] = max(what, said.get(one, what))
        elif step < 0.9:
            pruned = max(pruned, at)
            kept.prune(at)
            # What is said of the time before from now on is not held against the rest.
            now = held(said, at)
            said = {since: word for since, word in said.items() if since > at or (since, word) == now}
        else:
            kept = restored(kept)
        for at in (*range(-6, 31), 10**15):
            wanted = held(said, at)
            assert kept.at(at) == wanted
            assert kept.value(at) == (None if wanted is None else wanted[1])
            assert kept.until(at) == min((since for since in said if since > at), default=NEVER)
        assert bool(kept) is bool(said)
        assert kept.kept == sorted(said.items())


@pytest.mark.parametrize("seed", range(100))
def test_what_held_is_that_of_a_plain_timeline(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("seed", range(20))
def test_words_in_any_order_leave_the_same(seed: int) -> None:
    random = Random(seed)
    words = [(random.randrange(10), random.choice("abc")) for _ in range(12)]
    kept = []
    for _ in range(2):
        random.shuffle(words)
        versions: Versions[str] = Versions()
        for word in words:
            versions.add(*word)
        kept.append(versions)
    assert kept[0] == kept[1]


def test_a_deletion_is_kept_as_long_as_something_before_it_may_be_asked_for() -> None:
    kept: list[tuple[int, str | None]] = [(10, "a"), (20, None), (30, "b")]
    forget_versions(kept, 19)
    assert kept == [(10, "a"), (20, None), (30, "b")]
    forget_versions(kept, 20)
    assert kept == [(30, "b")]
