"""`millrace doctor`: can this machine run the apps, and if not, what to do."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from millrace.runtime.doctor import Finding, Machine

app = typer.Typer(help="Check this machine: Python, Java, memory, disk, ports, jars, broker.")

_STYLES = {"ok": "green", "warning": "yellow", "broken": "bold red"}


@app.command()
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Only what decides whether Spark starts.")] = False,
    bootstrap: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Kafka broker to reach.")] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine; exit code 0 if all is well (warnings allowed), 1 if something is broken."""
    from millrace.runtime.doctor import run_checks

    findings = run_checks(_machine(bootstrap, config), quick=quick)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)
    if any(finding.status == "broken" for finding in findings):
        raise typer.Exit(1)


def _machine(bootstrap: str | None, config: Path | None) -> Machine:
    from millrace.runtime.doctor import Machine
    from millrace.runtime.settings import AppSettings, load_settings

    overrides = [f"kafka.bootstrap={bootstrap}"] if bootstrap else []
    settings = load_settings(AppSettings, app="doctor", config=config, overrides=overrides)
    return Machine(
        bootstrap=settings.kafka.bootstrap,
        kafka_options=settings.kafka.options,
        storage=settings.storage.local_root,
        key_file=settings.state.encryption.key_file,
    )


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
