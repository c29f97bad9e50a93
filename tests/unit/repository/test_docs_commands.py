"""What pages tell people to type is there: commands, options, settings, tests, targets, modules, names."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from millrace.cli.commands import walk
from millrace.cli.conventions import ALSO, FORMER
from millrace.errors import UserError
from millrace.runtime.apps import load_app
from millrace.runtime.installed import list_apps
from millrace.runtime.settings import AppSettings, load_settings
from millrace_apps.benchmarks.cli import GROUP as BENCHMARKS_GROUP

ROOT = Path(__file__).resolve().parents[3]
#: Pages for reading; what was measured or changed in earlier versions is told in the words of then.
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "history" not in page.parts),
    *sorted((ROOT / "apps").rglob("*.md")),
]
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
#: In a text: stands for something, or for the rest.
_PLACEHOLDER = re.compile(r"[A-Z…<{\[].*|\.\.\.")
#: Words before a command that are none of it.
_BEFORE = re.compile(r"^(?:\$ |\w+=\S* |CI= |nice |time |flock \S+ )+")
_FREE = {"--help", "-h", "--version"}
#: Apps of examples, which the reader has just made.
_OWN_APPS = {"parcels", "orders"}


class Typed(NamedTuple):
    """What a page tells people to type.

    Attributes:
        page: The page.
        text: The line.
        whole: Whether it stands in a block, to be typed as it is, and not in a text.
    """

    page: Path
    text: str
    whole: bool


def typed(page: Path, text: str) -> Iterator[Typed]:
    """Yield what a page tells people to type: lines of shell blocks, and of texts what looks like code."""
    for language, block in _BLOCK.findall(text):
        shell = language in ("sh", "bash")
        for line in block.replace("\\\n", " ").splitlines():
            if shell or line.lstrip().startswith("$ "):
                yield from (
                    Typed(page, _BEFORE.sub("", part.strip()), whole=True) for part in commands_of(line)
                )
    for span in _SPAN.findall(_BLOCK.sub("\n", text)):
        yield Typed(page, _BEFORE.sub("", " ".join(span.split())), whole=False)


def commands_of(line: str) -> list[str]:
    """Return the commands of a shell line, without what it says behind `#`.

    >>> commands_of("cd x && make test  # all")
    ['cd x ', ' make test  ']
    """
    return re.split(r"&&|;| \| ", re.sub(r"(^| )#.*", "", line))


ALL = [one for page in PAGES for one in typed(page, page.read_text("utf-8"))]


def told(one: Typed) -> str:
    return f"{one.page.relative_to(ROOT)}: {one.text}"


@cache
def tree() -> dict[tuple[str, ...], Any]:
    return dict(walk())


@cache
def groups() -> set[tuple[str, ...]]:
    return {words[:n] for words in tree() for n in range(1, len(words))}


@cache
def settings_classes() -> tuple[tuple[str, type[AppSettings]], ...]:
    return ("APP", AppSettings), *((name, load_app(name).settings) for name in list_apps())


def wrong(one: Typed) -> str | None:
    """Return what is wrong with a call of `millrace`; ``None``: nothing is."""
    words = shlex.split(one.text)[1:]
    ways: list[tuple[str, ...]] = [()]
    taken = 0
    for word in words:
        longer = [(*way, part) for way in ways for part in word.split("|")]
        known = [way for way in longer if way in tree() or way in groups()]
        if not known:
            break
        if len(known) < len(longer):
            return f"there is no {[' '.join(way) for way in longer if way not in known]}"
        ways, taken = known, taken + 1
        if all(way in tree() for way in ways):
            break
    rest = words[taken:]
    if any(way not in tree() for way in ways):
        meant = not rest or rest[0] in _FREE | _OWN_APPS or (_PLACEHOLDER.match(rest[0]) and not one.whole)
        return None if meant else f"{' '.join(ways[0]) or 'millrace'} has no {rest[0]}"
    rest = [*rest[: rest.index("--")], "command"] if "--" in rest else rest
    whole = one.whole and len(ways) == 1
    found = (wrong_arguments(tree()[way], way, rest, whole) for way in ways)
    return next((said for said in found if said), None)


def wrong_arguments(command: Any, words: Sequence[str], args: list[str], whole: bool) -> str | None:
    options = {name: o for o in command.params for name in (*o.opts, *o.secondary_opts) if name[0] == "-"}
    taken = {*options, *ALSO, *_FREE, *(old for old, today in FORMER.items() if today[0] in options)}
    names = [arg.strip("[]").partition("=")[0] for arg in args if re.match(r"\[?--?[a-z]", arg)]
    if unknown := [part for name in names for part in name.split("|") if part not in taken]:
        return f"{' '.join(words)} takes no {unknown}"
    if not whole or any(_PLACEHOLDER.fullmatch(arg) and arg[0] in ".…[" for arg in args):
        return next(filter(None, map(wrong_setting, settings_in(args))), None)
    context = command.context_class(command, info_name=words[-1])
    args = [word for arg in args for word in ALSO.get(arg, (arg,))]
    given, left, _ = command.make_parser(context).parse_args(args=[*args])
    if left and not any(place.nargs == -1 for place in command.params if place.param_type_name == "argument"):
        return f"{' '.join(words)} takes no {left}"
    needed = [one.name for one in command.params if one.required and given.get(one.name) in (None, ())]
    if needed and "--help" not in args:
        return f"{' '.join(words)} needs {needed}"
    for option in options.values():
        chosen = given.get(option.name)
        if option.type_descriptor.is_choice and isinstance(chosen, str):
            choices = [getattr(choice, "value", choice) for choice in option.type_descriptor.choices]
            if chosen not in choices:
                return f"{option.opts[0]} of {' '.join(words)} is one of {choices}"
    return next(filter(None, map(wrong_setting, settings_in(args))), None)


def settings_in(args: Sequence[str]) -> list[str]:
    values = [value for name, value in pairwise(args) if name in ("-s", "--set")]
    return [value for value in values if not re.search(r"[A-Z]{3}|…|=$|=\[", value)]


def wrong_setting(item: str) -> str | None:
    """Return why no app takes a setting; ``None``: one does."""
    problems = []
    for name, kind in settings_classes():
        try:
            load_settings(kind, app=name, env={}, overrides=[item])
        except UserError as error:
            problems.append(str(error))
        else:
            return None
    return problems[0]


def test_commands_of_pages_are_there_with_their_options_and_settings() -> None:
    calls = [one for one in ALL if re.match(r"millrace\s", one.text)]
    assert len(calls) > 600
    assert [f"{told(one)}: {said}" for one in calls if (said := wrong(one))] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("millrace config ridesharing", "config has no ridesharing"),
        ("millrace nosuch", "millrace has no nosuch"),
        ("millrace tables list|fold fraud", "there is no ['tables fold']"),
        ("millrace run fraud --bogus", "run takes no ['--bogus']"),
        ("millrace run fraud -s nosuch.key=1", "nosuch"),
        ("millrace run fraud -s stream.plan=nosuch", "stream.plan"),
        ("millrace fraud cases show", "needs ['case"),
        ("millrace fraud cases show a b", "takes no ['b']"),
        ("millrace topology iot --as nothing", "is one of"),
        ("millrace run fraud -s stream.plan=station", None),
        ("millrace evaluate fraud --help", None),
        ("millrace config show fraud --json", None),
    ],
)
def test_a_call_that_would_be_refused_is_found(text: str, said: str | None) -> None:
    found = wrong(Typed(ROOT / "README.md", text, whole=True))
    assert (found is None) if said is None else (said in (found or ""))


def test_tests_that_pages_name_are_there() -> None:
    runs = [one for one in ALL if re.search(r"\bpytest\s+\S*tests/", one.text)]
    assert len(runs) > 50
    gone = []
    for one in runs:
        for path in re.findall(r"(?<=\s)tests/[\w./*]+(?:::\w+)*", one.text):
            file, *parts = path.rstrip(".").split("::")
            found = list(ROOT.glob(file))
            if not found or any(f"def {part}" not in found[0].read_text("utf-8") for part in parts):
                gone.append(f"{told(one)}: {path}")
    assert gone == []


def test_targets_of_make_that_pages_name_are_there() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    calls = [one for one in ALL if one.text.startswith("make ")]
    assert len(calls) > 20
    gone = []
    for one in calls:
        words = [word for word in one.text.split()[1:] if "=" not in word]
        gone += [told(one) for word in words[:1] if word not in targets and not _PLACEHOLDER.match(word)]
    assert gone == []


def test_modules_that_pages_run_are_there() -> None:
    calls = [
        match for one in ALL for match in re.findall(r"python3? -m ((?:millrace|tests)[\w.]*)", one.text)
    ]
    assert len(calls) > 3
    assert [name for name in {*calls} if importlib.util.find_spec(name.rstrip(".")) is None] == []


def test_names_of_the_core_that_pages_tell_are_there() -> None:
    """Such as ``millrace.dead_letters.reason_of``; what is no name of Python's (a topic, a file) is not."""
    spans = {
        (one.page, one.text)
        for one in ALL
        if not one.whole and re.fullmatch(r"millrace(\.[a-zA-Z_]\w*)+(\(.*)?", one.text)
    }
    assert len(spans) > 30
    known = {*entry_points().groups, BENCHMARKS_GROUP}
    gone = []
    for page, text in sorted(spans):
        name = text.partition("(")[0]
        if (
            name not in known
            and not is_there(name)
            and not re.search(r"\.(toml|yaml|yml|py|md|json|zip|lock|log)$", name)
        ):
            gone.append(f"{page.relative_to(ROOT)}: {name}")
    assert gone == []


def is_there(name: str) -> bool:
    """Return whether a dotted name is a module, or what stands in one."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ImportError:
            continue
        for part in parts[n:]:
            annotated = getattr(found, "__annotations__", {})
            if part in annotated and not hasattr(found, part):
                return part == parts[-1]
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False
