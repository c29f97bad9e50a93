"""Keys become unambiguous text, and groups and labels that Spark's own expressions agree with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.host.groups import decode_key, encode_key, group_labels, key_group, spark_hash

# Text as Spark and JSON can carry it: any Unicode but lone surrogates.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PARTS = st.lists(TEXT, min_size=1, max_size=4).map(tuple)


@given(PARTS)
def test_a_key_is_read_back_from_its_text(parts: tuple[str, ...]) -> None:
    assert decode_key(encode_key(parts)) == parts


@given(PARTS, PARTS)
def test_different_keys_have_different_texts(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert (encode_key(one) == encode_key(other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("a", ""), ("", "a")),
        (("1:a",), ("1", "a")),
        (("1:a2:bc",), ("a", "bc")),
        (("a",), ("a", "")),
    ],
)
def test_keys_that_look_alike_when_joined_differ(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert encode_key(one) != encode_key(other)


def test_lengths_count_bytes_and_not_characters() -> None:
    assert encode_key(("né", "日本")) == "3:né6:日本"


def crc32_bit_by_bit(data: bytes) -> int:
    """CRC-32 from its definition (reflected polynomial 0xEDB88320), independent of zlib."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@given(PARTS, st.integers(1, 1_000))
def test_the_group_is_the_crc32_of_the_keys_bytes(parts: tuple[str, ...], groups: int) -> None:
    text = encode_key(parts)
    assert key_group(text, groups) == crc32_bit_by_bit(text.encode()) % groups


def test_the_group_of_a_key_never_changes() -> None:
    """Golden values: checkpoints depend on them."""
    assert [key_group(encode_key((k,)), 64) for k in ("a", "card-7", "日本", "")] == [
        crc32_bit_by_bit(f"{n}:{k}".encode()) % 64 for k, n in (("a", 1), ("card-7", 6), ("日本", 6), ("", 0))
    ]
    assert [key_group(f"6:card-{i}", 64) for i in range(5)] == [46, 56, 2, 20, 55]


def murmur3_of_int(value: int) -> int:
    """Murmur3 x86 32 of one 4-byte block with seed 42, in plain integers."""
    mask = 0xFFFFFFFF

    def rotl(x: int, r: int) -> int:
        return ((x << r) | (x >> (32 - r))) & mask

    k = rotl((value & mask) * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    h = (rotl(42 ^ k, 13) * 5 + 0xE6546B64) & mask
    h ^= 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h ^= h >> shift
        h = h * factor & mask
    h ^= h >> 16
    return h - 2**32 if h >= 2**31 else h


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=50))
def test_spark_hash_is_murmur3_with_sparks_seed(values: list[int]) -> None:
    import numpy as np

    hashes = spark_hash(np.array(values, dtype=np.int64)).tolist()
    assert hashes == [murmur3_of_int(v) for v in values]


# Values of Spark 4.2's own `hash(int)`; tests/spark asks Spark again.
@pytest.mark.parametrize(("value", "expected"), [(0, 933211791), (1, -559580957), (42, 29417773)])
def test_spark_hash_has_sparks_known_values(value: int, expected: int) -> None:
    import numpy as np

    assert spark_hash(np.array([value])).tolist() == [expected]


@pytest.mark.parametrize("groups", [1, 7, 48, 64, 100, 128, 256, 509, 1_000])
def test_labels_spread_groups_evenly_over_partitions(groups: int) -> None:
    labels = group_labels(groups)
    assert len(set(labels)) == groups
    divisors = [n for n in range(1, groups + 1) if groups % n == 0]
    for partitions in {*range(1, 11), *divisors}:
        sizes = [0] * partitions
        for label in labels:
            sizes[murmur3_of_int(label) % partitions] += 1
        assert max(sizes) - min(sizes) <= 1, f"{partitions} partitions: {sizes}"


def test_the_label_of_group_i_lands_in_partition_i_modulo_n() -> None:
    for partitions in (1, 2, 3, 5, 8, 10, 16, 32, 64):
        found = [murmur3_of_int(label) % partitions for label in group_labels(64)]
        assert found == [group % partitions for group in range(64)]


@pytest.mark.parametrize("groups", [997, 4_096])
def test_many_groups_are_even_over_their_divisors(groups: int) -> None:
    labels = group_labels(groups)
    assert len(set(labels)) == groups
    for partitions in (n for n in range(1, 65) if groups % n == 0):
        found = [murmur3_of_int(label) % partitions for label in labels]
        assert found == [group % partitions for group in range(groups)]


def test_labels_are_32_bit_and_never_change() -> None:
    """They stand in every checkpoint as Spark's key."""
    labels = group_labels(64)
    assert all(0 <= label < 2**31 for label in labels)
    assert labels[:4] == (22362, 53720, 6234, 23448)
