"""Offers as data: what a person must do, and be, to be offered something; made patterns of the core.

A rule is steps with conditions. A condition compares a field of the event (or a feature of the person's
profile) with a value, or with the same field of an earlier step. Rules come from a file (JSON or YAML)::

    - name: come-back
      offer: ten-percent
      within: 24h
      steps:
        - {name: left, where: [{field: kind, is: abandoned}, {field: cents, at_least: 2000}]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from millrace.dead_letters import NOT_JSON
from millrace.errors import UserError
from millrace.patterns import begin
from millrace.time import ms
from millrace.time.durations import parse_duration
from millrace_apps.clickstream.contracts.messages import Shopping

#: What an event has, and what is known of the person at that moment.
EVENT_FIELDS: Final = ("kind", "subject", "category", "device", "stage", "cents", "quantity", "gender")
PERSON_FIELDS: Final = ("age", "views_24h", "adds_24h", "orders_7d", "orders", "price_level_cents")


class OfferRuleError(UserError):
    """A rule of offers that cannot be understood."""


class Condition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Something that must hold of an event.

    Attributes:
        field: A field of the event, or a feature of the person.
        is_: It is this.
        one_of: It is one of these.
        at_least: It is not less.
        at_most: It is not more.
        not_as: It differs from the same field of the first event of this earlier step.
        as_: It is as in that step.
    """

    field: str
    is_: str | int | None = msgspec.field(name="is", default=None)
    one_of: tuple[str | int, ...] | None = None
    at_least: int | None = None
    at_most: int | None = None
    not_as: str | None = None
    as_: str | None = msgspec.field(name="as", default=None)

    def check(self, rule: str, steps: Iterable[str]) -> None:
        """Refuse what cannot be judged."""
        if self.field not in (*EVENT_FIELDS, *PERSON_FIELDS):
            known = ", ".join((*EVENT_FIELDS, *PERSON_FIELDS))
            raise OfferRuleError(f"offer rule {rule}: there is no field '{self.field}'; there are {known}")
        for step in (self.not_as, self.as_):
            if step is not None and step not in steps:
                raise OfferRuleError(f"offer rule {rule}: '{step}' is no earlier step")
        asked = (self.is_, self.one_of, self.at_least, self.at_most, self.not_as, self.as_)
        if all(part is None for part in asked):
            raise OfferRuleError(f"offer rule {rule}: the condition on {self.field} asks nothing")

    def holds(self, event: Shopping, matched: dict[str, list[Shopping]]) -> bool:
        """Tell whether it holds of an event, given what earlier steps have taken."""
        value = value_of(event, self.field)
        if self.is_ is not None and value != self.is_:
            return False
        if self.one_of is not None and value not in self.one_of:
            return False
        if self.at_least is not None and (isinstance(value, str) or value < self.at_least):
            return False
        if self.at_most is not None and (isinstance(value, str) or value > self.at_most):
            return False
        if self.not_as is not None and value == value_of(matched[self.not_as][0], self.field):
            return False
        return self.as_ is None or value == value_of(matched[self.as_][0], self.field)


class OfferStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One event of a rule.

    Attributes:
        name: Its name.
        where: What must hold of it, all of it.
        follows: ``strict``: the next event that counts; ``loose``: any later one.
    """

    name: str
    where: tuple[Condition, ...]
    follows: Literal["strict", "loose"] = "loose"


class OfferRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """When an offer is made.

    Attributes:
        name: Name of the rule.
        offer: What is offered.
        steps: What must happen, in order.
        within: In what time after the first event, e.g. ``30m``.
        counts: Kinds of events that the rule looks at; others are passed over even by strict steps.
        skip_repeats: An event of the same kind and subject as the one before is passed over.
        cap: Most offers of this rule per person in ``cap_within``.
        cap_within: That time.
        cool_down: No offer of any rule this soon after another, to the same person.
        control: Share of persons who are offered nothing, so that it can be seen what the offer does.
    """

    name: str
    offer: str
    steps: tuple[OfferStep, ...]
    within: str = "30m"
    counts: tuple[str, ...] = ("view", "search", "add_to_cart", "checkout", "purchase", "abandoned")
    skip_repeats: bool = False
    cap: int = 1
    cap_within: str = "7d"
    cool_down: str = "1d"
    control: float = 0.2

    def check(self) -> None:
        """Refuse a rule that means nothing.

        Raises:
            OfferRuleError: It says what is wrong.
        """
        if not self.steps:
            raise OfferRuleError(f"offer rule {self.name} has no steps")
        if not 0 <= self.control <= 1 or self.cap < 1:
            raise OfferRuleError(f"offer rule {self.name}: control is a share, and cap at least 1")
        earlier: list[str] = []
        for step in self.steps:
            if step.name in earlier:
                raise OfferRuleError(f"offer rule {self.name} has two steps '{step.name}'")
            for condition in step.where:
                condition.check(self.name, earlier)
            earlier.append(step.name)
        for text in (self.within, self.cap_within, self.cool_down):
            duration_ms(text)

    def pattern(self) -> Any:
        """Return the rule as a pattern of the core."""
        pattern: Any = None
        for step in self.steps:
            if pattern is None:
                pattern = begin(step.name)
            else:
                then = pattern.next if step.follows == "strict" else pattern.followed_by
                pattern = then(step.name)
            pattern = pattern.where(_all(step.where))
        return pattern.within(duration_ms(self.within))


def _all(conditions: tuple[Condition, ...]) -> Callable[..., bool]:
    if any(c.not_as or c.as_ for c in conditions):
        return lambda event, matched: all(c.holds(event, matched) for c in conditions)
    return lambda event: all(c.holds(event, {}) for c in conditions)


def duration_ms(text: str) -> int:
    """Return a length of time, ms.

    >>> duration_ms("30m")
    1800000
    """
    try:
        return ms(parse_duration(text))
    except (ValueError, TypeError) as error:
        raise OfferRuleError(f"'{text}' is no length of time; write e.g. 30m or 7d") from error


def value_of(event: Shopping, field: str) -> str | int:
    """Return a field of an event, or a feature of its person; 0 or empty where it is not known."""
    if field == "age":
        return (
            datetime.fromtimestamp(event.at_ms / 1_000, UTC).year - event.birth_year
            if event.birth_year
            else 0
        )
    if field in PERSON_FIELDS:
        return event.counts.get(field, 0)
    value: str | int = getattr(event, field)
    return value


def _quix(name: str, offer: str, gender: str, low: int, high: int) -> OfferRule:
    """The offer of a well-known demo shop: clothes, then shoes, then other clothes, within half an hour."""
    who = (
        Condition("kind", is_="view"),
        Condition("gender", is_=gender),
        Condition("age", at_least=low, at_most=high),
    )
    return OfferRule(
        name=name,
        offer=offer,
        steps=(
            OfferStep("clothes", (*who, Condition("category", is_="clothing"))),
            OfferStep("shoes", (Condition("category", is_="shoes"),), "strict"),
            OfferStep(
                "again",
                (Condition("category", is_="clothing"), Condition("subject", not_as="clothes")),
                "strict",
            ),
        ),
        counts=("view",),
        skip_repeats=True,
    )  # fmt: skip


#: Who looks at clothes, shoes and other clothes (github.com/quixio/template-clickstream); and a cart left.
DEFAULT_RULES: Final = (
    _quix("clothes-and-shoes-m", "offer1", "m", 35, 45),
    _quix("clothes-and-shoes-f", "offer2", "f", 25, 35),
    OfferRule(
        name="cart-left",
        offer="ten-percent",
        steps=(OfferStep("left", (Condition("kind", is_="abandoned"),)),),
        within="1h",
        counts=("abandoned",),
    ),
)


def read_rules(path: Path) -> tuple[OfferRule, ...]:
    """Read rules from a JSON or YAML file.

    Raises:
        OfferRuleError: It cannot be read or understood; the message says where.
    """
    try:
        decode = msgspec.json.decode if path.suffix == ".json" else msgspec.yaml.decode
        rules: tuple[OfferRule, ...] = decode(path.read_bytes(), type=tuple[OfferRule, ...])
    except OSError as error:
        raise OfferRuleError(f"{path} cannot be read: {error.strerror}") from error
    except NOT_JSON as error:
        raise OfferRuleError(f"{path}: {error}") from error
    for rule in rules:
        rule.check()
    if len({rule.name for rule in rules}) < len(rules):
        raise OfferRuleError(f"{path} has two rules of one name")
    return rules
