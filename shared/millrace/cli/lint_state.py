"""`millrace lint-state TARGET`: the states of its processes that grow without a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import Format, Shape

if TYPE_CHECKING:
    from millrace.process import KeyedProcess

app = typer.Typer(help="List the states that grow without a bound.", no_args_is_help=True)

_ADVICE = "give it a ttl, or clear() it where its key is done (a timer, a closing event)"


@app.command("lint-state", epilog="Example: millrace lint-state fraud --strict")
def lint_state(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="APP|MODULE:CLASS...", help="Apps by name, or processes as module:Class."),
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there is a warning.")] = False,
    shape: Shape = Format.table,
) -> None:
    """List the states of processes that have no time to live: they grow with every new key.

    Broadcast state is left out: it has no keys, and as many entries as control events put into it.
    Exit codes: 0 done, 1 a warning and --strict, 2 something you can put right.
    """
    findings = [finding for target in targets for finding in _states(target)]
    unbounded = [f for f in findings if not f["bounded"]]
    if shape is Format.json:
        import json

        typer.echo(json.dumps(findings, indent=2))
    else:
        for found in unbounded:
            typer.echo(
                f"warning: {found['process']}.{found['state']} ({found['kind']} of {found['type']}): "
                f"unbounded growth, it has no time to live: {_ADVICE}"
            )
        typer.echo(f"{len(findings)} states, {len(unbounded)} without a bound")
    if strict and unbounded:
        raise typer.Exit(1)


def unbounded_states(target: str) -> dict[str, list[str]]:
    """Return the states without a time to live of an app, by process as a checkpoint names it.

    Args:
        target: An app; of anything else nothing is known.
    """
    from millrace.runtime.installed import list_apps

    if target not in list_apps():
        return {}
    return {
        process.name: [s.name for s in process.states if s.kind != "broadcast" and not s.expires]
        for process in _processes(target)
    }


def _states(target: str) -> list[dict[str, Any]]:
    """Return every keyed state of the processes of a target."""
    from millrace.state.specs import type_name

    return [
        {
            "target": target,
            "process": process.__name__,
            "state": spec.name,
            "kind": f"paged {spec.kind}" if spec.paged else spec.kind,
            "type": type_name(spec.type),
            "ttl_ms": "per_write" if spec.per_write else spec.ttl_ms,
            "ttl_time": spec.ttl_time if spec.expires else None,
            "bounded": spec.expires,
        }
        for process in _processes(target)
        for spec in process.states
        if spec.kind != "broadcast"
    ]


def _processes(target: str) -> list[type[KeyedProcess[Any, Any]]]:
    """Return the processes of an app, or the one that is named."""
    from millrace.errors import UserError
    from millrace.process import KeyedProcess

    if ":" in target:
        module, _, name = target.partition(":")
        found = getattr(_imported(module), name, None)
        cls = found if isinstance(found, type) else type(found)
        if not issubclass(cls, KeyedProcess):
            raise UserError(f"{target} is no process: name a KeyedProcess as module:Class")
        return [cls]
    package = _package_of(target)
    _import_all(package)
    inside = [c for c in _subclasses(KeyedProcess) if f"{c.__module__}.".startswith(f"{package}.")]
    return sorted(inside, key=lambda c: (c.__module__, c.__qualname__))


def _package_of(name: str) -> str:
    """Return the package in which an app stands."""
    from millrace.runtime.apps import load_app
    from millrace.runtime.installed import list_apps

    load_app(name)  # refuses what is no app
    module = list_apps()[name].partition(":")[0]
    return module.rpartition(".")[0] or module


def _import_all(package: str) -> None:
    """Import a package with its modules, so that its processes are known."""
    import pkgutil

    module = _imported(package)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), f"{package}."):
        if not found.name.endswith(".__main__"):
            _imported(found.name)


def _imported(module: str) -> Any:
    import importlib

    from millrace.errors import UserError

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{module} cannot be imported: {error}") from error


def _subclasses(cls: type[Any]) -> set[type[Any]]:
    direct: list[type[Any]] = cls.__subclasses__()
    return {*direct, *(c for sub in direct for c in _subclasses(sub))}
