"""Alarm history: every change of an alarm is a row."""

from __future__ import annotations

from typing import Literal

import msgspec

#: What happened to an alarm.
Change = Literal[
    "active",
    "inactive",
    "raised",
    "lowered",
    "escalated",
    "re_alarm",
    "ack",
    "confirm",
    "shelve",
    "unshelve",
    "suppress",
    "unsuppress",
    "out_of_service",
    "in_service",
    "reset",
    "silence",
    "comment",
    "rejected",
    "removed",
    "moved",
]


class AlarmEvent(msgspec.Struct, frozen=True, gc=False):
    """A change of an alarm, and the alarm's state after it (names after OPC UA Part 9).

    Attributes:
        alarm_id: The alarm: entity and name. Its newest row is its state.
        entity_id: The machine or gateway.
        alarm: The alarm's name there: ``rule``, or ``rule/quantity``.
        rule_id: The rule.
        quantity: The quantity, or the device, that it is about; empty for a whole machine.
        category: ``process``, ``sensor``, ``liveness`` or ``clock``.
        change: What happened.
        event_time_ms: When, on the clock of the events.
        number: Counts the changes of one entity at one instant, from 0.
        active: Its condition holds.
        acked: An operator has seen it.
        confirmed: An operator has confirmed that it is dealt with.
        retain: Whether it still matters: active, or to be acknowledged, confirmed or reset.
        latched: It waits for a reset.
        shelved: ``""``, ``timed`` or ``one_shot``.
        suppressed: By the machine's status, or by an operator.
        out_of_service: It is taken out of use.
        silenced: Its horn is off.
        announced: Whether operators are told: active and none of shelved, suppressed, out of service, shadow.
        first_in_group: It was the first of its group.
        shadow: Its rule is only tried.
        level: Its level, from 1; 0 while inactive.
        severity: ``low``, ``medium``, ``high`` or ``critical``: of its last level.
        value: The value at the time, if there is one.
        limit: The limit of its level, if it has one.
        active_since_ms: When it last became active.
        reason: What is wrong, for sensors; why an action was refused.
        operator: Who acted.
        comment: Why.
        title: The rule's title.
        status: The machine's status.
        plant_id: The plant of the entity.
        line_id: Its line.
        point: The measuring point that it is about, where the machine has several of the quantity.
        role: As what the operator acted.
        cause: What it may come from.
        consequence: What happens if nobody responds.
        response: What to do.
        respond_by_ms: Until when; ``None`` if nobody has said, or it is not active.
    """

    alarm_id: str
    entity_id: str
    alarm: str
    rule_id: str
    quantity: str
    category: str
    change: Change
    event_time_ms: int
    number: int
    active: bool
    acked: bool
    confirmed: bool
    retain: bool
    latched: bool
    shelved: str
    suppressed: bool
    out_of_service: bool
    silenced: bool
    announced: bool
    first_in_group: bool
    shadow: bool
    level: int
    severity: str
    value: float | None = None
    limit: float | None = None
    active_since_ms: int | None = None
    reason: str = ""
    operator: str = ""
    comment: str = ""
    title: str = ""
    status: str = ""
    plant_id: str = ""
    line_id: str = ""
    point: str = ""
    role: str = ""
    cause: str = ""
    consequence: str = ""
    response: str = ""
    respond_by_ms: int | None = None
