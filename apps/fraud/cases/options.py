"""Options of the commands over cases, and the data that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from millrace.dashboard.data import AppData
    from millrace_apps.fraud.cases.app import FraudCasesSettings
    from millrace_apps.fraud.cases.store import CaseView

Root = Annotated[
    Path | None,
    typer.Option(help="The fraud app's folder; default its storage.root, else its last demo."),
]
Bootstrap = Annotated[str | None, typer.Option(help="Kafka broker (host:port) for dispositions.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="A setting of the case work, e.g. cases.capacity=50."
    ),
]
CaseId = Annotated[str, typer.Argument(metavar="CASE", help="Its id, or the first characters of it.")]
Queue = Annotated[str | None, typer.Option("--queue", help="Only the queue of this name.")]
Note = Annotated[str, typer.Option(help="What else is to be known.")]
At = Annotated[int | None, typer.Option(help="When, UTC milliseconds; default now.")]


def settings_of(root: Path | None, bootstrap: str | None, overrides: list[str] | None) -> FraudCasesSettings:
    """Return the settings of the case work, with what the command was told."""
    from millrace.runtime.settings import load_settings
    from millrace.runtime.settings_sources import FromOption
    from millrace_apps.fraud.cases.app import FOLDER, NAME, FraudCasesSettings

    sets = [f"storage.root={_fraud_root(root) / FOLDER}", *(overrides or ())]
    return load_settings(
        FraudCasesSettings,
        app=NAME,
        overrides=[*sets, *([FromOption("--bootstrap", "kafka.bootstrap", bootstrap)] if bootstrap else [])],
    )


def _fraud_root(root: Path | None) -> Path:
    from millrace.dashboard.data import find_root
    from millrace.runtime.settings import load_settings
    from millrace_apps.fraud.app import app as fraud

    return find_root(fraud.name, load_settings(fraud.settings, app=fraud.name), root)


def open_data(
    root: Path | None, bootstrap: str | None, overrides: list[str] | None
) -> tuple[AppData, FraudCasesSettings]:
    """Return the fraud app's data, and the settings of the case work."""
    from millrace.dashboard.data import AppData
    from millrace.dashboard.serve import wall_clock_ms
    from millrace_apps.fraud.app import app as fraud
    from millrace_apps.fraud.cases.store import TABLES

    settings = settings_of(root, bootstrap, overrides)
    return AppData(fraud, settings, _fraud_root(root), wall_clock_ms, (TABLES,)), settings


def cases_of(root: Path | None, overrides: list[str] | None) -> tuple[CaseView, AppData, FraudCasesSettings]:
    """Return the cases, the fraud app's data, and the settings of the case work.

    Raises:
        NoCase: There are no alerts.
    """
    from millrace_apps.fraud.cases.store import NoCase, case_view

    data, settings = open_data(root, None, overrides)
    view = case_view(data, settings)
    if view is None:
        raise NoCase(
            f"there are no alerts in {data.root}: run the app or its demo, or name its folder with --root"
        )
    return view, data, settings
