"""The world in a loop with an app over Kafka: the app's messages in, the agents' events out."""

from __future__ import annotations

from typing import Any, Final

from millrace_apps.generators.engine.loop import Loop
from millrace_apps.generators.ridesharing.agents import World
from millrace_apps.generators.ridesharing.messages import Assignment, Hint, Offer, Quote
from millrace_apps.ridesharing.contracts.records import Release

#: Topics of an app's messages, and what is on them.
APP_TOPICS: Final[dict[str, type[Any]]] = {
    "ridesharing.offers": Offer,
    "ridesharing.assignments": Assignment,
    "ridesharing.releases": Release,
    "ridesharing.quotes": Quote,
    "ridesharing.hints": Hint,
}

LOOP: Final = Loop(APP_TOPICS, World)
