"""One name per thing in all commands, and what is wrong with a command in one line."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import typer

#: Option → its short form, in every command that has the option.
SHORT: Final = {
    "--follow": "-f",
    "--format": "-f",
    "--key": "-k",
    "--lines": "-n",
    "--out": "-o",
    "--quiet": "-q",
    "--reason": "-r",
    "--set": "-s",
    "--table": "-t",
}
#: Option → what stands for its value in help texts, in every command that has the option.
METAVARS: Final = {
    "--as-of": "TIME",
    "--at": "TIME",
    "--bootstrap": "HOST:PORT",
    "--bound": "DURATION",
    "--by": "NAME",
    "--config": "FILE",
    "--ends-after": "DURATION",
    "--every": "DURATION",
    "--exports": "FOLDER",
    "--feedback-delay": "DURATION",
    "--folder": "FOLDER",
    "--for": "DURATION",
    "--gap": "DURATION",
    "--grace": "DURATION",
    "--horizon": "DURATION",
    "--interval": "DURATION",
    "--keep": "DURATION",
    "--key-file": "FILE",
    "--label-delay": "DURATION",
    "--now": "TIME",
    "--out": "PATH",
    "--quiet-for": "DURATION",
    "--registry": "URI",
    "--root": "FOLDER",
    "--scores-dir": "FOLDER",
    "--seed": "N",
    "--set": "KEY=VALUE",
    "--settle": "DURATION",
    "--since": "TIME",
    "--skew": "DURATION",
    "--speed": "X",
    "--start": "TIME",
    "--start-timeout": "DURATION",
    "--table": "NAME",
    "--test-from": "TIME",
    "--test-until": "TIME",
    "--time-column": "NAME",
    "--timeout": "DURATION",
    "--topic": "NAME",
    "--train-until": "TIME",
    "--ttl": "DURATION",
    "--until": "TIME",
    "--within": "DURATION",
}
#: Former name → today's: still taken for one version, by commands that have today's name and not the former.
FORMER: Final = {
    "--comment": ("--reason",),
    "-m": ("--reason",),
    "--host": ("--engine",),
    "--note": ("--reason",),
    "--operator": ("--by",),
}
#: Options that name what is written when all is done, in nearly every command that has them.
WRITTEN: Final = frozenset(
    {
        "--assignments", "--features", "--markdown", "--out", "--points", "--recs", "--results", "--scores",
        "--scores-dir", "--sessions",
    }
)  # fmt: skip
#: What may be said for a longer form.
ALSO: Final = {"--json": ("--format", "json")}
#: Kind of a value, as the library names it → what stands for it.
_KINDS: Final = {
    "str": "TEXT",
    "int": "N",
    "float": "N",
    "Path": "FILE",
    "file": "FILE",
    "path": "PATH",
    "dir": "FOLDER",
}


def long_name(names: Sequence[str]) -> str:
    """Return the longest of an option's names.

    Example:
        >>> long_name(["-s", "--set"])
        '--set'
    """
    return max(names, key=len)


def command_of(app: typer.Typer, name: str) -> Any:
    """Return what a Typer app is made into, under a name and held to what all commands have.

    Args:
        app: The app: a group, or a single command.
        name: Its word on the command line.
    """
    import typer

    command = typer.main.get_command(app)
    command.name = name
    hold_to(command)
    return command


def hold_to(command: Any) -> None:
    """Give a command, and all that are in it, the names that all commands have.

    Args:
        command: What a ``typer.Typer`` was made into.
    """
    for part in getattr(command, "commands", {}).values():
        hold_to(part)
    own: set[str] = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    for option in command.params:
        if option.param_type_name == "option":
            name = long_name(option.opts)
            short = SHORT.get(name)
            if short is not None and short not in own:
                option.opts.append(short)
                own.add(short)
            if name in METAVARS and not option.is_flag:
                option.metavar = METAVARS[name]
        if getattr(option, "is_flag", False):
            option.metavar = ""
        elif option.metavar is None:
            option.metavar = _standing_for(option)
        if option.param_type_name == "option" and (
            long_name(option.opts) in WRITTEN or option.metavar in ("FOLDER", "HOST:PORT")
        ):
            _look_ahead(option)
    taken = {
        former: tuple(today)
        for former, today in (FORMER | ALSO).items()
        if former not in own and today[0] in own
    }
    if taken:
        _take_also(command, taken)


def _look_ahead(option: Any) -> None:
    """Have it told before a command begins that there is no place for a file, or that a value is none."""
    before, is_folder = option.callback, option.metavar == "FOLDER"

    def checked(context: Any, parameter: Any, value: Any) -> Any:
        import typer

        if before is not None:
            value = before(context, parameter, value)
        if isinstance(value, Path) and (why := _no_place(value, is_folder=is_folder)):
            raise typer.BadParameter(f"{value}: {why}", ctx=context, param=parameter)
        if isinstance(value, str) and value and option.metavar == "HOST:PORT":
            from millrace.kafka.options import check_addresses

            try:
                check_addresses(value)
            except ValueError as error:
                raise typer.BadParameter(str(error), ctx=context, param=parameter) from None
        return value

    option.callback = checked


def _no_place(path: Path, *, is_folder: bool = False) -> str:
    """Return why no file (or folder) can be at a path; empty: one can.

    Example:
        >>> _no_place(Path("/dev/null/report.json")), _no_place(Path("report.json"))
        ('/dev/null is no folder', '')
    """
    try:
        if path.exists():
            # Whether a file is replaced, and what else it may be, is the command's matter.
            return "it is no folder" if is_folder and not path.is_dir() else ""
        there = next(above for above in path.absolute().parents if above.exists())
    except (OSError, ValueError) as error:  # a name that is too long, or that has a NUL in it
        return str(getattr(error, "strerror", None) or error)
    if not there.is_dir():
        return f"{there} is no folder"
    return "" if is_folder or os.access(there, os.W_OK) else f"{there} may not be written to"


def _standing_for(option: Any) -> str | None:
    """Return what stands for a value of some kind; ``None``: the library says it best (choices)."""
    described = option.type_descriptor
    kind: str = option.display_type(None) if not described.is_choice else ""
    kind = kind.strip("<>").removesuffix(" range")
    if option.param_type_name == "argument":
        several = kind.startswith("list[")
        name: str = option.name
        return name.upper() + ("..." if several else "")
    return _KINDS.get(kind.removeprefix("list[").removesuffix("]"))


def _take_also(command: Any, words: dict[str, tuple[str, ...]]) -> None:
    parse = command.parse_args

    def parse_args(ctx: Any, args: list[str]) -> list[str]:
        said: list[str] = parse(ctx, list(_translated(args, words)))
        return said

    command.parse_args = parse_args


def _translated(args: Iterable[str], words: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield arguments with today's names; what stands behind ``--`` is taken as it is.

    Example:
        >>> list(_translated(["--operator=ann", "--json", "--", "--json"], FORMER | ALSO))
        ['--by=ann', '--format', 'json', '--', '--json']
    """
    rest = iter(args)
    for word in rest:
        name, sign, value = word.partition("=")
        today = words.get(name)
        if today is None:
            yield word
        elif sign:
            yield f"{today[0]}={value}"
        else:
            yield from today
        if word == "--":
            yield from rest


def one_line(error: Any) -> str:
    """Return what is wrong with a command as it was typed, in one line, with what may have been meant.

    Args:
        error: The library's error: its message, and the context in which it arose.
    """
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    meant = _meant(error, context)
    hint = f"; did you mean {meant}?" if meant else ""
    path = context.command_path
    return f"{message}{hint} (see {path} --help)"


def _meant(error: Any, context: Any) -> str:
    """Return the command's word or option that is most like the one that it does not know."""
    command = context.command
    unknown = getattr(error, "option_name", None)
    known: list[str]
    if unknown is not None and "(Possible options" not in error.format_message():
        known = [name for option in command.params for name in option.opts if name.startswith("--")]
    elif error.message.startswith("No such command") and hasattr(command, "list_commands"):
        unknown = error.message.split("'")[1] if "'" in error.message else ""
        known = list(command.list_commands(context))
    else:
        return ""
    near = difflib.get_close_matches(unknown, known, n=1, cutoff=0.5)
    return near[0] if near and near[0] != unknown else ""
