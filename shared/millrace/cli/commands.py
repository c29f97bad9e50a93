"""`millrace commands`: all commands with their arguments and options, as text, JSON or a page of the docs."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from millrace.cli.conventions import ALSO, FORMER, METAVARS, SHORT, long_name
from millrace.cli.options import Format, Shape
from millrace.errors import UserError
from millrace.operations.report import write_text

app = typer.Typer(add_completion=False)

#: Options that need no word in the list of each command.
_EVERYWHERE: Final = ("--help", "--config", "--set")
#: An option of so many commands stands in the table of names.
_SHARED: Final = 5
_WIDTH: Final = 118
#: Groups whose next word is an app, or what else a command is of.
_BY_APP: Final = ("rules", "models", "evaluate", "generate")
_EXAMPLE: Final = re.compile(
    r"(?:Example:|e\.g\.|For example:)\s+(millrace .*?)(?=;|\n\n|\Z)|`(millrace [^`]*)`", re.S
)
_CODES: Final = re.compile(r"Exit codes?:? (\d.*?)\.(?: [A-Z]|$)")
_CODE: Final = re.compile(r"(?<![\w.])([0-9]{1,3}):? (?=[a-z(`-])")
#: What an exit code means where a command's help does not say.
_USUAL: Final = {0: "done", 1: "a mistake of Millrace's own", 2: "something you can put right"}


@dataclass(frozen=True)
class Command:
    """A command as its help shows it.

    Attributes:
        path: Its words, without ``millrace``.
        summary: What it does, in a sentence.
        arguments: What stands for its arguments; optional ones in brackets.
        options: Its options: names, and what stands for the value.
        required: Long names of those that must be given.
        meanings: Long name of an option → what it is for.
        examples: Calls of it, as they are typed.
        codes: Exit code → what it means there, as its help says; nothing: as everywhere.
        same_as: Another command that does the same; empty: there is none.
    """

    path: str
    summary: str
    arguments: tuple[str, ...]
    options: tuple[str, ...]
    required: tuple[str, ...]
    meanings: dict[str, str]
    examples: tuple[str, ...]
    codes: dict[int, str]
    same_as: str


def walk(root: Any = None) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words of each command, and the command as the library made it; groups are gone into.

    Args:
        root: Where to begin; by default all of ``millrace``.
    """
    if root is None:
        from millrace.cli import build

        root = typer.main.get_command(build())
    yield from _walk(root, root.context_class(root, info_name="millrace"), ())


def _walk(command: Any, context: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(context):
        part = command.get_command(context, name)
        if part.hidden:
            continue
        yield from _walk(part, part.context_class(part, info_name=name, parent=context), (*path, name))


def described() -> list[Command]:
    """Return all commands, in the order of the help."""
    found: list[Command] = []
    first: dict[tuple[str, ...], str] = {}
    for words, command in walk():
        path = " ".join(words)
        code = inspect.unwrap(command.callback).__code__
        of = words[1] if words[0] in _BY_APP else words[0]
        place = (code.co_filename, str(code.co_firstlineno), words[-1], of)
        same_as = first.setdefault(place, path)
        options = [o for o in command.params if o.param_type_name == "option" and not o.hidden]
        found.append(
            Command(
                path,
                _sentence(command.help or ""),
                tuple(
                    _bracketed(a.metavar or a.name.upper(), a.required)
                    for a in command.params
                    if a.param_type_name == "argument"
                ),
                tuple(_option(o) for o in options if long_name(o.opts) not in _EVERYWHERE),
                tuple(long_name(o.opts) for o in options if o.required),
                {long_name(o.opts): _sentence(o.help or "") for o in options if o.opts != ["--help"]},
                examples_of(words, command),
                codes_of(command.help or ""),
                "" if same_as == path else same_as,
            )
        )
    return found


def _sentence(text: str) -> str:
    first = " ".join(text.strip().partition("\n\n")[0].split())
    return first if len(first) < 200 else first.partition(". ")[0].rstrip(".") + "."


def _bracketed(name: str, required: bool) -> str:
    return name if required or name.startswith("[") else f"[{name}]"


def _option(option: Any) -> str:
    names = "/".join(sorted((*option.opts, *option.secondary_opts), key=len))
    if getattr(option, "is_flag", False):
        return names
    value = option.metavar or option.display_type(None).strip("<>")
    return f"{names} {value}"


def examples_of(words: tuple[str, ...], command: Any) -> tuple[str, ...]:
    """Return the calls of a command that its help shows.

    Args:
        words: Its words, without ``millrace``.
        command: The command as the library made it.
    """
    said = "\n\n".join((command.help or "", command.epilog or ""))
    found = [match[1] or match[2] for match in _EXAMPLE.finditer(said)]
    return tuple(one for one in (" ".join(text.split()).rstrip(".") for text in found) if _calls(one, words))


def codes_of(text: str) -> dict[int, str]:
    """Return the exit codes that a help text tells of, and what each means.

    >>> codes_of("Do it. Exit codes: 0 done, 1 a warning and --strict, 2 refused.")
    {0: 'done', 1: 'a warning and --strict', 2: 'refused'}
    >>> codes_of("Forget a card. Exit code 1 if something is left."), codes_of("Do it.")
    ({1: 'something is left'}, {})
    """
    said = _CODES.search(" ".join(text.split()))
    if said is None:
        return {}
    parts = _CODE.split(f" {said[1]}")[1:]
    meanings = [part.strip(" ,;").removeprefix("if ").removeprefix(": ") for part in parts[1::2]]
    return {int(code): meaning for code, meaning in zip(parts[::2], meanings, strict=True)}


def exit_codes(commands: list[Command]) -> list[str]:
    """Return the table of exit codes: what holds everywhere, then commands that say more.

    Args:
        commands: What stands on the page.
    """
    lines = [
        "## Exit codes",
        "",
        *_wrapped(
            "A command that says nothing else: 0 done; 1 what was checked does not hold, or a mistake of "
            "Millrace's own (with a traceback); 2 something you can put right: a wrong option or setting, a "
            "file, a port, a broker, told in one line without a traceback; 130 ended by Ctrl-C. "
            "`MILLRACE_TRACEBACK=1` shows where an error came from."
        ),
        "",
        "| command | 0 | 1 | 2 |",
        "|---|---|---|---|",
    ]
    for one in commands:
        if one.codes and not one.same_as:
            cells = (one.codes.get(code, _USUAL[code]).replace("|", "\\|") for code in _USUAL)
            lines.append(f"| `millrace {one.path}` | {' | '.join(cells)} |")
    return lines


def _calls(example: str, words: tuple[str, ...]) -> bool:
    """Return whether an example is of a command: by its words, or by those of the group that apps share."""
    first, last = words[0], words[-1]
    ways = [words, ("rules", first, last), ("models", first, last if last != "models" else "list")]
    return any(example.split()[1 : 1 + len(way)] == list(way) for way in ways)


def as_page(commands: list[Command]) -> str:
    """Return the page of the docs.

    Args:
        commands: What stands on it.
    """
    lines = [
        "# Commands",
        "",
        *_wrapped(
            "Made by `millrace commands --write docs/cli.md`; a test compares. Every command has `--help` "
            "(`-h`) with an example; `--config FILE` names a settings file and `-s/--set KEY=VALUE` one "
            "setting where a command takes settings (both are left out below)."
        ),
        "",
        *exit_codes(commands),
        "",
        "## One name per thing",
        "",
        *_wrapped(
            f"What {_SHARED} commands or more take, what it means in most of them, and how many they are."
        ),
        "",
        *shared_options(commands),
        "",
        *(f"`{name}` is `{' '.join(today)}`." for name, today in ALSO.items()),
        *_wrapped(
            "Every command that only looks takes it, or writes what it found as a report (`--out FILE`, "
            "JSON): a test walks over all of them. Nothing but JSON is on standard output then."
        ),
        "",
        *_wrapped(
            "Former names, taken for one version: "
            + ", ".join(f"`{old}` (today `{today[0]}`)" for old, today in sorted(FORMER.items()))
            + "."
        ),
    ]
    group = ""
    for one in commands:
        head = one.path.partition(" ")[0]
        if head != group:
            group = head
            lines += ["", f"## {head}"]
        usage = " ".join(("millrace", one.path, *one.arguments))
        if one.same_as:
            lines += ["", f"**`{usage}`** does the same as `millrace {one.same_as}`."]
            continue
        options = [
            f"`{text}`" + (" (must be given)" if _is_in(one.required, text) else "") for text in one.options
        ]
        lines += ["", *_wrapped(f"**`{usage}`**: {one.summary}")]
        if options:
            lines += ["", *_wrapped("Options: " + ", ".join(options) + ".")]
        if one.examples:
            lines += ["", "```sh", *one.examples, "```"]
    return "\n".join(lines) + "\n"


def shared_options(commands: list[Command]) -> list[str]:
    """Return the table of options that many commands have.

    Args:
        commands: All commands.
    """
    meanings: defaultdict[str, Counter[str]] = defaultdict(Counter)
    values: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for one in commands:
        if one.same_as:
            continue
        for name, meaning in one.meanings.items():
            meanings[name][meaning] += 1
        for names, _, value in (option.partition(" ") for option in one.options):
            values[max(names.split("/"), key=len)][value] += 1
    lines = ["| option | short | value | what it means | commands |", "|---|---|---|---|---|"]
    for name, told in sorted(meanings.items()):
        if told.total() < _SHARED and name not in SHORT:
            continue
        short, value = (
            SHORT.get(name, ""),
            values[name].most_common(1)[0][0] if values[name] else METAVARS.get(name, ""),
        )
        cells = (
            f"`{name}`",
            short and f"`{short}`",
            value and f"`{value}`",
            told.most_common(1)[0][0],
            str(told.total()),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def _is_in(required: tuple[str, ...], text: str) -> bool:
    return any(name in required for name in text.partition(" ")[0].split("/"))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


@app.command("commands", epilog="Example: millrace commands --write docs/cli.md --check")
def commands(
    shape: Shape = Format.table,
    write: Annotated[
        Path | None, typer.Option("--write", dir_okay=False, help="Make this page of the docs.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With --write: change nothing, and fail where it would.")
    ] = False,
) -> None:
    """List all commands with what they do."""
    found = described()
    if write is not None:
        page = as_page(found)
        if not check:
            write_text(write, page)
            typer.echo(f"wrote  {write}")
        elif not write.exists():
            raise UserError(f"there is no {write} to be checked: leave --check out, and it is written")
        elif write.read_text(encoding="utf-8", errors="replace") != page:
            typer.echo(f"{write} does not show the commands as they are; --write it anew")
            raise typer.Exit(1)
        return
    if check:
        raise UserError("--check needs --write FILE: the page that is compared")
    if shape is Format.json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    width = max(len(one.path) for one in found)
    for one in found:
        typer.echo(f"{one.path:<{width}}  {one.summary if not one.same_as else f'as {one.same_as}'}")
