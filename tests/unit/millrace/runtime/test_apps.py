"""How apps and their evaluations are found."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from millrace.cli.evaluate import app as evaluate
from millrace.runtime import apps
from millrace.runtime import installed as installed_apps
from millrace.runtime.apps import App, Topic, Topics, UnknownApp, load_app
from millrace.runtime.settings import AppSettings

commands = typer.Typer()


@commands.command()
def held(text: str) -> None:
    """Say it."""
    typer.echo(f"held to {text}")


def no_outputs(streams: Any, settings: Any) -> Any:
    raise NotImplementedError


WITH = App("with", "Has one.", AppSettings, no_outputs, lambda s: Topics(()), evaluate=f"{__name__}:commands")
WITHOUT = App("without", "Has none.", AppSettings, no_outputs, lambda s: Topics(()))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three apps, one of which cannot be loaded."""
    points = [
        EntryPoint("broken", "nowhere.at_all:app", installed_apps.APPS_GROUP),
        EntryPoint("with", f"{__name__}:WITH", installed_apps.APPS_GROUP),
        EntryPoint("without", f"{__name__}:WITHOUT", installed_apps.APPS_GROUP),
    ]
    for module in (apps, installed_apps):
        monkeypatch.setattr(module, "entry_points", lambda group: points)


def test_topics_whose_events_move_time_are_those_that_are_read_and_are_not_said_to_be_none() -> None:
    """What is written moves none, nor do control events; labels are dated in the past."""
    topics = Topics(
        reads=(Topic("in"), Topic("labels", clock=False), Topic("control"), Topic("more")),
        writes=(Topic("out"),),
        control="control",
    )
    assert topics.clocks == ("in", "more")


@pytest.mark.usefixtures("installed")
def test_an_app_that_cannot_be_loaded_says_why() -> None:
    with pytest.raises(UnknownApp, match=r"'broken' \(nowhere.at_all:app\) cannot be loaded: No module"):
        load_app("broken")


@pytest.mark.usefixtures("installed")
def test_something_else_than_an_app_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    point: Any = SimpleNamespace(name="odd", value="x:y", load=lambda: "no app")
    monkeypatch.setattr(apps, "entry_points", lambda group: [point])
    with pytest.raises(UnknownApp, match="x:y is not a millrace App"):
        load_app("odd")


@pytest.mark.usefixtures("installed")
def test_evaluate_lists_the_apps_that_have_one_whatever_others_are() -> None:
    said = CliRunner().invoke(evaluate, ["--help"])
    assert said.exit_code == 0
    assert "with" in said.output
    assert "Say it." in said.output
    assert "without" not in said.output
    assert "broken" not in said.output


@pytest.mark.usefixtures("installed")
def test_evaluate_runs_the_command_of_an_app() -> None:
    said = CliRunner().invoke(evaluate, ["with", "that"])
    assert said.exit_code == 0, said.output
    assert said.output == "held to that\n"
