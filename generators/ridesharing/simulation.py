"""The world in a loop with the reference dispatcher: what runs when no app answers."""

from __future__ import annotations

from collections.abc import Iterator

from millrace_apps.generators.engine.simulated import Simulated
from millrace_apps.generators.ridesharing.agents import World
from millrace_apps.generators.ridesharing.dispatch import WINDOW_MS, NearestDispatcher
from millrace_apps.generators.ridesharing.profile import RidesProfile


def simulate(profile: RidesProfile) -> Iterator[Simulated]:
    """Yield what riders and drivers do when the nearest idle driver is sent.

    Args:
        profile: What the world is made from; equal profiles give equal events.

    Returns:
        Events in event time, ``profile.events`` of them or without end.

    >>> from itertools import islice
    >>> profile = RidesProfile(seed=7, drivers=40, rings=2)
    >>> events = list(islice(simulate(profile), 100))
    >>> {event.stream for event in events} >= {"status", "locations"}
    True
    """
    left = -1 if profile.events is None else profile.events
    for event in live(World(profile), NearestDispatcher()):
        if left == 0:
            return
        left -= 1
        yield event


def live(world: World, dispatcher: NearestDispatcher) -> Iterator[Simulated]:
    """Yield the events of a world that a dispatcher in memory answers once per window.

    Args:
        world: The agents.
        dispatcher: Who answers them.
    """
    observe, receive = dispatcher.observe, world.receive
    while True:
        until_ms = world.now_ms + WINDOW_MS
        for simulated in world.advance(until_ms):
            observe(simulated.event)
            yield simulated
        for message in dispatcher.decide(until_ms):
            receive(message)
