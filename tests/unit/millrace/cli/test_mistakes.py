"""Every command with every mistake that its options and arguments allow: one line, exit code 2, no traceback.

What is tried is made from what a command says of itself: an option that there is not, an argument too many,
none at all, no number, a number out of bounds, a word that is no choice, a file that is not there, a setting
that there is not.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.cli.commands import examples_of
from millrace.cli.conventions import long_name
from tests.cases import case_count, sampled
from tests.unit.millrace.cli.test_commands import COMMANDS, ids, run

#: Of each command so many of its mistakes are tried; `MILLRACE_CASES=1000` tries them all.
_TRIED = case_count(3)
_NO_FILE = "/nowhere/millrace/none.yaml"


#: Benchmarks make their settings and commands in processes of their own, after much else has begun.
TRIED = [one for one in COMMANDS if one[0] not in {("bench", "compare"), ("bench", "batch")}]


def example_of(words: tuple[str, ...], command: Any) -> list[str]:
    """Return the arguments of the first example of a command's help."""
    typed = shlex.split(examples_of(words, command)[0])[1:]
    return typed[len(words) :] if typed[0] == words[0] else typed[3:]


def without(args: list[str], option: Any) -> list[str]:
    """Return arguments less an option and its value."""
    kept, skip = [], False
    for arg in args:
        if skip or arg.partition("=")[0] in option.opts:
            skip = not skip and "=" not in arg
        else:
            kept.append(arg)
    return kept


def wrong_values(option: Any) -> list[str]:
    """Return values that an option cannot take, whatever else is said."""
    name, kind = long_name(option.opts), option.type_descriptor
    if kind.is_choice:
        return ["nosuch"]
    if name == "--set":
        return ["no.such.setting=1", "no-value"]
    if name == "--config":
        return [_NO_FILE, "."]
    shown = option.display_type(None)
    if "int" in shown:
        return ["x", "1.5", ""]
    return ["x", ""] if "float" in shown else []


def mistakes_of(words: tuple[str, ...], command: Any) -> Iterator[list[str]]:
    """Yield arguments of a command, each with one mistake."""
    good = example_of(words, command)
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    places = [one for one in command.params if one.param_type_name == "argument"]
    yield [*good, "--no-such-option"]
    if not any(place.nargs == -1 for place in places):
        yield [*good, *(f"surplus-{n}" for n in range(1 + len(places)))]
    if any(place.required for place in places):
        yield [arg for one in options if one.required for arg in (long_name(one.opts), "x")]
    for option in options:
        if not option.is_flag:
            for value in wrong_values(option):
                yield [*without(good, option), f"{long_name(option.opts)}={value}"]
        if option.required:
            yield without(good, option)


@pytest.mark.parametrize("found", sampled(TRIED), ids=ids)
def test_whatever_is_wrong_with_a_command_is_one_line_and_exit_code_2(
    found: tuple[tuple[str, ...], Any],
) -> None:
    words, command = found
    tried = list(mistakes_of(words, command))
    random.Random(" ".join(words)).shuffle(tried)
    for args in tried[:_TRIED]:
        code, _, errors = run(*words, *args)
        told = f"millrace {shlex.join([*words, *args])}: {errors}"
        assert code == 2, told
        assert errors.startswith("millrace: "), told
        assert len(errors.strip().splitlines()) == 1, told


def test_every_kind_of_mistake_is_made() -> None:
    tried = [" ".join(args) for words, command in TRIED for args in mistakes_of(words, command)]
    assert len(tried) > 1_500
    for part in (
        "--no-such-option",
        "surplus-0",
        "=nosuch",
        "=no.such.setting=1",
        f"--config={_NO_FILE}",
        "=1.5",
    ):
        assert sum(part in one for one in tried) > 20, part
