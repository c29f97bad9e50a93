"""`millrace contracts generate|check|show`: what events look like, in git and compatible."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import Format, Shape, print_as
from millrace.contracts.compatibility import Mode

app = typer.Typer(no_args_is_help=True, help="The contracts of an app's events: JSON Schemas in git.")

AppNames = Annotated[
    list[str] | None, typer.Argument(metavar="[APP...]", help="Apps; by default all that register contracts.")
]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", file_okay=False, help="Where the files are; default `schemas` beside the app."),
]


class Form(StrEnum):
    """What a contract is shown as."""

    schema = "schema"
    ddl = "ddl"
    avro = "avro"
    proto = "proto"


@app.command(epilog="Example: millrace contracts generate fraud")
def generate(
    names: AppNames = None,
    folder: Folder = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Write every file anew, also one that says something else.")
    ] = False,
) -> None:
    """Write the JSON Schema of every event type and version that has none in git."""
    from millrace.contracts import folder_of, load_contracts
    from millrace.contracts import generate as write

    for name in _apps(names, folder):
        place = folder or folder_of(name)
        for contract, done in write(load_contracts(name), place, replace=replace):
            typer.echo(f"{done:<9}  {place / contract.file}")


@app.command(epilog="Example: millrace contracts check")
def check(
    names: AppNames = None,
    folder: Folder = None,
    mode: Annotated[
        Mode,
        typer.Option(help="backward: new reads old; forward: old reads new; full: both."),
    ] = Mode.backward,
    numbered: Annotated[
        bool, typer.Option("--protobuf", help="Fields must also keep their places: Protobuf's numbers.")
    ] = False,
    shape: Shape = Format.table,
) -> None:
    """Compare the classes with what is in git, and every version with the one before.

    Exit codes: 0 all is well, 1 something is wrong (a line each), 2 something you can put right.
    """
    from millrace.contracts import check as find
    from millrace.contracts import folder_of, load_contracts
    from millrace.runtime.apps import load_app

    wrong, told = 0, {}
    for name in _apps(names, folder):
        contracts = load_contracts(name)
        narrowed = load_app(name).narrowed
        place = folder or folder_of(name)
        findings = find(contracts, place, mode, numbered=numbered, narrowed=narrowed)
        wrong += len(findings)
        kept = [str(contract.name) for contract in contracts]
        told[name] = {"contracts": kept, "mode": mode, "wrong": [str(finding) for finding in findings]}
        lines = [f"{name}: {finding}" for finding in findings]
        if not findings:
            lines = [f"ok  {name}: {', '.join(kept)}, {mode} compatible"]
            lines += (f"    {contract} has narrower bounds: {why}" for contract, why in narrowed.items())
        if shape is Format.table:
            typer.echo("\n".join(lines))
    print_as(shape, told, str)
    if wrong:
        raise typer.Exit(1)


@app.command(epilog="Example: millrace contracts show fraud payments")
def show(
    name: Annotated[str, typer.Argument(metavar="APP")],
    contract: Annotated[
        str | None, typer.Argument(metavar="[CONTRACT]", help="E.g. transaction.v1; without it, all by name.")
    ] = None,
    form: Annotated[
        Form, typer.Option("--as", help="JSON Schema, Spark's DDL, Avro schema or Protobuf file.")
    ] = Form.schema,
    shape: Shape = Format.table,
) -> None:
    """Print a contract as the class says it now, or list those of an app."""
    from millrace.contracts import ContractError, ContractName, load_contracts

    contracts = {c.name: c for c in load_contracts(name)}
    if contract is None:
        listed = [str(one) for one in contracts]
        print_as(shape, listed, lambda: "\n".join(listed))
        return
    wanted = ContractName.parse(contract)
    if wanted not in contracts:
        known = ", ".join(str(one) for one in contracts)
        raise ContractError(f"{name} has no contract {wanted}; it has {known}")
    if shape is Format.json and form not in (Form.schema, Form.avro):
        raise ContractError(f"{form} is no JSON: leave --json out, or take --as schema or avro")
    typer.echo(_shown(contracts[wanted].type, contracts[wanted].schema(), form).rstrip("\n"))


def _shown(tp: object, schema: dict[str, object], form: Form) -> str:
    import json

    if form is Form.ddl:
        from millrace.contracts.ddl import spark_ddl

        return spark_ddl(schema)
    if form is Form.avro:
        from millrace.contracts.avro import avro_schema

        return json.dumps(avro_schema(tp), indent=2, ensure_ascii=False)
    if form is Form.proto:
        from millrace.contracts.protobuf import proto_text

        text: str = proto_text(tp)
        return text
    from millrace.contracts.schema import dumps

    return dumps(schema)


def _apps(names: list[str] | None, folder: Path | None) -> list[str]:
    from millrace.errors import UserError
    from millrace.runtime.apps import load_app
    from millrace.runtime.installed import list_apps

    if folder is not None and len(names or ()) != 1:
        raise UserError("--folder is for one app: name it")
    return names or [name for name in list_apps() if load_app(name).contracts]
