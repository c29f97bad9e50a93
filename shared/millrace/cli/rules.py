"""`millrace rules APP …`: the rules of a running app, changed, tried on the past, and looked at."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from millrace.cli.conventions import command_of
from millrace.cli.options import Bootstrap, By, Format, Overrides, Root, Shape, print_as
from millrace.cli.rules_options import File, From, Id, Start, StateName, Tried, VersionNumber, Why

if TYPE_CHECKING:
    from millrace.operations.app_rules import AppRules
    from millrace.operations.control_topic import ControlState, ControlTopic
    from millrace.rules import PublishRule, Rule, Version
    from millrace.runtime.settings import AppSettings


#: So much of the past is shown to who approves.
_SHOWN: Final = "7d"
#: Unless it asks for it, where it has no more rows than this.
_MOST: Final = 500_000


def validate(
    ctx: typer.Context, file: File, overrides: Overrides = None, shape: Shape = Format.table
) -> None:
    """Check a file of rules: says of what is wrong where it stands and why.

    Example: millrace rules fraud validate rules.yaml
    """
    of = _of(ctx)
    rules = of.read(file)
    for rule in rules:
        _published(rule, 1, "-", 0)
    _warn(of, rules, _settings(of, overrides=overrides))
    print_as(shape, {"right": [rule.id for rule in rules]}, lambda: f"{len(rules)} rules are right")


def language(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[ABOUT]...", help="Of an app with several: which.")
    ] = None,
    shape: Shape = Format.table,
) -> None:
    """What rules can say: fields and functions."""
    found = list(_of(ctx).words(words or ()))
    print_as(
        shape,
        [{"word": text, "kind": kind, "about": about} for text, kind, about in found],
        lambda: "\n".join(f"{text:<52} {kind:<18} {about}" for text, kind, about in found),
    )


def backtest(
    ctx: typer.Context,
    rules: Annotated[
        str, typer.Argument(metavar="FILE|RULE", help="A file of rules, or a published one's id.")
    ],
    table: Annotated[
        Path | None, typer.Option(help="The Delta table of the past; default the app's.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Labels: Delta table, Parquet or JSON lines; default the app's.")
    ] = None,
    last: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Only the last so long, e.g. 30d.")
    ] = None,
    version: VersionNumber = None,
    out: Annotated[Path | None, typer.Option(help="Write the report here as JSON.")] = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """What rules would have done on the app's table of the past.

    Example: millrace rules fraud backtest rules.yaml --last 30d --out report.json
    """
    from millrace.cli.rules_shown import show_what_if, tried
    from millrace.operations.app_rules import History
    from millrace.operations.report import write
    from millrace.time.durations import to_ms

    of = _of(ctx)
    settings = _settings(of, bootstrap, root, overrides)
    if Path(rules).suffix in (".yaml", ".yml", ".json") or Path(rules).is_file():
        chosen = of.read(Path(rules))
    else:
        chosen = [_version(_topic(of, settings).read(), rules, version).rule]
    found = tried(of, chosen, settings, History(table, labels, None if last is None else to_ms(last)))
    write(out, found.report)
    show_what_if(found)


def publish(
    ctx: typer.Context,
    file: File,
    state: Annotated[Start, typer.Option(help="The state in which the rules begin.")] = Start.shadow,
    by: By = None,
    reason: Why = "",
    from_: From = None,
    only: Annotated[list[str] | None, typer.Option(help="Only the rule of this id; may be repeated.")] = None,
    what_if: Tried = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Publish new versions of rules; those that say what the newest version says are left out.

    One that a second person must approve waits in shadow for it: `approve`.

    Example: millrace rules fraud publish rules.yaml --state active --reason "card testing"
    """
    from millrace.cli.rules_shown import show_state, show_tried
    from millrace.operations.sending import now_ms, who

    of = _of(ctx)
    settings = _settings(of, bootstrap, root, overrides)
    name, when, begins = who(by, settings), now_ms(), _time_ms(from_)
    rules = [rule for rule in of.read(file) if not only or rule.id in only]
    _warn(of, rules, settings)
    show_tried(of, rules, settings, what_if)

    def events(book: ControlState) -> list[PublishRule]:
        found = []
        for rule in rules:
            written = _owned(rule, name) if of.publisher_owns else rule
            kept = book.rules.get(rule.id)
            newest = kept.versions[-1] if kept else None
            if newest and newest.plan[-1].state != "deleted" and _same(of, newest.rule, written):
                typer.echo(f"{rule.id}: unchanged, version {newest.number}")
                continue
            found.append(_published(written, book.next_version(rule.id), name, when, state, begins, reason))
        return found

    book, sent = _topic(of, settings).change(events)
    for event in sent:
        show_state(of, book, event.rule.id, event.version)


def set_state(
    ctx: typer.Context,
    rule: Id,
    state: Annotated[StateName, typer.Argument(help="draft, shadow, active, paused, or deleted: for good.")],
    version: VersionNumber = None,
    by: By = None,
    reason: Why = "",
    from_: From = None,
    what_if: Tried = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Bring a version to another state; `deleted` is for all versions of the rule.

    One that a second person must approve waits in shadow for it: `approve`.

    Example: millrace rules fraud set tested paused
    """
    from millrace.cli.rules_shown import show_state, show_tried
    from millrace.operations.sending import now_ms, who
    from millrace.rules import SetRuleState

    of = _of(ctx)
    settings = _settings(of, bootstrap, root, overrides)
    name, when, begins = who(by, settings), now_ms(), _time_ms(from_)

    def events(book: ControlState) -> list[SetRuleState]:
        chosen = _version(book, rule, version)
        show_tried(of, [chosen.rule], settings, what_if)
        return [SetRuleState(rule, chosen.number, state.value, name, when, begins, reason)]

    book, sent = _topic(of, settings).change(events)
    show_state(of, book, rule, sent[0].version)


def approve(
    ctx: typer.Context,
    rule: Id,
    version: VersionNumber = None,
    by: By = None,
    reason: Why = "",
    what_if: Tried = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Agree, as a second person, that a version which waits for it becomes active.

    What is approved, who asked for it and why, and what it would have done in the last days is shown.

    Example: millrace rules fraud approve tested --by bob
    """
    from millrace.cli.rules_shown import show_proposal, show_state, show_tried
    from millrace.errors import UserError
    from millrace.operations.roster import Role
    from millrace.operations.sending import now_ms, who
    from millrace.rules import ApproveRule

    of = _of(ctx)
    settings = _settings(of, bootstrap, root, overrides)
    name, when = who(by, settings, Role.approve), now_ms()

    def events(book: ControlState) -> list[ApproveRule]:
        if rule in book.rules:
            chosen = _version(book, rule, version)
            show_proposal(of, book, rule, chosen)
            try:
                show_tried(of, [chosen.rule], settings, what_if or _SHOWN, None if what_if else _MOST)
            except UserError as error:
                if what_if is not None:
                    raise
                typer.echo(f"what it would have done is not known: {error}")
        number = version or book.next_version(rule) - 1
        return [ApproveRule(rule, max(1, number), name, when, reason)]

    book, sent = _topic(of, settings).change(events)
    show_state(of, book, rule, sent[0].version)


def rollback(
    ctx: typer.Context,
    rule: Id,
    to: Annotated[int | None, typer.Option(help="Which version; default the one active before.")] = None,
    by: By = None,
    reason: Why = "",
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Put the version that was active before in force again.

    Example: millrace rules iot rollback bearing-hot --reason "too many alarms"
    """
    from millrace.cli.rules_shown import show_state
    from millrace.errors import UserError
    from millrace.operations.sending import now_ms, who
    from millrace.rules import RollbackRule

    of = _of(ctx)
    settings = _settings(of, bootstrap, root, overrides)
    name, when = who(by, settings), now_ms()

    def events(book: ControlState) -> list[RollbackRule]:
        versions = book.entry(rule).versions
        earlier = [v for v in versions if v.was_active and v.plan[-1].state != "active"]
        if to is None and not earlier:
            raise UserError(f"{rule}: no other version has been active")
        return [RollbackRule(rule, to or earlier[-1].number, name, when, reason)]

    book, sent = _topic(of, settings).change(events)
    show_state(of, book, rule, sent[0].to_version)


def list_rules(
    ctx: typer.Context,
    rule: Annotated[str | None, typer.Argument(metavar="[RULE]", help="One rule with its history.")] = None,
    shape: Shape = Format.table,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """The rules with their versions and states, by the control topic."""
    from millrace.cli.rules_shown import listed, show_list
    from millrace.operations.report import as_json
    from millrace.operations.sending import NoBroker

    of = _of(ctx)
    settings = _settings(of, bootstrap, root, overrides)
    built_in = [] if rule else of.built_in(settings)
    topic = _topic(of, settings)
    try:
        book = topic.read()
    except NoBroker as error:
        if settings.kafka.bootstrap or not built_in:
            raise
        typer.echo(f"published rules are not shown: {error}", err=True)
        book = topic.empty()
    if shape is Format.json:
        typer.echo(as_json(listed(book, rule) | {"built_in": built_in}))
    else:
        show_list(of, book, rule, built_in)


def audit(
    ctx: typer.Context,
    rule: Annotated[str | None, typer.Argument(metavar="[RULE]", help="Only of this rule or list.")] = None,
    last: Annotated[int, typer.Option(min=1, help="So many of the newest changes.")] = 50,
    shape: Shape = Format.table,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Who has changed what, when and why: what commands have sent, by the app's table of it."""
    from millrace.cli.rules_shown import audited, show_audit
    from millrace.operations.report import as_json

    of = _of(ctx)
    rows = audited(_settings(of, root=root, overrides=overrides), rule)[-last:]
    if shape is Format.json:
        typer.echo(as_json(rows))
    else:
        show_audit(rows)


_COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "validate": validate,
    "publish": publish,
    "approve": approve,
    "set": set_state,
    "backtest": backtest,
    "rollback": rollback,
    "audit": audit,
    "list": list_rules,
    "language": language,
}


#: Commands that need nothing but their name.
_LOOKING = ("audit", "list", "language")


def commands_of(app_name: str) -> typer.Typer:
    """Return the commands over the rules of an app; the app is loaded when one is called.

    Args:
        app_name: Name of the app.
    """
    about = f"Rules of {app_name}: check, try, publish, approve, look."
    made = typer.Typer(no_args_is_help=True, help=about, add_completion=False)

    @made.callback()
    def begin(ctx: typer.Context) -> None:
        ctx.obj = app_name

    for name, function in _COMMANDS.items():
        example = f"Example: millrace rules {app_name} {name}"
        about = re.sub("millrace rules [a-z]+", f"millrace rules {app_name}", inspect.getdoc(function) or "")
        made.command(name, help=about, epilog=example if name in _LOOKING else None)(function)
    return made


class _Apps(TyperGroup):
    """A group per app that has rules."""

    def list_commands(self, ctx: Any) -> list[str]:
        from millrace.operations.app_rules import apps_with_rules

        return apps_with_rules()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from millrace.operations.app_rules import rules_of

        rules_of(cmd_name)  # says in one line that there is none
        return command_of(commands_of(cmd_name), cmd_name)


app = typer.Typer(
    cls=_Apps,
    help="Rules of a running app, e.g. `millrace rules fraud publish rules.yaml --state shadow`.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def rules() -> None:
    """Rules of a running app, e.g. `millrace rules fraud publish rules.yaml --state shadow`."""


def _of(ctx: typer.Context) -> AppRules:
    from millrace.operations.app_rules import rules_of

    return rules_of(ctx.obj)


def _settings(
    of: AppRules,
    bootstrap: str | None = None,
    root: Path | None = None,
    overrides: list[str] | None = None,
) -> AppSettings:
    from millrace.runtime.commands import command_settings

    return command_settings(of.settings, of.app, bootstrap=bootstrap, root=root, overrides=overrides)


def _topic(of: AppRules, settings: AppSettings) -> ControlTopic:
    from millrace.operations.control_topic import ControlTopic

    return ControlTopic(of, settings)


def _time_ms(text: str | None) -> int:
    from millrace.time.moments import to_time_ms

    return 0 if text is None else to_time_ms(text)


def _warn(of: AppRules, rules: Iterable[Rule], settings: AppSettings) -> None:
    for rule in rules:
        for problem in of.warnings(rule, settings):
            typer.echo(f"warning: rule {rule.id!r}: {problem}", err=True)


def _published(
    rule: Rule,
    version: int,
    name: str,
    when: int,
    state: Start = Start.draft,
    begins: int = 0,
    reason: str = "",
) -> PublishRule:
    """Return the event that publishes a version of a rule.

    Raises:
        UserError: What the rule says is too long for it.
    """
    from millrace.errors import UserError
    from millrace.rules import PublishRule

    try:
        return PublishRule(rule, version, name, when, state.value, begins, reason)
    except ValueError as error:
        raise UserError(f"rule {rule.id!r}: {error}") from None


def _owned(rule: Rule, name: str) -> Rule:
    import msgspec

    return msgspec.structs.replace(rule, owner=name)


def _same(of: AppRules, kept: Rule, written: Rule) -> bool:
    """Whether two rules say the same; who owns it counts where its file says so."""
    return (_owned(kept, written.owner) if of.publisher_owns else kept) == written


def _version(book: ControlState, rule: str, number: int | None) -> Version:
    """Return a version of a rule, by default the newest.

    Raises:
        RuleError: There is no such rule or version.
    """
    from millrace.rules import RuleError

    versions = book.entry(rule).versions
    if number is None:
        return versions[-1]
    for version in versions:
        if version.number == number:
            return version
    known = ", ".join(str(v.number) for v in versions)
    raise RuleError(f"there is no version {number}; there are {known}", rule=rule)
