"""A page at work: panels are made once for everybody who looks, and only what changed is sent."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millrace.dashboard.common_panels import COMMON_ACTIONS, COMMON_FOLDED, COMMON_PANELS
from millrace.dashboard.data import AppData
from millrace.dashboard.making import Versions, view_or_note
from millrace.dashboard.page import Action, DashboardPage, Panel
from millrace.dashboard.values import table_of
from millrace.dashboard.views import Note, Table, Titled, View
from millrace.dead_letters import one_line
from millrace.errors import UserError
from millrace.operations.roster import Operator

log = logging.getLogger("millrace.dashboard")

#: So many choices are kept made; more are made anew for each who looks.
MOST_CHOICES = 20
#: Most rows of a table that are shown.
MOST_SHOWN = 100


class LivePage:
    """The page of one app.

    Args:
        data: The app's data.
        page: What the app adds.
        interval_ms: How long what was made is taken again, ms.
    """

    def __init__(self, data: AppData, page: DashboardPage, *, interval_ms: int = 2_000) -> None:
        self.data = data
        self.page = page
        self.interval_ms = interval_ms
        self.panels: Sequence[Panel] = (*page.panels, *COMMON_PANELS)
        self._lock = threading.Lock()
        self._kept = Versions()
        self._made_ms: int | None = None
        self._chosen: OrderedDict[str, tuple[int, dict[str, Any]]] = OrderedDict()

    def now_ms(self) -> int:
        """Return now, UTC ms."""
        return self.data.now_ms()

    def _action(self, name: str) -> Action:
        """Return one of the page's actions, or of those that every page has."""
        if name and all(action.name != name for action in self.page.actions):
            for action in COMMON_ACTIONS:
                if action.name == name:
                    return action
        return self.page.action(name)

    def describe(self) -> dict[str, Any]:
        """Return what the page needs to know before the first panel comes."""
        page = self.page
        self.data.listen()
        return {
            "app": self.data.app.name,
            "summary": self.data.app.summary,
            "root": str(self.data.root),
            "broker": None if self.data.broker is None else self.data.broker.address,
            "panels": [
                {"id": p.id, "title": p.title, "about": p.about, "width": p.width, "actions": p.actions,
                 "replays": p.replay is not None, "chosen": p.chosen is not None,
                 "folded": p.id in page.folded or p.id in COMMON_FOLDED}
                for p in self.panels
            ],
            "detail": None if page.detail is None else page.detail.label,
            "kinds": {} if page.detail is None else dict(page.detail.kinds),
            "actions": [_described(action) for action in (*page.actions, *COMMON_ACTIONS)],
            "tables": self.data.table_names(),
            "choice": None if page.choice is None else page.choice.label,
        }  # fmt: skip

    def refresh(self) -> None:
        """Make the panels anew, unless that was done a moment ago."""
        with self._lock:
            now = self.data.now_ms()
            if self._made_ms is not None and 0 <= now - self._made_ms < self.interval_ms:
                return
            self.data.listen()
            for panel in self.panels:
                self._kept.put(panel.id, self._make(panel))
            self._made_ms = self.data.now_ms()

    def changed(self, seen: dict[str, int]) -> list[bytes]:
        """Return the JSON of the panels that changed since ``seen``, and take note of them in it."""
        with self._lock:
            return self._kept.changed(seen)

    def at(self, at_ms: int) -> list[dict[str, Any]]:
        """Return what the panels that can tell would have shown at a moment, UTC milliseconds."""
        able = [panel for panel in self.panels if panel.replay is not None]
        return [{"id": panel.id, "view": self._shown(panel, at_ms)} for panel in able]

    def chosen(self, value: str) -> dict[str, Any]:
        """Return what can be chosen now, and what panels show of a choice; empty: of nothing chosen, nothing.

        Args:
            value: The choice. It is made once for everybody who looks within the page's interval.
        """
        choice = self.page.choice
        if choice is None:
            return {"values": [], "panels": []}
        with self._lock:
            now, kept = self.data.now_ms(), self._chosen.get(value)
            if kept is not None and 0 <= now - kept[0] < self.interval_ms:
                return kept[1]
            try:
                values = list(choice.values(self.data))
            except Exception as error:  # a page without its choice is better than none
                log.warning("choice of %s: %s", self.data.app.name, one_line(error), exc_info=True)
                values = []
            # A name from outside reaches panels where it is one of theirs only.
            able = [panel for panel in self.panels if panel.chosen is not None and value in values]
            made = {
                "values": values,
                "panels": [{"id": panel.id, "view": self._shown(panel, chosen=value)} for panel in able],
            }
            self._chosen[value] = (self.data.now_ms(), made)
            while len(self._chosen) > MOST_CHOICES:
                self._chosen.popitem(last=False)
            return made

    def soon(self) -> None:
        """Let the next :meth:`refresh` make everything anew: something was done."""
        with self._lock:
            self._made_ms = None
            self._chosen.clear()

    def detail(self, key: str) -> list[Titled]:
        """Return what is shown of one key; empty where there is none."""
        return [] if self.page.detail is None else list(self.page.detail.make(self.data, key))

    def rows(self, table: str, number: int) -> Table | None:
        """Return the latest rows of a table, the newest first, or ``None`` where there is no such table."""
        if table not in self.data.table_names():  # a name from outside never becomes a path
            return None
        reader = self.data.table(table)
        if reader is None:
            return None
        shown = reader.latest(min(number, MOST_SHOWN))
        return table_of(shown, more=max(0, reader.rows - shown.num_rows))

    def act(self, values: Mapping[str, object], name: str = "", operator: Operator | None = None) -> str:
        """Do one of the page's actions and return what is said about it.

        Args:
            values: Field → value.
            name: The action; not needed where the page has one only.
            operator: Who does it; ``None``: there are no operators.

        Raises:
            UserError: The page has no such action, or it was refused.
        """
        action = self._action(name)
        said = action.run(self.data, action.checked(action.signed(values, operator)))
        self.soon()
        return said

    def look(self, values: Mapping[str, object], name: str = "") -> View:
        """Return what an action would do; nothing is done.

        Raises:
            UserError: The page has no such action, it cannot tell, or it was refused.
        """
        action = self._action(name)
        if action.look is None:
            raise UserError(f"what '{action.label}' would do cannot be shown before")
        return action.look(self.data, action.checked(values, complete=False))

    def _make(self, panel: Panel) -> bytes:
        return msgspec.json.encode({"id": panel.id, "view": self._shown(panel)})

    def _shown(self, panel: Panel, at_ms: int | None = None, chosen: str | None = None) -> View:
        def make() -> View | None:
            if chosen is not None and panel.chosen is not None:
                return panel.chosen(self.data, chosen)
            if at_ms is not None and panel.replay is not None:
                return panel.replay(self.data, at_ms)
            return panel.make(self.data)

        where = f"panel {panel.id} of {self.data.app.name}"
        return view_or_note(make, "this panel", where) or Note(panel.empty)


def _described(action: Action) -> dict[str, Any]:
    return {
        "name": action.name,
        "label": action.label,
        "about": action.about,
        "looks": action.look is not None,
        "fields": [
            {
                "name": f.name,
                "label": f.label or f.name,
                "choices": None if f.choices is None else dict(f.choices),
                "required": f.required,
                "hidden": f.hidden,
                "hint": f.hint,
            }
            for f in action.fields
        ],
    }
