"""All commands: names and metavars as everywhere, an example in each help, mistakes in one line."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
from collections import defaultdict
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer

from millrace.cli import main
from millrace.cli.commands import as_page, codes_of, described, examples_of, walk
from millrace.cli.conventions import FORMER, METAVARS, SHORT, hold_to, long_name

ROOT = Path(__file__).resolve().parents[4]
COMMANDS = list(walk())
#: Long options that mean something of their own in some command, and may have another metavar there.
_OWN_MEANING = {
    "--duplicates", "--duration", "--events", "--key", "--last", "--late", "--radius", "--rate", "--sessions",
    "--threshold", "--to", "--transactions", "--windows",
}  # fmt: skip


def options_of(command: Any) -> list[Any]:
    return [option for option in command.params if option.param_type_name == "option"]


def ids(found: Any) -> str:
    return " ".join(found[0]) if isinstance(found, tuple) and isinstance(found[0], tuple) else ""


def run(*args: str) -> tuple[int, str, str]:
    """Return exit code, output and errors of ``millrace`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    before, mask = sys.argv, os.umask(0o022)
    sys.argv = ["millrace", *args]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
        os.umask(mask)
    return ended.value.code, out.getvalue(), err.getvalue()


def test_there_are_the_commands_of_core_apps_generators_and_benchmarks() -> None:
    heads = {words[0] for words, _ in COMMANDS}
    assert {"run", "state", "fraud", "iot", "clickstream", "ridesharing", "generate", "bench"} <= heads
    assert len(COMMANDS) > 200


@pytest.mark.parametrize("found", COMMANDS, ids=ids)
def test_names_short_forms_and_metavars_are_those_of_all_commands(found: tuple[tuple[str, ...], Any]) -> None:
    for option in options_of(found[1]):
        name = long_name(option.opts)
        assert re.fullmatch(r"--[a-z0-9]+(-[a-z0-9]+)*", name)
        shorts = [one for one in option.opts if not one.startswith("--")]
        assert shorts == ([SHORT[name]] if name in SHORT else [])
        assert name not in FORMER or name in ("--host", "--note"), "a former name that came back"
        if not option.is_flag:
            metavar = option.metavar
            assert metavar == METAVARS.get(name, metavar)
            assert metavar is None or metavar == metavar.upper() or "|" in metavar
            assert metavar is not None or option.type_descriptor.is_choice


def test_one_option_has_one_metavar() -> None:
    seen = defaultdict(set)
    for _, command in COMMANDS:
        for option in options_of(command):
            if not option.is_flag and option.metavar is not None:
                seen[long_name(option.opts)].add(option.metavar)
    assert {
        name: metavars for name, metavars in seen.items() if len(metavars) > 1 and name not in _OWN_MEANING
    } == {}


@pytest.mark.parametrize("found", COMMANDS, ids=ids)
def test_each_help_has_an_example_that_the_command_takes(found: tuple[tuple[str, ...], Any]) -> None:
    words, command = found
    examples = examples_of(words, command)
    assert examples, "no example"
    for example in examples:
        args = (
            shlex.split(example)[1 + len(words) :]
            if example.split()[1] == words[0]
            else shlex.split(example)[4:]
        )
        context = command.context_class(command, info_name=words[-1])
        given, rest, _ = command.make_parser(context).parse_args(args=args)
        places = [one for one in command.params if one.param_type_name == "argument"]
        needed = [one.name for one in command.params if one.required]
        assert not [name for name in needed if given.get(name) in (None, ())], example
        assert not rest or any(place.nargs == -1 for place in places), example
        for option in options_of(command):
            chosen = given.get(option.name)
            descriptor = option.type_descriptor
            if descriptor.is_choice and isinstance(chosen, str):
                assert chosen in {getattr(choice, "value", choice) for choice in descriptor.choices}, example


def test_the_page_of_commands_is_as_they_are() -> None:
    assert (ROOT / "docs" / "cli.md").read_text("utf-8") == as_page(described())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("recip", "did you mean recipe?"),
        ("run fraud --bogus", "No such option: --bogus"),
        ("tables compact fraud --target-mb x", "'--target-mb'"),
        ("fraud cases show", "Missing argument 'CASE'"),
        ("fraud cases show a b", "unexpected extra argument"),
        ("topology iot --as nothing", "'--as'"),
        ("run nosuch", "nosuch"),
        ("recipe show nosuch", "nosuch"),
        ("rules nosuch list", "nosuch"),
        ("models nosuch list", "nosuch"),
        ("contracts show fraud nosuch", "nosuch"),
        ("config show fraud --set nosuch=1", "nosuch"),
        ("config validate iot --config .", "is a folder"),
        ("config validate iot --config nosuch.yaml", "not found"),
        ("run fraud --bootstrap x", "--bootstrap"),
        ("demo iot --duration 0", "--duration"),
        ("demo iot --set no.such=1", "no.such"),
        ("demo iot,fraud --set no.such=1", "no.such"),
        ("demo iot --duration 60", "a number alone is milliseconds"),
        ("commands --check", "--write"),
        ("lint-state nosuch:Thing", "nosuch"),
        ("rescale iot --rekey", "the keys of iot do not hang on its settings"),
        ("rescale ridesharing --rekey --reseal", "--rekey changes the keys alone"),
        ("rescale ridesharing --reseal -s surge.on=true", "are for --rekey and --extend"),
        ("rescale ridesharing --rekey --extend", "--rekey changes the keys alone"),
        ("rescale ridesharing --extend --partitions 2", "--extend changes which processes there are alone"),
        ("rescale ridesharing --rekey -s dispatch.region_resolution=16", "less than or equal to"),
        ("rescale ridesharing --rekey -s storage.root=nosuch", "nosuch"),
        ("lint-state fraud --json=x", "--format"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(args: str, said: str) -> None:
    code, _, errors = run(*args.split())
    assert code == 2, errors
    assert len(errors.strip().splitlines()) == 1, errors
    assert errors.startswith("millrace: ")
    assert said in errors


def test_former_names_are_taken_where_a_command_has_todays_only() -> None:
    app, said = typer.Typer(), []

    @app.command()
    def one(
        reason: str = typer.Option("", "--reason"),
        shape: str = typer.Option("table", "--format"),
        host: str = typer.Option("", "--host"),
        words: list[str] = typer.Argument(None),  # noqa: B008
    ) -> None:
        said.append((reason, shape, host, words))

    command: Any = typer.main.get_command(app)
    hold_to(command)
    for args in (
        ["--comment", "why", "--json", "--host", "h"],
        ["--note=why", "-f", "json", "--host=h"],
        ["-m", "why", "--format=json", "--host", "h", "--", "--json"],
    ):
        command.main(args, standalone_mode=False)
    assert said == [("why", "json", "h", None), ("why", "json", "h", None), ("why", "json", "h", ["--json"])]


def test_what_all_commands_say_of_themselves_as_json() -> None:
    found = json.loads(run("commands", "--json")[1])
    assert {one["path"] for one in found} == {" ".join(words) for words, _ in COMMANDS}
    assert next(one for one in found if one["path"] == "fraud rules list")["same_as"] == "rules fraud list"


# -- JSON --------------------------------------------------------------------------------------

#: Last word of commands that only look.
LOOKS = {
    "audit", "check", "compare", "describe", "diff", "doctor", "economics", "health", "language",
    "lint-state", "list", "query", "show", "size", "stats", "status", "tables", "top", "topics", "topology",
    "validate", "verify", "click-through", "uplift", "what-if",
}  # fmt: skip
#: What these show is a text of another kind.
TEXTS = {("recipe", "show"), ("bench", "compare"), ("bench", "uplift")}


@pytest.mark.parametrize(
    "found", [one for one in COMMANDS if one[0][-1] in LOOKS and one[0] not in TEXTS], ids=ids
)
def test_what_a_command_looks_at_is_given_as_json_too(found: tuple[tuple[str, ...], Any]) -> None:
    """On standard output (`--json`), or as a file where what is found is a report (`--out`)."""
    words, command = found
    names = {name for option in options_of(command) for name in option.opts}
    assert names & {"--format", "--json", "--out"}, " ".join(words)
    if "--format" in names:
        (shape,) = (option for option in options_of(command) if "--format" in option.opts)
        assert "json" in {getattr(choice, "value", choice) for choice in shape.type_descriptor.choices}


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ("jars list", 0), ("jars verify --group broker", None), ("kafka status", None),
        ("config show fraud", 0), ("config validate iot", 0), ("topology iot", 0),
        ("contracts check fraud", 0), ("contracts show fraud", 0), ("contracts show fraud label.v1", 0),
        ("rules fraud language", 0), ("generate list", 0), ("generate describe iot", 0),
        ("state list nosuch", 2), ("status", 0), ("top --once", 0),
        ("size --rate 10 --keys 5", 0), ("lint-state iot", 0), ("recipe list", 0), ("commands", 0),
        ("operators list", 0),
    ],
)  # fmt: skip
def test_with_json_nothing_but_json_is_on_the_output(
    args: str, code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    ended, out, err = run(*args.split(), "--json")
    assert code in (None, ended), err
    if ended == 2:
        assert (out, len(err.splitlines())) == ("", 1)
    else:
        json.loads(out)


# -- exit codes --------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [one for one in COMMANDS if "Exit code" in (one[1].help or "")], ids=ids)
def test_every_exit_code_that_a_help_tells_of_is_in_the_table(found: Any) -> None:
    command = found[1]
    said = " ".join((command.help or "").split())
    if "Exit codes are those of" in said:
        return
    part = said[said.index("Exit code") :]
    told = {int(number) for number in re.findall(r"(?<![\w.])(\d)(?=:? [a-z(`-])", part.partition(". ")[0])}
    codes = codes_of(said)
    assert set(codes) == told
    assert told, said
    assert all(meaning and not meaning[0].isdigit() for meaning in codes.values())


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("millrace.cli.commands.described", interrupted)
    code, _, err = run("commands")
    assert (code, "Traceback" in err) == (130, False)


#: What people do by mistake, of each kind: an option, a value, a file, a folder, an address, an app.
MISTAKES = [
    ["demo", "fraud,nosuch"], ["demo", "all", "--rate", "0"], ["demo", "all", "--duration", "soon"],
    ["demo", "all", "--port", "70000"], ["demo", "all", "-s", "spark.driver_memory=lots"],
    ["dashboard", "fraud", "--root", "/nowhere", "--demo"], ["dashboard", "nosuch"],
    ["run", "fraud", "-s", "no.such=1"], ["run", "fraud", "--config", "/nowhere.yaml"],
    ["status", "--root", "/nowhere"], ["query", "SELEC 1"], ["state", "list", "fraud", "--root", "\0"],
    ["topology", "fraud", "--write", "/nowhere/page.md"], ["top", "--every", "never"],
]  # fmt: skip


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_ends_in_one_line_and_code_2(words: list[str]) -> None:
    code, _, err = run(*words)
    assert code == 2, err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1, err
