"""Keys, hashes and key groups: the same numbers in Python and in Spark's own expressions.

A key's parts become one text, each part led by its length in UTF-8 bytes (``6:card-7``), so that
``("a", "bc")`` and ``("ab", "c")`` differ. Its CRC-32 picks one of ``G`` key groups, and each group
has a *label*, the integer that Spark hashes to find the partition. Labels are chosen so that Spark's
Murmur3 spreads the groups evenly over any small number of partitions.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from math import lcm
from typing import Any

import numpy as np

_SPARK_SEED = 42
_EVEN_UP_TO = lcm(*range(1, 11))


def encode_key(parts: tuple[str, ...]) -> str:
    """Return the text of a key.

    >>> encode_key(("card-7",)), encode_key(("a", "bc"))
    ('6:card-7', '1:a2:bc')
    """
    if len(parts) == 1:
        part = parts[0]
        return f"{len(part) if part.isascii() else len(part.encode())}:{part}"
    return "".join(f"{len(part.encode())}:{part}" for part in parts)


def key_part(value: Any) -> str:
    """Return a part of a key as Spark turns it into text.

    >>> key_part("a"), key_part(5), key_part(True)
    ('a', '5', 'true')
    """
    if isinstance(value, str):
        return value
    text = str(value)
    return text.lower() if isinstance(value, bool) else text


def decode_key(text: str) -> tuple[str, ...]:
    """Return the parts of a key's text; the inverse of :func:`encode_key`.

    >>> decode_key("1:a2:bc")
    ('a', 'bc')
    """
    data = text.encode()
    parts: list[str] = []
    at = 0
    while at < len(data):
        colon = data.index(b":", at)
        end = colon + 1 + int(data[at:colon])
        parts.append(data[colon + 1 : end].decode())
        at = end
    return tuple(parts)


@lru_cache(maxsize=65_536)
def context_key(text: str) -> Any:
    """Return what a process sees as its key: the one part as a string, several as a tuple.

    >>> context_key("6:card-7"), context_key("1:a2:bc")
    ('card-7', ('a', 'bc'))
    """
    colon = text.find(":")
    if colon > 0 and text.isascii() and int(text[:colon]) == len(text) - colon - 1:
        return text[colon + 1 :]  # the one part of most keys
    parts = decode_key(text)
    return parts[0] if len(parts) == 1 else parts


def key_group(key_text: str, groups: int) -> int:
    """Return the key group (0 … groups-1) of a key's text."""
    return zlib.crc32(key_text.encode()) % groups


def locality_of(key_text: str) -> str:
    """Return the text of the first part of a key, as if it were the whole: its locality, where there is one.

    >>> locality_of("4:oslo2:m7"), locality_of("4:oslo"), locality_of("2:é2:m7")
    ('4:oslo', '4:oslo', '2:é')
    """
    colon = key_text.index(":")
    end = colon + 1 + int(key_text[:colon])
    return key_text[:end] if key_text.isascii() else key_text.encode()[:end].decode()


@lru_cache(maxsize=65_536)
def station_of(key_text: str, stations: int) -> int:
    """Return the station (0 … stations-1) that a key is of: the hash of its locality says so.

    >>> station_of("4:oslo2:m7", 3) == station_of("4:oslo2:m8", 3) == key_group("4:oslo", 3)
    True
    """
    return key_group(locality_of(key_text), stations)


@lru_cache(maxsize=16)
def group_labels(groups: int) -> tuple[int, ...]:
    """Return the label of each group: the partition that Spark gives group ``i`` of ``n`` is even.

    For any number of partitions that divides ``groups``, and with up to 1,664 groups for any up to
    ten, partition sizes differ by at most one group.

    Args:
        groups: Number of key groups, 1 … 32768.
    """
    modulus = lcm(_EVEN_UP_TO, groups)
    if modulus > 2**22:  # seconds of search for little: even over divisors of `groups` is enough there
        modulus = groups
    labels: dict[int, int] = {}
    start = 0
    while len(labels) < groups:
        block = np.arange(start, start + 262_144, dtype=np.int64)
        residues = spark_hash(block) % modulus
        hits = residues < groups
        for label, group in zip(block[hits].tolist(), residues[hits].tolist(), strict=True):
            labels.setdefault(group, label)
        start += 262_144
    return tuple(labels[group] for group in range(groups))


def spark_hash(values: np.ndarray) -> np.ndarray:
    """Return Spark's Murmur3 hash of 32-bit integers (as its hash partitioning uses it).

    Args:
        values: Integers, shape (n,).

    Returns:
        Signed 32-bit hashes as int64, shape (n,).
    """
    mask = np.uint64(0xFFFFFFFF)

    def rotl(x: np.ndarray, r: int) -> np.ndarray:
        return ((x << np.uint64(r)) | (x >> np.uint64(32 - r))) & mask

    k = values.astype(np.uint64) & mask
    k = (k * np.uint64(0xCC9E2D51)) & mask
    k = (rotl(k, 15) * np.uint64(0x1B873593)) & mask
    h = np.uint64(_SPARK_SEED) ^ k
    h = (rotl(h, 13) * np.uint64(5) + np.uint64(0xE6546B64)) & mask
    h = h ^ np.uint64(4)
    h ^= h >> np.uint64(16)
    h = (h * np.uint64(0x85EBCA6B)) & mask
    h ^= h >> np.uint64(13)
    h = (h * np.uint64(0xC2B2AE35)) & mask
    h ^= h >> np.uint64(16)
    signed = h.astype(np.int64)
    return np.where(signed >= 2**31, signed - 2**32, signed)
