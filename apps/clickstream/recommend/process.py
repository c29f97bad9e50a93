"""Next items while a shop is open: each click of a visit is answered from the visits that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from millrace import (
    BroadcastContext,
    Context,
    KeyedProcess,
    Timer,
    broadcast_state,
    hours,
    map_state,
    minutes,
    side_output,
    value_state,
)
from millrace.experiments import share
from millrace.operators.detectors import Cusum, CusumState, cusum
from millrace.rules import (
    ApproveRule,
    Entry,
    PublishRule,
    RollbackRule,
    RuleEvent,
    SetRuleState,
    apply_rule,
)
from millrace_apps.clickstream.contracts.messages import ItemFacts, Looked
from millrace_apps.clickstream.recommend.clicked import (
    UNLEARNED,
    Shown,
    Shows,
    arms_of,
    clicked_in,
    shown_then,
)
from millrace_apps.clickstream.recommend.filters import (
    LANGUAGE,
    POPULAR,
    Asked,
    list_for,
    popular_list,
    rules_of,
)
from millrace_apps.clickstream.recommend.learned import NextModel, Ordered, ordered
from millrace_apps.clickstream.recommend.log import SessionLog, index_of, let_in
from millrace_apps.clickstream.recommend.records import (
    ClickThrough,
    ListExample,
    Recommendation,
    RecommendationQuality,
    RecommendedClick,
)
from millrace_apps.clickstream.recommend.scoring import Policy

#: Names of timers.
SWEEP: Final = "sweep"
CLOSE: Final = "close"
CLICKS: Final = "clicks"
#: Visits that nothing was clicked in for longer than the gap end at whole minutes.
_SWEEP_MS: Final = 60_000
#: The newest items of a visit that are looked at, and remembered.
_LONGEST: Final = 100
#: What browsers are drawn by whose lists are learned from.
EXAMPLES: Final = "examples of recommendations"


@dataclass(frozen=True)
class Recommending:
    """What is recommended.

    Attributes:
        surfaces: What is asked for at each click.
        most: Length of a list.
        gap_ms: A visit in which nothing is clicked for longer has ended, ms.
        newest: Newest sessions that an item keeps.
        keep: Newest sessions that are kept at all.
        control: Share of the persons to whom only what is popular is shown.
        unlearned: Share of the persons whose candidates no model orders.
        window_ms: Quality is told of so long, ms.
        horizon_ms: A look at an item of a list so long after it was shown, in the same visit, is a click, ms.
        detector: What finds a change of the hit rate from one time to the next.
        model: Asks a model in which order candidates are clicked; ``None``: they stay as they are.
        examples: Share of the browsers of whose lists is told what was known of the candidates.
    """

    surfaces: tuple[Policy, ...] = ("resume", "discover")
    most: int = 10
    gap_ms: int = minutes(30)
    newest: int = 1_000
    keep: int = 200_000
    control: float = 0.0
    unlearned: float = 0.0
    window_ms: int = hours(1)
    horizon_ms: int = minutes(10)
    detector: Cusum = field(default_factory=lambda: cusum(learn=24, threshold=5.0))
    model: NextModel | None = None
    examples: float = 0.0


class Visit(msgspec.Struct, array_like=True):
    """A visit that goes on.

    Attributes:
        items: What was looked at, oldest first, repeats included.
        at: The last click, ms.
        arm: What chooses its lists.
        shown: Surface → the list of the last click.
        popular: What was popular then.
        bought: What was bought in it.
        lists: Surface → the lists that may still be clicked, oldest first.
    """

    items: list[str]
    at: int
    arm: str
    shown: dict[str, list[str]] = {}
    popular: list[str] = []
    bought: list[str] = []
    lists: dict[str, list[Shown]] = {}


class Tally(msgspec.Struct, array_like=True):
    """What is counted of the lists of one surface and arm.

    Attributes:
        queries: Lists that were judged.
        hits: Of these, with the next item.
        reciprocal: Sum of 1 / rank.
        popular: Hits of what was popular.
        named: Different items that were shown.
    """

    queries: int = 0
    hits: int = 0
    reciprocal: float = 0.0
    popular: int = 0
    named: dict[str, bool] = {}


class Window(msgspec.Struct, array_like=True):
    """The time whose quality is being counted.

    Attributes:
        start: Its begin, ms.
        tallies: Surface and arm → what is counted.
        watched: Surface and arm → what is known of its hit rate so far.
        shows: Begin of a time → surface and arm → the lists that were shown in it.
    """

    start: int = -1
    tallies: dict[str, Tally] = {}
    watched: dict[str, CusumState] = {}
    shows: dict[int, dict[str, Shows]] = {}


def looked_at(items: Sequence[str], item: str) -> list[str]:
    """Return the items of a visit, the newest of them, once another one is looked at."""
    return [*items[1 - _LONGEST :], item]


class Recommender(KeyedProcess[Looked, Recommendation]):
    """Answers each click of a shop with next items, and learns from each visit once it has ended.

    One key is one shop: its log of sessions, its open visits. Events are handled in the order of their time,
    so that a list hangs on nothing but what was clicked before it: it is what an index would say of all
    visits that had ended at the last whole minute.

    Args:
        recommending: What is recommended.
    """

    name = "Recommender"
    order = "event_time"
    control_type = PublishRule | SetRuleState | ApproveRule | RollbackRule
    quality = side_output(RecommendationQuality)
    examples = side_output(ListExample)
    clicks = side_output(RecommendedClick)
    click_through = side_output(ClickThrough)

    log = value_state(SessionLog)
    segments = map_state(int, list[list[str]], paged=True)
    visits = map_state(str, Visit, paged=True)
    window = value_state(Window)
    facts = map_state(str, ItemFacts, paged=True)
    rules = broadcast_state(str, Entry)

    def __init__(self, recommending: Recommending | None = None) -> None:
        self._r = recommending or Recommending()
        self._arms = arms_of(self._r.control, self._r.unlearned)

    def describe(self) -> dict[str, Any]:
        """Return what the state hangs on."""
        return {"gap_ms": self._r.gap_ms, "keep": self._r.keep}

    def process(self, event: Looked, ctx: Context) -> None:
        """Judge the lists before by what is looked at now, and make new ones."""
        at = ctx.event_time
        if event.told is not None:
            self._learn(event.item, event.told)
            return
        visit = self.visits.get(event.visitor)
        if event.forget:
            if visit is not None:
                self.visits.remove(event.visitor)
            return
        if visit is not None and at - visit.at > self._r.gap_ms:
            self._let_in([visit.items])
            self.visits.remove(event.visitor)
            visit = None
        if not event.item:
            if visit is not None:
                visit.bought = list(dict.fromkeys([*visit.bought, *event.bought]))
                self.visits.put(event.visitor, visit)
            return
        if visit is None:
            visit = Visit([], at, self._arms.arm(event.person))
        else:
            if visit.shown:
                self._judge(visit, event.item, ctx)
            self._clicked(visit, event, ctx)
        visit.items = looked_at(visit.items, event.item)
        visit.at = max(visit.at, at)
        self._answer(event, visit, ctx)
        self.visits.put(event.visitor, visit)
        if ctx.timers.pending(SWEEP) is None:
            ctx.timers.at(at - at % _SWEEP_MS + _SWEEP_MS, SWEEP)

    def on_late(self, event: Looked, ctx: Context) -> None:
        """Forget whom one is asked to; a click that comes late is told so, and nobody waits for its list."""
        if event.told is not None:
            self._learn(event.item, event.told)
        elif event.forget:
            self.visits.remove(event.visitor)
        else:
            self.emit_late(event, ctx)

    def process_broadcast(self, control: RuleEvent, ctx: BroadcastContext) -> None:
        """Change the rules of lists."""
        apply_rule(LANGUAGE, control, self.rules)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """End visits, or tell how good the lists of a time were."""
        if timer.name == CLOSE:
            self._close(ctx)
            return
        if timer.name.startswith(CLICKS):
            self._tell_clicks(int(timer.name.removeprefix(CLICKS)), ctx)
            return
        gap, at = self._r.gap_ms, ctx.event_time
        ended = [(v.at, name, v.items) for name, v in self.visits.items() if v.at + gap < at]
        ended.sort()
        for _, name, _ in ended:
            self.visits.remove(name)
        self._let_in([items for _, _, items in ended])
        if self.visits:
            ctx.timers.at(at + _SWEEP_MS, SWEEP)

    def last_due(self, latest: int) -> int:
        """Return when the last visit has ended, and the last time is told."""
        return latest + max(self._r.gap_ms, self._r.window_ms + self._r.horizon_ms) + 2 * _SWEEP_MS

    # -- lists -----------------------------------------------------------------------------------

    def _log(self) -> SessionLog:
        log = self.log.value
        if log is None:
            log = self.log.value = SessionLog()
        return log

    def _let_in(self, ended: Sequence[Sequence[str]]) -> None:
        let_in(self._log(), self.segments, ended, m=self._r.newest, keep=self._r.keep)

    def _learn(self, item: str, told: ItemFacts) -> None:
        """Keep what is true of an item; what was said of an earlier moment is not, whenever it comes."""
        kept = self.facts.get(item)
        if kept is None or (kept.at_ms, kept.cause) < (told.at_ms, told.cause):
            self.facts.put(item, told)

    def _answer(self, event: Looked, visit: Visit, ctx: Context) -> None:
        """Make the lists of a click."""
        index = index_of(self._log(), self.segments, self._r.newest)
        rules = self.rules.view(rules_of).at(ctx.event_time)
        most, bought = self._r.most, frozenset(visit.bought)
        # An item that the index does not know, or a visit that is none, gets what is popular.
        asked = Asked(visit.items, bought, self._r.surfaces[0], self.facts.get)
        popular, _ = popular_list(index, rules, asked, most)
        visit.popular = [str(s.item) for s in popular]
        visit.shown = {}
        model = None if visit.arm == UNLEARNED else self._r.model
        learns = visit.arm != POPULAR and share(event.visitor, EXAMPLES) < self._r.examples
        for surface in self._r.surfaces:
            asked = Asked(visit.items, bought, surface, self.facts.get)
            made: list[Ordered] = []

            def suggest(number: int, surface: Policy = surface, made: list[Ordered] = made) -> Any:
                made.append(ordered(index, visit.items, surface, number, model, features=learns))
                return made[-1].suggestions

            found, dropped = list_for(
                index, rules, asked, most, popular=visit.arm == POPULAR, suggest=suggest
            )
            if not found:
                continue
            items = visit.shown[surface] = [str(s.item) for s in found]
            self._show(visit, surface, event.cause, items, ctx)
            ctx.emit(
                Recommendation(
                    cause=event.cause,
                    surface=surface,
                    visitor_id=event.visitor,
                    person=event.person,
                    event_time_ms=event.at_ms,
                    item=event.item,
                    arm=visit.arm,
                    items=items,
                    scores=[round(s.score, 6) for s in found],
                    why=[s.why for s in found],
                    visit=len(visit.items),
                    sessions=index.sessions,
                    dropped=dropped,
                    model=made[-1].model if made else "",
                )
            )
            if learns and made:
                row = ListExample(
                    cause=event.cause,
                    surface=surface,
                    visitor_id=event.visitor,
                    event_time_ms=event.at_ms,
                    item=event.item,
                    visit=len(visit.items),
                    items=made[-1].candidates,
                    features=made[-1].features.ravel().tolist(),
                )
                ctx.output(self.examples, row)

    # -- quality ---------------------------------------------------------------------------------

    def _judge(self, visit: Visit, item: str, ctx: Context) -> None:
        """Count the lists of a visit's last click, by what was looked at next."""
        window, size = self._windows(), self._r.window_ms
        if 0 <= window.start <= ctx.event_time - size:  # its timer is behind the clicks of its moment
            self._close(ctx)
        if window.start < 0:
            window.start = ctx.event_time - ctx.event_time % size
            ctx.timers.at(window.start + size, CLOSE)
        for surface, items in visit.shown.items():
            tally = window.tallies.setdefault(f"{surface}/{visit.arm}", Tally())
            tally.queries += 1
            if item in items:
                tally.hits += 1
                tally.reciprocal += 1.0 / (items.index(item) + 1)
            tally.popular += item in visit.popular
            tally.named.update(dict.fromkeys(items, True))

    def _show(self, visit: Visit, surface: str, cause: str, items: list[str], ctx: Context) -> None:
        """Count a list that is shown, and remember it until it is too late to click."""
        window, size, at = self._windows(), self._r.window_ms, ctx.event_time
        start = at - at % size
        if start not in window.shows:
            window.shows[start] = {}
            ctx.timers.at(start + size + self._r.horizon_ms, f"{CLICKS}{start}")
        window.shows[start].setdefault(f"{surface}/{visit.arm}", Shows()).lists += 1
        visit.lists[surface] = shown_then(visit.lists.get(surface, []), Shown(cause, at, items))

    def _clicked(self, visit: Visit, event: Looked, ctx: Context) -> None:
        """Count what is looked at as a click on the newest list of each surface that has it."""
        size = self._r.window_ms
        for surface, lists in visit.lists.items():
            lists[:] = [one for one in lists if ctx.event_time - one.at <= self._r.horizon_ms]
            one = clicked_in(lists, event.item)
            if one is None:
                continue
            rank = one.items.index(event.item) + 1
            shows = self._windows().shows.get(one.at - one.at % size, {}).get(f"{surface}/{visit.arm}")
            if shows is None:
                continue  # told already: the settings were others when it was shown
            shows.clicked += 1
            shows.ranks += rank
            row = RecommendedClick(
                cause=event.cause,
                surface=surface,
                arm=visit.arm,
                visitor_id=event.visitor,
                person=event.person,
                event_time_ms=event.at_ms,
                item=event.item,
                rank=rank,
                list_cause=one.cause,
                shown_ms=one.at,
            )
            ctx.output(self.clicks, row)

    def _windows(self) -> Window:
        window = self.window.value
        if window is None:
            window = self.window.value = Window()
        return window

    def _tell_clicks(self, start: int, ctx: Context) -> None:
        """Tell of the lists of a time none of which can be clicked any more."""
        for name, shows in sorted(self._windows().shows.pop(start, {}).items()):
            surface, _, arm = name.partition("/")
            rank = shows.ranks / shows.clicked if shows.clicked else None
            row = ClickThrough(
                surface, arm, start, start + self._r.window_ms, shows.lists, shows.clicked,
                shows.clicked / shows.lists, rank,
            )  # fmt: skip
            ctx.output(self.click_through, row, identity=f"{name}/{start}")

    def _close(self, ctx: Context) -> None:
        """Tell of the time that is over."""
        window = self.window.value
        if window is None or window.start < 0:
            return
        known = max(1, len(index_of(self._log(), self.segments, self._r.newest).names))
        for name, tally in sorted(window.tallies.items()):
            surface, _, arm = name.partition("/")
            rate = tally.hits / tally.queries
            change = self._r.detector.add(window.watched.setdefault(name, CusumState()), rate)
            row = RecommendationQuality(
                surface=surface,
                arm=arm,
                start_ms=window.start,
                end_ms=window.start + self._r.window_ms,
                queries=tally.queries,
                hit_rate=rate,
                mrr=tally.reciprocal / tally.queries,
                popular_hit_rate=tally.popular / tally.queries,
                coverage=len(tally.named) / known,
                change="" if change is None else change.direction,
            )
            ctx.output(self.quality, row, identity=f"{name}/{window.start}")
        window.start, window.tallies = -1, {}
