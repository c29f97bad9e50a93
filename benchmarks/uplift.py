"""`millrace bench uplift`: generated shoppers answer offers, and ``uplift`` is held to what they truly did.

The app runs in memory, from clicks to offers and outcomes; its offers go back to the generator, whose
shoppers have one answer with an offer and one without, fixed by the seed. So what an offer adds is known for
every person, those of the control arm included, and it can be counted how often the interval holds it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from millrace.host.memory_chain import MemoryChain
from millrace_apps.clickstream.contracts.events import INPUTS
from millrace_apps.clickstream.operations.uplift import Added, uplifts
from millrace_apps.clickstream.processes.offer_rules import Condition, OfferRule, OfferStep
from millrace_apps.clickstream.settings import ClickstreamSettings
from millrace_apps.clickstream.state.offers import OUTCOME_MS
from millrace_apps.clickstream.topology import topology
from millrace_apps.generators.clickstream import ClickstreamProfile
from millrace_apps.generators.clickstream.answers import OfferMade
from millrace_apps.generators.clickstream.loop import ShopWorld

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
#: Event time between two looks of the shoppers at what is offered, ms.
_STEP_MS: Final = _HOUR_MS // 2
_RULE: Final = "cart-left"


@dataclass(frozen=True)
class Shop:
    """A shop that is played.

    Attributes:
        days: Days that pass; of the persons of the last 7 no outcome is known.
        event_rate: Events a second.
        conversion: Share of the carts that are bought in the visit that fills them.
        recovery: Share of the others that are bought without an offer.
        offer_uplift: What an offer adds to it.
        control: Share of the control arm.
    """

    days: int = 20
    event_rate: float = 0.08
    conversion: float = 0.05
    recovery: float = 0.2
    offer_uplift: float = 0.3
    control: float = 0.5


class Played(msgspec.Struct, frozen=True):
    """What came of a shop.

    Attributes:
        seed: Its seed.
        exposed: Persons whose outcome time is over.
        truth: What the offer adds to the share of buyers among them.
        uplift: What the app says it adds.
        low: Lower end of its interval; ``None``: too few persons.
        high: Upper end.
        holds: Whether the interval holds the truth.
        offers: Offers that the shoppers got to know of.
        shown: Those of them that were shown.
        answered: Purchases that offers have brought about.
        dealt: Whether persons were dealt to the arms as they should have been.
    """

    seed: int
    exposed: int
    truth: float
    uplift: float | None
    low: float | None
    high: float | None
    holds: bool
    offers: int
    shown: int
    answered: int
    dealt: bool


def play(seed: int, shop: Shop | None = None) -> Played:
    """Play a shop whose visitors answer the app's offers.

    Args:
        seed: Seed of the shop.
        shop: The shop.

    Example:
        >>> found = play(3, Shop(days=2, event_rate=0.02))
        >>> found.exposed, found.shown < found.offers
        (0, True)
    """
    how = shop or Shop()
    world = ShopWorld(
        ClickstreamProfile(
            seed=seed, event_rate=how.event_rate, people=2_000, items=200, conversion=how.conversion,
            recovery=how.recovery, offer_uplift=how.offer_uplift, erasures=0.0, bots=0.0, boundaries=0.0,
        )
    )  # fmt: skip
    rule = OfferRule(
        name=_RULE,
        offer="ten-percent",
        steps=(OfferStep("left", (Condition("kind", is_="abandoned"),)),),
        within="1h",
        counts=("abandoned",),
        control=how.control,
    )
    app = _App(rule)
    tell = msgspec.json.Decoder(OfferMade).decode
    seen = _Seen()
    end_ms = world.now_ms + how.days * _DAY_MS
    while world.now_ms < end_ms:
        events = list(world.advance(world.now_ms + _STEP_MS))
        seen.take(events)
        for offer in app.take(events):
            world.receive(tell(offer))
    app.end()
    found = uplifts(app.offers, app.outcomes, [rule], until_ms=end_ms)
    exposed = _first(app.offers, until_ms=end_ms - OUTCOME_MS)
    truth = seen.added(exposed)
    return _played(seed, found[0] if found else None, truth, len(exposed), seen)


class _App:
    """The app in memory, with what it has said of offers."""

    def __init__(self, rule: OfferRule) -> None:
        settings = ClickstreamSettings()
        made = topology(settings, offers=(rule,))
        self._chain = MemoryChain(made, out_of_orderness_ms=1_000)
        self.offers: list[dict[str, Any]] = []
        self.outcomes: list[dict[str, Any]] = []

    def take(self, events: Iterable[Any]) -> list[bytes]:
        """Take events, and return the offers that come of them."""
        encode, decode = msgspec.json.encode, msgspec.json.decode
        read = [
            (one.key, one.event_time_ms, decode(encode(one.event), type=INPUTS[one.stream])) for one in events
        ]
        return self._note(self._chain.run_batch(read))

    def end(self) -> None:
        """Let all time pass that there is."""
        self._note(self._chain.drain())

    def _note(self, emitted: Iterable[Any]) -> list[bytes]:
        made = []
        for one in emitted:
            if one.output == "offers":
                made.append(one.payload)
                self.offers.append(msgspec.json.decode(one.payload))
            elif one.output == "outcomes":
                self.outcomes.append(msgspec.json.decode(one.payload))
        return made


class _Seen:
    """What the shoppers have truly done."""

    def __init__(self) -> None:
        #: Offer → what is true of it.
        self.offers: dict[str, dict[str, Any]] = {}
        self._bought: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self._users: dict[str, set[str]] = defaultdict(set)

    def take(self, events: Iterable[Any]) -> None:
        """Take down truths and purchases."""
        for one in events:
            for truth in one.truths:
                if truth.kind == "offer":
                    self.offers[truth.entity] = truth.detail
                elif truth.kind == "identity":
                    self._users[f"u:{truth.detail['user_id']}"].add(truth.entity)
            if one.stream == "clicks" and one.event.event_type == "purchase":
                self._bought[one.key].append((one.event_time_ms, one.event.order_id))

    def added(self, exposed: Mapping[str, Mapping[str, Any]]) -> float:
        """Return the mean over persons of: bought with the offer, less bought without it."""
        return sum(self._effect(one) for one in exposed.values()) / max(1, len(exposed))

    def _effect(self, offer: Mapping[str, Any]) -> int:
        true = self.offers.get(offer["offer_id"])
        if true is None or not true["adds"]:
            return 0
        answered = {t["order_id"] for t in self.offers.values() if t["order_id"] is not None}
        browsers = {offer["visitor_id"], *self._users.get(offer["person"], ())}
        at = offer["at_ms"]
        otherwise = any(
            at < when <= at + OUTCOME_MS and order not in answered
            for browser in browsers
            for when, order in self._bought.get(browser, ())
        )
        return int(not otherwise)


def _first(offers: Iterable[Mapping[str, Any]], *, until_ms: int) -> dict[str, Mapping[str, Any]]:
    """Return the first exposure of each person, of those whose outcome time is over."""
    found: dict[str, Mapping[str, Any]] = {}
    for one in sorted(offers, key=lambda row: row["at_ms"]):
        if one["arm"] in ("offer", "control") and one["at_ms"] <= until_ms:
            found.setdefault(one["person"], one)
    return found


def _played(seed: int, found: Added | None, truth: float, exposed: int, seen: _Seen) -> Played:
    told = list(seen.offers.values())
    shown, answered = sum(t["shown"] for t in told), sum(t["order_id"] is not None for t in told)
    if found is None or found.low is None or found.high is None:
        none = None if found is None else found.uplift
        return Played(
            seed=seed,
            exposed=exposed,
            truth=truth,
            uplift=none,
            low=None,
            high=None,
            holds=False,
            offers=len(told),
            shown=shown,
            answered=answered,
            dealt=True,
        )
    holds = found.low <= truth <= found.high
    return Played(
        seed=seed,
        exposed=exposed,
        truth=truth,
        uplift=found.uplift,
        low=found.low,
        high=found.high,
        holds=holds,
        offers=len(told),
        shown=shown,
        answered=answered,
        dealt=found.dealt,
    )


def evaluate(
    seeds: Iterable[int], shop: Shop, *, jobs: int = 1, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Play shops, and count how often the interval of ``uplift`` holds the truth.

    Args:
        seeds: A shop for each.
        shop: How they are.
        jobs: Processes to play in.
        say: Told what goes on.
    """
    from concurrent.futures import ProcessPoolExecutor
    from functools import partial
    from multiprocessing import get_context

    found: list[Played] = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for one in pool.map(partial(play, shop=shop), seeds):
            found.append(one)
            held = sum(p.holds for p in found)
            say(f"{len(found)} played, {held} held; the last: truth {one.truth:+.3f}, said {_said(one)}")
    told = [one for one in found if one.low is not None]
    return {
        "seeds": len(found),
        "told": len(told),
        "held": sum(one.holds for one in found),
        "coverage": sum(one.holds for one in told) / len(told) if told else None,
        "above_nothing": sum(one.low is not None and one.low > 0 for one in found),
        "mean_truth": sum(one.truth for one in found) / len(found) if found else None,
        "mean_uplift": sum(one.uplift or 0.0 for one in told) / len(told) if told else None,
        "mean_width": sum((one.high or 0) - (one.low or 0) for one in told) / len(told) if told else None,
        "played": [msgspec.to_builtins(one) for one in found],
    }


def _said(one: Played) -> str:
    if one.low is None or one.high is None or one.uplift is None:
        return "nothing (too few)"
    return f"{one.uplift:+.3f} [{one.low:+.3f}, {one.high:+.3f}] of {one.exposed} persons"
