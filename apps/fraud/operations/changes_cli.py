"""`millrace fraud changes …`: thresholds and lists by proposal, with a look ahead, a second person, undo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import Bootstrap, By, Format, Overrides, Root, Shape

if TYPE_CHECKING:
    from millrace.operations.control_topic import ControlTopic
    from millrace_apps.fraud.contracts.control_events import Change
    from millrace_apps.fraud.operations.governed_book import GovernedControlState
    from millrace_apps.fraud.operations.what_if import Difference
    from millrace_apps.fraud.settings import FraudSettings

app = typer.Typer(
    no_args_is_help=True, help="Changes of thresholds and lists: propose, look ahead, agree, undo."
)

Id = Annotated[str, typer.Argument(metavar="PROPOSAL", help="Its name.")]
Thresholds = Annotated[
    list[str] | None,
    typer.Option(
        "--threshold", metavar="NAME=VALUE", help="A threshold; may be repeated. NAME=: its default."
    ),
]
Puts = Annotated[
    list[str] | None,
    typer.Option("--put", metavar="LIST=VALUE", help="On a list, e.g. allowed=card:c-1; may be repeated."),
]
Removes = Annotated[
    list[str] | None, typer.Option("--remove", metavar="LIST=VALUE", help="Off a list; may be repeated.")
]
For = Annotated[str, typer.Option("--for", help="How long entries stand, e.g. 12h or 30d.")]
Last = Annotated[
    str, typer.Option("--last", metavar="DURATION", help="Decisions of the last so long, by event time.")
]
Why = Annotated[str, typer.Option("--reason", help="Why; stands in the proposal and in the audit.")]
Out = Annotated[Path | None, typer.Option(help="Write the report here as JSON.")]


@app.command()
def propose(
    thresholds: Thresholds = None,
    puts: Puts = None,
    removes: Removes = None,
    for_: For = "30d",
    reason: Why = "",
    last: Last = "7d",
    by: By = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Propose changes that hold together; shown first is what they would have done.

    They hold at once where nobody has to agree (governance.two_person), else when a second person approves.

    Example: millrace fraud changes propose --threshold block_score=0.9 --reason "too many wrong blocks"
    """
    from millrace.errors import UserError
    from millrace.operations.sending import now_ms, who
    from millrace_apps.fraud.operations.changes import difference, read
    from millrace_apps.fraud.operations.changes import propose as send_proposal
    from millrace_apps.fraud.operations.tokens import without_numbers

    settings, topic = open_topic(bootstrap, root, overrides)
    name, now, reason = who(by, settings), now_ms(), without_numbers(settings, reason)
    changes = _changes(settings, thresholds, puts, removes, for_, name, now, reason)
    try:
        show_difference(difference(changes, settings, last, read(topic)))
    except UserError as error:
        typer.echo(f"what it would have done is not known: {error}")
    _tell(*send_proposal(topic, changes, name, now, reason))


@app.command("what-if")
def what_if_(
    thresholds: Thresholds = None,
    puts: Puts = None,
    removes: Removes = None,
    last: Last = "7d",
    out: Out = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """What changes would have done, over all decisions of a time. Nothing is sent.

    Example: millrace fraud changes what-if --threshold block_score=0.9 --last 30d --out report.json
    """
    from millrace.operations.report import write
    from millrace_apps.fraud.operations.changes import difference, read

    settings, topic = open_topic(bootstrap, root, overrides)
    changes = _changes(settings, thresholds, puts, removes, "36500d", "-", 0, "")
    found = difference(changes, settings, last, read(topic))
    write(out, found)
    show_difference(found)


@app.command()
def approve(
    proposal: Id,
    reason: Why = "",
    last: Last = "7d",
    by: By = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Agree, as a second person, with a proposal or with its undoing; shown first is what it would have done.

    Example: millrace fraud changes approve c-1f0a --by bob
    """
    from millrace.errors import UserError
    from millrace.operations.roster import Role
    from millrace.operations.sending import who
    from millrace_apps.fraud.operations.changes import difference, read, settle

    settings, topic = open_topic(bootstrap, root, overrides)
    name = who(by, settings, Role.approve)
    book = read(topic)
    if (found := book.proposals.get(proposal)) is not None and found.status == "waiting":
        _show(proposal, book)
        try:
            show_difference(difference(found.each(), settings, last, book))
        except UserError as error:
            typer.echo(f"what it would have done is not known: {error}")
    _tell(*settle(settings, "approve", proposal, name, reason))


@app.command()
def reject(
    proposal: Id,
    reason: Why = "",
    by: By = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Refuse a proposal that waits, or its undoing; who asked for it may take it back.

    Example: millrace fraud changes reject c-1f0a --reason "ask fraud desk first"
    """
    from millrace.operations.sending import who
    from millrace_apps.fraud.operations.changes import settle

    settings, _ = open_topic(bootstrap, root, overrides)
    _tell(*settle(settings, "reject", proposal, who(by, settings), reason))


@app.command()
def undo(
    proposal: Id,
    reason: Why = "",
    by: By = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Bring back what was before a proposal; where that lets more pass, a second person must agree.

    Example: millrace fraud changes undo c-1f0a --reason "missed a ring"
    """
    from millrace.operations.sending import who
    from millrace_apps.fraud.operations.changes import settle

    settings, _ = open_topic(bootstrap, root, overrides)
    _tell(*settle(settings, "undo", proposal, who(by, settings), reason))


@app.command("list", epilog="Example: millrace fraud changes list --all")
def list_(
    everything: Annotated[bool, typer.Option("--all", help="Those that are settled too.")] = False,
    shape: Shape = Format.table,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Proposals that wait, and thresholds that are not their defaults, by the control topic."""
    from millrace.operations.report import as_json
    from millrace_apps.fraud.operations.changes import read
    from millrace_apps.fraud.operations.governance import waiting

    _, topic = open_topic(bootstrap, root, overrides)
    book = read(topic)
    chosen = dict(book.proposals) if everything else dict(waiting(book.proposals))
    if shape is Format.json:
        typer.echo(as_json({"proposals": chosen, "thresholds": book.overrides, "refused": book.refused}))
        return
    for name in chosen:
        _show(name, book)
    for name, value in sorted(book.overrides.items()):
        typer.echo(f"threshold {name} = {value:g}")
    typer.echo(f"{len(chosen)} proposals; {len(book.refused)} control events were refused")


# -- what other commands use too -------------------------------------------------------------------


def open_topic(
    bootstrap: str | None, root: Path | None, overrides: list[str] | None
) -> tuple[FraudSettings, ControlTopic]:
    """Return the app's settings, and its control topic."""
    from millrace.runtime.commands import command_settings
    from millrace_apps.fraud.operations.changes import open_topic as topic_of
    from millrace_apps.fraud.settings import FraudSettings

    settings = command_settings(FraudSettings, "fraud", bootstrap=bootstrap, root=root, overrides=overrides)
    return settings, topic_of(settings)


def change_or_propose(topic: ControlTopic, change: Change, by: str, now_ms: int, reason: str) -> bool:
    """Send a change, or propose it where a second person must agree; return whether it holds already."""
    from millrace_apps.fraud.contracts.control_events import Propose
    from millrace_apps.fraud.operations.changes import name_of

    named = name_of([change], by, now_ms)

    def events(book: Any) -> list[Any]:
        if not book.law.why_two(change, book.kept, 0):
            return [change]
        return [Propose(named, [change], by, now_ms, reason)]

    book: Any
    book, (sent,) = topic.change(events)
    if isinstance(sent, Propose):
        _tell(named, book)
        return False
    return True


def show_difference(found: Difference) -> None:
    """Print what changes would have done."""
    from millrace_apps.fraud.operations.changes import compared

    typer.echo(f"{found.decisions:,} decisions of {found.days:.1f} days        now       then  difference")
    for what, before, after in compared(found):
        digits = "" if isinstance(before, int) else ".2f"
        typer.echo(f"  {what:<24} {before:>14,{digits}} {after:>14,{digits}} {after - before:>+14,{digits}}")
    if found.left_out:
        typer.echo(f"  {found.left_out:,} decisions by features of another version are left out")


# -- of these commands alone -----------------------------------------------------------------------


def _changes(
    settings: FraudSettings,
    thresholds: list[str] | None,
    puts: list[str] | None,
    removes: list[str] | None,
    for_: str,
    by: str,
    now_ms: int,
    reason: str,
) -> list[Change]:
    from millrace.errors import UserError
    from millrace.operations.sending import now_ms as clock_ms
    from millrace.rules import PutListEntry, RemoveListEntry
    from millrace.time.durations import to_ms
    from millrace_apps.fraud.operations.changes import thresholds_of
    from millrace_apps.fraud.operations.governed_book import check_value
    from millrace_apps.fraud.operations.tokens import without_numbers

    found = thresholds_of(thresholds or (), by, now_ms, reason)
    for text in (*(puts or ()), *(removes or ())):
        name, sign, value = text.partition("=")
        if not (name and sign and value):
            raise UserError(f"{text}: write LIST=VALUE, e.g. allowed=card:c-1")
        check_value(name, value)
    until = clock_ms() + to_ms(for_) if for_ != "36500d" else 253_402_300_799_999
    for text in puts or ():
        name, _, value = text.partition("=")
        found.append(PutListEntry(name, without_numbers(settings, value), until, by, now_ms, reason))
    for text in removes or ():
        name, _, value = text.partition("=")
        found.append(RemoveListEntry(name, without_numbers(settings, value), by, now_ms))
    if not found:
        raise UserError("nothing is changed: give --threshold, --put or --remove")
    return found


def _tell(name: str, book: GovernedControlState) -> None:
    """Print what has become of a proposal."""
    from millrace_apps.fraud.operations.changes import standing_of

    found = book.proposals[name]
    then = f": millrace fraud changes approve {name}" if found.status in ("waiting", "undoing") else ""
    typer.echo(f"{name} {standing_of(found)}{then}")


def _show(name: str, book: GovernedControlState) -> None:
    from millrace.time.moments import show_time
    from millrace_apps.fraud.operations.changes import change_text

    found = book.proposals[name]
    why = f": {found.reason}" if found.reason else ""
    agreed = f", agreed by {found.agreed_by}" if found.agreed_by else ""
    typer.echo(f"{name}  {found.status}  by {found.by} at {show_time(found.at_ms)}{agreed}{why}")
    for change in found.each():
        typer.echo(f"    {change_text(change, book)}")
