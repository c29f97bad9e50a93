"""Who acts by a command, and the commands over operators."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli.doctor import _operators
from millrace.cli.operators import app as operators
from millrace.errors import UserError
from millrace.operations.acting import FILE_VARIABLE, TOKEN_VARIABLE, NotAllowed
from millrace.operations.roster import Cost, Role, RosterError, RosterFile
from millrace.operations.sending import who
from millrace.runtime.settings import AppSettings

CHEAP = Cost(2, 1, 1)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (TOKEN_VARIABLE, FILE_VARIABLE, "MILLRACE__OPERATORS__FILE", "MILLRACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def add(tmp_path: Path) -> Callable[..., str]:
    file = RosterFile(tmp_path / "home" / "operators.json")

    def made(name: str, role: Role, until_ms: int | None = None) -> str:
        return file.change(lambda r: r.add(name, role, 0, until_ms, CHEAP))

    return made


def test_without_operators_it_is_whoever_is_named_else_who_has_logged_in() -> None:
    assert (who(" eve "), who(None)) == ("eve", getpass.getuser())
    with pytest.raises(UserError, match="nobody is named"):
        who(" ")


def test_with_operators_it_is_whose_token_it_is_and_nobody_else(
    add: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = add("ann", Role.decide)
    for by in (None, "ann", "eve"):
        with pytest.raises(NotAllowed, match=TOKEN_VARIABLE):
            who(by)
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    assert (who(None), who(" ann ")) == ("ann", "ann")
    for by in ("eve", "Ann", ""):
        with pytest.raises(NotAllowed, match="the token is that of ann"):
            who(by)


@pytest.mark.parametrize(
    ("has", "needed", "may"),
    [
        (Role.look, Role.look, True), (Role.look, Role.decide, False), (Role.look, Role.approve, False),
        (Role.decide, Role.look, True), (Role.decide, Role.decide, True), (Role.decide, Role.approve, False),
        (Role.approve, Role.look, True), (Role.approve, Role.decide, True),
        (Role.approve, Role.approve, True),
    ],
)  # fmt: skip
def test_what_takes_more_than_a_role_allows_is_refused(
    has: Role, needed: Role, may: bool, add: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, add("ann", has))
    if may:
        assert who(None, None, needed) == "ann"
    else:
        with pytest.raises(NotAllowed, match=f"ann may {has}, and this takes somebody who may {needed}"):
            who(None, None, needed)


@pytest.mark.parametrize("token", ["x", "mr-0123456789abcdef-" + "A" * 43])
def test_a_token_of_nobody_or_one_that_has_ended_is_refused(
    token: str, add: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in (token, add("ann", Role.approve, until_ms=1)):
        monkeypatch.setenv(TOKEN_VARIABLE, wrong)
        with pytest.raises(NotAllowed, match="not known, or has ended"):
            who(None)


def test_a_token_comes_from_a_file_that_its_owner_alone_can_read(
    add: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held = tmp_path / "token"
    held.write_text(add("ann", Role.decide) + "\n")
    held.chmod(0o600)
    monkeypatch.setenv(FILE_VARIABLE, str(held))
    assert who(None) == "ann"
    held.chmod(0o640)
    with pytest.raises(UserError, match="can be read by others"):
        who(None)
    held.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        who(None)


def test_a_broken_file_of_operators_lets_nobody_act(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "operators.json").touch(0o600)
    with pytest.raises(RosterError):
        who("ann")


def test_the_setting_says_where_they_are(
    add: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    add("ann", Role.decide)
    own = AppSettings(operators={"file": str(tmp_path / "own.json")})  # type: ignore[arg-type]
    with pytest.raises(RosterError, match="no such file"):
        who("ann", own)
    RosterFile(tmp_path / "own.json").change(lambda r: r.add("bob", Role.decide, 0, None, CHEAP))
    with pytest.raises(NotAllowed):
        who("ann", own)
    monkeypatch.setenv("MILLRACE__OPERATORS__FILE", str(tmp_path / "gone.json"))
    with pytest.raises(RosterError, match=r"gone\.json"):
        who("ann")


# -- commands --------------------------------------------------------------------------------------


def call(*arguments: str) -> Any:
    return CliRunner().invoke(operators, list(arguments))


def test_a_token_is_printed_once_alone_and_lets_its_operator_act(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = call("add", "ann", "--role", "decide", "--until", "90d")
    assert said.exit_code == 0, said.output
    token = said.stdout.strip()
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    assert who(None) == "ann"
    for shape in ("table", "json"):
        shown = call("list", "--format", shape).output
        assert "ann" in shown
        assert token[20:] not in shown
        assert "hash" not in shown
    assert token not in (tmp_path / "home" / "operators.json").read_text()
    assert isinstance(call("add", "ann", "--role", "look").exception, RosterError)


def test_renewing_ends_the_token_before(monkeypatch: pytest.MonkeyPatch) -> None:
    before = call("add", "ann", "--role", "approve").stdout.strip()
    after = call("renew", "ann").stdout.strip()
    monkeypatch.setenv(TOKEN_VARIABLE, before)
    with pytest.raises(NotAllowed):
        who(None)
    monkeypatch.setenv(TOKEN_VARIABLE, after)
    assert who(None, None, Role.approve) == "ann"


def test_a_role_is_changed_and_an_operator_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, call("add", "ann", "--role", "look").stdout.strip())
    with pytest.raises(NotAllowed):
        who(None)
    assert call("set-role", "ann", "decide").output == "ann may decide\n"
    assert who(None) == "ann"
    assert "nobody may change anything now" in call("remove", "ann").output
    with pytest.raises(NotAllowed):
        who(None)
    assert json.loads(call("list", "--format", "json").output) == []
    assert isinstance(call("remove", "ann").exception, RosterError)


@pytest.mark.parametrize("until", ["0d", "2001-01-01", "soon"])
def test_an_end_that_is_none_is_refused_and_nobody_is_added(until: str, tmp_path: Path) -> None:
    said = call("add", "ann", "--role", "look", "--until", until)
    assert isinstance(said.exception, UserError)
    assert not (tmp_path / "home" / "operators.json").exists()
    assert "there are no operators" in call("list").output


# -- what the doctor says --------------------------------------------------------------------------


def test_the_doctor_says_whether_there_are_operators_and_whose_token_has_ended(
    add: Callable[..., str], tmp_path: Path
) -> None:
    assert "goes by any name" in _operators(None, [], []).found
    add("ann", Role.decide)
    assert (_operators(None, [], []).status, _operators(None, [], []).found[:4]) == ("ok", "1 in")
    add("bob", Role.look, until_ms=1)
    found = _operators(None, [], [])
    assert (found.status, "the token of bob has ended" in found.found) == ("warning", True)
    (tmp_path / "home" / "operators.json").write_text("broken")
    assert _operators(None, [], []).status == "broken"
