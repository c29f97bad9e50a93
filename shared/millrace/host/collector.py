"""What callbacks emit: records with identities and the time of their cause, and dead letters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any

from millrace.dead_letters import (
    DeadLetter,
    check_given,
    error_digest,
    kept_of,
    one_line,
    position,
    shortened,
)
from millrace.host.rows import (
    IS_AHEAD,
    Emission,
    Emissions,
    Row,
    event_id,
    json_of,
    make_event_id,
    new_emission,
)
from millrace.inputs import inputs_of, unmarked
from millrace.process import Context, KeyedProcess, ProcessDefinitionError, Timers, order_of
from millrace.state.handles import Cursor
from millrace.state.layout import PendingRow


class Collector:
    """Takes what the callbacks of a process emit, and is the context that they are given.

    Args:
        process: The process; it is copied, so the caller's object stays as it is.
        encode: Makes the payload of an emission from the emitted record, at once: what a process
            does to the record afterwards no longer shows.
        identify: Whether records get identities.
        bare: Output → classes of its records that are left as they are: nobody can change them, and they
            stay here.
        by_columns: Whether the host takes emissions by columns: those of ``process_batch`` are in
            ``columns`` then, and all others are plain tuples.
    """

    def __init__(
        self,
        process: KeyedProcess[Any, Any],
        *,
        encode: Callable[[Any], Any],
        identify: bool,
        bare: Mapping[str, Collection[type]] | None,
        by_columns: bool,
    ) -> None:
        self.process = copy.copy(process)
        self.emissions: list[Emission] = []
        #: What ``process_batch`` emitted, where the host takes columns.
        self.columns: list[Emissions] = []
        self._by_columns = by_columns
        self._encode = encode
        #: Output → what makes the payload of its records, where some are left as they are; so of ``main``.
        self._encodes = {output: _but_for(classes, encode) for output, classes in (bare or {}).items()}
        self._encode_main = self._encodes.get("main", encode)
        self._identify = identify
        self._name, self._stored = process.name, process.stored_as
        self._inputs = inputs_of(process)
        #: Outputs that a callback may emit to → the names that identities have.
        self._outputs = process.stored_outputs()
        del self._outputs["dead_letters"]
        self._cursor = Cursor()
        order = order_of(process)
        timers = Timers(self._cursor, order, streams=process.stream_timers)
        processing_timers = Timers(self._cursor, order, "processing_time")
        self._ctx = _RunningContext(timers, processing_timers, self._emit, self._reject)
        self._ctx.emit = self._emit_main  # type: ignore[method-assign]
        self._ctx.cause_of = lambda: self._cause
        # The state of the callback that is running.
        self._key = ""
        #: What the identities of the key's records have in common.
        self._common = ""
        self._row: Row | None = None
        self._cause: str | None = None
        self._on_time = True
        #: How many records it has emitted so far: to the main output, to others.
        self._main = 0
        self._index: dict[str, int] = {}
        self._muted = False
        #: Whether the key has come to the watermark that the batch ends with.
        self._is_ahead = False

    def _emit_main(
        self, record: Any, *, on_time: bool | None = None, revision: int = 0, identity: str | None = None
    ) -> None:
        if identity is not None:
            self._emit("main", record, on_time, revision, identity)
            return
        if self._muted:
            return
        cause, index, key = self._cause, self._main, self._key
        self._main = index + 1
        found = None
        if cause is not None:
            found = event_id(self._common, cause, "main", index, revision)
        judged: int = self._on_time if on_time is None else on_time
        if self._is_ahead:
            judged |= IS_AHEAD
        made = ("main", found, key, self._ctx.event_time, judged, self._encode_main(record))
        self.emissions.append(made if self._by_columns else new_emission(made))  # type: ignore[arg-type]

    def _emit(
        self, output: str, record: Any, on_time: bool | None, revision: int, identity: str | None
    ) -> None:
        if identity is None and output == "main":
            self._emit_main(record, on_time=on_time, revision=revision)
            return
        if output not in self._outputs:
            raise ProcessDefinitionError(f"{self._name} emits to '{output}', which it does not declare")
        if self._muted:
            return
        cause, place = self._cause, output
        if identity is not None:
            cause = f"\x1eis:{identity}" if self._identify else None
            place = f"{output}\x1e{identity}\x1e{revision}"
        index = self._index.get(place, 0)
        self._index[place] = index + 1
        found = None
        if cause is not None:
            found = event_id(self._common, cause, self._outputs[output], index, revision)
        payload = self._encodes.get(output, self._encode)(record)
        at = self._ctx.event_time
        judged: int = self._on_time if on_time is None else on_time
        if self._is_ahead:
            judged |= IS_AHEAD
        made = (output, found, self._key, at, judged, payload)
        self.emissions.append(made if self._by_columns else new_emission(made))  # type: ignore[arg-type]

    def _reject(self, reason: Any, error: str) -> None:
        if self._row is None:
            raise ProcessDefinitionError(f"{self._name}: dead_letter() is for events, a timer has none")
        check_given(reason, error)
        if not self._muted:
            index = self._index.get("dead_letters", 0)
            self._index["dead_letters"] = index + 1
            self._put_aside(self._row, reason, error, index)

    def dead_letter(
        self,
        reason: Any,
        stage: Any,
        error: BaseException | str,
        raw: bytes | None,
        cause: str | None,
        *,
        key: str | None = None,
        event_time: int | None = None,
        headers: str | None = None,
        timer_cause: str | None = None,
        index: int = 0,
    ) -> None:
        """Put one event aside; ``timer_cause`` and ``index`` tell apart what has no position of its own."""
        topic, partition, offset = position(cause)
        kept = kept_of(headers)
        letter = DeadLetter(
            reason=reason,
            stage=stage,
            process=self._name,
            error=one_line(error) if isinstance(error, BaseException) else shortened(error),
            error_digest=error_digest(error) if isinstance(error, BaseException) else "",
            key=key,
            event_time_ms=event_time,
            topic=topic,
            partition=partition,
            offset=offset,
            value=raw if raw is None or self._inputs is None or stage == "broadcast" else unmarked(raw),
            headers=kept.headers,
            kafka_key=kept.key,
            timestamp_ms=kept.timestamp_ms,
        )
        root = cause or timer_cause
        identity = (
            None if root is None else make_event_id(self._stored, key or "", root, "dead_letters", index)
        )
        self.emissions.append(
            Emission("dead_letters", identity, key or "", event_time or 0, False, self._encode(letter))
        )

    def _put_aside(self, row: Row, reason: Any, error: BaseException | str, index: int = 0) -> None:
        self.dead_letter(
            reason,
            "process",
            error,
            json_of(row),
            row.cause,
            key=self._key,
            event_time=row.event_time,
            headers=row.headers,
            index=index,
        )

    def _put_control_aside(self, row: Row, error: Exception) -> None:
        self.dead_letter("process_error", "broadcast", error, row.raw, row.cause, headers=row.headers)

    def _put_kept_aside(self, row: PendingRow, reason: Any, stage: Any, error: BaseException) -> None:
        self.dead_letter(
            reason,
            stage,
            error,
            row.raw,
            row.cause,
            key=self._key,
            event_time=row.event_time,
            headers=row.headers,
        )


class _RunningContext(Context):
    """A context whose ``emit`` is the runner's own method: a call less for every record."""

    __slots__ = ("cause_of", "emit")

    cause_of: Callable[[], str | None]

    @property
    def cause(self) -> str | None:
        """Identity of the current event."""
        return self.cause_of()


def _but_for(classes: Collection[type], encode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what leaves records of some classes as they are, and encodes the others."""
    left = frozenset(classes)

    def encode_others(record: Any) -> Any:
        return record if record.__class__ in left else encode(record)

    return encode_others
