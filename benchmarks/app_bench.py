"""An app as a benchmark knows it: its streams, how its events are made, what answers what."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

#: A message as it stands in a topic, or a row of a table.
Record = dict[str, Any]
#: Name of a table and the columns that are wanted → its rows.
Rows = Callable[[str, Sequence[str]], list[Record]]
#: Stream → what was sent to it.
Sent = Callable[[str], Iterator[Record]]
#: What a message and its answer have in common; ``None``: it is none that is measured.
Key = Hashable | None

#: App → module with its ``bench``.
_MODULES: Final = {
    "fraud": "millrace_apps.benchmarks.app_fraud",
    "iot": "millrace_apps.benchmarks.app_iot",
    "clickstream": "millrace_apps.benchmarks.app_clickstream",
    "ridesharing": "millrace_apps.benchmarks.app_ridesharing",
}


@dataclass(frozen=True)
class Answers:
    """Which messages of an app answer which of its input.

    Attributes:
        name: What an answer is, e.g. ``alert``: the report's fields begin with it.
        topic: The topic that it is on, as the settings name it.
        stream: The stream that is answered.
        asked: A message of that stream → its key.
        answered: A message of the topic → the key of what it answers; ``None`` where a timer caused it.
        decided: An answer → when it was decided on, event time in ms, where the app waits for the end of a
            window on purpose.
        window_ms: Settings → length of that window, ms.
    """

    name: str
    topic: str
    stream: str
    asked: Callable[[Record], Key]
    answered: Callable[[Record], Key]
    decided: Callable[[Record], int] | None = None
    window_ms: Callable[[Any], int] = lambda _: 0


@dataclass(frozen=True)
class AppBench:
    """What a benchmark must know of an app.

    Attributes:
        name: The app, and its generator.
        streams: What the generator sends; the settings name their topics alike.
        entities: The generator's option for how many there are of what keys are made from.
        usual: How many of them by default.
        answers: What is measured by ``latency``.
        check: Compares the tables with what was sent: ``correct`` and counts.
        preload: Further options of the generator that fills the topics for ``drain``.
        catch_up: Settings of ``drain`` besides those of all apps.
        live: Options of the generator that sends at a steady rate.
        paced: Folder → settings of ``latency``; it may write files that they name.
        timed_rows: A table whose rows are timed too, by their commit; it has a row per event.
        own_clock: The steady generator's events have times of their own, not the wall clock's.
        drain: Whether timers must fire at the end before the tables can be compared.
    """

    name: str
    streams: tuple[str, ...]
    entities: str
    usual: int
    answers: Answers
    check: Callable[[Rows, Sent], Record]
    preload: Mapping[str, object]
    catch_up: tuple[str, ...]
    live: Mapping[str, object]
    paced: Callable[[Path], Sequence[str]] = lambda _: ()
    timed_rows: str = ""
    own_clock: bool = False
    drain: bool = True


def bench_of(app: str) -> AppBench:
    """Return what is known of an app.

    >>> bench_of("fraud").streams
    ('transactions', 'labels', 'authorisations')
    """
    bench: AppBench = import_module(_MODULES[app]).bench
    return bench
