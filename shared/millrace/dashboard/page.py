"""An app's part of the dashboard: panels, the detail of a key, actions.

An app names its page in ``App.dashboard`` (``module:attribute``)::

    def late(data: AppData) -> View | None:
        table = data.table("late")
        return table and Numbers((Number(label="late events", value=table.rows, kind="count"),))

    page = DashboardPage(panels=(Panel("late", "Late events", late),))

A panel is a function of :class:`~millrace.dashboard.data.AppData`; it runs in the server every few
seconds while somebody looks, and returns data (:mod:`millrace.dashboard.views`), or ``None`` as long as
there is nothing to show. A panel that fails shows its error and harms no other.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from millrace.dashboard.views import Titled, View
from millrace.errors import UserError
from millrace.operations.acting import NotAllowed, may
from millrace.operations.roster import Operator, Role

if TYPE_CHECKING:
    from millrace.dashboard.data import AppData
    from millrace.runtime.apps import App

#: Most characters of a value that a user sends with an action.
LONGEST_VALUE = 500
#: Name of the field that says who does it.
BY = "by"


class ActionRefused(UserError):
    """What a user asked for cannot be done; the message is shown to them."""


@dataclass(frozen=True)
class Panel:
    """One panel of a page.

    Attributes:
        id: Its identity in the page: lower-case letters, digits and hyphens.
        title: Its heading.
        make: Makes what it shows; ``None``: nothing yet.
        about: What it says and how it is computed, in a sentence or two.
        width: How much of a wide window it takes.
        empty: What is said instead as long as there is nothing.
        actions: Names of the page's actions that stand below it, as forms that begin empty.
        replay: Makes what it would have shown at a moment, UTC milliseconds; ``None``: it cannot tell.
        chosen: Makes what it shows of what the page's :class:`Choice` says; ``None``: always of everything.
    """

    id: str
    title: str
    make: Callable[[AppData], View | None]
    about: str = ""
    width: Literal["third", "half", "full"] = "half"
    empty: str = "nothing yet"
    actions: tuple[str, ...] = ()
    replay: Callable[[AppData, int], View | None] | None = None
    chosen: Callable[[AppData, str], View | None] | None = None


@dataclass(frozen=True)
class Choice:
    """What several panels of a page can be looked at for, by one choice above them.

    Attributes:
        label: What is chosen, e.g. ``Segment``.
        values: What there is to be chosen now; as long as nothing is chosen, all is shown.
    """

    label: str
    values: Callable[[AppData], Sequence[str]]


@dataclass(frozen=True)
class Detail:
    """The view of one key, e.g. a card.

    Attributes:
        label: What a key is called.
        make: Data and key → what is shown of it; empty: there is no such key.
        kinds: Beginning of keys of other kinds → what such a key is called, e.g. ``{"device:": "Device"}``.
    """

    label: str
    make: Callable[[AppData, str], Sequence[Titled]]
    kinds: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Field:
    """What a user fills in for an action.

    Attributes:
        name: Its name; :data:`BY` for who does it, which where there are operators is not asked for.
        label: What the page calls it.
        choices: Value → label of what may be chosen; empty: free text.
        required: Whether it must be filled in.
        hidden: Whether it comes with the row and is not shown.
        hint: What stands in it as long as it is empty.
    """

    name: str
    label: str = ""
    choices: Mapping[str, str] | None = None
    required: bool = True
    hidden: bool = False
    hint: str = ""


@dataclass(frozen=True)
class Action:
    """Something that can be done from the page, with the token only.

    It is offered for rows of tables (:class:`~millrace.dashboard.views.Offer`), below a panel
    (:attr:`Panel.actions`), or both.

    Attributes:
        name: Its identity in the page.
        label: What its button says.
        fields: What is asked of the user.
        run: Does it, and returns a sentence that is shown; raises :class:`ActionRefused`.
        look: Shows what it would do, and does nothing; of what is asked, anything may be missing then.
        about: What it does, in a sentence; stands above its form.
        role: What an operator must be allowed to, where there are operators.
    """

    name: str
    label: str
    fields: tuple[Field, ...]
    run: Callable[[AppData, Mapping[str, str]], str]
    look: Callable[[AppData, Mapping[str, str]], View] | None = None
    about: str = ""
    role: Role = Role.decide

    def signed(self, values: Mapping[str, object], operator: Operator | None) -> Mapping[str, object]:
        """Return the values with the name of the operator who does it in the field :data:`BY`, if it has one.

        Args:
            values: What was filled in.
            operator: The operator; ``None``: there are none, and whoever fills it in says who they are.

        Raises:
            NotAllowed: The operator may not do this, or another name was filled in.
        """
        if operator is None:
            return values
        may(operator, self.role)
        if all(field.name != BY for field in self.fields):
            return values
        if values.get(BY) not in (None, "", operator.name):
            raise NotAllowed(f"you have logged in as {operator.name}, and can say so only")
        return {**values, BY: operator.name}

    def checked(self, values: Mapping[str, object], *, complete: bool = True) -> dict[str, str]:
        """Return the values of the fields, or raise for what does not fit.

        Args:
            values: Field → value.
            complete: Whether fields that must be filled in have to be.

        Raises:
            ActionRefused: A field is missing, unknown, too long, or none of the choices.
        """
        names = {asked.name for asked in self.fields}
        if unknown := sorted(set(values) - names):
            raise ActionRefused(f"{self.label} has no field '{unknown[0][:40]}'")
        found: dict[str, str] = {}
        for asked in self.fields:
            label, value = asked.label or asked.name, values.get(asked.name, "")
            if not isinstance(value, str):
                raise ActionRefused(f"{label} is not text")
            value = value.strip()
            if complete and asked.required and not value:
                raise ActionRefused(f"{label} is missing")
            if len(value) > LONGEST_VALUE:
                raise ActionRefused(f"{label} is longer than {LONGEST_VALUE} characters")
            if value and asked.choices is not None and value not in asked.choices:
                raise ActionRefused(f"{label} is one of {', '.join(asked.choices)}")
            found[asked.name] = value
        return found


@dataclass(frozen=True)
class DashboardPage:
    """The page of an app.

    Attributes:
        panels: Its panels, before those that every app has.
        detail: The view of one key, if there is one.
        actions: What can be done from it, by different names.
        folders: Further folders with tables, relative to the app's root.
        folded: Identities of panels that come last, and show their heading until they are opened: what its
            readers want now and then.
        choice: What panels with a ``chosen`` can be looked at for.

    Raises:
        ValueError: Two actions have one name, a panel names one that there is not, or what is folded is none.
    """

    panels: tuple[Panel, ...] = ()
    detail: Detail | None = None
    actions: tuple[Action, ...] = ()
    folders: tuple[str, ...] = ()
    folded: tuple[str, ...] = ()
    choice: Choice | None = None

    def __post_init__(self) -> None:
        names = [action.name for action in self.actions]
        if len(set(names)) < len(names):
            raise ValueError(f"two actions of a page have one name: {', '.join(sorted(names))}")
        for panel in self.panels:
            if unknown := sorted(set(panel.actions) - set(names)):
                raise ValueError(
                    f"panel {panel.id} names the action {unknown[0]}, which the page does not have"
                )

        if unknown := sorted(set(self.folded) - {panel.id for panel in self.panels}):
            raise ValueError(f"there is no panel {unknown[0]} to be folded")

    def action(self, name: str) -> Action:
        """Return an action; a page that has one only calls it by no name as well.

        Raises:
            ActionRefused: There is none of this name.
        """
        if not name and len(self.actions) == 1:
            return self.actions[0]
        for action in self.actions:
            if action.name == name:
                return action
        raise ActionRefused(f"there is no action '{name[:40]}' here")


def load_page(app: App) -> DashboardPage:
    """Return an app's own page; an empty one where it has none.

    Raises:
        UserError: What the app names is no page.
    """
    target: str | None = getattr(app, "dashboard", None)
    if target is None:
        return DashboardPage()
    module, _, attribute = target.partition(":")
    try:
        page = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"the dashboard of {app.name}, {target}, cannot be loaded: {error}") from error
    if not isinstance(page, DashboardPage):
        raise UserError(f"the dashboard of {app.name}, {target}, is not a DashboardPage")
    return page
