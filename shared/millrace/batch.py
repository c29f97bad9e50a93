"""Vectorised processing: the events of many keys at once, as columns, for ``process_batch``.

A process may handle a batch's events together where numbers are computed for each of them, with NumPy
in place of a call per event. It stays what ``process`` says it is: the two must give the same (a test
holds them equal), and where ``process_batch`` raises, the events are handled one by one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from millrace.side_outputs import OutputTag
    from millrace.state.handles import ValueState

E = TypeVar("E")
T = TypeVar("T")


class Batch(Generic[E]):
    """Events of several keys, in n rows: each key's rows stand together, in order of event time.

    All of them are on time, and nothing happens between them: of these keys no timer is due, and no
    value's life ends between two of a key's rows. Timers that are not due may be pending, and may be set,
    moved and deleted (``timers``).

    Attributes:
        events: The n events.
        inputs: For each event the name of the input that it came by; empty where the process has one.
        watermark: The batch's watermark, ms.
        timers: Sets timers on event time.
    """

    def __init__(
        self,
        keys: Callable[[], list[Any]],
        events: list[E],
        times: list[int],
        starts: list[int],
        watermark: int,
        read: Any,
        inputs: Sequence[str] = (),
    ) -> None:
        self._keys = keys
        self.events = events
        self.inputs = inputs
        self.watermark = watermark
        self.timers = BatchTimers(len(events))
        self._times = times
        self._starts = starts
        self._read = read
        #: What was written and emitted; the host takes it when the callback has returned.
        self.written: list[tuple[str, Sequence[Any], Sequence[int] | None]] = []
        self.emitted: list[tuple[str, Sequence[Any], Sequence[int] | None]] = []

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.events)

    @cached_property
    def keys(self) -> list[Any]:
        """The k keys, as ``ctx.key`` gives them."""
        return self._keys()

    @property
    def event_times(self) -> npt.NDArray[np.int64]:
        """Event times, ms, shape (n,)."""
        import numpy as np

        return np.array(self._times, dtype=np.int64)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Where each key's rows begin, and where the last one's end, shape (k + 1,)."""
        import numpy as np

        return np.array(self._starts, dtype=np.int64)

    @property
    def key_of_row(self) -> npt.NDArray[np.int64]:
        """For each row the place of its key in ``keys``, shape (n,)."""
        import numpy as np

        return np.repeat(np.arange(len(self._starts) - 1), np.diff(self.starts))

    def column(self, name: str, dtype: Any = float) -> npt.NDArray[Any]:
        """Return a field of all events, shape (n,).

        Args:
            name: The field.
            dtype: NumPy's type of it.
        """
        import numpy as np

        return np.array(list(map(operator.attrgetter(name), self.events)), dtype=dtype)

    def read(self, state: ValueState[T]) -> list[T]:
        """Return a value state of every key, as it is visible at the key's first event; length k.

        Values are not copies: a write makes them anew. Where a read starts the life anew, each of the
        key's events does.

        Raises:
            TypeError: ``state`` is no value state.
        """
        return self._read(state)  # type: ignore[no-any-return]

    def write(self, state: ValueState[T], values: Iterable[T], rows: Sequence[int] | None = None) -> None:
        """Write a value state of every key, at the time of the key's last event, or of some keys.

        Args:
            state: The state.
            values: A value for each of the k keys, or for each of ``rows``.
            rows: The rows at whose times, and for whose keys, they are written, in order; ``None``: the last
                row of each key.

        Raises:
            ValueError: There are more or fewer of them.
        """
        kept = _plain(values)
        of = None if rows is None else [int(row) for row in rows]
        if of is None and len(kept) != len(self._starts) - 1:
            raise ValueError(f"{len(kept)} values for {len(self._starts) - 1} keys")
        if of is not None and len(kept) != len(of):
            raise ValueError(f"{len(kept)} values for {len(of)} rows")
        self.written.append((state.name, kept, of))

    def emit(self, records: Iterable[Any], rows: Sequence[int] | None = None) -> None:
        """Emit records to the main output.

        Args:
            records: The records, in order of their rows.
            rows: The row that each comes of; ``None``: one of each row.

        Raises:
            ValueError: There are more or fewer records than rows.
        """
        self._emit("main", records, rows)

    def output(self, tag: OutputTag[T], records: Iterable[T], rows: Sequence[int] | None = None) -> None:
        """Emit records to a side output; the arguments are those of :meth:`emit`."""
        self._emit(tag.name, records, rows)

    def _emit(self, output: str, records: Iterable[Any], rows: Sequence[int] | None) -> None:
        made = list(records)
        of = None if rows is None else [int(row) for row in rows]
        if len(made) != len(self.events if of is None else of):
            raise ValueError(f"{len(made)} records for {len(self.events if of is None else of)} rows")
        if any(output == o for o, _, _ in self.emitted):
            raise ValueError(f"process_batch emits to '{output}' twice: all records of an output go at once")
        self.emitted.append((output, made, of))


class BatchTimers:
    """Sets timers of a batch's keys on event time, each as its row would: in the order of rows.

    A timer that would fire before the key's next row is for ``process``: the events then go there.

    Args:
        rows: How many rows there are.

    Example:
        >>> from millrace import KeyedProcess, arrival, value_state
        >>> from millrace.testing import TestDriver
        >>> class Silent(KeyedProcess[int, str]):
        ...     order = arrival(commutes=True)
        ...     def process(self, event, ctx):
        ...         ctx.timers.at(ctx.event_time + 100, "silent")
        ...     def process_batch(self, batch):
        ...         batch.timers.at(batch.event_times + 100, name="silent")
        ...     def on_timer(self, timer, ctx):
        ...         ctx.emit(f"{ctx.key} at {timer.at}")
        >>> driver = TestDriver(Silent())
        >>> driver.send_batch([("a", 1, 0), ("b", 2, 0), ("a", 5, 0)])
        >>> driver.advance_watermark(103)
        >>> driver.values()
        ['b at 102']
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        #: What is to be done: row, what, time (ms), name.
        self.asked: list[tuple[int, str, int, str]] = []

    def at(self, when: Iterable[int], rows: Sequence[int] | None = None, *, name: str = "") -> None:
        """Set a timer of each row's key, as ``ctx.timers.at`` does.

        Args:
            when: Event times, ms.
            rows: The row of each; ``None``: all rows.
            name: The timers' name.

        Raises:
            ValueError: There are more or fewer times than rows.
        """
        self._ask("at", when, rows, name)

    def bring_forward(
        self, when: Iterable[int], rows: Sequence[int] | None = None, *, name: str = ""
    ) -> None:
        """Set timers unless they are pending for an earlier time; the arguments are those of :meth:`at`."""
        self._ask("bring_forward", when, rows, name)

    def delete(self, rows: Sequence[int], *, name: str = "") -> None:
        """Delete the timer of each row's key, where there is one."""
        self._ask("delete", [0] * len(rows), rows, name)

    def _ask(self, what: str, when: Iterable[int], rows: Sequence[int] | None, name: str) -> None:
        times = _plain(when)
        of = range(self._rows) if rows is None else [int(row) for row in rows]
        if len(times) != len(of):
            raise ValueError(f"{len(times)} times for {len(of)} rows")
        self.asked += [(row, what, time, name) for row, time in zip(of, times, strict=True)]


def _plain(values: Iterable[Any]) -> list[Any]:
    """Return values as a list of Python's own numbers: what is kept must be readable."""
    to_list = getattr(values, "tolist", None)
    return to_list() if to_list is not None else list(values)
