"""Actions of the page: on alarms and planned maintenance, as the commands do them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, cast

from millrace.dashboard.data import AppData
from millrace.dashboard.page import Action, ActionRefused, Field
from millrace.dashboard.views import Offer
from millrace.errors import UserError
from millrace.time.durations import to_ms
from millrace.time.moments import to_time_ms
from millrace_apps.iot_maintenance.contracts.events import Verb
from millrace_apps.iot_maintenance.dashboard.data import Row, alarms
from millrace_apps.iot_maintenance.operations.operating import (
    action_on,
    cancel_of,
    events_clock,
    plan_of,
    send_action,
)
from millrace_apps.iot_maintenance.processes.orders import OPEN

if TYPE_CHECKING:
    from millrace_apps.iot_maintenance.contracts.events import Action as Act
    from millrace_apps.iot_maintenance.settings import IotSettings

_OTHERS: Final = {
    "confirm": "confirm: what was acknowledged has been dealt with",
    "unshelve": "unshelve: tell operators again",
    "suppress": "suppress, e.g. for maintenance",
    "unsuppress": "end the suppression",
    "out_of_service": "take it out of service",
    "in_service": "put it back into service",
    "reset": "reset what is latched",
    "silence": "turn the horn off",
}
_ALARM: Final = Field("alarm", "Alarm", hidden=True)
_BY: Final = Field("by", "Your name")
_NOTE: Final = Field("note", "Why", required=False)
_FOR: Final = Field("for", "For how long", required=False, hint="30m, 8h; nothing: until it is over")
_ROLE: Final = Field("role", "As what", required=False, hint="where a rule says who may")


def alarm_offers(alarm: Row) -> tuple[Offer, ...]:
    """Return what is offered for an alarm that matters."""
    about = {"alarm": alarm["alarm_id"]}
    seen = () if alarm["acked"] else (Offer("ack", about),)
    shelve = () if alarm["shelved"] else (Offer("shelve", about),)
    return *seen, *shelve, Offer("comment", about), Offer("act", about)


def order_offers(order: Row) -> tuple[Offer, ...]:
    """Return what is offered for a work order: nothing for one that is over."""
    about = {"machine": order["machine_id"], "component": order["component"]}
    return (Offer("plan", about), Offer("unplan", about)) if order["state"] in OPEN else ()


def _now(data: AppData) -> int:
    """Return what time it is on the clock of the events that the page shows."""
    newest = max((alarm["event_time_ms"] for alarm in alarms(data)), default=None)
    return events_clock(data.root, newest, data.now_ms())


def _send(data: AppData, make: Callable[[IotSettings, int], Act], said: str) -> str:
    settings: IotSettings = data.settings
    try:
        action = make(settings, _now(data))
        send_action(settings, action)
    except (UserError, ValueError) as error:
        raise ActionRefused(str(error)) from error
    return f"{said}, by {action.operator}; it shows when the job has read it"


def do_alarm(data: AppData, values: Mapping[str, str], verb: str = "") -> str:
    """Act on an alarm, as the page's form says."""
    what = cast(Verb, verb or values["what"])

    def make(settings: IotSettings, now: int) -> Act:
        return action_on(
            settings,
            what,
            values["alarm"],
            operator=values["by"],
            at_ms=now,
            duration_ms=to_ms(values["for"]) if values.get("for") else 0,
            comment=values.get("note", ""),
            role=values.get("role", ""),
        )

    return _send(data, make, f"{what.replace('_', ' ')} of {values['alarm']} sent")


def do_plan(data: AppData, values: Mapping[str, str]) -> str:
    """Plan work on a component, or move it."""

    def make(settings: IotSettings, now: int) -> Act:
        return plan_of(
            settings,
            values["machine"],
            values["component"],
            operator=values["by"],
            start_ms=to_time_ms(values["start"]) if values["start"] else None,
            at_ms=now,
            duration_ms=to_ms(values["for"]) if values["for"] else 0,
            comment=values["note"],
            suppress=values["alarms"] == "suppress",
            role=values.get("role", ""),
        )

    return _send(data, make, f"work on {values['component']} of {values['machine']} is sent")


def do_unplan(data: AppData, values: Mapping[str, str]) -> str:
    """Cancel the work on a component."""

    def make(settings: IotSettings, now: int) -> Act:
        machine, component = values["machine"], values["component"]
        return cancel_of(
            settings, machine, component, operator=values["by"], at_ms=now, comment=values["note"]
        )

    return _send(data, make, f"cancelling work on {values['component']} of {values['machine']} is sent")


_MACHINE: Final = Field("machine", "Machine")
_COMPONENT: Final = Field("component", "Component", hint="what is to be replaced")

ACTIONS: Final = (
    Action("ack", "Acknowledge", (_ALARM, _BY, _NOTE), lambda data, values: do_alarm(data, values, "ack"),
           about="Somebody has seen it."),
    Action("shelve", "Shelve", (_ALARM, _FOR, _NOTE, _ROLE, _BY),
           lambda data, values: do_alarm(data, values, "shelve"),
           about="Operators are not told of it for a time, or until it is over."),
    Action("comment", "Comment", (_ALARM, Field("note", "Comment"), _BY),
           lambda data, values: do_alarm(data, values, "comment"), about="It goes into the alarm's history."),
    Action("act", "More", (_ALARM, Field("what", "What", choices=_OTHERS), _FOR, _NOTE, _ROLE, _BY),
           do_alarm),
    Action(
        "plan", "Plan work",
        (_MACHINE, _COMPONENT,
         Field("start", "Begin (UTC)", required=False, hint="2026-12-01T06:00Z; nothing: now"),
         Field("for", "For how long", required=False, hint="2h; nothing: an hour"),
         Field("alarms", "The machine's alarms meanwhile", required=False, hint="as ever",
               choices={"suppress": "are suppressed"}),
         _NOTE, _ROLE, _BY),
        do_plan, about="Plans the replacement of a component, or moves it; it is done when that is reported.",
    ),
    Action("unplan", "Cancel", (_MACHINE, _COMPONENT, _NOTE, _BY), do_unplan,
           about="Cancels the work that is planned."),
)  # fmt: skip
