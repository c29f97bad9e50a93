"""`millrace bench compare`: a command on today's tree and on a commit, by turns, and how the two compare.

Figures of different hours are not comparable: the machine is not the same. So the sides run in pairs,
A/B/B/A, and every ratio is of two runs that were next to each other; above 1, today's tree is the better one.
"""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from millrace.errors import UserError
from millrace_apps.benchmarks import machine, metered, reference
from millrace_apps.benchmarks.metered import Metered
from millrace_apps.benchmarks.report import flat, tell

Better = Literal["lower", "higher"]
Say = Callable[[str], None]

#: Fewer pairs than these say little.
ENOUGH_PAIRS: Final = 5
#: A median of this or more is not slower: less than 3 % is within what runs differ by.
NOT_SLOWER: Final = 0.97
#: In a command: the path of today's tree, on both sides.
TODAY: Final = "{today}"
_SAID_LINES: Final = 5
_SHORT: Final = 10


class SideFailed(UserError):
    """The command failed on one of the sides."""


@dataclass(frozen=True)
class Plan:
    """What is compared.

    Attributes:
        command: Program and arguments, the same on both sides; ``{today}`` in them is today's tree.
        pairs: How many pairs of runs.
        warm_up: Runs of each side before them, which do not count.
        figure: Path of a number in the command's own report, in place of its time by the wall.
        better: Whether a lower or a higher figure is the better one.
        cpu_figure: The same in place of its CPU time; lower is better.
        today_args: Further arguments on today's side.
        ref_args: Further arguments on the reference's.
    """

    command: tuple[str, ...]
    pairs: int = ENOUGH_PAIRS
    warm_up: int = 1
    figure: str | None = None
    better: Better = "lower"
    cpu_figure: str | None = None
    today_args: tuple[str, ...] = ()
    ref_args: tuple[str, ...] = ()

    @property
    def reads_report(self) -> bool:
        """Whether the command is to write a report."""
        return self.figure is not None or self.cpu_figure is not None


@dataclass(frozen=True)
class Side:
    """One of the two.

    Attributes:
        name: ``today`` or ``reference``.
        title: What messages call it.
        tree: Its source tree, with an environment in ``.venv``.
        command: What runs there.
    """

    name: Literal["today", "reference"]
    title: str
    tree: Path
    command: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """One run.

    Attributes:
        wall_s: Seconds by the wall clock.
        cpu_s: CPU seconds of all its processes.
        figure: The figure of its report, if one is compared.
        cpu_figure: The same in place of the CPU time.
        figures: All numbers of its report, if it wrote one.
    """

    wall_s: float
    cpu_s: float
    figure: float | None = None
    cpu_figure: float | None = None
    figures: Mapping[str, float] | None = None


#: Runs a side once.
Runner = Callable[[Side], Measured]


def words(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return arguments as the shell would take them apart.

    Raises:
        UserError: A quotation has no end.

    Example:
        >>> words(["--set stream.driver_write_max_records=0", "--rows 5"])
        ('--set', 'stream.driver_write_max_records=0', '--rows', '5')
    """
    try:
        return tuple(word for argument in arguments for word in shlex.split(argument))
    except ValueError as error:
        raise UserError(f"an argument of a side cannot be read: {error}") from error


# -- what runs ---------------------------------------------------------------------------------------


def side_of(name: Literal["today", "reference"], tree: Path, today: Path, plan: Plan, commit: str) -> Side:
    """Return a side with its command, which must exist there.

    Args:
        name: Which.
        tree: Its source tree.
        today: Today's source tree.
        plan: What is compared.
        commit: What its tree stands on.

    Raises:
        UserError: The command's program, or the environment that it is to run in, is not there.
    """
    title = "today's tree" if name == "today" else f"the reference {commit[:_SHORT]}"
    own = plan.today_args if name == "today" else plan.ref_args
    words = [word.replace(TODAY, str(today)) for word in (*plan.command, *own)]
    bin_folder = tree / ".venv" / "bin"
    if not (bin_folder / "python").exists():
        raise UserError(f"{title} has no environment in {tree / '.venv'}: run make setup there")
    if words[0] in ("millrace", "python", "python3"):
        words[0] = str(bin_folder / words[0].removesuffix("3"))
    if shutil.which(words[0], path=environment_of(tree)["PATH"]) is None:
        raise UserError(f"{title} has no command {plan.command[0]}")
    return Side(name, title, tree, tuple(words))


def environment_of(tree: Path, scratch: Path | None = None) -> dict[str, str]:
    """Return the environment variables of a side's command.

    Args:
        tree: Its source tree.
        scratch: Folder for temporary files.
    """
    ours = reference.environment()
    ours["PATH"] = f"{tree / '.venv' / 'bin'}:{ours.get('PATH', '')}"
    return ours if scratch is None else {**ours, "TMPDIR": str(scratch)}


def run_once(side: Side, plan: Plan, say: Say) -> Measured:
    """Run a side's command once, in its tree and with a folder for temporary files that is removed.

    Raises:
        SideFailed: It failed, or its report lacks the figure.
    """
    # A short path: sockets are made below it.
    with tempfile.TemporaryDirectory(prefix="mb-", ignore_cleanup_errors=True) as name:
        scratch, temporary = Path(name), Path(name) / "t"
        temporary.mkdir()
        out = scratch / "report.json"
        command = [*side.command, *(["--out", str(out)] if plan.reads_report else [])]
        try:
            took = metered.run(
                command,
                cwd=side.tree,
                env=environment_of(side.tree, temporary),
                scratch=scratch,
                on_wait=lambda seconds: say(f"  {side.title}: {seconds:.0f} s so far"),
            )
        except metered.NotStarted as error:
            raise SideFailed(f"{side.title}: {shlex.join(command)} does not start: {error}") from error
        return measured(side, plan, took, _report(side, out) if plan.reads_report else None)


def _report(side: Side, out: Path) -> Any:
    try:
        return json.loads(out.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SideFailed(f"{side.title}: what it wrote to --out is not JSON: {error}") from error


def measured(side: Side, plan: Plan, took: Metered, report: Any) -> Measured:
    """Return what a run says, or raise if it failed.

    Args:
        side: Which side ran.
        plan: What is compared.
        took: Time, exit code, last words.
        report: What it wrote to ``--out``; ``None``: nothing.

    Raises:
        SideFailed: It failed, or its report lacks the figure.
    """
    if took.exit_code != 0:
        words = " | ".join(line.strip() for line in took.stderr[-_SAID_LINES:]) or "it said nothing"
        raise SideFailed(f"{side.title} failed with exit code {took.exit_code}: {words}")
    found = Measured(round(took.wall_s, 3), round(took.cpu_s, 2))
    if not plan.reads_report:
        return found
    if report is None:
        raise SideFailed(f"{side.title} wrote no report: its command must take --out FILE")
    return replace(
        found,
        figure=None if plan.figure is None else figure_of(report, plan.figure, side.title),
        cpu_figure=None if plan.cpu_figure is None else figure_of(report, plan.cpu_figure, side.title),
        figures={path: number for path, number in _flat(report) if _is_number(number)},
    )


def figure_of(report: Any, path: str, title: str = "the command") -> float:
    """Return a number of a report.

    Args:
        report: The report.
        path: Names with dots between them; a name may have dots itself, a number is a place in a list.
        title: Whose report it is.

    Raises:
        SideFailed: There is no such number, or none above 0, of which no ratio can be taken.

    Example:
        >>> figure_of({"systems": {"a b": {"rows_per_s": 5}}}, "systems.a b.rows_per_s")
        5.0
    """
    at, names = report, path.split(".")
    while names:
        for many in range(len(names), 0, -1):
            name = ".".join(names[:many])
            if isinstance(at, Mapping) and name in at:
                at, names = at[name], names[many:]
                break
            if isinstance(at, list) and name.isdecimal() and int(name) < len(at):
                at, names = at[int(name)], names[many:]
                break
        else:
            known = f"; there are {', '.join(map(str, at))}" if isinstance(at, Mapping) and at else ""
            raise SideFailed(f"{title}: its report has no figure {path}: no {names[0]}{known}")
    if not _is_number(at):
        raise SideFailed(f"{title}: {path} of its report is not a number but {_shortened(at)}")
    if at <= 0:
        raise SideFailed(f"{title}: {path} of its report is {at}: a ratio takes figures above 0")
    return float(at)


def _flat(report: Any) -> Iterator[tuple[str, Any]]:
    return flat(report) if isinstance(report, Mapping) else iter(())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- how the two compare -----------------------------------------------------------------------------


def gain(today: float, ref: float, better: Better) -> float:
    """Return how many times better today's figure is.

    Example:
        >>> gain(today=2.0, ref=3.0, better="lower"), gain(today=2.0, ref=3.0, better="higher")
        (1.5, 0.6666666666666666)
    """
    return ref / today if better == "lower" else today / ref


def ratio_of(today: Measured, ref: Measured, better: Better) -> float:
    """Return how many times better today's run of a pair is: by the figure, or else by the wall."""
    if today.figure is None or ref.figure is None:
        return gain(today.wall_s, ref.wall_s, "lower")
    return gain(today.figure, ref.figure, better)


def cpu_ratio_of(today: Measured, ref: Measured) -> float | None:
    """Return how many times less CPU time today's run of a pair took; ``None`` where none was seen."""
    if today.cpu_figure is not None and ref.cpu_figure is not None:
        return gain(today.cpu_figure, ref.cpu_figure, "lower")
    return gain(today.cpu_s, ref.cpu_s, "lower") if today.cpu_s > 0 and ref.cpu_s > 0 else None


def summary(ratios: Sequence[float]) -> dict[str, float | None]:
    """Return the median of ratios and their range.

    Example:
        >>> summary([1.1, 0.9, 1.0])
        {'median': 1.0, 'low': 0.9, 'high': 1.1}
    """
    if not ratios:
        return {"median": None, "low": None, "high": None}
    return {"median": round(median(ratios), 4), "low": round(min(ratios), 4), "high": round(max(ratios), 4)}


def order(pairs: int) -> Iterator[tuple[int, int]]:
    """Yield which side runs first and which second, pair by pair: A/B, B/A, A/B and so on.

    Example:
        >>> list(order(3))
        [(0, 1), (1, 0), (0, 1)]
    """
    return itertools.islice(itertools.cycle([(0, 1), (1, 0)]), pairs)


def run_pairs(plan: Plan, today: Side, ref: Side, run: Runner, say: Say) -> dict[str, Any]:
    """Run the two sides by turns.

    Args:
        plan: What is compared.
        today: Today's side.
        ref: The reference.
        run: Runs a side once.
        say: Is told what goes on.

    Returns:
        The results for the report.
    """
    sides = (today, ref)
    for number in range(plan.warm_up):
        for side in sides:
            say(f"warm-up {number + 1} of {plan.warm_up}: {_told(side, run(side), plan)}")
    pairs: list[dict[str, Any]] = []
    for number, places in enumerate(order(plan.pairs), 1):
        before = machine.condition()
        found: dict[str, Measured] = {}
        for place in places:
            found[sides[place].name] = one = run(sides[place])
            say(f"pair {number} of {plan.pairs}: {_told(sides[place], one, plan)}")
        ratio = ratio_of(found["today"], found["reference"], plan.better)
        pairs.append(
            {
                "order": list(found),
                "load_before": before.load,
                "speed_before": before.speed,
                "ratio": round(ratio, 4),
                "cpu_ratio": _rounded(cpu_ratio_of(found["today"], found["reference"])),
                **{name: _as_record(one) for name, one in found.items()},
            }
        )
        say(f"pair {number} of {plan.pairs}: ratio {ratio:.3f}, above 1 is better today")
    overall = summary([pair["ratio"] for pair in pairs])
    return {
        "ratio": overall,
        "cpu_ratio": summary([pair["cpu_ratio"] for pair in pairs if pair["cpu_ratio"] is not None]),
        "not_slower": overall["median"] is not None and overall["median"] >= NOT_SLOWER,
        "enough_pairs": plan.pairs >= ENOUGH_PAIRS,
        "pairs": pairs,
    }


def _as_record(one: Measured) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if value is not None}


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)


def _told(side: Side, one: Measured, plan: Plan) -> str:
    figure = "" if one.figure is None else f", {plan.figure} {one.figure:,.6g}"
    return f"{side.title}: {one.wall_s:.1f} s, {one.cpu_s:.1f} CPU s{figure}"


# -- the whole ---------------------------------------------------------------------------------------


def compare(
    plan: Plan,
    ref: str,
    *,
    folder: Path | None = None,
    cache: Path | None = None,
    fresh: bool = False,
    set_up: Callable[[Path, Say], None] = reference.set_up,
    say: Say | None = None,
) -> dict[str, Any]:
    """Compare today's tree with a commit.

    Args:
        plan: What is compared.
        ref: The commit, a branch or a tag.
        folder: Today's tree, or a folder in it; default: that of this file.
        cache: Folder of the references; default: the user's own.
        fresh: Make the reference's tree and environment anew.
        set_up: Makes the environment of a source tree.
        say: Is told what goes on; default: lines on standard error.

    Returns:
        The results for the report.

    Raises:
        UserError: No such commit, no such command, a run that failed, a figure that is not there.
    """
    say = say or tell
    if not plan.command:
        raise UserError("give the command that is compared, behind --, e.g. -- millrace bench memory-host")
    today_tree = reference.repository(folder or Path(__file__).parent)
    commit = reference.commit_of(today_tree, ref)
    state = reference.state_of(today_tree)
    today = side_of("today", today_tree, today_tree, plan, state.commit)
    tree = reference.reference(
        today_tree,
        commit,
        cache or reference.references(),
        fresh=fresh,
        set_up=lambda made: set_up(made, say),
        say=say,
    )
    other = side_of("reference", tree, today_tree, plan, commit)
    if plan.pairs < ENOUGH_PAIRS:
        say(f"fewer than {ENOUGH_PAIRS} pairs: the ratio says little")
    found = run_pairs(plan, today, other, lambda side: run_once(side, plan, say), say)
    changed = reference.state_of(today_tree) != state
    if changed:
        say("today's tree was changed while it was measured: its runs are not all of the same code")
    return {
        **found,
        "today": {**asdict(state), "changed_meanwhile": changed},
        "reference": {"commit": commit, "ref": ref},
    }


def configuration(plan: Plan) -> dict[str, Any]:
    """Return what the comparison hangs on, for the report."""
    return {
        **{name: list(value) if isinstance(value, tuple) else value for name, value in asdict(plan).items()},
        "measure": plan.figure or "wall_s",
        "cpu_measure": plan.cpu_figure or "cpu_s",
        "above_1": "today's tree is better",
    }
