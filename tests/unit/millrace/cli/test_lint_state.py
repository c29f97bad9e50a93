"""`millrace lint-state`: what it warns of, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace import (
    Context,
    KeyedProcess,
    arrival,
    broadcast_state,
    list_state,
    map_state,
    minutes,
    value_state,
    versioned_state,
)
from millrace.cli.lint_state import app
from millrace.errors import UserError


class Mixed(KeyedProcess[str, str]):
    order = arrival(commutes=True)
    forever = value_state(int, default=0)
    brief = value_state(int, ttl=minutes(1))
    ticking = map_state(str, int, ttl=minutes(1), ttl_time="processing_time")
    each = list_state(str, ttl="per_write")
    versions = versioned_state(float, history=minutes(5))
    limits = broadcast_state(str, int)

    def process(self, event: str, ctx: Context) -> None: ...


class Bounded(KeyedProcess[str, str]):
    order = arrival(commutes=True)
    brief = value_state(int, ttl=minutes(1))

    def process(self, event: str, ctx: Context) -> None: ...


INSTANCE = Bounded()


def lint(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def test_states_without_any_time_to_live_are_warned_of_with_what_to_do() -> None:
    result = lint(f"{__name__}:Mixed")
    assert result.exit_code == 0
    warnings = [line for line in result.output.splitlines() if line.startswith("warning: ")]
    assert [w.split()[1] for w in warnings] == ["Mixed.forever", "Mixed.versions"]
    assert all("unbounded growth" in w and "give it a ttl" in w for w in warnings)
    assert result.output.splitlines()[-1] == "5 states, 2 without a bound"


def test_strict_ends_with_1_where_there_is_a_warning_only() -> None:
    assert lint(f"{__name__}:Mixed", "--strict").exit_code == 1
    assert lint(f"{__name__}:Bounded", f"{__name__}:INSTANCE", "--strict").exit_code == 0


def test_json_lists_every_state() -> None:
    result = lint(f"{__name__}:Mixed", "--format", "json")
    states = {s["state"]: s for s in json.loads(result.output)}
    assert list(states) == ["forever", "brief", "ticking", "each", "versions"]
    assert states["ticking"] == {
        "target": f"{__name__}:Mixed",
        "process": "Mixed",
        "state": "ticking",
        "kind": "map",
        "type": "int",
        "ttl_ms": 60_000,
        "ttl_time": "processing_time",
        "bounded": True,
    }
    assert states["each"]["ttl_ms"] == "per_write"


def test_an_app_is_linted_by_its_name() -> None:
    result = lint("fraud", "--format", "json")
    assert result.exit_code == 0, result.output
    states = {(s["process"], s["state"]): s["bounded"] for s in json.loads(result.output)}
    assert any(bounded for bounded in states.values())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no.such.module:Process", "cannot be imported"),
        (f"{__name__}:Nothing", "is no process"),
        (f"{__name__}:json", "is no process"),
        ("nosuchapp", "there is no app 'nosuchapp'"),
    ],
)
def test_what_is_no_process_is_refused_in_one_line(target: str, message: str) -> None:
    error = lint(target).exception
    assert isinstance(error, UserError)
    assert message in str(error)


def test_the_command_is_one_of_millrace() -> None:
    from millrace.cli import build

    result = CliRunner().invoke(build(), ["lint-state", f"{__name__}:Bounded"])
    assert (result.exit_code, result.output) == (0, "1 states, 0 without a bound\n")


class Large(KeyedProcess[str, str]):
    """A map in parts, without a time to live."""

    order = arrival(commutes=True)
    items = map_state(str, int, paged=True)


def test_a_paged_state_is_called_so_and_needs_a_bound_like_any_other() -> None:
    result = lint(f"{__name__}:Large")
    assert "Large.items (paged map of int): unbounded growth" in result.output
