"""`millrace …`: one command, whose parts are loaded only when they are called.

The core's own parts are listed in :data:`CORE_COMMANDS`; other packages add theirs through the
entry-point group ``millrace.commands`` (name → ``module:typer_app``).
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import traceback
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from millrace.cli.conventions import command_of, one_line
from millrace.errors import MillraceError
from millrace.local.private import keep_private
from millrace.runtime.redaction import redact_text

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer
    from typer.core import TyperGroup

#: Subcommand → (``module:attribute`` of a ``typer.Typer``, one line of help for the overview).
CORE_COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": (
        "millrace.cli.doctor:app",
        "Check this machine: Python, Java, memory, disk, ports, jars, broker.",
    ),
    "jars": (
        "millrace.cli.jars:app",
        "Fetch, verify and list the locked jars of Spark's connectors and the broker.",
    ),
    "kafka": ("millrace.cli.kafka:app", "Start, stop and inspect an embedded Apache Kafka broker."),
    "completion": ("millrace.cli.completion:app", "What lets a shell complete commands and options."),
    "commands": ("millrace.cli.commands:app", "List all commands with what they do."),
    "config": ("millrace.cli.config:app", "Show and validate the settings of an app."),
    "topology": ("millrace.cli.topology:app", "Show how an app is wired: inputs, processes, outputs."),
    "run": ("millrace.cli.run:app", "Run a streaming app."),
    "status": ("millrace.cli.status:app", "All jobs: which run, how fast, how far behind."),
    "top": ("millrace.cli.top:app", "The same, live."),
    "stop": ("millrace.cli.stop:app", "End a job after its running batch."),
    "upgrade": ("millrace.cli.upgrade:app", "The installed version in place of the one that runs."),
    "bluegreen": ("millrace.cli.bluegreen:app", "Two versions beside each other, compared, then switched."),
    "size": ("millrace.cli.size:app", "Cores, disks and memory that a workload asks for."),
    "package": ("millrace.cli.package:app", "Code and libraries for spark-submit."),
    "logs": ("millrace.cli.logs:app", "What a job has logged."),
    "keygen": ("millrace.cli.keygen:app", "Make keys that state is encrypted with, and replace them."),
    "lint-state": ("millrace.cli.lint_state:app", "List the states of a process that grow without a bound."),
    "new": ("millrace.cli.new:app", "Begin an app of your own."),
    "recipe": ("millrace.cli.recipe:app", "Short files to run, read and change: one per concept."),
    "state": ("millrace.cli.state:app", "Look into the state of a checkpoint: list, show, export, diff."),
    "savepoint": (
        "millrace.cli.savepoint:app",
        "Keep a committed batch of a query, and begin another with it.",
    ),
    "convert": ("millrace.cli.convert:app", "Bring a checkpoint of an earlier version over to this one."),
    "rescale": ("millrace.cli.rescale:app", "Give a stopped query other partitions or key groups."),
    "contracts": ("millrace.cli.contracts:app", "Keep what events look like in git, and compatible."),
    "dlq": ("millrace.cli.dlq:app", "Dead letters: list them, look into them, send them again."),
    "chaos": (
        "millrace.cli.chaos:app",
        "What nobody should send, through an app, counted to the last event.",
    ),
    "rules": ("millrace.cli.rules:app", "Rules of a running app: check, try, publish, approve, look."),
    "operators": (
        "millrace.cli.operators:app",
        "Who may look, decide and approve: names, roles and tokens.",
    ),
    "tables": ("millrace.cli.tables:app", "Delta tables of an app: few files of many, old ones removed."),
    "query": ("millrace.cli.query:app", "SQL over the apps' tables, and over their topics as they come in."),
    "dashboard": ("millrace.cli.dashboard:app", "What the apps do, live in a browser."),
    "serve": ("millrace.cli.serve:app", "What an app has committed, by key over HTTP."),
    "evaluate": ("millrace.cli.evaluate:app", "Hold an app to data whose right answers are known."),
    "models": ("millrace.cli.models:app", "What an app has learned: train, compare, promote, roll back."),
    "demo": ("millrace.cli.demo:app", "Broker, generator and app in one command, checked against the truth."),
}

#: Entry-point group through which other packages add subcommands.
COMMANDS_GROUP = "millrace.commands"
#: What a disk says that takes no more, without the name of what was written: it may be the output.
_FULL = (errno.ENOSPC, errno.EDQUOT)


def _targets() -> dict[str, tuple[str, str]]:
    found = dict(CORE_COMMANDS)
    for entry in sorted(entry_points(group=COMMANDS_GROUP), key=lambda e: e.name):
        found.setdefault(entry.name, (entry.value, f"From {entry.value.partition(':')[0]}."))
    return found


def _load(target: str) -> typer.Typer:
    module, _, attribute = target.partition(":")
    loaded: typer.Typer = getattr(importlib.import_module(module), attribute)
    loaded._add_completion = False  # a part of a command is completed with it, not by itself
    return loaded


def lazy_group(targets: Callable[[], dict[str, tuple[str, str]]]) -> type[TyperGroup]:
    """Return a group of commands whose modules are imported when they are called.

    Args:
        targets: Gives command → (``module:attribute`` of a ``typer.Typer``, one line of help).
    """
    from typer.core import TyperGroup

    class LazyGroup(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return list(targets())

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            target = targets().get(cmd_name)
            if target is None:
                return None
            return command_of(_load(target[0]), cmd_name)

    return LazyGroup


def build() -> typer.Typer:
    """Return the root command; subcommand modules are imported when they are called."""
    import typer

    root = typer.Typer(
        cls=lazy_group(_targets),
        name="millrace",
        help="Stateful streaming in Python on Apache Spark.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )

    @root.callback(invoke_without_command=True)
    def options(
        version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
    ) -> None:
        if version:
            from importlib.metadata import version as installed

            typer.echo(installed("millrace"))
            raise typer.Exit

    return root


def main() -> None:
    """Run the command line; user errors end in one line and exit code 2.

    What commands make, and the processes that they start, only this user can read (see
    :func:`~millrace.local.private.keep_private`).
    """
    try:
        import typer
        from typer.exceptions import TyperException
    except ModuleNotFoundError:
        sys.exit("millrace: the command line needs the apps extra: pip install 'millrace[apps]'")
    if "_MILLRACE_COMPLETE" in os.environ:  # a shell asks; `millrace completion` told it how
        from typer import completion

        completion.completion_init()  # type: ignore[attr-defined]
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal or a file of another encoding than UTF-8 gets what it cannot have by its number.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        keep_private()
        code = build()(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except MillraceError as error:
        if os.environ.get("MILLRACE_TRACEBACK"):
            raise
        print(f"millrace: {redact_text(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit("millrace: ended")
    except TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help has been printed
            sys.exit(2)
        print(f"millrace: {redact_text(one_line(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Exception as error:
        if os.environ.get("MILLRACE_TRACEBACK"):
            raise
        if isinstance(error, OSError) and error.filename and error.strerror:
            # A folder that is a file, or nobody's to write: whoever named it can name another.
            print(f"millrace: {redact_text(str(error.filename))}: {error.strerror}", file=sys.stderr)
            sys.exit(2)
        if isinstance(error, OSError) and error.errno in _FULL:
            print(f"millrace: {error.strerror}", file=sys.stderr)
            sys.exit(2)
        # A mistake of ours, or of a library: it may tell an option or an address that it was given.
        print(redact_text(traceback.format_exc()), file=sys.stderr, end="")
        sys.exit(1)
