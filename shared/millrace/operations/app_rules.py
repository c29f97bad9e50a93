"""An app's declaration of its rules, so that one command serves all apps."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from millrace.errors import UserError
from millrace.rules import Language, Rule
from millrace.runtime.apps import UnknownApp, load_app
from millrace.runtime.installed import list_apps
from millrace.runtime.settings import AppSettings

__all__ = ["AppRules", "History", "WhatIf", "apps_with_rules", "rules_of"]


class History(NamedTuple):
    """What rules are to be tried on.

    Attributes:
        table: The Delta table of the past; ``None``: the app's own.
        labels: What is known of it; ``None``: the app's own.
        last_ms: Only the last so many ms of event time; ``None``: all of it.
        most: More rows than this are not tried; ``None``: however many there are.
        say: Called with how much is done and how much there is.
    """

    table: Path | None = None
    labels: Path | None = None
    last_ms: int | None = None
    most: int | None = None
    say: Callable[[int, int], None] | None = None

    def check(self, rows: int) -> None:
        """Refuse to try rules on more rows than are asked for.

        Args:
            rows: How many there are.

        Raises:
            UserError: There are more.

        >>> History(most=3).check(3)
        """
        if self.most is not None and rows > self.most:
            raise UserError(f"the past has {rows:,} rows, which takes long: try it with `backtest`")


class WhatIf(NamedTuple):
    """What rules would have done.

    Attributes:
        report: All of it, as JSON is made of.
        title: What was looked at.
        columns: Names of the columns of a table of it.
        rows: Its rows, a rule each.
    """

    report: Any
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]


@dataclass(frozen=True)
class AppRules:
    """The rules of an app as operators see them; :attr:`millrace.runtime.apps.App.rules` names it.

    Attributes:
        app: Name of the app.
        settings: Its settings class.
        control: Type of its control events, as the app reads them.
        language: Settings → the language by which the app takes rules, with whose actions a second person
            must approve.
        read: File → its rules as they are published. It says of each that is none where it stands and why,
            and raises a ``UserError``.
        words: What rules can say: arguments of the command → text, kind and meaning of each word.
        backtest: Rules, settings and history → what they would have done; ``None``: the app cannot tell.
            It raises a ``UserError`` where there is no history.
        warnings: Rule and settings → what of it will not work, in one line each.
        shown: A rule as people read it, in one line; its condition unless given.
        built_in: Settings → rules that hold until one of their id is published.
        publisher_owns: Whether who publishes a rule owns it, since the file does not say who does.
        book: Settings → an empty :class:`~millrace.operations.control_topic.ControlState` of the app's own,
            where its control topic says more than rules and lists; ``None``: it does not.
    """

    app: str
    settings: type[AppSettings]
    control: Any
    language: Callable[[Any], Language]
    read: Callable[[Path], list[Rule]]
    words: Callable[[Sequence[str]], Iterable[tuple[str, str, str]]]
    backtest: Callable[[list[Rule], Any, History], WhatIf] | None = None
    warnings: Callable[[Rule, Any], Iterable[str]] = lambda rule, settings: ()
    shown: Callable[[Rule], str] = lambda rule: rule.when
    built_in: Callable[[Any], list[Rule]] = lambda settings: []
    publisher_owns: bool = False
    book: Callable[[Any], Any] | None = None


def apps_with_rules() -> list[str]:
    """Return the names of the apps that have rules; one that cannot be loaded has none.

    >>> apps_with_rules()
    ['clickstream', 'fraud', 'iot']
    """
    found = []
    for name in list_apps():
        with contextlib.suppress(UnknownApp):
            if load_app(name).rules:
                found.append(name)
    return found


def rules_of(name: str) -> AppRules:
    """Return the rules of the app of a name.

    Raises:
        UserError: There is no such app, or it has no rules that change while it runs.

    >>> rules_of("iot").app
    'iot'
    """
    found = load_app(name).rules
    if found is None:
        having = ", ".join(apps_with_rules()) or "no app"
        raise UserError(f"{name} has no rules that change while it runs; {having} have")
    module, _, attribute = found.partition(":")
    rules: AppRules = getattr(importlib.import_module(module), attribute)
    return rules
