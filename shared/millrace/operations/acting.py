"""Authorisation of a command: the operator whose token the environment has, and their role.

A token comes by the variable :data:`TOKEN_VARIABLE`, or by a file that :data:`FILE_VARIABLE` names and that
its owner alone can read; never by an argument, for everybody on a machine can see those of every process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.errors import UserError
from millrace.operations.roster import Operator, Role, roster_file
from millrace.serving.gate import read_token

if TYPE_CHECKING:
    from millrace.runtime.settings import AppSettings

__all__ = ["FILE_VARIABLE", "TOKEN_VARIABLE", "NotAllowed", "acting", "acting_on", "may"]

#: Holds the token of who acts.
TOKEN_VARIABLE: Final = "MILLRACE_OPERATOR_TOKEN"  # noqa: S105 - a name
#: Names a file that holds it.
FILE_VARIABLE: Final = "MILLRACE_OPERATOR_TOKEN_FILE"


class NotAllowed(UserError):
    """Whoever asks for it may not do it."""


def acting(
    settings: AppSettings | None, role: Role, environ: Mapping[str, str] = os.environ
) -> Operator | None:
    """Return the operator who acts; ``None``: there are no operators, so that everybody may.

    Args:
        settings: Settings that say where the operators are; ``None``: as they are for all apps.
        role: What is needed.
        environ: The environment.

    Raises:
        RosterError: The operators cannot be read.
        NotAllowed: The token is missing or nobody's, or its operator may not do this.
    """
    roster = roster_file(settings).read()
    if roster is None:
        return None
    token = _token(environ)
    if token is None:
        raise NotAllowed(
            f"this takes the token of an operator who may {role}: "
            f"put it into {TOKEN_VARIABLE}, or its file's name into {FILE_VARIABLE}"
        )
    found = roster.find(token, time.time_ns() // 1_000_000)
    if found is None:
        raise NotAllowed(
            "the operator's token is not known, or has ended: `millrace operators renew` gives one"
        )
    return may(found, role)


def acting_on(app: str, role: Role) -> Operator | None:
    """Return the operator who acts on an app; see :func:`acting`.

    Args:
        app: Name of the app, whose settings say where the operators are; of one that is not installed, those
            for all apps do.
        role: What is needed.

    Raises:
        UserError: They may not.
    """
    from millrace.runtime.apps import UnknownApp
    from millrace.runtime.commands import settings_of

    try:
        settings = settings_of(app)
    except UnknownApp:
        settings = None
    return acting(settings, role)


def may(operator: Operator, role: Role) -> Operator:
    """Return an operator who may do something.

    Args:
        operator: The operator.
        role: What is needed.

    Raises:
        NotAllowed: They may not.
    """
    if not operator.role.covers(role):
        raise NotAllowed(f"{operator.name} may {operator.role}, and this takes somebody who may {role}")
    return operator


def _token(environ: Mapping[str, str]) -> str | None:
    """Return the token that the environment has or names; ``None``: neither."""
    if told := environ.get(TOKEN_VARIABLE, "").strip():
        return told
    named = environ.get(FILE_VARIABLE)
    return read_token(Path(named).expanduser()) if named else None
