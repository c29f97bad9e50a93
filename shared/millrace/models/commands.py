"""Commands over an app's models: `millrace models APP list|show|train|compare|promote|rollback|…`."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from millrace.errors import MillraceError, UserError
from millrace.models.exports import CHALLENGER, CHAMPION, POLL_S, PREVIOUS
from millrace.operations.shape import AsJson, Format, Shape, print_as

if TYPE_CHECKING:
    from millrace.models.candidate import Candidate
    from millrace.models.gates import Verdict
    from millrace.models.learner import Learner, Workshop
    from millrace.models.registry import Entry
    from millrace.models.tables import TrainingTables

#: Gives an app's models; called when a command needs them, so that others start quickly.
Learning = Callable[[], "Learner"]
#: What the help of a command shows.
_EXAMPLES: Final = {
    "list": "list",
    "show": "show 3",
    "train": "train --as-of 2026-11-01T00:00",
    "compare": "compare 3",
    "promote": "promote 3",
    "rollback": "rollback",
    "export": "export --follow",
    "card": "card 3 --out card.md",
}

#: Options that all commands have; an app's ``train`` has them too.
Root = Annotated[
    Path | None,
    typer.Option("--root", help="The app's tables and models; default .millrace/APP."),
]
Uri = Annotated[str | None, typer.Option("--registry", help="MLflow registry; default: SQLite in the root.")]
To = Annotated[
    Path | None,
    typer.Option("--exports", help="Folder that workers read; default: exported, beside the registry."),
]
Which = Annotated[
    str | None,
    typer.Option(
        "--model",
        "--table",
        help="Which of the app's models, e.g. NAME or NAME:REGISTERED; default: the first.",
    ),
]
Delay = Annotated[str, typer.Option("--label-delay", help="How long the truth takes to become known.")]
AsOf = Annotated[
    str | None, typer.Option("--as-of", help="Know nothing later, e.g. 2026-11-01T00:00; default: now.")
]
Version = Annotated[int, typer.Argument(help="The version.")]
TableVersion = Annotated[
    list[str] | None,
    typer.Option("--table-version", metavar="TABLE@VERSION", help="Read this version of a table."),
]
GateFile = Annotated[
    Path | None, typer.Option("--gates", help="YAML or JSON: a list of gates in place of the app's.")
]
#: What :class:`Delay` is unless told.
LABEL_DELAY: Final = "7d"


def opened(
    learning: Learning, model: str | None, root: Path | None, registry: str | None, exports: Path | None
) -> Workshop:
    """Return the workshop that a command's options name."""
    from millrace.models.learner import Workshop

    learner = learning()
    return Workshop(learner, model, root or Path(".millrace") / learner.app, registry, exports)


@dataclass(frozen=True)
class Training:
    """What a training is given.

    Attributes:
        shop: The model, its registry and folders.
        tables: The app's tables, in the versions that are asked for.
        model: The model as it was named; ``None``: it was not.
        as_of: Know nothing later, as it was written.
    """

    shop: Workshop
    tables: TrainingTables
    model: str | None
    as_of: str | None

    def until(self, newest_ms: Any) -> int:
        """Return until when events are known, UTC ms, once all tables have been read.

        Args:
            newest_ms: Event time of the newest event, UTC ms.

        Raises:
            UserError: A table that a version was asked of was not read, or ``--as-of`` is no time.
        """
        self.tables.check_wanted()
        return time_of(self.as_of, newest_ms)


class Learned(NamedTuple):
    """What a training ends with.

    Attributes:
        candidate: What is to be registered.
        told: Lines that say what it is.
    """

    candidate: Candidate
    told: list[str]


def training(learning: Learning, learn: Callable[..., Learned]) -> Callable[..., None]:
    """Return the command ``train``: it opens what it needs, registers what is learned and says so.

    Args:
        learning: Gives the app's models.
        learn: A :class:`Training`, and options of its own → what is learned. Its docstring is the command's
            help.
    """

    def train(
        root: Root = None,
        registry: Uri = None,
        exports: To = None,
        model: Which = None,
        as_of: AsOf = None,
        table_version: TableVersion = None,
        **own: Any,
    ) -> None:
        from millrace.models.tables import parse_versions

        shop = opened(learning, model, root, registry, exports)
        tables = shop.tables(parse_versions(table_version or ()))
        candidate, told = learn(Training(shop, tables, model, as_of), **own)
        version, champion = shop.enter(candidate)
        for line in (f"version {version}: {told[0]}", *told[1:], entered(shop, version, champion)):
            typer.echo(line)

    common, own = (list(inspect.signature(of).parameters.values()) for of in (train, learn))
    types = inspect.get_annotations(train, eval_str=True) | inspect.get_annotations(learn, eval_str=True)
    options = [one.replace(annotation=types[one.name]) for one in (*common[:-1], *own[1:])]
    command: Any = train
    command.__doc__, command.__signature__ = learn.__doc__, inspect.Signature(options)
    command.__annotations__ = {one.name: one.annotation for one in options}
    return train


def command_line(
    app: str,
    learning: Learning,
    own: Mapping[str, Callable[..., None]],
    names: Mapping[str, str] | None = None,
) -> typer.Typer:
    """Return the commands over an app's models.

    Args:
        app: The app's name.
        learning: Gives its models.
        own: Typer functions of its own commands: ``train``, made by :func:`training`, and what else it has.
        names: Command → name by which it is offered, of those that are; ``None``: all by their own.
    """
    made = typer.Typer(
        help="Models: train, compare, promote, roll back, look.", no_args_is_help=True, add_completion=False
    )
    commands: dict[str, Callable[..., None]] = {
        "list": _list(learning),
        "show": _show(learning),
        "train": own["train"],
        "compare": _compare(learning),
        "promote": _promote(learning),
        "rollback": _rollback(learning),
        "export": _export(learning),
        "card": _card(learning),
        **own,
    }
    for name, command in commands.items():
        if names is None or name in names:
            example = f"e.g. millrace models {app} {_EXAMPLES.get(name, name)}"
            made.command(name if names is None else names[name], epilog=example)(command)
    return made


def _list(learning: Learning) -> Callable[..., None]:
    def list_(
        root: Root = None,
        registry: Uri = None,
        exports: To = None,
        model: Which = None,
        shape: Shape = Format.table,
    ) -> None:
        """List the registered versions."""
        from millrace.console.report import print_table

        shop = opened(learning, model, root, registry, exports)
        entries = shop.registry.entries()
        if shape is Format.json:
            print_as(shape, [_as_data(entry, shop.model.tables) for entry in entries], str)
            return
        if not entries:
            typer.echo(f"there are no models yet: millrace models {shop.learner.app} train")
            return
        learner = shop.learner
        columns = ("version", "aliases", "registered", "trained until", "rows", *learner.columns, "data")
        rows = [_row(learner, shop.model.tables, entry) for entry in entries]
        print_table("models", columns, rows, right=("version", "rows"))
        _tell_exported(shop, entries)

    return list_


def _as_data(entry: Entry, tables: tuple[str, ...]) -> dict[str, Any]:
    return {
        "version": entry.version,
        "aliases": entry.aliases,
        "registered_ms": entry.created_ms,
        "about": entry.about,
        "tables": entry.tables(tables),
    }


def _row(learner: Learner, tables: tuple[str, ...], entry: Entry) -> tuple[str, ...]:
    from millrace.models.learner import lineage

    about = entry.about
    return (
        str(entry.version),
        ", ".join(entry.aliases) or "–",
        day(entry.created_ms),
        day(int(about.get("trained_until_ms", 0))),
        about.get("rows", ""),
        *(_shown(about.get(name)) for name in learner.columns.values()),
        lineage(entry.tables(tables)),
    )


def _shown(value: str | None) -> str:
    if value is None:
        return "–"
    try:
        return value if value.isdecimal() else f"{float(value):.3f}"
    except ValueError:
        return value


def _tell_exported(shop: Workshop, entries: list[Entry]) -> None:
    """Say where workers have another version than the registry's alias, or cannot use the one they find."""
    from millrace.models.serving import ExportedModels, ModelHolder

    for alias in (CHAMPION, CHALLENGER):
        meant = next((str(e.version) for e in entries if alias in e.aliases), None)
        manifest = shop.exported(alias)
        found = None if manifest is None else manifest.version
        if found != meant:
            typer.echo(
                f"{alias}: the registry says {meant or 'none'}, workers find {found or 'none'}: "
                f"millrace models {shop.learner.app} export"
            )
        if manifest is None:
            continue
        fallback = PREVIOUS if alias == CHAMPION else None
        holder = ModelHolder(ExportedModels(shop.exports, shop.model.reader), alias, fallback=fallback)
        holder.poll()
        if (status := holder.status()).failures:
            now = f"version {status.version}" if status.version else "no model"
            typer.echo(f"{alias}: workers cannot use version {found} and begin with {now}: {status.error}")


def _show(learning: Learning) -> Callable[..., None]:
    def show(
        version: Version,
        root: Root = None,
        registry: Uri = None,
        exports: To = None,
        model: Which = None,
        as_json: AsJson = True,
    ) -> None:
        """Show the manifest of a version, as JSON: what it takes, what it was made of, how good it was."""
        from millrace.models.manifest import encoded

        manifest, _ = opened(learning, model, root, registry, exports).registry.files(version)
        typer.echo(encoded(manifest).decode(), nl=False)

    return show


def _compare(learning: Learning) -> Callable[..., None]:
    def compare(
        version: Annotated[int | None, typer.Argument(help="The version; default: the challenger.")] = None,
        root: Root = None,
        registry: Uri = None,
        exports: To = None,
        model: Which = None,
        label_delay: Delay = LABEL_DELAY,
        as_of: AsOf = None,
        gates: GateFile = None,
        shape: Shape = Format.table,
    ) -> None:
        """Hold a version beside the champion, gate by gate; nothing changes.

        Both are judged on the rows after the training of both whose truth is known.
        Exit codes: 0 all gates are passed, 1 one is not, 2 something you can put right.
        """
        shop = opened(learning, model, root, registry, exports)
        champion = shop.registry.alias(CHAMPION)
        other = version if version is not None else shop.registry.alias(CHALLENGER)
        if champion is None or other is None:
            raise UserError(f"there is no {CHAMPION if champion is None else CHALLENGER} to compare")
        if champion == other:
            raise UserError(f"version {other} is the champion")
        verdicts = _verdicts(shop, champion, other, as_of, label_delay, gates, shape=shape)
        if not all(verdict.passed for verdict in verdicts):
            raise typer.Exit(1)

    return compare


def _verdicts(
    shop: Workshop,
    champion: int,
    other: int,
    as_of: str | None,
    label_delay: str,
    gates: Path | None,
    *,
    shape: Format = Format.table,
) -> list[Verdict]:
    """Compare two versions, and tell what comes of each gate."""
    from millrace.models.gates import read_gates

    asked = None if gates is None else read_gates(gates)
    verdicts = shop.compare(champion, other, as_of=as_of, label_delay=label_delay, gates=asked)
    lines = (f"{'passed' if verdict.passed else 'FAILED'}: {verdict.why}" for verdict in verdicts)
    print_as(
        shape,
        {
            "champion": champion,
            "version": other,
            "verdicts": [{"passed": verdict.passed, "why": verdict.why} for verdict in verdicts],
        },
        lambda: "\n".join(lines),
    )
    return verdicts


def _promote(learning: Learning) -> Callable[..., None]:
    def promote(
        version: Annotated[int, typer.Argument(help="The version that shall decide.")],
        root: Root = None,
        registry: Uri = None,
        exports: To = None,
        model: Which = None,
        label_delay: Delay = LABEL_DELAY,
        as_of: AsOf = None,
        gates: GateFile = None,
    ) -> None:
        """Make a version the champion, if it passes every gate.

        Both models are judged on the rows after the training of both whose truth is known. Where there is no
        champion that can be read, any version may become it. Workers take it within two seconds.
        """
        shop = opened(learning, model, root, registry, exports)
        _must_approve(shop)
        champion = shop.registry.alias(CHAMPION)
        verdicts: list[Verdict] = []
        if champion is not None and (broken := shop.why_broken(champion)):
            typer.echo(f"there is nothing to compare it with, for the champion is of no use: {broken}")
        elif champion is not None and champion != version:
            verdicts = _verdicts(shop, champion, version, as_of, label_delay, gates)
        before = shop.promote(version, verdicts)
        typer.echo(f"version {version} decides now" + ("" if before is None else f", {before} did before"))

    return promote


def _rollback(learning: Learning) -> Callable[..., None]:
    def rollback(root: Root = None, registry: Uri = None, exports: To = None, model: Which = None) -> None:
        """Let the champion before this one decide again."""
        shop = opened(learning, model, root, registry, exports)
        _must_approve(shop)
        now, before = shop.rollback()
        typer.echo(f"version {now} decides again, version {before} does no more")

    return rollback


def _must_approve(shop: Workshop) -> None:
    """Refuse whoever may not say which model decides, where there are operators."""
    from millrace.operations.acting import acting_on
    from millrace.operations.roster import Role

    acting_on(shop.learner.app, Role.approve)


def _export(learning: Learning) -> Callable[..., None]:
    def export(
        root: Root = None,
        registry: Uri = None,
        exports: To = None,
        model: Which = None,
        follow: Annotated[
            bool, typer.Option("--follow", help="Go on: for aliases that are moved by other tools.")
        ] = False,
    ) -> None:
        """Let workers find what the registry's aliases say now; the other commands do so themselves."""
        shop = opened(learning, model, root, registry, exports)
        while True:
            try:
                for alias, manifest in shop.export().items():
                    typer.echo(f"{alias}: version {manifest.version}")
            except MillraceError as error:
                if not follow:
                    raise
                typer.echo(f"nothing changed: {error}", err=True)
            if not follow:
                typer.echo(f"exported to {shop.exports.path}")
                return
            time.sleep(POLL_S)

    return export


def _card(learning: Learning) -> Callable[..., None]:
    def card(
        version: Version,
        root: Root = None,
        registry: Uri = None,
        exports: To = None,
        model: Which = None,
        out: Annotated[Path | None, typer.Option("--out", help="Write it here; default: print it.")] = None,
    ) -> None:
        """Write the card of a version: data, measures, gates, limits, in Markdown."""
        from millrace.models.card import card_of
        from millrace.operations.report import write_text

        shop = opened(learning, model, root, registry, exports)
        text = card_of(
            shop.learner, shop.model, shop.registry.entry(version), shop.registry.files(version)[0]
        )
        if out is None:
            typer.echo(text, nl=False)
            return
        write_text(out, text)
        typer.echo(f"the card of version {version} is in {out}")

    return card


def entered(shop: Workshop, version: int, champion: int | None) -> str:
    """Return what is said at the end of a training."""
    command = f"millrace models {shop.learner.app} promote {version}"
    if champion is None:
        return f"there is no champion yet: {command}"
    return f"it scores beside the champion now; when it is better: {command}"


def time_of(text: str | None, newest_ms: Any) -> int:
    """Return a time as ``--as-of`` has it, UTC ms; without one that right after the newest event.

    Args:
        text: The time.
        newest_ms: Event time of the newest event, UTC ms.

    Raises:
        UserError: It is no time.
    """
    if text is None:
        return int(newest_ms) + 1
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"--as-of {text}: write a time as 2026-11-01T00:00") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def day(at_ms: int) -> str:
    """Return the day of a time.

    >>> day(1_500_000)
    '1970-01-01'
    """
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d}"
