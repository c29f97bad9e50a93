"""Whether two multisets of rows are equal, by a digest that Spark and numpy compute alike.

A benchmark whose results are wrong measures nothing, and millions of rows cannot be brought to the driver
without being measured too. So each row is hashed in the sink, and the hashes are summed: equal sums and
counts mean equal multisets, but for one chance in 2^64. The hash is Spark's own ``xxhash64``; its twin here
makes the digest of what an oracle says must come out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(p)
    for p in (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
    )
)  # fmt: skip
_SEED = 42
_LOW = (1 << 32) - 1


class Digest(NamedTuple):
    """The digest of a multiset of rows.

    Attributes:
        rows: How many.
        low: Sum of the lower halves of their hashes.
        high: Sum of the upper halves.
    """

    rows: int = 0
    low: int = 0
    high: int = 0

    def plus(self, other: Digest) -> Digest:
        """Return the digest of both multisets together."""
        return Digest(self.rows + other.rows, self.low + other.low, self.high + other.high)


def digest(*columns: npt.ArrayLike) -> Digest:
    """Return the digest of rows given as columns of whole numbers and floats.

    >>> digest([1, 2], [0.5, 0.25]) == digest([2, 1], [0.25, 0.5])
    True
    >>> digest([1, 2], [0.5, 0.25]) == digest([1, 2], [0.25, 0.5])
    False
    """
    arrays = [np.asarray(c) for c in columns]
    with np.errstate(over="ignore"):
        hashes = np.full(len(arrays[0]), _SEED, dtype=np.uint64)
        for array in arrays:
            hashes = _hash(_bits(array), hashes)
    low, high = hashes & np.uint64(_LOW), hashes >> np.uint64(32)
    return Digest(len(hashes), int(low.sum(dtype=np.uint64)), int(high.sum(dtype=np.uint64)))


def _bits(array: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return numbers as Spark hashes them: a float by its bits, and zero has no sign."""
    if array.dtype.kind == "f":
        return (array.astype(np.float64) + 0.0).view(np.uint64)
    return array.astype(np.int64).view(np.uint64)


def _hash(words: npt.NDArray[np.uint64], seed: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return xxHash64 of one 8-byte word per row, each with a seed of its own."""
    h = seed + _P5 + np.uint64(8)
    h ^= _rotated(words * _P2, 31) * _P1
    h = _rotated(h, 27) * _P1 + _P4
    h ^= h >> np.uint64(33)
    h *= _P2
    h ^= h >> np.uint64(29)
    h *= _P3
    h ^= h >> np.uint64(32)
    return h


def _rotated(words: npt.NDArray[np.uint64], by: int) -> npt.NDArray[np.uint64]:
    return (words << np.uint64(by)) | (words >> np.uint64(64 - by))


def spark_digest(frame: DataFrame, columns: Sequence[str]) -> Digest:
    """Return the digest of a DataFrame's rows; Spark runs it, and computes every column for it.

    Args:
        frame: The rows; of a micro-batch.
        columns: What of them counts, in SQL: whole numbers as bigint, floats as double.
    """
    from pyspark.sql import functions as F

    hashed = frame.select(F.xxhash64(*(F.expr(c) for c in columns)).alias("h"))
    low, high = F.col("h").bitwiseAND(F.lit(_LOW)), F.shiftrightunsigned("h", 32)
    found = hashed.agg(F.count("h"), F.sum(low), F.sum(high)).first()
    return Digest(*(int(value or 0) for value in found or (0, 0, 0)))
