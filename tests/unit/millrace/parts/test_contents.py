from __future__ import annotations

import doctest

import msgspec

from millrace.parts import contents
from millrace.parts.contents import digest_of


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
