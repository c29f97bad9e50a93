"""Apps: what an application tells the runtime about itself, and how it is found.

An app registers through the entry-point group ``millrace.apps`` (name → ``module:app``); anyone's
package may add one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from millrace.errors import UserError
from millrace.runtime.installed import APPS_GROUP

if TYPE_CHECKING:
    from millrace.host.packing import Masking
    from millrace.host.spark_input import Plan
    from millrace.runtime.settings import AppSettings
    from millrace.topology import Topology


class UnknownApp(UserError):
    """No app of that name is installed."""


@dataclass(frozen=True)
class Topic:
    """A Kafka topic that an app reads or writes.

    Attributes:
        name: Its name.
        partitions: Partitions it is created with.
        config: Topic configuration it is created with; left out, records carry the time of their arrival
            (``message.timestamp.type=LogAppendTime``), all else is the broker's default.
        event_time: Of a topic that is read: field of its JSON events with their time, UTC milliseconds or
            ISO 8601 text, by which ``millrace doctor`` measures how long they take to arrive; ``None``: they
            have none.
        clock: Whether its events move the watermark: not labels, comments and whatever else is dated in
            the past. The same must be told of the inputs that come by it (``keyed(..., clock=...)``).
    """

    name: str
    partitions: int = 2
    config: Mapping[str, str] = field(default_factory=dict)
    event_time: str | None = None
    clock: bool = True


@dataclass(frozen=True)
class Topics:
    """The topics of an app.

    Attributes:
        reads: Topics of the source, control topics included; the order is part of the checkpoint.
        writes: Topics of the outputs.
        control: The one of ``reads`` that brings control events: ticks and the end of the input come
            that way too.
    """

    reads: tuple[Topic, ...]
    writes: tuple[Topic, ...] = ()
    control: str | None = None

    @property
    def clocks(self) -> tuple[str, ...]:
        """Names of the topics whose events move the watermark."""
        return tuple(t.name for t in self.reads if t.clock and t.name != self.control)


def with_output_suffix(topics: Topics, suffix: str) -> Topics:
    """Return the topics of a job whose outputs go to topics of its own.

    >>> with_output_suffix(Topics((Topic("in"),), (Topic("out"),)), ".green").writes[0].name
    'out.green'
    """
    return replace(topics, writes=tuple(replace(t, name=f"{t.name}{suffix}") for t in topics.writes))


@dataclass(frozen=True)
class App:
    """An application.

    Attributes:
        name: Its name in commands, settings and folders.
        summary: What it does, in one line.
        settings: Its settings class.
        topology: Settings → its :class:`~millrace.topology.Topology`: inputs, links and outputs, without an
            engine. Called where the app is run or looked at, so that its modules are imported no sooner.
        topics: Settings → the topics it reads and writes.
        settle: ``settle(settings, plan, links)`` → the settings, with what hangs on how the topology runs:
            ``plan`` is ``station`` or ``chain``, ``links`` the names of the links that the checkpoint has,
            ``None`` where there is none yet.
        masking: ``masking(settings)`` → what is done to events, headers and keys of records where they are
            read, for what must not get any further, such as card numbers
            (:class:`millrace.privacy.records.CardNumbers`); ``None``: nothing.
        demo: ``module:attribute`` of its :class:`~millrace.demo.DemoSpec`, if it has a demo.
        evaluate: ``module:attribute`` of the typer app behind ``millrace evaluate <name>``, if it has one.
        evaluations: Further ones, where that is a single command: name → ``module:attribute`` of the typer
            app behind ``millrace evaluate <name>-…``; each begins with the app's name and a dash.
        models: ``module:attribute`` of the typer app behind ``millrace models <name>``, if it learns
            (see :func:`millrace.models.commands.command_line`).
        begin: ``begin(settings)`` is called once before its query starts: for what workers must find there;
            what it returns is told in a line.
        dashboard: ``module:attribute`` of its page on the dashboard, if it has one.
        rules: ``module:attribute`` of what ``millrace rules <name>`` goes by, if it has rules that change
            while it runs: an :class:`~millrace.operations.app_rules.AppRules`.
        serve: ``module:attribute`` of the questions that it adds to ``millrace serve <name>``, if any: name →
            :class:`~millrace.serving.questions.Question`, or what makes them of the app's settings.
        rekeying: ``module:attribute`` of what makes of its settings what ``millrace rescale <name> --rekey``
            does (:class:`~millrace.checkpoints.rescale.Regroup`), if its keys hang on its settings.
        contracts: Its contracts: name and version, e.g. ``transaction.v1`` → type of the events (see
            :mod:`millrace.contracts`).
        narrowed: Contract → why it refuses some of what the version before it allowed: its bounds are
            narrower, in numbers, times, lengths. What is beyond them goes to the dead letters.
    """

    name: str
    summary: str
    settings: type[AppSettings]
    topology: Callable[[Any], Topology]
    topics: Callable[[Any], Topics]
    settle: Callable[[Any, Plan, Sequence[str] | None], Any] | None = None
    masking: Callable[[Any], Masking | None] | None = None
    demo: str | None = None
    evaluate: str | None = None
    evaluations: Mapping[str, str] = field(default_factory=dict)
    models: str | None = None
    begin: Callable[[Any], str | None] | None = None
    dashboard: str | None = None
    rules: str | None = None
    serve: str | None = None
    rekeying: str | None = None
    contracts: Mapping[str, Any] = field(default_factory=dict)
    narrowed: Mapping[str, str] = field(default_factory=dict)


def input_versions(app: App, topology: Topology) -> tuple[str, ...]:
    """Return the versions of contracts that an app reads, as a Kafka header names them.

    These are the first and all up to the newest contract of what comes in: whoever wrote one of them wrote
    what the newest reads, or what it says is beyond its bounds.
    """
    process = topology.links[0].process
    types = list(process.inputs.values()) or [process.event_type]
    newest = [name.rpartition(".v")[2] for name, tp in app.contracts.items() if tp in types]
    most = max((int(version) for version in newest if version.isdecimal()), default=1)
    return tuple(map(str, range(1, most + 1)))


def with_sent_times(app: App) -> App:
    """Return an app whose inputs keep the times that their senders give them: for simulated arrivals.

    Its control topic has those of their arrival all the same.
    """
    from millrace.kafka.admin import SENT_TIME

    def topics(settings: AppSettings) -> Topics:
        made = app.topics(settings)
        kept = (
            t if t.name == made.control else replace(t, config={**SENT_TIME, **t.config}) for t in made.reads
        )
        return replace(made, reads=tuple(kept))

    return replace(app, topics=topics)


def app_version(name: str) -> str:
    """Return the version of the package that an app comes with; ``unknown`` where no package names it."""
    found = [e.dist.version for e in entry_points(group=APPS_GROUP) if e.name == name and e.dist]
    return found[0] if found else "unknown"


def load_app(name: str) -> App:
    """Return the app called ``name``.

    Raises:
        UnknownApp: No such app is installed; the message names those that are.
    """
    found = {e.name: e for e in entry_points(group=APPS_GROUP)}
    if name not in found:
        near = difflib.get_close_matches(name, found, n=1)
        hint = f"did you mean {near[0]}?" if near else f"installed: {', '.join(sorted(found)) or 'none'}"
        raise UnknownApp(f"there is no app '{name}'; {hint}")
    try:
        app = found[name].load()
    except ImportError as error:
        raise UnknownApp(f"the app '{name}' ({found[name].value}) cannot be loaded: {error}") from error
    if not isinstance(app, App):
        raise UnknownApp(f"{found[name].value} is not a millrace App")
    return app
