"""`millrace config show|validate`: the settings an app would run with, and where each comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import ConfigFile, Format, Overrides, Shape, print_as

if TYPE_CHECKING:
    from millrace.runtime.settings import AppSettings

app = typer.Typer(no_args_is_help=True, help="Show and validate the settings of an app.")

AppName = Annotated[
    str | None, typer.Argument(metavar="[APP]", help="An app's name; without it, what all apps share.")
]

#: Stands for the app's name where none is given.
NO_APP = "APP"


@app.command(epilog="Example: millrace config show fraud --origin")
def show(
    name: AppName = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    shape: Shape = Format.table,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print YAML, as millrace.yaml takes it.")] = False,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
) -> None:
    """Show every setting with its value; secrets are shown as ********."""
    from millrace.runtime.settings import origins, redacted

    settings = _load(name, config, overrides)
    values, places = redacted(settings), origins(settings)
    if shape is Format.json:
        typer.echo(json.dumps({"settings": values, "origins": places} if origin else values, indent=2))
    elif as_yaml:
        _print_yaml(name, values, places if origin else {})
    else:
        _print_plain(values, places if origin else {})


@app.command(epilog="Example: millrace config validate fraud --config millrace.yaml")
def validate(
    name: AppName = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    shape: Shape = Format.table,
) -> None:
    """Check the settings of APP, or of every app; exit code 2 and a line per problem."""
    from millrace.runtime.installed import list_apps

    found = []
    for one in [name] if name else [None, *list_apps()]:
        settings = _load(one, config, overrides)
        found.append({"app": one or "common", "ok": True, "settings": _summary(settings)})
        if shape is Format.table:
            typer.echo("ok  {app}: {settings}".format(**found[-1]))
    print_as(shape, found, str)


def _load(name: str | None, config: Path | None, overrides: list[str] | None) -> AppSettings:
    from millrace.runtime.settings import AppSettings, load_settings

    cls: type[AppSettings] = AppSettings
    if name:
        from millrace.runtime.apps import load_app

        cls = load_app(name).settings
    return load_settings(cls, app=name or NO_APP, config=config, overrides=overrides or ())


def _summary(settings: AppSettings) -> str:
    from millrace.runtime.settings import DEFAULT, origins

    places = origins(settings)
    given = [place for place in places.values() if place != DEFAULT]
    return (
        f"{len(places)} settings, {len(given)} of them given"
        if given
        else f"{len(places)} settings, all defaults"
    )


def _print_yaml(name: str | None, values: dict[str, Any], places: dict[str, str]) -> None:
    import yaml

    if places:
        typer.echo("".join(f"# {key}: {place}\n" for key, place in places.items()), nl=False)
    typer.echo(yaml.safe_dump({name or "common": values}, sort_keys=False), nl=False)


def _print_plain(values: dict[str, Any], places: dict[str, str]) -> None:
    from millrace.runtime.settings import flat

    lines = {key: "-" if value in (None, {}, []) else str(value) for key, value in flat(values).items()}
    keys, texts = (max(map(len, column)) for column in (lines, lines.values()))
    for key, text in lines.items():
        place = f"  {places[key]}" if places else ""
        typer.echo(f"{key:<{keys}}  {text:<{texts}}{place}".rstrip())
