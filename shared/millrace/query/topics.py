"""Topics as streaming tables: names, and columns by their contracts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from millrace.contracts.ddl import spark_ddl
from millrace.contracts.schema import SchemaError, json_schema

if TYPE_CHECKING:
    from millrace.runtime.apps import App
    from millrace.runtime.settings import AppSettings

#: The part in front of a topic's name, as tables have their app's.
TOPIC: Final = "topic"
#: Begin of a column at the top level: within a struct a name has a colon behind it.
_COLUMN: Final = re.compile(r"`((?:[^`]|``)*)` (?=[A-Z])")
#: Texts, quoted names and comments stay; what is between them is searched for names.
_NAME: Final = r"`(?:[^`]|``)+`|\w+"
_TOKEN: Final = re.compile(
    r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/"
    rf"|({_NAME})\s*\.\s*({_NAME})|{_NAME}",
    re.DOTALL,
)
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class AppTopic:
    """A topic of an app.

    Attributes:
        app: The app.
        topic: Name of the topic.
        columns: Its events' columns, as Spark's DDL.
        event_time: The column with their time; empty: there is none.
        is_ms: Whether that is in UTC milliseconds.
    """

    app: str
    topic: str
    columns: str
    event_time: str = ""
    is_ms: bool = True

    @property
    def full_name(self) -> str:
        """The name by which it is asked: ``topic.name``, with ``_`` for what no name can have."""
        return f"{TOPIC}.{_NO_NAME.sub('_', self.topic)}"

    def named_columns(self) -> list[tuple[str, str]]:
        """Return the columns with their types."""
        parts = _COLUMN.split(self.columns)[1:]
        return [(name, kind.rstrip(", ")) for name, kind in zip(parts[::2], parts[1::2], strict=True)]


def topics_of(app: App, settings: AppSettings) -> list[AppTopic]:
    """Return the topics of an app whose events are records, by name.

    Args:
        app: The app.
        settings: Its settings.
    """
    topology = app.topology(settings)
    first = topology.links[0].process
    types = dict(first.inputs) or {"": first.event_type}
    found: dict[str, AppTopic] = {}
    for name, one in topology.inputs.items():
        _add(found, app.name, one.topic, types[name], str(one.event_time))
    outputs = topology.types
    for output, topic in topology.topics.items():
        _add(found, app.name, topic, outputs[output], "event_time_ms")
    return sorted(found.values(), key=lambda one: one.topic)


def _add(found: dict[str, AppTopic], app: str, topic: str, tp: Any, event_time: str) -> None:
    if topic in found:
        return
    try:
        columns = spark_ddl(json_schema(tp))
    except SchemaError:
        return  # not records with columns
    kind = re.search(rf"`{re.escape(event_time)}` (BIGINT|TIMESTAMP)", columns)
    found[topic] = AppTopic(
        app, topic, columns, event_time if kind else "", kind is None or kind[1] == "BIGINT"
    )


def named(text: str, names: Iterable[str]) -> tuple[str, list[str]]:
    """Return a query with each name of two parts as one quoted name, and which of them it has.

    Args:
        text: The query.
        names: Full names, ``app.table`` and ``topic.name``.

    Example:
        >>> named("SELECT n, 'iot.alarms' FROM Iot . alarms a", ["iot.alarms"])
        ("SELECT n, 'iot.alarms' FROM `iot.alarms` a", ['iot.alarms'])
        >>> named("SELECT 1 FROM topic.`new-sales`", ["topic.new_sales"])
        ('SELECT 1 FROM `topic.new_sales`', ['topic.new_sales'])
    """
    known = {name.lower(): name for name in names}
    found: list[str] = []

    def put(match: re.Match[str]) -> str:
        name = known.get(_full(match).lower())
        if name is None:
            return match[0]
        if name not in found:
            found.append(name)
        return f"`{name}`"

    return _TOKEN.sub(put, text), found


def unknown_topics(text: str, names: Iterable[str]) -> list[str]:
    """Return the topics that a query names and that there are not: better known before Spark starts.

    Args:
        text: The query.
        names: Full names of the topics.

    Example:
        >>> unknown_topics("SELECT 'topic.x' FROM topic.sale JOIN topic.Sales", ["topic.sales"])
        ['topic.sale']
    """
    known = {name.lower() for name in names}
    asked = [_full(match) for match in _TOKEN.finditer(text)]
    topics = dict.fromkeys(name for name in asked if name.lower().startswith(f"{TOPIC}."))
    return [name for name in topics if name.lower() not in known]


def _full(match: re.Match[str]) -> str:
    """Return a name of two parts, without quotes; of a topic's name with ``_`` as it is asked."""
    if not match[1]:
        return ""
    first, second = (part.strip("`") for part in match.groups())
    return f"{first}.{_NO_NAME.sub('_', second) if first.lower() == TOPIC else second}"


#: Called with the columns and rows of a batch; returns whether it has enough.
Tell = Callable[[Sequence[str], list[dict[str, Any]]], bool]
