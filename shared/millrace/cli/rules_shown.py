"""Output of `millrace rules`: what-ifs, proposals, changes."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import typer

from millrace.console.report import print_table
from millrace.errors import UserError
from millrace.operations.app_rules import AppRules, History, WhatIf
from millrace.operations.control_topic import AUDIT, ControlState
from millrace.rules import Entry, PublishRule, Rule, Version
from millrace.runtime.commands import app_table
from millrace.runtime.settings import AppSettings
from millrace.time.durations import to_ms
from millrace.time.moments import show_time

#: A line of progress is worth it from so many rows on.
_MANY: Final = 50_000


def tried(of: AppRules, rules: list[Rule], settings: AppSettings, history: History) -> WhatIf:
    """Return what rules would have done, showing how far it is where that takes long.

    Raises:
        UserError: The app cannot tell, or there is nothing to try them on.
    """
    if of.backtest is None:
        raise UserError(f"{of.app} cannot tell what rules would have done")
    with typer.progressbar(length=1, label="the past", hidden=True) as bar:

        def say(done: int, of_all: int) -> None:
            bar.length, bar.hidden = of_all, of_all < _MANY
            bar.update(done - bar.pos)

        return of.backtest(rules, settings, history._replace(say=say))


def show_tried(
    of: AppRules, rules: list[Rule], settings: AppSettings, last: str | None, most: int | None = None
) -> None:
    """Show what rules would have done in the last days, if that is asked for and there are not too many rows.

    Raises:
        UserError: The app cannot tell, there is nothing to try them on, or too much.
    """
    if last is not None and rules and (last_ms := to_ms(last)):
        show_what_if(tried(of, rules, settings, History(last_ms=last_ms, most=most)))


def show_what_if(found: WhatIf) -> None:
    """Print what rules would have done."""
    left = [name for name in ("rule", "action") if name in found.columns]
    print_table(found.title, found.columns, found.rows, right=[c for c in found.columns if c not in left])


def show_proposal(of: AppRules, book: ControlState, rule: str, version: Version) -> None:
    """Show what is asked for, by whom and why, and what is in force now."""
    entry = book.entry(rule)
    for other in entry.versions:
        if other.number != version.number and other.plan[-1].state == "active":
            typer.echo(f"in force: v{other.number} {other.rule.action} {of.shown(other.rule)}")
    typer.echo(f"proposed: v{version.number} {version.rule.action} {of.shown(version.rule)}")
    for said in reversed(book.said):
        event = said.event
        about = event.rule.id if isinstance(event, PublishRule) else getattr(event, "id", None)
        asks = getattr(event, "state", None) == "active"
        if about == rule and asks and event.version == version.number and not said.refused:
            typer.echo(f"asked for by {event.by}: {event.reason or 'no reason given'}")
            return


def show_state(of: AppRules, book: ControlState, rule: str, number: int) -> None:
    """Print which state a version has now, and what it waits for."""
    versions = book.entry(rule).versions
    found = next((v for v in versions if v.number == number), versions[-1])
    waits = f", waits for approval (asked by {found.asked_by})" if found.asked_by else ""
    typer.echo(f"{rule}: version {found.number} {version_row(found)['state']}{waits}")
    if waits:
        again = f"{rule} --version {found.number}"
        typer.echo(
            f"  a second person: millrace rules {of.app} approve {again}, which shows what it would do"
        )


def listed(book: ControlState, rule: str | None) -> dict[str, Any]:
    """Return the rules, or one of them, with versions and history, and what was refused.

    Raises:
        RuleError: There is no rule of this id.
    """
    rows = [
        {
            "id": name,
            "versions": [version_row(v) for v in entry.versions],
            "audit": [plain(a) for a in entry.audit],
        }
        for name, entry in _chosen(book, rule).items()
    ]
    return {"rules": rows, "refused": book.refused}


def show_list(of: AppRules, book: ControlState, rule: str | None, built_in: list[Rule]) -> None:
    """Print the rules with their versions and states; one rule with its history.

    Raises:
        RuleError: There is no rule of this id.
    """
    chosen = _chosen(book, rule)
    for one in built_in:
        entry = book.rules.get(one.id)
        steps = () if entry is None else (step for v in entry.versions for step in v.plan)
        state = "replaced" if any(step.state not in ("draft", "shadow") for step in steps) else "active"
        typer.echo(f"{one.id:<24} file {state:<10} {one.action:<8} {of.shown(one)}")
    for name, entry in chosen.items():
        for v in entry.versions:
            row = version_row(v)
            typer.echo(f"{name:<24} v{v.number:<3} {row['state']:<10} {v.rule.action:<8} {of.shown(v.rule)}")
        for line in entry.audit if rule else ():
            typer.echo(f"    {show_time(line.at_ms)}  {line.what:<10} v{line.version:<3} by {line.by}")
    typer.echo(f"{len(chosen)} rules; {len(book.refused)} control events were refused")


def _chosen(book: ControlState, rule: str | None) -> dict[str, Entry]:
    return {rule: book.entry(rule)} if rule else dict(sorted(book.rules.items()))


def version_row(version: Version) -> dict[str, Any]:
    """Return a version as a row of a list: its number, its state and from when on, who has asked for it."""
    steps = [f"{s.state} from {show_time(s.from_ms)}" if s.from_ms else s.state for s in version.plan]
    return {
        "version": version.number,
        "state": steps[-1] if len(steps) == 1 or not version.plan[-1].from_ms else ", ".join(steps[-2:]),
        "asked_by": version.asked_by,
        "rule": plain(version.rule),
    }


def plain(record: Any) -> dict[str, Any]:
    """Return a struct's fields, also of one that is packed as an array."""
    return {name: getattr(record, name) for name in record.__struct_fields__}


def audited(settings: AppSettings, subject: str | None) -> list[dict[str, Any]]:
    """Return what commands have sent, oldest first, each with its reason.

    Args:
        settings: The app's settings.
        subject: Only of this rule or list; ``None``: of all.

    Raises:
        UserError: No command has sent anything.
    """
    table = app_table(settings.storage.path(), AUDIT)
    if table is None:
        raise UserError(f"there is no table {settings.storage.path('tables', AUDIT)}: nothing has been sent")
    rows: list[dict[str, Any]] = [
        row | {"reason": msgspec.json.decode(row["event"]).get("reason", "")}
        for row in table.to_pylist()
        if subject is None or row["subject"] == subject
    ]
    return sorted(rows, key=lambda row: row["at_ms"] or 0)


def show_audit(rows: list[dict[str, Any]]) -> None:
    """Print who has changed what, when and why."""
    for row in rows:
        what = f"{row['what']} {row['subject']}" + (f" v{row['version']}" if row["version"] else "")
        state = f" {row['state']}" if row["state"] else ""
        why = f": {row['reason']}" if row["reason"] else ""
        typer.echo(f"{show_time(row['at_ms'] or 0)}  {what}{state} by {row['by'] or '-'}{why}")
    typer.echo(f"{len(rows)} changes")
