"""`millrace doctor`: can this machine run the apps, do their topics' times fit, and if not, what to do."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.options import Format, Shape
from millrace.errors import MillraceError, UserError

if TYPE_CHECKING:
    from millrace.runtime.doctor import Finding, Machine
    from millrace.runtime.settings import AppSettings

app = typer.Typer(help="Check this machine (Python, Java, memory, disk, ports, jars, broker) and topics.")

_STYLES = {"ok": "green", "warning": "yellow", "broken": "bold red"}


@app.command(epilog="Example: millrace doctor fraud --quick")
def doctor(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[APP]...", help="Whose topics are looked at. Default: all that exist."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only what decides whether Spark starts.")] = False,
    bootstrap: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Kafka broker to reach.")] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings file.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="A setting, e.g. -s kafka.bootstrap=host:9092.")
    ] = None,
    shape: Shape = Format.table,
) -> None:
    """Check this machine, and the topics of apps where a broker is configured.

    Of the newest 2,000 records of each topic that an app reads, how long they took to arrive, and which
    stream.out_of_orderness and stream.clock_skew fit. Exit code 0 if all is well (warnings allowed), 1 if
    something is broken.
    """
    from millrace.runtime.doctor import run_checks
    from millrace.runtime.settings_sources import FromOption

    told = [FromOption("--bootstrap", "kafka.bootstrap", bootstrap)] if bootstrap else []
    sets = [*told, *(overrides or [])]
    machine = _machine(config, sets, names or [])
    findings = run_checks(machine, quick=quick)
    if not quick:
        findings.append(_operators(config, sets, names or []))
    if not quick and machine.bootstrap and any(f.name == "broker" and f.status == "ok" for f in findings):
        findings += _topics(names or [], config, sets)
    elif names and not machine.bootstrap:
        raise UserError(f"no broker is configured for {', '.join(names)}: give --bootstrap HOST:PORT")
    if shape is Format.json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)
    if any(finding.status == "broken" for finding in findings):
        raise typer.Exit(1)


def _settings(config: Path | None, sets: list[str], names: list[str]) -> AppSettings:
    from millrace.runtime.apps import load_app
    from millrace.runtime.settings import AppSettings, load_settings

    # Of a single app the settings may be its own, its broker among them.
    kind, of = (load_app(names[0]).settings, names[0]) if len(names) == 1 else (AppSettings, "doctor")
    return load_settings(kind, app=of, config=config, overrides=sets)


def _machine(config: Path | None, sets: list[str], names: list[str]) -> Machine:
    from millrace.runtime.doctor import Machine
    from millrace.runtime.settings_sources import config_path

    settings = _settings(config, sets, names)
    return Machine(
        bootstrap=settings.kafka.bootstrap,
        kafka_options=settings.kafka.options,
        storage=settings.storage.local_root,
        key_file=settings.state.encryption.key_file,
        config=config_path(config, os.environ),
    )


def _operators(config: Path | None, sets: list[str], names: list[str]) -> Finding:
    """Return whether changing something takes an operator."""
    from millrace.operations.roster import roster_file
    from millrace.operations.sending import now_ms
    from millrace.runtime.doctor import Finding, refused

    file = roster_file(_settings(config, sets, names))
    try:
        roster = file.read()
    except MillraceError as error:
        return refused("operators", error)
    if roster is None:
        return Finding("operators", "ok", f"none ({file.path}): who changes something goes by any name")
    ended = [one.name for one in roster.operators if one.has_ended(now_ms())]
    found = f"{len(roster.operators)} in {file.path}"
    if ended:
        advice = "run: millrace operators renew NAME, or remove NAME"
        return Finding("operators", "warning", f"{found}; the token of {', '.join(ended)} has ended", advice)
    return Finding("operators", "ok", found)


def _topics(names: list[str], config: Path | None, sets: list[str]) -> list[Finding]:
    """Return what is found in the topics of apps; one whose settings do not fit must not hide the others."""
    from millrace.runtime.apps import load_app
    from millrace.runtime.doctor import refused
    from millrace.runtime.installed import list_apps
    from millrace.runtime.settings import load_settings
    from millrace.runtime.topic_checks import app_findings

    findings: list[Finding] = []
    for name in names or list_apps():
        try:
            app = load_app(name)
            settings = load_settings(app.settings, app=name, config=config, overrides=sets)
            findings += app_findings(app, settings, only_if_used=not names)
        except MillraceError as error:
            findings.append(refused(f"{name}: topics", error))
    return findings


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        for finding in findings:
            advice = f" -> {finding.advice}" if finding.advice else ""
            typer.echo(f"{finding.status:<8}{finding.name}: {finding.found}{advice}")
        return
    table = Table(title="millrace doctor", title_justify="left")
    for column in ("", "check", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        mark = Text(finding.status, style=_STYLES[finding.status])
        table.add_row(mark, finding.name, Text(finding.found), Text(finding.advice))
    console.print(table)
