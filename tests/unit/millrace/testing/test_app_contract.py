"""The contract of apps sees what is wrong with an app: each fault fails the test that is there for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import pytest

from millrace import Context, KeyedProcess, arrival, value_state
from millrace.process import Timer
from millrace.runtime.apps import App, Topic, Topics
from millrace.runtime.settings import AppSettings
from millrace.testing.app_contract import AppInMemory
from millrace.testing.standing import Happened
from millrace.topology import Input, Topology, read


class Tap(msgspec.Struct, frozen=True):
    card: str
    event_time_ms: int


class Said(msgspec.Struct, frozen=True):
    card: str
    at: int
    n: int


class Taps(KeyedProcess[Tap, Said]):
    """Numbers a card's taps in order of time."""

    order = "event_time"
    n = value_state(int, default=0)

    def process(self, event: Tap, ctx: Context) -> None:
        self.n.value += 1
        ctx.emit(Said(event.card, ctx.event_time, self.n.value))


class ByArrival(Taps):
    """The same in order of arrival, which the cuts decide."""

    name = "Taps"
    order = arrival(commutes=True)


class Forgets(Taps):
    """Keeps something beside its state, which a restart takes away."""

    name = "Taps"
    seen: ClassVar[dict[int, int]] = {}

    def process(self, event: Tap, ctx: Context) -> None:
        mine = self.__dict__.setdefault("_mine", {})
        mine[event.card] = mine.get(event.card, 0) + 1
        ctx.emit(Said(event.card, ctx.event_time, mine[event.card]))


class BatchCall(Taps):
    """Tells how far the stream is: a device whose clock is wrong would move it, if it were believed."""

    name = "Taps"

    def process(self, event: Tap, ctx: Context) -> None:
        ctx.timers.at(ctx.event_time + 5_000, f"told {ctx.event_time}")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        ctx.emit(Said(str(ctx.key), timer.at, 0))


def app_of(process: KeyedProcess[Any, Any], **tables: str) -> App:
    wanted = tables or {"main": "said", "late": "late", "dead_letters": "dead"}

    def topology(settings: AppSettings) -> Topology:
        return read(Input("taps", "card"), control="control").process(process).write(tables=wanted)

    def topics(settings: AppSettings) -> Topics:
        reads = (Topic("taps", event_time="event_time_ms"), Topic("control", 1))
        return Topics(reads=reads, control="control")

    return App("taps", "", AppSettings, topology, topics)


class World(AppInMemory):
    bound_ms = 2_000
    per_key = False

    def world(self) -> Iterator[Happened]:
        for n in range(300):
            at = 1_000_000 + 700 * n
            yield Happened(at, f"c{n % 2}", at, Tap(f"c{n % 2}", at))


def world(of: App, **more: Any) -> World:
    return type("Of", (World,), {"app": of, **more})()


@pytest.mark.parametrize("process", [Taps(), BatchCall()])
def test_an_app_that_is_right_passes(process: Taps) -> None:
    right = world(app_of(process))
    right.test_topology_and_topics_agree()
    right.test_cuts_and_restarts_change_no_table()
    right.test_a_wrong_clock_is_nobody_elses()


@pytest.mark.parametrize(("process", "bound"), [(ByArrival(), 20_000), (Forgets(), 2_000)])
def test_what_hangs_on_cuts_or_does_not_outlive_a_restart_fails(process: Taps, bound: int) -> None:
    with pytest.raises(AssertionError, match="seed"):
        world(app_of(process), seeds=range(1, 9), bound_ms=bound).test_cuts_and_restarts_change_no_table()


def test_an_app_that_says_nothing_fails() -> None:
    class Nothing(Taps):
        name = "Taps"

        def process(self, event: Tap, ctx: Context) -> None:
            pass

    with pytest.raises(AssertionError, match="nothing came out"):
        world(app_of(Nothing())).test_cuts_and_restarts_change_no_table()


def test_dead_letters_that_go_nowhere_fail() -> None:
    with pytest.raises(AssertionError, match="its `dead_letters` are written to no table"):
        world(app_of(Taps(), main="said")).test_topology_and_topics_agree()


def test_a_topic_that_nobody_reads_fails() -> None:
    wrong = app_of(Taps())
    topics = Topics(reads=(Topic("taps", event_time="at"), Topic("control", 1)), control="control")
    with pytest.raises(AssertionError):
        world(App(**{**vars(wrong), "topics": lambda s: topics})).test_topology_and_topics_agree()


def test_a_clock_that_is_believed_by_its_word_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the time when the newest event was the time of all."""
    monkeypatch.setattr("millrace.testing.app_contract.min", lambda at, came: at, raising=False)
    with pytest.raises(AssertionError):
        world(app_of(Taps())).test_a_wrong_clock_is_nobody_elses()
