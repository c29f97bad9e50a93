"""Every command that changes something takes an operator, where there are operators."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from millrace.cli import build
from millrace.operations import sending
from millrace.operations.acting import FILE_VARIABLE, TOKEN_VARIABLE, NotAllowed
from millrace.operations.roster import Cost, Role, RosterFile

#: What changes something and does not ask who does it.
OTHERS: Final = (
    "models fraud promote", "models fraud rollback", "fraud model promote", "fraud model rollback",
    "fraud promote", "fraud rollback", "fraud forget", "dlq replay",
)  # fmt: skip
#: What takes more than to decide, by its last word; of models that is to roll back, too.
APPROVING: Final = ("approve", "promote", "forget")
#: Arguments of which the commands see by themselves whether they are any.
VALUES: Final = {
    "alarm": "m7:hot", "value": "card:c-1", "currency": "USD", "rate": "0.9", "version": "1",
    "zone": "871f1d489ffffff", "cap": "1.5",
}  # fmt: skip


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            yield from _commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ALL: Final[dict[str, Any]] = dict(_commands(get_command(build())))
SIGNED: Final = sorted(name for name, one in ALL.items() if any("--by" in p.opts for p in one.params))
CHANGING: Final = sorted({*SIGNED, *OTHERS})


def _arguments(command: Any, folder: Path) -> list[str]:
    """Return values for all that a command must be given, and a name."""
    found = ["--by", "eve"] if any("--by" in p.opts for p in command.params) else []
    for param in command.params:
        if not param.required:
            continue
        kind = param.type_descriptor.annotation
        value = VALUES.get(param.name)
        if isinstance(kind, type) and issubclass(kind, Enum):
            value = str(next(iter(kind)).value)
        elif kind is Path:
            value = str(folder / "file.yaml")
            Path(value).write_text("[]")
        elif value is None:
            value = "fraud"
        found += [param.opts[0], value] if param.opts[0].startswith("-") else [value]
    return found


@pytest.fixture
def no_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    import confluent_kafka

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("something was sent")

    monkeypatch.setattr(sending, "send", fail)
    for name in ("Producer", "Consumer"):
        monkeypatch.setattr(confluent_kafka, name, fail)


def test_the_commands_that_change_something_are_found() -> None:
    for name in ("rules fraud publish", "rules iot approve", "fraud lists put", "fraud changes approve",
                 "fraud changes propose", "fraud cases dispose", "fraud cases claim", "fraud rates set",
                 "iot alarms ack", "ridesharing assign", "ridesharing policy", "clickstream forget",
                 "models fraud promote", "dlq replay"):  # fmt: skip
        assert name in CHANGING, name
    assert len(SIGNED) > 40


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.usefixtures("no_sending")
def test_with_operators_it_is_refused_without_a_token_or_a_role_that_does(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    file = RosterFile(tmp_path / "operators.json")
    tokens = {
        role: file.change(lambda r, role=role: r.add(role.value, role, 0, None, Cost(2, 1, 1)))  # type: ignore[misc]
        for role in Role
    }
    monkeypatch.setenv("MILLRACE__OPERATORS__FILE", str(file.path))
    monkeypatch.setenv("MILLRACE__KAFKA__BOOTSTRAP", "127.0.0.1:1")
    words = [*name.split(), *_arguments(ALL[name], tmp_path)]

    def refusal() -> str:
        said = CliRunner().invoke(build(), words)
        assert isinstance(said.exception, NotAllowed), (words, said.output, said.exception)
        return str(said.exception)

    assert TOKEN_VARIABLE in refusal()
    monkeypatch.setenv(TOKEN_VARIABLE, tokens[Role.look])
    assert "look may look, and this takes" in refusal()
    if name.split()[-1] in APPROVING or (name in OTHERS and "rollback" in name):
        monkeypatch.setenv(TOKEN_VARIABLE, tokens[Role.decide])
        assert "decide may decide, and this takes somebody who may approve" in refusal()
    if name in SIGNED:
        monkeypatch.setenv(TOKEN_VARIABLE, tokens[Role.approve])
        assert refusal() == "the token is that of approve: leave out --by eve"
