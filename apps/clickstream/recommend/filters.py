"""Filters of recommendations, by rules that change while the shop is open: stock, category, price, bought."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from millrace.errors import UserError
from millrace.rules import Entry, Field, InForce, Language, Rule, RuleSet, Version, check_rules, view_of
from millrace.rules.model import Step
from millrace_apps.clickstream.contracts.messages import ItemFacts
from millrace_apps.clickstream.recommend.baselines import popularity
from millrace_apps.clickstream.recommend.index import SessionIndex
from millrace_apps.clickstream.recommend.scoring import Policy, Suggestion, recommend

#: The arm, and the reason of a suggestion, of what is looked at most.
POPULAR: Final = "popular"
#: So many suggestions are looked at for one list at most; what rules leave of them is the list.
MOST_ASKED: Final = 1_000
#: So much of what was dropped is told of a list.
MOST_TOLD: Final = 100

LANGUAGE: Final = Language(
    {
        "item": Field("text", about="the item that would be shown"),
        "category": Field("text", nullable=True, about="its category, by the catalogue"),
        "price": Field("number", nullable=True, about="of a piece, in the shop's currency"),
        "stock": Field("number", nullable=True, about="pieces that there are"),
        "surface": Field("text", about="where it would be shown: resume, discover"),
        "bought": Field("boolean", about="whether it was bought in this visit"),
        "seen": Field("number", about="how often it was looked at in this visit"),
        "current": Field("text", nullable=True, about="the item that is looked at"),
        "current_category": Field("text", nullable=True, about="its category"),
        "current_price": Field("number", nullable=True, about="its price"),
    }
)
#: Rules that hold until one of their id is published.
BUILT_IN: Final = (
    Rule("bought", "bought", description="What was bought in this visit is not shown in it again."),
    Rule("sold-out", "stock == 0", description="What cannot be bought is not shown."),
)


class Dropped(msgspec.Struct, frozen=True, gc=False):
    """An item that a rule has kept from a list, or would have.

    Attributes:
        item: The item.
        rule: The rule.
        version: Its version; 0 of one that is built in.
        shadow: Whether the rule is only tried: the item was shown.
    """

    item: str
    rule: str
    version: int
    shadow: bool


class Candidate:
    """An item that may be shown, as rules ask about it; the catalogue is looked into where a rule asks."""

    __slots__ = ("_of", "item")

    def __init__(self, item: str, of: Asked) -> None:
        self.item = item
        self._of = of

    @property
    def category(self) -> str | None:
        """Its category."""
        return _category(self._of.facts(self.item))

    @property
    def price(self) -> float | None:
        """Its price."""
        return _price(self._of.facts(self.item))

    @property
    def stock(self) -> int | None:
        """Pieces that there are."""
        facts = self._of.facts(self.item)
        return None if facts is None else facts.stock

    @property
    def surface(self) -> str:
        """Where it would be shown."""
        return self._of.surface

    @property
    def bought(self) -> bool:
        """Whether it was bought in this visit."""
        return self.item in self._of.bought

    @property
    def seen(self) -> int:
        """How often it was looked at in this visit."""
        return self._of.items.count(self.item)

    @property
    def current(self) -> str | None:
        """The item that is looked at."""
        return self._of.items[-1] if self._of.items else None

    @property
    def current_category(self) -> str | None:
        """Its category."""
        return _category(self._of.facts(self._of.items[-1])) if self._of.items else None

    @property
    def current_price(self) -> float | None:
        """Its price."""
        return _price(self._of.facts(self._of.items[-1])) if self._of.items else None


def _category(facts: ItemFacts | None) -> str | None:
    return None if facts is None else facts.category


def _price(facts: ItemFacts | None) -> float | None:
    return None if facts is None or facts.cents is None else facts.cents / 100


class Asked(msgspec.Struct, frozen=True):
    """A visit that a list is for.

    Attributes:
        items: What was looked at, oldest first, repeats included.
        bought: What was bought in it.
        surface: Where the list is shown.
        facts: What the catalogue says of an item.
    """

    items: Sequence[str]
    bought: frozenset[str]
    surface: Policy
    facts: Callable[[str], ItemFacts | None]


_ready: Final = view_of(LANGUAGE)
_BUILT_IN: Final = {
    rule.id: Entry((Version(0, rule, (Step(0, "active"),), was_active=True),), ()) for rule in BUILT_IN
}


def rules_of(published: Iterable[tuple[str, Entry]]) -> InForce:
    """Return the rules, those published and those built in, ready to be asked at any event time.

    Args:
        published: Rules by their ids; one that is built in gives way to one of its id.

    Example:
        >>> from types import SimpleNamespace as Shown
        >>> rules = rules_of([]).at(0)
        >>> [match.rule.id for match in rules.matches(Shown(bought=False, stock=0))]
        ['sold-out']
    """
    return _ready({**_BUILT_IN, **dict(published)}.items())


def read_filters(file: Path) -> list[Rule]:
    """Return the rules of a file, YAML or JSON.

    Raises:
        UserError: It cannot be read, or a rule is none; says where and why.
    """
    rules, problems = check_rules(LANGUAGE, file)
    if problems:
        raise UserError("\n".join(problems))
    return rules


def sift(
    suggest: Callable[[int], Sequence[Suggestion]],
    rules: RuleSet,
    asked: Asked,
    most: int,
    reads: Callable[[list[str]], object] | None = None,
) -> tuple[list[Suggestion], list[Dropped]]:
    """Return the best suggestions that no rule drops, and what rules have dropped before the last of these.

    Args:
        suggest: Gives so many suggestions, the best first; fewer only where there are no more. The first of
            more are those of fewer.
        rules: The rules in force.
        asked: What the list is for.
        most: Length of the list.
        reads: Told which items rules will be asked about, before they are.

    Example:
        >>> found = [Suggestion(name, 1.0, "sessions") for name in ("shoe", "sock", "lace")]
        >>> facts = {"sock": ItemFacts(0, "c1", "socks", 500, 0)}.get
        >>> kept, dropped = sift(lambda n: found[:n], rules_of([]).at(0),
        ...                      Asked(["shoe"], frozenset(), "resume", facts), 2)
        >>> [s.item for s in kept], [(d.item, d.rule) for d in dropped]
        (['shoe', 'lace'], [('sock', 'sold-out')])
    """
    if not len(rules):
        return list(suggest(most)), []
    number = most + 10
    while True:
        found = suggest(number)
        if reads is not None:
            reads([str(one.item) for one in found])
        kept: list[Suggestion] = []
        dropped: list[Dropped] = []
        for one in found:
            matches = rules.matches(Candidate(str(one.item), asked))
            dropped += [Dropped(str(one.item), m.rule.id, m.version, m.shadow) for m in matches]
            if all(m.shadow for m in matches):
                kept.append(one)
                if len(kept) == most:
                    break
        if len(kept) == most or len(found) < number or number >= MOST_ASKED:
            return kept, dropped[:MOST_TOLD]
        number = min(4 * number, max(MOST_ASKED, most))


def popular_list(
    index: SessionIndex,
    rules: RuleSet,
    asked: Asked,
    most: int,
    *,
    barred: Iterable[str] = (),
    reads: Callable[[list[str]], object] | None = None,
) -> tuple[list[Suggestion], list[Dropped]]:
    """Return what is looked at most and no rule drops, and what rules have dropped.

    Args:
        index: The sessions.
        rules: The rules in force.
        asked: What the list is for.
        most: Length of the list.
        barred: Items that are not for this surface.
        reads: Told which items rules will be asked about, before they are.
    """
    not_these = set(barred)

    def suggest(number: int) -> list[Suggestion]:
        names = popularity(index, (), "resume", number + len(not_these))
        return [Suggestion(name, 0.0, POPULAR) for name in names if name not in not_these][:number]

    return sift(suggest, rules, asked, most, reads)


def list_for(
    index: SessionIndex,
    rules: RuleSet,
    asked: Asked,
    most: int,
    *,
    popular: bool = False,
    suggest: Callable[[int], Sequence[Suggestion]] | None = None,
    reads: Callable[[list[str]], object] | None = None,
) -> tuple[list[Suggestion], list[Dropped]]:
    """Return a list of next items for a visit, and what rules have dropped.

    Args:
        index: Sessions that have ended.
        rules: The rules in force.
        asked: What the list is for.
        most: Its length.
        popular: Show what is popular only.
        suggest: Gives suggestions in another order than that of sessions alike (see :func:`sift`).
        reads: Told which items rules will be asked about, before they are.
    """
    if popular:
        barred = asked.items if asked.surface == "discover" else ()
        return popular_list(index, rules, asked, most, barred=barred, reads=reads)
    return sift(
        suggest or (lambda number: recommend(index, asked.items, policy=asked.surface, most=number)),
        rules, asked, most, reads,
    )  # fmt: skip
