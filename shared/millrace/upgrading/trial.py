"""Blue-green trial: a new version beside the one that runs, on the same input, with outputs of its own.

The running version is *blue*, the new one *green*. Green begins with a savepoint of blue, in a folder of its
own; the names of its output topics have a suffix, and it sends no ticks. So nothing of it reaches blue's
tables and topics.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.checkpoints import positions, savepoints
from millrace.checkpoints.checkpoint import Checkpoint
from millrace.checkpoints.positions import TablePosition
from millrace.connectors.gathering import as_columns, parts_of
from millrace.connectors.merging import wait_for_merges
from millrace.dashboard.progress import Offsets, offsets_of, read_progress
from millrace.errors import MillraceError, UserError
from millrace.kafka.launch import free_port
from millrace.local.waiting import wait_until
from millrace.observing.figures import read_figures
from millrace.observing.jobs import JobRecord, write_atomically
from millrace.runtime.apps import with_output_suffix
from millrace.runtime.plans import settled
from millrace.topology.sinks import Upsert, table_name
from millrace.upgrading.differences import Looks, Row, TableDifference, difference, difference_by_key
from millrace.upgrading.fitting import Fit
from millrace.upgrading.sent import SentDifference, SentTopic, reader
from millrace.upgrading.starting import OUTPUT_FILE, start_and_wait

if TYPE_CHECKING:
    from millrace.runtime.apps import App
    from millrace.runtime.settings import AppSettings, KafkaSettings
    from millrace.topology.sinks import Table
    from millrace.upgrading.started import Started
    from millrace.upgrading.upgrade import Upgrade

#: In the folder of a trial: what it is one of.
TRIAL_FILE: Final = "trial.json"
#: What belongs to a query itself, and is not taken along to a trial; all else is: keys, exported models.
_OF_THE_QUERY: Final = (
    "checkpoint*", "contract.json", "clock*", "owner.lock", "figures.json", "tables*", "savepoints",
    "written", "logs", "shipped", "drained", "demo*", "announced*", TRIAL_FILE, ".*",
)  # fmt: skip
_LOOK_S: Final = 0.1
_SAY_S: Final = 5.0


class Trial(msgspec.Struct):
    """A new version that runs beside another.

    Attributes:
        app: Name of the app.
        of: The folder of the version that runs.
        suffix: What the names of its output topics end with.
        topics: Those.
        settings: Settings that it was given beside those of the other, ``key=value``.
        savepoint: What it began with.
        batch: The batch of that.
        offsets: Topic → partition → offset at which it began.
        tables: Where the tables of the other stood then, as a manifest has it.
        sent: Topic of the other that no table has → partition → where it ended then.
    """

    app: str
    of: str
    suffix: str
    topics: list[str]
    settings: list[str]
    savepoint: str
    batch: int
    offsets: Offsets
    tables: dict[str, Any]
    sent: Offsets = {}


class TrialBegun(msgspec.Struct):
    """What became of the start of a trial.

    Attributes:
        app: Name of the app.
        root: The folder of the new version.
        of: The folder of the one that runs.
        did: ``runs``, ``refused`` (nothing was started), ``failed`` (it was started, and does not run).
        fit: How the new version takes the checkpoint.
        savepoint: What it began with.
        offsets: Topic → partition → offset at which it began.
        topics: Its output topics.
        pid: Its process.
        first_batch: Its first batch.
        log: What it prints.
        why: Why it does not run.
    """

    app: str
    root: str
    of: str
    did: str
    fit: Fit
    savepoint: str | None = None
    offsets: Offsets = {}
    topics: list[str] = []
    pid: int | None = None
    first_batch: int | None = None
    log: str | None = None
    why: str = ""


class Compared(msgspec.Struct):
    """What two versions wrote, compared.

    Attributes:
        app: Name of the app.
        blue: The folder of the version that runs.
        green: The folder of the new one.
        since: Topic → partition → offset from which on both have read.
        until: Topic → partition → offset up to which both had read when they were compared.
        same: Whether all tables, and topics that no table has, say the same.
        tables: Table → how it differs.
        sent: Topic of the running version that no table has → how it differs.
        not_compared: Such topics of which it is not known where they ended when the new version began: it was
            started by an earlier one.
    """

    app: str
    blue: str
    green: str
    since: Offsets
    until: Offsets
    same: bool
    tables: dict[str, TableDifference]
    sent: dict[str, SentDifference] = {}
    not_compared: list[str] = []


def trial_root(root: Path) -> Path:
    """Return where the trial beside a folder is.

    >>> trial_root(Path("/data/fraud"))
    PosixPath('/data/fraud-green')
    """
    return root.with_name(f"{root.name}-green")


def read_trial(root: Path) -> Trial:
    """Return what is said of the trial in a folder.

    Raises:
        UserError: There is none.
    """
    try:
        return msgspec.json.decode((root / TRIAL_FILE).read_bytes(), type=Trial)
    except FileNotFoundError:
        raise UserError(
            f"there is no second version in {root}: begin with `millrace bluegreen start`"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{root / TRIAL_FILE} cannot be read: {error}") from error


def job_in(root: Path) -> JobRecord | None:
    """Return the job that runs in a folder, by what it last said of itself; ``None``: none runs."""
    figures = read_figures(root)
    return figures.job if figures is not None and figures.job.process.is_alive() else None


def start_trial(
    plan: Upgrade, green: Path, suffix: str, settings: list[str], say: Callable[[str], None]
) -> TrialBegun:
    """Start the new version beside the one that runs.

    Args:
        plan: What an upgrade would go by.
        green: The folder of the new version; it must not be there, or be empty.
        suffix: What the names of its output topics end with; not empty.
        settings: Settings that the plan was given beside those of the running job.
        say: Told in a line what is done.

    Raises:
        UserError: The folder is in use, or no savepoint can be made.
    """
    checked = plan.check()
    done = TrialBegun(plan.app.name, str(green), str(plan.root), "refused", checked.fit, why=checked.why)
    if checked.did == "refused":
        return done
    with _begun(green, plan.app.name):
        started, after = _made(plan, green, suffix, settings, done, say)
    begun = start_and_wait(started, green, after=after, wake=plan.wake, timeout_s=plan.start_s, say=say)
    if begun.batch is None:
        begun.process.stop(grace_s=60.0)
        done.did, done.why = "failed", begun.why
        return done
    done.did, done.pid, done.first_batch = "runs", begun.process.pid, begun.batch
    return done


@contextlib.contextmanager
def _begun(green: Path, app: str) -> Iterator[None]:
    """Own the folder of a trial while it is made; what a start that was cut off has left there is removed.

    Raises:
        UserError: There is something else, or another command is at it.
    """
    mark = green.with_name(f".{green.name}.begun")
    mark.parent.mkdir(parents=True, exist_ok=True)
    was_cut_off = mark.exists()
    with mark.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another command begins a second version in {green}") from None
        try:
            if green.exists() and any(green.iterdir()):
                if not was_cut_off or (green / TRIAL_FILE).exists():
                    raise UserError(
                        f"{green} is not empty: end a second version that is there with `millrace bluegreen "
                        f"stop {app} --remove`, or choose another --green"
                    )
                shutil.rmtree(green)
            yield
        finally:
            mark.unlink(missing_ok=True)


def _made(
    plan: Upgrade, green: Path, suffix: str, settings: list[str], done: TrialBegun, say: Callable[[str], None]
) -> tuple[Started, int]:
    """Make the folder of a trial; return how its job is started, and the batch behind which it begins."""
    own_topics = [t.name for t in with_output_suffix(plan.app.topics(plan.settings), suffix).writes]
    checkpoint = Checkpoint(plan.root, plan.root / "checkpoint")
    kept = savepoints.create(checkpoint, to=green / savepoints.SAVEPOINTS, name="begin")
    say(f"savepoint {kept.path}: batch {kept.batch}, {kept.bytes:,} bytes")
    try:
        offsets = offsets_of(tuple(kept.manifest["offsets"]))
        _take_along(plan.root, green)
        savepoints.restore(kept, green, tables="keep")
        alone = sent_alone(plan.app, plan.settings, plan.root)
        trial = Trial(
            app=plan.app.name,
            of=str(plan.root),
            suffix=suffix,
            topics=own_topics,
            settings=settings,
            savepoint=str(kept.path),
            batch=kept.batch,
            offsets=offsets,
            tables=dict(kept.manifest["tables"]),
            sent=_ends_of(plan.settings, alone),
        )
        write_atomically(green / TRIAL_FILE, msgspec.json.encode(trial))
    except BaseException:
        shutil.rmtree(green, ignore_errors=True)
        raise
    done.savepoint, done.offsets, done.log = str(kept.path), offsets, str(green / OUTPUT_FILE)
    done.topics = own_topics
    own = [f"storage.root={green}", f"kafka.output_suffix={suffix}"]
    metrics, said = plan.settings.metrics, {one.partition("=")[0] for one in settings}
    if metrics.port is not None and "metrics.port" not in said:
        own.append("metrics.port=0")
    if metrics.spark_port is not None and "metrics.spark_port" not in said:
        own.append(f"metrics.spark_port={free_port()}")
    return plan.new.with_settings(own), kept.batch


def _take_along(blue: Path, green: Path) -> None:
    """Copy what a version needs beside its checkpoint: keys, exported models."""
    green.mkdir(parents=True, exist_ok=True)
    shutil.copytree(blue, green, ignore=lambda folder, names: _left(folder, names, blue), dirs_exist_ok=True)


def _left(folder: str, names: list[str], blue: Path) -> set[str]:
    if Path(folder) != blue:
        return set()
    return set(shutil.ignore_patterns(*_OF_THE_QUERY)(folder, names))


# -- comparing ---------------------------------------------------------------------------------


def compare(
    app: App,
    settings: AppSettings,
    green: Path,
    *,
    timeout_s: float,
    say: Callable[[str], None],
    at_rest: bool = False,
) -> Compared:
    """Return how what both versions wrote since the trial began differs, up to the same offsets.

    Args:
        app: The app.
        settings: Settings of the new version.
        green: Its folder.
        timeout_s: How long both may take to come to the same offsets, s.
        say: Told in a line what is waited for.
        at_rest: Whether both have ended, so that what they had planned is nothing.

    Raises:
        UserError: There is no trial, they do not come to the same offsets in time, or files of a table were
            vacuumed since.
    """
    trial = read_trial(green)
    blue = Path(trial.of)
    sinks, only_sent = _sinks(app, settings, green), sent_alone(app, settings, green)
    read = reader(settings.kafka)
    sent = {
        topic: SentTopic(topic, trial.suffix, trial.sent[topic], read)
        for topic in only_sent
        if topic in trial.sent
    }
    begun = positions.from_data(trial.tables)
    first = {name: _look(name, to, blue, green, begun) for name, to in sinks.items()}
    for topic in sent.values():
        topic.look()
    until, mark = _reached_by(blue, green, planned=not at_rest)
    _wait(blue, green, until, mark, timeout_s, say)
    for topic in sent.values():
        topic.look()
    then = {name: _look(name, to, blue, green, begun) for name, to in sinks.items()}
    found = {}
    for name, to in sinks.items():
        before, after = first[name], then[name]
        looks = Looks(before[0].rows, after[0].rows), Looks(before[1].rows, after[1].rows)
        columns = after[0].columns, after[1].columns
        if isinstance(to, Upsert):
            found[name] = difference_by_key(*looks, to.key, columns)
        else:
            found[name] = difference(*looks, ["_event_id"], columns)
    told = {name: topic.difference() for name, topic in sent.items()}
    same = all(one.is_same for one in found.values()) and all(one.is_same for one in told.values())
    left = [name for name in only_sent if name not in sent]
    return Compared(trial.app, str(blue), str(green), trial.offsets, until, same, found, told, left)


class _Read(msgspec.Struct):
    rows: list[Row]
    columns: list[str]


def _sinks(app: App, settings: AppSettings, root: Path) -> dict[str, Table]:
    """Return the tables of an app, by name."""
    from millrace.topology.sinks import written

    topology = app.topology(settled(app, settings, root=root))
    return {table_name(to): to for _, to in written(topology.tables)}


def sent_alone(app: App, settings: AppSettings, root: Path | None = None) -> list[str]:
    """Return the topics of outputs that no table has: what goes there alone is compared where it stands.

    Args:
        app: The app.
        settings: Its settings.
        root: Its folder, if it has run there.
    """
    topology = app.topology(settled(app, settings, root=root))
    return sorted(topic for output, topic in topology.topics.items() if output not in topology.tables)


def _ends_of(settings: AppSettings, topics: Sequence[str]) -> Offsets:
    """Return where topics end now; one that does not exist ends where it begins."""
    from millrace.kafka.admin import end_offsets, topic_partitions

    bootstrap, options = settings.kafka.bootstrap, settings.kafka.options
    if bootstrap is None or not topics:
        return {}
    there = topic_partitions(bootstrap, options=options)
    return {t: end_offsets(bootstrap, t, options=options) if t in there else {} for t in topics}


def _look(
    name: str, to: Table, blue: Path, green: Path, begun: Mapping[Path, TablePosition]
) -> tuple[_Read, _Read]:
    """Return what both have in a table now: rows since the trial began, or of one with a row per key all."""
    of_blue, of_green = blue / "tables" / name, green / "tables" / name
    if isinstance(to, Upsert):
        return _whole(of_blue), _whole(of_green)
    return _appended(of_blue, begun.get(of_blue)), _appended(of_green, None)


def _whole(table: Path) -> _Read:
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(table)):
        return _Read([], [])
    found = DeltaTable(str(table)).to_pyarrow_table()
    return _Read(found.to_pylist(maps_as_pydicts="lossy"), found.column_names)


def _appended(table: Path, since: TablePosition | None) -> _Read:
    """Return the rows that were appended to a table since; what a compaction wrote anew is none."""
    import pyarrow as pa
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(table)):
        return _Read([], [])
    rows: list[Row] = []
    schema = pa.schema(DeltaTable(str(table)).schema().to_arrow())
    for file in positions.files_appended(table, since):
        try:
            for part in parts_of(file):  # as whichever writer has written them
                rows += as_columns(part, schema).to_pylist(maps_as_pydicts="lossy")
        except FileNotFoundError:
            raise UserError(
                f"{table} was vacuumed since the second version began: keep files for longer "
                "(`millrace tables vacuum --keep`), and begin it anew"
            ) from None
    return _Read(rows, schema.names)


def _reached_by(*roots: Path, planned: bool = True) -> tuple[Offsets, int | None]:
    """Return the offsets up to which all in the tables can have come, and the watermark at which it came.

    Args:
        roots: Where the versions are.
        planned: Whether what is planned may be in them already.
    """
    until: Offsets = {}
    marks = []
    for root in roots:
        checkpoint = Checkpoint(root, root / "checkpoint")
        batch = max([checkpoint.last(), *(checkpoint.planned() if planned else ())])
        for topic, ends in offsets_of(checkpoint.position(batch).sources).items():
            known = until.setdefault(topic, {})
            for partition, offset in ends.items():
                known[partition] = max(offset, known.get(partition, 0))
        progress = read_progress(root)
        marks += [] if progress is None or progress.watermark_ms is None else [progress.watermark_ms]
    return until, max(marks, default=None)


def _wait(
    blue: Path, green: Path, until: Offsets, mark: int | None, timeout_s: float, say: Callable[[str], None]
) -> None:
    """Wait until both have read, and merged, what there was.

    Raises:
        UserError: One does not within the time, or has ended before.
    """
    began = time.monotonic()
    behind = {"the running version": blue, "the second version": green}

    def are_there() -> bool:
        for name, root in list(behind.items()):
            runs = job_in(root) is not None  # before: what has ended may have come there
            if _is_there(root, until, mark):
                del behind[name]
            elif not runs:
                raise UserError(f"{name} in {root} does not run, and has not read what the other one has")
        return not behind

    def told(seconds: float) -> None:
        say(f"{seconds:.0f} s so far: {' and '.join(behind)} still reads what the other one has")

    if not wait_until(are_there, timeout_s, every_s=_LOOK_S, told=told, told_every_s=_SAY_S):
        raise UserError(
            f"{' and '.join(behind)} did not come to where the other one is within {timeout_s:.0f} s"
        )
    for root in (blue, green):
        tables = [path for path, kind in positions.tables_of(root).items() if kind == "delta"]
        if left := wait_for_merges(tables, patience_s=max(1.0, timeout_s - (time.monotonic() - began))):
            raise UserError(f"rows for {', '.join(left)} in {root} are not merged yet: try again")


def _is_there(root: Path, until: Offsets, mark: int | None) -> bool:
    progress = read_progress(root)
    if progress is None:
        return False
    if mark is not None and (progress.watermark_ms is None or progress.watermark_ms < mark):
        return False
    return all(
        progress.done.get(topic, {}).get(partition, 0) >= offset
        for topic, ends in until.items()
        for partition, offset in ends.items()
    )


def end_trial(green: Path, trial: Trial, kafka: KafkaSettings) -> None:
    """Remove a trial's folder and its output topics; its job has ended.

    Args:
        green: Its folder.
        trial: What is said of it.
        kafka: How to reach the broker; one that is not named is left alone.

    Raises:
        UserError: The topics cannot be removed; the folder is there still.
    """
    from millrace.kafka.admin import delete_topics

    own = [topic for topic in trial.topics if topic.endswith(trial.suffix)]
    if kafka.bootstrap is not None and own:
        try:
            delete_topics(kafka.bootstrap, own, options=kafka.options)
        except MillraceError as error:
            raise UserError(f"the topics {', '.join(own)} were not removed: {error}") from error
    shutil.rmtree(green)
