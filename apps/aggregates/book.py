"""Control state of the aggregates app, read from its topic with the job's own code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.operations.app_rules import AppRules
from millrace.operations.control_topic import ControlReader, ControlTopic, Said
from millrace.rules import Language
from millrace_apps.aggregates.definition import MAX_TIME_MS
from millrace_apps.aggregates.life import AggregateEvent, Versions, change

if TYPE_CHECKING:
    from millrace_apps.aggregates.settings import AggregateSettings


class AggregateControlState(ControlReader):
    """What a control topic says of aggregations.

    Args:
        types: Topic → type of its events.
    """

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types = types
        self._decode = msgspec.json.Decoder(AggregateEvent).decode
        self.aggregations: dict[str, Versions] = {}
        self.said: list[Said] = []
        self._numbers: dict[str, int] = {}

    def apply(self, event: Any) -> None:
        """Do what an event says.

        Raises:
            AggregationError: It is refused.
        """
        # How far the job is nobody knows here: versions that have an end are taken to be over.
        for name, versions in list(change(event, self.aggregations, self._types, MAX_TIME_MS)):
            if versions is None:
                del self.aggregations[name]
            else:
                self.aggregations[name] = versions
                self._numbers[name] = max(self._numbers.get(name, 0), versions[-1].number)

    def next_version(self, name: str) -> int:
        """Return the number of an aggregation's next version."""
        return 1 + self._numbers.get(name, 0)


def control_topic(settings: AggregateSettings, types: Mapping[str, Any]) -> ControlTopic:
    """Return the app's control topic, for commands.

    Args:
        settings: Settings of the app.
        types: Topic → type of its events.
    """
    kind = type(settings)
    rules = AppRules(
        "aggregates", kind, AggregateEvent, lambda _: Language({}), lambda _: [], lambda _: (),
        book=lambda _: AggregateControlState(types),
    )  # fmt: skip
    return ControlTopic(rules, settings)
