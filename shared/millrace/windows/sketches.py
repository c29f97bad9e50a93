"""Approximate aggregates in bounded space, on Apache DataSketches (``pip install millrace[sketches]``).

Between two events a sketch is bytes. Opening and closing it for every event would cost more than the
rest of the window, so new values wait in a short buffer beside it; as long as everything fits the
buffer, results are exact.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from millrace.parts.accumulators import BoundAggregate
from millrace.windows.aggregates import Aggregate, needs_type, skipping
from millrace.windows.fields import Of, Selected, WindowDefinitionError, list_of, or_none, select
from millrace.windows.value_aggregates import counting

#: How many values wait beside a sketch.
HLL_BUFFER: Final = 64
DIGEST_BUFFER: Final = 256

#: What a sketch counts in place of an empty text.
_EMPTY: Final = "\0empty\0"

_bytes = msgspec.msgpack.Encoder(order="deterministic").encode


def _number_bytes(value: float) -> bytes:
    return _bytes(value + 0.0)  # -0.0 is 0.0


def _told(value: Any) -> Any:
    """Return a value as a sketch takes it: bytes as text, and for an empty one, which it drops, another."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return _EMPTY if value == "" else value


def _library(what: str) -> Any:
    try:
        return importlib.import_module("datasketches")
    except ImportError as error:
        raise WindowDefinitionError(
            f"{what} needs Apache DataSketches: pip install 'millrace[sketches]'"
        ) from error


def _buffered(item: Any) -> Any:
    """Return the type of a sketch at rest: ``sketch``, its bytes, and ``waiting``, what is not in it yet."""
    return msgspec.defstruct(
        "Buffered",
        [("sketch", bytes, b""), ("waiting", list_of(item), msgspec.field(default_factory=list))],
        array_like=True,
    )


@dataclass(frozen=True)
class ApproxCountDistinct(Aggregate):
    """See :func:`approx_count_distinct`."""

    of: Of = None
    type: Any = None
    lg_k: int = 12

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        selected = select(self.of, event_type, self.type)
        tp = needs_type(selected, "approx_count_distinct")
        lib = _library("approx_count_distinct")
        lg_k, kind = self.lg_k, lib.HLL_8
        buffered = _buffered(tp if tp in (int, str) else bytes)
        item = None if tp in (int, str) else _number_bytes if tp is float else _bytes

        def full(acc: Any) -> bytes:
            sketch = lib.hll_sketch.deserialize(acc.sketch) if acc.sketch else lib.hll_sketch(lg_k, kind)
            for value in acc.waiting:
                sketch.update(_told(value))
            return bytes(sketch.serialize_compact())

        def step(acc: Any, value: Any, _at: int) -> Any:
            acc.waiting.append(value if item is None else item(value))
            if len(acc.waiting) >= HLL_BUFFER:
                acc.sketch, acc.waiting = full(acc), []
            return acc

        def merge(left: Any, right: Any) -> Any:
            if not left.sketch and not right.sketch and len(left.waiting) + len(right.waiting) < HLL_BUFFER:
                return buffered(b"", left.waiting + right.waiting)
            union = lib.hll_union(lg_k)
            union.update(lib.hll_sketch.deserialize(full(left)))
            union.update(lib.hll_sketch.deserialize(full(right)))
            return buffered(bytes(union.get_result(kind).serialize_compact()), [])

        def result(acc: Any) -> int:
            if not acc.sketch:
                return len(set(acc.waiting))
            sketch, union = lib.hll_sketch.deserialize(full(acc)), lib.hll_union(lg_k)
            # The estimate of a sketch that saw single values depends on their order; that of a union
            # of two does not. A union with itself changes nothing else.
            union.update(sketch)
            union.update(sketch)
            estimate: float = union.get_estimate()
            return round(estimate)

        return BoundAggregate(buffered, int, buffered, skipping(selected, step), merge, result)

    def bind_sliding(self, event_type: Any) -> BoundAggregate:
        """Bind: exact, as the window keeps its events anyway and values must be able to leave."""
        selected = select(self.of, event_type, self.type)
        return counting(selected, needs_type(selected, "approx_count_distinct"))


def approx_count_distinct(of: Of = None, *, type: Any = None, lg_k: int = 12) -> ApproxCountDistinct:
    """Count distinct values approximately in bounded space (HyperLogLog; Flajolet et al. 2007).

    Exact up to about 63 values. The relative standard error is 1.04 / sqrt(2**lg_k): 1.6 % with the
    default of 4,096 registers (4 kB); 95 of 100 results are within twice that. The result does not
    depend on the order of events.

    Args:
        of: A field's name or a function of the event.
        type: What a function of the event gives.
        lg_k: Logarithm (base 2) of the number of registers, 4 … 21.

    Raises:
        WindowDefinitionError: ``lg_k`` is out of range; on binding: Apache DataSketches is missing.
    """
    if not 4 <= lg_k <= 21:
        raise WindowDefinitionError(f"lg_k is 4 to 21, not {lg_k!r}")
    return ApproxCountDistinct(of, type, lg_k)


class Digest(msgspec.Struct, array_like=True):
    """A t-digest at rest.

    Attributes:
        sketch: Its bytes; empty before the buffer was full for the first time.
        waiting: Values that are not in it yet.
    """

    sketch: bytes = b""
    waiting: list[float] = []


@dataclass(frozen=True)
class Quantile(Aggregate):
    """See :func:`quantile`."""

    of: Of
    q: float | tuple[float, ...]
    k: int = 200

    def bind(self, event_type: Any) -> BoundAggregate:
        """Bind; see :class:`Aggregate`."""
        selected = self._numbers(event_type)
        lib = _library("quantile")
        k = self.k

        def opened(acc: Digest) -> Any:
            sketch = lib.tdigest_double.deserialize(acc.sketch) if acc.sketch else lib.tdigest_double(k)
            for value in acc.waiting:
                sketch.update(value)
            return sketch

        def step(acc: Digest, value: float, _at: int) -> Digest:
            acc.waiting.append(value + 0.0)
            if len(acc.waiting) >= DIGEST_BUFFER:
                acc.sketch, acc.waiting = bytes(opened(acc).serialize()), []
            return acc

        def merge(left: Digest, right: Digest) -> Digest:
            if (
                not left.sketch
                and not right.sketch
                and len(left.waiting) + len(right.waiting) < DIGEST_BUFFER
            ):
                return Digest(b"", left.waiting + right.waiting)
            sketch = opened(left)
            sketch.merge(opened(right))
            return Digest(bytes(sketch.serialize()), [])

        def result(acc: Digest) -> Any:
            if not acc.sketch:
                return self._exact(sorted(acc.waiting))
            sketch = opened(acc)
            return self._each(sketch.get_quantile)

        return BoundAggregate(
            Digest, self._result_type, Digest, skipping(selected, step), merge, result, commutes=False
        )

    def bind_sliding(self, event_type: Any) -> BoundAggregate:
        """Bind: exact, as the window keeps its events anyway and values must be able to leave."""
        return sorted_values(self._numbers(event_type), self._result_type, self._exact)

    @property
    def _result_type(self) -> Any:
        return list[float] if isinstance(self.q, tuple) else or_none(float)

    def _numbers(self, event_type: Any) -> Selected:
        selected = select(self.of, event_type)
        if selected.type not in (None, int, float):
            raise WindowDefinitionError(f"quantile needs numbers (int or float), not {selected.type}")
        return selected

    def _exact(self, values: list[float]) -> Any:
        if not values:
            return [] if isinstance(self.q, tuple) else None
        return self._each(lambda q: between(values, q))

    def _each(self, at: Any) -> Any:
        return [at(q) for q in self.q] if isinstance(self.q, tuple) else at(self.q)


def quantile(of: Of, q: float | Sequence[float], *, k: int = 200) -> Quantile:
    """Quantile of a field in bounded space (t-digest; Dunning and Ertl 2019), e.g. 0.99.

    Exact, by linear interpolation, up to 255 values. Beyond that the error is one of rank and shrinks
    towards the tails, about as ``q (1 - q) / k``; a digest has no proven bound. The largest seen over
    uniform, log-normal, Pareto and sorted data of 1,000 to 100,000 values, in percent of rank::

        k     p50    p25    p90    p99    p99.9   bytes
        100   3.4    3.0    1.2    0.14   0.018   2,300
        200   2.2    2.2    0.6    0.06   0.007   4,200
        500   0.7    0.5    0.15   0.02   0.004   10,000

    The digest depends a little on the order of events, so a window that has one takes them in order of
    event time, unless it is told ``order="arrival"``.

    Args:
        of: A field's name or a function of the event.
        q: Between 0 and 1, or several: then the result is a list, and one digest serves them all.
        k: Compression: the larger, the more exact and the larger in state.

    Raises:
        WindowDefinitionError: ``q`` or ``k`` is out of range; on binding: DataSketches is missing.
    """
    wanted = (q,) if isinstance(q, int | float) else tuple(q)
    if not wanted or not all(0 <= one <= 1 for one in wanted):
        raise WindowDefinitionError(f"a quantile is between 0 and 1, not {q!r}")
    if not 10 <= k <= 65_535:
        raise WindowDefinitionError(f"k is 10 to 65535, not {k!r}")
    return Quantile(of, wanted[0] if isinstance(q, int | float) else wanted, k)


def between(values: list[float], q: float) -> float:
    """Return the quantile of sorted values, with linear interpolation between neighbours.

    >>> between([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    place = q * (len(values) - 1)
    low = int(place)
    if low + 1 >= len(values):
        return values[-1]
    share = place - low
    if not share:
        return values[low]  # its neighbour may be infinite
    return values[low] * (1.0 - share) + values[low + 1] * share


def sorted_values(selected: Selected, result_type: Any, result: Any) -> BoundAggregate:
    """Return an aggregate that keeps its numbers in order, so that they can leave."""
    from bisect import bisect_left, insort

    def step(acc: list[float], value: float, _at: int) -> list[float]:
        insort(acc, value + 0.0)  # -0.0 is 0.0
        return acc

    def subtract(acc: list[float], part: list[float]) -> list[float]:
        for value in part:
            del acc[bisect_left(acc, value)]
        return acc

    return BoundAggregate(
        list[float],
        result_type,
        list,
        skipping(selected, step),
        lambda left, right: sorted([*left, *right]),
        result,
        subtract,
    )
