"""`millrace fraud rules validate|backtest|publish|activate|approve|pause|delete|rollback|list`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import Overrides

if TYPE_CHECKING:
    from apps.fraud.backtest import Report
    from apps.fraud.control_topic import Book
    from apps.fraud.events import Control
    from apps.fraud.settings import FraudSettings
    from millrace.rules import Rule

app = typer.Typer(no_args_is_help=True, help="Rules: check, test on history, publish, take back, look.")


class Format(StrEnum):
    """How what was found is given."""

    table = "table"
    json = "json"


class Start(StrEnum):
    """The state in which a version begins."""

    draft = "draft"
    shadow = "shadow"
    active = "active"


File = Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON: a list of rules.")]
Id = Annotated[str, typer.Argument(metavar="RULE", help="Its id.")]
Version = Annotated[int | None, typer.Option(help="Which version; default the newest.")]
By = Annotated[str | None, typer.Option(help="Who does it; default the user of this session.")]
Bootstrap = Annotated[str | None, typer.Option(help="Kafka broker (host:port); default the detached one.")]
Root = Annotated[Path | None, typer.Option(help="The app's folder; default its storage.root.")]
From = Annotated[str | None, typer.Option("--from", help="Event time (2026-01-31T12:00); default at once.")]
Shape = Annotated[Format, typer.Option("--format", "-f", help="table or json.")]


@app.command()
def validate(file: File, overrides: Overrides = None) -> None:
    """Check a file of rules: syntax, types, windows, actions; says file, line and column."""
    rules = _checked(file)
    settings = _settings(None, None, overrides)
    _warn_of_reach(rules, settings)
    typer.echo(f"{len(rules)} rules are right")


@app.command()
def language() -> None:
    """What rules can say: fields and functions."""
    from apps.fraud.rulebook import LANGUAGE

    for text, kind, about in LANGUAGE.describe():
        typer.echo(f"{text:<52} {kind:<18} {about}")


@app.command()
def backtest(
    file: File,
    table: Annotated[
        Path | None, typer.Option(help="The Delta table of transactions; default the app's.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Labels: Delta table, Parquet or JSON lines; default the app's.")
    ] = None,
    last: Annotated[str | None, typer.Option(help="Only the last so long, e.g. 30d.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the report here as JSON.")] = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """What rules would have done: alerts, precision and amount on the transactions of the past."""
    import time

    import msgspec

    from apps.fraud.backtest import backtest as run
    from apps.fraud.backtest import columns_of, read_labels, read_table

    rules = _checked(file)
    settings = _settings(None, root, overrides)
    path = table or settings.storage.path("tables", "transactions")
    started = time.perf_counter()
    read = read_table(path, sorted(columns_of(rules)), from_ms=None, until_ms=None)
    from_ms = _start(last, read)
    known = labels or _own_labels(settings)
    # A table of its own without a label says nothing, so also not that there was no fraud.
    found = (None if known is None else read_labels(known)) or (None if labels is None else {})
    with typer.progressbar(length=len(read), label="transactions", hidden=len(read) < 50_000) as bar:
        at = 0

        def progress(done: int) -> None:
            nonlocal at
            bar.update(done - at)
            at = done

        report = run(rules, read, found, from_ms=from_ms, progress=progress)
    report.seconds = round(time.perf_counter() - started, 3)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    _print_report(report)


@app.command()
def publish(
    file: File,
    state: Annotated[Start, typer.Option(help="The state in which the rules begin.")] = Start.shadow,
    by: By = None,
    from_: From = None,
    only: Annotated[list[str] | None, typer.Option(help="Only the rule of this id; may be repeated.")] = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Publish new versions of rules; those that say what the newest version says are left out."""
    from millrace.rules import PublishRule

    rules = [rule for rule in _checked(file) if not only or rule.id in only]
    settings = _settings(bootstrap, root, overrides)
    _warn_of_reach(rules, settings)
    who, when, begins = _who(by), _now_ms(), _time_ms(from_)

    def events(book: Book) -> list[Control]:
        found: list[Control] = []
        for rule in rules:
            kept = book.rules.get(rule.id)
            if kept and kept.versions[-1].rule == rule and kept.versions[-1].plan[-1].state != "deleted":
                typer.echo(f"{rule.id}: unchanged, version {kept.versions[-1].number}")
                continue
            version = book.next_version(rule.id)
            found.append(PublishRule(rule, version, who, when, state.value, begins))
        return found

    book, sent = _send(settings, events)
    for event in sent:
        assert isinstance(event, PublishRule)  # noqa: S101 - made above
        _tell(book, event.rule.id, event.version)


@app.command()
def activate(
    rule: Id,
    version: Version = None,
    state: Annotated[Start, typer.Option(help="active, or back to shadow or draft.")] = Start.active,
    by: By = None,
    from_: From = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Make a version active; one that blocks waits in shadow until a second person approves."""
    _set_state(rule, version, state.value, by, from_, _settings(bootstrap, root, overrides))


@app.command()
def pause(
    rule: Id,
    version: Version = None,
    by: By = None,
    from_: From = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Take a version out of force; it can be activated again."""
    _set_state(rule, version, "paused", by, from_, _settings(bootstrap, root, overrides))


@app.command()
def delete(
    rule: Id,
    by: By = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Take a rule out of force for good, with all its versions."""
    _set_state(rule, None, "deleted", by, None, _settings(bootstrap, root, overrides))


@app.command()
def approve(
    rule: Id,
    version: Version = None,
    by: By = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Agree, as a second person, that a version which waits for it becomes active."""
    from millrace.rules import ApproveRule

    settings = _settings(bootstrap, root, overrides)
    who, when = _who(by), _now_ms()

    def events(book: Book) -> list[Control]:
        number = version or book.next_version(rule) - 1
        return [ApproveRule(rule, max(1, number), who, when)]

    book, _ = _send(settings, events)
    _tell(book, rule, version)


@app.command()
def rollback(
    rule: Id,
    to: Annotated[int | None, typer.Option(help="Which version; default the one active before.")] = None,
    by: By = None,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """Put the version that was active before in force again."""
    from millrace.errors import UserError
    from millrace.rules import RollbackRule

    settings = _settings(bootstrap, root, overrides)
    who, when = _who(by), _now_ms()

    def events(book: Book) -> list[Control]:
        versions = book.entry(rule).versions
        earlier = [v for v in versions if v.was_active and v.plan[-1].state != "active"]
        if to is None and not earlier:
            raise UserError(f"{rule}: no other version has been active")
        return [RollbackRule(rule, to or earlier[-1].number, who, when)]

    book, sent = _send(settings, events)
    assert isinstance(sent[0], RollbackRule)  # noqa: S101 - made above
    _tell(book, rule, sent[0].to_version)


@app.command("list")
def list_(
    rule: Annotated[str | None, typer.Argument(metavar="[RULE]", help="One rule with its history.")] = None,
    shape: Shape = Format.table,
    bootstrap: Bootstrap = None,
    root: Root = None,
    overrides: Overrides = None,
) -> None:
    """The rules with their versions and states, by the control topic."""
    from apps.fraud.control_topic import ControlTopic

    book = ControlTopic(_settings(bootstrap, root, overrides)).read()
    chosen = {rule: book.entry(rule)} if rule else dict(sorted(book.rules.items()))
    if shape is Format.json:
        import msgspec

        rows = [
            {
                "id": id,
                "versions": [_version_row(v) for v in e.versions],
                "audit": [_plain(a) for a in e.audit],
            }
            for id, e in chosen.items()
        ]
        typer.echo(json.dumps(msgspec.to_builtins({"rules": rows, "refused": book.refused}), indent=2))
        return
    for id, entry in chosen.items():
        for v in entry.versions:
            row = _version_row(v)
            typer.echo(f"{id:<24} v{v.number:<3} {row['state']:<10} {v.rule.action:<8} {v.rule.when}")
        for line in entry.audit if rule else ():
            typer.echo(f"    {_iso(line.at_ms)}  {line.what:<10} v{line.version:<3} by {line.by}")
    typer.echo(f"{len(chosen)} rules; {len(book.refused)} control events were refused")


def _set_state(
    rule: str, version: int | None, state: Any, by: str | None, from_: str | None, settings: FraudSettings
) -> None:
    from millrace.rules import SetRuleState

    who, when, begins = _who(by), _now_ms(), _time_ms(from_)

    def events(book: Book) -> list[Control]:
        number = version or max(v.number for v in book.entry(rule).versions)
        return [SetRuleState(rule, number, state, who, when, begins)]

    book, sent = _send(settings, events)
    assert isinstance(sent[0], SetRuleState)  # noqa: S101 - made above
    _tell(book, rule, sent[0].version)


def _send(settings: FraudSettings, make: Any) -> tuple[Book, list[Control]]:
    """Send what ``make`` makes of what is in force now, if all of it is accepted; return what is then."""
    from apps.fraud.control_topic import ControlTopic

    topic = ControlTopic(settings)
    book = topic.read()
    events: list[Control] = make(book)
    for event in events:
        book.apply(event)  # what is refused here would be refused by the stream
    if events:
        topic.send(events)
    return book, events


def _tell(book: Book, rule: str, version: int | None) -> None:
    versions = book.entry(rule).versions
    found = next((v for v in versions if v.number == version), versions[-1])
    waits = f", waits for approval (asked by {found.asked_by})" if found.asked_by else ""
    typer.echo(f"{rule}: version {found.number} {_version_row(found)['state']}{waits}")


def _version_row(version: Any) -> dict[str, Any]:
    steps = [f"{s.state} from {_iso(s.from_ms)}" if s.from_ms else s.state for s in version.plan]
    return {
        "version": version.number,
        "state": steps[-1] if len(steps) == 1 or not version.plan[-1].from_ms else ", ".join(steps[-2:]),
        "asked_by": version.asked_by,
        "rule": _plain(version.rule),
    }


def _plain(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _checked(file: Path) -> list[Rule]:
    from apps.fraud.rulebook import LANGUAGE
    from millrace.errors import UserError
    from millrace.rules import check_rules

    rules, problems = check_rules(LANGUAGE, file)
    for problem in problems[:-1]:
        typer.echo(problem, err=True)
    if problems:
        raise UserError(problems[-1])
    return rules


def _warn_of_reach(rules: list[Rule], settings: FraudSettings) -> None:
    from apps.fraud.app import app
    from apps.fraud.rulebook import check_reach
    from millrace.runtime.plans import settled

    stages = settled(app, settings).features.stages
    for rule in rules:
        for problem in check_reach(rule, stages):
            typer.echo(f"warning: rule {rule.id!r}: {problem}", err=True)


def _settings(bootstrap: str | None, root: Path | None, overrides: list[str] | None) -> FraudSettings:
    from apps.fraud.settings import FraudSettings
    from millrace.runtime.commands import command_settings

    return command_settings(FraudSettings, "fraud", bootstrap=bootstrap, root=root, overrides=overrides)


def _own_labels(settings: FraudSettings) -> Path | None:
    path = Path(settings.storage.path("tables", "labels"))
    return path if path.is_dir() else None


def _start(last: str | None, table: Any) -> int | None:
    from millrace.time.durations import to_ms

    if last is None:
        return None
    newest: int = table.column("event_time_ms")[len(table) - 1].as_py()
    return newest - to_ms(last) + 1


def _print_report(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(
        title=f"{report.transactions:,} transactions, {report.days:.1f} days, {report.seconds:.1f} s"
    )
    for name in (
        "rule",
        "action",
        "alerts",
        "a day",
        "new",
        "cards",
        "amount",
        "frauds",
        "precision",
        "recall",
    ):
        shown.add_column(name, justify="left" if name in ("rule", "action") else "right")
    for o in (*report.rules, report.together):
        shares = (f"{v:.1%}" if v is not None else "-" for v in (o.precision, o.recall))
        frauds = "-" if o.frauds is None else f"{o.frauds:,}"
        shown.add_row(o.rule, o.action, f"{o.alerts:,}", f"{o.alerts_per_day:,.1f}", f"{o.new:,}",
                      f"{o.cards:,}", f"{o.amount:,.2f}", frauds, *shares)  # fmt: skip
    Console().print(shown)


def _who(by: str | None) -> str:
    import getpass

    return by or getpass.getuser()


def _now_ms() -> int:
    import time

    return time.time_ns() // 1_000_000


def _iso(at_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time_ms(text: str | None) -> int:
    from datetime import UTC, datetime

    from millrace.errors import UserError

    if text is None:
        return 0
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"'{text}' is no time: write for example 2026-01-31T12:00") from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
