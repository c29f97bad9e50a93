"""Plan choice: an app's topology on Spark as a station or as a chain, and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.errors import UserError
from millrace.runtime.contract import CONTRACT_FILE
from millrace.runtime.settings import MOST_STATIONS, AppSettings
from millrace.topology.contract import stations_of

if TYPE_CHECKING:
    from millrace.host.spark_input import Plan
    from millrace.runtime.apps import App

#: With more events than this waiting, a query begins as a chain: a station works them off in one task.
BACKLOG: Final = 100_000
#: A run until the end of so many events is a short one: with 400,000 less compiling still was quicker.
SHORT_RUN: Final = 1_000_000
#: State of at most so many bytes is brought from one plan to the other when the query starts.
SMALL_STATE_BYTES: Final = 32 << 20
#: So many full batches in a row say that a station does not keep up.
FULL_BATCHES: Final = 20
#: Why a station would be slow.
_ONE_BY_ONE: Final = "this PySpark's state client is not as it is known: a station waits for each answer"


class Choice(NamedTuple):
    """How a topology runs.

    Attributes:
        plan: The plan.
        why: What it was chosen for.
        converts: Whether the checkpoint has the other one, or another number of stations.
        stations: How many stations there are.
    """

    plan: Plan
    why: str
    converts: bool = False
    stations: int = 1

    def __str__(self) -> str:
        return f"plan: {_named(self.plan, self.stations)} ({self.why})"


def _named(plan: Plan, stations: int) -> str:
    """Return what a plan is called.

    >>> _named("chain", 1), _named("station", 1), _named("station", 2)
    ('chain', 'station', '2 stations')
    """
    return f"{stations} stations" if stations > 1 else plan


def kept_plan(root: Path) -> Plan | None:
    """Return the plan of the checkpoint in a folder; ``None``: there is none."""
    stations = kept_stations(root)
    return None if stations is None else "station" if stations else "chain"


def kept_stations(root: Path) -> int | None:
    """Return the number of stations of the checkpoint in a folder, 0 of a chain; ``None``: there is none."""
    try:
        kept = json.loads((root / CONTRACT_FILE).read_text())
    except (OSError, ValueError):
        return None  # whoever reads it next says what is wrong with it
    return stations_of(kept) if isinstance(kept, Mapping) else 0


def kept_links(root: Path) -> list[str] | None:
    """Return the names of the links of the checkpoint in a folder; ``None``: there is none."""
    try:
        kept = json.loads((root / CONTRACT_FILE).read_text())
    except (OSError, ValueError):
        return None
    return [str(link.get("process")) for link in kept.get("links") or [kept]]


def settled(
    app: App, settings: Any, plan: Plan | None = None, *, anew: bool = False, root: Path | None = None
) -> Any:
    """Return an app's settings with what hangs on how its topology runs.

    Args:
        app: The app.
        settings: Its settings.
        plan: How it runs; ``None``: as its checkpoint has it, as is set, or as ``auto`` begins where
            little waits.
        anew: Whether to look at no checkpoint.
        root: The folder of the checkpoint, where it is not the one that is set.
    """
    if app.settle is None:
        return settings
    root = None if anew else root or settings.storage.local_root
    if plan is None:
        asked = settings.stream.plan
        kept = None if root is None else kept_plan(root)
        plan = kept or ("station" if asked == "auto" else asked)
    return app.settle(settings, plan, None if root is None else kept_links(root))


def settled_what(before: AppSettings, after: AppSettings) -> str:
    """Return what was settled, as it would be set: ``; features.entities=terminal,ip``, or nothing.

    >>> settled_what(AppSettings(), AppSettings())
    ''
    """
    was, now = _flat(before.model_dump(mode="json")), _flat(after.model_dump(mode="json"))
    return "".join(f"; {name}={value}" for name, value in now.items() if was.get(name) != value)


def _flat(settings: Mapping[str, Any], led: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{led}{name}.") if isinstance(value, Mapping) else {f"{led}{name}": value}
    return found


def choose(
    settings: AppSettings, root: Path, waiting: Callable[[], int], locality: str | None = None
) -> Choice:
    """Choose how an app's topology runs.

    Args:
        settings: The app's settings.
        root: The folder of its checkpoint.
        waiting: Returns how many events wait to be read; asked only where it matters.
        locality: The field that all keys of its topology begin with; ``None``: there is none.

    Raises:
        UserError: The checkpoint has another plan or number of stations than is set, and its state is not
            small; or several stations are set, or kept, of a topology without a locality.

    Example:
        >>> choose(AppSettings(), Path("nowhere"), lambda: 0).plan
        'station'
        >>> print(choose(AppSettings(), Path("nowhere"), lambda: 5_000_000))
        plan: chain (5,000,000 events wait)
    """
    kept = kept_stations(root)
    plan, why = _plan(settings, root, kept, waiting)
    if plan == "chain":
        stations, of_plan = 0, f"--plan {plan} --partitions N"
    else:
        stations, because = _stations(settings, root, kept, locality)
        why = f"{why}, {because}" if because else why
        of_plan = f"--stations {stations}" if kept else f"--plan {plan}"
        of_plan += f" --stations {stations}" if stations > 1 and not kept else ""
    if kept in (None, stations):
        return Choice(plan, why, stations=max(stations, 1))
    before = "a chain" if not kept else "a station" if kept == 1 else f"{kept} stations"
    size = _state_bytes(root)
    if size <= SMALL_STATE_BYTES:
        why = f"{why}; the checkpoint is brought over from {before}"
        return Choice(plan, why, converts=True, stations=max(stations, 1))
    name = "stream.stations" if kept and stations else "stream.plan"
    raise UserError(
        f"the checkpoint in {root} is of {before}, with {size >> 20:,} MB of state, and {name} is "
        f"{stations if kept and stations else plan}: bring it over with: millrace rescale {root} {of_plan}"
    )


def _stations(settings: AppSettings, root: Path, kept: int | None, locality: str | None) -> tuple[int, str]:
    """Return how many stations there are to be, and why; nothing is to be said of one."""
    asked = settings.stream.stations
    if asked == "auto" and kept:
        stations, why = kept, f"by {locality}"
    elif asked == "auto":
        stations, why = _cores(settings.spark.master, locality), f"one for each core, by {locality}"
    else:
        stations, why = asked, f"by {locality}"
    if stations == 1:
        return 1, ""
    if locality is None:
        raise UserError(
            f"the checkpoint in {root} is of {kept} stations, and the app's topology has no locality: bring "
            f"it over with: millrace rescale {root} --stations 1"
            if asked == "auto"
            else f"stream.stations is {stations}, and the app's topology names no locality, a field that all "
            "keys begin with: it runs in one station"
        )
    return stations, why


def _cores(master: str, locality: str | None) -> int:
    """Return how many cores stations can use: those of a local master, if there is a locality."""
    from millrace.runtime.session import local_cores

    return 1 if locality is None else min(local_cores(master) or 1, MOST_STATIONS)


def _plan(
    settings: AppSettings, root: Path, kept: int | None, waiting: Callable[[], int]
) -> tuple[Plan, str]:
    """Return the plan, and why."""
    asked = settings.stream.plan
    if asked != "auto":
        return asked, "as set"
    if kept:
        why = "as the checkpoint has it"
        if not _sends_ahead():
            why += f"; {_ONE_BY_ONE}, bring it over with: millrace rescale {root} --plan chain"
        return "station", why
    if kept is not None:
        return "chain", "as the checkpoint has it"
    spark = settings.spark
    if not spark.master.startswith("local"):
        return "chain", "on a cluster"
    if (spark.shuffle_partitions or 1) > 1:
        return "chain", f"spark.shuffle_partitions is {spark.shuffle_partitions}"
    if (count := waiting()) > BACKLOG:
        return "chain", f"{count:,} events wait"
    if not _sends_ahead():
        return "chain", _ONE_BY_ONE
    return "station", "on one machine, and little waits"


def _sends_ahead() -> bool:
    from millrace.host.spark_state import sends_ahead

    return sends_ahead()


def is_short(settings: AppSettings, waiting: Callable[[], int], *, until_end: bool) -> bool:
    """Return whether a run is over before the JVM's optimising compiler would pay.

    Args:
        settings: The app's settings; ``spark.quick_start`` decides where it is set.
        waiting: Returns how many events wait.
        until_end: Whether the run ends with what waits.
    """
    asked = settings.spark.quick_start
    return (until_end and waiting() <= SHORT_RUN) if asked is None else asked


def _state_bytes(root: Path) -> int:
    """Return what the files of a checkpoint's state take, of all versions that are kept."""
    files = (root / "checkpoint" / "state").rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file())


class Backlog:
    """Tells once that a station does not keep up.

    Args:
        tell: Is told so.
    """

    def __init__(self, tell: Callable[[str], Any]) -> None:
        self._tell = tell
        self._full = 0

    def see(self, *, is_full: bool) -> None:
        """Take note of a batch: whether it took as much as a batch may.

        Example:
            >>> backlog = Backlog(print)
            >>> for _ in range(FULL_BATCHES + 5):
            ...     backlog.see(is_full=True)
            20 batches in a row took as much as one may: the station does not keep up...
        """
        self._full = self._full + 1 if is_full else 0
        if self._full == FULL_BATCHES:
            self._tell(
                f"{FULL_BATCHES} batches in a row took as much as one may: the station does not keep up. A "
                "chain uses all cores: stop the query, and start it with stream.plan=chain"
            )
