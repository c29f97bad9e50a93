"""Source topics of aggregations, as the apps that read or write them know them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace.errors import UserError
from millrace.runtime.apps import App, UnknownApp, load_app
from millrace.runtime.commands import settings_of
from millrace.runtime.installed import list_apps
from millrace.topology import Input, RecordKey
from millrace.topology.keys import has_fields
from millrace.windows.fields import fields_of
from millrace_apps.aggregates.selecting import Source

if TYPE_CHECKING:
    from millrace_apps.aggregates.settings import AggregateSettings

_OWN = "aggregates"


class SourceTopic(NamedTuple):
    """A topic as an app has it.

    Attributes:
        app: The app.
        input: Its key and time.
        type: Type of its events.
    """

    app: App
    input: Input
    type: Any


def words(text: str) -> list[str]:
    """Return the parts of a setting that are written with commas.

    >>> words("a, b,,c ")
    ['a', 'b', 'c']
    """
    return [word for part in text.split(",") if (word := part.strip())]


def inputs_of(settings: AggregateSettings) -> dict[str, SourceTopic]:
    """Return what is known of the topics to be aggregated: name of the input → topic.

    Raises:
        UserError: No app knows one of them, or its events are no records with a time.
    """
    topics = words(settings.sources)
    if not topics:
        raise UserError("sources of aggregates names no topic: set it, e.g. -s sources=fraud.transactions")
    found = {re.sub(r"\W", "_", topic): _known(topic) for topic in topics}
    if len(found) < len(topics):
        raise UserError(f"sources of aggregates names a topic twice: {settings.sources}")
    return found


def source_of(topic: str, known: SourceTopic, settings: AggregateSettings) -> Source:
    """Return a topic as aggregations see it."""
    there = fields_of(known.type)
    identity = next((field for field in words(settings.identities) if field in there), "")
    return Source(topic, known.type, identity)


def _known(topic: str) -> SourceTopic:
    names = sorted(set(list_apps()) - {_OWN}, key=lambda name: (not topic.startswith(name), name))
    for name in names:
        try:
            app = load_app(name)
        except UnknownApp:
            continue
        topology = app.topology(settings_of(name))
        inputs = topology.links[0].process.inputs or {"": topology.links[0].process.event_type}
        for one, read in topology.inputs.items():
            if read.topic == topic:
                return _timed(topic, SourceTopic(app, read, inputs[one]))
        types = topology.types
        for output, to in topology.topics.items():
            if to == topic:
                return _timed(topic, SourceTopic(app, Input(topic, RecordKey()), types[output]))
    raise UserError(f"no installed app reads or writes {topic}: sources of aggregates cannot have it")


def _timed(topic: str, known: SourceTopic) -> SourceTopic:
    time = str(known.input.event_time)
    if not has_fields(known.type, [time]) or not fields_of(known.type):
        raise UserError(
            f"events of {topic} are no records of one kind with {time}: they cannot be aggregated"
        )
    return known
