"""Several apps' demos at once: one broker, one Spark engine, one dashboard; each app checked as by itself.

Apps and broker are started again when they end unasked: what is committed stands, and they go on after it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.demo import (
    CatchUp,
    DemoOptions,
    DemoRun,
    DemoSpec,
    DemoTails,
    Settling,
    delete_demo_topics,
    demo_folder,
    demo_settings,
    sent_by,
    start_generator,
)
from millrace.errors import MillraceError, UserError
from millrace.local.home import demo_path
from millrace.runtime.apps import App, with_sent_times
from millrace.runtime.demo_settings import publish_settings
from millrace.runtime.keeping import KeptJob
from millrace.runtime.monitor import QueryMonitor
from millrace.runtime.shared import SHARED_CONF, SharedSession

if TYPE_CHECKING:
    from millrace.console.live import LiveView
    from millrace.console.report import Check
    from millrace.kafka.keeping import KeptBroker
    from millrace.local.processes import Child

#: What all apps together are called, beside the names of apps.
ALL: Final = "all"
#: How long events are sent and how many a second of each app where nobody says otherwise: in all as many of
#: each as a single demo sends, as slowly as two cores take those of four.
DURATION_S: Final = 240.0
RATE: Final = 250
#: Heap of the driver, which all apps share, unless it is set.
_MEMORY: Final = "spark.driver_memory=2g"
_TICK_S: Final = 0.25
#: How often each app's line is shown, seconds.
_SAY_S: Final = 5.0
#: How long the dashboard may take to say where it is, seconds.
_DASHBOARD_S: Final = 30.0


@dataclass(frozen=True)
class Member:
    """An app that takes part.

    Attributes:
        app: The app.
        spec: What it adds to a demo.
    """

    app: App
    spec: DemoSpec


@dataclass
class _Part:
    """An app at work."""

    member: Member
    run: DemoRun
    monitor: QueryMonitor
    tails: DemoTails
    job: KeptJob
    settling: Settling
    catch_up: CatchUp = field(default_factory=CatchUp)
    generator: Child | None = None
    sent: int | None = None
    done: bool = False
    first_result_s: float | None = None
    checks: list[Check] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.member.app.name


@dataclass(frozen=True)
class Together:
    """What became of all.

    Attributes:
        checks: App → its checks.
        first_results_s: App → seconds from the start to its first alert, or whatever it shows as it comes.
        restarts: What was started again → how often.
    """

    checks: Mapping[str, Sequence[Check]]
    first_results_s: Mapping[str, float]
    restarts: Mapping[str, int]


def run_together(
    members: Sequence[Member],
    options: DemoOptions,
    view: LiveView,
    *,
    dashboard_port: int | None = None,
) -> Together:
    """Run the demos of several apps at once to their end.

    Args:
        members: The apps.
        options: What the user chose; rate and duration are of each app.
        view: Where they are shown.
        dashboard_port: Where the dashboard answers; 0: a free port; ``None``: without one.

    Raises:
        UserError: Something is missing or in use.
        MillraceError: A generator or an app failed for good, or was interrupted.
    """
    began = time.monotonic()
    for member in members:  # a setting that does not hold, before anything is started or removed
        app, spec, folder = member.app, member.spec, demo_path(member.app.name)
        demo_settings(app, spec, options, folder, "127.0.0.1:1", "", _MEMORY)
    with contextlib.ExitStack() as held:
        folder = held.enter_context(_folder())
        for member in members:
            demo_folder(member.app.name)  # refuses while another demo uses it
        bootstrap, run_id, broker = held.enter_context(_kept_broker(options.bootstrap, folder, view))
        shared = SharedSession()
        parts = [_part(member, options, bootstrap, run_id, shared, view) for member in members]
        for part in parts:
            told = [f"kafka.bootstrap={bootstrap}", *part.member.spec.settings(run_id)]
            held.enter_context(publish_settings(part.run.folder, told))
            if run_id:
                held.callback(delete_demo_topics, part.member.app, part.run.settings, run_id)
        if dashboard_port is not None:
            address = held.enter_context(_dashboard(dashboard_port, [p.name for p in parts], folder))
            view.message(f"dashboard: {address}")
        with view.phase("Spark"):
            spark = held.enter_context(_engine(parts, folder))
        _run(parts, spark, shared, broker, view, began, held)
    restarts = {part.name: part.job.restarts for part in parts}
    if broker is not None:
        restarts["broker"] = broker.restarts
    return Together(
        {part.name: part.checks for part in parts},
        {part.name: part.first_result_s for part in parts if part.first_result_s is not None},
        restarts,
    )


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Give the folder of what belongs to no app: logs of broker, Spark and dashboard."""
    from millrace.runtime.contract import owned

    with owned(demo_folder(ALL)):
        folder = demo_path(ALL)
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        yield folder


@contextlib.contextmanager
def _kept_broker(
    bootstrap: str | None, folder: Path, view: LiveView
) -> Iterator[tuple[str, str, KeptBroker | None]]:
    """Give a broker's address, a run id for topics on one that others use, and who watches over our own."""
    import os
    import uuid

    from millrace.kafka.broker import BOOTSTRAP_VARIABLE, EmbeddedBroker
    from millrace.kafka.keeping import KeptBroker

    if named := bootstrap or os.environ.get(BOOTSTRAP_VARIABLE):
        yield named, uuid.uuid4().hex[:8], None
        return
    with contextlib.ExitStack() as held:
        with view.phase("broker"):
            broker = held.enter_context(EmbeddedBroker(log_dir=folder / "logs"))
        kept = held.enter_context(KeptBroker(broker, told=view.message))
        yield broker.bootstrap, "", kept


def _part(
    member: Member,
    options: DemoOptions,
    bootstrap: str,
    run_id: str,
    shared: SharedSession,
    view: LiveView,
) -> _Part:
    from millrace.runtime.job import Job

    app, spec = member.app, member.spec
    if spec.simulated:
        app = with_sent_times(app)
    folder = demo_path(app.name)
    settings = demo_settings(app, spec, options, folder, bootstrap, run_id, _MEMORY)
    run = DemoRun(bootstrap, folder, settings, options.duration_s, options.rate, options.seed)
    monitor = QueryMonitor()

    def make() -> Job:
        return Job(
            app,
            settings,
            monitor=monitor,
            on_batch=monitor.on_batch,
            on_plan=view.message,
            log_file=demo_path(ALL) / "logs" / "spark.log",
            sessions=shared.of,
        )

    job = KeptJob(app.name, make, monitor, told=view.message)
    return _Part(member, run, monitor, DemoTails(spec, run), job, Settling(job))


@contextlib.contextmanager
def _engine(parts: Sequence[_Part], folder: Path) -> Iterator[Any]:
    """Start the engine of all, by the settings that the first one has of it."""
    from millrace.runtime.session import spark_session

    spark = parts[0].run.settings.spark
    with spark_session(
        "millrace-demos",
        master=spark.master,
        driver_memory=spark.driver_memory,
        quick_start=True,
        log_file=folder / "logs" / "spark.log",
        conf=dict(spark.conf) | SHARED_CONF,
        preload=tuple(part.member.app.topology.__module__ for part in parts),
    ) as session:
        yield session


@contextlib.contextmanager
def _dashboard(port: int, apps: Sequence[str], folder: Path) -> Iterator[str]:
    """Run the dashboard in a process of its own, that looking takes nothing from the apps; give its address.

    Raises:
        MillraceError: It did not start.
    """
    from millrace.local.processes import Child
    from millrace.local.waiting import wait_until

    log_file = folder / "logs" / "dashboard.log"
    command = [sys.executable, "-m", "millrace", "dashboard", "--demo", "--port", str(port)]
    with Child(command, log_file=log_file) as child:

        def said() -> str:
            lines = log_file.read_text(errors="replace").splitlines() if log_file.exists() else []
            found = [line for line in lines if line.startswith("dashboard: ")]
            return found[0].removeprefix("dashboard: ").partition("  (")[0] if found else ""

        wait_until(lambda: bool(said()) or not child.is_alive(), _DASHBOARD_S)
        if not said():
            raise MillraceError(f"the dashboard did not start; see {log_file}")
        yield said()


def _run(
    parts: Sequence[_Part],
    spark: Any,
    shared: SharedSession,
    broker: KeptBroker | None,
    view: LiveView,
    began: float,
    held: contextlib.ExitStack,
) -> None:
    shared.give(spark)
    with contextlib.ExitStack() as running:
        for part in parts:
            running.enter_context(part.tails)
            running.callback(_end, part)  # before the topics are read to their end: behind the last batch
            with view.phase(f"{part.name}: query"):
                # One after the other: what they need of the engine is started once.
                part.job.start()
                while not part.job.started.wait(_TICK_S):
                    part.job.check()
                part.job.check()
        # Events that came meanwhile would be large first batches, which take the others' cores.
        for part in parts:
            _warm_up(part, view)
        for part in parts:
            part.generator = running.enter_context(start_generator(part.member.spec, part.run))
        _watch(parts, broker, view, began)
    for part in parts:
        part.job.check()
    for part in parts:
        with view.phase(f"{part.name}: checks"):
            part.checks = part.tails.checks()


def _warm_up(part: _Part, view: LiveView) -> None:
    """Have an app that is to answer run a batch without events: the first takes many times as long."""
    if not part.member.spec.answers or not part.job.wake():
        return
    with view.phase(f"{part.name}: first batch"):
        while not part.monitor.snapshot().batches:
            part.job.check()
            time.sleep(_TICK_S)


def _end(part: _Part) -> None:
    part.job.stop()
    part.job.join()


def _watch(parts: Sequence[_Part], broker: KeptBroker | None, view: LiveView, began: float) -> None:
    """Show figures until all generators have ended and all apps have caught up; each ends as it has."""
    since = said_at = time.monotonic()
    while not all(part.done for part in parts):
        now = time.monotonic()
        for part in parts:
            _look(part, view, began)
        if broker is not None:
            broker.check()
        if now - said_at >= _SAY_S:
            said_at = now
            _say(parts, view, now - since)
        time.sleep(_TICK_S)


def _look(part: _Part, view: LiveView, began: float) -> None:
    if part.done:
        return
    first_at = part.tails.alerts.first_at
    if first_at is not None and part.first_result_s is None:
        part.first_result_s = first_at - began
        view.message(f"{part.name}: first result {part.first_result_s:.1f} s after the start")
    if not part.job.is_alive():
        part.job.check()
        raise MillraceError(f"{part.name} ended before its generator")
    if part.sent is None and part.generator is not None:
        part.sent = sent_by(part.generator, part.member.spec, part.run, f"{part.name}'s generator")
    if part.sent is None:
        return
    snapshot = part.monitor.snapshot()
    # A batch that was run again after a failure may have been heard of once too little: what the broker has
    # after what was read says whether all is read.
    wanted = snapshot.input_rows + _behind(part) if part.job.restarts else part.sent
    if part.settling.done(snapshot, wanted):
        # No batch is begun any more; the others have its share of the machine.
        part.job.stop()
        part.done = True
        view.message(f"{part.name}: all {part.sent:,} events are handled")
    else:
        part.catch_up.check(snapshot.input_rows, snapshot.batches, part.sent, part.name)


def _behind(part: _Part) -> int:
    """Return how many records of the app's topics stand behind those that it has read; of no answer: one."""
    from millrace.kafka.admin import end_offsets

    settings, positions = part.run.settings, part.monitor.snapshot().positions
    try:
        return sum(
            max(0, end - positions.get(f"{topic.name}:{partition}", (0, 0))[0])
            for topic in part.member.app.topics(settings).reads
            for partition, end in end_offsets(
                part.run.bootstrap, topic.name, options=settings.kafka.options
            ).items()
        )
    except UserError:
        return 1


def _say(parts: Sequence[_Part], view: LiveView, elapsed_s: float) -> None:
    from millrace.console.live_panels import ViewModel, status_line

    for part in parts:
        if part.done:
            continue
        snapshot = part.monitor.snapshot()
        model = replace(ViewModel.of(snapshot), elapsed_s=elapsed_s, outputs={})
        ids = part.tails.alerts.ids
        results = f"  results {len(ids):,}" if ids else ""
        view.message(f"{part.name:<12}{status_line(model)}{results}")
