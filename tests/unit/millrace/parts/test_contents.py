from __future__ import annotations

import doctest
import random

import msgspec

from millrace.parts import contents
from millrace.parts.contents import DIGEST_BYTES, digest_of, packed, unpacked


class Sale(msgspec.Struct):
    number: str
    cents: int
    note: str | None = None


def test_the_examples_run() -> None:
    assert doctest.testmod(contents).failed == 0


def test_a_digest_hangs_on_every_field_and_on_nothing_else() -> None:
    sale = Sale("s1", 5)
    same = msgspec.json.decode(b'{"note":null, "unknown":1, "cents": 5, "number":"s1"}', type=Sale)
    assert digest_of(sale) == digest_of(same)
    others = [Sale("s2", 5), Sale("s1", 6), Sale("s1", 5, ""), Sale("", 5)]
    assert len({digest_of(one) for one in (sale, *others)}) == 5
    assert all(0 <= digest_of(one) < 2**64 for one in others)


def test_a_hundred_thousand_events_have_as_many_digests() -> None:
    assert len({digest_of(Sale(f"s{n}", n % 7)) for n in range(100_000)}) == 100_000


def test_digests_come_back_as_they_were() -> None:
    rng = random.Random(1)
    for _ in range(200):
        old = {f"old{n}": None for n in range(rng.randrange(4))}
        digests = {**old, **{f"n{n}": rng.randrange(2**64) for n in range(rng.randrange(6))}}
        said = packed(digests)
        assert unpacked(digests, said) == digests
        left = dict(list(digests.items())[rng.randrange(len(digests) + 1) :])
        assert unpacked(left, said[max(0, len(said) - DIGEST_BYTES * len(left)) :] if left else b"") == left
