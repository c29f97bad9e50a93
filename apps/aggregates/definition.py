"""An aggregation as it is published: whose events, by which key, in which windows, what of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from millrace.errors import UserError
from millrace.rules import Field, Language, RuleError
from millrace.windows import (
    approx_count_distinct,
    binned_quantile,
    count,
    distinct,
    first,
    hopping,
    last,
    max_of,
    mean,
    min_of,
    session,
    stddev,
    sum_of,
    tumbling,
    variance,
)  # fmt: skip
from millrace.windows.aggregates import Aggregate
from millrace.windows.assigners import Assigner
from millrace.windows.fields import fields_of, without_none

DAY_MS: Final = 86_400_000
#: No window and no gap is longer.
MAX_SPAN_MS: Final = 400 * DAY_MS
#: An event is in no more windows than this.
MAX_OVERLAP: Final = 288
MAX_AGGREGATES: Final = 20
#: What distinct counts and quantiles keep of a window, bytes at most, and what those of a part of the keys
#: may come to together.
SKETCH_BYTES: Final = 10_300
MAX_PART_BYTES: Final = 32 << 20
#: An aggregation's keys are in so many parts, each a key of the link of windows, which bounds how many.
PARTS: Final = 64
MAX_KEY: Final = 4
#: The end of the year 9999, UTC, ms.
MAX_TIME_MS: Final = 253_402_300_799_999

Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
Column = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
Span = Annotated[int, Meta(ge=1, le=MAX_SPAN_MS)]
Time = Annotated[int, Meta(ge=0, le=MAX_TIME_MS)]
_CALL: Final = re.compile(
    r"\s*([a-z_]+)\s*(?:\(\s*(?:([A-Za-z_]\w*)\s*(?:,\s*([0-9]*\.?[0-9]+)\s*)?)?\))?\s*"
)
#: Of a field, what some aggregates keep of it: a number, or a text.
_VALUE: Final[Any] = float | str
_OF: Final[Mapping[str, Any]] = {
    "count": count,
    "sum": lambda of: sum_of(of, type=float),
    "mean": mean,
    "min": lambda of: min_of(of, type=_VALUE),
    "max": lambda of: max_of(of, type=_VALUE),
    "stddev": stddev,
    "variance": variance,
    "first": lambda of: first(of, type=_VALUE),
    "last": lambda of: last(of, type=_VALUE),
    "count_distinct": lambda of: approx_count_distinct(of, type=float),
    "quantile": binned_quantile,
    "distinct": lambda of, most: distinct(of, most=int(most), type=str),
}
#: Those that a field need not be a number for.
_OF_ANY: Final = ("count", "count_distinct")
#: Those that keep a text of a field that is one, or several.
_OF_TEXTS: Final = ("first", "last", "min", "max", "distinct")
#: Of a text this many characters are looked at; and so many different ones are kept at most.
MAX_TEXT: Final = 200
MAX_DISTINCT: Final = 50
#: Those that keep more than some numbers.
_SKETCHES: Final = ("count_distinct", "quantile")


class AggregationError(UserError):
    """An aggregation contradicts itself, or does not fit its source."""


class Call(NamedTuple):
    """What a column has.

    Attributes:
        function: Of which kind.
        field: Of which field; ``None``: of the events.
        q: Of a quantile which; of distinct texts how many.
    """

    function: str
    field: str | None = None
    q: float | None = None

    @property
    def value(self) -> tuple[str, bool]:
        """What it looks at: the field, and whether only at which value it is."""
        return self.field or "", self.function == "count_distinct"

    @property
    def keeps_texts(self) -> bool:
        """Whether it keeps texts of a field that has some."""
        return self.function in _OF_TEXTS


class Windows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which windows.

    Attributes:
        kind: Side by side, overlapping, or as long as a key's events follow each other.
        size_ms: Length of a window, of a session the gap that ends it, ms.
        every_ms: Of hopping ones: how often one begins, ms.
        cut_every_ms: Of sessions: none goes on beyond a multiple of this since 1970, ms.
    """

    kind: Literal["tumbling", "hopping", "session"]
    size_ms: Span
    every_ms: Span | None = None
    cut_every_ms: Span | None = None

    def assigner(self) -> Assigner:
        """Return the windows as the core has them."""
        if self.kind == "session":
            return session(self.size_ms, cut_every=self.cut_every_ms)
        return tumbling(self.size_ms) if self.every_ms is None else hopping(self.size_ms, every=self.every_ms)


class Aggregation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A continuous aggregation.

    Attributes:
        name: Its name.
        source: The topic whose events it is of.
        windows: In which windows.
        aggregates: Column → what it has: ``count``, ``sum(amount)``, ``mean``, ``min``, ``max``, ``stddev``,
            ``variance``, ``first``, ``last``, ``quantile(amount, 0.95)`` of a field that is a number,
            ``first``, ``last``, ``min``, ``max``, ``distinct(shop, 20)`` of one that is a text,
            ``count_distinct(card)`` of any.
        key: Fields of the event by which there is a result each; none: one for all.
        where: Only events of which this condition of the rules' language holds; empty: all.
        allowed_lateness_ms: So long after its end (by the watermark) a window is refined by late events, ms.
        max_keys: No more keys than this have open windows at a time.
        max_windows: No key has more open windows than this at a time.
    """

    name: Name
    source: Annotated[str, Meta(min_length=1, max_length=249)]
    windows: Windows
    aggregates: Annotated[dict[Column, Annotated[str, Meta(max_length=200)]], Meta(min_length=1)]
    key: Annotated[list[Column], Meta(max_length=MAX_KEY)] = []
    where: Annotated[str, Meta(max_length=4_000)] = ""
    allowed_lateness_ms: Annotated[int, Meta(ge=0, le=MAX_SPAN_MS)] = 0
    max_keys: Annotated[int, Meta(ge=64, le=1_000_000)] = 10_000
    max_windows: Annotated[int, Meta(ge=1, le=1_000)] = 300

    @property
    def calls(self) -> dict[str, Call]:
        """Column → what it has."""
        return {column: _call(self.name, column, text) for column, text in self.aggregates.items()}

    @property
    def values(self) -> tuple[tuple[str, bool], ...]:
        """What its aggregates look at, each once, in order: field, and whether only at which value it is."""
        return tuple(dict.fromkeys(call.value for call in self.calls.values() if call.field))

    @property
    def span_ms(self) -> int:
        """For how long after an event its windows stay, by the watermark, ms."""
        return self.windows.size_ms + self.allowed_lateness_ms

    def made(self) -> dict[str, Aggregate]:
        """Return column → aggregate over a list with what :attr:`values` says."""
        from operator import itemgetter

        places = {value: itemgetter(place) for place, value in enumerate(self.values)}
        found: dict[str, Aggregate] = {}
        for column, call in self.calls.items():
            of = places.get(call.value)
            if of is None:
                found[column] = count()
            elif call.q is None:
                found[column] = _OF[call.function](of)
            else:
                found[column] = _OF[call.function](of, call.q)
        return found

    def texts_of(self, texts: Collection[str]) -> set[str]:
        """Return the fields of which texts are kept.

        Args:
            texts: Fields that are texts.
        """
        kept = {call.field for call in self.calls.values() if call.keeps_texts}
        return {field for field in texts if field in kept}

    def part_bytes(self, texts: Collection[str]) -> int:
        """Return what its sketches and texts may come to in a part of its keys, bytes.

        Args:
            texts: Fields that are texts.
        """
        kept = sum(
            SKETCH_BYTES if call.function in _SKETCHES else int(call.q or 1) * 4 * MAX_TEXT
            for call in self.calls.values()
            if call.function in _SKETCHES or (call.field in texts and call.keeps_texts)
        )
        step = self.windows.every_ms or self.windows.size_ms
        open_ = min(-(-self.span_ms // step) + 1, self.max_windows)
        return kept * open_ * (self.max_keys // PARTS)


def check(aggregation: Aggregation, sources: Mapping[str, Any]) -> None:
    """Refuse an aggregation that contradicts itself or does not fit its source.

    Args:
        aggregation: The aggregation.
        sources: Topic → type of its events, of the topics that the job reads.

    Raises:
        AggregationError: Says what, and what to do.
    """
    name, windows = aggregation.name, aggregation.windows
    if aggregation.source not in sources:
        known = ", ".join(sorted(sources)) or "no topic"
        _refuse(name, f"the job does not read {aggregation.source}; it reads {known} (see `sources`)")
    there = columns_of(sources[aggregation.source])
    for column, (function, field, _) in aggregation.calls.items():
        if field is not None and field not in there:
            _refuse(name, f"{aggregation.source} has no field {field}; it has {', '.join(there)}")
        if field is None or function in _OF_ANY:
            continue
        kind = there[field].type
        wanted = ["text"] if function == "distinct" else ["number"]
        if function in _OF_TEXTS and function != "distinct":
            wanted.append("text")
        if kind not in wanted:
            _refuse(name, f"{column}: {function} takes a {' or a '.join(wanted)}, and {field} is a {kind}")
    for field in aggregation.key:
        if field not in there:
            _refuse(name, f"{aggregation.source} has no field {field}; it has {', '.join(there)}")
    if len(set(aggregation.key)) < len(aggregation.key):
        _refuse(name, "a field stands twice in its key")
    if len(aggregation.aggregates) > MAX_AGGREGATES:
        _refuse(name, f"no more than {MAX_AGGREGATES} aggregates")
    if windows.cut_every_ms is not None and windows.kind != "session":
        _refuse(name, "cut_every= goes with sessions")
    if windows.cut_every_ms is not None and windows.cut_every_ms < windows.size_ms:
        _refuse(name, "cut_every is no shorter than the gap that ends a session")
    if (windows.kind == "hopping") != (windows.every_ms is not None):
        _refuse(name, "every= goes with hopping windows, and they with it")
    if (
        windows.every_ms is not None
        and not windows.every_ms <= windows.size_ms <= MAX_OVERLAP * windows.every_ms
    ):
        _refuse(name, f"every is no longer than the window, and at most {MAX_OVERLAP} windows overlap")
    if windows.kind == "session" and aggregation.allowed_lateness_ms:
        _refuse(name, "sessions take no allowed_lateness: a refined one would stand beside what it replaces")
    overlap = -(-windows.size_ms // (windows.every_ms or windows.size_ms))
    if overlap > aggregation.max_windows:
        _refuse(name, f"each event is in {overlap} windows, and max_windows is {aggregation.max_windows}")
    size = aggregation.part_bytes([field for field, about in there.items() if about.type == "text"])
    if size > MAX_PART_BYTES:
        _refuse(
            name,
            f"its distinct counts, quantiles and texts may come to {size >> 20:,} MB "
            f"in a {PARTS}th of its keys, and {MAX_PART_BYTES >> 20} are the most: lower max_keys, "
            "or let fewer windows overlap",
        )
    if aggregation.where:
        try:
            Language(there).condition(aggregation.where)
        except RuleError as error:
            _refuse(name, f"where: {error}")


def columns_of(event_type: Any) -> dict[str, Field]:
    """Return the fields of events that an aggregation can speak of: numbers, texts, true or false.

    Example:
        >>> class Sale(msgspec.Struct):
        ...     card: str
        ...     amount: float
        ...     mcc: str | None = None
        ...     lines: list[str] = []
        >>> {name: (field.type, field.nullable) for name, field in columns_of(Sale).items()}
        {'card': ('text', False), 'amount': ('number', False), 'mcc': ('text', True)}
    """
    found = {}
    for name, declared in fields_of(event_type).items():
        kind, nullable = without_none(declared)
        named = _kind(kind)
        if named is not None:
            found[name] = Field(named, nullable)
    return found


def _kind(kind: Any) -> Literal["number", "text", "boolean"] | None:
    info = msgspec.inspect.type_info(kind)
    if isinstance(info, msgspec.inspect.BoolType):
        return "boolean"
    if isinstance(info, msgspec.inspect.IntType | msgspec.inspect.FloatType):
        return "number"
    texts = isinstance(info, msgspec.inspect.StrType) or (
        isinstance(info, msgspec.inspect.LiteralType) and all(isinstance(v, str) for v in info.values)
    )
    return "text" if texts else None


def _call(name: str, column: str, text: str) -> Call:
    """Return what a column has.

    >>> _call("spend", "p95", "quantile(amount, .95)")
    Call(function='quantile', field='amount', q=0.95)
    """
    found = _CALL.fullmatch(text)
    if found is None or found[1] not in _OF:
        raise _refused(name, f"{column}: {text!r} is none of {', '.join(_OF)}, as in sum(amount)")
    function, field, q = found[1], found[2], None if found[3] is None else float(found[3])
    if field is None and function != "count":
        _refuse(name, f"{column}: {function} of what? For example {function}(amount)")
    if function == "distinct":
        if q is None or q != int(q) or not 1 <= q <= MAX_DISTINCT:
            _refuse(
                name,
                f"{column}: {text!r}: say how many, 1 to {MAX_DISTINCT}, as in distinct(shop, 20)",
            )
        return Call(function, field, q)
    if (function == "quantile") != (q is not None):
        _refuse(
            name, f"{column}: {text!r}: a quantile says which, as in quantile(amount, 0.95); no other does"
        )
    if q is not None and not 0 < q < 1:
        _refuse(name, f"{column}: a quantile is between 0 and 1, not {q:g}; those two are min and max")
    return Call(function, field, q)


def _refuse(name: str, why: str) -> None:
    raise _refused(name, why)


def _refused(name: str, why: str) -> AggregationError:
    return AggregationError(f"aggregation '{name}': {why}")
