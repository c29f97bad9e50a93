"""A cart, what has happened to it, and for how long it lay idle."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from millrace_apps.generators.clickstream.catalogue import Item

#: A cart that lies idle for less is of no interest to anybody, ms; an app waits at least this long.
MIN_IDLE_MS: Final = 900_000


class CartStep(NamedTuple):
    """Something that happened to a cart.

    Attributes:
        at_ms: When, ms since the epoch, UTC.
        stage: How far it has come: ``cart``, a step of the checkout, or ``bought``.
        cents: What it is worth afterwards.
        items: What is in it then, most pieces first; of equals the lesser name.
    """

    at_ms: int
    stage: str
    cents: int
    items: tuple[str, ...] = ()


class Cart:
    """Items on their way to a purchase; ``places`` are its events in the visit.

    Args:
        visitor_id: Who fills it.
    """

    __slots__ = ("cart_id", "lines", "places", "steps", "visitor_id")

    def __init__(self, visitor_id: str) -> None:
        self.visitor_id = visitor_id
        #: Empty until something is put in.
        self.cart_id = ""
        self.lines: list[tuple[Item, int]] = []
        self.steps: list[CartStep] = []
        self.places: list[int] = []

    @property
    def cents(self) -> int:
        """What its items cost, cents."""
        return sum(item.cents * quantity for item, quantity in self.lines)

    @property
    def items(self) -> tuple[str, ...]:
        """What is in it, most pieces first; of equals the lesser name."""
        return tuple(
            item.item_id for item, _ in sorted(self.lines, key=lambda one: (-one[1], one[0].item_id))
        )

    def holds(self, item: Item) -> bool:
        """Tell whether an item is in it."""
        return any(held is item for held, _ in self.lines)

    def note(self, at_ms: int, stage: str, place: int) -> None:
        """Take down that something happened to it, in the event at this place."""
        self.steps.append(CartStep(at_ms, stage, self.cents, self.items))
        self.places.append(place)


def idle_spells(steps: list[CartStep]) -> list[dict[str, Any]]:
    """Return every time in which a cart with something in it lay idle for 15 minutes or longer.

    An app that waits for a timeout (15 minutes or more) must report exactly the spells that last longer
    than it, those without an end among them.

    Args:
        steps: All that happened to the cart, in order of time.

    Returns:
        Per spell ``since_ms``, ``until_ms`` (None: for ever), ``stage``, ``value_cents``, ``items`` and what
        ended it: ``purchase``, ``activity`` or ``nothing``.

    >>> (spell,) = idle_spells([CartStep(0, "cart", 999, ("a",)), CartStep(1_000_000, "bought", 999)])
    >>> spell["until_ms"], spell["value_cents"], spell["items"], spell["ended_by"]
    (1000000, 999, ['a'], 'purchase')
    """
    spells = []
    for place, step in enumerate(steps):
        if step.cents == 0 or step.stage == "bought":
            continue
        then = steps[place + 1] if place + 1 < len(steps) else None
        if then is not None and then.at_ms - step.at_ms < MIN_IDLE_MS:
            continue
        ended_by = "nothing" if then is None else "purchase" if then.stage == "bought" else "activity"
        spells.append(
            {
                "since_ms": step.at_ms,
                "until_ms": None if then is None else then.at_ms,
                "stage": step.stage,
                "value_cents": step.cents,
                "items": list(step.items),
                "ended_by": ended_by,
            }
        )
    return spells
