"""The language of alarm rules: facts of a reading, a machine or a step, and functions of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final, Literal

from millrace.rules import Constant, Field, FieldName, Function, Language, Window
from millrace.time import NO_WATERMARK
from millrace_apps.iot_maintenance.alarms.spans import LEAST_MS, MOST_MS, Span
from millrace_apps.iot_maintenance.processes.statuses import Regime

#: What a rule looks at: every reading of its quantities; the machine's latest readings together, once an
#: instant; errors; what is wrong with a sensor; what is silent; whose clock is wrong; what is foreseen.
Source = Literal["reading", "machine", "error", "quality", "silence", "clock", "foresight"]
#: Of these the alarms are kept where the app looks ahead.
FORESIGHT: Final = "foresight"


class Facts:
    """What an expression is asked about: the present reading, and what is known of its machine.

    Attributes:
        value: The reading's value; of an error, none.
        rate: Change since the reading before, per minute.
        average: Moving average by count.
        average_by_time: Moving average by time.
        trend: Slope, per hour.
        zscore: How unusual the value is.
        anomaly_score: How unusual the newest scored value is, 0 to 1.
        health_score: How far the machine's sensors together are from normal, 0 to 1; 0.5 at the limit.
        crosses_in_h: In how many hours the series is expected to cross a limit of a rule.
        minimum: Least value since maintenance.
        maximum: Largest value since maintenance.
        remaining_life: How long the machine is expected to run yet, h.
        risks: Component → how likely it fails soon.
        quantity: What is measured.
        subject: The measuring point: quantity and name; empty: the quantity alone.
        status: The machine's status.
        kind: The machine's kind.
        regime: What its status means; empty if nobody has said.
        code: The error's code.
        latest: Latest good value by quantity.
        known: What is known of the machine at this time.
        attributes: Master data of the measuring point.
        spans: Length (ms) → window over its values.
        at: This time, ms.
        stream_ms: How far the stream is, which a machine may be behind.
    """

    __slots__ = (
        "anomaly_score",
        "at",
        "attributes",
        "average",
        "average_by_time",
        "code",
        "crosses_in_h",
        "health_score",
        "kind",
        "known",
        "latest",
        "maximum",
        "minimum",
        "quantity",
        "rate",
        "regime",
        "remaining_life",
        "risks",
        "spans",
        "status",
        "stream_ms",
        "subject",
        "trend",
        "value",
        "zscore",
    )

    def __init__(
        self, at: int, *, status: str | None = None, kind: str = "", regime: Regime | None = None
    ) -> None:
        self.at = at
        self.stream_ms = NO_WATERMARK
        self.status, self.kind, self.regime = status, kind, regime or ""
        self.value: float | None = None
        self.rate: float | None = None
        self.average: float | None = None
        self.average_by_time: float | None = None
        self.trend: float | None = None
        self.zscore: float | None = None
        self.anomaly_score: float | None = None
        self.crosses_in_h: float | None = None
        self.health_score: float | None = None
        self.remaining_life: float | None = None
        self.risks: Mapping[str, float] = {}
        self.minimum: float | None = None
        self.maximum: float | None = None
        self.quantity = self.code = self.subject = ""
        self.latest: Mapping[str, float] = {}
        self.known: Any = None
        self.attributes: Mapping[str, str] = {}
        self.spans: Mapping[int, Span] = {}

    def __getattr__(self, quantity: str) -> float | None:
        # Only for what is no slot: quantities as names in expressions over several sensors.
        return self.latest.get(quantity)


def _days_since(component: str) -> Callable[[Facts], float | None]:
    def found(facts: Facts) -> float | None:
        last = None if facts.known is None else facts.known.last_maintenance_ms.get(component)
        return None if last is None else (facts.at - last) / 86_400_000

    return found


def _errors(code: str) -> Callable[[Facts], float]:
    def found(facts: Facts) -> float:
        counts = {} if facts.known is None else facts.known.errors_24h
        return float(counts.get(code, 0) if code != "*" else sum(counts.values()))

    return found


def _attribute(name: str) -> Callable[[Facts], str | None]:
    def found(facts: Facts) -> str | None:
        own = facts.attributes.get(name)
        return own if own is not None or facts.known is None else facts.known.attributes.get(name)

    return found


def _number_of(name: str) -> Callable[[Facts], float | None]:
    text = _attribute(name)

    def found(facts: Facts) -> float | None:
        said = text(facts)
        try:
            number = None if said is None else float(said)
        except ValueError:
            return None  # it is no number: no condition on it is true
        return number if number is not None and isfinite(number) else None

    return found


def _minutes_in(word: str) -> Callable[[Facts], float]:
    def found(facts: Facts) -> float:
        since = None if facts.known is None else facts.known.status_since_ms
        return (
            0.0 if since is None or word not in (facts.status, facts.regime) else (facts.at - since) / 60_000
        )

    return found


def _over(name: str) -> Callable[[str, int], Callable[[Facts], float | None]]:
    """Return what makes the function that gives one measure of a window."""

    def bind(field: str, length: int) -> Callable[[Facts], float | None]:
        def found(facts: Facts) -> float | None:
            span = facts.spans.get(length)
            return None if span is None else getattr(span, name)

        return found

    return bind


def _risk(component: str) -> Callable[[Facts], float | None]:
    def found(facts: Facts) -> float | None:
        return max(facts.risks.values(), default=None) if component == "*" else facts.risks.get(component)

    return found


_WINDOW: Final = (FieldName("number", ("value",)), Window(LEAST_MS, MOST_MS))
#: Functions of a window over the values of a measuring point.
_WINDOWED: Final = tuple(
    Function(name, _WINDOW, "number", _over(measure), True, about)
    for name, measure, about in (
        ("mean", "mean", "mean of the good values of a time"),
        ("lowest", "low", "least good value of a time"),
        ("highest", "high", "largest good value of a time"),
        ("count", "count", "how many good values there were in a time"),
    )
)


_NUMBERS: Final = (
    "value",
    "rate",
    "average",
    "average_by_time",
    "trend",
    "zscore",
    "anomaly_score",
    "crosses_in_h",
    "health_score",
    "minimum",
    "maximum",
)
_FUNCTIONS: Final = (
    Function("age_days", (Constant("text"),), "number", _days_since, True, "days since it was replaced"),
    Function("errors", (Constant("text"),), "number", _errors, False, "errors of a code in 24 h, '*': all"),
    Function(
        "attribute",
        (Constant("text"),),
        "text",
        _attribute,
        True,
        "master data of the measuring point, else of the machine; a number where one is wanted",
        number=_number_of,
    ),
    Function(
        "minutes_in",
        (Constant("text"),),
        "number",
        _minutes_in,
        False,
        "how long it has been in a status or regime, minutes; 0: it is not",
    ),
)
#: What is foreseen of a machine.
_FORESEEN: Final = (
    Function(
        "risk",
        (Constant("text"),),
        "number",
        _risk,
        True,
        "how likely a component fails soon, 0 to 1; '*': the one that is most likely to",
    ),
)
WINDOW_NAMES: Final = frozenset(function.name for function in _WINDOWED)
_TEXTS: Final = {
    "status": Field("text", nullable=True, about="the machine's status"),
    "kind": Field("text", about="the machine's kind"),
    "regime": Field("text", about="what its status means: producing, idle, setup, maintenance, failed, off"),
    "quantity": Field("text", about="what is measured"),
}


@functools.lru_cache(maxsize=256)
def language(source: Source, quantities: tuple[str, ...] = ()) -> Language:
    """Return what expressions of a rule can speak of.

    >>> language("machine", ("flow", "pressure")).condition("flow > 80 and pressure < 2").text
    'flow > 80 and pressure < 2'
    """
    if source == "machine":
        numbers = {q: Field("number", nullable=True, about="latest good value") for q in quantities}
        return Language({**_TEXTS, **numbers}, _FUNCTIONS)
    if source == FORESIGHT:
        life = Field("number", nullable=True, about="how long the machine is expected to run yet, h")
        return Language({**_TEXTS, "remaining_life": life}, (*_FUNCTIONS, *_FORESEEN))
    if source == "error":
        return Language({**_TEXTS, "code": Field("text", about="the error's code")}, _FUNCTIONS)
    numbers = {n: Field("number", nullable=True) for n in _NUMBERS}
    return Language({**_TEXTS, **numbers}, (*_FUNCTIONS, *_WINDOWED))
