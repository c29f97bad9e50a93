"""The serving question of next items: ``millrace serve clickstream``, from committed state."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from millrace.checkpoints.committed import CommittedState
from millrace.rules import RuleSet
from millrace.serving.questions import NotFound, Question, Refused
from millrace.state.broadcast import BroadcastLayout
from millrace_apps.clickstream.contracts.messages import SHOP, ItemFacts
from millrace_apps.clickstream.recommend.clicked import UNLEARNED
from millrace_apps.clickstream.recommend.filters import POPULAR, Asked, list_for, rules_of
from millrace_apps.clickstream.recommend.index import SessionIndex
from millrace_apps.clickstream.recommend.learned import NextModel, Ordered, ordered
from millrace_apps.clickstream.recommend.log import SEGMENT, SessionLog, token_after
from millrace_apps.clickstream.recommend.process import Recommender, Visit, looked_at
from millrace_apps.clickstream.recommend.scoring import Policy

if TYPE_CHECKING:
    from millrace_apps.clickstream.settings import ClickstreamSettings

_PROCESS: Final = Recommender.name
_BROADCAST: Final = BroadcastLayout(Recommender.states)
_LONGEST: Final = 100
#: Newest sessions that an item keeps: as the settings' default.
_NEWEST: Final = 1_000


def states_of(state: CommittedState, items: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return what is kept of the shop: name of a state → its value, of paged ones some items.

    Raises:
        NotFound: No next items are kept.
    """
    if _PROCESS not in [stage.process for stage in state.stages]:
        raise NotFound("no next items are kept here: the app runs without recommend.on")
    entry = state.entry(_PROCESS, (SHOP,), items)
    return {} if entry is None else {s.name: s.value for s in entry[0].states.values()}


class Catalogue:
    """What a committed batch knows of items, read as it is asked for.

    Args:
        state: The state.
    """

    def __init__(self, state: CommittedState) -> None:
        self._state = state
        self._known: dict[str, ItemFacts | None] = {}

    def read(self, items: Iterable[str]) -> None:
        """Read what is known of some items, together."""
        unread = [item for item in dict.fromkeys(items) if item not in self._known]
        if unread:
            found = states_of(self._state, {"facts": unread}).get("facts") or {}
            self._known.update(
                (item, None if item not in found else msgspec.convert(found[item], ItemFacts))
                for item in unread
            )

    def get(self, item: str) -> ItemFacts | None:
        """Return what is known of an item."""
        self.read((item,))
        return self._known[item]


class Follower:
    """An index that follows the log of the committed batches: only sessions that are new are read.

    Args:
        newest: Newest sessions that an item keeps.
    """

    def __init__(self, newest: int = _NEWEST) -> None:
        self._newest = newest
        self._lock = threading.Lock()
        self._index = SessionIndex(newest)
        self._first, self._count, self._token = 0, 0, ""

    def at(self, state: CommittedState, visitor: str) -> tuple[SessionIndex, Visit | None, RuleSet]:
        """Return the index as of the state's batch, a browser's visit, and the rules in force.

        Returns:
            In place of the visit ``None`` where there is none.

        Raises:
            NotFound: No next items are kept.
        """
        with self._lock, state.held():
            found = states_of(state, {"visits": [visitor]})
            log = msgspec.convert(found["log"], SessionLog) if "log" in found else SessionLog()
            if log.token != self._token:
                self._follow(state, log)
            kept = (found.get("visits") or {}).get(visitor)
            visit = None if kept is None else msgspec.convert(kept, Visit)
            now = max(state.watermark or 0, 0 if visit is None else visit.at)
            published = _BROADCAST.decode(state.broadcast(_PROCESS, (SHOP,)))["rules"]
            return self._index, visit, rules_of(published.items()).at(now)

    def _follow(self, state: CommittedState, log: SessionLog) -> None:
        """Let in the sessions that the index has not; where the log is another one, begin anew.

        It was cut, or the app went on from a savepoint: as long as it may be, it says other sessions then.
        """
        new = None
        if self._token and log.first == self._first and log.sessions >= self._count:
            new = _sessions_from(state, log, self._count)
            if reduce(token_after, new, self._token) != log.token:
                new = None
        if new is None:
            self._index, self._first = SessionIndex(self._newest), log.first
            new = _sessions_from(state, log, 0)
        for items in new:
            self._index.add(items)
        self._count, self._token = log.sessions, log.token


def _sessions_from(state: CommittedState, log: SessionLog, count: int) -> list[list[str]]:
    """Return the sessions of a log behind so many."""
    sealed, inside = divmod(count, SEGMENT)
    numbers = list(range(log.first + sealed, log.last))
    segments = states_of(state, {"segments": numbers}).get("segments") or {} if numbers else {}
    kept = {int(number): sessions for number, sessions in segments.items()}
    behind = [items for number in numbers for items in kept[number]]
    return [*behind, *log.open][inside:]


def next_items(
    state: CommittedState,
    told: Mapping[str, str],
    follower: Follower,
    model: NextModel | None = None,
    longest: int = 10,
) -> Any:
    """Return the next items for a browser's visit, as of the committed batch.

    Args:
        state: The state.
        told: ``visitor``; ``surface``; ``item``: looked at now, and not committed yet; ``most``.
        follower: The index.
        model: Asks a model in which order candidates are clicked.
        longest: Length of a list unless ``most`` says another one.

    Raises:
        Refused: A parameter is wrong.
        NotFound: No next items are kept.
    """
    surface = told.get("surface") or "resume"
    if surface not in get_args(Policy):
        raise Refused(f"surface is one of {', '.join(get_args(Policy))}")
    most = told.get("most") or str(longest)
    if not most.isascii() or not most.isdigit() or not 1 <= int(most) <= _LONGEST:
        raise Refused(f"most is a number from 1 to {_LONGEST}")
    with state.held():
        index, visit, rules = follower.at(state, told["visitor"])
        items = [] if visit is None else list(visit.items)
        bought = frozenset(() if visit is None else visit.bought)
        # Whose visits may not be kept has none, and what is looked at now is not used for them either.
        if told.get("item") and visit is not None:
            items = looked_at(items, told["item"])
        catalogue = Catalogue(state)
        asked = Asked(items, bought, surface, catalogue.get)  # type: ignore[arg-type]
        unknown = visit is None or visit.arm == POPULAR
        made: list[Ordered] = []
        asks = None if visit is None or visit.arm == UNLEARNED else model

        def suggest(number: int) -> Any:
            made.append(ordered(index, items, surface, number, asks, features=False))  # type: ignore[arg-type]
            return made[-1].suggestions

        found, dropped = list_for(
            index, rules, asked, int(most), popular=unknown, suggest=suggest,
            reads=lambda names: catalogue.read([*names, *items[-1:]]),
        )  # fmt: skip
    return {
        "visitor": told["visitor"],
        "surface": surface,
        "visit": len(items),
        "sessions": index.sessions,
        "items": [{"item": s.item, "score": round(s.score, 6), "why": s.why} for s in found],
        "dropped": msgspec.to_builtins(dropped),
        "model": made[-1].model if made else "",
    }


def questions(settings: ClickstreamSettings) -> dict[str, Question]:
    """Return the questions, answered as an app of these settings does.

    Args:
        settings: Those that the app runs with.
    """
    told = settings.recommend
    answer = partial(
        next_items,
        follower=Follower(told.newest),
        model=told.order(Path(settings.storage.path("models"))),
        longest=told.most,
    )
    return {
        "next_items": Question(
            "The next items for a browser's visit, the likeliest first; popular ones where nothing is known.",
            answer,
            parameters=("visitor",),
            optional=("surface", "item", "most"),
        )
    }
