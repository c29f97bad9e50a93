"""Declarations of state: ``balance = value_state(float, default=0.0)``."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from millrace.state.specs import (
    Alias,
    Refresh,
    StateDeclarationError,
    StateSpec,
    TimeDomain,
    Ttl,
    aliases,
    check_key_type,
    default_maker,
    duration_ms,
    make_spec,
)

if TYPE_CHECKING:
    from millrace.state.accumulate import AggregatingState, ListState, ReducingState
    from millrace.state.handles import BroadcastState, MapState, ValueState
    from millrace.state.versions import VersionedState

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


def value_state(
    tp: type[T],
    *,
    default: T | None = None,
    default_factory: Callable[[], T] | None = None,
    ttl: Ttl = None,
    ttl_time: TimeDomain = "event_time",
    refresh: Refresh = "write",
    alias: Alias = None,
    stored_as: str = "",
) -> ValueState[T]:
    """Declare one value per key.

    Args:
        tp: Type of the value: a scalar, a container of them or a msgspec struct.
        default: What a read returns before the first write, after ``clear()`` and after expiry.
        default_factory: Makes the default where it is mutable, e.g. ``list``.
        ttl: Time after a write at which the value is gone (``timedelta`` or ms); ``None``: it stays
            until cleared; ``"per_write"``: as long as each ``set(value, ttl=...)`` says.
        ttl_time: The clock of ``ttl``: ``"event_time"``, or ``"processing_time"`` (its ticks).
        refresh: What starts the time to live anew: ``"write"``, or ``"read_write"``.
        alias: The name, or names, this state had in earlier versions of the process.
        stored_as: The name that it is kept under, where that is not the attribute's.

    Returns:
        A declaration; inside callbacks the attribute is a :class:`~millrace.state.ValueState`.

    Raises:
        StateDeclarationError: An option is wrong, or the default is mutable.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> class Sum(KeyedProcess[int, int]):
        ...     order = arrival(commutes=True)
        ...     total = value_state(int, default=0)
        ...     def process(self, event, ctx):
        ...         self.total.value += event
        ...         ctx.emit(self.total.value)
    """
    spec = make_spec(
        "value",
        tp,
        ttl=ttl,
        ttl_time=ttl_time,
        refresh=refresh,
        alias=alias,
        stored_as=stored_as,
        default=default_maker(default, default_factory),
    )
    return cast("ValueState[T]", spec)


def map_state(
    key: type[K],
    value: type[V],
    *,
    ttl: Ttl = None,
    ttl_time: TimeDomain = "event_time",
    refresh: Refresh = "write",
    alias: Alias = None,
    stored_as: str = "",
    paged: bool = False,
) -> MapState[K, V]:
    """Declare one map per key; each of its entries has a time to live of its own.

    Args:
        key: Type of the map's keys (str, int or bool).
        value: Type of the map's values.
        ttl: Time after an entry's write at which that entry is gone; see :func:`value_state`.
        ttl_time: The clock of ``ttl``.
        refresh: What starts an entry's time to live anew.
        alias: The name, or names, this state had in earlier versions of the process.
        stored_as: The name that it is kept under, where that is not the attribute's.
        paged: For thousands of entries and more: they stand in parts of about 64, and reading or writing one
            costs what its part holds. Iteration goes part by part, not in order of insertion, and reads
            all of them; so does ``len``. A map may become paged later, and stays so.

    Returns:
        A declaration; inside callbacks the attribute is a :class:`~millrace.state.MapState`.

    Example:
        >>> from millrace import KeyedProcess, arrival, map_state
        >>> class Region(KeyedProcess[str, int]):
        ...     order = arrival(commutes=True)
        ...     visitors = map_state(str, int, ttl=86_400_000, paged=True)
        ...     def process(self, event, ctx):
        ...         self.visitors.put(event, self.visitors.get(event, 0) + 1)
        ...         ctx.emit(self.visitors.get(event))
    """
    check_key_type(key, "map_state")
    spec = make_spec(
        "map",
        value,
        ttl=ttl,
        ttl_time=ttl_time,
        refresh=refresh,
        alias=alias,
        stored_as=stored_as,
        key_type=key,
        default=dict,
        paged=paged,
    )
    return cast("MapState[K, V]", spec)


def list_state(
    tp: type[T],
    *,
    ttl: Ttl = None,
    ttl_time: TimeDomain = "event_time",
    refresh: Refresh = "write",
    alias: Alias = None,
    stored_as: str = "",
    paged: bool = False,
) -> ListState[T]:
    """Declare one list per key; each of its elements has a time to live of its own.

    Args:
        tp: Type of an element.
        ttl: Time after it was appended at which an element is gone; see :func:`value_state`.
        ttl_time: The clock of ``ttl``.
        refresh: What starts an element's time to live anew.
        alias: The name, or names, this state had in earlier versions of the process.
        stored_as: The name that it is kept under, where that is not the attribute's.
        paged: For thousands of elements and more: they stand in parts of 64, and appending costs what the
            last one holds. Iteration and ``len`` read all. A list may become paged later, and stays so.

    Returns:
        A declaration; inside callbacks the attribute is a :class:`~millrace.state.ListState`.

    Example:
        >>> from millrace import KeyedProcess, arrival, list_state
        >>> class Recent(KeyedProcess[int, list[int]]):
        ...     order = arrival(in_order_per_key=True)
        ...     seen = list_state(int, ttl=60_000)
        ...     def process(self, event, ctx):
        ...         self.seen.append(event)
        ...         ctx.emit(list(self.seen))
    """
    spec = make_spec(
        "list",
        tp,
        ttl=ttl,
        ttl_time=ttl_time,
        refresh=refresh,
        alias=alias,
        stored_as=stored_as,
        default=list,
        paged=paged,
    )
    return cast("ListState[T]", spec)


def reducing_state(
    tp: type[T],
    reduce: Callable[[T, T], T],
    *,
    ttl: Ttl = None,
    ttl_time: TimeDomain = "event_time",
    refresh: Refresh = "write",
    alias: Alias = None,
    stored_as: str = "",
) -> ReducingState[T]:
    """Declare one value per key that everything added is combined into.

    Args:
        tp: Type of the value and of what is added.
        reduce: Combines what is kept (first argument) with what is added.
        ttl: Time after the last ``add`` at which the value is gone; see :func:`value_state`.
        ttl_time: The clock of ``ttl``.
        refresh: What starts the time to live anew.
        alias: The name, or names, this state had in earlier versions of the process.
        stored_as: The name that it is kept under, where that is not the attribute's.

    Returns:
        A declaration; inside callbacks the attribute is a :class:`~millrace.state.ReducingState`.

    Example:
        >>> from millrace import KeyedProcess, arrival, reducing_state
        >>> class Largest(KeyedProcess[int, int]):
        ...     order = arrival(commutes=True)
        ...     largest = reducing_state(int, max)
        ...     def process(self, event, ctx):
        ...         self.largest.add(event)
        ...         ctx.emit(self.largest.value)
    """
    if not callable(reduce):
        raise StateDeclarationError(f"reducing_state needs a function of two values, not {reduce!r}")
    spec = make_spec(
        "reducing",
        tp,
        ttl=ttl,
        ttl_time=ttl_time,
        refresh=refresh,
        alias=alias,
        stored_as=stored_as,
        reduce=reduce,
    )
    return cast("ReducingState[T]", spec)


class Aggregator(Generic[In, Acc, Out]):
    """How an aggregate is made from what is added; subclass it, or give functions.

    Attributes:
        accumulator_type: Type of what is kept.

    Example:
        >>> class Mean(Aggregator[float, list[float], float]):
        ...     accumulator_type = list[float]
        ...     def create(self):
        ...         return [0.0, 0.0]
        ...     def add(self, accumulator, value):
        ...         return [accumulator[0] + value, accumulator[1] + 1]
        ...     def result(self, accumulator):
        ...         return accumulator[0] / accumulator[1]
        >>> mean = Mean()
        >>> mean.result(mean.add(mean.add(mean.create(), 1.0), 2.0))
        1.5
    """

    accumulator_type: Any = None

    def create(self) -> Acc:
        """Return the accumulator of nothing."""
        raise NotImplementedError

    def add(self, accumulator: Acc, value: In) -> Acc:
        """Return the accumulator with ``value`` added; it may be the same object, changed."""
        raise NotImplementedError

    def result(self, accumulator: Acc) -> Out:
        """Return what the accumulator stands for."""
        raise NotImplementedError

    def merge(self, left: Acc, right: Acc) -> Acc:
        """Return the accumulator of everything that was added to either."""
        raise StateDeclarationError(f"{type(self).__name__} says not how to merge: give it a merge function")


class _Functions(Aggregator[Any, Any, Any]):
    """An aggregator of plain functions."""

    def __init__(self, tp: Any, functions: dict[str, Callable[..., Any] | None]) -> None:
        self.accumulator_type = tp
        missing = [n for n in ("create", "add", "result") if not callable(functions[n])]
        if missing:
            raise StateDeclarationError(
                f"aggregating_state needs an Aggregator, or a type and {' and '.join(missing)}"
            )
        # As attributes of the instance they go before the methods of the class.
        self.__dict__.update({name: f for name, f in functions.items() if f is not None})


@overload
def aggregating_state(
    how: Aggregator[In, Acc, Out],
    *,
    ttl: Ttl = None,
    ttl_time: TimeDomain = "event_time",
    refresh: Refresh = "write",
    alias: Alias = None,
    stored_as: str = "",
) -> AggregatingState[In, Acc, Out]: ...


@overload
def aggregating_state(
    how: type[Acc],
    *,
    create: Callable[[], Acc],
    add: Callable[[Acc, In], Acc],
    result: Callable[[Acc], Out],
    merge: Callable[[Acc, Acc], Acc] | None = None,
    ttl: Ttl = None,
    ttl_time: TimeDomain = "event_time",
    refresh: Refresh = "write",
    alias: Alias = None,
    stored_as: str = "",
) -> AggregatingState[In, Acc, Out]: ...


def aggregating_state(
    how: Any,
    *,
    create: Callable[[], Any] | None = None,
    add: Callable[[Any, Any], Any] | None = None,
    result: Callable[[Any], Any] | None = None,
    merge: Callable[[Any, Any], Any] | None = None,
    ttl: Ttl = None,
    ttl_time: TimeDomain = "event_time",
    refresh: Refresh = "write",
    alias: Alias = None,
    stored_as: str = "",
) -> Any:
    """Declare an aggregate per key whose input, accumulator and result may differ in type.

    Args:
        how: An :class:`Aggregator`; or the accumulator's type, with the functions that follow.
        create: Makes the accumulator of nothing.
        add: Accumulator and value → accumulator.
        result: Accumulator → result.
        merge: Two accumulators → the one of both; needed for ``merge()`` only.
        ttl: Time after the last ``add`` at which the aggregate is gone; see :func:`value_state`.
        ttl_time: The clock of ``ttl``.
        refresh: What starts the time to live anew.
        alias: The name, or names, this state had in earlier versions of the process.
        stored_as: The name that it is kept under, where that is not the attribute's.

    Returns:
        A declaration; inside callbacks the attribute is a :class:`~millrace.state.AggregatingState`.

    Raises:
        StateDeclarationError: A function, or the accumulator's type, is missing.

    Example:
        >>> from millrace import KeyedProcess, arrival, aggregating_state
        >>> class Distinct(KeyedProcess[str, int]):
        ...     order = arrival(commutes=True)
        ...     users = aggregating_state(set[str], create=set, add=lambda s, u: s | {u}, result=len)
        ...     def process(self, event, ctx):
        ...         self.users.add(event)
        ...         ctx.emit(self.users.value)
    """
    functions = {"create": create, "add": add, "result": result, "merge": merge}
    aggregator = how if isinstance(how, Aggregator) else _Functions(how, functions)
    if aggregator.accumulator_type is None:
        raise StateDeclarationError(f"{type(aggregator).__name__} names no accumulator_type")
    return make_spec(
        "aggregating",
        aggregator.accumulator_type,
        ttl=ttl,
        ttl_time=ttl_time,
        refresh=refresh,
        alias=alias,
        stored_as=stored_as,
        aggregator=aggregator,
    )


def versioned_state(
    tp: type[T],
    *,
    history: timedelta | int,
    ttl: Ttl = None,
    ttl_time: TimeDomain = "event_time",
    refresh: Refresh = "write",
    alias: Alias = None,
    stored_as: str = "",
) -> VersionedState[T]:
    """Declare one value per key that can be read as of an earlier time.

    Args:
        tp: Type of the value.
        history: How far back (event time, ``timedelta`` or ms) behind the newest time that the key
            has seen a version can be read and put. The newest version does not go with time.
        ttl: Time after the last ``put`` at which all versions are gone; see :func:`value_state`.
        ttl_time: The clock of ``ttl``.
        refresh: What starts the time to live anew.
        alias: The name, or names, this state had in earlier versions of the process.
        stored_as: The name that it is kept under, where that is not the attribute's.

    Returns:
        A declaration; inside callbacks the attribute is a :class:`~millrace.state.VersionedState`.

    Example:
        >>> from millrace import KeyedProcess, arrival, versioned_state
        >>> class Price(KeyedProcess[float, float]):
        ...     order = arrival(corrects=True)
        ...     price = versioned_state(float, history=3_600_000)
        ...     def process(self, event, ctx):
        ...         self.price.put(event, at=ctx.event_time)
        ...         ctx.emit(self.price.get(ctx.event_time).value)
    """
    kept = duration_ms(history, "a history")
    if kept is None:
        raise StateDeclarationError("versioned_state needs a history: how far back a version can be read")
    spec = make_spec(
        "versioned",
        tp,
        ttl=ttl,
        ttl_time=ttl_time,
        refresh=refresh,
        alias=alias,
        stored_as=stored_as,
        history_ms=kept,
    )
    return cast("VersionedState[T]", spec)


def broadcast_state(
    key: type[K], value: type[V], *, alias: Alias = None, stored_as: str = ""
) -> BroadcastState[K, V]:
    """Declare a global map that control events change and every key reads.

    It is written in ``process_broadcast`` only and takes effect from the batch that brings the
    control event.

    Args:
        key: Type of the map's keys (str, int or bool).
        value: Type of the map's values.
        alias: The name, or names, this state had in earlier versions of the process.
        stored_as: The name that it is kept under, where that is not the attribute's.

    Returns:
        A declaration; inside callbacks the attribute is a :class:`~millrace.state.BroadcastState`.
    """
    check_key_type(key, "broadcast_state")
    spec = StateSpec(
        "broadcast", value, key_type=key, default=dict, aliases=aliases(alias), stored_as=stored_as
    )
    return cast("BroadcastState[K, V]", spec)
