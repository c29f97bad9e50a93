"""What ``millrace serve clickstream`` can be asked: the next items for a visitor, from committed state."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec

from apps.clickstream.messages import SHOP
from apps.clickstream.recommend.index import SessionIndex
from apps.clickstream.recommend.log import SEGMENT, SessionLog
from apps.clickstream.recommend.process import POPULAR, Recommender, Visit
from apps.clickstream.recommend.scoring import Policy, recommend
from millrace.inspect.committed import CommittedState
from millrace.serving.questions import NotFound, Question, Refused

_PROCESS: Final = Recommender.name
_MOST: Final = 10
_LONGEST: Final = 100
#: Newest sessions that an item keeps: as the settings' default.
_NEWEST: Final = 1_000


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

    def at(self, state: CommittedState, visitor: str) -> tuple[SessionIndex, Visit | None]:
        """Return the index as of the state's batch, and a browser's visit; ``None``: there is none.

        Raises:
            NotFound: No next items are kept.
        """
        with self._lock, state.held():
            found = self._states(state, {"visits": [visitor]})
            log = msgspec.convert(found["log"], SessionLog) if "log" in found else SessionLog()
            if log.token != self._token:
                self._follow(state, log)
            kept = (found.get("visits") or {}).get(visitor)
            return self._index, None if kept is None else msgspec.convert(kept, Visit)

    def _states(self, state: CommittedState, items: Mapping[str, list[Any]]) -> dict[str, Any]:
        if _PROCESS not in [stage.process for stage in state.stages]:
            raise NotFound("no next items are kept here: the app runs without recommend.on")
        entry = state.entry(_PROCESS, (SHOP,), items)
        return {} if entry is None else {s.name: s.value for s in entry[0].states.values()}

    def _follow(self, state: CommittedState, log: SessionLog) -> None:
        """Let in the sessions that the index has not; where the log was cut, begin anew."""
        if log.first != self._first or log.sessions < self._count or not self._token:
            self._index, self._first, self._count = SessionIndex(self._newest), log.first, 0
        sealed, inside = divmod(self._count, SEGMENT)
        numbers = list(range(log.first + sealed, log.last))
        segments = self._states(state, {"segments": numbers}).get("segments") or {} if numbers else {}
        kept = {int(number): sessions for number, sessions in segments.items()}
        for number in numbers:
            for items in kept[number][inside:]:
                self._index.add(items)
            inside = 0
        for items in log.open[inside:]:
            self._index.add(items)
        self._count, self._token = log.sessions, log.token


_follower = Follower()


def next_items(state: CommittedState, told: Mapping[str, str], follower: Follower = _follower) -> Any:
    """Return the next items for a browser's visit, as of the committed batch.

    Args:
        state: The state.
        told: ``visitor``; ``surface``; ``item``: looked at now, and not committed yet; ``most``.
        follower: The index.

    Raises:
        Refused: A parameter is wrong.
        NotFound: No next items are kept.
    """
    surface = told.get("surface") or "resume"
    if surface not in get_args(Policy):
        raise Refused(f"surface is one of {', '.join(get_args(Policy))}")
    most = told.get("most") or str(_MOST)
    if not most.isascii() or not most.isdigit() or not 1 <= int(most) <= _LONGEST:
        raise Refused(f"most is a number from 1 to {_LONGEST}")
    index, visit = follower.at(state, told["visitor"])
    items = [] if visit is None else list(visit.items)
    bought = set() if visit is None else set(visit.bought)
    # Whose visits may not be kept has none, and what is looked at now is not used for them either.
    if told.get("item") and visit is not None:
        items.append(told["item"])
    shown = () if visit is None or visit.arm == POPULAR else items
    wanted = int(most) + len(bought) + len(items)
    found = recommend(index, shown, policy=surface, most=wanted)  # type: ignore[arg-type]
    barred = bought | (set(items) if surface == "discover" else set())
    kept = [s for s in found if s.item not in barred][: int(most)]
    return {
        "visitor": told["visitor"],
        "surface": surface,
        "visit": len(items),
        "sessions": index.sessions,
        "items": [{"item": s.item, "score": round(s.score, 6), "why": s.why} for s in kept],
    }


QUESTIONS: Final = {
    "next_items": Question(
        "The next items for a browser's visit, the likeliest first; popular ones where nothing is known.",
        next_items,
        parameters=("visitor",),
        optional=("surface", "item", "most"),
    )
}
